"""The simulated clinic, whose true patients are known, and the demonstration on it."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GroupKFold
from sklearn.neighbors import KNeighborsClassifier

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.errors import InputError, check_seed, choose
from mlflow_b3.measurement.refits import parse_fragments
from mlflow_b3.refit.learner import Learner, Rows
from mlflow_b3.refit.sklearn import CloneLearner
from mlflow_b3.results import number
from mlflow_b3.tracking.recording import audit_and_record

# --- A simulated clinic whose true patients are known, so that an audit can be checked

FEATURES = ("age", "bmi", "glucose", "pressure", "cholesterol")
WEIGHTS = np.array([3.0, -2.0, 1.4, 0.0, 0.0])
WITHIN_PATIENT = 0.2
PATIENT_EFFECT = 4.0


@dataclass(frozen=True, kw_only=True)
class Clinic:
    """Records of simulated patients with damaged patient ids.

    Attributes
    ----------
    frame : pandas.DataFrame
        Standardised measurements, the label `disease`, and the damaged id `patient_id`.
    patients : numpy.ndarray
        The true patient of each record.
    records : int
        Records per patient.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> clinic = b3.make_clinic(patients=20, records=4)
    >>> clinic.frame["patient_id"].nunique(), clinic.records
    (20, 4)
    >>> clinic.patients[:6].tolist()
    [0, 0, 0, 0, 1, 1]
    """

    frame: pd.DataFrame
    patients: NDArray[np.intp]
    records: int

    def truth(
        self, model: Any, *, folds: int = 5, repeats: int = 4, fresh: int = 2000, seed: int = 0
    ) -> float:
        """Return the error rate on fresh patients: what the audit's e0 is meant to be.

        The model is trained on folds by the true patients, `repeats` times over, and scored on
        records of `fresh` patients that no fold has seen.

        Parameters
        ----------
        model : classifier with scikit-learn's interface, or Learner that trains all of itself
        folds, repeats, fresh, seed : int
        """
        rng = np.random.default_rng([seed, 1])
        outside = _records(fresh, self.records, rng)
        learner = model if isinstance(model, Learner) else CloneLearner(clone(model))
        X, target = self.frame[list(FEATURES)], self.frame["disease"].to_numpy()
        losses = []
        for _ in range(repeats):
            groups = rng.permutation(self.patients.max() + 1)[self.patients]
            for rows, _ in GroupKFold(folds).split(X, groups=groups):
                training = Rows(X=X.iloc[rows], target=target[rows], ids=rows)
                fitted = learner.fit(training, int(rng.integers(2**31)))
                wrong = fitted.predict("label", outside[list(FEATURES)]) != outside["disease"]
                losses.append(float(np.mean(wrong)))
        return float(np.mean(losses))


def make_clinic(
    *,
    patients: int = 200,
    records: int = 10,
    cluster_error: float = 0.0,
    split_rate: float = 0.0,
    fragments: Any = "uniform",
    seed: int = 0,
) -> Clinic:
    """Simulate a clinic.

    A patient has a state of health that her records repeat with little noise, and a disposition
    that no measurement shows; both decide about the disease. A learner that has seen other records
    of a patient knows her disposition, one that meets her for the first time does not.

    Parameters
    ----------
    patients, records : int
        Number of patients, and of records for each.
    cluster_error : float
        Share of records that get the id of a random patient (pattern `rows`).
    split_rate : float
        Share of patients whose records are split in two ids (pattern `fragments`).
    fragments : {"uniform", "halves", "singles"} or sequence of numbers
        How many records get the second id, as in `audit`.
    seed : int

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> clinic = b3.make_clinic(patients=20, records=4, cluster_error=0.1)
    >>> clinic.frame.shape
    (80, 7)
    >>> clinic.frame.columns[-2:].tolist()
    ['disease', 'patient_id']
    """
    for name, value in (("cluster_error", cluster_error), ("split_rate", split_rate)):
        if not 0 <= value <= 1:
            raise InputError(f"{name}={value!r} must lie in [0, 1].")
    if patients < 2 or records < 1:
        raise InputError(f"patients={patients!r} and records={records!r} are too few.")
    check_seed(seed)
    sizes = parse_fragments(fragments)
    rng = np.random.default_rng([seed, 0])
    frame = _records(patients, records, rng)
    true = np.repeat(np.arange(patients), records)
    ids = true.copy()
    wrong = rng.random(len(ids)) < cluster_error
    ids[wrong] = rng.integers(0, patients, int(wrong.sum()))
    following = patients
    for patient in np.flatnonzero(rng.random(patients) < split_rate):
        own = rng.permutation(np.flatnonzero(true == patient))
        if sizes.applies(len(own)):
            ids[own[: sizes.draw(len(own), rng)]] = following
            following += 1
    return Clinic(
        frame=frame.assign(patient_id=[f"P{number:05d}" for number in ids]),
        patients=true,
        records=records,
    )


def _records(patients: int, records: int, rng: np.random.Generator) -> pd.DataFrame:
    health = np.repeat(rng.normal(size=(patients, len(FEATURES))), records, axis=0)
    disposition = np.repeat(rng.normal(size=patients) * PATIENT_EFFECT, records)
    measured = health + WITHIN_PATIENT * rng.normal(size=health.shape)
    chance = 1 / (1 + np.exp(-(measured @ WEIGHTS + disposition)))
    frame = pd.DataFrame(measured, columns=list(FEATURES))
    return frame.assign(disease=(rng.random(len(frame)) < chance).astype(int))


# --- The embedded demonstration: a simulated clinic, a logged model, an audit, and the truth

#: How the ids of the demonstration's clinic are damaged, by pattern.
DAMAGE = {"rows": ("cluster_error", 0.1), "fragments": ("split_rate", 0.4)}


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What the demonstration made: the audit of its model, its run, and the truth."""

    report: AuditReport
    run_id: str
    truth: float

    def told_truth(self) -> str:
        """Return the truth, which only a simulation can know, and how far each score is from it."""
        low, high = self.report.e0_interval
        inside = "inside" if high is not None and low <= self.truth <= high else "outside"
        errors = {
            "reported": self.report.iid,
            "by patient_id": self.report.loco,
            "on new patients (e0)": self.report.e0 or 0.0,
        }
        listed = "; ".join(f"{name} {value - self.truth:+.3f}" for name, value in errors.items())
        return (
            "The truth (known here, because the clinic is simulated)\n"
            f"  error rate on 2000 fresh patients: {number(self.truth)}, {inside} the interval of e0.\n"
            f"  distance from it: {listed}."
        )


def run_demo(*, pattern: str = "rows", seed: int = 0, **options: Any) -> Demo:
    """Simulate a clinic, train and log a model, audit it, and compare with the truth.

    Parameters
    ----------
    pattern : {"rows", "fragments"}
        Damage 10% of the patient ids row by row, or split 40% of the patients in two.
    seed : int
    **options
        Passed on to `mlflow_b3.audit`.
    """
    argument, rate = DAMAGE[choose("pattern", pattern, DAMAGE)]
    clinic = make_clinic(seed=seed, **{argument: rate})  # type: ignore[arg-type]
    # brute force: the tree of the other algorithms is not among skops' trusted types
    model = KNeighborsClassifier(5, algorithm="brute")
    uri = _log(model, clinic)
    options.update({argument: rate})
    report, run_id = audit_and_record(
        uri, clinic.frame, target="disease", cluster="patient_id", seed=seed, **options
    )
    return Demo(report=report, run_id=run_id, truth=clinic.truth(model, seed=seed))


def _log(model: Any, clinic: Clinic) -> str:
    import mlflow

    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    with warnings.catch_warnings(), _outside_project_run():
        # MLflow's hint about integer columns and missing values; the label has none
        warnings.filterwarnings("ignore", message="Hint: Inferred schema contains integer")
        with mlflow.start_run(run_name="clinic-training", nested=True):
            info = mlflow.sklearn.log_model(
                model.fit(X, y),
                name="clinic",
                input_example=X.head(3),
                pip_requirements=["mlflow", "scikit-learn"],
            )
    return str(info.model_uri)


@contextmanager
def _outside_project_run() -> Iterator[None]:
    """Keep `start_run` from joining the run that `mlflow run` has made for the audit."""
    project = os.environ.pop("MLFLOW_RUN_ID", None)
    try:
        yield
    finally:
        if project is not None:
            os.environ["MLFLOW_RUN_ID"] = project
