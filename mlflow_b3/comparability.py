"""Which audits can be compared, in pairs or as independent ones, and what the reader must know."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from mlflow_b3.corrected_scores import (
    CVC_ASPECTS,
    correction_notes,
    same_folds,
    shown_aspect,
    world_notes,
)
from mlflow_b3.errors import InputError
from mlflow_b3.measurement.resampling import FEW_CLUSTERS
from mlflow_b3.reporting.report import AuditReport

Reports = Mapping[str, AuditReport]
#: What functions without a name of their own are called: two of them may be different losses.
NAMELESS = frozenset({"<lambda>", "partial"})


def require_comparable(reports: Reports) -> None:
    """Refuse audits that have no common scale."""
    if len(reports) < 2:
        raise InputError(f"{len(reports)} audit was found; a comparison needs two or more.")
    parts = [name for name, report in reports.items() if report.partial]
    problems = [f"{name!r} is of an audit that was stopped early; finish it." for name in parts]
    for what, advice in (
        ("loss", "losses ({}), which have no common scale. Audit all models with the same loss."),
        ("task", "tasks ({}). Compare models of one task."),
        ("target", "targets ({}). Compare models that predict the same column."),
    ):
        values = {name: getattr(report.settings, what) for name, report in reports.items()}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            problems.append(f"the audits measure different {advice.format(listed)}")
    if problems:
        raise InputError(" ".join(problems))


def known_e0(report: AuditReport) -> float | None:
    """Return e0 where it can be ranked: a lower bound cannot."""
    return None if is_bound(report) else report.e0


def is_bound(report: AuditReport) -> bool:
    """Whether a part of the model kept what it learned from all rows, so that losses are too low."""
    return report.settings.refit_strength != "full"


def leakage_words(report: AuditReport) -> str:
    """Return what e0 rests on."""
    claim = report.settings.claim
    if claim is None:
        return "not known"
    ends = " to ".join(dict.fromkeys(f"{end:.3g}" for end in claim))
    return f"{report.p0_source} {ends}"


def _rows(report: AuditReport) -> str:
    """Return by what the audited rows are known; models may use different columns of them."""
    return report.settings.rows_digest or report.settings.data_digest


def same_rows(a: AuditReport, b: AuditReport) -> bool:
    """Whether what each cluster adds is known of both, and the clusters are the same."""
    ours, theirs = a.influence, b.influence
    return (
        ours is not None
        and theirs is not None
        and _rows(a) == _rows(b)
        and a.settings.cluster == b.settings.cluster
        and ours.unit == theirs.unit
        and np.array_equal(ours.ids, theirs.ids)
    )


def is_paired(by: str, a: AuditReport, b: AuditReport) -> bool:
    """Whether what the scores of two audits share is known, and cancels."""
    if not (same_question(by, a, b) and same_rows(a, b)):
        return False
    return by != "cvc" or (_says_cv(a) and _says_cv(b) and same_folds(a, b))


def _says_cv(report: AuditReport) -> bool:
    return report.influence is not None and report.influence.cv is not None


def few_clusters(report: AuditReport) -> bool:
    """Whether intervals rest on rows, because clusters are too few."""
    return report.settings.n_validated < FEW_CLUSTERS


def same_question(by: str, a: AuditReport, b: AuditReport) -> bool:
    """Whether scores of two audits mean the same.

    That takes the same clusters and folds, for e0 also leakage and method, and for CV_c the same rows,
    groups and places.
    """
    return all(read(a) == read(b) for read in _aspects(by).values())


def has_named_loss(report: AuditReport) -> bool:
    """Whether the name of the loss says which one it is."""
    return report.settings.loss not in NAMELESS


def is_comparable(by: str, a: AuditReport, b: AuditReport) -> bool:
    """Whether a difference of two scores can mean something."""
    return same_question(by, a, b) and has_named_loss(a)


def same_law(a: AuditReport, b: AuditReport, split: bool) -> bool:
    """Whether two curves over the cluster error, or the split rate, were made in the same way."""
    read = _fragments if split else _method
    return read(a) == read(b) and a.settings.p0_validation == b.settings.p0_validation


Aspect = Callable[[AuditReport], object]


def _aspects(by: str) -> dict[str, Aspect]:
    """Return what must be the same of two audits, by what it is called."""
    if by == "cvc":
        return CVC_ASPECTS | {"rows": _rows}
    common: dict[str, Aspect] = {
        "clusters": lambda report: report.settings.cluster,
        "thresholds of a match": lambda report: (
            report.settings.fold_threshold,
            report.settings.purge_threshold,
        ),
    }
    if by == "loco":
        return common
    return common | {"leakage": _claim, "methods": _law}


def _claim(report: AuditReport) -> object:
    s = report.settings
    return report.p0_source, s.claim, s.claim_centre, s.p0_validation, len(report.readings)


def _law(report: AuditReport) -> object:
    return _fragments(report) if report.settings.pattern == "fragments" else _method(report)


def _method(report: AuditReport) -> object:
    s = report.settings
    return s.method, s.method_options, s.scheme, s.n_train


def _fragments(report: AuditReport) -> object:
    return report.settings.fragments


def _shown(aspect: str, report: AuditReport) -> str:
    s = report.settings
    if aspect in CVC_ASPECTS:
        return shown_aspect(aspect, report)
    if aspect == "rows":
        return f"{s.n_rows} of digest {_rows(report)[:8]}"
    if aspect == "clusters":
        return s.cluster
    if aspect == "leakage":
        most_likely = "" if s.claim_centre is None else f" around {s.claim_centre:.3g}"
        back = "" if s.p0_validation is None else f", p0_validation {s.p0_validation:.3g}"
        return leakage_words(report) + most_likely + back
    if aspect == "methods":
        if s.pattern == "fragments":
            return f"fragments {s.fragments}"
        options = "".join(f" {name}={value}" for name, value in s.method_options.items())
        size = "" if s.n_train is None else f", n_train {s.n_train}"
        return f"{s.method}{options}, scheme {s.scheme}{size}"
    return f"{s.fold_threshold} in folds, {s.purge_threshold} in purging"


def comparison_notes(reports: Reports, by: str, compared: Sequence[str]) -> tuple[str, ...]:
    """Return what the reader of a comparison must know.

    Parameters
    ----------
    reports : mapping of str to AuditReport
    by : {"e0", "loco", "cvc"}
    compared : sequence of str
        Those between which differences are taken.
    """
    among = {name: reports[name] for name in compared}
    notes = correction_notes(reports) if by == "cvc" else _left_out(reports)
    if by == "loco":
        notes.append("Fewer than two models have a known e0, so none is best on new clusters.")
    if len(among) < 2:
        return tuple(notes)
    if by == "loco":
        notes.append("Differences are of the score by noisy ids, which leakage makes too good.")
    if by == "cvc":
        notes += world_notes(among)
    return (*notes, *_noise(among, by), *_questions(among, by))


def _left_out(reports: Reports) -> list[str]:
    notes = []
    bounds = [name for name, report in reports.items() if is_bound(report)]
    unknown = [n for n, r in reports.items() if r.e0 is None and not is_bound(r)]
    silent = [name for name in unknown if reports[name].p0_source == "none"]
    vacuous = [name for name in unknown if name not in silent]
    if silent:
        notes.append(f"e0 of {_listed(silent)} is not known: nothing says how much leaks.")
    if vacuous:
        notes.append(
            f"e0 of {_listed(vacuous)} is not known: what was given about the leakage leaves open that "
            "any share leaks."
        )
    if bounds:
        notes.append(
            f"For {_listed(bounds)} there are lower bounds only, which have no place and no differences: "
            "a part of the model was not trained again."
        )
    return notes


def _noise(reports: Reports, by: str) -> list[str]:
    notes = []
    few = [name for name, report in reports.items() if few_clusters(report)]
    if few:
        notes.append(
            f"{_listed(few)}: fewer than {FEW_CLUSTERS} clusters were validated on. How much new clusters "
            "differ cannot be told from so few; intervals are about new rows of the same clusters, "
            "and no difference is taken to be more than noise."
        )
    silent = [
        name
        for name, report in reports.items()
        if report.influence is None or (by == "cvc" and not _says_cv(report))
    ]
    if silent:
        notes.append(
            f"The audits of {_listed(silent)} do not say what each cluster adds: their differences are "
            "those of independent audits, with wide intervals."
        )
    pairs = list(combinations(reports.values(), 2))
    if len({_rows(report) for report in reports.values()}) > 1:
        notes.append(
            "Not all audits are of the same rows. Differences between audits of other rows are those of "
            "independent audits; the rows are a part of them."
        )
    elif not silent and not all(same_rows(a, b) for a, b in pairs):
        notes.append(
            "Not all audits validated on the same clusters; where they did not, differences are those of "
            "independent audits."
        )
    elif by == "cvc" and not all(same_folds(a, b) for a, b in pairs):
        notes.append(
            "Not all audits have the same folds and the same seed; where they have not, differences are "
            "those of independent audits. Audit the models together to avoid it."
        )
    elif len({report.settings.folds_digest for report in reports.values()}) > 1:
        notes.append("The folds differ, which adds noise; audit the models together to avoid it.")
    return notes


def _questions(reports: Reports, by: str) -> list[str]:
    notes = []
    for aspect, read in _aspects(by).items():
        if any(read(a) != read(b) for a, b in combinations(reports.values(), 2)):
            listed = "; ".join(f"{name!r}: {_shown(aspect, r)}" for name, r in reports.items())
            notes.append(
                f"The audits rest on different {aspect} ({listed}). Where these differ, the scores answer "
                "different questions, and no difference is taken to be more than noise."
            )
    if not all(map(has_named_loss, reports.values())):
        notes.append(
            "The loss is a function without a name, so the audits may be of different losses, and no "
            "difference is taken to be more than noise. Define it with def and a name of its own."
        )
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
