"""`compare_reports`: which of several audited models is best on new clusters, beyond the noise."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from scipy import stats

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.differences import Uncertain, difference_interval
from mlflow_b3.estimation.intervals import CONFIDENCE
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.results import Result

NOT_KNOWN = math.inf


@dataclass(frozen=True, kw_only=True)
class Contender(Result):
    """One audited model among those that are compared.

    Attributes
    ----------
    name : str
    uri, run_id, audit_run_id : str or None
        Where MLflow keeps the model and its audit.
    iid, loco, e0 : float
        The loss ignoring clusters, by the ids as they are, and on new clusters; e0 is None where it
        is not known, or where the refits give a lower bound only.
    loco_interval, e0_interval : tuple of float
        95 % each, of this model alone.
    rank_iid, rank_loco, rank_e0 : int or None
        From 1, the smallest loss; None for an unknown e0.
    leakage : str
        What its e0 rests on.
    """

    name: str
    uri: str | None
    run_id: str | None
    audit_run_id: str | None
    iid: float
    loco: float
    loco_interval: tuple[float, float]
    e0: float | None
    e0_interval: tuple[float, float | None]
    rank_iid: int
    rank_loco: int
    rank_e0: int | None
    leakage: str

    @property
    def moved(self) -> bool:
        """Whether its place by e0 is another than by the score that ignores clusters."""
        return self.rank_e0 is not None and self.rank_e0 != self.rank_iid


@dataclass(frozen=True, kw_only=True)
class Difference(Result):
    """How much one model's loss exceeds that of a better one.

    Attributes
    ----------
    better, worse : str
        Names of the contenders.
    difference : float
        Loss of the worse less that of the better, on new clusters.
    interval : tuple of float
        Holds for all pairs at once with 95 %.
    beyond_noise : bool
        The interval does not contain 0.
    paired : bool
        Both were audited on the same rows with the same leakage, so that what they share cancels.
    flips_iid, flips_loco : bool
        The score that ignores clusters, or the one by noisy ids, has them the other way round.
    flips_at : float or None
        The smallest cluster error or split rate at which the two change places; None if none up to
        50 % does.
    """

    better: str
    worse: str
    difference: float
    interval: tuple[float, float]
    beyond_noise: bool
    paired: bool
    flips_iid: bool
    flips_loco: bool
    flips_at: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """Several audited models, the best on new clusters first.

    Attributes
    ----------
    loss : str
    by : {"e0", "loco"}
        What the differences are of; `loco` where no model's e0 is known.
    axis : {"cluster error", "split rate"}
        What the places at which models change are given in.
    contenders : tuple of Contender
    differences : tuple of Difference
        Every pair of contenders that can be compared.
    notes : tuple of str
        What the reader must know.
    """

    loss: str
    by: str
    axis: str
    contenders: tuple[Contender, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


def compare_reports(
    reports: Mapping[str, AuditReport], audit_runs: Mapping[str, str] | None = None
) -> Comparison:
    """Rank audited models by their loss on new clusters, and tell which differences are noise.

    Parameters
    ----------
    reports : mapping of str to AuditReport
        By the name that each model is to have.
    audit_runs : mapping of str to str, optional
        The MLflow runs that hold the audits.

    Notes
    -----
    Each pair's interval puts together the intervals of both (the MOVER method,
    doi:10.1002/sim.3095), less what they share: the correlation of what each cluster adds to either
    e0. Where the leakage is a range, the two share it, so the difference is taken at its ends and
    in its middle, and the interval covers all three. Intervals hold for all pairs at once
    (Bonferroni). Audits of different rows or with different leakage share nothing that is known,
    and are compared as independent.
    """
    _require_comparable(reports)
    by = "e0" if any(_known(report) for report in reports.values()) else "loco"
    contenders = _ranked(reports, audit_runs or {})
    split = all(report.settings.pattern == "fragments" for report in reports.values())
    names = [c.name for c in contenders if by == "loco" or c.e0 is not None]
    pairs = list(combinations(names, 2))
    differences = tuple(
        _difference(by, (a, reports[a]), (b, reports[b]), len(pairs), split) for a, b in pairs
    )
    return Comparison(
        loss=next(iter(reports.values())).settings.loss,
        by=by,
        axis="split rate" if split else "cluster error",
        contenders=contenders,
        differences=differences,
        notes=_notes(reports, by),
    )


def _require_comparable(reports: Mapping[str, AuditReport]) -> None:
    if len(reports) < 2:
        raise InputError(f"{len(reports)} audit was found; a comparison needs two or more.")
    losses = {name: report.settings.loss for name, report in reports.items()}
    if len(set(losses.values())) > 1:
        listed = ", ".join(f"{name}: {loss}" for name, loss in losses.items())
        raise InputError(
            f"the audits measure different losses ({listed}), which have no common scale. Audit all "
            "models with the same loss."
        )


def _known(report: AuditReport) -> float | None:
    """Return e0 where it can be ranked: a lower bound cannot."""
    return report.e0 if report.settings.refit_strength == "full" else None


def _ranked(
    reports: Mapping[str, AuditReport], audit_runs: Mapping[str, str]
) -> tuple[Contender, ...]:
    places = {
        score: _places({name: read(report) for name, report in reports.items()})
        for score, read in _SCORES.items()
    }
    contenders = [
        Contender(
            name=name,
            uri=report.settings.uri,
            run_id=report.settings.run_id,
            audit_run_id=audit_runs.get(name),
            iid=report.iid,
            loco=report.loco,
            loco_interval=report.loco_interval,
            e0=_known(report),
            e0_interval=report.e0_interval,
            rank_iid=places["iid"][name],
            rank_loco=places["loco"][name],
            rank_e0=None if _known(report) is None else places["e0"][name],
            leakage=_leakage(report),
        )
        for name, report in reports.items()
    ]
    return tuple(sorted(contenders, key=lambda c: (c.rank_e0 or NOT_KNOWN, c.loco)))


_SCORES: dict[str, Callable[[AuditReport], float]] = {
    "iid": lambda report: report.iid,
    "loco": lambda report: report.loco,
    "e0": lambda report: NOT_KNOWN if (e0 := _known(report)) is None else e0,
}


def _places(losses: Mapping[str, float]) -> dict[str, int]:
    """Return the place of each from 1; equal losses share one."""
    return {
        name: 1 + sum(other < loss for other in losses.values()) for name, loss in losses.items()
    }


def _leakage(report: AuditReport) -> str:
    claim = report.settings.claim
    if claim is None:
        return "not known"
    ends = " to ".join(dict.fromkeys(f"{end:.3g}" for end in claim))
    return f"{report.p0_source} {ends}"


def _difference(
    by: str,
    first: tuple[str, AuditReport],
    second: tuple[str, AuditReport],
    pairs: int,
    split: bool,
) -> Difference:
    (better, a), (worse, b) = first, second
    paired = _same_rows(a, b) and (by == "loco" or _same_claim(a, b))
    value, interval = _interval(by, a, b, paired, pairs)
    if value < 0:  # by LOCO the contenders may stand in another order
        (better, a), (worse, b) = (worse, b), (better, a)
        value, interval = -value, (-interval[1], -interval[0])
    return Difference(
        better=better,
        worse=worse,
        difference=value,
        interval=interval,
        beyond_noise=interval[0] > 0,
        paired=paired,
        flips_iid=a.iid > b.iid,
        flips_loco=a.loco > b.loco,
        flips_at=_crossing(a, b, split),
    )


def _interval(
    by: str, a: AuditReport, b: AuditReport, paired: bool, pairs: int
) -> tuple[float, tuple[float, float]]:
    """Return by how much the second exceeds the first, with the interval."""
    if by == "loco":
        ours, theirs = [_loco(a, paired)], [_loco(b, paired)]
        value = b.loco - a.loco
    elif paired:
        ours, theirs = _readings(a), _readings(b)
        value = (b.e0 or 0.0) - (a.e0 or 0.0)
    else:
        ours, theirs = [_headline(a)], [_headline(b)]
        value = (b.e0 or 0.0) - (a.e0 or 0.0)
    freedom = min(report.curve.degrees_of_freedom or 1 for report in (a, b))
    ends = [
        difference_interval(y, x, freedom=freedom, widening=_widening(pairs, freedom))
        for x, y in zip(ours, theirs, strict=True)
    ]
    return value, (min(value, *(e[0] for e in ends)), max(value, *(e[1] for e in ends)))


def _widening(pairs: int, freedom: float) -> float:
    """Return how much wider intervals must be to hold for all pairs at once."""
    tail = (1 - CONFIDENCE) / 2
    return float(stats.t.ppf(1 - tail / pairs, freedom) / stats.t.ppf(1 - tail, freedom))


def _loco(report: AuditReport, paired: bool) -> Uncertain:
    low, high = report.loco_interval
    influence = report.influence.loco if paired and report.influence is not None else None
    return Uncertain(value=report.loco, low=low, high=high, influence=influence)


def _headline(report: AuditReport) -> Uncertain:
    low, high = report.e0_interval
    assert report.e0 is not None
    assert high is not None
    return Uncertain(value=report.e0, low=low, high=high)


def _readings(report: AuditReport) -> list[Uncertain]:
    assert report.influence is not None
    return [
        Uncertain(
            value=reading.e0,
            low=reading.low,
            high=reading.high,
            noise=reading.noise,
            influence=column,
        )
        for reading, column in zip(report.readings, report.influence.e0.T, strict=True)
    ]


def _same_rows(a: AuditReport, b: AuditReport) -> bool:
    ours, theirs = a.influence, b.influence
    return (
        ours is not None
        and theirs is not None
        and _rows(a) == _rows(b)
        and ours.unit == theirs.unit
        and np.array_equal(ours.ids, theirs.ids)
    )


def _rows(report: AuditReport) -> tuple[str, str, str]:
    settings = report.settings
    return settings.data_digest, settings.target, settings.cluster


def _same_claim(a: AuditReport, b: AuditReport) -> bool:
    def claim(report: AuditReport) -> tuple[object, ...]:
        s = report.settings
        return report.p0_source, s.claim, s.claim_centre, s.p0_validation, len(report.readings)

    return claim(a) == claim(b)


def _crossing(a: AuditReport, b: AuditReport, split: bool) -> float | None:
    """Return the smallest error at which two sensitivity curves change places."""
    ours, theirs = (r.fragment_sensitivity if split else r.sensitivity for r in (a, b))
    if ours is None or theirs is None or ours.error is None or theirs.error is None:
        return None
    errors = [e for e in ours.error if e in theirs.error]
    gaps = [theirs.e0[theirs.error.index(e)] - ours.e0[ours.error.index(e)] for e in errors]
    apart = [(error, gap) for error, gap in zip(errors, gaps, strict=True) if gap != 0]
    for (x, before), (y, after) in pairwise(apart):
        if before * after < 0:
            return float(x + before / (before - after) * (y - x))
    return None


def _notes(reports: Mapping[str, AuditReport], by: str) -> tuple[str, ...]:
    notes = []
    unknown = [name for name, report in reports.items() if report.e0 is None]
    bounds = [
        name
        for name, r in reports.items()
        if r.e0 is not None and r.settings.refit_strength != "full"
    ]
    if unknown:
        notes.append(f"e0 of {_listed(unknown)} is not known: nothing says how much leaks.")
    if bounds:
        notes.append(f"For {_listed(bounds)} there is a lower bound only, which has no place.")
    if by == "loco":
        notes.append("Differences are of the score by noisy ids, which leakage makes too good.")
    first = next(iter(reports.values()))
    others = [name for name, r in reports.items() if not _same_rows(first, r)]
    if others:
        notes.append(
            f"{_listed(others)} was audited on other rows than the first, or its audit does not say "
            "what each cluster adds: its differences are those of independent audits."
        )
    elif len({r.settings.folds_digest for r in reports.values()}) > 1:
        notes.append("The folds differ, which adds noise; audit the models together to avoid it.")
    claims = {name: _leakage(report) for name, report in reports.items() if name not in unknown}
    if len(set(claims.values())) > 1:
        notes.append(
            "The audits rest on different leakage ("
            + "; ".join(f"{name}: {claim}" for name, claim in claims.items())
            + "), so e0 is not of the same question."
        )
    return tuple(notes)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
