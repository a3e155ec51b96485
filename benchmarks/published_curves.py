"""Errors on the loss curves that the authors of B3 measured and published.

    python benchmarks/published_curves.py path/to/published

The folder holds heart.npz, census.npz and synthetic.npz with `p`, `p0`, `loss` (levels × trials),
`n_train` and `true_e0`. Every paper estimator is hand-tuned per data set as its authors did; the
default has one setting for all. The standard deviation over trials is the standard error of a level;
"no stderr" leaves the noise to be judged by the curve.
"""

import argparse
from pathlib import Path

import numpy as np

from mlflow_b3 import LossCurve, estimate

TUNED = {
    "heart": {"order": 7, "trend": 10.0, "sketch": 0.1, "groups": 7},
    "census": {"order": 7, "trend": 10.0, "sketch": 0.1, "groups": 7},
    "synthetic": {"order": 7, "trend": 0.1, "sketch": 0.01, "groups": 10},
}
#: The best published estimator on each data set, as the curves' README has it.
BEST = {"heart": 0.0140, "census": 0.0022, "synthetic": 4.35}


def methods(tuned: dict) -> dict:
    return {
        "basis 2": {"method": "basis", "order": 2},
        "basis 7": {"method": "basis", "order": tuned["order"]},
        "T4+mono, tuned": {"method": "trend4+mono", "smoothing": tuned["trend"]},
        "sketch, tuned": {
            "method": "sketch",
            "smoothing": tuned["sketch"],
            "groups": tuned["groups"],
        },
        "default": {"method": "auto"},
        "default, no stderr": {"method": "auto"},
    }


def errors(path: Path) -> dict[str, np.ndarray]:
    data = np.load(path)
    p0, truth = float(data["p0"]), float(data["true_e0"])
    injected = np.clip((data["p"] - p0) / (1 - p0), 0, 1)
    stderr = data["loss"].std(axis=1, ddof=1)
    found: dict[str, list[float]] = {"LOCO": [], "coverage": []}
    for loss in data["loss"].T:
        found["LOCO"].append(loss[0] - truth)
        for name, options in methods(TUNED[path.stem]).items():
            curve = LossCurve(
                injected=injected,
                loss=loss,
                stderr=None if name.endswith("no stderr") else stderr,
                n_train=int(data["n_train"]),
            )
            result = estimate(curve, p0, **options)
            found.setdefault(name, []).append(result.e0 - truth)
            if name == "default":
                low, high = result.interval
                found["coverage"].append(float(low <= truth <= high))
    return {name: np.array(values) for name, values in found.items()}


def main(folder: Path) -> None:
    found = {name: errors(folder / f"{name}.npz") for name in BEST}
    rows = [name for name in found["heart"] if name != "coverage"]
    print(
        "| mean absolute error of e0 (ratio to the best of the papers) | " + " | ".join(BEST),
        end="",
    )
    print(" | geometric mean of the ratios |\n|---|" + "---|" * (len(BEST) + 1))
    print("| best of the papers, hand-tuned | " + " | ".join(map(str, BEST.values())) + " | 1 |")
    for row in rows:
        mean = {name: float(np.abs(found[name][row]).mean()) for name in BEST}
        ratio = {name: mean[name] / BEST[name] for name in BEST}
        cells = [f"{mean[name]:.3g} ({ratio[name]:.2f})" for name in BEST]
        total = float(np.exp(np.mean(np.log(list(ratio.values())))))
        print(f"| {row} | " + " | ".join(cells) + f" | {total:.2f} |")
    cover = ", ".join(f"{name} {found[name]['coverage'].mean():.0%}" for name in BEST)
    print(f"\nCoverage of the default's 95% interval over the ten trials: {cover}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
