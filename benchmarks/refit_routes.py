"""How much of the bias each route of refitting shows, where the truth is known.

    python benchmarks/refit_routes.py --clinics 4

Simulated clinics with a cluster error of 10%. A model is trained on all records, as one that is
logged would be; then it is audited by every route it allows. The truth is the error rate on fresh
patients of models trained from scratch. Needs the extra `pytorch`.
"""

import argparse
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.demo import FEATURES
from mlflow_b3.refit import Rows, load_model

CLUSTER_ERROR = 0.1
RECIPE = {
    "epochs": 40,
    "learning_rate": 0.02,
    "batch_size": 64,
    "optimizer": "Adam",
    "loss": "cross_entropy",
}
SHORT = {**RECIPE, "epochs": 4}


def network() -> torch.nn.Module:
    layers = [torch.nn.Linear(len(FEATURES), 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)]
    return torch.nn.Sequential(*layers)


def trained_network(X: Any, y: Any, seed: int) -> torch.nn.Module:
    """Train a network as its user would."""
    torch.manual_seed(seed)
    model = network()
    inputs, labels = torch.tensor(X.to_numpy(), dtype=torch.float32), torch.tensor(y)
    optimizer = torch.optim.Adam(model.parameters(), lr=RECIPE["learning_rate"])
    for _ in range(RECIPE["epochs"]):
        for rows in torch.randperm(len(labels)).split(RECIPE["batch_size"]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    return model.eval()


def audits(seed: int, budget: int) -> dict[tuple[str, str], tuple[float, ...]]:
    """Return error, LOCO, e0 and the truth by model and route."""
    torch.set_num_threads(1)
    clinic = b3.make_clinic(patients=100, records=8, cluster_error=CLUSTER_ERROR, seed=seed)
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"].to_numpy()
    forest = RandomForestClassifier(50, min_samples_leaf=2, random_state=seed).fit(X, y)
    neighbours = KNeighborsClassifier(5, algorithm="brute").fit(X, y)
    net = trained_network(X, y, seed)
    fresh = load_model(net, refit="fresh", options=RECIPE).learner
    fresh = fresh.with_task("classification").with_target(y)
    fresh.fit(Rows(X=fresh.represent(X, np.arange(len(y))), target=y, ids=np.arange(len(y))), 0)
    cases = [
        ("forest", forest, forest, {"clone": {}, "head": {}}),
        ("neighbours", neighbours, neighbours, {"clone": {}, "head": {}}),
        (
            "network",
            net,
            fresh,
            {"fresh": RECIPE, "hot-start": SHORT, "last-layer": {}, "head": {}},
        ),
    ]
    found = {}
    for name, model, learner, routes in cases:
        truth = clinic.truth(learner, repeats=2, seed=seed)
        for route, options in routes.items():
            if name == "network" and route == "head":
                model = Probabilities(net)
            report = b3.audit(
                model,
                clinic.frame,
                target="disease",
                cluster="patient_id",
                cluster_error=CLUSTER_ERROR,
                refit=route,
                refit_options=options,
                method="power",
                budget=budget,
                seed=seed,
            )
            found[name, route] = (report.iid, report.loco, report.e0, report.e0_interval[0], truth)
    return found


class Probabilities:
    """A network that shows nothing but its probabilities."""

    def __init__(self, net: torch.nn.Module) -> None:
        self.net = net

    def predict(self, X: Any) -> Any:  # noqa: D102
        with torch.no_grad():
            inputs = torch.tensor(X.to_numpy(), dtype=torch.float32)
            return torch.softmax(self.net(inputs), dim=1).numpy()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clinics", type=int, default=4)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--n-jobs", type=int, default=-1)
    given = parser.parse_args()
    clinics = Parallel(n_jobs=given.n_jobs)(
        delayed(audits)(seed, given.budget) for seed in range(given.clinics)
    )
    print("| model | route | IID | LOCO | e0 | at least | truth | part of the bias that shows |")
    print("|---|---|---|---|---|---|---|---|")
    for key in clinics[0]:
        iid, loco, e0, low, truth = np.mean([clinic[key] for clinic in clinics], axis=0)
        reference = {"forest": "clone", "neighbours": "clone", "network": "fresh"}[key[0]]
        naive = np.mean([clinic[key[0], reference][0] for clinic in clinics])
        shown = (e0 - naive) / (truth - naive)
        print(
            f"| {key[0]} | {key[1]} | {iid:.3f} | {loco:.3f} | {e0:.3f} | {low:.3f} | {truth:.3f} "
            f"| {100 * shown:.0f}% |"
        )


if __name__ == "__main__":
    main()
