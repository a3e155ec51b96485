"""How often the interval of `mlflow_b3.cvc` holds the loss on new groups, and how much bias is left.

Rows of simulated entities on simulated days, with known effects; covariates are alike within groups,
as in the simulation of Yuval and Rosset (AISTATS 2025). The truth is the mean over all samples of the
loss of the cross-validated models at the same covariates and with new effects, which is what CV_c
estimates. `python benchmarks/cvc_coverage.py --samples 200 --jobs 2`
"""

import argparse
import warnings

import joblib
import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.correlated.targets import smoothed_logistic

#: Entities, days, rows of each entity on each day, covariates, standard deviations of the effects.
DESIGNS = {
    "10 entities, 5 days": (10, 5, 2, 10, (1.0, 0.5)),
    "40 entities, 10 days": (40, 10, 1, 5, (1.0, 0.5)),
    "40 entities, 10 days, no effects": (40, 10, 1, 5, (0.0, 0.0)),
}
CASES = [
    ("logistic", "log", {}),
    ("logistic", "zero_one", {}),
    ("neighbours", "zero_one", {"draws": 200, "budget": 230}),
    ("ridge", "squared", {}),
]
MODELS = {
    "logistic": LogisticRegression(),
    "neighbours": KNeighborsClassifier(7),
    "ridge": Ridge(1.0),
}


def draw(design, task, seed):
    """Return a table, the mean of each target given its covariates, and the names of these."""
    entities, days, each, count, sd = DESIGNS[design]
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(907,)))
    entity = np.repeat(np.arange(entities), days * each)
    day = np.tile(np.repeat(np.arange(days), each), entities)
    shared = rng.normal(size=(entities, count))[entity] + rng.normal(size=(days, count))[day]
    X = 0.5 * (shared + np.sqrt(1.5) * rng.normal(size=(len(entity), count)))
    f = X.sum(axis=1) / 2
    effects = sd[0] * rng.normal(size=entities)[entity] + sd[1] * rng.normal(size=days)[day]
    if task == "regression":
        y = f + effects + rng.normal(size=len(f))
        new = f
    else:
        y = (rng.random(len(f)) < expit(f + effects)).astype(int)
        new = smoothed_logistic(f, np.hypot(*sd))
    names = [f"x{number}" for number in range(count)]
    frame = pd.DataFrame(X, columns=names).assign(entity=entity, day=day, y=y)
    return frame, new, names, sd


def true_loss(frame, new, names, sd, model, loss, seed):
    """Return the loss of the cross-validated models on new groups with the same covariates."""
    X, y, n = frame[names], frame["y"], len(frame)
    losses = np.empty(n)
    for training, left in KFold(10, shuffle=True, random_state=seed).split(X):
        fitted = model.fit(X.iloc[training], y.iloc[training])
        if loss == "squared":
            off = fitted.predict(X.iloc[left]) - new[left]
            losses[left] = off**2 + np.sum(np.square(sd)) + 1.0
            continue
        chance = fitted.predict_proba(X.iloc[left])[:, 1]
        if loss == "log":
            one, none = -np.log(chance), -np.log1p(-chance)
        else:
            label = fitted.predict(X.iloc[left])
            one, none = label == 0, label == 1
        losses[left] = new[left] * one + (1 - new[left]) * none
    return float(losses.mean())


def run(design, name, loss, options, seed):
    """Return truth, CV, CV_c, and the intervals of both of one sample; None where it was withheld."""
    task = "regression" if loss == "squared" else "classification"
    frame, new, names, sd = draw(design, task, seed)
    model = clone(MODELS[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = b3.cvc(
            model,
            frame,
            target="y",
            groups=["entity", "day"],
            loss=loss,
            seed=seed,
            progress=False,
            **options,
        )
        truth = true_loss(frame, new, names, sd, model, loss, seed)
    if report.cvc is None:
        return None
    return truth, report.cv, report.cvc, *report.interval, *report.bias_interval, report.grouped


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    print(
        "design | model, loss | truth | CV | CV_c | grouped | bias | correction | interval holds | withheld"
    )
    for design in DESIGNS:
        for name, loss, options in CASES:
            seeds = range(chosen.seed, chosen.seed + chosen.samples)
            found = joblib.Parallel(chosen.jobs)(
                joblib.delayed(run)(design, name, loss, options, seed) for seed in seeds
            )
            kept = np.array([row for row in found if row is not None])
            truth, cv, cvc, low, high, _, _, grouped = kept.T
            target, count = truth.mean(), len(kept)
            means = [
                f"{column.mean():.4f}({column.std(ddof=1) / np.sqrt(count):.4f})"
                for column in (truth, cv, cvc, grouped, truth - cv, cvc - cv)
            ]
            held = np.mean((low <= target) & (target <= high))
            print(
                f"{design} | {name}, {loss} | {' | '.join(means)} | "
                f"{held:.1%} | {len(found) - count}",
                flush=True,
            )


if __name__ == "__main__":
    main()
