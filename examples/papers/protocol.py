"""The protocol of the B3 papers, and the same experiment as a user must do it.

In "oracle" every resample draws its leaked rows afresh from the true clusters, as the authors' program did; in "user"
one set of rows has leaked, and all that can be sampled is T̂ and V̂.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pictures
from experiment import Outcome, Request, Table, with_error
from problem import Array, Problem, Rows

import mlflow_b3 as b3

P0 = 0.1
BATCH = 50
OWN = "default, own levels"


@dataclass(kw_only=True)
class Trials:
    """Errors of e0 by setting and estimator, one per trial, and what else the pictures show."""

    problem: Problem
    e0: float
    e0_error: float
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

    clean = rng.permutation(problem.training)[: problem.clean]
    moved, kept = np.split(rng.permutation(problem.validation), [round(len(clean) * P0 / (1 - P0))])
    noisy = {"problem": problem, "own": np.append(clean, moved), "leaked": kept, "rng": rng}
    truth = Sampler(own=clean, leaked=kept, **true_v).losses(problem.trial_fits).mean()
    curve = Sampler(scored=kept, **noisy).curve(injected, injected, fits)
    errors["user"] = errors_of(curve, estimate_all(problem, curve), truth)

    truth = (
        Sampler(own=clean, leaked=kept, replace=False, **true_v).losses(problem.trial_fits).mean()
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


def run_trials(problem: Problem, request: Request, trials: int) -> Trials:
    """Measure the truth, then run the trials of one data set."""
    sampler = Sampler(
        problem=problem,
        own=problem.training,
        leaked=problem.validation,
        scored=problem.validation,
        rng=np.random.default_rng([request.seed, 1]),
    )
    zero = sampler.losses(problem.e0_fits, count=0)
    points = 8 if request.quick else 25
    leaked = np.unique(np.geomspace(1, problem.n_train + 1, points).astype(int) - 1)
    curve = [float(zero.mean())]
    for j in request.steps(leaked[1:], f"{problem.name}: true losses"):
        curve.append(float(sampler.losses(problem.true_fits, count=int(j)).mean()))
    found = Trials(
        problem=problem,
        e0=curve[0],
        e0_error=float(zero.std(ddof=1) / np.sqrt(len(zero))),
        leaked=leaked[: len(curve)],
        curve=np.array(curve),
    )
    run_one = partial(run_trial, problem, found.e0)
    seeds = [[request.seed, 2, number] for number in range(trials)]
    for errors, estimates in request.trials(run_one, seeds, f"{problem.name}: trials"):
        for setting, values in errors.items():
            for name, value in values.items():
                found.errors.setdefault(setting, {}).setdefault(name, []).append(value)
        for name, each in estimates.items():
            found.recovered.setdefault(name, []).append(each)
    return found


def reproduce(
    problem: Problem, request: Request, *, published_curve: tuple[float, ...] = ()
) -> Outcome:
    """Run one data set of the papers in both settings, and compare with the authors' numbers."""
    found = run_trials(problem, request, trials=3 if request.quick else 10)
    metrics = {"e0": found.e0, "e0_error": found.e0_error}
    for setting, errors in found.errors.items():
        for name, values in errors.items():
            key = name.replace("+", "_").replace("(", "").replace(")", "").replace(", ", "_")
            key = f"{setting}/{key.replace(' ', '_')}"
            metrics[f"{key}/error"] = float(np.abs(values).mean())
            metrics[f"{key}/bias"] = float(np.mean(values))
    tables = [_error_table(found)]
    if published_curve:
        tables.append(_curve_table(found, published_curve))
    drawn = {
        f"published-{problem.name}": pictures.draw_errors(found),
        f"published-{problem.name}-curves": pictures.draw_curves(found),
    }
    return Outcome(tables=tables, metrics=metrics, pictures=drawn)


def _error_table(found: Trials) -> Table:
    problem, published = found.problem, found.problem.published
    trials = len(found.errors["user"]["LOCO"])
    rows = []
    for name in found.errors["user"]:
        chosen = name in (f"Basis({problem.order})", "T4+mono", "Sketch")
        cells = [
            f"**{name}**" if chosen else name,
            f"{published[name]:.3g}" if name in published else "–",
        ]
        for errors in found.errors.values():
            if name not in errors:
                cells += ["–"] * 3
                continue
            own, loco = np.array(errors[name]), np.array(errors["LOCO"])
            better = f"{(abs(own) < abs(loco)).sum()}/{trials}" if name != "LOCO" else "–"
            cells += [with_error(abs(own)), f"{own.mean():+.2g}", better]
        rows.append(cells)
    told = f"the authors' {published['e0']:.4g}" if "e0" in published else "none is published"
    return Table(
        title=f"{problem.name}: mean absolute error of e0",
        columns=[
            "estimator",
            "published",
            "oracle: error",
            "bias",
            "better than LOCO",
            "user: error",
            "bias",
            "better than LOCO",
        ],
        rows=rows,
        note=f"e0 = {found.e0:.4g} ± {found.e0_error:.2g} ({told}); {trials} trials, n' = {problem.n_train}, "
        f"{problem.levels} levels, {problem.fits} refits a level. ± is one Monte-Carlo standard error. "
        "Bold: the papers' estimators with their settings for this data set.",
    )


def _curve_table(found: Trials, published: tuple[float, ...]) -> Table:
    ours = dict(zip(found.leaked.tolist(), found.curve.tolist(), strict=True))
    rows = [(j, value, f"{ours[j]:.4g}") for j, value in enumerate(published) if j in ours]
    return Table(
        title=f"{found.problem.name}: loss with j leaked rows",
        columns=["j", "published e_j", "ours"],
        rows=rows,
    )
