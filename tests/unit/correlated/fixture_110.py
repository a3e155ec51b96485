"""110 rows of ten entities on five days, made without random numbers."""

import numpy as np

from mlflow_b3.correlated.structure import Level, Structure, WorkingModel

N = 110
ROWS = np.arange(N)
ENTITY, DAY = ROWS % 10, (ROWS // 10) % 5
X = np.column_stack(
    [
        np.ones(N),
        np.sin(0.7 * (ROWS + 1)),
        np.cos(1.3 * (ROWS + 1)),
        np.sin(2.1 * (ROWS + 1) + 0.5 * (ROWS % 10)),
    ]
)
BETA = np.array([0.2, 0.8, -0.6, 0.5])
MEAN = X @ BETA
SD = (1.0, 0.5)


def folds_by(codes):
    """Return (training, validation) rows, one fold for each code."""
    return [
        (np.flatnonzero(codes != code), np.flatnonzero(codes == code)) for code in np.unique(codes)
    ]


FOLDS = folds_by(ROWS % 11)


def structure(*, entity_new=True, day_new=True):
    """Return the two levels, each new or observed again."""
    return Structure(
        levels=(
            Level(name="entity", codes=ENTITY, new=entity_new),
            Level(name="day", codes=DAY, new=day_new),
        )
    )


def model(sd=SD, *, task="classification", noise=None):
    """Return the working model that is true."""
    return WorkingModel(task=task, mean=MEAN, sd=sd, sd_low=sd, sd_high=sd, noise=noise)
