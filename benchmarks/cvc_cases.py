"""Learners, working models and samples of `cvc_simulation.py`."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "unit" / "correlated"))

import published_simulation as published

from mlflow_b3.correlated.field import covariances
from mlflow_b3.correlated.formulas import SLOPES, BiasSums, joint_bias
from mlflow_b3.correlated.learner import MixedLogistic
from mlflow_b3.correlated.mixed import fit_mixed_logistic
from mlflow_b3.correlated.structure import Field, Level, Structure, WorkingModel
from mlflow_b3.correlated.targets import Draws

Array = np.ndarray
Row = dict[str, float]
#: Simulated samples of one w: for losses without a closed form, and refitted fold by fold.
FAST_DRAWS, REFITS = 400, 440
FURTHEST_SCORE = 5.0
SHORT = {"log": "CE", "zero_one": "0-1"}
LEVELS = (published.ENTITY, published.DAY)


class Mixed:
    """The learner of table A on some covariates of a sample."""

    def __init__(self, sample: published.Sample, size: int) -> None:
        self.columns = np.column_stack([sample.X[:, :size], *LEVELS])
        self.target, self.size = sample.target, size
        self.whole = self.fitted(np.arange(published.N))

    def fitted(self, rows: Array) -> MixedLogistic:
        """Train on some rows."""
        learner = MixedLogistic(groups=(self.size, self.size + 1))
        return learner.fit(self.columns[rows], self.target[rows])

    def scores(self, training: Array, held: Array) -> Array:
        """Return log odds of rows by a training on others."""
        return self.fitted(training).decision_function(self.columns[held])

    @property
    def coefficients(self) -> Array:
        """Return those of the training on all rows."""
        return np.r_[self.whole.intercept_, self.whole.coef_[0]]


class Ridge:
    """A penalised logistic regression on given columns: the learner of tables B, C and D."""

    def __init__(self, columns: Array, penalty: Array, used: Array | None = None) -> None:
        self.columns, self.penalty, self.used = columns, penalty, used

    def refitted(self, targets: Array, training: Array, held: Array) -> Array:
        """Return log odds of rows by trainings on others, with one target in each row."""
        return published.penalised_scores(
            self.columns[training], self.penalty, targets, self.columns[held], self.used
        )

    def scores(self, target: Array) -> Callable[[Array, Array], Array]:
        """Return the function from training and other rows to log odds of these."""
        return lambda training, held: self.refitted(target[None, training], training, held)[0]

    def biases(self, model: WorkingModel, structure: Structure, folds: list, seed: int) -> Row:
        """Return w by refits to simulated targets, one fold for each."""
        draws, sums = Draws(model, structure, seed), {loss: BiasSums(len(folds)) for loss in SHORT}
        for fold, (training, held) in enumerate(folds):
            samples = [draws.draw(number) for number in range(fold, REFITS, len(folds))]
            targets = np.stack([sample.target[training] for sample in samples])
            for score, sample in zip(self.refitted(targets, training, held), samples, strict=True):
                for loss, total in sums.items():
                    expected, deployed = sample.expected[held], sample.deployed[held]
                    total.add(fold, SLOPES[loss](score), expected, deployed)
        return {loss: total.bias().value for loss, total in sums.items()}


def score_model(target: Array, scores: Array) -> WorkingModel:
    """Return the recalibrated score with intercepts of entities and days, as `cvc` does by default."""
    clipped = np.clip(scores, -FURTHEST_SCORE, FURTHEST_SCORE)
    design = np.column_stack([np.ones(len(scores)), clipped])
    fit = fit_mixed_logistic(target, design, LEVELS, intervals=False)
    return published.working_model(design @ fit.coefficients, fit.sd)


def working_models(
    sample: published.Sample, full: Mixed, scores: Callable[[Array, Array], Array]
) -> dict[str, WorkingModel]:
    """Return the truth and its estimates; `scores` trains the learner that is recalibrated."""
    design = sample.design(10)
    columns, penalty = published.with_effects(design)
    known = published.penalised_scores(columns, penalty, sample.target[None], np.eye(len(penalty)))
    without = published.cross_validated(scores, published.folds_of(published.ENTITY))
    return {
        "oracle": published.working_model(sample.mean),
        "known sd": published.working_model(design @ known[0, : design.shape[1]]),
        "plug-in": published.working_model(design @ full.coefficients, full.whole.sd_),
        "score": score_model(sample.target, without),
    }


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table with a learner of which the truth is known: class 1 has this chance in use."""

    learner: Ridge
    mean: Array
    target: Array
    chance: Array
    folds: list

    def truth(self) -> Row:
        """Return the cross-validated loss, the loss in use, and their difference."""
        scores = published.cross_validated(self.learner.scores(self.target), self.folds)
        row = {}
        for loss, short in SHORT.items():
            cv = float(published.LOSSES[loss](self.target, scores).mean())
            use = float(published.LOSSES[loss](self.chance, scores).mean())
            row |= {f"{short} CV": cv, f"{short} GenErr": use, f"{short} bias": use - cv}
        return row


def ridge_case(seed: int) -> Case:
    """Return a sample of table B."""
    sample = published.published_sample(seed)
    return Case(
        learner=Ridge(sample.design(10), published.ridge_penalty(10)),
        mean=sample.mean,
        target=sample.target,
        chance=published.new_groups_chance(sample),
        folds=sample.folds,
    )


def ridge_row(seed: int) -> Row:
    """Return the w of table B in one sample."""
    case, sample, row = ridge_case(seed), published.published_sample(seed), {}
    models = working_models(sample, Mixed(sample, 10), case.learner.scores(case.target))
    for kind, model in models.items():
        biases = case.learner.biases(model, published.levels(), case.folds, seed)
        row |= {f"{SHORT[loss]} w {kind}": bias for loss, bias in biases.items()}
    return row


def again_case(seed: int) -> Case:
    """Return a sample of table C."""
    sample = published.published_sample(seed)
    columns, penalty = published.with_effects(sample.design(10))
    return Case(
        learner=Ridge(columns, penalty, np.r_[np.ones(21), np.zeros(5)]),
        mean=sample.mean,
        target=sample.target,
        chance=published.same_entities_chance(sample),
        folds=sample.folds,
    )


def again_row(seed: int) -> Row:
    """Return the w of table C in one sample."""
    sample, structure = published.published_sample(seed), published.levels(entity_new=False)
    design, model = sample.design(10), published.working_model(sample.mean)
    return {
        f"{short} w oracle": joint_bias(
            design, model, structure, sample.folds, loss, draws=REFITS, seed=seed
        ).value
        for loss, short in SHORT.items()
    }


REGION = np.repeat(np.arange(12), 9)
FIELD_SD, FIELD_REACH = float(np.sqrt(1.5)), 3.0


def places_of(rng: np.random.Generator) -> Array:
    """Return nine places in each of twelve regions, somewhere in a square."""
    return rng.uniform(0, 10, size=(12, 2))[REGION] + rng.uniform(-0.5, 0.5, size=(108, 2))


def field_case(seed: int) -> Case:
    """Return a sample of table D, with the same rows in new regions as its use."""
    rng = np.random.default_rng(seed)
    both = np.vstack([places_of(rng), places_of(rng)])
    noise = np.sqrt(1.5) * rng.standard_normal((108, 6))
    X = 0.5 * (rng.standard_normal((12, 6))[REGION] + noise)
    mean = 0.5 * X.sum(axis=1)
    kernel = covariances(both, both, FIELD_SD, FIELD_REACH)
    root = np.linalg.cholesky(kernel + 1e-9 * np.eye(len(kernel)))
    here, new = (root @ rng.standard_normal(len(kernel))).reshape(2, -1)
    return Case(
        learner=Ridge(np.column_stack([np.ones(108), X]), published.ridge_penalty(6)),
        mean=mean,
        target=(rng.random(108) < expit(mean + here)).astype(float),
        chance=expit(mean + new),
        folds=published.random_folds(108, 12, rng),
    )


def field_row(seed: int) -> Row:
    """Return the w of table D in one sample."""
    case = field_case(seed)
    regions = Level(name="region", codes=REGION)
    places = places_of(np.random.default_rng(seed))
    model = WorkingModel(
        task="classification",
        mean=case.mean,
        sd=(FIELD_SD,),
        sd_low=(FIELD_SD,),
        sd_high=(FIELD_SD,),
        reach=FIELD_REACH,
    )
    structure = Structure(field=Field(coordinates=places, regions=regions))
    biases = case.learner.biases(model, structure, case.folds, seed)
    return {f"{SHORT[loss]} w oracle": bias for loss, bias in biases.items()}
