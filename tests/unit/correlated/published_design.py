"""The simulation of Yuval & Rosset, AISTATS 2025: 10 entities on 5 days, 110 rows."""

import numpy as np

ENTITY = np.repeat(np.arange(10), 11)
DAY = np.tile(np.repeat(np.arange(5), [2, 2, 2, 2, 3]), 10)
SD = (1.0, 0.5)


def published_sample(seed, columns=10):
    """Return 0 and 1, fixed effects with an intercept, and the codes of both levels."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(31,)))
    Z = np.hstack([np.eye(10)[ENTITY], np.eye(5)[DAY]])
    X = 0.5 * (Z @ rng.normal(size=(15, 10)) + np.sqrt(1.5) * rng.normal(size=(110, 10)))
    effects = SD[0] * rng.normal(size=10)[ENTITY] + SD[1] * rng.normal(size=5)[DAY]
    log_odds = X.sum(axis=1) / 2 + effects
    target = (rng.random(110) < 1 / (1 + np.exp(-log_odds))).astype(float)
    return target, np.column_stack([np.ones(110), X[:, :columns]]), [ENTITY, DAY]
