"""`compare_reports`: which audited model is best on new clusters, beyond the noise."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from mlflow_b3.auditing.comparability import (
    Crossing,
    Score,
    choose_score,
    comparison_notes,
    few_clusters,
    is_comparable,
    is_paired,
    known_e0,
    leakage_words,
    require_comparable,
    score_gap,
)
from mlflow_b3.auditing.extension import EXTENSIONS, extension_score
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.results import Result

# --- The models of a comparison, and the differences between them


@dataclass(frozen=True, kw_only=True)
class Contender(Result):
    """One audited model among those that are compared.

    Attributes
    ----------
    name : str
    uri, run_id, audit_run_id : str or None
        Where MLflow keeps the model and its audit.
    iid, loco, e0 : float
        The loss ignoring clusters, by the ids as they are, and on new clusters; e0 is None if it is
        not known, or if the refits give only a lower bound.
    loco_interval, e0_interval : tuple of float
        95% each, of this model alone.
    rank_iid, rank_loco, rank_e0 : int or None
        From 1, the smallest loss, among the models that are compared; None for all others. Without
        two known e0, no model has a place on new clusters.
    leakage : str
        What its e0 rests on.
    cvc, cvc_interval : float, tuple of float, or None
        Cross-validation corrected for correlation, CV_c, with its 95% interval; None without the
        method "cvc", if it is withheld, or if the correction may miss part of the bias.
    grouped : float or None
        The loss by folds of whole groups, to compare CV_c with.
    rank_cvc : int or None
        From 1, if the models are ranked by CV_c.
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
    rank_iid: int | None
    rank_loco: int | None
    rank_e0: int | None
    leakage: str
    cvc: float | None = None
    cvc_interval: tuple[float, float] | None = None
    grouped: float | None = None
    rank_cvc: int | None = None

    @property
    def moved(self) -> bool:
        """Whether its place by e0, or CV_c, differs from that by the score that ignores clusters."""
        place = self.rank_e0 if self.rank_cvc is None else self.rank_cvc
        return place is not None and place != self.rank_iid


@dataclass(frozen=True, kw_only=True)
class Difference(Result):
    """How much one model's loss exceeds that of a better one.

    Attributes
    ----------
    better, worse : str
        Names of the contenders.
    difference : float
        Loss of the worse less that of the better: on new clusters, by noisy ids, or CV_c.
    interval : tuple of float
        Holds for all pairs at once with 95% confidence.
    comparable : bool
        Both scores answer the same question: they rest on the same leakage, method and clusters.
    noise_known : bool
        There are enough clusters to tell how much new ones differ.
    beyond_noise : bool
        The interval does not contain 0, the scores are comparable and their noise is known.
    paired : bool
        Both were audited on the same rows with the same leakage, for CV_c on the same folds, so that
        what they share cancels.
    flips_iid, flips_loco : bool
        The score that ignores clusters, or the one by noisy ids, has them in the opposite order;
        False if the scores are not comparable.
    flips_at : float or None
        The smallest value of the comparison's axis at which the two change places; None if none is
        known.
    flips_searched_to : float or None
        The value up to which one was searched; None if nothing is known about it, which a note of
        the comparison explains.
    """

    better: str
    worse: str
    difference: float
    interval: tuple[float, float]
    comparable: bool
    noise_known: bool
    beyond_noise: bool
    paired: bool
    flips_iid: bool
    flips_loco: bool
    flips_at: float | None
    flips_searched_to: float | None = None


# --- `compare_reports`: which of several audited models is best on new clusters, beyond the noise


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Result):
    """Several audited models, the best on new clusters first.

    Attributes
    ----------
    loss : str
    by : {"e0", "loco", "cvc"}
        The score that differences are of; `loco` if fewer than two models have a known e0.
    axis : {"cluster error", "split rate", "leaked share p0", "multiplier of the SDs"}
        The axis of `Difference.flips_at`; by CV_c, the factor by which the standard deviations
        between groups would differ from their estimates.
    contenders : tuple of Contender
    differences : tuple of Difference
        Every pair of contenders that can be compared.
    notes : tuple of str
        What the reader must know.
    new : tuple of str
        By CV_c: the levels at which models will meet new groups, in all audits.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=20, records=4, cluster_error=0.1)
    >>> comparison = b3.compare(
    ...     {"smooth": GaussianNB(var_smoothing=1.0), "plain": GaussianNB()},
    ...     clinic.frame,
    ...     target="disease",
    ...     cluster="patient_id",
    ...     cluster_error=0.1,
    ...     folds=2,
    ...     budget=60,
    ...     record=False,
    ... )
    >>> comparison.loss, comparison.by, len(comparison.differences)
    ('zero_one', 'e0', 1)
    """

    loss: str
    by: str
    axis: str
    contenders: tuple[Contender, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    new: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the comparison in plain words."""
        from mlflow_b3.reporting.comparison import comparison_text

        return comparison_text(self)

    def __repr__(self) -> str:
        """Return the ranking on one line."""
        from mlflow_b3.reporting.comparison import comparison_repr

        return comparison_repr(self)

    def _repr_html_(self) -> str:
        """Return the ranking as a card, for notebooks."""
        from mlflow_b3.reporting.comparison import comparison_card

        return comparison_card(self)


def compare_reports(
    reports: Mapping[str, AuditReport],
    audit_runs: Mapping[str, str] | None = None,
    *,
    by: str = "auto",
) -> Comparison:
    """Rank audited models by their loss on new clusters, and say which differences are noise.

    Parameters
    ----------
    reports : mapping of str to AuditReport
        The audits, by the names to give the models.
    audit_runs : mapping of str to str, optional
        The MLflow runs that hold the audits.
    by : {"auto", "e0", "cvc"}
        Rank by e0, or by CV_c, which all audits must then have. "auto" is CV_c if all audits have it
        and take their ids as right.

    Notes
    -----
    Each pair's interval combines the intervals of both (the MOVER method, doi:10.1002/sim.3095), less
    what they share: the correlation of what each cluster adds to either e0. If the leakage is a range,
    the two share it, so the difference is taken at its ends and in its middle, and the interval covers
    all three. Intervals hold for all pairs at once (Bonferroni), and also if few clusters hold many rows
    (`mlflow_b3.estimation.influence.difference_interval`). Audits of different rows or with
    different leakage share nothing that is known, and are compared as independent; with different
    leakage or methods they answer different questions, and no difference is beyond noise. Lower
    bounds take part in no difference.

    CV_c is compared in the same way, by what each cluster adds to the cross-validated loss. If all
    corrections come from one simulated world, its standard deviations are what the two share, and the
    difference is taken at the ends of their range. The variance of the fitted fixed part of that world
    is left out.
    """
    require_comparable(reports)
    shown, reports = reports, {name: report.as_losses for name, report in reports.items()}
    score, compared = choose_score(by, reports)
    contenders = _ranked(reports, shown, score, compared, audit_runs or {})
    audits = list(reports.values())
    axis = score.axis(audits)
    pairs = list(combinations([c.name for c in contenders if c.name in compared], 2))
    found = {
        (a, b): score.crossing(reports[a], reports[b], axis)
        for a, b in pairs
        if is_comparable(score, reports[a], reports[b])
    }
    differences = tuple(
        _difference(score, (a, reports[a]), (b, reports[b]), len(pairs), found.get((a, b)))
        for a, b in pairs
    )
    return Comparison(
        loss=next(iter(shown.values())).subject.loss,
        by=score.name,
        axis=axis,
        contenders=contenders,
        differences=differences,
        notes=(*comparison_notes(reports, score, compared), *_unknown_crossings(found)),
        **score.of_comparison(audits),
    )


def _ranked(
    reports: Mapping[str, AuditReport],
    shown: Mapping[str, AuditReport],
    score: Score,
    compared: list[str],
    audit_runs: Mapping[str, str],
) -> tuple[Contender, ...]:
    """Return those that are compared, the best first, and then all others, with their own scores."""
    among = {name: reports[name] for name in compared}
    first = _places({name: score.known(report) or 0.0 for name, report in among.items()})
    places: dict[str, dict[str, int]] = {
        "rank_iid": _places({name: report.iid for name, report in among.items()}),
        "rank_loco": _places({name: report.loco for name, report in among.items()}),
        "rank_e0": {},
        f"rank_{score.name}": first,
    }
    extensions = [extension_score(method) for method in EXTENSIONS]
    ranked = sorted(
        reports.items(), key=lambda item: (first.get(item[0], len(reports) + 1), item[1].loco)
    )
    return tuple(
        Contender(
            name=name,
            uri=report.subject.uri,
            run_id=report.subject.run_id,
            audit_run_id=audit_runs.get(name),
            iid=report.iid,
            loco=report.loco,
            loco_interval=report.loco_interval,
            e0=known_e0(report),
            e0_interval=report.e0_interval,
            leakage=leakage_words(report),
            **_places_of(name, places),
            **{k: v for other in extensions for k, v in other.of_contender(report).items()},
        )
        for name, report in ((name, shown[name]) for name, _ in ranked)
    )


def _places_of(name: str, places: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Return the fields that say which place a contender has, by each score."""
    return {rank: by_name.get(name) for rank, by_name in places.items()}


def _places(losses: Mapping[str, float]) -> dict[str, int]:
    """Return the place of each model, from 1; equal losses share a place."""
    return {
        name: 1 + sum(other < loss for other in losses.values()) for name, loss in losses.items()
    }


def _difference(
    score: Score,
    first: tuple[str, AuditReport],
    second: tuple[str, AuditReport],
    pairs: int,
    crossing: Crossing | None,
) -> Difference:
    (better, a), (worse, b) = first, second
    comparable = crossing is not None
    paired = is_paired(score, a, b)
    value, interval = score_gap(score, a, b, paired, pairs)
    noise_known = not (few_clusters(a) or few_clusters(b))
    return Difference(
        better=better,
        worse=worse,
        difference=value,
        interval=interval,
        comparable=comparable,
        noise_known=noise_known,
        beyond_noise=comparable and noise_known and interval[0] > 0,
        paired=paired,
        flips_iid=comparable and a.iid > b.iid,
        flips_loco=comparable and a.loco > b.loco,
        flips_at=None if crossing is None else crossing.at,
        flips_searched_to=None if crossing is None else crossing.up_to,
    )


def _unknown_crossings(found: Mapping[tuple[str, str], Crossing]) -> list[str]:
    """Return why it is not known where some models change places."""
    notes = []
    for reason in dict.fromkeys(c.why_not for c in found.values() if c.why_not):
        pairs = [f"{a!r} and {b!r}" for (a, b), c in found.items() if c.why_not == reason]
        notes.append(f"Where {'; '.join(pairs)} change places is not known: {reason}.")
    return notes
