"""Refits for the tests of clusters; workers import this module, so it is on their path."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier

from mlflow_b3.data.folds import make_folds
from mlflow_b3.data.losses import resolve_loss
from mlflow_b3.data.table import ModelInputs, prepare
from mlflow_b3.demo import make_clinic
from mlflow_b3.measurement.design import exposures
from mlflow_b3.measurement.refits import Refitter, Resampler, Task, WorkersLost, parse_fragments
from mlflow_b3.refit.sklearn import CloneLearner


def clinic(patients=12, records=5):
    """Return a table with every kind of column that must survive the trip."""
    frame = make_clinic(patients=patients, records=records, seed=1).frame
    rows = np.arange(len(frame))
    return frame.assign(
        ward=pd.Categorical(np.array(["a", "b", "c"])[rows % 3]),
        note=[f"note {row % 4}" for row in rows],
    )


def make_refitter(model, frame=None, loss="zero_one"):
    data = prepare(
        clinic() if frame is None else frame,
        target="disease",
        cluster="patient_id",
        task="classification",
        inputs=ModelInputs(),
    )
    folds = make_folds(data, 3, seed=0)
    resampler = Resampler(
        folds=folds,
        iid_folds=folds,
        clusters=data.clusters,
        exposures=exposures(),
        scheme="subset",
        seed=0,
        fragments=parse_fragments("uniform"),
    )
    return Refitter(
        data=data,
        learner=CloneLearner(model),
        loss=resolve_loss(loss, "classification"),
        resampler=resampler,
    )


def make_tasks(replicates=4):
    return [
        Task("rows", fold, level, r)
        for fold in range(3)
        for level in (1, 2)
        for r in range(replicates)
    ]


def in_batches(tasks, size=3):
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


def run_all(workers, tasks, after_batch=lambda: None):
    """Run tasks as an audit does: what was lost with a worker is run again."""
    done = {}
    for _ in range(3):
        missing = [task for task in tasks if task not in done]
        try:
            for outcomes in workers.run(in_batches(missing)):
                done |= {outcome.task: outcome for outcome in outcomes}
                after_batch()
            break
        except WorkersLost:
            continue
    return [done[task] for task in tasks]


def losses(outcomes):
    """Return what must be the same everywhere, to the last bit."""
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
    return [(o.task, o.validation.tobytes(), o.held_back.tobytes(), o.one_class) for o in outcomes]


class Meddler(ClassifierMixin, BaseEstimator):
    """A forest that writes into what it is given, as a careless learner does."""

    def fit(self, X, y):
        codes = self._codes(X)
        y[:] = y.copy()
        self.classes_ = np.unique(y)
        if X["ward"].dtype != "category" or len(X["ward"].cat.categories) != 3:
            raise TypeError("the categories are gone")
        self.forest_ = RandomForestClassifier(5, random_state=int(codes[:, 1].sum() * 1e3) % 1000)
        self.forest_.fit(codes, y)
        return self

    def _codes(self, X):
        X.loc[:, "note"] = X["note"].str.upper()
        numbers = X.select_dtypes("number").to_numpy(dtype=float)
        ward = X["ward"].cat.codes.to_numpy(dtype=float)
        return np.column_stack([numbers, ward, X["note"].str[-1].astype(float)])

    def predict(self, X):
        return self.forest_.predict(self._codes(X))

    def predict_proba(self, X):
        return self.forest_.predict_proba(self._codes(X))


class Slow(ClassifierMixin, BaseEstimator):
    """Learns the commoner class, and takes its time; notes when, and in which process."""

    def __init__(self, folder="", seconds=0.05):
        self.folder = folder
        self.seconds = seconds

    def fit(self, X, y):  # noqa: ARG002
        begun = time.time()
        (Path(self.folder) / f"{os.getpid()}.begun").touch()
        time.sleep(self.seconds)
        self.classes_, counts = np.unique(y, return_counts=True)
        self.common_ = self.classes_[counts.argmax()]
        with open(Path(self.folder) / f"{os.getpid()}.times", "a") as file:
            file.write(f"{begun} {time.time()}\n")
        return self

    def predict(self, X):
        return np.full(len(X), self.common_)


def processes(folder):
    """Return the numbers of the processes in which `Slow` was fitted."""
    return {int(path.stem) for path in Path(folder).glob("*.begun")}


def most_at_once(folder):
    """Return how many fits of `Slow` there were at the same time, at most."""
    noted = [path.read_text().splitlines() for path in Path(folder).glob("*.times")]
    spans = [line.split() for lines in noted for line in lines]
    edges = sorted(
        [(float(begun), 1) for begun, _ in spans] + [(float(ended), -1) for _, ended in spans]
    )
    return max(np.cumsum([step for _, step in edges]))


class Counted(Slow):
    """Counts how often it is pickled in this process."""

    pickled = 0

    def __getstate__(self):  # noqa: D105
        Counted.pickled += 1
        return super().__getstate__()


class Suicidal(Slow):
    """Kills its own process the first time that it is fitted anywhere: a worker out of memory."""

    def fit(self, X, y):
        try:
            (Path(self.folder) / "killed").touch(exist_ok=False)
        except FileExistsError:
            return super().fit(X, y)
        os.kill(os.getpid(), signal.SIGKILL)
        return self
