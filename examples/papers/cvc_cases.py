"""Learners, working models and samples of cvc_simulation.py."""

from collections.abc import Callable
from dataclasses import dataclass

import cvc_design as published
import numpy as np
from cvc_design import Array, Folds
from scipy.special import expit

from mlflow_b3.correlated.field import covariances
from mlflow_b3.correlated.formulas import SLOPES, BiasSums, fast_bias, joint_bias
from mlflow_b3.correlated.learner import MixedLogistic
from mlflow_b3.correlated.mixed import fit_mixed_logistic
from mlflow_b3.correlated.structure import Field, Level, Structure, WorkingModel
from mlflow_b3.correlated.targets import Draws

Row = dict[str, float]
#: Simulated samples of one w: for losses without a closed form, and refitted fold by fold.
FAST_DRAWS, REFITS = 400, 440
FURTHEST_SCORE = 5.0
#: The losses by the names of the tables.
SHORT = {"log": "log loss", "zero_one": "error rate"}
LEVELS = (published.ENTITY, published.DAY)


# --- The mixed regression of figures 1 and 2


class Mixed:
    """A regression with random intercepts on some covariates, which predicts new groups by its fixed part."""

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


def mixed_row(seed: int) -> Row:
    """Return CV, CV_c by each working model, GenErr and GenNew of the three candidates in one sample."""
    sample, structure, row = published.published_sample(seed), published.levels(), {}
    chance = published.new_groups_chance(sample)
    learners = {size: Mixed(sample, size) for size in published.SIZES}
    models = working_models(sample, learners[10], learners[10].scores)
    for size, learner in learners.items():
        fits = [learner.fitted(training) for training, _ in sample.folds]
        intercepts = np.array([fit.intercept_[0] for fit in fits])
        slopes = np.array([fit.coef_[0] for fit in fits])
        scores = np.empty(published.N)
        for fit, (_, held) in zip(fits, sample.folds, strict=True):
            scores[held] = fit.decision_function(learner.columns[held])
        for loss, short in SHORT.items():
            name = f"{short} {size}"
            cv = float(published.LOSSES[loss](sample.target, scores).mean())
            row[f"{name} CV"] = cv
            row[f"{name} GenErr"] = float(published.LOSSES[loss](chance, scores).mean())
            row[f"{name} GenNew"] = published.new_rows_loss(loss, intercepts, slopes)
            for kind, model in models.items():
                bias = fast_bias(
                    sample.design(size),
                    learner.coefficients,
                    model,
                    structure,
                    sample.folds,
                    loss,
                    covariance="mixed",
                    draws=FAST_DRAWS,
                    seed=seed,
                ).value
                row[f"{name} {kind}"] = cv + bias
    return row


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
        "true sd": published.working_model(design @ known[0, : design.shape[1]]),
        "estimated sd": published.working_model(design @ full.coefficients, full.whole.sd_),
        "score": score_model(sample.target, without),
        "true model": published.working_model(sample.mean),
    }


# --- Learners that are refitted to simulated targets


class Ridge:
    """A penalised logistic regression on given columns."""

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

    def biases(self, model: WorkingModel, structure: Structure, folds: Folds, seed: int) -> Row:
        """Return w by refits to simulated targets, one fold for each."""
        draws, sums = Draws(model, structure, seed), {loss: BiasSums(len(folds)) for loss in SHORT}
        for fold, (training, held) in enumerate(folds):
            samples = [draws.draw(number) for number in range(fold, REFITS, len(folds))]
            targets = np.stack([sample.target[training] for sample in samples])
            for score, sample in zip(self.refitted(targets, training, held), samples, strict=True):
                for loss, total in sums.items():
                    expected, deployed = sample.expected[held], sample.deployed[held]
                    total.add(fold, SLOPES[loss](score), expected, deployed)
        return {SHORT[loss]: total.bias().value for loss, total in sums.items()}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A sample and a learner of which the truth is known: class 1 has this chance in use."""

    learner: Ridge
    mean: Array
    target: Array
    chance: Array
    folds: Folds

    def bias(self) -> Row:
        """Return the loss in use less the cross-validated loss."""
        scores = published.cross_validated(self.learner.scores(self.target), self.folds)
        return {
            short: float(
                (
                    published.LOSSES[loss](self.chance, scores)
                    - published.LOSSES[loss](self.target, scores)
                ).mean()
            )
            for loss, short in SHORT.items()
        }


def ridge_case(seed: int) -> Case:
    """Return a sample with a ridge-penalised regression (`LogisticRegression(C=1)`)."""
    sample = published.published_sample(seed)
    return Case(
        learner=Ridge(sample.design(10), published.ridge_penalty(10)),
        mean=sample.mean,
        target=sample.target,
        chance=published.new_groups_chance(sample),
        folds=sample.folds,
    )


def ridge_correction(seed: int) -> Row:
    """Return w with the true working model."""
    case = ridge_case(seed)
    model = published.working_model(case.mean)
    return case.learner.biases(model, published.levels(), case.folds, seed)


def again_case(seed: int) -> Case:
    """Return a sample whose entities are observed again on a new day; the learner knows the sd."""
    sample = published.published_sample(seed)
    columns, penalty = published.with_effects(sample.design(10))
    return Case(
        learner=Ridge(columns, penalty, np.r_[np.ones(21), np.zeros(5)]),
        mean=sample.mean,
        target=sample.target,
        chance=published.same_entities_chance(sample),
        folds=sample.folds,
    )


def again_correction(seed: int) -> Row:
    """Return w with the true working model."""
    sample, structure = published.published_sample(seed), published.levels(entity_new=False)
    design, model = sample.design(10), published.working_model(sample.mean)
    return {
        short: joint_bias(
            design, model, structure, sample.folds, loss, draws=REFITS, seed=seed
        ).value
        for loss, short in SHORT.items()
    }


# --- A Gaussian field with regions, of which the model meets new ones

REGION = np.repeat(np.arange(12), 9)
FIELD_SD, FIELD_REACH = float(np.sqrt(1.5)), 3.0


def places_of(rng: np.random.Generator) -> Array:
    """Return nine places in each of twelve regions, somewhere in a square."""
    return rng.uniform(0, 10, size=(12, 2))[REGION] + rng.uniform(-0.5, 0.5, size=(108, 2))


def field_case(seed: int) -> Case:
    """Return a sample with the same rows in new regions as its use."""
    rng = np.random.default_rng(seed)
    both = np.vstack([places_of(rng), places_of(rng)])
    X = field_covariates(rng)
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


def field_covariates(rng: np.random.Generator) -> Array:
    """Return six covariates that differ between regions."""
    noise = np.sqrt(1.5) * rng.standard_normal((108, 6))
    return np.asarray(0.5 * (rng.standard_normal((12, 6))[REGION] + noise))


def field_given(
    places: Array, new: Array, kernel: Callable[[Array, Array], Array]
) -> tuple[Array, Array, Array]:
    """Return a root of the covariance of places, and weights and sd of a field at new places given it there."""
    own = kernel(places, places)
    own[np.diag_indices(len(places))] += 1e-6
    crossed = kernel(new, places)
    weights = np.linalg.solve(own, crossed.T).T
    left = kernel(new[:1], new[:1])[0, 0] - (weights * crossed).sum(axis=1)
    return np.linalg.cholesky(own), weights, np.sqrt(np.maximum(left, 0.0))


def field_correction(seed: int) -> Row:
    """Return w with the true working model."""
    case = field_case(seed)
    places = places_of(np.random.default_rng(seed))
    model, structure = field_world(case.mean, places)
    return case.learner.biases(model, structure, case.folds, seed)


def field_world(
    mean: Array, places: Array, kernel: str = "exponential"
) -> tuple[WorkingModel, Structure]:
    """Return the true field and its regions as `cvc` has them."""
    regions = Level(name="region", codes=REGION)
    model = WorkingModel(
        task="classification",
        mean=mean,
        sd=(FIELD_SD,),
        sd_low=(FIELD_SD,),
        sd_high=(FIELD_SD,),
        reach=FIELD_REACH,
        kernel=kernel,
    )
    return model, Structure(field=Field(coordinates=places, regions=regions))
