"""How optimistic is cross-validation by rows, across 98 clustered data sets?

For every set and each of three learners: cross-validation by rows (IID) and by whole clusters, the effect of one leaked mate
(another row of a scored row's cluster in training), the loss by clusters when one id in ten is wrong, and the share of
wrong ids at which the model would be no better than a constant (tipping point). Sets, targets and learners were fixed
before any result was looked at.
"""

import json
import math
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from experiment import Outcome, Request, Table
from matplotlib.figure import Figure
from meta_audit_sets import CLASSES, SETS, Clustered
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mlflow_b3 as b3

FOLDS = 5
MOST_ROWS = 1500
MOST_LEVELS = 20
#: Assignments of clusters, and of rows, to folds.
ASSIGNMENTS = 2
WRONG_IDS = 0.1
#: Refits of the audit that the tipping point comes from.
AUDIT_REFITS = 30
LEARNERS: dict[str, dict[str, Any]] = {
    "k-NN": {
        "zero_one": make_pipeline(StandardScaler(), KNeighborsClassifier(5)),
        "squared": make_pipeline(StandardScaler(), KNeighborsRegressor(5)),
    },
    "forest": {
        "zero_one": RandomForestClassifier(10, min_samples_leaf=2, random_state=0),
        "squared": RandomForestRegressor(10, min_samples_leaf=2, random_state=0),
    },
    "linear": {
        "zero_one": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        "squared": make_pipeline(StandardScaler(), Ridge()),
    },
}
QUICK = ("Pigs (pigs)", "Respiratory (patients)", "Guns (states)", "Sleep (subjects)")


def run(request: Request) -> Outcome:
    sets = [data for data in SETS if not request.quick or data.name in QUICK]
    if request.data is not None:  # results of an earlier run are shown again
        found = json.loads(request.data.read_text(encoding="utf-8"))
    else:
        measure = partial(measure_set, seed=request.seed, quick=request.quick)
        found = [row for rows in request.trials(measure, sets, "meta-audit: sets") for row in rows]
    return Outcome(
        tables=[summary_table(found), set_table(found)],
        metrics=summary(found),
        pictures={"meta-audit": draw(found)},
        files={"meta-audit.json": json.dumps(found, indent=1)},
    )


def prepare(data: Clustered) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, target and clusters as whole numbers; at most 1,500 rows, in whole clusters."""
    table = data.load()
    table = table[table[[data.target, *data.cluster]].notna().all(axis=1)]
    if data.loss != CLASSES:
        table = table[np.isfinite(table[data.target].astype(float))]
    clusters = table.groupby(list(data.cluster), observed=True).ngroup().to_numpy()
    order = np.random.default_rng(0).permutation(clusters.max() + 1)
    kept = order[np.cumsum(np.bincount(clusters)[order]) <= MOST_ROWS]
    used = np.isin(clusters, kept)
    table, clusters = table[used], np.unique(clusters[used], return_inverse=True)[1]
    target = table[data.target]
    features = table.drop(columns=[data.target, *data.cluster, *data.drop])
    words = features.select_dtypes(exclude="number")
    many = [name for name in words if words[name].nunique() > MOST_LEVELS]
    X = pd.get_dummies(features.drop(columns=many)).astype(float)
    X = X.fillna(X.median()).fillna(0.0)
    X = X.loc[:, X.std() > 0]
    y = pd.factorize(target, sort=True)[0] if data.loss == CLASSES else target.to_numpy(float)
    return X.to_numpy(), np.asarray(y), clusters


def measure_set(data: Clustered, *, seed: int, quick: bool) -> list[dict[str, Any]]:
    """Return a row of results for each learner."""
    X, y, clusters = prepare(data)
    sizes = np.bincount(clusters)
    about = {
        "set": data.name,
        "field": data.field_of,
        "source": f"{data.package}: {data.item}",
        "target": data.target,
        "loss": data.loss,
        "rows": len(y),
        "clusters": len(sizes),
        "features": X.shape[1],
        "constant": constant_loss(data.loss, y),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of learners on columns that are constant in a fold
        return [
            {
                **about,
                "learner": name,
                **measure(learner[data.loss], data.loss, X, y, clusters, seed, quick),
            }
            for name, learner in LEARNERS.items()
        ]


def constant_loss(loss: str, y: np.ndarray) -> float:
    """Return the loss of the best constant: the commonest class, or the mean."""
    return float(1 - np.bincount(y).max() / len(y)) if loss == CLASSES else float(y.var())


def measure(
    learner: Any,
    loss: str,
    X: np.ndarray,
    y: np.ndarray,
    clusters: np.ndarray,
    seed: int,
    quick: bool,
) -> dict[str, float | None]:
    """Measure one learner on one set; all losses by the ids of the set, which are taken as true."""
    totals = {name: np.zeros(len(y)) for name in ("iid", "grouped", "none", "mate", "wrong")}
    counts = {name: np.zeros(len(y)) for name in totals}

    def score(training: np.ndarray, scored: dict[str, np.ndarray]) -> None:
        model = clone(learner).fit(X[training], y[training])
        for name, rows in scored.items():
            prediction = model.predict(X[rows])
            wrong = prediction != y[rows] if loss == CLASSES else (prediction - y[rows]) ** 2
            totals[name][rows] += wrong
            counts[name][rows] += 1

    for assignment in range(1 if quick else ASSIGNMENTS):
        rng = np.random.default_rng([seed, assignment, 1977])
        for validation in _folds(np.arange(len(y)), rng):
            score(np.flatnonzero(~validation), {"iid": np.flatnonzero(validation)})
        for validation in _folds(clusters, rng):
            training, scored = np.flatnonzero(~validation), np.flatnonzero(validation)
            # one row of each cluster moves to training, in the place of a row of another one
            leaked = scored[_first_of_each(clusters[scored], rng)]
            left = np.setdiff1d(scored[np.isin(clusters[scored], clusters[leaked])], leaked)
            score(training, {"grouped": scored, **({"none": left} if len(left) else {})})
            if len(left):
                shorter = rng.permutation(training)[: len(training) - len(leaked)]
                score(np.append(shorter, leaked), {"mate": left})
        for validation in _folds(_misplace(clusters, rng), rng):
            score(np.flatnonzero(~validation), {"wrong": np.flatnonzero(validation)})
    mean = {name: totals[name] / np.maximum(counts[name], 1) for name in totals}
    both = (counts["mate"] > 0) & (counts["none"] > 0)
    gap, gap_error = _by_cluster(mean["grouped"] - mean["iid"], clusters)
    mate, mate_error = _by_cluster((mean["mate"] - mean["none"])[both], clusters[both])
    lost, lost_error = _by_cluster(mean["wrong"] - mean["grouped"], clusters)
    return {
        "iid": float(mean["iid"].mean()),
        "grouped": float(mean["grouped"].mean()),
        "gap": gap,
        "gap_error": gap_error,
        "mate": mate,
        "mate_error": mate_error,
        "wrong_ids": lost,
        "wrong_ids_error": lost_error,
        "tipping": math.nan if quick else tipping(learner, loss, X, y, clusters, seed),
    }


def tipping(
    learner: Any, loss: str, X: np.ndarray, y: np.ndarray, clusters: np.ndarray, seed: int
) -> float | None:
    """Return the share of wrong ids at which an audit expects no more than a constant gives."""
    table = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])]).assign(y=y, id=clusters)
    try:
        report = b3.audit(
            learner,
            table,
            target="y",
            cluster="id",
            loss=loss,
            folds=FOLDS,
            method="dose",
            cluster_error=WRONG_IDS,
            budget=AUDIT_REFITS,
            seed=seed,
            n_jobs=1,
            progress=False,
        )
    except b3.B3Error:
        return math.nan
    return report.sensitivity.tipping_error(constant_loss(loss, y))


def _folds(ids: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the validation rows of five folds with about as many rows: the largest ids first, into the emptiest fold."""
    names, inverse, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    fold_of, load = np.empty(len(names), int), np.zeros(FOLDS)
    order = rng.permutation(len(names))
    for name in order[np.argsort(-sizes[order], kind="stable")]:
        fold_of[name] = rng.choice(np.flatnonzero(load == load.min()))
        load[fold_of[name]] += sizes[name]
    for fold in range(FOLDS):
        yield fold_of[inverse] == fold


def _first_of_each(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the place of one random row of each id that has two rows or more."""
    order = rng.permutation(len(ids))
    _, first, sizes = np.unique(ids[order], return_index=True, return_counts=True)
    return order[first[sizes > 1]]


def _misplace(clusters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Give one row in ten the id of another row, drawn at random."""
    wrong = rng.random(len(clusters)) < WRONG_IDS
    ids = clusters.copy()
    ids[wrong] = clusters[rng.integers(len(clusters), size=int(wrong.sum()))]
    return ids


def _by_cluster(values: np.ndarray, clusters: np.ndarray) -> tuple[float, float]:
    """Return the mean over rows and its standard error over clusters."""
    sizes = np.bincount(clusters)
    sums = np.bincount(clusters, weights=values)[sizes > 0]
    sizes, mean = sizes[sizes > 0], float(values.mean())
    spread = math.sqrt(float(((sums - mean * sizes) ** 2).sum()))
    return mean, spread / sizes.sum() * math.sqrt(len(sizes) / max(len(sizes) - 1, 1))


# --- Tables and the picture


def summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """Return how often cross-validation by rows is optimistic, and by how much, for each learner."""
    metrics = {}
    for learner in LEARNERS:
        rows = [row for row in found if row["learner"] == learner]
        share = np.array([row["gap"] / row["constant"] for row in rows])
        mate = np.array([row["mate"] / row["constant"] for row in rows])
        wrong = np.array([row["wrong_ids"] / row["constant"] for row in rows])
        key = learner.replace("-", "")
        metrics |= {
            f"{key}/sets": float(len(rows)),
            f"{key}/optimistic": float(sum(row["gap"] > 1.96 * row["gap_error"] for row in rows)),
            f"{key}/pessimistic": float(sum(row["gap"] < -1.96 * row["gap_error"] for row in rows)),
            f"{key}/median_gap": float(np.median(share)),
            f"{key}/median_mate": float(np.median(mate)),
            f"{key}/median_wrong_ids": float(np.median(wrong)),
            f"{key}/worse_than_constant": float(
                sum(row["grouped"] >= row["constant"] > row["iid"] for row in rows)
            ),
        }
    return metrics


def summary_table(found: list[dict[str, Any]]) -> Table:
    counted = summary(found)
    rows = []
    for learner in LEARNERS:
        own = [row for row in found if row["learner"] == learner]
        get = partial(counted.__getitem__)
        key = learner.replace("-", "")
        quarter = np.quantile([row["gap"] / row["constant"] for row in own], [0.25, 0.75, 0.9])
        mates = sum(row["mate"] < -1.96 * row["mate_error"] for row in own)
        wrong = sum(row["wrong_ids"] < -1.96 * row["wrong_ids_error"] for row in own)
        rows.append(
            [
                learner,
                len(own),
                f"{get(f'{key}/optimistic'):.0f}",
                f"{get(f'{key}/pessimistic'):.0f}",
                f"{get(f'{key}/median_gap'):.1%} ({quarter[0]:.1%} to {quarter[1]:.1%}; {quarter[2]:.0%})",
                f"{get(f'{key}/worse_than_constant'):.0f}",
                f"{get(f'{key}/median_mate'):+.1%} ({mates})",
                f"{get(f'{key}/median_wrong_ids'):+.1%} ({wrong})",
            ]
        )
    return Table(
        title="cross-validation by rows against cross-validation by clusters",
        columns=[
            "learner",
            "sets",
            "by rows optimistic",
            "pessimistic",
            "optimism: median (quartiles; 90%)",
            "only by rows better than a constant",
            "one leaked mate: median (sets with less loss)",
            "one id in ten wrong: median (sets with less loss)",
        ],
        rows=rows,
        note="Optimism is the loss by clusters less the loss by rows, as a share of the loss of the best constant. "
        "Optimistic, pessimistic and less loss: beyond 1.96 standard errors over clusters, not corrected for many sets.",
    )


def set_table(found: list[dict[str, Any]]) -> Table:
    rows = []
    for name in dict.fromkeys(row["set"] for row in found):
        own = [row for row in found if row["set"] == name]
        cells = [name, own[0]["source"], own[0]["rows"], own[0]["clusters"]]
        for row in own:
            unit = row["constant"]
            cells.append(
                f"{row['iid'] / unit:.2f} → {row['grouped'] / unit:.2f} ({row['gap_error'] / unit:.2f}); "
                f"{row['mate'] / unit:+.3f}; {row['wrong_ids'] / unit:+.3f}; {_tipping(row)}"
            )
        rows.append(cells)
    return Table(
        title="every set: loss by rows → by clusters (standard error); one leaked mate; one id in ten wrong; tipping point",
        columns=["set (clusters)", "source", "rows", "clusters", *LEARNERS],
        rows=rows,
        note="Losses are error rates or squared errors, in units of the loss of the best constant: 1 is no better than the "
        "constant. Tipping point: the share of wrong ids at which the loss on new clusters reaches 1; > 50% if it does "
        "not up to there, 0% if it is there already, – if the audit gives none.",
    )


def _tipping(row: dict[str, Any]) -> str:
    if row["grouped"] >= row["constant"]:
        return "0%"
    if row["tipping"] is None:
        return "> 50%"
    return "–" if math.isnan(row["tipping"]) else f"{row['tipping']:.0%}"


def draw(found: list[dict[str, Any]]) -> Figure:
    """Draw the loss by rows and by clusters of every set, sorted by the median optimism."""
    names = list(dict.fromkeys(row["set"] for row in found))
    gaps = {
        name: np.median([row["gap"] / row["constant"] for row in found if row["set"] == name])
        for name in names
    }
    names.sort(key=gaps.__getitem__)
    place = {name: number for number, name in enumerate(names)}
    figure, panels = plt.subplots(
        1, 3, figsize=(11, 1.2 + 0.145 * len(names)), sharey=True, layout="constrained"
    )
    for panel, learner in zip(panels, LEARNERS, strict=True):
        for row in (row for row in found if row["learner"] == learner):
            at, unit = place[row["set"]], row["constant"]
            ends = [min(row[kind] / unit, 1.6) for kind in ("iid", "grouped")]
            sure = abs(row["gap"]) > 1.96 * row["gap_error"]
            colour = "0.7" if not sure else "#d55e00" if row["gap"] > 0 else "#0072b2"
            panel.plot(ends, [at, at], color=colour, linewidth=1.6, zorder=1)
            panel.plot(ends[0], at, "o", color="white", markeredgecolor=colour, markersize=3.6)
            panel.plot(ends[1], at, "o", color=colour, markersize=3.6)
        panel.axvline(1, color="0.4", linestyle=":", linewidth=1)
        panel.set_title(learner, fontsize=10)
        panel.set_xlabel("loss / loss of a constant", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), names, fontsize=6)
    panels[0].set_ylim(-1, len(names))
    figure.suptitle(
        "Cross-validation by rows (open) and by clusters (filled); orange: by rows optimistic, blue: pessimistic, "
        "grey: within noise",
        fontsize=9,
    )
    plt.close(figure)
    return figure
