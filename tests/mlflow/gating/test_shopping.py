"""Audits that were shopped for: real ones that look good because the wrong thing was audited."""

from dataclasses import replace

import mlflow
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import mlflow_b3 as b3
from mlflow_b3.evidence.policy import Pin, load_policy
from mlflow_b3.tracking.recording import audit_and_record

pytestmark = [pytest.mark.newest, pytest.mark.filterwarnings("ignore:Hint")]

PATIENTS, RECORDS = 120, 4
PINNED = Pin(
    models="shop-*",
    target=("disease",),
    cluster=("patient_id",),
    loss=("zero_one",),
    data=("training",),
)


def rules(*pins, **changes):
    """Return the default policy, but for signatures, with pins."""
    return replace(load_policy(), signed=False, pins=pins, **changes)


def honest():
    """Return a table of patients whose measurements tell much about their disease."""
    rng = np.random.default_rng(5)
    health = np.repeat(rng.normal(size=(PATIENTS, 3)), RECORDS, axis=0)
    measured = health + 0.3 * rng.normal(size=health.shape)
    chance = 1 / (1 + np.exp(-4 * measured[:, 0]))
    return pd.DataFrame(measured, columns=["age", "bmi", "glucose"]).assign(
        disease=(rng.random(len(measured)) < chance).astype(int),
        patient_id=np.repeat(np.arange(PATIENTS), RECORDS),
        site=rng.integers(0, 40, len(measured)),
        row=np.arange(len(measured)),
    )


def copied(frame):
    return pd.concat(
        [frame, frame.assign(patient_id=frame["patient_id"] + 1000)], ignore_index=True
    )


def leaking(frame):
    return frame.assign(bmi=frame["disease"])


@pytest.fixture(scope="module")
def audited(shared_store):
    """Return what registers a model, audits it on a table, and gives the URI of its version."""
    assert shared_store
    done = {}

    def audit(kind, frame, cluster="patient_id", trained_on=None):
        if kind in done:
            return done[kind]
        features = ["age", "bmi", "glucose"]
        training = frame if trained_on is None else trained_on
        with mlflow.start_run():
            mlflow.log_input(mlflow.data.from_pandas(training, targets="disease"), "training")
            info = mlflow.sklearn.log_model(
                LogisticRegression().fit(frame[features], frame["disease"]),
                name="model",
                input_example=frame[features].head(2),
                pip_requirements=["scikit-learn"],
            )
        version = mlflow.register_model(info.model_uri, f"shop-{kind}")
        done[kind] = f"models:/{version.name}/{version.version}"
        settings = {"cluster_error": 0.02, "budget": 150, "n_jobs": 1, "progress": False}
        audit_and_record(done[kind], frame, target="disease", cluster=cluster, **settings)
        return done[kind]

    return audit


TRICKS = {
    "row id as cluster": lambda audit: audit("row", honest(), cluster="row"),
    "random site as cluster": lambda audit: audit("site", honest(), cluster="site"),
    "rows copied under new ids": lambda audit: audit(
        "copied", copied(honest()), trained_on=honest()
    ),
    "target copied into a feature": lambda audit: audit(
        "leaking", leaking(honest()), trained_on=honest()
    ),
}


def failed(verdict):
    return {reason.check for reason in verdict.reasons if reason.outcome == "FAIL"}


@pytest.mark.parametrize("limit", ["constant", 0.4])
def test_the_honest_audit_passes_a_policy_that_pins_it(audited, limit):
    verdict = b3.gate(audited("honest", honest()), rules(PINNED, e0_high=limit))
    assert verdict.outcome == "PASS", str(verdict)


@pytest.mark.parametrize("trick", TRICKS)
def test_every_trick_is_refused_by_a_policy_that_pins_what_counts(audited, trick):
    verdict = b3.gate(TRICKS[trick](audited), rules(PINNED, e0_high=0.4))
    assert (verdict.outcome, verdict.allowed) == ("FAIL", False)
    assert "pins" in failed(verdict)


@pytest.mark.parametrize("trick", TRICKS)
def test_every_trick_is_refused_by_the_default_policy(audited, trick):
    uri = TRICKS[trick](audited)
    assert not b3.gate(uri).allowed
    assert failed(b3.gate(uri, rules())) >= {"pins"}


def test_the_default_policy_refuses_until_somebody_says_what_to_audit(audited):
    verdict = b3.gate(audited("honest", honest()), rules())
    assert failed(verdict) == {"pins"}
    assert "mlflow-b3 policy init models:/shop-honest/1" in " ".join(str(verdict).split())


@pytest.mark.parametrize(
    ("trick", "code"),
    [
        ("row id as cluster", "B311"),
        ("rows copied under new ids", "B344"),
        ("target copied into a feature", "B343"),
    ],
)
def test_findings_refuse_even_where_nothing_is_pinned(audited, trick, code):
    verdict = b3.gate(TRICKS[trick](audited), rules(Pin(models="*"), e0_high=0.4))
    assert "findings" in failed(verdict)
    assert any(reason.text.startswith(code) for reason in verdict.decisive)


def test_a_random_cluster_column_passes_where_nothing_is_pinned(audited):
    """Only a person knows which column matters: that is what pins are for."""
    uri = TRICKS["random site as cluster"](audited)
    verdict = b3.gate(uri, rules(Pin(models="*"), e0_high=0.4))
    assert verdict.outcome == "PASS"
    assert any("nothing is pinned" in reason.text for reason in verdict.reasons)
