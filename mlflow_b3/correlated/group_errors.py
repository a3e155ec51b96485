"""How uncertain a mean loss is, when rows of one group rise and fall together."""

import numpy as np
from scipy import stats

from mlflow_b3.correlated.structure import Array, Codes, Level
from mlflow_b3.estimation.intervals import CONFIDENCE
from mlflow_b3.measurement.accumulation import by_unit, robust_covariance


def group_influence(losses: Array, codes: Codes) -> Array:
    """Return what each group adds to the error of the mean loss: Σ_i∈g (l_i - l̄)/n."""
    deviations = (losses - losses.mean()) / len(losses)
    return by_unit(deviations[:, None], codes, int(codes.max()) + 1)[:, 0]


def group_reach(losses: Array, levels: tuple[Level, ...]) -> float:
    """Return half of the width of a 95 % interval of a mean loss.

    The widest of those by each level, with a variance that is robust to correlation within its groups
    and Student's t with as many degrees of freedom as groups, less one.
    """
    reaches = []
    for level in levels:
        influence = group_influence(losses, level.codes)
        variance = float(robust_covariance(influence[:, None])[0, 0])
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, max(1, len(influence) - 1)))
        reaches.append(quantile * np.sqrt(variance))
    return float(max(reaches))
