"""The bias of cross-validation for logistic learners that predict with random effects."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit

from mlflow_b3.correlated.bias import SLOPES, Bias, BiasSums
from mlflow_b3.correlated.draws import Draws
from mlflow_b3.correlated.linear_bias import Folds
from mlflow_b3.correlated.moments import check_size
from mlflow_b3.correlated.structure import Array, Codes, Structure, WorkingModel
from mlflow_b3.errors import InputError, choose

#: Keeps coefficients finite where a simulated sample can be separated.
RIDGE = 1e-3
#: Newton steps of a refit, what counts as none, and the most that one may change log odds by.
_MOST_STEPS = 50
_CONVERGED = 1e-7
_LONGEST = 4.0
#: Numbers held at once by the refits of one fold.
_NUMBERS_AT_ONCE = 4_000_000


def joint_bias(
    phi: Array,
    model: WorkingModel,
    structure: Structure,
    folds: Folds,
    loss: str,
    *,
    penalty: Array | None = None,
    learner_sd: Sequence[float] | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> Bias:
    """Return w of a logistic regression with random effects, refitted at its joint mode.

    Parameters
    ----------
    phi : array (n, d)
        Features of the learner, with the intercept among them.
    model : WorkingModel
        By which targets are simulated.
    structure : Structure
        Levels; the effects of those that are observed again are used to predict.
    folds : sequence of (training rows, validation rows)
    loss : {"log", "zero_one", "hinge", "brier"}
    penalty : array (d,), optional
        Diagonal λ of the ridge penalty λ β²/2; at least 0.001.
    learner_sd : sequence of float, optional
        Standard deviations of the learner's random effects; by default those of the model. They
        stay what they are when those of the model are varied.
    draws : int
        Simulated samples, of which each refits one fold.
    seed : int

    Notes
    -----
    A refit maximises Σ [y t - log(1 + eᵗ)] - |v|²/2 - λβ²/2 over t = Φβ + Z diag(sd) v. Levels
    scaled by their standard deviations leave sd = 0 harmless. Yuval and Rosset (AISTATS 2025) take one
    step for v instead, which is 13 % low here even with the sign of its penalty put right.
    """
    check_size(len(phi), "joint")
    choose("loss", loss, [name for name in SLOPES if name != "squared"])
    if structure.field is not None:
        raise InputError(
            'engine="joint" knows levels only, and the structure is a field; use engine="full".'
        )
    sd = model.sd if learner_sd is None else learner_sd
    learner = Refitted(phi, sd, structure, penalty)
    return refitted_bias(learner, model, structure, folds, loss, draws, seed)


def refitted_bias(
    learner: "Refitted",
    model: WorkingModel,
    structure: Structure,
    folds: Folds,
    loss: str,
    draws: int,
    seed: int,
) -> Bias:
    """Return w by refits of a logistic learner, one fold for each simulated sample."""
    simulated, sums = Draws(model, structure, seed), BiasSums(len(folds))
    for fold, (training, held) in enumerate(folds):
        numbers = range(fold, draws, len(folds))
        at_once = max(1, _NUMBERS_AT_ONCE // (len(training) * learner.width))
        for start in range(0, len(numbers), at_once):
            samples = [simulated.draw(number) for number in numbers[start : start + at_once]]
            targets = np.stack([sample.target[training] for sample in samples])
            scores = learner.scores(targets, training, held)
            for score, sample in zip(SLOPES[loss](scores), samples, strict=True):
                sums.add(fold, score, sample.expected[held], sample.deployed[held])
    return sums.bias()


class Refitted:
    """A logistic regression with random effects of given standard deviations.

    The effects of the level with most groups enter through a sparse matrix: their block of the
    Hessian is diagonal and is eliminated, so a step costs what the other effects cost.
    """

    def __init__(
        self, phi: Array, sd: Sequence[float], structure: Structure, penalty: Array | None
    ) -> None:
        levels = sorted(zip(structure.levels, sd, strict=True), key=lambda pair: -pair[0].n_groups)
        dense, used = [phi], [np.ones(phi.shape[1])]
        for level, spread in levels[1:]:
            dense.append(spread * np.eye(level.n_groups)[level.codes])
            used.append(np.full(level.n_groups, float(not level.new)))
        large, spread = levels[0]
        rows = np.arange(len(phi))
        self._dense, self._used = np.hstack(dense), np.concatenate(used)
        self._sparse = csr_array(
            (np.full(len(phi), spread), (rows, large.codes)), shape=(len(phi), large.n_groups)
        )
        self._uses_sparse = not large.new
        own = np.zeros(phi.shape[1]) if penalty is None else np.asarray(penalty, float)
        own = np.maximum(own, RIDGE)
        self._penalty = np.concatenate([own, np.ones(self._dense.shape[1] - phi.shape[1])])
        self.width = self._dense.shape[1]

    def scores(self, targets: Array, training: Codes, held: Codes) -> Array:
        """Return log odds of the held rows, by one refit for each row of targets."""
        dense, sparse = self._mode(targets, self._dense[training], self._sparse[training])
        result = (dense * self._used) @ self._dense[held].T
        if self._uses_sparse:
            result += (self._sparse[held] @ sparse.T).T
        return np.asarray(result)

    def _mode(self, targets: Array, dense: Array, sparse: csr_array) -> tuple[Array, Array]:
        """Return the effects at the joint mode, by Newton's method for all targets at once."""
        count, width, groups = len(targets), dense.shape[1], sparse.shape[1]
        first, second = np.zeros((count, width)), np.zeros((count, groups))
        squared = sparse.multiply(sparse).tocsr()
        for _ in range(_MOST_STEPS):
            chance = expit(first @ dense.T + (sparse @ second.T).T)
            weight, residual = chance * (1.0 - chance), targets - chance
            pull_first = residual @ dense - self._penalty * first
            pull_second = residual @ sparse - second
            diagonal = 1.0 + weight @ squared
            weighted = dense.T * weight[:, None, :]
            across = (weighted.reshape(-1, len(dense)) @ sparse).reshape(count, width, groups)
            shrunk = across / diagonal[:, None, :]
            bread = weighted @ dense + np.diag(self._penalty) - shrunk @ across.transpose(0, 2, 1)
            rest = pull_first[..., None] - shrunk @ pull_second[..., None]
            step_first = np.linalg.solve(bread, rest)[..., 0]
            step_second = (pull_second - np.einsum("bp,bpq->bq", step_first, across)) / diagonal
            change = np.abs(step_first @ dense.T + (sparse @ step_second.T).T).max(axis=1)
            damped = np.minimum(1.0, _LONGEST / np.maximum(change, _CONVERGED))[:, None]
            first += damped * step_first
            second += damped * step_second
            if change.max() < _CONVERGED:
                break
        return first, second
