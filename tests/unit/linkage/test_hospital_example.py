"""The example of a hospital: its records are as described, and its steps run to the end."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

pytestmark = pytest.mark.newest

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def person_records():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        import person_records

        yield person_records


def test_same_seed_same_records(person_records):
    one, two, other = (
        person_records.make_person_records(persons=50, seed=seed) for seed in (1, 1, 2)
    )
    assert one.identity.equals(two.identity)
    assert one.frame.equals(two.frame)
    assert not one.identity.equals(other.identity)


def test_fields_are_wrong_as_often_as_the_noise_says(person_records):
    clean, noisy = (person_records.make_person_records(noise=q, seed=0) for q in (0.0, 0.2))
    assert not clean.identity.isna().any().any()
    fields = noisy.identity.drop(columns="record_id")
    missing = fields.isna().to_numpy().mean()
    # 30% of wrong fields are left out; rates vary between persons as an exponential law, whose
    # standard deviation is its mean, and are cut at 0.9, which takes off 1% of 0.2
    share = person_records.KINDS_OF_NOISE[2] * 0.2 * (1 - np.exp(-4.5))
    sizes = np.bincount(noisy.persons)
    stderr = share * np.sqrt(np.sum(sizes**2.0)) / sizes.sum()
    assert abs(missing - share) < 3 * np.hypot(stderr, np.sqrt(share / fields.size))


def test_persons_have_1_to_17_records_about_two_and_a_half_on_average(person_records):
    sizes = np.bincount(person_records.make_person_records(persons=4000).persons)
    assert sizes.min() == 1
    assert sizes.max() <= 17
    assert sizes.mean() == pytest.approx(2.6, abs=4 * sizes.std() / np.sqrt(len(sizes)))


def test_a_learner_does_better_on_persons_it_has_seen(person_records):
    records = person_records.make_person_records(persons=600)
    X, y = records.frame[list(person_records.FEATURES)], records.frame["disease"].to_numpy()
    rows = np.random.default_rng(0).permutation(len(y))
    training, others = rows[: len(rows) * 4 // 5], rows[len(rows) * 4 // 5 :]
    model = KNeighborsClassifier(5)
    fitted = model.fit(X.iloc[training], y[training])
    mixed = np.mean(fitted.predict(X.iloc[others]) != y[others])
    assert mixed < records.truth(model, fresh=2000) - 0.03


@pytest.mark.flavours
def test_the_hospital_follows_its_steps_to_the_truth():
    pytest.importorskip("splink", reason="records are linked by Splink")
    small = ["--persons", "300", "--rows", "80", "--budget", "100"]
    done = subprocess.run(
        [sys.executable, EXAMPLES / "hospital_linkage.py", *small],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for step in range(1, 8):
        assert f"\n{step}. " in f"\n{done.stdout}"
    assert "The truth, an error rate on records of new persons: 0." in done.stdout
