"""The fast engines of `mlflow_b3.cvc` against refits: how far they agree, and how much time they save.

    python benchmarks/cvc_engines.py --samples 10

All engines are given the same tables, working models and seeds, so that what differs is the engine. Times are of
whole calls, cross-validation and the working model included, as ratios within this run.
"""

import argparse
import time
import warnings

import numpy as np
from cvc_coverage import draw
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier

import mlflow_b3 as b3
from mlflow_b3.correlated import MixedLogistic

DESIGN = "10 entities, 5 days"
GROUPS = ["entity", "day"]
CASES = [
    (LogisticRegression(), "log", ("full", "fast")),
    (LogisticRegression(), "zero_one", ("full", "fast")),
    (Ridge(1.0), "squared", ("full", "fast")),
    (MixedLogistic(groups=GROUPS), "log", ("full", "joint")),
    (
        MLPClassifier((8,), max_iter=200, learning_rate_init=0.01),
        "log",
        ("full", "hot", "last_layer"),
    ),
]


def compare(model, loss, engines, samples):
    """Return w and the seconds of each engine, a row for each sample."""
    found = []
    for seed in range(samples):
        task = "regression" if loss == "squared" else "classification"
        frame, _, names, _ = draw(DESIGN, task, seed)
        fitted = model.fit(frame[names + (GROUPS if hasattr(model, "groups") else [])], frame["y"])
        row, world = [], "score"
        for engine in engines:
            started = time.perf_counter()
            report = b3.cvc(
                fitted,
                frame,
                target="y",
                groups=GROUPS,
                loss=loss,
                engine=engine,
                working=world,
                seed=seed,
                budget=420 if engine in ("full", "hot", "last_layer") else None,
                progress=False,
            )
            row += [report.bias, time.perf_counter() - started]
            world = report  # the same for all engines
        found.append(row)
    return np.array(found)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10)
    samples = parser.parse_args().samples
    print("model, loss | engine | w (SE) | less that of refits (SE) | time of refits / its time")
    for model, loss, engines in CASES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = compare(model, loss, engines, samples)
        for place, engine in enumerate(engines):
            bias, seconds = found[:, 2 * place], found[:, 2 * place + 1]
            apart = bias - found[:, 0]
            root = np.sqrt(samples)
            print(
                f"{type(model).__name__}, {loss} | {engine} | "
                f"{bias.mean():.4f}({bias.std(ddof=1) / root:.4f}) | "
                f"{apart.mean():+.4f}({apart.std(ddof=1) / root:.4f}) | "
                f"{found[:, 1].sum() / seconds.sum():.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
