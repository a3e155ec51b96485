"""Level and power of the leakage test, in every form.

    python benchmarks/leakage_test.py --data heart.csv --out leakage_test.jsonl
    python benchmarks/leakage_test.py --table leakage_test.jsonl --docs docs/leakage-test.md

    python benchmarks/leakage_test.py --data heart.csv --forms doses --data-kinds clustered --null 100 --power 50 --out doses.jsonl

Every line of the output file is one test; a second run with the same file continues it. Rows are
drawn and refits run by the package itself, on learners written out in numpy so that thousands of
tests take minutes; they predict what scikit-learn's predict, which is checked first.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from scipy import stats
from sklearn.linear_model import RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.auditing.conclusions import conclude_test
from mlflow_b3.data.folds import Fold, make_folds
from mlflow_b3.data.losses import resolve_loss
from mlflow_b3.data.table import AuditData
from mlflow_b3.measurement.campaign import Campaign, DoseCampaign, measure_test
from mlflow_b3.measurement.design import dose_levels, plan_doses
from mlflow_b3.measurement.runner import Means

ARRANGEMENTS = {1: 39, 4: 19, 5: 19}  # by the number of folds, for the time that it takes
FORMS = ("paired", "welch", "permutation", "doses")
SIZES = {"null": (60, 120, 200), "power": (40, 60, 120, 200)}
CLUSTERED = {
    "shuffled ids": "null",
    "shuffled ids, as in an audit": "null",
    "shuffled hospitals": "null",
    "noise by cluster": "null",
    "patients": "power",
}
#: Cluster sizes of the scenarios "sizes: …, …".
UNEQUAL = {
    "balanced": np.full(40, 10),
    "zipf": np.maximum(1, np.round(85 / np.arange(1, 61))).astype(int),
    "zipf 1.3": np.maximum(1, np.round(129 / np.arange(1, 101) ** 1.3)).astype(int),
    "giant": np.r_[200, np.full(40, 5)],
    "few": np.full(12, 33),
    "pairs": np.full(200, 2),
}
CLUSTERED |= {
    f"sizes: {sizes}, {world}": kind
    for sizes in UNEQUAL
    for world, kind in (("shuffled", "null"), ("noise by cluster", "null"), ("effect", "power"))
}
FOLDS = {
    "shuffled ids, as in an audit": "3 × 5 × 80",
    "shuffled hospitals": "46 + 130 + 262 + 303",
}


class Predictor:
    """A trained function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.classes = np.array([0, 1])

    def predict(self, kind: str, X: Any) -> Any:
        """Return values, or labels by their sign."""
        values = self.function(X)
        return values if kind == "value" else (values > 0).astype(int)


class Learner:
    """What the package refits."""

    route = "numpy"
    stochastic = False
    parallel = True

    def __init__(self, task: str = "classification") -> None:
        self.task = task

    def fit(self, rows: Any, seed: int | None = None) -> Predictor:  # noqa: ARG002
        """Train on rows as the package draws them."""
        return self.train(rows.X, rows.target)

    def signs(self, target: Any) -> Any:
        """Return the target as numbers."""
        return target if self.task == "regression" else np.where(target > 0, 1.0, -1.0)


class Ridge(Learner):
    """Ridge regression with penalty 1, on -1 and 1 for classes."""

    def train(self, X: Any, target: Any) -> Predictor:
        """Train on these rows."""
        y, centre = self.signs(target), X.mean(axis=0)
        Z, level = X - centre, y.mean()
        weights = np.linalg.solve(Z.T @ Z + np.eye(Z.shape[1]), Z.T @ (y - level))
        return Predictor(lambda rows: (rows - centre) @ weights + level)


class NearestNeighbours(Learner):
    """Five nearest neighbours."""

    def train(self, X: Any, target: Any) -> Predictor:
        """Train on these rows."""
        y, squares = self.signs(target), np.sum(X**2, axis=1)
        count = min(5, len(y))

        def vote(rows: Any) -> Any:
            near = np.argpartition(squares - 2 * rows @ X.T, count - 1, axis=1)[:, :count]
            return y[near].mean(axis=1)

        return Predictor(vote)


LEARNERS = {"ridge": Ridge, "k-NN": NearestNeighbours}


def read_heart(path: Path) -> tuple[Any, Any, Any]:
    """Return features, encoded and standardised once, the label and the hospital."""
    frame = pd.read_csv(path)
    features = pd.get_dummies(frame.drop(columns=["country", "num"])).astype(float)
    features = (features - features.mean()) / features.std().replace(0, 1)
    label = (frame["num"] == "pos").astype(int).to_numpy()
    return features.to_numpy(), label, frame["country"].to_numpy()


def check_learners(X: Any, y: Any) -> None:
    rng = np.random.default_rng(0)
    for rows in (rng.permutation(len(y))[:size] for size in (10, 30, 100)):
        for ours, theirs in ((Ridge(), RidgeClassifier()), (NearestNeighbours(), _neighbours())):
            same = ours.train(X[rows], y[rows]).predict("label", X) == theirs.fit(
                X[rows], y[rows]
            ).predict(X)
            assert same.mean() > 0.99, type(theirs).__name__  # neighbours may tie


def _neighbours() -> KNeighborsClassifier:
    return KNeighborsClassifier(5, algorithm="brute")


def table_of(X: Any, y: Any, clusters: Any) -> AuditData:
    return AuditData(
        features=X,
        target=y,
        clusters=np.unique(clusters, return_inverse=True)[1],
        labels=tuple(map(str, np.unique(clusters))),
        target_name="y",
        cluster_name="cluster",
        feature_names=(),
        digest="",
        findings=(),
        ids=np.arange(len(y)),
    )


def one_fold(X: Any, y: Any, training: Any, validation: Any) -> tuple[AuditData, tuple[Fold, ...]]:
    rows = np.concatenate([training, validation])
    side = np.arange(len(rows)) >= len(training)
    fold = Fold(training=np.flatnonzero(~side), validation=np.flatnonzero(side))
    return table_of(X[rows], y[rows], side), (fold,)


def draw_hospital(case: dict[str, Any], heart: tuple[Any, Any, Any], rng: Any) -> Any:
    """Return T̂ and V̂: rows of one population, or a hospital of which a share is in T̂."""
    X, y, hospitals = heart
    if case["left_out"] == "nobody":
        rows = rng.permutation(len(y))
        return one_fold(X, y, rows[case["size"] :], rows[: case["size"]])
    inside = rng.permutation(np.flatnonzero(hospitals == case["left_out"]))
    others = np.flatnonzero(hospitals != case["left_out"])
    leaked = round(case["p0"] / (1 - case["p0"]) * len(others))
    moved = inside[case["size"] :][:leaked]
    return one_fold(X, y, np.concatenate([others, moved]), inside[: case["size"]])


def draw_unequal(case: dict[str, Any], rng: Any) -> Any:
    """Return rows of clusters of unequal size in five folds, with or without an effect of clusters."""
    name, world = case["scenario"].removeprefix("sizes: ").split(", ")
    clusters = np.repeat(np.arange(len(UNEQUAL[name])), UNEQUAL[name])
    rows = len(clusters)
    if world == "noise by cluster":
        X = rng.normal(size=(rows, 5))
        scale = rng.lognormal(sigma=1.0, size=len(UNEQUAL[name]))
        if name == "giant":  # noisier than the others, it would make models from T̂ worse: no null
            scale[0] = np.sqrt(np.mean(scale[1:] ** 2))
        noise = scale[clusters] * rng.normal(size=rows)
        y = X @ np.array([1.0, -1.0, 0.5, 0.0, 0.0]) + noise
    else:
        owner = clusters if world == "effect" else np.arange(rows)
        X = rng.normal(size=(owner.max() + 1, 5))[owner] + 0.4 * rng.normal(size=(rows, 5))
        shift = 1.2 * rng.normal(size=owner.max() + 1)[owner]
        score = X @ np.array([0.6, -0.6, 0.3, 0.0, 0.0]) + shift
        y = (score + 0.5 * rng.normal(size=rows) > 0).astype(int)
    order = rng.permutation(rows)
    table = table_of(X[order], y[order], clusters[order])
    return table, make_folds(table, 5, seed=int(rng.integers(2**31)))


def draw_clusters(case: dict[str, Any], heart: tuple[Any, Any, Any], rng: Any) -> Any:
    """Return 400 rows of 40 clusters in five folds, or the heart rows in folds of a hospital."""
    if case["scenario"].startswith("sizes: "):
        return draw_unequal(case, rng)
    seed = int(rng.integers(2**31))
    if case["scenario"] == "shuffled hospitals":
        table = table_of(*heart[:2], rng.permutation(heart[2]))
        return table, make_folds(table, seed=seed)
    clusters = np.repeat(np.arange(40), 10)
    if case["scenario"] == "noise by cluster":
        X = rng.normal(size=(400, 5))
        scale = rng.lognormal(sigma=1.0, size=40)[clusters]
        y = X @ np.array([1.0, -1.0, 0.5, 0.0, 0.0]) + scale * rng.normal(size=400)
    else:
        records = 10 if case["scenario"] == "patients" else 1
        frame = b3.make_clinic(patients=400 // records, records=records, seed=seed).frame
        X = frame.drop(columns=["disease", "patient_id"]).to_numpy()
        y = frame["disease"].to_numpy()
    table = table_of(X, y, clusters)
    return table, make_folds(table, 5, seed=seed, repeats=3 if "audit" in case["scenario"] else 1)


def run(case: dict[str, Any], heart: tuple[Any, Any, Any]) -> dict[str, Any]:
    key = [case["seed"], case.get("size", 0), *case["scenario"].encode()]
    rng = np.random.default_rng(key)
    clustered = case["scenario"] in CLUSTERED
    table, folds = draw_clusters(case, heart, rng) if clustered else draw_hospital(case, heart, rng)
    noisy = case["scenario"].endswith("noise by cluster")
    task = "regression" if noisy else "classification"
    common: dict[str, Any] = {
        "data": table,
        "learner": LEARNERS[case["learner"]](task),
        "loss": resolve_loss("squared" if task == "regression" else "zero_one", task),
        "seed": case["seed"],
        "means": Means(progress=False),
    }
    if case["form"] == "doses":
        largest = int(np.bincount(table.clusters).max())
        plan = plan_doses(None, n_folds=5, n_iid=5, slots=len(dose_levels(largest)))
        folds = make_folds(table, 5, seed=case["seed"], repeats=plan.passes)
        campaign = DoseCampaign(
            **common, folds=folds, repeats=plan.passes, budget=None, passes=plan, enough=None
        )
        measured, counts = campaign.measure()
        test = conclude_test(measured.test_losses, "paired", splits=folds)
    else:
        budget = 6 * len(folds) if "audit" in case["scenario"] else None
        if case["form"] == "permutation":
            budget = 6 * len(folds) * (ARRANGEMENTS[len(folds)] + 1)
        campaign = Campaign(**common, folds=folds, budget=budget, test=case["form"])
        with campaign.session() as session:
            losses = measure_test(campaign, session, budget)
        test, counts = conclude_test(losses, case["form"], splits=folds), session.counts
    return {
        **case,
        "p": test.pvalue,
        "effect": test.effect,
        "detectable": test.detectable,
        "units": test.units,
        "fits": counts.done,
    }


def cases(args: argparse.Namespace) -> list[dict[str, Any]]:
    made = []
    for form in args.forms:
        for learner in args.learners:
            for kind in args.kinds:
                repetitions = {"null": args.null, "power": args.power}[kind]
                if form == "permutation":
                    repetitions = args.permutation
                if "heart" in args.data_kinds:
                    for size in args.sizes or SIZES[kind]:
                        hospitals = ["nobody"] if kind == "null" else args.left_out
                        made += [
                            {"scenario": f"heart without {h}", "kind": kind, "size": size}
                            | {"left_out": h, "p0": args.p0, "form": form, "learner": learner}
                            | {"repetitions": repetitions}
                            for h in hospitals
                        ]
                if "clustered" in args.data_kinds:
                    made += [
                        {"scenario": name, "kind": kind, "form": form, "learner": learner}
                        | {"repetitions": repetitions}
                        for name, meant in CLUSTERED.items()
                        if meant == kind and _applies(form, name)
                    ]
    return [
        {**{k: v for k, v in case.items() if k != "repetitions"}, "seed": args.first_seed + number}
        for case in made
        for number in range(case["repetitions"])
    ]


def _applies(form: str, scenario: str) -> bool:
    """Return whether a form is tried; audits by doses need more clusters than four hospitals."""
    if form == "doses":
        return "audit" not in scenario and "hospitals" not in scenario
    return form == "paired" or not ("audit" in scenario or scenario.startswith("sizes"))


def table(results: list[dict[str, Any]], kind: str) -> str:
    """Return one line for every scenario, size and learner, one column for every form."""
    groups = defaultdict(dict)
    for result in results:
        if result["kind"] == kind:
            row = (result["scenario"], result.get("size", 0), result["learner"])
            groups[row].setdefault(result["form"], []).append(result)
    lines = [
        f"| scenario | validation rows | learner | {' | '.join(FORMS)} |",
        "|---|---|---|" + "---|" * len(FORMS),
    ]
    for (scenario, size, learner), forms in sorted(groups.items()):
        cells = " | ".join(_cell(forms.get(form, [])) for form in FORMS)
        lines.append(
            f"| {scenario} | {size or FOLDS.get(scenario, '5 × 80')} | {learner} | {cells} |"
        )
    return "\n".join(lines)


def _cell(results: list[dict[str, Any]]) -> str:
    if not results:
        return "–"
    rejected = sum(result["p"] <= 0.05 + 1e-12 for result in results)
    low, high = stats.binomtest(rejected, len(results)).proportion_ci(method="wilson")
    share = 100 * rejected / len(results)
    return f"{share:.1f}% ({100 * low:.1f}–{100 * high:.1f}, n = {len(results)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="heart.csv with the columns country and num")
    parser.add_argument("--null", type=int, default=500, help="repetitions where nothing leaks")
    parser.add_argument("--power", type=int, default=200)
    parser.add_argument("--permutation", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--p0", type=float, default=0.1)
    parser.add_argument("--left-out", nargs="+", default=["hungarian"])
    parser.add_argument("--sizes", nargs="+", type=int)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--learners", nargs="+", choices=list(LEARNERS), default=list(LEARNERS))
    parser.add_argument("--kinds", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument(
        "--data-kinds", nargs="+", choices=["heart", "clustered"], default=["heart", "clustered"]
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("leakage_test.jsonl"))
    parser.add_argument("--table", type=Path, help="print the tables of an earlier run only")
    parser.add_argument("--docs", type=Path, help="put the tables into this Markdown file")
    args = parser.parse_args()
    if not args.table:
        heart = read_heart(args.data)
        check_learners(*heart[:2])
        done = _read(args.out)
        known = {_address(result) for result in done}
        missing = [case for case in cases(args) if _address(case) not in known]
        started = time.perf_counter()
        with args.out.open("a") as file:
            for result in Parallel(n_jobs=args.jobs, return_as="generator", batch_size=20)(
                delayed(run)(case, heart) for case in missing
            ):
                file.write(json.dumps(result) + "\n")
        print(f"{len(missing)} tests in {time.perf_counter() - started:.0f} s\n")
    results = _read(args.table or args.out)
    tables = {kind: table(results, kind) for kind in SIZES}
    print(tables["null"], tables["power"], sep="\n\n")
    if args.docs:
        text = args.docs.read_text(encoding="utf-8")
        for kind, lines in tables.items():
            start, end = f"<!-- {kind} -->", f"<!-- end of {kind} -->"
            head, rest = text.split(start)
            text = f"{head}{start}\n{lines}\n{end}{rest.split(end)[1]}"
        args.docs.write_text(text, encoding="utf-8")


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _address(case: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(case.get(name) for name in ("scenario", "size", "p0", "form", "learner", "seed"))


if __name__ == "__main__":
    main()
