"""From a subject and its folds to a `CvcReport`: refits, working model, bias, interval."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp

from mlflow_b3.auditing.extension import ExtraColumns
from mlflow_b3.auditing.subject import Subject
from mlflow_b3.correlated.engines import Engine, find_engine, is_linear_in_few, unused_groups
from mlflow_b3.correlated.field import regional_field
from mlflow_b3.correlated.formulas import Bias, BiasSums, PairSums
from mlflow_b3.correlated.report import (
    WITHHELD,
    CvcReport,
    GroupLevel,
    SlopeLimit,
    SpatialField,
    group_reach,
)
from mlflow_b3.correlated.slopes import SlopeTest, examine_slopes, varying_features
from mlflow_b3.correlated.structure import (
    KERNELS,
    LOWER_QUALITY,
    Array,
    CvcOptions,
    Level,
    Structure,
    WorkingModel,
    is_within,
    read_structure,
)
from mlflow_b3.correlated.targets import Draws
from mlflow_b3.correlated.working import (
    LEAST_GROUPS,
    Scaling,
    fit_covariate_model,
    fit_null_model,
    fit_score_model,
    matched_world,
    structure_problems,
)
from mlflow_b3.data.folds import Fold, digest_folds, make_folds
from mlflow_b3.data.pairs import PairLoss
from mlflow_b3.data.table import AuditData, label_clusters
from mlflow_b3.errors import FitError, InputError, ModelError, PredictionError
from mlflow_b3.measurement.design import exposures
from mlflow_b3.measurement.journal import Journal
from mlflow_b3.measurement.refits import (
    TOLERATED_FAILURES,
    Draw,
    FitCounts,
    Outcome,
    Refitter,
    Resampler,
    Task,
)
from mlflow_b3.measurement.runner import Means, Session, interrupted, open_session
from mlflow_b3.refit.learner import Learner, Rows
from mlflow_b3.results import Finding, number, percent
from mlflow_b3.version import __version__

# --- What correlates the audited rows, read from their table


@dataclass(frozen=True, kw_only=True, eq=False)
class Correlation:
    """What correlates the rows of a subject, and how the correction is computed."""

    options: CvcOptions
    structure: Structure


def read_correlation(
    given: Mapping[str, Any], frame: pd.DataFrame, cluster: str | None = None
) -> ExtraColumns:
    """Read the groups and coordinates that a user's options name from a table."""
    options: CvcOptions = CvcOptions.from_mapping(given, cluster)
    for name in options.groups:
        frame, _ = label_clusters(frame, name)
    content = Correlation(options=options, structure=read_structure(frame, options))
    names = (*options.groups, *options.coordinates)
    return ExtraColumns(frame=frame, names=names, content=content)


def correlation_of(subject: Subject) -> Correlation:
    """Return the correlation of a subject that was loaded with `read_correlation`."""
    assert isinstance(subject.extra, Correlation)
    return subject.extra


# --- The uncertainty of the bias, from that of the variance between groups

#: The multiples of the standard deviations at which a report shows CV_c.
MULTIPLIERS = tuple(np.linspace(0, 2, 9).tolist())
NORMAL = 1.959964

BiasAt = Callable[[WorkingModel], Bias]


def bias_interval(bias: Bias, model: WorkingModel, bias_at: BiasAt) -> tuple[float, float]:
    """Return a 95% interval of the bias.

    Each standard deviation is moved to the ends of its profile interval with the others at their
    estimates, and the changes are combined by the MOVER method (doi:10.1002/sim.3095):

        w_lo = w - √(Σ_l (w - w(sd_l = lo))² + (1.96 s)²),

    and likewise w_hi, where s is the error of the simulation: the largest one at these points, because
    if little variance was found, the error is small at w and large at its upper end.

    Notes
    -----
    For ten and five groups, such intervals contain the bias in 86 to 88% of samples instead of 95%:
    profile intervals of so few groups are too short.
    """
    ends = []
    for sds, sign in ((model.sd_low, -1.0), (model.sd_high, 1.0)):
        moved = [
            bias_at(replace(model, sd=(*model.sd[:place], end, *model.sd[place + 1 :])))
            for place, end in enumerate(sds)
        ]
        outwards = [max(0.0, sign * (other.value - bias.value)) for other in moved]
        error = max([bias.error, *(other.error for other in moved)])
        ends.append(bias.value + sign * float(np.hypot.reduce([*outwards, NORMAL * error])))
    return ends[0], ends[1]


def trace_multipliers(model: WorkingModel, bias_at: BiasAt) -> tuple[float, ...]:
    """Return the bias if all standard deviations were `MULTIPLIERS` times their estimates."""
    return tuple(
        bias_at(replace(model, sd=tuple(multiple * sd for sd in model.sd))).value
        for multiple in MULTIPLIERS
    )


# --- Refits for corrected cross-validation: on the table's target, and on simulated ones

#: Log odds are clipped here: beyond, they only say that a model is certain.
LARGEST_SCORE = 5.0


@dataclass(frozen=True, kw_only=True)
class CvcRefitter(Refitter):
    """Trains on whole folds; returns what the correction needs to know about the rows left out.

    Refits for the purpose "cv" return losses. Those for "grouped" return losses, and scores in place
    of held-back losses. Those for "simulated" are trained on a simulated target, and return by how
    much each row's loss falls when its target goes from the lower class to the higher one, or from 0
    to 1: L₂ = L(0, s) - L(1, s), which is all that the bias needs from a score. For more than two
    classes, they return -L(c, s) for each class c of each row; for the AUC, the scores.

    Attributes
    ----------
    classes : array or None
        The classes, sorted; None for numbers.
    draws : Draws or None
        The simulated targets; a replicate's number selects its target.
    """

    classes: NDArray[Any] | None = None
    draws: Draws | None = field(default=None)

    def _fit_and_score(self, task: Task, draw: Draw) -> dict[str, Any]:
        rows = self._rows(task, draw.training)
        if task.purpose == "simulated":
            assert self.draws is not None
            target = self.draws.draw(task.replicate).target[draw.training]
            rows = replace(rows, target=self._labelled(target))
        seen = 2 if self.classes is None else int(np.isin(self.classes, rows.target).sum())
        predictor = (
            _Shares(rows, self.classes)
            if seen == 1 and self.classes is not None
            else self.learner.fit(rows, self.resampler.fit_seed(task))
        )
        # models treat a class that they have never seen in many ways
        one_class = self.classes is not None and seen < len(self.classes)
        predictor_cache = _CachedPredictor(predictor)
        del rows, predictor  # free the memory of the training rows before scoring
        X = self.data.take(draw.validation)
        scores = np.zeros(0)
        if task.purpose == "simulated":
            losses = self._loss_decrease(predictor_cache, X, len(draw.validation))
        elif isinstance(self.loss, PairLoss):
            losses = self._pairs(self.loss, predictor_cache, X, draw)
        else:
            losses = self.loss.evaluate(predictor_cache, X, self.data.target[draw.validation])
        if task.purpose == "grouped":
            scores = score_of(predictor_cache, X, self.classes).reshape(-1)
        return {"validation": losses, "held_back": scores, "one_class": one_class}

    def _labelled(self, target: Array) -> NDArray[Any]:
        return target if self.classes is None else self.classes[target.astype(np.intp)]

    def _pairs(self, loss: PairLoss, predictor: Any, X: Any, draw: Draw) -> Array:
        """Return the share of wrongly ranked pairs of each row, in units of its class."""
        target, clusters = self.data.target, self.data.clusters
        rows = draw.validation
        found = loss.evaluate_pairs(predictor, X, target[rows], clusters[rows], len(rows))
        return np.asarray(found[len(rows) :])  # of rows of all clusters

    def _loss_decrease(self, predictor: Any, X: Any, count: int) -> Array:
        if isinstance(self.loss, PairLoss):
            scores = self.loss.scores(predictor, X, count)
            return np.asarray(scores[:, self.loss.weights > 0]).reshape(-1)
        kind = self.data.target.dtype if self.classes is not None else np.dtype(float)
        if self.classes is not None and len(self.classes) > 2:
            by_class = [
                self.loss.evaluate(predictor, X, np.full(count, label, dtype=kind))
                for label in self.classes
            ]
            return np.asarray(-np.column_stack(by_class).reshape(-1))
        low, high = (0.0, 1.0) if self.classes is None else self.classes
        first = self.loss.evaluate(predictor, X, np.full(count, low, dtype=kind))
        return first - self.loss.evaluate(predictor, X, np.full(count, high, dtype=kind))


def score_of(predictor: Any, X: Any, classes: NDArray[Any] | None) -> Array:
    """Return one number per row that grows with the target that the model expects.

    For a regressor, this is the prediction. For a classifier, it is the log odds of the higher class,
    or else the decision value, or else the label as -1 or 1. The caller recalibrates it. For more than
    two classes, there is one number for each class.
    """
    if classes is None:
        return np.asarray(predictor.predict("value", X), dtype=float).reshape(-1)
    if len(classes) > 2:
        return _class_scores(predictor, X, classes)
    try:
        probability = np.asarray(predictor.predict("probability", X), dtype=float)
        column = np.flatnonzero(np.asarray(predictor.classes) == classes[1])
        share = probability[:, column[0]] if len(column) else np.zeros(len(probability))
        with np.errstate(divide="ignore"):
            odds = np.log(share) - np.log1p(-share)
        return _finite(np.clip(odds, -LARGEST_SCORE, LARGEST_SCORE))
    except PredictionError:
        pass
    try:
        decision = np.asarray(predictor.predict("decision", X), dtype=float).reshape(-1)
        return _finite(decision)
    except PredictionError:
        label = np.asarray(predictor.predict("label", X)).reshape(-1)
        return np.where(label == classes[1], 1.0, -1.0)


def _class_scores(predictor: Any, X: Any, classes: NDArray[Any]) -> Array:
    """Return log probabilities, decision values, or labels as 0 and 1, for each class.

    No class is more than `LARGEST_SCORE` below the most likely one by its probability, which for two
    classes is the limit of the log odds.
    """
    try:
        with np.errstate(divide="ignore"):
            given = np.log(np.asarray(predictor.predict("probability", X), dtype=float))
        limit = LARGEST_SCORE
    except PredictionError:
        try:
            given = np.asarray(predictor.predict("decision", X), dtype=float)
            limit = np.inf
        except PredictionError:
            label = np.asarray(predictor.predict("label", X)).reshape(-1)
            return np.asarray(np.equal.outer(label, classes), dtype=float)
    if given.ndim == 1:
        given = np.column_stack([-given, given])
    least = given.min(axis=1)
    scores = np.repeat(least[:, None], len(classes), axis=1)  # those that it has never seen
    known = np.asarray(predictor.classes)
    for column, label in zip(given.T, known, strict=True):
        scores[:, classes == label] = column[:, None]
    scores = np.maximum(scores, scores.max(axis=1, keepdims=True) - limit)
    return _finite(scores - scores.mean(axis=1, keepdims=True))


def _finite(scores: Array) -> Array:
    if not np.isfinite(scores).all():
        raise ModelError(f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores are NaN.")
    return scores


class _CachedPredictor:
    """Calls a predictor only once for each kind of prediction."""

    def __init__(self, predictor: Any) -> None:
        self._predictor = predictor
        self._known: dict[str, Any] = {}
        self.classes = predictor.classes

    def predict(self, kind: str, X: Any) -> Any:
        """Return the prediction of this kind for the rows of its first call."""
        if kind not in self._known:
            self._known[kind] = self._predictor.predict(kind, X)
        return self._known[kind]


class _Shares:
    """A predictor for training rows of one class: constant chances in proportion to n_c + ½."""

    def __init__(self, rows: Rows, classes: NDArray[Any]) -> None:
        self.classes = classes
        counts = np.array([(rows.target == label).sum() for label in classes])
        self._shares = (counts + 0.5) / (len(rows.target) + len(classes) / 2)
        if len(classes) == 2:
            self._shares[0] = 1 - self._shares[1]

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Return the same prediction for every row."""
        if kind == "label":
            return np.repeat(self.classes[[int(np.argmax(self._shares))]], len(X))
        if kind == "probability":
            return np.tile(self._shares, (len(X), 1))
        if len(self.classes) > 2:
            return np.tile(np.log(self._shares), (len(X), 1))
        return np.full(len(X), np.log(self._shares[1] / (1 - self._shares[1])))


# --- The refits on the table's own target: cross-validation, and folds of whole groups


@dataclass(frozen=True, kw_only=True)
class RealRefits:
    """The results of refits on the table's own target.

    Attributes
    ----------
    losses : array (n,)
        Cross-validated loss of each row; for the AUC, 1 - AUC plus what the row adds to it.
    grouped : array (n,) or None
        Loss of each row from a model trained without its group; None if a fold of whole groups has no
        AUC.
    scores : array (n,) or (n, C)
        Score of each row from a model trained without its group in the folds for scores; of each of more
        than two classes.
    one_class : int
        Refits of cross-validation whose training rows lacked a class.
    """

    losses: Array
    grouped: Array | None
    scores: Array
    one_class: int


def run_real_refits(
    session: Session, refitter: CvcRefitter, grouped_folds: int, score_folds: range
) -> RealRefits:
    """Run cross-validation, and the folds of whole groups.

    Parameters
    ----------
    session : Session
    refitter : CvcRefitter
    grouped_folds : int
        The number of the resampler's first folds that give the loss by whole groups.
    score_folds : range
        The folds that give the scores.
    """
    resampler, n_rows = refitter.resampler, refitter.data.n_rows
    needed = sorted({*range(grouped_folds), *score_folds})
    tasks = [Task("cv", fold, 0, 0) for fold in range(len(resampler.iid_folds))]
    tasks += [Task("grouped", fold, 0, 0) for fold in needed]
    losses, grouped = (np.full(n_rows, np.nan) for _ in range(2))
    classes = refitter.classes
    count = 0 if classes is None else len(classes)
    scores = np.full((n_rows, count) if count > 2 else n_rows, np.nan)
    single = []

    def collect(outcome: Outcome) -> None:
        task = outcome.task
        assert outcome.validation is not None
        if task.purpose == "cv":
            losses[resampler.iid_folds[task.fold].validation] = outcome.validation
            single.append(outcome.one_class)
            return
        rows = resampler.folds[task.fold].validation
        if task.fold < grouped_folds:
            grouped[rows] = outcome.validation
        if task.fold in score_folds:
            assert outcome.held_back is not None
            scores[rows] = outcome.held_back.reshape(scores[rows].shape)

    session.run(tasks, collect, doing="Cross-validation")
    failed = session.counts.first_error
    if isinstance(refitter.loss, PairLoss) and not failed and np.isfinite(scores).all():
        target = refitter.data.target
        own, whole = pair_losses(losses, target), pair_losses(grouped, target)
        if own is None:
            raise InputError(
                "folds: a fold of the cross-validation has rows of one class only, so it has no AUC. Use "
                "fewer folds, such as folds=5, or folds with both classes in each."
            )
        return RealRefits(losses=own, grouped=whole, scores=scores, one_class=sum(single))
    if not (np.isfinite(losses).all() and np.isfinite(grouped).all() and np.isfinite(scores).all()):
        raise FitError(f"a refit on a whole fold failed:\n{failed}")
    return RealRefits(losses=losses, grouped=grouped, scores=scores, one_class=sum(single))


def pair_losses(values: Array, target: NDArray[Any]) -> Array | None:
    """Return 1 - AUC plus what each row adds to it, from its share of wrongly ranked pairs.

    None if a fold has no pairs. 1 - AUC is the mean over folds, weighted by the mean of a fold's shares
    in the rows of a class and in all others.
    """
    if not np.isfinite(values).all():
        return None
    codes = np.unique(target, return_inverse=True)[1]
    means = np.bincount(codes, values) / np.bincount(codes)
    level = float(values.mean()) / 2  # every pair is there twice
    return np.asarray(level + values - means[codes])


def pair_weights(loss: PairLoss, target: NDArray[Any], folds: Sequence[Fold]) -> Array:
    """Return the weight (classes, folds) of the curve of each class in each fold in the mean AUC."""
    weights = np.zeros((len(loss.labels), len(folds)))
    for place, label in enumerate(loss.labels):
        ones = np.array([(target[fold.validation] == label).sum() for fold in folds])
        rest = np.array([len(fold.validation) for fold in folds]) - ones
        weights[place] = loss.weights[place] * (ones / ones.sum() + rest / rest.sum()) / 2
    return weights[loss.weights > 0]


# --- Folds that score rows by models trained without their groups

#: Number of folds of each level if groups of several levels are left out together.
FOLDS_OF_SEVERAL = 4


def known_by_name(subject: Subject, structure: Structure) -> list[tuple[str, str]]:
    """Return the problem, if any, that the model has a new group's column as a feature."""
    unused = unused_groups(subject.learner)
    names = [
        level.name
        for level in structure.new
        if level.name in subject.table.feature_names and level.name not in unused
    ]
    if not names:
        return []
    listed = ", ".join(map(repr, names))
    message = (
        f"the model has {listed} as a feature and will meet values of it that it has never seen. The "
        "simulated world has no new values, so no correction can be given; leaving out whole groups "
        "shows the effect of new values."
    )
    return [("B342", message)]


def folds_by(
    table: AuditData, level: Level, seed: int, count: int | None = None
) -> tuple[Fold, ...]:
    """Return folds that keep the groups of a level whole."""
    return make_folds(table.regrouped(level.codes.astype(np.intp)), count, seed=seed)


def folds_for_scores(subject: Subject, target: Array, seed: int) -> tuple[Fold, ...]:
    """Return folds for scores, each from a model trained without certain groups of the row.

    These are the row's group at the level with the most variance, and at every level that the model has
    as a feature.
    """
    structure, table = correlation_of(subject).structure, subject.table
    if len(structure.grouping) == 1:
        return folds_by(table, structure.grouping[0], seed)
    most = structure.levels[int(np.argmax(fit_null_model(subject.task, target, structure)))]
    known = [level for level in structure.levels if level.name in table.feature_names]
    levels = [most, *(level for level in known if level is not most)]
    if len(levels) == 1:
        return folds_by(table, most, seed)
    return crossed(
        [folds_by(table, level, seed, min(FOLDS_OF_SEVERAL, level.n_groups)) for level in levels]
    )


def joined(folds: Sequence[Fold], others: Sequence[Fold]) -> tuple[tuple[Fold, ...], range]:
    """Return two sets of folds as one, and the range of the second in it."""
    same = len(folds) == len(others) and all(
        np.array_equal(a.validation, b.validation) for a, b in zip(folds, others, strict=True)
    )
    if same:
        return tuple(folds), range(len(folds))
    return (*folds, *others), range(len(folds), len(folds) + len(others))


def crossed(sets: Sequence[Sequence[Fold]]) -> tuple[Fold, ...]:
    """Return one fold for each combination of folds from several sets.

    It validates the rows that all folds of the combination validate, and trains on those that all of
    them train on.
    """
    folds = []
    for combination in product(*sets):
        validation = reduce(np.intersect1d, [fold.validation for fold in combination])
        training = reduce(np.intersect1d, [fold.training for fold in combination])
        if len(validation) and len(training):
            folds.append(Fold(training=training, validation=validation))
    return tuple(folds)


# --- The bias from refits on simulated targets, for any learner that can be refitted

#: Simulated samples are added until their error is below this share of the bias, ...
SMALL_ERROR = 0.15
#: ... or of the uncertainty of cross-validation itself, ...
SMALL_BESIDE = 0.1
#: ... but to at most this multiple of the requested number.
MOST_BLOCKS = 3


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """The bias from simulated samples.

    Attributes
    ----------
    bias : Bias
        The bias under the working model.
    as_simulated : Bias
        The bias in the simulated world, which differs from the working model if that has almost no
        variance.
    one_class : float
        Share of the simulated training sets that had only one class.
    """

    bias: Bias
    as_simulated: Bias
    one_class: float = 0.0

    @classmethod
    def without_refits(cls, bias: Bias) -> "Simulated":
        """Return a bias that was computed without refits."""
        return cls(bias=bias, as_simulated=bias)


def run_simulation(
    session: Session, refitter: CvcRefitter, *, draws: int, reach: float, extend: bool
) -> Simulated:
    """Refit one fold for each simulated sample, and return the bias.

    Parameters
    ----------
    session : Session
    refitter : CvcRefitter
        With the simulated samples.
    draws : int
        Number of samples.
    reach : float
        Half the width of the interval of cross-validation.
    extend : bool
        Whether to add samples if these leave too much noise.

    Raises
    ------
    InterruptedAudit
        If the user stopped it before every fold had two samples.
    """
    folds = refitter.resampler.iid_folds
    n_folds = len(folds)
    block = n_folds * max(2, draws // n_folds)  # equally many in each fold, at most `draws`
    assert refitter.draws is not None
    made, single = refitter.draws, []
    sums: BiasSums | PairSums = BiasSums(n_folds)
    if isinstance(refitter.loss, PairLoss):
        weights = pair_weights(refitter.loss, refitter.data.target, folds)
        curves = np.flatnonzero(refitter.loss.weights > 0).tolist()
        sums = PairSums(made, [fold.validation for fold in folds], curves, weights)

    def collect(outcome: Outcome) -> None:
        assert outcome.validation is not None
        task = outcome.task
        if isinstance(sums, PairSums):
            rows = folds[task.fold].validation
            sums.add(task.fold, outcome.validation.reshape(len(rows), -1), task.replicate)
        else:
            rows, drawn = folds[task.fold].validation, made.draw(task.replicate)
            expected, deployed = drawn.expected[rows], drawn.deployed[rows]
            sums.add(task.fold, outcome.validation.reshape(expected.shape), expected, deployed)
        single.append(outcome.one_class)
        session.counts.one_class -= outcome.one_class  # count only the table's own target

    def look() -> str | None:
        if isinstance(sums, PairSums) or not sums.ready:  # pairs take too long for a preview
            return None
        return f"bias {number(sums.bias().value)}"

    try:
        for start in range(0, (MOST_BLOCKS if extend else 1) * block, block):
            tasks = [Task("simulated", b % n_folds, 0, b) for b in range(start, start + block)]
            session.run(
                tasks,
                collect,
                doing="Simulated targets",
                needed=2 * n_folds if not start else 0,
                look=look,
            )
            if not sums.ready or is_small(sums.bias(), reach):
                break
    except KeyboardInterrupt as interrupt:
        if not sums.ready:
            raise interrupted(session) from interrupt
    session.check_failures()
    found = sums.bias()
    return Simulated(bias=found, as_simulated=found, one_class=sum(single) / max(1, len(single)))


def is_small(bias: Bias, reach: float) -> bool:
    """Whether the simulation error is negligible compared with the bias or other uncertainty."""
    return bias.error <= max(SMALL_ERROR * abs(bias.value), SMALL_BESIDE * reach)


# --- The numbers and findings of a `CvcReport`, from refits, working model and bias

#: Share of the field's spectrum that may be dropped without a remark.
CLIPPED = 0.05
#: Undetected slopes matter if they would add more than this share of the correction, ...
UNSEEN_SHARE = 1 / 3
#: ... and of half the width of the interval of cross-validation.
UNSEEN_BESIDE = 0.02


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
    slopes: tuple[SlopeLimit, ...],
    counts: FitCounts,
) -> CvcReport:
    """Return the report; the correction is withheld if a finding in `WITHHELD` applies."""
    several = subject.task == "classification" and len(np.unique(subject.table.target)) > 2
    messages = [*problems, *_one_class(real, len(folds), simulated, several=several)]
    if model is not None:
        messages += [*model.problems, *model.warnings]
    floor = subject.loss.floor
    cv = float(np.mean(real.losses))
    if grouped is None and real.grouped is not None:
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
        grouped=None if grouped is None else grouped[0],
        grouped_interval=None if grouped is None else grouped[1],
        grouped_by=grouped_by.name,
        groups=_groups(structure, model, grouped_by),
        field=_field(subject, structure, model),
        loss=_loss_name(subject),
        task=subject.task,
        classes=len(np.unique(subject.table.target)) if several else 2,
        engine=engine,
        lower_quality=lower,
        working=correlation_of(subject).options.working if model is None else model.source,
        slope=_slope(model),
        folds=len(folds),
        draws=0 if simulated is None else simulated.bias.draws,
        n_rows=subject.table.n_rows,
        seed=seed,
        slopes=slopes,
        refits=counts.summary(),
        settings=_settings(subject, folds, model),
        model=model,
        row_losses=real.losses,
    )
    if counts.interrupted:
        messages.append(("B330", "it was stopped early; the correction rests on fewer samples."))
    withheld = simulated is None or any(code in WITHHELD for code, _ in messages)
    if not withheld:
        assert simulated is not None
        assert model is not None
        assert bias_at is not None
        report = _corrected(report, simulated, model, bias_at, reach, floor)
        messages += _remarks(report, simulated, reach, structure, model)
        messages += _unseen_slopes(report, reach)
    findings = tuple(Finding(code=code, message=message) for code, message in messages)
    return replace(report, findings=findings).as_shown


def _loss_name(subject: Subject) -> str:
    """Return the name of the loss; 1 - score for a score of which more is better."""
    score = subject.score
    if score is None:
        return subject.loss.name
    return f"1 - {score.name}" if score.greater else score.name


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
    assert model.reach is not None
    split = regional_field(structure.field, model.sd[0], model.reach, model.kernel)
    return SpatialField(
        coordinates=correlation_of(subject).options.coordinates,
        sd=model.sd[0],
        reach=model.reach,
        kernel=model.kernel,
        interval=(model.sd_low[0], model.sd_high[0]),
        across=split.across,
    )


def _slope(model: WorkingModel | None) -> float | None:
    if model is None or model.source != "score":
        return None
    # the intercepts come first: one for two classes and numbers, or one for each class
    expected = 1 + (model.n_classes if model.n_classes > 2 else 1)
    return model.coefficients[-1] if len(model.coefficients) == expected else None


def _settings(
    subject: Subject, folds: Sequence[Fold], model: WorkingModel | None
) -> dict[str, Any]:
    described, options = subject.summary(), correlation_of(subject).options
    kept = ("model", "uri", "run_id", "model_id", "target", "rows_digest", "data_digest")
    chosen = {name: getattr(described, name) for name in kept}
    chosen |= {"refit": subject.learner.route, "version": __version__}
    chosen["folds_digest"] = digest_folds(list(folds))
    return chosen | options.to_dict() | {"working_digest": digest_working_model(model)}


def digest_working_model(model: WorkingModel | None) -> str | None:
    """Return 16 digits that are equal if two candidates share a simulated world."""
    if model is None:
        return None
    # sorted by name, so that candidates with another order of groups have the same digits
    order = sorted(range(len(model.sd)), key=lambda place: model.levels[place : place + 1])
    ends = [(model.sd[at], model.sd_low[at], model.sd_high[at]) for at in order]
    numbers = np.array([*np.ravel(ends), model.noise or 0.0, model.reach or 0.0], dtype="<f8")
    sha = hashlib.sha256(np.ascontiguousarray(model.mean, dtype="<f8").tobytes())
    sha.update(numbers.tobytes() + "\x1f".join(sorted(model.levels)).encode())
    if model.kernel != KERNELS[0]:
        sha.update(model.kernel.encode())
    return sha.hexdigest()[:16]


def _one_class(
    real: RealRefits, n_folds: int, simulated: Simulated | None, *, several: bool
) -> list[tuple[str, str]]:
    what = "lack a class" if several else "have the same class"
    if real.one_class:
        message = (
            f"in {real.one_class} of {n_folds} folds of the cross-validation, "
            f"{'' if several else 'all '}training rows {what}; their loss means little, and no correction "
            "is given. Use fewer or stratified folds."
        )
        return [("B334", message)]
    if simulated is not None and simulated.one_class > TOLERATED_FAILURES:
        message = (
            f"{percent(simulated.one_class)} of the simulated training sets "
            f"{what if several else 'have a single class'}: the rows are too few or one class is too rare. "
            "No correction is given."
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
    """Return what the reader must know about a corrected loss."""
    assert report.cvc is not None
    assert report.bias is not None
    shown = report.as_shown
    messages = []
    if not is_small(simulated.as_simulated, reach):
        error = number(simulated.as_simulated.error)
        message = (
            f"the correction, {number(shown.bias)}, has an error of up to {error}, because it rests on "
            f"{simulated.bias.draws} simulated samples; give more draws or a larger budget."
        )
        messages.append(("B339", message))
    if report.lower_quality:
        messages.append(("B337", _approximation(report)))
    if report.grouped is not None and report.grouped_interval is not None:
        apart = report.grouped - report.cvc
        more, worse = ("less", "smaller") if shown.greater_is_better else ("more", "larger")
        if apart > report.grouped_interval[1] - report.grouped:
            message = (
                f"leaving out whole groups of {report.grouped_by!r} gives {number(shown.grouped)}, "
                f"{number(apart)} {more} than corrected cross-validation. The features themselves may "
                f"differ between groups, which the correction does not see: trust the {worse} number."
            )
            messages.append(("B338", message))
    if structure.field is not None and model.reach is not None:
        clipped = regional_field(structure.field, model.sd[0], model.reach, model.kernel).clipped
        if clipped > CLIPPED:
            message = (
                f"{percent(clipped)} of the covariance within regions had to be dropped: regions are so "
                "close together that rows of different regions share more than some rows of one region."
            )
            messages.append(("B341", message))
    return messages


def _unseen_slopes(report: CvcReport, reach: float) -> list[tuple[str, str]]:
    """Return, for each level, the slopes that matter and could remain undetected."""
    assert report.bias is not None
    assert report.bias_error is not None
    shown = report.as_shown
    messages = []
    for level in dict.fromkeys(limit.level for limit in report.slopes):
        limits = [limit for limit in report.slopes if limit.level == level]
        blind = [limit for limit in limits if limit.bias is None]
        worst = blind[0] if blind else max(limits, key=lambda limit: limit.bias or 0.0)
        if not _matters(worst, report, reach):
            continue
        if worst.sd is None:
            seen = (
                f"slopes of {worst.feature!r} that differ between groups of {level!r} would not be found "
                "in 80% of such tables, however much they differ: groups, or their rows, are too few."
            )
        else:
            unit = "log odds" if report.task == "classification" else "units of the target"
            seen = (
                f"slopes of {worst.feature!r} that differ between groups of {level!r} are found in 80% of "
                f"such tables only from a standard deviation of {worst.sd:.2g} on ({unit} for each "
                f"standard deviation of the feature within groups). With such slopes the correction, "
                f"{number(shown.bias)}, would be too small by about {number(worst.bias)}."
            )
        message = f"{seen} That none were found is no evidence of equal slopes."
        if shown.grouped is not None:
            message += f" Compare with the score by whole groups left out, {number(shown.grouped)}."
        messages.append(("B354", message))
    return messages


def _matters(limit: SlopeLimit, report: CvcReport, reach: float) -> bool:
    """Whether undetected slopes would change what the report says."""
    if limit.bias is None:
        return True
    assert report.bias is not None
    assert report.bias_error is not None
    # if the correction is small, the error of what slopes add is a multiple of it
    times = abs(limit.bias / report.bias) if report.bias else 0.0
    most = limit.bias + NORMAL * times * report.bias_error
    return most > max(UNSEEN_SHARE * report.bias, UNSEEN_BESIDE * reach)


def _approximation(report: CvcReport) -> str:
    if report.engine == "last_layer":
        return (
            "only the last layer was trained on simulated targets. In simulations, that found 45 to "
            "137% of the correction of log loss, and 21 to 31% of that of the error rate. Do not "
            "promote a model because of it."
        )
    if report.engine == "hot":
        return (
            "networks were trained on simulated targets, starting at the weights of the logged one. In "
            "simulations, that found 18 to 93% of the correction, more if they learned longer or "
            "faster: it is too small."
        )
    return (
        "refits keep part of what the model learned from all rows, which makes cross-validation "
        "optimistic in a way that the correction does not cover."
    )


# --- From a subject and its folds to a `CvcReport`: refits, working model, bias, interval

#: Fewest groups for a correction by refits; formulas need fewer.
LEAST_REFITTED_GROUPS = 10


@dataclass(frozen=True, kw_only=True)
class Correction:
    """A correction to be computed: the subject, its folds, and how refits are run.

    Attributes
    ----------
    subject : Subject
        Loaded with `read_correlation`.
    folds : sequence of Fold
        The folds of the cross-validation.
    seed : int
    means : Means
    refits : int or None
        The most refits; by default those that the options request, and up to three times as many
        samples if these leave too much noise.
    seconds : float or None
        The time after which no optional sample is simulated.
    shortcut : Learner or None
        The learner that is trained on simulated targets instead of the model itself.
    given : WorkingModel or None
        The simulated world, if it is that of another model.
    """

    subject: Subject
    folds: Sequence[Fold]
    seed: int
    means: Means
    refits: int | None = None
    seconds: float | None = None
    shortcut: Learner | None = None
    given: WorkingModel | None = None

    def run(
        self,
        journal: Journal | None = None,
        *,
        counts: FitCounts | None = None,
        grouped: tuple[float, tuple[float, float]] | None = None,
    ) -> CvcReport:
        """Run the refits and return the report.

        Parameters
        ----------
        journal : Journal, optional
        counts : FitCounts, optional
            Counts of earlier refits.
        grouped : (float, (float, float)), optional
            The loss by folds of whole groups with its interval, if it is already known; 1 - score if
            more is better.

        Raises
        ------
        InterruptedAudit
            If the user stops it before there is anything to report.
        """
        subject, structure = self.subject, self._structure
        counts = counts or FitCounts()
        grouped_by = structure.new[0]
        whole = folds_by(subject.table, grouped_by, self.seed)
        folds, score_folds = joined(whole, folds_for_scores(subject, self._target, self.seed))
        refitter = self._refitter(subject.learner, subject.rows, folds)
        needed = counts.done + len(self.folds) + len({*range(len(whole)), *score_folds})
        problems = [*structure_problems(structure), *known_by_name(subject, structure)]
        if self.given is not None:
            matched_world(self.given, self._target, structure)
        engine = self._engine()
        draws = self._draws(needed, engine)
        with open_session(
            refitter, self.means, journal=journal, most=needed, expected=needed
        ) as opened:
            session = _continued(opened, counts)
            try:
                real = run_real_refits(session, refitter, len(whole), score_folds)
            except KeyboardInterrupt as interrupt:
                raise interrupted(session) from interrupt
        problems += self._too_few_to_refit(engine)
        reach = group_reach(real.losses, structure.grouping)
        model = None if problems else self._working_model(real, engine)
        tests: list[SlopeTest] = []
        if model is not None and not model.problems:
            tests = self._slope_tests(real)
            problems += [("B350", test.message) for test in tests if test.rejected]
        simulated: Simulated | None = None
        bias_at: BiasAt | None = None
        slopes: tuple[SlopeLimit, ...] = ()
        if model is not None and not (problems or model.problems or real.one_class):
            scaling = Scaling(structure, [(f.training, f.validation) for f in self.folds])
            if engine is not None and engine.exact:
                simulated = Simulated.without_refits(engine.bias(model))
                bias_at = engine.bias
            else:
                world = scaling.world(model)
                if engine is not None:
                    simulated = Simulated.without_refits(engine.bias(world))
                else:
                    simulated = self._simulate(world, folds, reach, draws, journal, counts)
                simulated, bias_at = _scaled(simulated, scaling.factor(world), model)
            slopes = self._slope_limits(tests, scaling, model, bias_at)
        return summarize(
            subject=subject,
            structure=structure,
            folds=self.folds,
            seed=self.seed,
            real=real,
            reach=reach,
            grouped_by=grouped_by,
            grouped=grouped,
            problems=problems,
            model=model,
            engine=self._engine_name if engine is None else engine.name,
            simulated=simulated,
            bias_at=bias_at,
            slopes=slopes,
            counts=counts,
        )

    def _slope_tests(self, real: RealRefits) -> list[SlopeTest]:
        """Test whether features act differently in groups, which random intercepts do not model."""
        features, structure = self.subject.table.features, self._structure
        if structure.field is not None or not isinstance(features, pd.DataFrame):
            return []
        found = [self._slope_test(real, features, level) for level in structure.new]
        return [test for test in found if test is not None]

    def _slope_test(
        self, real: RealRefits, features: pd.DataFrame, level: Level
    ) -> SlopeTest | None:
        """Test one level; each of more than two classes against the others, by Bonferroni."""
        if real.scores.ndim == 1:
            return examine_slopes(self._target, features, real.scores, level, self.seed)
        found = []
        for place in range(real.scores.shape[1]):
            others = logsumexp(np.delete(real.scores, place, axis=1), axis=1)
            target = (self._target == place).astype(float)
            score = real.scores[:, place] - others
            found.append(examine_slopes(target, features, score, level, self.seed, power=False))
        tests = [test for test in found if test is not None]
        if not tests:
            return None
        worst = min(tests, key=lambda test: test.pvalue)
        return replace(worst, pvalue=min(1.0, len(found) * worst.pvalue))

    def _slope_limits(
        self, tests: Sequence[SlopeTest], scaling: Scaling, model: WorkingModel, bias_at: BiasAt
    ) -> tuple[SlopeLimit, ...]:
        """Return which slopes the tests would have found, and what they would add to the bias."""
        features, structure = self.subject.table.features, self._structure
        if structure.field is not None or not isinstance(features, pd.DataFrame):
            return ()
        if model.n_classes > 2:
            return ()
        found, limits = bias_at(model).value, []
        sds = {test.level: dict(test.detectable) for test in tests}
        for place, level in enumerate(structure.levels):
            columns = varying_features(features, level)
            if not level.new or columns.empty:
                continue
            shares = scaling.slope_shares(columns.to_numpy(), model, level)
            for name, share in zip(columns.columns, shares, strict=True):
                sd, added = sds.get(level.name, {}).get(name), None
                if sd is not None:
                    both = float(np.hypot(model.sd[place], sd * np.sqrt(share)))
                    moved = replace(model, sd=(*model.sd[:place], both, *model.sd[place + 1 :]))
                    added = bias_at(moved).value - found
                limits.append(SlopeLimit(level=level.name, feature=name, sd=sd, bias=added))
        return tuple(limits)

    def _too_few_to_refit(self, engine: Engine | None) -> list[tuple[str, str]]:
        """Return whether groups are too few for learners that are refitted on simulated targets.

        The level with the most groups counts.
        """
        if engine is not None or self._structure.field is not None:
            return []
        level = max(self._structure.grouping, key=lambda level: level.n_groups)
        if not LEAST_GROUPS <= level.n_groups < LEAST_REFITTED_GROUPS:
            return []
        return [
            (
                "B331",
                f"{level.name!r} has {level.n_groups} groups; for a learner without formulas, such as "
                "nearest neighbours or trees, the correction found only a third of the bias with eight "
                f"groups. At least {LEAST_REFITTED_GROUPS} are needed.",
            )
        ]

    @property
    def _structure(self) -> Structure:
        return correlation_of(self.subject).structure

    @property
    def _options(self) -> CvcOptions:
        return correlation_of(self.subject).options

    @property
    def classes(self) -> Any:
        """The classes, or None for numbers."""
        if self.subject.task != "classification":
            return None
        return np.unique(self.subject.table.target)

    @property
    def _target(self) -> Array:
        target, classes = self.subject.table.target, self.classes
        if classes is not None and len(classes) > 2:
            return np.searchsorted(classes, target).astype(float)
        return np.asarray(target if classes is None else target == classes[1], dtype=float)

    @property
    def _engine_name(self) -> str:
        engine = self._options.engine
        return "full" if engine == "auto" else engine

    def _refitter(
        self, learner: Learner, data: AuditData, folds: tuple[Fold, ...], draws: Draws | None = None
    ) -> CvcRefitter:
        resampler = Resampler(
            folds=folds,
            iid_folds=self.folds,
            clusters=data.clusters,
            exposures=exposures("optimal"),
            scheme="subset",
            seed=self.seed,
        )
        return CvcRefitter(
            data=data,
            learner=learner,
            loss=self.subject.loss,
            resampler=resampler,
            seconds_at_most=self.means.seconds_per_fit(self.seconds),
            classes=self.classes,
            draws=draws,
        )

    def _working_model(self, real: RealRefits, engine: Engine | None) -> WorkingModel:
        if self.given is not None:
            return matched_world(self.given, self._target, self._structure)
        subject, structure = self.subject, self._structure
        if self._options.working == "auto" and is_linear_in_few(engine, subject.task):
            assert engine is not None
            return fit_covariate_model(subject.task, self._target, engine.features, structure)
        if self._options.working == "glmm":
            return fit_covariate_model(
                subject.task, self._target, subject.table.features, structure
            )
        return fit_score_model(subject.task, self._target, real.scores, structure)

    def _engine(self) -> Engine | None:
        subject = self.subject
        return find_engine(
            self._options.engine,
            subject.learner,
            subject.rows,
            self._structure,
            self.folds,
            subject.loss,
            draws=self._options.draws,
            seed=self.seed,
        )

    def _draws(self, done: int, engine: Engine | None) -> int:
        """Return how many samples to refit, given the number of refits already done."""
        if self.refits is None:
            return 0 if engine is not None else self._options.draws
        left, least = self.refits - done, 0 if engine is not None else 2 * len(self.folds)
        if left < least:
            raise InputError(
                f"budget={self.refits} leaves {max(0, left)} refits on simulated targets after {done} "
                f"on the table's own; at least {least} are needed. Give {done + least} or more."
            )
        return left

    def _simulate(
        self,
        model: WorkingModel,
        folds: tuple[Fold, ...],
        reach: float,
        draws: int,
        journal: Journal | None,
        counts: FitCounts,
    ) -> Simulated:
        subject = self.subject
        learner = self.shortcut or subject.learner
        rows = subject.rows
        if self.shortcut is not None:
            rows = subject.table.with_features(
                learner.represent(subject.table.features, subject.table.ids)
            )
        samples = Draws(model, self._structure, self.seed)
        refitter = self._refitter(learner, rows, folds, samples)
        with open_session(
            refitter,
            self.means,
            journal=journal,
            seconds=self.seconds,
            most=counts.done + draws,
            expected=counts.done + draws,
        ) as opened:
            session = _continued(opened, counts)
            return run_simulation(
                session, refitter, draws=draws, reach=reach, extend=self.refits is None
            )


def _continued(session: Session, counts: FitCounts) -> Session:
    """Return a session that continues the counts of another one."""
    session.progress.advance(counts.done, counts.replayed)
    return replace(session, counts=counts)


def _scaled(
    simulated: Simulated, factor: Callable[[WorkingModel], float], model: WorkingModel
) -> tuple[Simulated, BiasAt]:
    """Return the bias of the model from that of the world that was simulated, and that of others."""
    found = simulated.bias

    def at(other: WorkingModel) -> Bias:
        times = factor(other)
        return replace(found, value=times * found.value + 0.0, error=times * found.error)

    return replace(simulated, bias=at(model)), at
