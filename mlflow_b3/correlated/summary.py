"""What follows from refits, working model and bias: the numbers and findings of a `CvcReport`."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mlflow_b3.correlated.group_errors import group_reach
from mlflow_b3.correlated.options import LOWER_QUALITY
from mlflow_b3.correlated.real_refits import RealRefits
from mlflow_b3.correlated.report import WITHHELD, CvcReport, GroupLevel, SpatialField
from mlflow_b3.correlated.simulation import Simulated, is_small
from mlflow_b3.correlated.spatial import regional_field
from mlflow_b3.correlated.structure import Level, Structure, WorkingModel, is_within
from mlflow_b3.correlated.uncertainty import MULTIPLIERS, BiasAt, bias_interval, trace_multipliers
from mlflow_b3.findings import Finding
from mlflow_b3.fold_table import digest_folds
from mlflow_b3.folds import Fold
from mlflow_b3.measurement.outcomes import TOLERATED_FAILURES, FitCounts
from mlflow_b3.subject import Subject
from mlflow_b3.wording import number, percent

#: Share of the field's spectrum that may be dropped without a remark.
CLIPPED = 0.05


def summarize(
    *,
    subject: Subject,
    structure: Structure,
    folds: Sequence[Fold],
    seed: int,
    real: RealRefits,
    reach: float,
    grouped_by: Level,
    grouped: tuple[float, tuple[float, float]] | None,
    problems: list[tuple[str, str]],
    model: WorkingModel | None,
    engine: str,
    simulated: Simulated | None,
    bias_at: BiasAt | None,
    counts: FitCounts,
) -> CvcReport:
    """Return the report; the correction is withheld where anything speaks against it."""
    assert subject.cvc is not None
    told = [*problems, *_one_class(real, len(folds), simulated)]
    if model is not None:
        told += [*model.problems, *model.warnings]
    floor = subject.loss.floor
    cv = float(np.mean(real.losses))
    if grouped is None:
        whole, beside = float(np.mean(real.grouped)), group_reach(real.grouped, (grouped_by,))
        grouped = whole, _around(whole, beside, beside, floor)
    lower = engine in LOWER_QUALITY or subject.learner.strength != "full"
    report = CvcReport(
        cv=cv,
        cv_interval=_around(cv, reach, reach, floor),
        cvc=None,
        bias=None,
        bias_interval=None,
        bias_error=None,
        interval=None,
        grouped=grouped[0],
        grouped_interval=grouped[1],
        grouped_by=grouped_by.name,
        groups=_groups(structure, model, grouped_by),
        field=_field(subject, structure, model),
        loss=subject.loss.name,
        task=subject.task,
        engine=engine,
        lower_quality=lower,
        working=subject.cvc.working if model is None else model.source,
        slope=_slope(model),
        folds=len(folds),
        draws=0 if simulated is None else simulated.bias.draws,
        n_rows=subject.table.n_rows,
        seed=seed,
        refits=counts.summary(),
        settings=_settings(subject, folds, model),
        model=model,
        row_losses=real.losses,
    )
    if counts.interrupted:
        told.append(("B330", "it was stopped early; the correction rests on fewer samples."))
    withheld = simulated is None or any(code in WITHHELD for code, _ in told)
    if not withheld:
        assert simulated is not None
        assert model is not None
        assert bias_at is not None
        report = _corrected(report, simulated, model, bias_at, reach, floor)
        told += _remarks(report, simulated, reach, structure, model)
    findings = tuple(Finding(code=code, message=message) for code, message in told)
    return replace(report, findings=findings)


def _corrected(
    report: CvcReport,
    simulated: Simulated,
    model: WorkingModel,
    bias_at: BiasAt,
    reach: float,
    floor: float | None,
) -> CvcReport:
    bias = simulated.bias
    low, high = bias_interval(bias, model, bias_at)
    value = report.cv + bias.value
    ends = (float(np.hypot(reach, bias.value - low)), float(np.hypot(reach, high - bias.value)))
    return replace(
        report,
        cvc=value,
        bias=bias.value,
        bias_interval=(low, high),
        bias_error=bias.error,
        interval=_around(value, *ends, floor),
        multipliers=MULTIPLIERS,
        sensitivity=tuple(report.cv + at for at in trace_multipliers(model, bias_at)),
    )


def _around(value: float, below: float, above: float, floor: float | None) -> tuple[float, float]:
    low = value - below
    return (low if floor is None else min(max(low, floor), value), value + above)


def _groups(
    structure: Structure, model: WorkingModel | None, grouped_by: Level
) -> tuple[GroupLevel, ...]:
    known = model is not None and structure.field is None and not model.problems
    return tuple(
        GroupLevel(
            name=level.name,
            groups=level.n_groups,
            new=level.new,
            sd=model.sd[place] if known and model is not None else None,
            interval=(model.sd_low[place], model.sd_high[place])
            if known and model is not None
            else None,
            nested=level is not grouped_by and is_within(level, grouped_by),
        )
        for place, level in enumerate(structure.grouping)
    )


def _field(
    subject: Subject, structure: Structure, model: WorkingModel | None
) -> SpatialField | None:
    if structure.field is None or model is None or model.problems:
        return None
    assert subject.cvc is not None
    assert model.reach is not None
    split = regional_field(structure.field, model.sd[0], model.reach)
    return SpatialField(
        coordinates=subject.cvc.coordinates,
        sd=model.sd[0],
        reach=model.reach,
        interval=(model.sd_low[0], model.sd_high[0]),
        across=split.across,
    )


def _slope(model: WorkingModel | None) -> float | None:
    if model is None or model.source != "score" or len(model.coefficients) != 2:
        return None
    return model.coefficients[1]


def _settings(
    subject: Subject, folds: Sequence[Fold], model: WorkingModel | None
) -> dict[str, Any]:
    assert subject.cvc is not None
    described = subject.describe()
    kept = ("model", "uri", "run_id", "model_id", "refit", "target", "rows_digest", "data_digest")
    chosen = {name: described[name] for name in kept} | {"version": described["version"]}
    chosen["folds_digest"] = digest_folds(list(folds))
    return chosen | subject.cvc.to_dict() | {"working_digest": digest_model(model)}


def digest_model(model: WorkingModel | None) -> str | None:
    """Return 16 digits by which two candidates know that they share a simulated world."""
    if model is None:
        return None
    # in the order of names, so that candidates whose groups are listed otherwise have the same
    order = sorted(range(len(model.sd)), key=lambda place: model.levels[place : place + 1])
    ends = [(model.sd[at], model.sd_low[at], model.sd_high[at]) for at in order]
    numbers = np.array([*np.ravel(ends), model.noise or 0.0, model.reach or 0.0], dtype="<f8")
    sha = hashlib.sha256(np.ascontiguousarray(model.mean, dtype="<f8").tobytes())
    sha.update(numbers.tobytes() + "\x1f".join(sorted(model.levels)).encode())
    return sha.hexdigest()[:16]


def _one_class(
    real: RealRefits, n_folds: int, simulated: Simulated | None
) -> list[tuple[str, str]]:
    if real.one_class:
        message = (
            f"in {real.one_class} of {n_folds} folds of the cross-validation all training rows have the "
            "same class; its loss means little there, and no correction is given. Use fewer or "
            "stratified folds."
        )
        return [("B334", message)]
    if simulated is not None and simulated.one_class > TOLERATED_FAILURES:
        message = (
            f"{percent(simulated.one_class)} of the simulated training sets have a single class: the "
            "rows are too few or one class is too rare. No correction is given."
        )
        return [("B334", message)]
    return []


def _remarks(
    report: CvcReport,
    simulated: Simulated,
    reach: float,
    structure: Structure,
    model: WorkingModel,
) -> list[tuple[str, str]]:
    """Return what the reader of a corrected loss must know."""
    assert report.cvc is not None
    assert report.grouped is not None
    assert report.bias is not None
    assert report.grouped_interval is not None
    told = []
    if not is_small(simulated.as_simulated, reach):
        error = number(simulated.as_simulated.error)
        message = (
            f"the correction, {number(report.bias)}, has an error of up to {error} by the number of "
            f"simulated samples, {simulated.bias.draws}; ask for more draws, or give a larger budget."
        )
        told.append(("B339", message))
    if report.lower_quality:
        told.append(("B337", _approximation(report)))
    apart = report.grouped - report.cvc
    if apart > report.grouped_interval[1] - report.grouped:
        message = (
            f"leaving out whole groups of {report.grouped_by!r} gives {number(report.grouped)}, "
            f"{number(apart)} more than corrected cross-validation. The features themselves may differ "
            "between groups, which the correction does not see: trust the larger number."
        )
        told.append(("B338", message))
    if structure.field is not None and model.reach is not None:
        clipped = regional_field(structure.field, model.sd[0], model.reach).clipped
        if clipped > CLIPPED:
            message = (
                f"{percent(clipped)} of the covariance within regions had to be dropped: regions lie "
                "so close together that they share more than their rows do among themselves."
            )
            told.append(("B341", message))
    return told


def _approximation(report: CvcReport) -> str:
    if report.engine == "last_layer":
        return (
            "only the last layer was trained on simulated targets. In simulations that found 45 to "
            "137 % of the correction of log loss, and 21 to 31 % of that of the error rate. Promote no "
            "model by it."
        )
    if report.engine == "hot":
        return (
            "networks were trained on simulated targets from the weights of the logged one. In "
            "simulations that found 18 to 93 % of the correction, the more the longer and the faster "
            "they learned: it is too small."
        )
    return (
        "refits keep part of what the model learned from all rows, so that cross-validation is too good "
        "in a way that the correction does not see."
    )
