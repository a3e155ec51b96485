"""When two audits may be compared, by how much they differ, and where they change places."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
from scipy import stats

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.errors import InputError, choose
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.estimation.influence import (
    Array,
    Uncertain,
    corrected_influence,
    difference_interval,
    effective_freedom,
)
from mlflow_b3.estimation.sensitivity import Sensitivity
from mlflow_b3.measurement.refits import FEW_CLUSTERS

# --- What two audits need for their corrected cross-validation, CV_c, to be compared

Reports = Mapping[str, AuditReport]
#: What audits can be ranked by.
SCORES = ("auto", "e0", "cvc")


def chosen_score(by: str, reports: Reports) -> str:
    """Return what to rank by: "auto" is CV_c where all know it and take their ids as right.

    Where ids may be wrong, e0 sees that and CV_c does not.
    """
    if choose("by", by, SCORES) == "auto":
        return "cvc" if all(map(_rests_on_cvc, reports.values())) else "e0"
    missing = [name for name, report in reports.items() if report.cvc is None]
    if by == "cvc" and missing:
        raise InputError(
            f"by='cvc': the audits of {', '.join(map(repr, missing))} have no CV_c. Audit these models "
            "with method='cvc', or compare by='e0'."
        )
    return by


def _rests_on_cvc(report: AuditReport) -> bool:
    claim = report.settings.claim
    return known_cvc(report) is not None and claim is not None and not any(claim)


def cvc_of(report: AuditReport) -> CvcReport:
    """Return the corrected cross-validation of an audit that has it."""
    assert report.cvc is not None
    return report.cvc


def known_cvc(report: AuditReport) -> float | None:
    """Return CV_c where it can be ranked: what may miss part of the bias cannot."""
    if report.cvc is None or report.cvc.interval is None or is_approximate(report):
        return None
    return report.cvc.cvc


def is_approximate(report: AuditReport) -> bool:
    """Whether CV_c may miss part of the bias, by its engine or by how the model is trained again."""
    return cvc_of(report).lower_quality or report.settings.refit_strength != "full"


def grouping(report: AuditReport) -> frozenset[str]:
    """Return the levels by which rows are correlated."""
    return frozenset(group.name for group in cvc_of(report).groups)


def new_levels(report: AuditReport) -> frozenset[str]:
    """Return the levels of which the model will meet new groups."""
    return frozenset(cvc_of(report).new)


def coordinates(report: AuditReport) -> tuple[str, ...]:
    """Return the columns of places; none without a field."""
    field = cvc_of(report).field
    return () if field is None else field.coordinates


def same_folds(a: AuditReport, b: AuditReport) -> bool:
    """Whether two audits cross-validated on the same folds, with the same seed."""
    return _split(a) == _split(b)


def _split(report: AuditReport) -> object:
    cvc = cvc_of(report)
    folds = cvc.settings.get("folds_digest")
    return cvc.folds, cvc.seed, folds, report.settings.folds_digest, report.settings.seed


def same_world(a: AuditReport, b: AuditReport) -> bool:
    """Whether two audits simulated by the same working model, from the same draws."""
    ours, theirs = _world(a), _world(b)
    return ours == theirs and ours[0] is not None


def _world(report: AuditReport) -> tuple[object, int]:
    cvc = cvc_of(report)
    return cvc.settings.get("working_digest"), cvc.seed


def correction_notes(reports: Reports) -> list[str]:
    """Return why some models have no place by CV_c."""
    notes = []
    unknown = [n for n, r in reports.items() if cvc_of(r).cvc is None or cvc_of(r).interval is None]
    approximate = [n for n, r in reports.items() if n not in unknown and is_approximate(r)]
    for name in unknown:
        codes = ", ".join(dict.fromkeys(finding.code for finding in cvc_of(reports[name]).findings))
        notes.append(
            f"CV_c of {name!r} is withheld, so it has no place and no differences"
            + (f"; the findings of its audit say why ({codes})." if codes else ".")
        )
    if approximate:
        listed = ", ".join(f"{name!r}: {cvc_of(reports[name]).engine}" for name in approximate)
        notes.append(
            f"Corrections that may miss a part of the bias have no place and no differences ({listed}). "
            "Audit these models with the engine 'full'."
        )
    return notes


def world_notes(reports: Reports) -> list[str]:
    """Return whether the corrections of those that are compared have something in common."""
    first, *others = reports.values()
    if all(same_world(first, other) for other in others):
        return []
    listed = "; ".join(f"{name!r}: {_world_words(report)}" for name, report in reports.items())
    return [
        f"The corrections do not all come from one simulated world ({listed}). Where they do not, they are "
        "not on common draws, and the uncertainty of each counts in full."
    ]


def _world_words(report: AuditReport) -> str:
    cvc = cvc_of(report)
    digest = cvc.settings.get("working_digest")
    known = "of its own" if digest is None else str(digest)[:8]
    return f"working model {cvc.working} {known}, seed {cvc.seed}"


Aspects = dict[str, Callable[[AuditReport], object]]
#: What must be the same of two audits, by what it is called.
CVC_ASPECTS: Aspects = {
    "groups": grouping,
    "new groups": new_levels,
    "coordinates": coordinates,
}


def shown_aspect(aspect: str, report: AuditReport) -> str:
    """Return what an audit has for one of these aspects, in words."""
    value = CVC_ASPECTS[aspect](report)
    assert isinstance(value, (frozenset, tuple))
    return ", ".join(sorted(value)) or "none"


# --- Which audits can be compared, in pairs or as independent ones, and what the reader must know

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


# --- Where two audited models change places: at which rate of wrong ids, or variance, curves cross

SPLIT_RATE, CLUSTER_ERROR, LEAKED_SHARE = "split rate", "cluster error", "leaked share p0"
SD_MULTIPLIER = "multiplier of the SDs"


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where two curves of e0, or of CV_c, cross.

    Attributes
    ----------
    at : float or None
        The smallest value of the axis at which they do; None where none is known.
    up_to : float or None
        The end of what was searched; None where nothing could be.
    why_not : str
        Why nothing could be.
    """

    at: float | None = None
    up_to: float | None = None
    why_not: str = ""


def common_axis(by: str, reports: list[AuditReport]) -> str:
    """Return what the crossings of these audits are given in."""
    if by == "cvc":
        return SD_MULTIPLIER
    if all(report.settings.pattern == "fragments" for report in reports):
        return SPLIT_RATE
    # where the share of validation rows is fixed, no rate of wrong ids stands behind a p0
    if all(report.sensitivity.error is None for report in reports):
        return LEAKED_SHARE
    return CLUSTER_ERROR


def find_crossing(a: AuditReport, b: AuditReport, axis: str) -> Crossing:
    """Return the smallest value of an axis at which two sensitivity curves change places."""
    if axis == SD_MULTIPLIER:
        if not same_world(a, b):
            return Crossing(why_not="their corrections were simulated by different models")
        return _cross(
            *(dict(zip(r.multipliers, r.sensitivity, strict=True)) for r in map(cvc_of, (a, b)))
        )
    ours, theirs = _curve(a, axis), _curve(b, axis)
    if not ours or not theirs:
        return Crossing(why_not=f"not both audits have a curve over the {axis}")
    if not same_law(a, b, axis == SPLIT_RATE):
        return Crossing(why_not="their sensitivity curves were not made in the same way")
    return _cross(ours, theirs)


def _cross(ours: dict[float, float], theirs: dict[float, float]) -> Crossing:
    """Return where two curves cross, by the points that both have."""
    common = [x for x in ours if x in theirs]
    if len(common) < 2:
        return Crossing(why_not="their sensitivity curves have no points in common")
    apart = [(x, theirs[x] - ours[x]) for x in common if theirs[x] != ours[x]]
    for (x, before), (y, after) in pairwise(apart):
        if before * after < 0:
            return Crossing(
                at=float(x + before / (before - after) * (y - x)), up_to=float(common[-1])
            )
    return Crossing(up_to=float(common[-1]))


def _curve(report: AuditReport, axis: str) -> dict[float, float]:
    """Return e0 by the values of an axis; nothing where the audit has no such curve."""
    curve: Sensitivity | None = report.sensitivity
    if axis == SPLIT_RATE:
        curve = report.fragment_sensitivity
    if curve is None or (curve.error is None) != (axis == LEAKED_SHARE):
        return {}
    x = curve.p0 if curve.error is None else curve.error
    return dict(zip(x, curve.e0, strict=True))


# --- By how much the score of one audit exceeds that of another, with the interval


def score_gap(
    by: str, a: AuditReport, b: AuditReport, paired: bool, pairs: int
) -> tuple[float, tuple[float, float]]:
    """Return by how much the second score exceeds the first, with the interval.

    Parameters
    ----------
    by : {"e0", "loco", "cvc"}
    a, b : AuditReport
    paired : bool
        They are of the same clusters, and the same leakage or folds.
    pairs : int
        How many differences the interval is to hold for at once.
    """
    if by == "loco":
        ours, theirs = [_loco(a)], [_loco(b)]
        value = b.loco - a.loco
    elif by == "cvc":
        ours, theirs = _corrections(a, b, paired)
        value = (cvc_of(b).cvc or 0.0) - (cvc_of(a).cvc or 0.0)
    else:
        read = _readings if paired else _headline
        ours, theirs = read(a), read(b)
        value = (b.e0 or 0.0) - (a.e0 or 0.0)
    ends = [
        difference_interval(y, x, paired=paired, pairs=pairs)
        for x, y in zip(ours, theirs, strict=True)
    ]
    return value, (min(value, *(e[0] for e in ends)), max(value, *(e[1] for e in ends)))


def _loco(report: AuditReport) -> Uncertain:
    influence = report.influence
    column = None if influence is None else influence.loco
    return _uncertain(report, report.loco, report.loco_interval, column)


def _readings(report: AuditReport) -> list[Uncertain]:
    assert report.influence is not None
    return [
        _uncertain(report, reading.e0, (reading.low, reading.high), column, reading.noise)
        for reading, column in zip(report.readings, report.influence.e0.T, strict=True)
    ]


def _headline(report: AuditReport) -> list[Uncertain]:
    """Return e0 with the interval over all of its range."""
    low, high = report.e0_interval
    e0 = report.e0
    assert e0 is not None
    assert high is not None
    column, noise = None, 0.0
    if report.influence is not None and report.readings:
        place = min(range(len(report.readings)), key=lambda n: abs(report.readings[n].e0 - e0))
        column, noise = report.influence.e0[:, place], report.readings[place].noise
    return [_uncertain(report, e0, (low, high), column, noise)]


def _corrections(
    a: AuditReport, b: AuditReport, paired: bool
) -> tuple[list[Uncertain], list[Uncertain]]:
    """Return CV_c of two audits, at standard deviations that both share where they do.

    In one simulated world both corrections rise and fall with the same standard deviations, so
    that the difference is taken at the ends of what these may be, and at their estimates. Elsewhere
    each correction has its uncertainty for itself.
    """
    ends = _multiples(cvc_of(a)) if paired and same_world(a, b) else None
    if ends is None:
        return [_correction(a)], [_correction(b)]
    return _at_multiples(a, ends), _at_multiples(b, ends)


def _correction(report: AuditReport) -> Uncertain:
    cvc, influence = cvc_of(report), report.influence
    assert cvc.cvc is not None
    assert cvc.interval is not None
    column = None if influence is None else influence.cv
    return _uncertain(report, cvc.cvc, cvc.interval, column, cvc.bias_error or 0.0)


def _multiples(cvc: CvcReport) -> tuple[float, ...] | None:
    """Return how many times their estimates the standard deviations may be, with 1 in between.

    None where one is 0, or may be larger than what was simulated.
    """
    parts = [cvc.field] if cvc.field is not None else cvc.groups
    ends = [end / part.sd for part in parts if part.sd and part.interval for end in part.interval]
    if len(ends) < 2 * len(parts) or max(ends) > max(cvc.multipliers, default=0.0):
        return None
    return min(ends), 1.0, max(ends)


def _at_multiples(report: AuditReport, ends: tuple[float, ...]) -> list[Uncertain]:
    """Return CV_c at multiples of the standard deviations, with the noise of clusters and draws."""
    assert report.influence is not None
    cvc = cvc_of(report)
    values = np.interp(ends, cvc.multipliers, cvc.sensitivity)
    found = []
    for value in map(float, values):
        known = _uncertain(
            report, value, (value, value), report.influence.cv, cvc.bias_error or 0.0
        )
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, known.freedom))
        reach = quantile * math.sqrt(known.variance)
        found.append(replace(known, low=value - reach, high=value + reach))
    return found


def _uncertain(
    report: AuditReport,
    value: float,
    ends: tuple[float, float],
    influence: Array | None,
    noise: float = 0.0,
) -> Uncertain:
    freedom = float(report.curve.degrees_of_freedom or 1)
    if influence is not None:
        assert report.influence is not None
        freedom = effective_freedom(report.influence.share)
        influence = corrected_influence(influence, report.influence.share)
    return Uncertain(
        value=value, low=ends[0], high=ends[1], freedom=freedom, noise=noise, influence=influence
    )
