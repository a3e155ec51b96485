"""Study of scores by scikit-learn's names: is e0 of an AUC, F1 or R² better than no correction?

Every cell is a world, a learner and a kind of damage to the cluster ids. In every replicate a table is drawn,
its ids are damaged, and `audit` is run for each score with the rate that was applied. There are two truths,
in the score's own units: the score on fresh clusters of models that were trained on four fifths of the true
clusters of the same table, and grouped cross-validation of the table by its true ids. The cells of
`development` are those that choices were made on, the cells of `heldout` and, for scores that were added later,
`fresh` come from other worlds and were run once, with other seeds.

    python benchmarks/scores_study.py development --replicates 8 --out development.jsonl
    python benchmarks/scores_study.py heldout --first 700 --replicates 12 --out heldout.jsonl
    python benchmarks/scores_study.py fresh --first 3100 --replicates 6 --out fresh.jsonl
    python benchmarks/scores_study.py real --replicates 4 --out real.jsonl
    python benchmarks/scores_study.py groups --first 5200 --replicates 60 --out groups.jsonl
    python benchmarks/scores_study.py summary heldout.jsonl
"""

import argparse
import json
import math
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dose_development as dev
import heldout_study as held
import numpy as np
import pandas as pd
import real_data
import score_worlds as worlds
from joblib import Parallel, delayed
from sklearn import metrics
from sklearn.base import clone, is_regressor
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mlflow_b3 as b3

BINARY = (
    *("accuracy", "balanced_accuracy", "precision", "recall", "f1", "matthews_corrcoef", "roc_auc"),
    *("neg_brier_score", "neg_log_loss"),
)
LABELS = ("balanced_accuracy", "precision", "recall", "f1", "matthews_corrcoef", "roc_auc")
CLASSES = ("accuracy", "balanced_accuracy", "f1_macro", "roc_auc_ovr", "neg_brier_score")
NUMBERS = ("r2", "neg_root_mean_squared_error", "neg_mean_squared_error", "neg_mean_absolute_error")
#: Scores that were added later, and those of a rare class.
RANKINGS = ("average_precision", "fbeta_2")
RARE = ("roc_auc", "average_precision", "recall", "f1", "neg_brier_score")
ERRORS = ("neg_median_absolute_error", "neg_mean_poisson_deviance", "pinball_0.9", "wape")


def wape(target: np.ndarray, prediction: np.ndarray) -> float:
    """Return the sum of absolute errors over the sum of targets."""
    return float(np.abs(target - prediction).sum() / np.abs(target).sum())


RANKED = ("roc_auc", "roc_auc_ovr", "average_precision")
#: Scores without a name of scikit-learn's, as they are given to `audit`.
SCORERS = {
    "fbeta_2": metrics.make_scorer(metrics.fbeta_score, beta=2),
    "wape": metrics.make_scorer(wape, greater_is_better=False),
    "pinball_0.9": metrics.make_scorer(
        metrics.mean_pinball_loss, alpha=0.9, greater_is_better=False
    ),
}
ASSIGNMENTS = 3


@dataclass(frozen=True)
class Cell:
    """One cell of the study."""

    name: str
    world: Callable[..., tuple[np.ndarray, np.ndarray]]
    sizes: Callable[[np.random.Generator], np.ndarray]
    learner: Any
    scores: tuple[str, ...]
    error: float = 0.0
    split: float = 0.0
    #: The stream of random numbers of `heldout_study.draw`.
    key: tuple[int, ...] = (7, 20)


def cells(which: str) -> list[Cell]:
    """Return the cells that choices were made on, or those that they were tested on."""
    forest = RandomForestClassifier(25, random_state=0)
    forests = RandomForestRegressor(25, random_state=0)
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    near, tenth, fifth = KNeighborsRegressor(4), {"error": 0.1}, {"error": 0.2}
    many = held.same(120, 8)
    made: list[tuple[Any, ...]] = [
        (held.wards, many, "knn9", held.knn(9), LABELS, tenth),
        (held.wards, many, "knn9", held.knn(9), LABELS, fifth),
        (held.wards, many, "knn9", held.knn(9), LABELS, {"split": 0.3}),
        (held.voices, held.same(90, 10), "forest", forest, LABELS, tenth),
        (held.rings, held.same(110, 8), "logistic", logistic, LABELS, fifth),
        (held.rare, held.same(220, 8), "knn7", held.knn(7), LABELS, tenth),
        (held.shops, held.same(110, 8), "knn4", near, NUMBERS[:2], tenth),
        (held.shops, held.same(110, 8), "knn4", near, NUMBERS[:2], fifth),
        (held.drifts, held.lognormal(120, 6, 0.8), "forest", forests, NUMBERS[:2], tenth),
        (held.shops, held.spread(110, 2, 12), "ridge", Ridge(), NUMBERS[:2], fifth),
    ]
    if which == "fresh":
        rich = KNeighborsRegressor(6)
        made = [
            (worlds.claims, held.same(130, 7), "knn7", held.knn(7), RANKINGS, tenth),
            (worlds.claims, held.same(130, 7), "forest", forest, RANKINGS, fifth),
            (worlds.plants, held.same(100, 9), "forest", forest, RANKINGS, tenth),
            (worlds.plants, held.spread(110, 3, 13), "knn9", held.knn(9), RANKINGS, {"split": 0.3}),
            (worlds.clips, held.same(90, 9), "knn5", held.knn(5), RANKINGS, tenth),
            (worlds.clips, held.same(90, 9), "logistic", logistic, RANKINGS, fifth),
            (worlds.calls, held.same(110, 8), "logistic", logistic, RANKINGS, tenth),
            (worlds.screening, held.same(400, 6), "knn15", held.knn(15), RARE, tenth),
            (worlds.screening, held.same(400, 6), "logistic", logistic, RARE, tenth),
            (worlds.orders, held.same(120, 7), "knn6", rich, ERRORS, tenth),
            (worlds.orders, held.same(120, 7), "forest", forests, ERRORS, {"split": 0.3}),
            (worlds.rents, held.same(110, 8), "knn6", rich, ERRORS, fifth),
            (worlds.yields, held.spread(110, 3, 13), "forest", forests, ERRORS, tenth),
            (worlds.tides, held.same(110, 8), "ridge", Ridge(), ERRORS, fifth),
        ]
    if which == "development":
        made = [
            (world, held.same(100, 8), name, learner, scores, damage)
            for world, name, learner, scores in (
                (dev.clinic, "knn5", held.knn(5), BINARY),
                (dev.intercept, "logistic", logistic, BINARY),
                (dev.regression, "knn4", near, NUMBERS),
                (dev.multiple, "forest", forest, CLASSES),
            )
            for damage in (tenth, fifth)
        ]
    return [
        Cell(
            f"{world.__name__} {name} " + " ".join(f"{k} {v}" for k, v in damage.items()),
            *(world, sizes, learner, scores),
            **damage,
        )
        for world, sizes, name, learner, scores, damage in made
    ]


# --- Truths, in the score's own units; losses without the minus of their names


def pooled(name: str, y: np.ndarray, predicted: dict[str, np.ndarray]) -> float:
    """Return a score of rows that one model, or several, predicted."""
    label, chance = predicted["label"], predicted.get("chance")
    if name == "roc_auc":
        return float(metrics.roc_auc_score(y, chance[:, 1]))
    if name == "average_precision":
        return float(metrics.average_precision_score(y, chance[:, 1]))
    if name == "roc_auc_ovr":
        return float(metrics.roc_auc_score(y, chance, multi_class="ovr"))
    if name == "neg_brier_score":
        return float(
            ((chance - np.equal.outer(y, np.arange(chance.shape[1]))) ** 2).sum(1).mean() / 2
        )
    if name == "neg_log_loss":
        return float(-np.log(np.clip(chance[np.arange(len(y)), y], 1e-15, 1)).mean())
    functions: dict[str, Callable[..., float]] = {
        "accuracy": metrics.accuracy_score,
        "balanced_accuracy": metrics.balanced_accuracy_score,
        "precision": metrics.precision_score,
        "recall": metrics.recall_score,
        "f1": metrics.f1_score,
        "f1_macro": lambda a, b: metrics.f1_score(a, b, average="macro"),
        "matthews_corrcoef": metrics.matthews_corrcoef,
        "r2": metrics.r2_score,
        "neg_mean_squared_error": metrics.mean_squared_error,
        "neg_root_mean_squared_error": metrics.root_mean_squared_error,
        "neg_mean_absolute_error": metrics.mean_absolute_error,
        "neg_median_absolute_error": metrics.median_absolute_error,
        "neg_mean_poisson_deviance": metrics.mean_poisson_deviance,
        "pinball_0.9": lambda a, b: metrics.mean_pinball_loss(a, b, alpha=0.9),
        "fbeta_2": lambda a, b: metrics.fbeta_score(a, b, beta=2),
        "wape": wape,
    }
    return float(functions[name](y, label))


def predict(model: Any, X: np.ndarray) -> dict[str, np.ndarray]:
    found = {"label": model.predict(X)}
    if not is_regressor(model):
        found["chance"] = model.predict_proba(X)
    return found


def truths(cell: Cell, X: Any, y: Any, clusters: Any, X_new: Any, y_new: Any) -> dict[str, Any]:
    """Return grouped cross-validation by true ids, and the scores on fresh clusters, by name."""
    fresh: dict[str, list[float]] = defaultdict(list)
    same: dict[str, list[float]] = defaultdict(list)
    for assignment in range(ASSIGNMENTS):
        parts: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
        for training, validation in GroupKFold(5, shuffle=True, random_state=assignment).split(
            X, y, clusters
        ):
            model = clone(cell.learner).fit(X[training], y[training])
            parts.append((y[validation], predict(model, X[validation])))
            if not assignment:
                new = predict(model, X_new)
                for name in cell.scores:
                    fresh[name].append(pooled(name, y_new, new))
        whole = {key: np.concatenate([p[key] for _, p in parts]) for key in parts[0][1]}
        for name in cell.scores:
            if name in RANKED:  # pairs of one model only
                same[name].append(float(np.mean([pooled(name, a, b) for a, b in parts])))
            else:
                same[name].append(pooled(name, np.concatenate([a for a, _ in parts]), whole))
    return {
        name: {"grouped": float(np.mean(same[name])), "fresh": float(np.mean(fresh[name]))}
        for name in cell.scores
    }


def replicate(cell: Cell, number: int) -> list[dict[str, Any]]:
    warnings.simplefilter("ignore")
    X, y, clusters, X_new, y_new, rng = held.draw(cell, number)  # type: ignore[arg-type]
    return audits(cell, X, y, clusters, rng, number, truths(cell, X, y, clusters, X_new, y_new))


#: Real data sets of R packages, with true ids, for which choices were made nowhere.
REAL = {
    "Respiratory (patients)": (held.knn(7), ("roc_auc", "f1", "balanced_accuracy")),
    "Unions (workers)": (RandomForestClassifier(25, random_state=0), ("roc_auc", "f1")),
    "Pigs (pigs)": (make_pipeline(StandardScaler(), KNeighborsRegressor(4)), NUMBERS[:2]),
    "Crime (counties)": (make_pipeline(StandardScaler(), KNeighborsRegressor(4)), NUMBERS[:2]),
}


def real(data: Any, number: int) -> list[dict[str, Any]]:
    """Audit a real data set with damaged ids; there are no fresh clusters to compare with."""
    warnings.simplefilter("ignore")
    frame, y, clusters = real_data.prepare(data)
    X = frame.to_numpy()
    learner, scores = REAL[data.name]
    cell = Cell(data.name, held.wards, held.same(1, 1), learner, scores, error=0.1)
    true = truths(cell, X, y, clusters, X, y)
    same = {name: {"grouped": found["grouped"]} for name, found in true.items()}
    return audits(cell, X, y, clusters, np.random.default_rng([number, 1973]), number, same)


def audits(
    cell: Cell, X: Any, y: Any, clusters: Any, rng: Any, number: int, true: dict[str, Any]
) -> list[dict[str, Any]]:
    """Damage the ids, and audit every score with the rate that was applied."""
    ids = held.split(clusters, cell.split, rng) if cell.split else clusters
    ids = held.misplace(ids, cell.error, rng) if cell.error else ids
    order = rng.permutation(len(y))
    known = {"split_rate": cell.split} if cell.split else {"cluster_error": cell.error}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "journals").mkdir()
        for name in cell.scores:
            row = {"cell": cell.name, "score": name, "replicate": number, **true[name]}
            try:
                report = b3.audit(
                    cell.learner,
                    pd.DataFrame(X[order], columns=[f"x{i}" for i in range(X.shape[1])]),
                    y[order],
                    groups=ids[order],
                    scoring=SCORERS.get(name, name),
                    seed=number,
                    journal=Path(folder, "journals"),
                    progress=False,
                    **known,
                )
            except b3.InputError as error:
                found.append(row | {"refused": str(error)})
                continue
            low, high = report.e0_interval
            scores = {"loco": report.loco, "iid": report.iid, "e0": report.e0}
            found.append(row | scores | {"low": low, "high": high})
    return found


# --- Groups of rows: how often audits say that groups differ


def by_group(number: int) -> list[dict[str, Any]]:
    """Audit groups that do not differ; every fourth time also groups of which one is much harder to predict.

    In turn, there are also groups of which one is harder to predict, or has all of the wrong ids.
    """
    warnings.simplefilter("ignore")
    found = _of_groups("alike", number)
    if number % 4:
        return found
    found += _of_groups("damaged" if number % 8 else "harder", number)
    return found + _of_groups("much harder", number)


def _of_groups(world: str, number: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng([5, number, len(world)])
    patients, share = (200, 0.8) if world == "much harder" else (100, 0.5)
    clinic = b3.make_clinic(patients=patients, records=6, seed=int(rng.integers(2**31)))
    clusters, frame = clinic.patients, clinic.frame
    X, y = frame.drop(columns=["disease", "patient_id"]), frame["disease"].to_numpy().copy()
    # in every other pair of replicates there are four groups, of all patients or half of them
    groups = np.arange(patients) % (4 if world == "alike" and number % 4 > 1 else 2)
    of_row = rng.permutation(groups)[clusters]
    ids = held.misplace(clusters, 0.1, rng)
    if world.endswith("harder"):
        coins = (of_row == 1) & (rng.random(len(y)) < share)
        y[coins] = rng.integers(0, 2, int(coins.sum()))
    if world == "damaged":
        ids = np.where(of_row == 1, held.misplace(clusters, 0.2, rng), clusters)
    name = ("accuracy", "roc_auc", "recall")[number % 3]
    report = b3.audit(
        held.knn(7),
        X,
        y,
        groups=ids,
        scoring=name,
        by=np.array([f"g{code}" for code in of_row]),
        cluster_error=0.1,
        budget=50,
        seed=number,
        progress=False,
    )
    true = _differences(name, X.to_numpy(), y, clusters, of_row)
    return [
        {
            "cell": f"{world}, {of_row.max() + 1} groups",
            "score": name,
            "replicate": number,
            "difference": each.difference,
            "low": each.interval[0],
            "high": each.interval[1],
            "beyond_noise": each.beyond_noise,
            "loco": scored[each.first].loco - scored[each.second].loco,
            "grouped": true[each.first] - true[each.second],
        }
        for scored in [{group.name: group for group in report.groups.groups}]
        for each in report.groups.differences
    ]


def _differences(name: str, X: Any, y: Any, clusters: Any, groups: Any) -> dict[str, float]:
    """Return grouped cross-validation by true ids of each group."""
    found: dict[str, list[float]] = defaultdict(list)
    for assignment in range(ASSIGNMENTS):
        folds = GroupKFold(5, shuffle=True, random_state=assignment).split(X, y, clusters)
        parts = []
        for training, validation in folds:
            model = clone(held.knn(7)).fit(X[training], y[training])
            parts.append((validation, predict(model, X[validation])))
        for code in np.unique(groups):
            inside = [
                (
                    y[rows][groups[rows] == code],
                    {k: v[groups[rows] == code] for k, v in told.items()},
                )
                for rows, told in parts
            ]
            if name in RANKED:
                ranked = [pooled(name, a, b) for a, b in inside if len(np.unique(a)) == 2]
                found[f"g{code}"].append(float(np.mean(ranked)))
                continue
            whole = {k: np.concatenate([b[k] for _, b in inside]) for k in inside[0][1]}
            found[f"g{code}"].append(pooled(name, np.concatenate([a for a, _ in inside]), whole))
    return {group: float(np.mean(values)) for group, values in found.items()}


def summarize_groups(path: Path) -> None:
    """Print how many audits call a difference beyond noise, and how good differences are."""
    rows = pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])
    rows["covered"] = (rows.low <= rows.grouped) & (rows.grouped <= rows.high)
    rows["of_e0"] = (rows.difference - rows.grouped) ** 2
    rows["of_loco"] = (rows.loco - rows.grouped) ** 2
    for keys in (["cell"], ["cell", "score"]):
        print(
            f"\n| {' | '.join(keys)} | audits | with a claim | true | e0 | LOCO | RMSE e0 | LOCO | covered |"
        )
        print("|---" * (len(keys) + 8) + "|")
        for key, part in rows.groupby(keys):
            claims = part.groupby("replicate").beyond_noise.any()
            means = [f"{part[k].mean():+.3f}" for k in ("grouped", "difference", "loco")]
            errors = [f"{np.sqrt(part[k].mean()):.3f}" for k in ("of_e0", "of_loco")]
            cells = [
                *key,
                len(claims),
                int(claims.sum()),
                *means,
                *errors,
                f"{part.covered.mean():.2f}",
            ]
            print("| " + " | ".join(map(str, cells)) + " |")


def summarize(path: Path) -> None:
    """Print bias and RMSE against grouped cross-validation by true ids, and coverage of both truths."""
    table: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        table[row["score"], row["cell"]].append(row)
    print(
        "| score | cell | truth | LOCO bias / RMSE | e0 bias / RMSE | grouped | new | width | refused |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    ratios: dict[str, list[float]] = defaultdict(list)
    covers: dict[str, list[float]] = defaultdict(list)
    for (score, cell), every in sorted(table.items()):
        rows = [row for row in every if "refused" not in row]
        refused = len(every) - len(rows)
        if not rows:
            print(f"| {score} | {cell} | | | | | | | {refused} |")
            continue
        read = {
            k: np.array([row[k] for row in rows]) for k in rows[0] if k not in ("cell", "score")
        }
        errors = {name: read[name] - read["grouped"] for name in ("loco", "e0")}
        told = {k: f"{v.mean():+.3f} / {np.sqrt((v**2).mean()):.3f}" for k, v in errors.items()}
        inside = {
            truth: float(((read["low"] <= read[truth]) & (read[truth] <= read["high"])).mean())
            for truth in ("grouped", "fresh")
            if truth in read
        }
        ratios[score].append(
            float(np.sqrt((errors["e0"] ** 2).mean() / max((errors["loco"] ** 2).mean(), 1e-12)))
        )
        covers[score].append(inside.get("fresh", math.nan))
        width = float(np.mean(read["high"] - read["low"]))
        print(
            f"| {score} | {cell} | {read['grouped'].mean():.3f} | {told['loco']} | {told['e0']} | "
            f"{inside['grouped']:.2f} | {inside.get('fresh', math.nan):.2f} | {width:.3f} | {refused or ''} |"
        )
    print("\n| score | mean ratio RMSE(e0)/RMSE(LOCO) | coverage of new clusters |\n|---|---|---|")
    for score, values in ratios.items():
        ratio = float(np.exp(np.mean(np.log(values))))
        print(f"| {score} | {ratio:.2f} | {np.mean(covers[score]):.2f} |")


def _only(cell: Cell, scores: list[str] | None) -> Cell:
    return cell if scores is None else replace(cell, scores=tuple(scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what",
        choices=("development", "heldout", "fresh", "real", "groups", "summary", "groups-summary"),
    )
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--replicates", type=int, default=8)
    parser.add_argument("--only", default="", help="a part of the names of cells")
    parser.add_argument("--scores", nargs="+", help="these scores only")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.what in ("summary", "groups-summary"):
        (summarize if given.what == "summary" else summarize_groups)(given.file)
        return
    if given.what == "groups":
        tasks = [delayed(by_group)(given.first + number) for number in range(given.replicates)]
    elif given.what == "real":
        sets = [data for data in real_data.data_sets(None) if data.name in REAL]
        tasks = [
            delayed(real)(data, given.first + number)
            for number in range(given.replicates)
            for data in sets
            if given.only in data.name
        ]
    else:
        tasks = [
            delayed(replicate)(_only(cell, given.scores), given.first + number)
            for number in range(given.replicates)
            for cell in cells(given.what)
            if given.only in cell.name
        ]
    results = Parallel(n_jobs=given.jobs, return_as="generator_unordered")(tasks)
    with given.out.open("a") as file:
        for rows in results:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()


if __name__ == "__main__":
    main()
