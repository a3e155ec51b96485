"""Odd tables, by the hundred: an audit of one ends with a report that can be read, or says why not."""

import json
import math
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from fuzzed import COLUMNS, LEARNERS, Indifferent, Odd, odd_tables
from hypothesis import HealthCheck, event, given, settings
from sklearn.linear_model import LinearRegression, LogisticRegression

import mlflow_b3
from mlflow_b3 import AuditReport, InputError
from mlflow_b3.errors import B3Error

pytestmark = pytest.mark.newest

FUZZED = settings(
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)


def check(report: AuditReport) -> None:
    """Fail where a report holds a number that is none, or cannot be written, read or printed."""
    low, high = report.e0_interval
    for value in (report.e0, low, high, report.e0_secant, report.loco, report.iid):
        assert value is None or math.isfinite(value)
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert AuditReport.from_dict(json.loads(text)).to_dict() == json.loads(text)
    assert str(report)
    assert "</html>" in report.to_html()


def audit(odd: Odd) -> AuditReport | None:
    """Audit a table; None where it was refused in words of ours."""
    frame = odd.frame()
    learner = LEARNERS[odd.learner]()
    try:
        return mlflow_b3.audit(learner, frame, **odd.arguments(), budget=80, repeats=1, n_jobs=1)
    except B3Error as error:
        event(f"refused: {type(error).__name__}")
    return None


@FUZZED
@given(odd_tables())
def test_an_audit_of_an_odd_table_ends_with_a_report_or_says_why_not(odd):
    report = audit(odd)
    if report is not None:
        event("audited")
        check(report)


# --- what fuzzing found ----------------------------------------------------------------------------

FRAME = pd.DataFrame(
    {
        "a": np.random.default_rng(0).normal(size=36),
        "y": np.arange(36) % 2,
        "id": np.arange(36) // 3,
    }
)
SMALL = {"target": "y", "cluster": "id", "folds": 2, "budget": 80, "repeats": 1, "n_jobs": 1}


def test_a_column_of_objects_of_several_kinds_is_audited_or_refused():
    column = COLUMNS["objects"](np.random.default_rng(74), len(FRAME))
    with suppress(B3Error):
        check(mlflow_b3.audit(Indifferent(), FRAME.assign(b=column), **SMALL))


@pytest.mark.parametrize(
    "target",
    [
        np.where(np.arange(36) % 2, np.inf, 0.0),
        np.arange(36) * 1j,
        np.random.default_rng(0).normal(size=36) * 1e200,
    ],
)
def test_a_target_that_is_infinite_complex_or_huge_is_refused_by_a_classifier(target):
    with pytest.raises(InputError, match="target 'y'"):
        mlflow_b3.audit(LogisticRegression(), FRAME.assign(y=target), **SMALL)


def test_a_complex_target_is_refused_by_a_regressor():
    with pytest.raises(InputError, match="target 'y'"):
        mlflow_b3.audit(LinearRegression(), FRAME.assign(y=np.arange(36) * 1j), **SMALL)


def test_an_empty_table_with_weights_is_refused():
    empty = FRAME.assign(w=1.0).iloc[:0]
    with pytest.raises(InputError, match="0 rows are too few"):
        mlflow_b3.audit(LogisticRegression(), empty, **SMALL, sample_weight="w")


@pytest.mark.parametrize(
    "wrong", [{"target": []}, {"row_id": {}}, {"sample_weight": np.ones(36)}], ids=str
)
def test_what_cannot_be_the_name_of_a_column_is_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        mlflow_b3.audit(LogisticRegression(), FRAME, **{**SMALL, **wrong})


def test_a_complex_feature_is_refused():
    with pytest.raises(InputError, match="feature 'b' holds complex numbers"):
        mlflow_b3.audit(Indifferent(), FRAME.assign(b=np.arange(36) * 1j), **SMALL)
