"""Simulated patients in wards and weeks, whose rows are correlated by both."""

import numpy as np
import pandas as pd
from scipy.special import expit

FEATURES = ["age", "pressure", "ward_mean"]


def make_wards(
    seed=0, wards=12, weeks=6, each=2, sd=(1.0, 0.5), numbers=False, missing_link=0.7, noise=1.0
):
    """Return a table in which one feature is shared within wards, so that models learn wards by it."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    ward = np.repeat(np.arange(wards), weeks * each)
    week = np.tile(np.repeat(np.arange(weeks), each), wards)
    age, pressure = rng.standard_normal((2, len(ward)))
    ward_mean = rng.standard_normal(wards)[ward] + 0.1 * rng.standard_normal(len(ward))
    effects = sd[0] * rng.standard_normal(wards)[ward] + sd[1] * rng.standard_normal(weeks)[week]
    mean = 0.3 + missing_link * age - 0.5 * pressure + effects
    target = mean + noise * rng.standard_normal(len(ward))
    if not numbers:
        target = np.where(rng.random(len(ward)) < expit(mean), "ill", "healthy")
    return pd.DataFrame(
        {
            "age": age,
            "pressure": pressure,
            "ward_mean": ward_mean,
            "ward": [f"w{number}" for number in ward],
            "week": week,
            "outcome": target,
        }
    )
