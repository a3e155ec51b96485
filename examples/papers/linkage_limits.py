"""Errors of Bayesian record linkage against the printed and better bounds (thesis, tables 4.1 and 4.2)."""

import math
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from experiment import Outcome, Request, Table, with_error
from linkage_sampler import categorical_distortion, channel, sample_linkage, string_distortion
from match_and_merge import similarities
from matplotlib.figure import Figure
from problem import Array

from mlflow_b3.linkage import bounds

#: The 20 most popular names of girls in the United States in 2014.
NAMES = ["Emma", "Olivia", "Sophia", "Isabella", "Ava", "Mia", "Emily", "Abigail", "Madison"]
NAMES += ["Charlotte", "Harper", "Sofia", "Avery", "Elizabeth", "Amelia", "Evelyn", "Ella"]
NAMES += ["Chloe", "Victoria", "Aubrey"]
RECORDS = 200
#: Table 4.1 (a)–(d) and table 4.2 (a)–(d): what varies, and the other parameters.
SWEEPS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "4.1 (a)": ("N", [10, 50, 100, 250, 500], {"beta": 0.6, "p": 3, "values": 10}),
    "4.1 (b)": ("beta", [0.05, 0.2, 0.4, 0.6, 0.8, 1.0], {"N": 100, "p": 3, "values": 10}),
    "4.1 (c)": ("p", [1, 2, 4, 6, 8], {"N": 100, "beta": 0.6, "values": 4}),
    "4.1 (d)": ("values", [1, 2, 5, 15, 46], {"N": 100, "beta": 0.8, "p": 5}),
    "4.2 (a)": ("N", [100, 200, 350, 500], {"beta": 0.6, "p": 1, "c": 1.0}),
    "4.2 (b)": ("beta", [0.2, 0.4, 0.6, 0.8, 1.0], {"N": 100, "p": 1, "c": 1.0}),
    "4.2 (c)": ("p", [1, 2, 3, 5, 10], {"N": 100, "beta": 0.6, "c": 1.0}),
    "4.2 (d)": ("c", [0.0, 0.5, 1.0, 2.0], {"N": 100, "beta": 0.6, "p": 1}),
}


def distances() -> Array:
    """Return the Levenshtein distances of the names."""
    lengths = np.array([len(name) for name in NAMES])
    longer = np.maximum(lengths[:, None], lengths[None])
    return ((1 - similarities(NAMES)) * longer).round()


def run(request: Request) -> Outcome:
    trials = 2 if request.quick else 10
    cases = [
        (name, {varied: value, **others}, varied, value)
        for name, (varied, values, others) in SWEEPS.items()
        for value in (values[::2] if request.quick else values)
    ]
    measure = partial(
        measure_setting, trials=trials, sweeps=60 if request.quick else 150, seed=request.seed
    )
    done = request.trials(measure, cases, "linkage limits")
    tables = []
    for name in SWEEPS:
        rows = [row for row in done if row["table"] == name]
        if rows:
            tables.append(
                Table(
                    title=f"table {name}: share of records with a wrong entity",
                    columns=[
                        rows[0]["varied"],
                        "given what was lost",
                        "exact",
                        "Gibbs",
                        "printed bound",
                        "Fano by information",
                        "collisions",
                    ],
                    rows=[
                        [
                            f"{row['value']:g}",
                            with_error(row["given_z"]),
                            with_error(row["exact"]),
                            with_error(row["gibbs"]),
                            *(_bound(row[key]) for key in ("printed", "fano", "collision")),
                        ]
                        for row in rows
                    ],
                )
            )
    above = sum(
        np.mean(row["exact"]) + 3 * np.std(row["exact"]) / math.sqrt(trials) + 1e-9
        < max(_real(row[key]) for key in ("fano", "collision"))
        for row in done
    )
    vacuous = sum(row["printed"] is not None and row["printed"] <= 0 for row in done)
    tables.append(
        Table(
            title="summary",
            columns=["settings", "printed bound is negative", "error below one of our bounds"],
            rows=[[len(done), vacuous, above]],
            note=f"{trials} trials of {RECORDS} records. “Given what was lost” knows which fields were distorted, “exact” samples Λ given the entities and β, "
            "“Gibbs” does not know β. The thesis shows figures only: errors grow with N and β and fall with p, the number of values and c, "
            "Gibbs is almost as good as exact sampling, and the bound is “tight”. The last is not so for the printed formulas. – is no bound.",
        )
    )
    metrics = {
        f"{row['table'].replace(' ', '_').replace('(', '').replace(')', '')}/{row['value']:g}/{key}": float(
            np.mean(row[key])
        )
        for row in done
        for key in ("exact", "gibbs")
    }
    return Outcome(
        tables=tables,
        metrics={**metrics, "vacuous": float(vacuous), "violations": float(above)},
        pictures={"linkage-limits": draw(done)},
    )


def _real(value: float | None) -> float:
    return -math.inf if value is None or not math.isfinite(value) else value


def _bound(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def measure_setting(
    case: tuple[str, dict[str, Any], str, Any], *, trials: int, sweeps: int, seed: int
) -> dict[str, Any]:
    """Return the errors of samplers in one setting, and its bounds."""
    name, given, varied, value = case
    count, beta, fields = int(given["N"]), float(given["beta"]), int(given["p"])
    if name.startswith("4.1"):
        theta = np.full(int(given["values"]), 1 / int(given["values"]))
        distortion = categorical_distortion(theta)
    else:
        theta = np.full(len(NAMES), 1 / len(NAMES))
        distortion = string_distortion(theta, distances(), float(given["c"]))
    found: dict[str, list[float]] = {"given_z": [], "exact": [], "gibbs": []}
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial, 41])
        entities = rng.choice(len(theta), size=(count, fields), p=theta)
        own = rng.integers(count, size=RECORDS)
        lost = rng.random((RECORDS, fields)) < beta
        drawn = (rng.random((RECORDS, fields, 1)) > distortion[entities[own]].cumsum(axis=2)).sum(
            axis=2
        )
        records = np.where(lost, drawn.clip(max=len(theta) - 1), entities[own])
        for kind in ("given_z", "exact"):
            score = np.zeros((RECORDS, count))
            for f in range(fields):
                kept = np.eye(len(theta))[entities[:, f]][:, records[:, f]].T
                again = distortion[entities[:, f]][:, records[:, f]].T
                if kind == "exact":
                    likelihood = channel(distortion, beta)[entities[:, f]][:, records[:, f]].T
                else:
                    likelihood = np.where(lost[:, f, None], again, kept)
                score += np.log(likelihood.clip(1e-300))
            chance = np.exp(score - score.max(axis=1, keepdims=True))
            chance /= chance.sum(axis=1, keepdims=True)
            found[kind].append(float(1 - chance[np.arange(RECORDS), own].mean()))
        samples, _ = sample_linkage(
            records,
            [theta] * fields,
            [distortion] * fields,
            count,
            sweeps=sweeps,
            keep=10,
            seed=[seed, trial, 42],
            prior=(1.0, 1.0),
            known=entities,
        )
        found["gibbs"].append(float((samples != own).mean()))
    row: dict[str, Any] = {"table": name, "varied": varied, "value": float(value), **found}
    several = len(theta) > 1
    channels = [channel(distortion, beta)] * fields
    row["fano"] = bounds.mi_fano_channel([theta] * fields, channels, count) if several else None
    if name.startswith("4.1"):
        row["printed"] = bounds.printed_fano([theta] * fields, beta, count) if several else None
        row["collision"] = bounds.collision_error([theta] * fields, beta, count).error
    else:
        row["printed"] = bounds.printed_string_bound(
            [theta] * fields, [distances()] * fields, beta, float(given["c"]), count
        )
        row["collision"] = None
    return row


def draw(done: list[dict[str, Any]]) -> Figure:
    figure, panels = plt.subplots(2, 4, figsize=(11, 5), sharey=True, layout="constrained")
    for panel, name in zip(panels.flat, SWEEPS, strict=True):
        rows = [row for row in done if row["table"] == name]
        x = [row["value"] for row in rows]
        for key, style in (
            ("exact", "o-"),
            ("gibbs", "d--"),
            ("fano", "s:"),
            ("collision", "^:"),
            ("printed", "x:"),
        ):
            panel.plot(
                x,
                [np.nan if row[key] is None else np.mean(row[key]) for row in rows],
                style,
                label=key,
                markersize=4,
            )
        panel.set_ylim(-0.1, 1.05)
        panel.set_title(f"table {name}: {SWEEPS[name][0]}", fontsize=9)
    panels[0, 0].legend(fontsize=7, frameon=False)
    panels[0, 0].set_ylabel("wrong entity")
    plt.close(figure)
    return figure
