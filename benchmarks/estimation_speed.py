"""Time of estimates and sensitivity curves, as ratios to one CVXPY T4+mono solution.

python benchmarks/estimation_speed.py
"""

import time
from collections.abc import Callable

import numpy as np

from mlflow_b3 import LossCurve, estimate, search_p0, sensitivity

SHARES = np.linspace(0, 0.5, 500)


def seconds(function: Callable[[], object], repeats: int = 7) -> float:
    """Return the least processor time of several calls; the first one compiles and fills caches."""
    function()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        function()
        times.append(time.process_time() - started)
    return min(times)


def curve_of(n_train: int, levels: int) -> LossCurve:
    rng = np.random.default_rng(0)
    injected = np.linspace(0, 1, levels)
    mean = 0.2 + 0.15 * np.exp(-12 * (0.1 + 0.9 * injected))
    return LossCurve(
        injected=injected,
        loss=mean + 0.002 * rng.standard_normal(levels),
        stderr=np.full(levels, 0.002),
        n_train=n_train,
    )


def main() -> None:
    small, large = curve_of(100, 200), curve_of(1_000_000, 200)
    unit = seconds(lambda: estimate(small, 0.1, "trend4+mono"), repeats=5)
    print(f"One T4+mono solution at n' = 100 and 200 levels: {1000 * unit:.0f} ms.\n")
    print("| | n' = 100 | n' = 1,000,000 |\n|---|---|---|")
    tasks: dict[str, Callable[[LossCurve], object]] = {
        "one estimate with its interval": lambda curve: estimate(curve, 0.1, bound=1.0),
        "sensitivity curve, 500 values of p0, no band": lambda curve: sensitivity(
            curve, SHARES, bound=1.0, band=False
        ),
        "the same with its band": lambda curve: sensitivity(curve, SHARES, bound=1.0),
        "search for p0, 100 candidates": lambda curve: search_p0(curve, bound=1.0),
        "basis 7": lambda curve: estimate(curve, 0.1, "basis", order=7),
        "sketch": lambda curve: estimate(curve, 0.1, "sketch"),
    }
    for name, task in tasks.items():
        ratios = [seconds(lambda c=c, t=task: t(c)) / unit for c in (small, large)]
        print(f"| {name} | {ratios[0]:.3f} | {ratios[1]:.3f} |")
    print("\nTimes as multiples of that solution.")


if __name__ == "__main__":
    main()
