"""Bias, error and coverage of the estimators on simulated loss curves whose e_0 is known.

Sixteen truths, each with noise like that of real refits: a refit's loss has standard deviation
0.044 (a classifier scored on a hundred rows), or 60% of its mean for the regression losses.
Standard errors are estimated, as a user must. Every method has the same uniform grid of 20 levels,
and the default also its own levels.

    python benchmarks/estimator_study.py --repeats 100 > study.md
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from joblib import Parallel, delayed

from mlflow_b3 import LossCurve, estimate, plan_levels

Truth = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Scenario:
    """A truth b(p), its n', the spread of single refits, and whether its shape is in the class."""

    truth: Truth
    n_train: int = 100
    relative_noise: bool = False
    in_class: bool = True
    validation_rows: int | None = None


SCENARIOS = {
    "fast exponential": Scenario(lambda p: 0.2 + 0.15 * np.exp(-12 * p)),
    "slow exponential": Scenario(lambda p: 0.2 + 0.1 * np.exp(-2.5 * p)),
    "power law": Scenario(lambda p: 0.15 + 0.2 * (1 + 30 * p) ** -0.7),
    "linear": Scenario(lambda p: 0.3 - 0.09 * p),
    "constant": Scenario(lambda p: 0.3 + 0 * p),
    "kinked": Scenario(lambda p: 0.35 - 0.5 * np.minimum(p, 0.25)),
    "parabola": Scenario(lambda p: 0.25 + 0.12 * (1 - p) ** 2),
    "two speeds": Scenario(lambda p: 0.2 + 0.03 * np.exp(-20 * p) + 0.08 * np.exp(-3 * p)),
    "strongly convex, n' = 500": Scenario(lambda p: 0.2 + 0.3 * (1 - 0.04 * p) ** 500, 500),
    "regression, e0 = 31": Scenario(
        lambda p: 1 + 30 * (1 - 0.65 * p) ** 15, 15, relative_noise=True
    ),
    "regression, e0 = 8.3": Scenario(
        lambda p: 0.3 + 8 * (1 - 0.3 * p) ** 15, 15, relative_noise=True
    ),
    "tiny validation fold": Scenario(lambda p: 0.2 + 0.15 * (1 - p) ** 6, validation_rows=20),
    "slightly non-monotone": Scenario(lambda p: 0.3 - 0.06 * p + 0.08 * p**2, in_class=False),
    "concave": Scenario(lambda p: 0.3 - 0.05 * p**2, in_class=False),
    "increasing": Scenario(lambda p: 0.28 + 0.03 * p, in_class=False),
    "spike, n' = 500": Scenario(lambda p: 0.2 + 0.27 * (1 - 0.1 * p) ** 500, 500, in_class=False),
}
BUDGETS = (200, 1000, 5000)
METHODS = {
    "LOCO": None,
    "basis 2": {"method": "basis", "order": 2},
    "basis 7": {"method": "basis", "order": 7},
    "T4+mono": {"method": "trend4+mono"},
    "default": {"method": "auto"},
}
SLOW = ("T4+mono",)


def measure(scenario: Scenario, p0: float, injected, fits, rng) -> LossCurve:
    """Simulate the refits of one audit."""
    injected, fits = np.asarray(injected, float), np.asarray(fits, float)
    mean = scenario.truth(p0 + injected * (1 - p0))
    spread = 0.6 * mean if scenario.relative_noise else np.full(len(mean), 0.044)
    loss = mean + spread / np.sqrt(fits) * rng.standard_normal(len(mean))
    freedom = np.maximum(fits - 1, 1)
    stderr = spread / np.sqrt(fits) * np.sqrt(rng.chisquare(freedom) / freedom)
    extra = {}
    if scenario.validation_rows:
        rows = scenario.validation_rows
        # rows differ in how hard they are, and in how much leakage helps them
        hardness = 0.25 * rng.standard_normal(rows)[:, None]
        gain = np.exp(0.5 * rng.standard_normal(rows) - 0.125)[:, None]
        floor = scenario.truth(np.array(1.0))
        by_row = hardness + gain * (mean - floor) + floor
        loss = loss + by_row.mean(axis=0) - mean
        extra = {
            "covariance": np.cov(by_row.T) / rows,
            "degrees_of_freedom": rows - 1,
        }
    return LossCurve(injected=injected, loss=loss, stderr=stderr, n_train=scenario.n_train, **extra)


def one_run(name: str, budget: int, design: str, p0: float, seed: int, methods) -> dict:
    scenario = SCENARIOS[name]
    rng = np.random.default_rng([seed, budget, list(SCENARIOS).index(name)])
    levels = 20 if design == "uniform" else 6
    plan = plan_levels(budget, p0, levels=levels, design=design)
    curve = measure(scenario, p0, plan.injected, plan.fits, rng)
    truth = float(scenario.truth(np.array(0.0)))
    bound = None if scenario.relative_noise else 1.0
    found = {}
    for method in methods:
        if method == "LOCO":
            error = curve.loss[0] - truth
            reach = 1.96 * np.hypot(
                curve.stderr[0], 0 if curve.covariance is None else curve.covariance[0][0] ** 0.5
            )
            found[method] = (error, abs(error) <= reach, 2 * reach)
            continue
        result = estimate(curve, p0, bound=bound, **METHODS[method])
        low, high = result.interval
        found[method] = (result.e0 - truth, low <= truth <= high, high - low)
    return found


def study(budget: int, design: str, p0: float, repeats: int, methods, n_jobs: int) -> dict:
    """Return {scenario: {method: (bias, rmse, coverage, width)}}."""
    tasks = [
        (name, seed, [m for m in methods if m not in SLOW or seed < repeats // 5])
        for name in SCENARIOS
        for seed in range(repeats)
    ]
    runs = Parallel(n_jobs=n_jobs)(
        delayed(one_run)(name, budget, design, p0, seed, chosen) for name, seed, chosen in tasks
    )
    table: dict = {name: {} for name in SCENARIOS}
    for name in SCENARIOS:
        mine = [run for (n, _, _), run in zip(tasks, runs, strict=True) if n == name]
        for method in methods:
            rows = np.array([run[method] for run in mine if method in run], float)
            table[name][method] = (
                rows[:, 0].mean(),
                np.sqrt((rows[:, 0] ** 2).mean()),
                rows[:, 1].mean(),
                np.median(rows[:, 2]),
            )
    return table


def digits(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 0.9995 else f"{value:.2f}"


def print_study(repeats: int, p0: float, n_jobs: int) -> None:
    for budget in BUDGETS:
        uniform = study(budget, "uniform", p0, repeats, tuple(METHODS), n_jobs)
        own = study(budget, "optimal", p0, repeats, ("LOCO", "default"), n_jobs)
        print(f"\n### {budget} refits, p0 = {p0}\n")
        print(
            "Bias / RMSE on the uniform grid; the last two columns on the default's own levels:\n"
        )
        names = [*METHODS, "LOCO, own levels", "default, own levels"]
        print("| truth | e0 | " + " | ".join(names) + " |")
        print("|---|---|" + "---|" * len(names))
        ratios: dict = {name: [] for name in names}
        for name, scenario in SCENARIOS.items():
            cells = [uniform[name][m] for m in METHODS] + [own[name]["LOCO"], own[name]["default"]]
            for column, cell in zip(names, cells, strict=True):
                ratios[column].append(cell[1] / uniform[name]["LOCO"][1])
            text = [f"{digits(bias)} / {digits(rmse)}" for bias, rmse, _, _ in cells]
            e0 = float(scenario.truth(np.array(0.0)))
            print(f"| {name} | {e0:.3g} | " + " | ".join(text) + " |")
        means = [f"{np.exp(np.mean(np.log(ratios[name]))):.2f}" for name in names]
        print("| *RMSE relative to LOCO, geometric mean* | | " + " | ".join(means) + " |")
        print("\nCoverage of the 95% interval, and its median width:\n")
        print("| truth | in the stated class | default, uniform grid | default, own levels |")
        print("|---|---|---|---|")
        for name, scenario in SCENARIOS.items():
            cells = [uniform[name]["default"], own[name]["default"]]
            text = [f"{100 * cover:.0f}% ({digits(width)})" for _, _, cover, width in cells]
            inside = "yes" if scenario.in_class else "no"
            print(f"| {name} | {inside} | " + " | ".join(text) + " |")


def print_savings(repeats: int, p0: float, n_jobs: int, reference: int = 1000) -> None:
    """Print how many refits the default levels need for the error of a uniform grid."""
    ladder = (30, 50, 80, 120, 180, 270, 400, 600, 1000, 1500)
    uniform = study(reference, "uniform", p0, repeats, ("default",), n_jobs)
    steps = [study(n, "optimal", p0, repeats, ("default",), n_jobs) for n in ladder]
    print(f"\n### Refits for the RMSE that a uniform grid has with {reference} refits\n")
    print("| truth | RMSE of the uniform grid | refits with the default levels | share |")
    print("|---|---|---|---|")
    shares = []
    for name in SCENARIOS:
        goal = uniform[name]["default"][1]
        curve = np.array([step[name]["default"][1] for step in steps])
        reached = np.flatnonzero(curve <= goal)
        if not len(reached):
            needed = float(ladder[-1])
        elif reached[0] == 0:
            needed = float(ladder[0])
        else:
            j = int(reached[0])
            part = np.log(curve[j - 1] / goal) / np.log(curve[j - 1] / curve[j])
            needed = float(np.exp(np.interp(part, [0, 1], np.log([ladder[j - 1], ladder[j]]))))
        shares.append(needed / reference)
        sign = ">" if not len(reached) else "≤" if reached[0] == 0 else ""
        print(f"| {name} | {digits(goal)} | {sign}{needed:.0f} | {needed / reference:.2f} |")
    print(
        f"| *mean; geometric mean* | | | {np.mean(shares):.2f}; "
        f"{np.exp(np.mean(np.log(shares))):.2f} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--p0", type=float, default=0.1)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--only", choices=("study", "savings"))
    arguments = parser.parse_args()
    if arguments.only != "savings":
        print_study(arguments.repeats, arguments.p0, arguments.n_jobs)
    if arguments.only != "study":
        print_savings(arguments.repeats, arguments.p0, arguments.n_jobs)
