"""Seconds of one estimate: against n' (AISTATS 2019, figure 1) and by data set (table 1)."""

import time
from typing import Any

import numpy as np
from experiment import Outcome, Request, Table
from pictures import draw_times

import mlflow_b3 as b3

P0 = 0.1
SIZES = [10, 30, 100, 300, 1000, 10**4, 10**5, 10**6]
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "T4+mono": ("trend4+mono", {"smoothing": 10.0}),
    "Sketch": ("sketch", {"groups": 7, "smoothing": 0.1}),
    "Basis(7)": ("basis", {"order": 7}),
    "default": ("auto", {}),
}
#: n', levels, λ of T4+mono, order; then table 1 of the paper: T4+mono, Sketch, Basis.
DATA_SETS = {
    "census": ((100, 200, 10.0, 7), (0.5662, 0.4059, 7.822e-5)),
    "heart": ((100, 200, 10.0, 7), (0.5847, 0.4105, 6.582e-5)),
    "parkinson": ((100, 20, 1000.0, 2), (0.6194, 0.4338, 2.043e-5)),
    "dota2": ((1000, 20, 1000.0, 2), (1.0965, 0.4678, 1.946e-5)),
}


def run(request: Request) -> Outcome:
    largest = 100 if request.quick else SIZES[-1]
    sizes = [size for size in SIZES if size <= largest]
    for method, options in METHODS.values():  # imports and caches are not timed
        time_estimate(5, 10, method, options)
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for size in request.steps(sizes, "times: n'"):
        for name, (method, options) in METHODS.items():
            seconds[name].append(time_estimate(size, 10, method, options))
    sizes = sizes[: len(seconds["default"])]
    figure_1 = Table(
        title="seconds of one estimate with its interval, 10 levels (figure 1)",
        columns=["n'", *METHODS],
        rows=[
            [f"{size:,}", *map(_shown, row)]
            for size, row in zip(sizes, zip(*seconds.values(), strict=True), strict=True)
        ],
        note="CPU time, the best of three; – is refused. The paper shows a figure only: T4+mono and Sketch fail "
        "for the largest n', Basis does not.",
    )
    rows, metrics = [], {}
    for name in request.steps(
        [n for n in DATA_SETS if not (request.quick and n == "dota2")], "times: data sets"
    ):
        (n_train, levels, trend, order), published = DATA_SETS[name]
        methods = {
            "T4+mono": ("trend4+mono", {"smoothing": trend}),
            "Sketch": METHODS["Sketch"],
            "Basis": ("basis", {"order": order}),
        }
        ours = {key: time_estimate(n_train, levels, *method) for key, method in methods.items()}
        metrics |= {f"{name}/{key.replace('+', '_')}/seconds": v for key, v in ours.items()}
        pairs = zip(published, ours.values(), strict=True)
        rows.append([name, *(f"{theirs:.2g} / {_shown(own)}" for theirs, own in pairs)])
    table_1 = Table(
        title="seconds by data set, published / ours (table 1)",
        columns=["data set", "T4+mono", "Sketch", "Basis"],
        rows=rows,
        note="Ours is an estimate with its interval and all checks, the paper's the solution of the system alone, "
        "on another machine: compare rows and columns, not digits.",
    )
    for name, values in seconds.items():
        for size, value in zip(sizes, values, strict=True):
            if np.isfinite(value):
                metrics[f"{name.replace('+', '_').replace('(', '').replace(')', '')}/{size}"] = (
                    value
                )
    return Outcome(
        tables=[figure_1, table_1],
        metrics=metrics,
        pictures={"published-times": draw_times(sizes, seconds)},
    )


def time_estimate(n_train: int, levels: int, method: str, options: dict[str, Any]) -> float:
    """Return the CPU seconds of `estimate` for a smooth curve with noise; NaN where it is refused."""
    injected = np.linspace(0, 1, levels)
    loss = 0.2 + 0.1 * np.exp(-4 * injected) + 0.001 * np.cos(40 * injected)
    curve = b3.LossCurve(injected=injected, loss=loss, n_train=n_train)
    taken = []
    for _ in range(3):
        start = time.process_time()
        try:
            b3.estimate(curve, P0, method=method, **options)
        except b3.InputError:
            return float("nan")
        taken.append(time.process_time() - start)
        if taken[-1] > 1:  # its noise is small enough
            break
    return min(taken)


def _shown(seconds: float) -> str:
    return "–" if np.isnan(seconds) else f"{seconds:.2g}"
