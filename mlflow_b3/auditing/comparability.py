"""When two audits may be compared, by how much they differ, and where they change places."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, Protocol

import numpy as np

from mlflow_b3.auditing.extension import EXTENSIONS, extension_score
from mlflow_b3.auditing.leakage import CLUSTER_ERROR, SPLIT_RATE
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.errors import InputError, choose
from mlflow_b3.estimation.influence import (
    Array,
    Uncertain,
    corrected_influence,
    difference_interval,
    effective_freedom,
)
from mlflow_b3.estimation.sensitivity import Sensitivity
from mlflow_b3.measurement.refits import FEW_CLUSTERS

# --- The scores that audits are ranked by: e0, the score by noisy ids, or that of an extension

Reports = Mapping[str, AuditReport]
Aspect = Callable[[AuditReport], object]
#: What audits can be ranked by.
SCORES = ("auto", "e0", *EXTENSIONS)


class Score(Protocol):
    """One score of audits: who has it, when two can be compared, and by how much they differ."""

    @property
    def name(self) -> str:
        """As in `Comparison.by`."""

    def known(self, report: AuditReport) -> float | None:
        """Return the score if it can be ranked."""

    def aspects(self) -> dict[str, Aspect]:
        """Return what must be the same in two audits, by name."""

    def shown(self, aspect: str, report: AuditReport) -> str:
        """Return what an audit has for one of these aspects, in words."""

    def says_noise(self, report: AuditReport) -> bool:
        """Whether an audit says what each cluster adds to the score."""

    def same_splits(self, a: AuditReport, b: AuditReport) -> bool:
        """Whether two audits of the same rows are split alike, as far as pairs need it."""

    def left_out(self, reports: Reports) -> list[str]:
        """Return why some models have no place."""

    def basis(self, compared: Reports) -> list[str]:
        """Return what the differences between models rest on, if that needs to be said."""

    def values(
        self, a: AuditReport, b: AuditReport, paired: bool
    ) -> tuple[list[Uncertain], list[Uncertain]]:
        """Return the scores of two audits, each at the same values of what they share."""

    def axis(self, reports: Sequence[AuditReport]) -> str:
        """Return the axis on which the points where models change places are given."""

    def crossing(self, a: AuditReport, b: AuditReport, axis: str) -> "Crossing":
        """Return the smallest value of an axis at which two models change places."""

    def of_comparison(self, reports: Sequence[AuditReport]) -> dict[str, Any]:
        """Return the fields that a `Comparison` has for this score only."""


class ExtensionScore(Score, Protocol):
    """The score of an extension, which not all audits have."""

    def require(self, reports: Reports) -> None:
        """Refuse audits that were not made for it."""

    def decides(self, report: AuditReport) -> bool:
        """Whether to rank by it if no score was chosen."""

    def of_contender(self, report: AuditReport) -> dict[str, Any]:
        """Return the fields that a `Contender` has for it."""


def choose_score(by: str, reports: Reports) -> tuple[Score, list[str]]:
    """Return what to rank by, and the audits that have it.

    "auto" is the score of an extension if all audits rest on it, otherwise e0, or the score by noisy
    ids if fewer than two models have a known e0.
    """
    choose("by", by, SCORES)
    scores = {name: extension_score(name) for name in EXTENSIONS}
    chosen = scores.get(by)
    if chosen is not None:
        chosen.require(reports)
    elif by == "auto":
        rests = (s for s in scores.values() if all(map(s.decides, reports.values())))
        chosen = next(rests, None)
    score: Score = chosen or NewClusterScore()
    having = [name for name, report in reports.items() if score.known(report) is not None]
    if chosen is not None or len(having) > 1:
        return score, having
    score = NoisyScore()
    return score, [name for name, report in reports.items() if score.known(report) is not None]


# --- Which audits can be compared, in pairs or as independent ones, and what the reader must know

#: Names of functions without a name of their own: two of them may be different losses.
NAMELESS = frozenset({"<lambda>", "partial"})


def require_comparable(reports: Reports) -> None:
    """Refuse audits that have no common scale."""
    if len(reports) < 2:
        raise InputError(f"{len(reports)} audit was found; a comparison needs two or more.")
    parts = [name for name, report in reports.items() if report.partial]
    problems = [f"the audit of {name!r} was stopped early; finish it." for name in parts]
    for what, advice in (
        ("loss", "losses ({}), which have no common scale. Audit all models with the same loss."),
        ("task", "tasks ({}). Compare models of one task."),
        ("target", "targets ({}). Compare models that predict the same column."),
    ):
        values = {name: getattr(report.subject, what) for name, report in reports.items()}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            problems.append(f"the audits measure different {advice.format(listed)}")
    if problems:
        raise InputError(" ".join(problems))


def known_e0(report: AuditReport) -> float | None:
    """Return e0 if it can be ranked; a lower bound cannot."""
    return None if is_bound(report) else report.e0


def is_bound(report: AuditReport) -> bool:
    """Whether part of the model kept what it learned from all rows, so that losses are too low."""
    return not report.refit.is_full


def leakage_words(report: AuditReport) -> str:
    """Return what e0 rests on."""
    claim = report.claim.range
    if claim is None:
        return "not known"
    ends = " to ".join(dict.fromkeys(f"{end:.3g}" for end in claim))
    return f"{report.p0_source} {ends}"


def rows_of(report: AuditReport) -> str:
    """Return the digest of the audited rows, of which models may use different columns."""
    return report.subject.rows_digest or report.subject.data_digest


def same_rows(a: AuditReport, b: AuditReport) -> bool:
    """Whether both audits have the same clusters and say what each of them adds."""
    ours, theirs = a.influence, b.influence
    return (
        ours is not None
        and theirs is not None
        and rows_of(a) == rows_of(b)
        and a.subject.cluster == b.subject.cluster
        and ours.unit == theirs.unit
        and np.array_equal(ours.ids, theirs.ids)
    )


def is_paired(score: Score, a: AuditReport, b: AuditReport) -> bool:
    """Whether what the scores of two audits share is known, and cancels."""
    return (
        same_question(score, a, b)
        and same_rows(a, b)
        and score.says_noise(a)
        and score.says_noise(b)
        and score.same_splits(a, b)
    )


def few_clusters(report: AuditReport) -> bool:
    """Whether intervals rest on rows, because clusters are too few."""
    return report.plan.n_validated < FEW_CLUSTERS


def same_question(score: Score, a: AuditReport, b: AuditReport) -> bool:
    """Whether scores of two audits mean the same, by all aspects of the score."""
    return all(read(a) == read(b) for read in score.aspects().values())


def has_named_loss(report: AuditReport) -> bool:
    """Whether the name of the loss says which one it is."""
    return report.subject.loss not in NAMELESS


def is_comparable(score: Score, a: AuditReport, b: AuditReport) -> bool:
    """Whether a difference of two scores can mean something."""
    return same_question(score, a, b) and has_named_loss(a)


def comparison_notes(reports: Reports, score: Score, compared: Sequence[str]) -> tuple[str, ...]:
    """Return what the reader of a comparison must know.

    Parameters
    ----------
    reports : mapping of str to AuditReport
    score : Score
    compared : sequence of str
        Those between which differences are taken.
    """
    among = {name: reports[name] for name in compared}
    notes = score.left_out(reports)
    if len(among) < 2:
        return tuple(notes)
    return (*notes, *score.basis(among), *_noise(among, score), *_questions(among, score))


def _noise(reports: Reports, score: Score) -> list[str]:
    notes = []
    few = [name for name, report in reports.items() if few_clusters(report)]
    if few:
        notes.append(
            f"{_listed(few)}: fewer than {FEW_CLUSTERS} clusters were validated. So few do not show how "
            "much new clusters differ, and no difference is taken to be more than noise."
        )
    silent = [name for name, report in reports.items() if not score.says_noise(report)]
    if silent:
        notes.append(
            f"The audits of {_listed(silent)} do not say what each cluster adds: their differences are "
            "those of independent audits, with wide intervals."
        )
    pairs = list(combinations(reports.values(), 2))
    if len({rows_of(report) for report in reports.values()}) > 1:
        notes.append(
            "Not all audits are of the same rows. Differences between audits of different rows are those "
            "of independent audits, and include the differences between the rows."
        )
    elif not silent and not all(same_rows(a, b) for a, b in pairs):
        notes.append(
            "Not all audits validated on the same clusters; where they did not, differences are those of "
            "independent audits."
        )
    elif not all(score.same_splits(a, b) for a, b in pairs):
        notes.append(
            "Not all audits have the same folds and the same seed; where they do not, differences are "
            "those of independent audits. Audit the models together to avoid this."
        )
    elif not all(_same_folds(a, b) for a, b in pairs):
        notes.append("The folds differ, which adds noise; audit the models together to avoid this.")
    return notes


def _same_folds(a: AuditReport, b: AuditReport) -> bool:
    """Return whether two audits have the same folds, as far as both of them go.

    Audits of one seed assign clusters to folds in the same order, and may need different numbers of
    assignments.
    """
    if a.plan.folds_digest == b.plan.folds_digest:
        return True
    if a.splits is None or b.splits is None:
        return False
    return all(
        np.array_equal(ours.validation, theirs.validation)
        and np.array_equal(ours.training, theirs.training)
        for ours, theirs in zip(a.splits, b.splits, strict=False)
    )


def _questions(reports: Reports, score: Score) -> list[str]:
    notes = []
    for aspect, read in score.aspects().items():
        if any(read(a) != read(b) for a, b in combinations(reports.values(), 2)):
            listed = "; ".join(f"{name!r}: {score.shown(aspect, r)}" for name, r in reports.items())
            notes.append(
                f"The audits rest on different {aspect} ({listed}). Where these differ, the scores answer "
                "different questions, and no difference is taken to be more than noise."
            )
    if not all(map(has_named_loss, reports.values())):
        notes.append(
            "The loss is a function without a name, so the audits may use different losses, and no "
            "difference is taken to be more than noise. Define it with def and a name of its own."
        )
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


# --- Where two audited models change places: where curves cross

LEAKED_SHARE = "leaked share p0"


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where two curves of a score cross.

    Attributes
    ----------
    at : float or None
        The smallest value of the axis at which they do; None if none is known.
    up_to : float or None
        The end of the searched range; None if nothing could be searched.
    why_not : str
        Why nothing could be searched.
    """

    at: float | None = None
    up_to: float | None = None
    why_not: str = ""


def cross(ours: dict[float, float], theirs: dict[float, float]) -> Crossing:
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


# --- By how much the score of one audit exceeds that of another, with the interval


def score_gap(
    score: Score, a: AuditReport, b: AuditReport, paired: bool, pairs: int
) -> tuple[float, tuple[float, float]]:
    """Return by how much the second score exceeds the first, with the interval.

    Parameters
    ----------
    score : Score
    a, b : AuditReport
    paired : bool
        Both are of the same clusters, with the same leakage or folds.
    pairs : int
        How many differences the interval is to hold for at once.
    """
    ours, theirs = score.values(a, b, paired)
    value = (score.known(b) or 0.0) - (score.known(a) or 0.0)
    ends = [
        difference_interval(y, x, paired=paired, pairs=pairs)
        for x, y in zip(ours, theirs, strict=True)
    ]
    return value, (min(value, *(e[0] for e in ends)), max(value, *(e[1] for e in ends)))


def uncertain(
    report: AuditReport,
    value: float,
    ends: tuple[float, float],
    influence: Array | None,
    noise: float = 0.0,
) -> Uncertain:
    """Return a score with its interval and, if known, what each cluster adds to it."""
    freedom = float(report.curve.degrees_of_freedom or 1)
    if influence is not None:
        assert report.influence is not None
        freedom = effective_freedom(report.influence.share)
        influence = corrected_influence(influence, report.influence.share)
    return Uncertain(
        value=value, low=ends[0], high=ends[1], freedom=freedom, noise=noise, influence=influence
    )


# --- e0, and the score by noisy ids


class NoisyScore:
    """The loss by the ids as they are, which leakage makes optimistic."""

    name = "loco"

    def known(self, report: AuditReport) -> float | None:
        """Return the loss, unless it is a lower bound."""
        return None if is_bound(report) else report.loco

    def aspects(self) -> dict[str, Aspect]:
        """Return clusters, and what made the folds."""
        return {
            "clusters": lambda report: report.subject.cluster,
            "thresholds of a match": lambda report: (
                report.plan.fold_threshold,
                report.plan.purge_threshold,
            ),
        }

    def shown(self, aspect: str, report: AuditReport) -> str:
        """Return what an audit has for an aspect, in words."""
        if aspect == "clusters":
            return report.subject.cluster
        return f"{report.plan.fold_threshold} in folds, {report.plan.purge_threshold} in purging"

    def says_noise(self, report: AuditReport) -> bool:
        """Whether an audit says what each cluster adds."""
        return report.influence is not None

    def same_splits(self, a: AuditReport, b: AuditReport) -> bool:  # noqa: ARG002
        """Return True: folds of the same clusters add little noise."""
        return True

    def left_out(self, reports: Reports) -> list[str]:
        """Return why e0 is not known, or losses are lower bounds."""
        none = "Fewer than two models have a known e0, so none is best on new clusters."
        return [*unknown_e0(reports), none]

    def basis(self, compared: Reports) -> list[str]:  # noqa: ARG002
        """Return that leakage is in all of the scores."""
        return ["Differences are of the score by noisy ids, which leakage makes optimistic."]

    def values(
        self,
        a: AuditReport,
        b: AuditReport,
        paired: bool,  # noqa: ARG002
    ) -> tuple[list[Uncertain], list[Uncertain]]:
        """Return both losses with their intervals."""
        ours, theirs = (
            uncertain(r, r.loco, r.loco_interval, None if r.influence is None else r.influence.loco)
            for r in (a, b)
        )
        return [ours], [theirs]

    def axis(self, reports: Sequence[AuditReport]) -> str:
        """Return the rate of wrong ids that all audits know."""
        if all(report.leakage.axis == SPLIT_RATE for report in reports):
            return SPLIT_RATE
        # if the share of validation rows is fixed, a p0 belongs to no rate of wrong ids
        if all(report.sensitivity.error is None for report in reports):
            return LEAKED_SHARE
        return CLUSTER_ERROR

    def crossing(self, a: AuditReport, b: AuditReport, axis: str) -> Crossing:
        """Return where two curves of e0 over wrong ids cross."""
        ours, theirs = _curve(a, axis), _curve(b, axis)
        if not ours or not theirs:
            return Crossing(why_not=f"at least one of the audits has no curve over the {axis}")
        read = _fragments if axis == SPLIT_RATE else _method
        back = a.claim.p0_validation, b.claim.p0_validation
        if read(a) != read(b) or back[0] != back[1]:
            return Crossing(why_not="their sensitivity curves were made in different ways")
        return cross(ours, theirs)

    def of_comparison(self, reports: Sequence[AuditReport]) -> dict[str, Any]:  # noqa: ARG002
        """Return nothing."""
        return {}


class NewClusterScore(NoisyScore):
    """e0, the loss on new clusters."""

    name = "e0"

    def known(self, report: AuditReport) -> float | None:
        """Return e0, unless it is a lower bound."""
        return known_e0(report)

    def aspects(self) -> dict[str, Aspect]:
        """Return clusters, folds, leakage and methods."""
        return super().aspects() | {"leakage": _claim, "methods": _law}

    def shown(self, aspect: str, report: AuditReport) -> str:
        """Return what an audit has for an aspect, in words."""
        if aspect == "leakage":
            most_likely = (
                "" if report.claim.centre is None else f" around {report.claim.centre:.3g}"
            )
            back = (
                ""
                if report.claim.p0_validation is None
                else f", p0_validation {report.claim.p0_validation:.3g}"
            )
            return leakage_words(report) + most_likely + back
        if aspect == "methods":
            if not report.leakage.misplaces:
                return f"fragments {report.plan.fragment_sizes}"
            options = "".join(
                f" {name}={value}" for name, value in report.plan.method_options.items()
            )
            size = "" if report.plan.n_train is None else f", n_train {report.plan.n_train}"
            return f"{report.plan.method}{options}, scheme {report.plan.scheme}{size}"
        return super().shown(aspect, report)

    def left_out(self, reports: Reports) -> list[str]:
        """Return why e0 is not known, or a lower bound."""
        return unknown_e0(reports)

    def basis(self, compared: Reports) -> list[str]:  # noqa: ARG002
        """Return nothing: differences are of e0."""
        return []

    def values(
        self, a: AuditReport, b: AuditReport, paired: bool
    ) -> tuple[list[Uncertain], list[Uncertain]]:
        """Return both e0, in pairs at each value of the leakage that they share."""
        read = _readings if paired else _headline
        return read(a), read(b)


def unknown_e0(reports: Reports) -> list[str]:
    """Return why some models have no e0 that can be ranked."""
    notes = []
    bounds = [name for name, report in reports.items() if is_bound(report)]
    unknown = [n for n, r in reports.items() if r.e0 is None and not is_bound(r)]
    silent = [name for name in unknown if not reports[name].leakage.is_known]
    vacuous = [name for name in unknown if name not in silent]
    if silent:
        notes.append(f"e0 of {_listed(silent)} is not known: nothing says how much leaks.")
    if vacuous:
        notes.append(
            f"e0 of {_listed(vacuous)} is not known: what was given about the leakage excludes no leaked "
            "share."
        )
    if bounds:
        notes.append(
            f"For {_listed(bounds)} there are only lower bounds, which are neither ranked nor compared: part "
            "of the model was not trained again."
        )
    return notes


def _claim(report: AuditReport) -> object:
    return (
        report.p0_source,
        report.claim.range,
        report.claim.centre,
        report.claim.p0_validation,
        len(report.readings),
    )


def _law(report: AuditReport) -> object:
    return _method(report) if report.leakage.misplaces else _fragments(report)


def _method(report: AuditReport) -> object:
    return report.plan.method, report.plan.method_options, report.plan.scheme, report.plan.n_train


def _fragments(report: AuditReport) -> object:
    return report.plan.fragment_sizes


def _curve(report: AuditReport, axis: str) -> dict[float, float]:
    """Return e0 by the values of an axis; nothing where the audit has no such curve."""
    curve: Sensitivity | None = report.sensitivity
    if axis == SPLIT_RATE:
        curve = report.fragment_sensitivity
    if curve is None or (curve.error is None) != (axis == LEAKED_SHARE):
        return {}
    x = curve.p0 if curve.error is None else curve.error
    return dict(zip(x, curve.e0, strict=True))


def _readings(report: AuditReport) -> list[Uncertain]:
    assert report.influence is not None
    return [
        uncertain(report, reading.e0, (reading.low, reading.high), column, reading.noise)
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
    return [uncertain(report, e0, (low, high), column, noise)]
