"""Errors of all estimators on the loss curves that the authors of B3 measured themselves."""

from pathlib import Path
from typing import Any

import numpy as np
from experiment import MissingDataError, Outcome, Request, Table, with_error

from mlflow_b3 import LossCurve, estimate

TUNED = {
    "heart": {"trend": 10.0, "sketch": 0.1, "groups": 7},
    "census": {"trend": 10.0, "sketch": 0.1, "groups": 7},
    "synthetic": {"trend": 0.1, "sketch": 0.01, "groups": 10},
}
#: Every paper estimator hand-tuned per data set as its authors did; the best of them is the reference.
PUBLISHED: dict[str, dict[str, float]] = {
    "heart": {"LOCO": 0.0446, "T4+mono": 0.0185, "Basis(7)": 0.0140, "Sketch": 0.0269},
    "census": {"LOCO": 0.0062, "T4+mono": 0.0033, "Basis(7)": 0.0041, "Sketch": 0.0022},
    "synthetic": {"LOCO": 25.27, "T4+mono": 5.95, "Basis(7)": 4.35, "Sketch": 4.72},
}


def methods(tuned: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        "Basis(2)": {"method": "basis", "order": 2},
        "Basis(7)": {"method": "basis", "order": 7},
        "T4+mono": {"method": "trend4+mono", "smoothing": tuned["trend"]},
        "Sketch": {"method": "sketch", "smoothing": tuned["sketch"], "groups": tuned["groups"]},
        "default": {"method": "auto"},
        "default, no stderr": {"method": "auto"},
    }


def run(request: Request) -> Outcome:
    if request.data is None or not all((request.data / f"{name}.npz").exists() for name in TUNED):
        raise MissingDataError(
            "this experiment needs a folder with heart.npz, census.npz and synthetic.npz, the authors' curves: arrays "
            "`p`, `p0`, `loss` (levels × trials), `n_train` and `true_e0`, from the files of their MATLAB program. "
            "Name it: -P data=FOLDER."
        )
    trials = 2 if request.quick else None
    names = list(request.steps(list(TUNED), "published curves"))
    found = {name: errors(request.data / f"{name}.npz", trials) for name in names}
    rows = []
    for row in [each for each in found[names[0]] if each != "coverage"]:
        cells = [row]
        for name in names:
            size, best = np.abs(found[name][row]), _best(name)
            told = f"{PUBLISHED[name][row]:.3g}" if row in PUBLISHED[name] else "–"
            cells += [told, with_error(size), f"{size.mean() / best:.2f}"]
        rows.append(cells)
    cover = ", ".join(f"{name} {found[name]['coverage'].mean():.0%}" for name in names)
    columns = [part for name in names for part in (f"{name}: published", "ours", "over the best")]
    table = Table(
        title="mean absolute error of e0 on the authors' curves",
        columns=["estimator", *columns],
        rows=rows,
        note="The standard deviation over trials is the standard error of a level; “no stderr” leaves the noise to be "
        f"judged by the curve. Coverage of the default's 95% interval: {cover}.",
    )
    metrics = {
        f"{name}/{row.replace('+', '_').replace('(', '').replace(')', '').replace(', ', '_').replace(' ', '_')}": float(
            np.abs(values).mean()
        )
        for name in names
        for row, values in found[name].items()
    }
    return Outcome(tables=[table], metrics=metrics)


def _best(name: str) -> float:
    return min(PUBLISHED[name].values())


def errors(path: Path, trials: int | None = None) -> dict[str, np.ndarray]:
    """Return estimate - truth of each estimator, one value per trial."""
    data = np.load(path)
    p0, truth = float(data["p0"]), float(data["true_e0"])
    injected = np.clip((data["p"] - p0) / (1 - p0), 0, 1)
    stderr = data["loss"].std(axis=1, ddof=1)
    found: dict[str, list[float]] = {"LOCO": [], "coverage": []}
    for loss in data["loss"].T[:trials]:
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
