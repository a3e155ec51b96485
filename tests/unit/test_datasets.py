"""The simulated clinic: damaged as asked, with a truth that can be reproduced."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from mlflow_b3.demo import FEATURES, make_clinic
from mlflow_b3.errors import InputError

MODEL = KNeighborsClassifier(n_neighbors=3, algorithm="brute")


def ids_of(clinic):
    """Return the damaged ids as numbers."""
    return clinic.frame["patient_id"].str.removeprefix("P").astype(int).to_numpy()


def test_clinic_has_measurements_a_label_and_an_id():
    clinic = make_clinic(patients=20, records=3)
    assert list(clinic.frame.columns) == [*FEATURES, "disease", "patient_id"]
    assert len(clinic.frame) == len(clinic.patients) == 60
    assert set(clinic.frame["disease"]) == {0, 1}
    assert clinic.records == 3


def test_undamaged_ids_are_the_true_patients():
    clinic = make_clinic(patients=20, records=3)
    np.testing.assert_array_equal(ids_of(clinic), clinic.patients)


@pytest.mark.parametrize("seed", [0, 1])
def test_same_seed_same_clinic(seed):
    options = {"patients": 30, "records": 4, "cluster_error": 0.2, "split_rate": 0.3}
    first, again = (make_clinic(**options, seed=seed) for _ in range(2))
    pd.testing.assert_frame_equal(first.frame, again.frame)


def test_another_seed_is_another_clinic():
    assert not make_clinic(patients=30).frame.equals(make_clinic(patients=30, seed=1).frame)


def test_damage_leaves_the_measurements_alone():
    clean = make_clinic(patients=50)
    damaged = make_clinic(patients=50, cluster_error=0.3, split_rate=0.5)
    columns = [*FEATURES, "disease"]
    pd.testing.assert_frame_equal(clean.frame[columns], damaged.frame[columns])


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.3, 1.0])
def test_cluster_error_is_the_share_of_records_with_a_random_id(rate):
    clinic = make_clinic(patients=500, records=20, cluster_error=rate)
    wrong = np.mean(ids_of(clinic) != clinic.patients)
    expected = rate * (1 - 1 / 500)  # a random id is the true one now and then
    assert wrong == pytest.approx(expected, abs=4 * np.sqrt(rate * (1 - rate) / 10_000) + 0.002)
    assert ids_of(clinic).max() < 500


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 1.0])
def test_split_rate_is_the_share_of_patients_with_two_ids(rate):
    clinic = make_clinic(patients=1000, records=6, split_rate=rate)
    ids = pd.Series(ids_of(clinic)).groupby(clinic.patients).nunique()
    assert set(ids) <= {1, 2}
    assert (ids == 2).mean() == pytest.approx(rate, abs=4 * np.sqrt(rate * (1 - rate) / 1000))


def test_split_ids_mix_no_patients():
    clinic = make_clinic(patients=100, records=6, split_rate=0.5)
    patients = pd.Series(clinic.patients).groupby(ids_of(clinic)).nunique()
    assert set(patients) == {1}


def test_cut_of_a_split_is_uniform():
    clinic = make_clinic(patients=3000, records=4, split_rate=1.0)
    ids = ids_of(clinic)
    sizes = pd.Series(ids[ids >= 3000]).value_counts().value_counts(normalize=True)
    assert sizes.sort_index().tolist() == pytest.approx([1 / 3] * 3, abs=0.04)


def test_single_records_cannot_be_split():
    clinic = make_clinic(patients=50, records=1, split_rate=1.0)
    assert clinic.frame["patient_id"].nunique() == 50


@pytest.mark.parametrize("name", ["cluster_error", "split_rate"])
@pytest.mark.parametrize("value", [-0.1, 1.1, np.nan])
def test_rates_outside_0_to_1_are_refused(name, value):
    with pytest.raises(InputError, match=rf"{name}={value!r} must lie in \[0, 1\]"):
        make_clinic(**{name: value})


@pytest.mark.parametrize("sizes", [{"patients": 1}, {"patients": 0}, {"records": 0}])
def test_too_small_clinics_are_refused(sizes):
    ((name, value),) = sizes.items()
    with pytest.raises(InputError, match=f"{name}={value}.* too few"):
        make_clinic(**sizes)


def test_truth_is_reproducible_and_depends_on_the_seed():
    clinic = make_clinic(patients=40, records=5)
    options = {"repeats": 1, "fresh": 200}
    first, again, other = (clinic.truth(MODEL, **options, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_truth_does_not_depend_on_the_damage():
    clean = make_clinic(patients=40, records=5)
    damaged = make_clinic(patients=40, records=5, cluster_error=0.5)
    options = {"repeats": 1, "fresh": 200}
    assert clean.truth(MODEL, **options) == damaged.truth(MODEL, **options)


def test_truth_lies_above_the_error_of_rows_split_at_random():
    """Rows split at random let the model meet every patient in training."""
    clinic = make_clinic(patients=100, records=10)
    rows = KFold(5, shuffle=True, random_state=0)
    X, target = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    iid = 1 - cross_val_score(MODEL, X, target, cv=rows).mean()
    assert clinic.truth(MODEL, repeats=1, fresh=500) > iid + 0.1
