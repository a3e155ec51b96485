"""How often the interval of `mlflow_b3.cvc` holds the loss on new groups, and how much bias is left.

Rows of simulated entities on simulated days, with known effects; covariates are alike within groups,
as in the simulation of Yuval and Rosset (AISTATS 2025). The truth is the mean over all samples of the
loss of the cross-validated models at the same covariates and with new effects, which is what CV_c
estimates. `python benchmarks/cvc_coverage.py --samples 200 --jobs 2`

`--cases classes` has three classes, and `--cases auc` the area under the ROC curve, with a mean over folds.
`--more 300` adds samples in which only truth and CV are computed, for a more precise bias.
"""

import argparse
import warnings

import joblib
import numpy as np
import pandas as pd
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.correlated.targets import smoothed_logistic, smoothed_softmax

#: Entities, days, rows of each entity on each day, covariates, standard deviations of the effects.
DESIGNS = {
    "10 entities, 5 days": (10, 5, 2, 10, (1.0, 0.5)),
    "40 entities, 10 days": (40, 10, 1, 5, (1.0, 0.5)),
    "40 entities, 10 days, no effects": (40, 10, 1, 5, (0.0, 0.0)),
    "20 entities, 5 days": (20, 5, 1, 10, (1.0, 0.5)),
}
REFITS = {"draws": 200, "budget": 230}
CASES = {
    "losses": [
        ("logistic", "log", {}),
        ("logistic", "zero_one", {}),
        ("neighbours", "zero_one", REFITS),
        ("ridge", "squared", {}),
    ],
    "classes": [
        ("logistic", "log", REFITS),
        ("logistic", "zero_one", REFITS),
        ("neighbours", "zero_one", REFITS),
    ],
    "auc": [("logistic", "roc_auc", REFITS), ("neighbours", "roc_auc", REFITS)],
}
#: Coefficients of three classes, and draws of targets for the true AUC of a sample.
COEFFICIENTS = 0.6 * np.random.default_rng(77).normal(size=(10, 3))
TARGETS = 50
FOLDS = {"roc_auc": 5}
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
    names = [f"x{number}" for number in range(count)]
    frame = pd.DataFrame(X, columns=names).assign(entity=entity, day=day)
    if task == "classes":
        f = X @ COEFFICIENTS[:count]
        effects = (
            sd[0] * rng.normal(size=(entities, 3))[entity] + sd[1] * rng.normal(size=(days, 3))[day]
        ) / np.sqrt(2)
        below = softmax(f + effects, axis=1).cumsum(axis=1)[:, :-1]
        y = (rng.random(len(f))[:, None] >= below).sum(axis=1)
        return frame.assign(y=y), smoothed_softmax(f, float(np.hypot(*sd))), names, sd
    f = X.sum(axis=1) / 2
    effects = sd[0] * rng.normal(size=entities)[entity] + sd[1] * rng.normal(size=days)[day]
    if task == "regression":
        y = f + effects + rng.normal(size=len(f))
        new = f
    else:
        y = (rng.random(len(f)) < expit(f + effects)).astype(int)
        new = smoothed_logistic(f, np.hypot(*sd))
        frame = frame.assign(f=f)
    return frame.assign(y=y), new, names, sd


def true_loss(frame, new, names, sd, model, loss, seed):
    """Return the loss of the cross-validated models on new groups, and on the rows themselves.

    Covariates are the same. The AUC is subtracted from 1, so less is better.
    """
    X, y, n = frame[names], frame["y"].to_numpy(), len(frame)
    losses, own = np.full(n, np.nan), np.full(n, np.nan)
    for training, left in KFold(FOLDS.get(loss, 10), shuffle=True, random_state=seed).split(X):
        fitted = model.fit(X.iloc[training], y[training])
        if loss == "squared":
            off = fitted.predict(X.iloc[left]) - new[left]
            losses[left] = off**2 + np.sum(np.square(sd)) + 1.0
            own[left] = (fitted.predict(X.iloc[left]) - y[left]) ** 2
            continue
        chance = np.zeros((len(left), max(2, new.ndim and new[0].size)))
        chance[:, fitted.classes_] = fitted.predict_proba(X.iloc[left])
        if loss == "roc_auc":
            score = chance[:, 1]
            losses[left] = true_rank_loss(frame.iloc[left], score, sd, seed)
            if 0 < y[left].sum() < len(left):
                own[left] = 1 - roc_auc_score(y[left], score)
            continue
        if loss == "log":
            by_class = -np.log(np.clip(chance, 1e-15, 1))
        else:
            label = fitted.predict(X.iloc[left])
            by_class = (label[:, None] != np.arange(chance.shape[1])).astype(float)
        shares = new[left] if new.ndim == 2 else np.column_stack([1 - new[left], new[left]])
        losses[left] = (shares * by_class).sum(axis=1)
        own[left] = by_class[np.arange(len(left)), y[left]]
    return float(losses.mean()), float(own.mean())


def true_rank_loss(rows, score, sd, seed):
    """Return the mean of 1 - AUC over targets with new effects that have both classes."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(911,)))
    shape = (TARGETS, int(rows["entity"].max()) + 1), (TARGETS, int(rows["day"].max()) + 1)
    effects = sd[0] * rng.normal(size=shape[0])[:, rows["entity"]]
    effects = effects + sd[1] * rng.normal(size=shape[1])[:, rows["day"]]
    y = (rng.random(effects.shape) < expit(rows["f"].to_numpy() + effects)).astype(float)
    y = y[(y.min(axis=1) == 0) & (y.max(axis=1) == 1)]
    wrong = np.less.outer(score, score) + np.equal.outer(score, score) / 2
    return float(
        np.mean(((y @ wrong) * (1 - y)).sum(axis=1) / (y.sum(axis=1) * (1 - y).sum(axis=1)))
    )


def task_of(case, loss):
    """Return what the targets are."""
    return (
        "classes" if case == "classes" else "regression" if loss == "squared" else "classification"
    )


def run_truth(design, case, name, loss, seed):
    """Return truth and CV of one sample."""
    frame, new, names, sd = draw(design, task_of(case, loss), seed)
    return true_loss(frame, new, names, sd, clone(MODELS[name]), loss, seed)


def run(design, case, name, loss, options, seed):
    """Return truth, CV, CV_c, and the intervals of both of one sample; None where it was withheld."""
    frame, new, names, sd = draw(design, task_of(case, loss), seed)
    frame = frame.drop(columns="f", errors="ignore")
    model = clone(MODELS[name])
    scored = {"scoring" if loss == "roc_auc" else "loss": loss}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = b3.cvc(
            model,
            frame,
            target="y",
            groups=["entity", "day"],
            folds=FOLDS.get(loss),
            seed=seed,
            progress=False,
            **scored,
            **options,
        ).as_losses
        frame, *_ = draw(design, task_of(case, loss), seed)
        truth, _ = true_loss(frame, new, names, sd, model, loss, seed)
    if report.cvc is None:
        return None
    return truth, report.cv, report.cvc, *report.interval, *report.bias_interval, report.grouped


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", choices=[*CASES], default="losses")
    parser.add_argument("--designs", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--more", type=int, default=0)
    chosen = parser.parse_args()
    print(
        "design | model, loss | truth | CV | CV_c | grouped | bias | correction | interval holds | withheld"
    )
    for design in [[*DESIGNS][place] for place in chosen.designs]:
        for name, loss, options in CASES[chosen.cases]:
            case = chosen.cases
            seeds = range(chosen.seed, chosen.seed + chosen.samples)
            found = joblib.Parallel(chosen.jobs)(
                joblib.delayed(run)(design, case, name, loss, options, seed) for seed in seeds
            )
            kept = np.array([row for row in found if row is not None])
            truth, cv, cvc, low, high, _, _, grouped = kept.T
            target, count = truth.mean(), len(kept)
            means = [
                f"{column.mean():.4f}({column.std(ddof=1) / np.sqrt(count):.4f})"
                for column in (truth, cv, cvc, grouped, truth - cv, cvc - cv)
            ]
            if chosen.more:
                more = range(10_000 + chosen.seed, 10_000 + chosen.seed + chosen.more)
                pairs = np.array(
                    joblib.Parallel(chosen.jobs)(
                        joblib.delayed(run_truth)(design, case, name, loss, seed) for seed in more
                    )
                )
                pairs = pairs[np.isfinite(pairs).all(axis=1)]
                bias = pairs[:, 0] - pairs[:, 1]
                target = float(np.concatenate([truth, pairs[:, 0]]).mean())
                error = bias.std(ddof=1) / np.sqrt(len(bias))
                means += [f"bias in {len(bias)} more samples {bias.mean():.4f}({error:.4f})"]
            held = np.mean((low <= target) & (target <= high))
            print(
                f"{design} | {name}, {loss} | {' | '.join(means)} | "
                f"{held:.1%} | {len(found) - count}",
                flush=True,
            )


if __name__ == "__main__":
    main()
