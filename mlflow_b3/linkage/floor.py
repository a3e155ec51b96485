"""The leak share that no linkage of given fields can avoid."""

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.estimates import LeakEstimate, LeakShare
from mlflow_b3.wording import not_percentage


def leak_floor(
    mate_rate: float, error: float, merge_rate_high: float, K: float, *, level: float = 0.95
) -> LeakEstimate:
    """Return the least leak shares of any clustering of such records that merges so little.

    Parameters
    ----------
    mate_rate : float
        ρ: share of the rows whose entity has other rows too.
    error : float
        ε: least probability of assigning such a row to the wrong entity, from the fields that
        linkage has: `linkage_error_bound` with N = number of entities that have at least two rows.
    merge_rate_high : float
        Upper limit of P(M), the share of rows in a predicted cluster with rows of another entity
        too. It needs a review of clusters, for rows drawn at random; without one it is 1, and the
        floor 0.
    K : float
        Number of folds.
    level : float
        Confidence of `merge_rate_high`.

    Notes
    -----
    A row with mates that is neither split from one of them (S) nor merged with others (M) is
    assigned to its entity without error by its cluster. So P(S) + P(M) ≥ ρ·ε, for any algorithm that
    has only these fields. With clusters put into K folds at random, p0 ≥ P(S)/K and
    p0_validation ≥ P(S)·(1 - 1/K), in expectation over the folds: the least is reached when every
    split entity is in two clusters.

    No error bound bounds p0 by itself: a linkage that merges everything errs everywhere, and leaks
    nothing.
    """
    problems = [
        f"{name}={value!r} must lie in [0, 1].{not_percentage(value)}"
        for name, value in (
            ("mate_rate", mate_rate),
            ("error", error),
            ("merge_rate_high", merge_rate_high),
        )
        if not 0 <= value <= 1
    ]
    if not 2 <= K < float("inf"):
        problems.append(f"K={K!r} must be a number of folds, at least 2.")
    if not 0 < level < 1:
        problems.append(f"level={level!r} must lie between 0 and 1.")
    if problems:
        raise InputError.from_problems("leak_floor", problems)
    split = max(0.0, mate_rate * error - merge_rate_high)
    return LeakEstimate(
        train=LeakShare(point=None, low=split / K, high=1.0),
        validation=LeakShare(point=None, low=split * (1 - 1 / K), high=1.0),
        kind="lower",
        method="leak_floor",
        level=float(level),
        n_folds=float(K),
        notes=(
            f"At least {split:.3g} of the rows are split from mates, by any linkage of these fields "
            f"that merges at most {merge_rate_high:.3g} of the rows with other entities.",
            f"It rests on {mate_rate:.3g} of the rows having mates, and on a least linkage error of "
            f"{error:.3g} for them.",
        ),
    )
