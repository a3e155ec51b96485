"""The distribution of the loss on new clusters, not only its mean."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.errors import InputError

pytestmark = pytest.mark.newest

LEVELS = np.array([0, 0.04, 0.16, 0.36, 0.64, 1.0])
THRESHOLDS = (0.1, 0.5, 2.0)


def curves_of(p0, noise=0.0):
    """Losses are exponential with mean 1 + (1-p)²: P(loss > t) = exp(-t/mean)."""
    rng = np.random.default_rng(0)
    mean = 1 + (1 - p0 - LEVELS * (1 - p0)) ** 2
    return [
        b3.LossCurve(
            injected=LEVELS,
            loss=np.exp(-t / mean) + noise * rng.standard_normal(6),
            stderr=np.full(6, max(noise, 1e-6)),
            n_train=100,
        )
        for t in THRESHOLDS
    ]


def test_the_distribution_without_leakage_is_recovered():
    truth = np.array([np.exp(-t / 2) for t in THRESHOLDS])
    smooth = b3.estimate_distribution(THRESHOLDS, curves_of(0.1), 0.1, "basis", order=5)
    assert smooth.exceeding == pytest.approx(truth, abs=2e-4)
    default = b3.estimate_distribution(THRESHOLDS, curves_of(0.1), 0.1)
    assert np.all(np.abs(default.exceeding - truth) < np.abs(default.uncorrected - truth))


def test_shares_never_rise_with_the_threshold_and_stay_inside_their_intervals():
    for share in (0.1, 0.3):
        found = b3.estimate_distribution(THRESHOLDS, curves_of(0.1, noise=0.05), share)
        for values in (found.exceeding, found.low, found.high):
            assert np.all(np.diff(values) <= 0)
            assert all(0 <= value <= 1 for value in values)
        assert np.all(np.array(found.low) <= found.exceeding)
        assert np.all(found.exceeding <= np.array(found.high))


def test_quantiles_lie_between_thresholds():
    found = b3.estimate_distribution(THRESHOLDS, curves_of(0.1), 0.1)
    assert found.quantile(0.5) == (0.5, 2.0), "the median of the exponential is 2·ln 2 = 1.39"
    assert found.quantile(0.01) == (None, 0.1)
    assert found.quantile(0.99) == (2.0, None)
    with pytest.raises(InputError, match=r"share=1.5 must lie in \(0, 1\)"):
        found.quantile(1.5)


@pytest.mark.parametrize("thresholds", [(), (0.5, 0.1, 2.0), (0.1, 0.5), (0.1, float("nan"), 2.0)])
def test_thresholds_must_increase_and_have_a_curve_each(thresholds):
    with pytest.raises(InputError, match="thresholds must be finite and increase"):
        b3.estimate_distribution(thresholds, curves_of(0.1), 0.1)


@pytest.fixture(scope="module")
def clinic():
    return b3.make_clinic(patients=40, cluster_error=0.1, seed=1)


def audit(clinic, model, **options):
    return b3.audit(
        model,
        clinic.frame,
        target="disease",
        cluster="patient_id",
        cluster_error=0.1,
        repeats=1,
        budget=120,
        **options,
    )


def test_an_audit_gives_the_distribution_of_a_loss_with_many_values(clinic):
    report = audit(clinic, LogisticRegression(), loss="log", distribution=True)
    found = report.distribution
    assert found is not None
    assert len(found.thresholds) == 6
    assert found.uncorrected == pytest.approx([0.9, 0.75, 0.5, 0.25, 0.1, 0.05], abs=0.02)
    assert b3.AuditReport.from_dict(report.to_dict()) == report
    assert "Share of rows with a loss above a threshold" in report.to_text()


def test_a_loss_of_two_values_has_no_distribution_beyond_its_mean(clinic):
    report = audit(clinic, KNeighborsClassifier(), distribution=True)
    assert report.distribution is None
    assert "above a threshold" not in report.to_text()


def test_a_distribution_that_cannot_be_had_is_said_not_swallowed(clinic):
    with pytest.raises(InputError, match="give p0 or cluster_error"):
        b3.audit(
            KNeighborsClassifier(),
            clinic.frame,
            target="disease",
            cluster="patient_id",
            split_rate=0.2,
            distribution=True,
        )
    report = audit(clinic, KNeighborsClassifier(), distribution=True)
    assert "B320" in {finding.code for finding in report.findings}


def test_nearly_all_validation_rows_may_belong_to_training_clusters(clinic):
    report = b3.audit(
        KNeighborsClassifier(),
        clinic.frame,
        target="disease",
        cluster="patient_id",
        p0=0.01,
        p0_validation=0.97,
        repeats=1,
        budget=100,
    )
    assert report.sensitivity.p0 == (0.0,)
