"""Audits called as scikit-learn's functions are: X, y, groups, cv; and tables of other libraries."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3

CLINIC = b3.make_clinic(patients=40, records=4, cluster_error=0.1).frame
X, Y = CLINIC.drop(columns=["disease", "patient_id"]), CLINIC["disease"]
GROUPS = CLINIC["patient_id"]
OPTIONS = {"cluster_error": 0.1, "budget": 10, "progress": False}


def audit(*data, model=None, **options):
    return b3.audit(model or KNeighborsClassifier(3), *data, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def by_names():
    return audit(CLINIC, target="disease", cluster="patient_id")


def numbers(report):
    return report.iid, report.loco, report.e0, report.e0_interval


def test_features_target_and_groups_can_be_given_apart(by_names):
    report = audit(X, Y, groups=GROUPS)
    assert numbers(report) == numbers(by_names)
    assert (report.subject.target, report.subject.cluster) == ("disease", "patient_id")
    assert report.subject.features == by_names.subject.features


def test_columns_of_an_array_are_numbered(by_names):
    report = audit(X.to_numpy(), Y.to_numpy(), groups=GROUPS.to_numpy())
    assert numbers(report) == numbers(by_names)
    assert report.subject.features == ("x0", "x1", "x2", "x3", "x4")
    assert (report.subject.target, report.subject.cluster) == ("target", "cluster")


@pytest.mark.parametrize("features", [X.to_numpy().tolist(), X.to_numpy()[:, 0]])
def test_other_kinds_of_features_are_refused(features):
    with pytest.raises(
        b3.InputError, match=r"cannot be read; give a DataFrame of pandas or Polars"
    ):
        audit(features, Y.to_numpy(), groups=GROUPS.to_numpy())


def test_a_model_that_was_fitted_on_an_array_is_audited_on_an_array():
    fitted = KNeighborsClassifier(3).fit(X.to_numpy(), Y)
    report = audit(X.to_numpy(), Y.to_numpy(), model=fitted, groups=GROUPS.to_numpy())
    assert report.refit.agreement == 1


def test_a_sparse_matrix_gives_what_its_dense_form_gives():
    dense, few = X.to_numpy(), LogisticRegression()
    options = {"model": few, "groups": GROUPS.to_numpy()}
    found = audit(sparse.csr_matrix(dense), Y.to_numpy(), **options)
    assert found.loco == pytest.approx(audit(dense, Y.to_numpy(), **options).loco)


def test_a_table_of_another_library_is_converted(by_names):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pandas(CLINIC)
    assert numbers(audit(table, target="disease", cluster="patient_id")) == numbers(by_names)


def test_a_polars_frame_is_converted(by_names):
    polars = pytest.importorskip("polars")
    found = audit(polars.from_pandas(X), polars.Series("sick", Y.to_numpy()), groups=GROUPS)
    assert numbers(found) == numbers(by_names)


def test_a_splitter_is_taken_as_cv():
    report = audit(X, Y, groups=GROUPS, cv=GroupKFold(4))
    assert len(report.folds) == 4
    assert report.loco == audit(X, Y, groups=GROUPS, folds=GroupKFold(4)).loco


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": "disease", "cluster": "patient_id", "groups": GROUPS}, "groups and cluster"),
        ({"target": "disease", "groups": GROUPS, "cv": 3, "folds": 4}, "cv and folds are the same"),
        ({"cluster": "patient_id"}, "target is missing; give the name of its column"),
        ({"target": "disease"}, "cluster is missing; give the name of a column"),
        ({"y": Y, "target": "disease", "groups": GROUPS}, "y and target are the same"),
        (
            {"target": "disease", "groups": GROUPS, "scoring": "f1", "loss": "brier"},
            "scoring='f1' and loss='brier' both say how the model is scored",
        ),
    ],
)
def test_names_that_do_not_go_together_are_explained(given, message):
    with pytest.raises(b3.InputError, match=message):
        audit(CLINIC, **given)


def test_all_that_is_missing_is_named_at_once():
    with pytest.raises(b3.InputError) as caught:
        audit(CLINIC)
    assert "target is missing" in str(caught.value)
    assert "cluster is missing" in str(caught.value)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y.to_numpy()[:5], r"of shape \(5,\) is not usable; give one value for each of the 160"),
        (Y[:5], r"y=Series of shape \(5,\) is not usable; give one value for each of the 160"),
        (np.zeros((160, 2)), r"shape \(160, 2\)"),
        (pd.Series(Y.to_numpy(), index=Y.index[::-1]), "y is a Series whose index differs"),
    ],
)
def test_a_target_that_does_not_belong_to_the_rows_is_refused(y, message):
    with pytest.raises(b3.InputError, match=message):
        audit(X, y, groups=GROUPS)


@pytest.mark.parametrize("weights", [np.ones(160), [1.0] * 160])
def test_weights_are_a_column_and_are_not_printed(weights):
    with pytest.raises(b3.InputError) as caught:
        audit(X, Y, groups=GROUPS, sample_weight=weights)
    kind = type(weights).__name__
    assert f"sample_weight={kind} of shape (160,) must be the name of a column" in str(caught.value)


def test_a_budget_for_doses_is_no_budget_for_folds_with_clusters_on_both_sides():
    with pytest.raises(b3.InputError, match=r"both sides \(GroupKFold.*give at least 100 refits"):
        audit(X, Y, groups=GROUPS, cv=KFold(5), budget=10)


@pytest.mark.parametrize("name", ["words", "numbers"])
def test_a_splitter_makes_the_folds_that_it_makes_in_scikit_learn(name):
    """Clusters of one size come in the order of their ids, not in that of the table."""
    groups = GROUPS if name == "words" else GROUPS.str[1:].astype(int).rename("patient_id")
    report = audit(X, Y, groups=groups, cv=GroupKFold(4))
    for fold, (training, validation) in zip(
        report.splits, GroupKFold(4).split(X, Y, groups), strict=True
    ):
        assert set(fold.training) == set(training)
        assert set(fold.validation) == set(validation)
