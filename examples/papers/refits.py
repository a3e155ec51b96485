"""How far an estimate of e0 is off, by the number of refits at each level of leakage.

In the oracle setting a trial is nothing but fresh resamples of the same rows. All refits of a level can therefore be
cut into curves of 50 refits a level, of 200, and so on, with no refit in two curves of the same size.
"""

from dataclasses import replace
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from experiment import Outcome, Request, Table, with_error
from matplotlib.figure import Figure
from pictures import COLOURS, MARKERS
from problem import Array, Problem
from protocol import P0, Sampler, errors_of, estimate_all

import mlflow_b3 as b3

#: How many refits a level are measured at a time, which is the least that a budget buys.
CHUNK = 1000
#: More curves of one size than this say nothing new, and an estimate by T4+mono takes a while.
MOST_CURVES = 100
SHOWN = ("LOCO", "T4+mono", "Basis(7)", "Sketch", "default")


def by_refits(
    problem: Problem, request: Request, *, chunks: int, sizes: tuple[int, ...], published: int
) -> Outcome:
    """Return the errors of e0 for curves of these sizes; the papers had `published` refits a level."""
    if request.quick:
        problem, chunks = replace(problem, levels=40), 2
    sampler = sampler_of(problem, [request.seed, 1])
    zero = sampler.losses(20_000 if request.quick else 100_000, count=0)
    e0 = float(zero.mean())
    seeds = [[request.seed, 3, number] for number in range(chunks)]
    measured = request.trials(
        partial(measure, problem), seeds, f"{problem.name}: {CHUNK} refits a level"
    )
    losses = np.concatenate(measured, axis=1)
    found = {
        size: errors_by_size(problem, losses, size, e0) for size in sizes if size <= losses.shape[1]
    }
    rows = [
        [
            f"{size:,}",
            len(errors["LOCO"]),
            *(with_error(np.abs(errors[name])) for name in SHOWN),
            with_error(errors["Basis(7)"]),
        ]
        for size, errors in found.items()
    ]
    told = [
        f"{problem.published[name]:.3g}" if name in problem.published else "–" for name in SHOWN
    ]
    rows.append([f"published: {published:,}", 10, *told, "–"])
    table = Table(
        title=f"{problem.name}: mean absolute error of e0 by refits a level, from the true clusters",
        columns=["refits a level", "curves", *SHOWN, "bias of Basis(7)"],
        rows=rows,
        note=f"e0 = {e0:.4f} ± {zero.std(ddof=1) / np.sqrt(len(zero)):.2g} (the authors' {problem.published['e0']:.4g}); "
        f"{problem.levels} levels, {losses.shape[1]:,} refits at each, cut into at most {MOST_CURVES} curves of each size. "
        "Curves of one size share no refit; those of different sizes do. ± is one Monte-Carlo standard error.",
    )
    metrics = {
        f"{size}_refits/{name.replace('+', '_').replace('(', '').replace(')', '')}": float(
            np.abs(errors[name]).mean()
        )
        for size, errors in found.items()
        for name in SHOWN
    }
    picture = draw(problem, found, published)
    return Outcome(
        tables=[table],
        metrics={"e0": e0, **metrics},
        pictures={f"refits-{problem.name}": picture},
    )


def sampler_of(problem: Problem, seed: list[int]) -> Sampler:
    return Sampler(
        problem=problem,
        own=problem.training,
        leaked=problem.validation,
        scored=problem.validation,
        rng=np.random.default_rng(seed),
    )


def measure(problem: Problem, seed: list[int]) -> Array:
    """Return the losses of CHUNK refits at each level, of shape (levels, refits)."""
    sampler = sampler_of(problem, seed)
    shares = P0 + np.linspace(0, 1, problem.levels) * (1 - P0)
    return np.array([sampler.losses(CHUNK, share=share) for share in shares])


def errors_by_size(problem: Problem, losses: Array, size: int, e0: float) -> dict[str, list[float]]:
    """Return estimate - truth of each estimator, for curves of `size` refits a level."""
    found: dict[str, list[float]] = {}
    for first in range(0, losses.shape[1] - size + 1, size)[:MOST_CURVES]:
        part = losses[:, first : first + size]
        curve = b3.LossCurve(
            injected=np.linspace(0, 1, problem.levels),
            loss=part.mean(axis=1),
            stderr=part.std(axis=1, ddof=1) / np.sqrt(size),
            n_train=problem.n_train,
        )
        for name, error in errors_of(curve, estimate_all(problem, curve), e0).items():
            found.setdefault(name, []).append(error)
    return found


def draw(problem: Problem, found: dict[int, dict[str, list[float]]], published: int) -> Figure:
    figure, panel = plt.subplots(figsize=(6.4, 3.9), layout="constrained")
    for name in SHOWN:
        absolute = [np.abs(errors[name]) for errors in found.values()]
        spread = [
            2 * each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else 0.0 for each in absolute
        ]
        style = {"color": COLOURS[name], "marker": MARKERS.get(name, "x")}
        panel.errorbar(
            list(found), [each.mean() for each in absolute], spread, label=name, capsize=2, **style
        )
        if name in problem.published:
            panel.plot(published, problem.published[name], fillstyle="none", markersize=10, **style)
    panel.set_xscale("log")
    panel.set_ylim(bottom=0)
    panel.set_xlabel("refits a level")
    panel.set_ylabel("mean absolute error of e0")
    panel.set_title(f"{problem.name}: ours ± 2 standard errors; large: published", fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=8, frameon=False)
    plt.close(figure)
    return figure
