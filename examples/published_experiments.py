"""Repeat experiments of the B3 papers: errors of e0, recovered loss curves, solution times.

    python examples/published_experiments.py --heart heart.csv --census census.csv

Without data files the synthetic experiment and the timing still run. Two settings are compared. In
"oracle" every resample draws its leaked rows afresh from the true clusters, as the authors' program
did; in "user" one set of rows has leaked, and all that can be sampled is T̂ and V̂. What was found is
in docs/published-experiments.md.
"""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from published_problems import Array, Problem, Rows, make_synthetic, read_problem

import mlflow_b3 as b3

P0 = 0.1
#: The most clean rows of T̂: with all of the census the leaked tenth would be more than all of V.
MOST_CLEAN = 500
BATCH = 50
OWN = "default, own levels"


@dataclass(kw_only=True)
class Outcome:
    """Errors of e0, one per trial, and what else the pictures show."""

    name: str
    e0: float
    leaked: Rows
    curve: Array
    errors: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    recovered: dict[str, list[b3.Estimate]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Draws T' from `own` rows and `leaked` rows, and scores the rows `scored` outside of T'."""

    problem: Problem
    own: Rows
    leaked: Rows
    scored: Rows
    rng: np.random.Generator
    replace: bool = True

    def losses(self, fits: int, *, share: float = 0.0, count: int | None = None) -> Array:
        """Return the mean loss of each refit with a share, or a fixed number, of leaked rows."""
        sizes = [BATCH] * (fits // BATCH) + [fits % BATCH] * (fits % BATCH > 0)
        return np.concatenate([self._batch(size, share, count) for size in sizes])

    def _batch(self, fits: int, share: float, count: int | None) -> Array:
        n_train, X, y = self.problem.n_train, self.problem.X, self.problem.y
        # a number of its own for each refit, as the leaked rows of T̂ fall into T': with n' far below
        # |T̂| a fixed one would be another kind of leakage than the one that is extrapolated
        binomial = self.rng.binomial(n_train, share, fits)
        counts = np.full(fits, count) if count is not None else binomial
        from_leaked = np.arange(n_train) < counts[:, None]
        rows = np.where(from_leaked, self._pick(self.leaked, fits), self._pick(self.own, fits))
        weights = self.problem.fit(X[rows], y[rows])
        losses = self.problem.loss(weights @ X[self.scored].T, y[self.scored])
        fresh = np.ones((fits, len(X)), bool)
        fresh[np.arange(fits)[:, None], rows] = False
        return np.asarray(np.average(losses, axis=1, weights=fresh[:, self.scored]))

    def _pick(self, rows: Rows, fits: int) -> Rows:
        if self.replace:
            return self.rng.choice(rows, (fits, self.problem.n_train))
        shuffled = self.rng.permuted(np.tile(rows, (fits, 1)), axis=1)
        return shuffled[:, : self.problem.n_train]

    def curve(self, injected: Any, shares: Any, fits: Any) -> b3.LossCurve:
        """Measure a loss curve; `shares` of T' come from `leaked`."""
        losses = [self.losses(n, share=p) for n, p in zip(fits, shares, strict=True)]
        return b3.LossCurve(
            injected=injected,
            loss=[each.mean() for each in losses],
            stderr=[each.std(ddof=1) / np.sqrt(len(each)) for each in losses],
            n_train=self.problem.n_train,
        )


def run_trial(problem: Problem, e0: float, seed: list[int]) -> tuple[dict[str, Any], Any]:
    """Return the errors of e0 in both settings, and the estimates of the oracle setting."""
    rng = np.random.default_rng(seed)
    injected = np.linspace(0, 1, problem.levels)
    fits = [problem.fits] * problem.levels
    true_v = {"problem": problem, "scored": problem.validation, "rng": rng}
    oracle = Sampler(own=problem.training, leaked=problem.validation, **true_v)
    curve = oracle.curve(injected, P0 + injected * (1 - P0), fits)
    estimates = estimate_all(problem, curve)
    errors = {"oracle": errors_of(curve, estimates, e0)}

    clean = rng.permutation(problem.training)[:MOST_CLEAN]
    moved, kept = np.split(rng.permutation(problem.validation), [round(len(clean) * P0 / (1 - P0))])
    noisy = {"problem": problem, "own": np.append(clean, moved), "leaked": kept, "rng": rng}
    truth = Sampler(own=clean, leaked=kept, **true_v).losses(40 * problem.fits).mean()
    curve = Sampler(scored=kept, **noisy).curve(injected, injected, fits)
    errors["user"] = errors_of(curve, estimate_all(problem, curve), truth)

    truth = (
        Sampler(own=clean, leaked=kept, replace=False, **true_v).losses(40 * problem.fits).mean()
    )
    plan = b3.plan_levels(sum(fits), P0, largest=0.6)
    curve = Sampler(scored=kept, replace=False, **noisy).curve(
        plan.injected, plan.injected, plan.fits
    )
    errors["user"][OWN] = b3.estimate(curve, P0).e0 - truth
    return errors, estimates


def estimate_all(problem: Problem, curve: b3.LossCurve) -> dict[str, b3.Estimate]:
    return {
        name: b3.estimate(curve, P0, method=method, **options)
        for name, (method, options) in problem.methods.items()
    }


def errors_of(curve: b3.LossCurve, estimates: dict[str, Any], e0: float) -> dict[str, float]:
    """Return estimate - truth; IID has half of its training rows from the validation clusters."""
    half = (0.5 - P0) / (1 - P0)
    values = {"IID": float(np.interp(half, curve.injected, curve.loss)), "LOCO": curve.loss[0]}
    values |= {name: each.e0 for name, each in estimates.items()}
    return {name: value - e0 for name, value in values.items()}


def run(problem: Problem, trials: int, n_jobs: int, seed: int) -> Outcome:
    """Run all trials of one data set."""
    sampler = Sampler(
        problem=problem,
        own=problem.training,
        leaked=problem.validation,
        scored=problem.validation,
        rng=np.random.default_rng([seed, 1]),
    )
    leaked = np.unique(np.geomspace(1, problem.n_train + 1, 25).astype(int) - 1)
    curve = np.array(
        [sampler.losses((50 if j else 100) * problem.fits, count=int(j)).mean() for j in leaked]
    )
    outcome = Outcome(name=problem.name, e0=float(curve[0]), leaked=leaked, curve=curve)
    jobs = (delayed(run_trial)(problem, outcome.e0, [seed, 2, i]) for i in range(trials))
    for errors, estimates in Parallel(n_jobs=n_jobs)(jobs):
        for setting, values in errors.items():
            for name, value in values.items():
                outcome.errors.setdefault(setting, {}).setdefault(name, []).append(value)
        for name, each in estimates.items():
            outcome.recovered.setdefault(name, []).append(each)
    return outcome


def print_table(outcome: Outcome) -> None:
    """Print mean absolute error and bias, and how often an estimate is closer than LOCO."""
    print(f"\n**{outcome.name}**, e0 = {outcome.e0:.4g}\n")
    print("| estimator | oracle: error | bias | better than LOCO | user: error | bias | better |")
    print("|---|---|---|---|---|---|---|")
    for name in outcome.errors["user"]:
        cells = [name]
        for errors in outcome.errors.values():
            if name not in errors:
                cells += ["–"] * 3
                continue
            own, loco = np.array(errors[name]), np.array(errors["LOCO"])
            better = f"{(abs(own) < abs(loco)).sum()}/{len(own)}" if name != "LOCO" else "–"
            cells += [f"{abs(own).mean():.3g}", f"{own.mean():+.3g}", better]
        print(f"| {' | '.join(cells)} |")


def time_methods(sizes: list[int], repeats: int = 3) -> dict[str, list[float]]:
    """Return the seconds of CPU time of `estimate` for each n'; NaN where it is refused."""
    injected = np.linspace(0, 1, 10)
    loss = 0.2 + 0.1 * np.exp(-4 * injected) + 0.001 * np.cos(40 * injected)
    methods = {
        "T4+mono": ("trend4+mono", {}),
        "Sketch": ("sketch", {}),
        "Basis(7)": ("basis", {"order": 7}),
        "default": ("auto", {}),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for n_train in sizes:
        curve = b3.LossCurve(injected=injected, loss=loss, n_train=n_train)
        for name, (method, options) in methods.items():
            taken = []
            for _ in range(repeats):
                start = time.process_time()
                try:
                    b3.estimate(curve, P0, method=method, **options)
                except b3.InputError:
                    taken.append(np.nan)
                    break
                taken.append(time.process_time() - start)
                if taken[-1] > 1:
                    break
            seconds[name].append(min(taken))
    return seconds


def print_times(sizes: list[int], seconds: dict[str, list[float]]) -> None:
    print(f"\n**Seconds of one estimate, 10 levels**\n\n| n' | {' | '.join(seconds)} |")
    print("|---" * (1 + len(seconds)) + "|")
    for n_train, row in zip(sizes, zip(*seconds.values(), strict=True), strict=True):
        print(f"| {n_train:,} | " + " | ".join("–" if x != x else f"{x:.2g}" for x in row) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heart", type=Path, help="UCI Heart Disease, clusters in `country`")
    parser.add_argument("--census", type=Path, help="UCI Adult, clusters in `native_country`")
    parser.add_argument("--output", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--fits", type=int, default=50, help="SVMs per level; 1000 in the papers")
    parser.add_argument("--synthetic-fits", type=int, default=1000, help="regressions per level")
    parser.add_argument("--largest", type=int, default=10**6, help="largest n' that is timed")
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        import published_pictures as pictures
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{error.name} is missing; the pictures need it: pip install matplotlib, "
            "or pip install 'mlflow-b3[dev]'."
        ) from None
    options.output.mkdir(parents=True, exist_ok=True)

    outcomes = []
    for name in ("heart", "census", "synthetic"):
        start = time.perf_counter()
        if name == "synthetic":
            problem = make_synthetic(options.synthetic_fits, options.seed)
        elif path := getattr(options, name):
            problem = read_problem(name, path, options.fits)
        else:
            print(f"\n{name}: skipped, because no --{name} file was given.")
            continue
        outcomes.append(run(problem, options.trials, options.n_jobs, options.seed))
        print_table(outcomes[-1])
        print(f"\n{time.perf_counter() - start:.0f} seconds")
        pictures.draw_errors(outcomes[-1], options.output / f"published-{name}.png")
    pictures.draw_curves(outcomes, options.output / "published-curves.png")
    sizes = [n for n in (10, 30, 100, 300, 1000, 10**4, 10**5, 10**6) if n <= options.largest]
    seconds = time_methods(sizes)
    print_times(sizes, seconds)
    pictures.draw_times(sizes, seconds, options.output / "published-times.png")


if __name__ == "__main__":
    main()
