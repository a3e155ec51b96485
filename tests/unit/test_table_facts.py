"""What a table shows before any refit: features that give away the target, and copied rows."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine

from mlflow_b3.data.table import table_facts

GIVEN_AWAY, COPIES = "B343", "B344"


def measurements(n=400, columns=4, seed=0):
    values = np.random.default_rng(seed).normal(size=(n, columns))
    return pd.DataFrame(values, columns=[f"x{i}" for i in range(columns)])


def noisy_target(frame, seed=1):
    noise = np.random.default_rng(seed).normal(size=len(frame))
    return (frame["x0"] + noise > 0).to_numpy().astype(int)


def pairs(n):
    return np.arange(n) // 2


def codes(frame, target, clusters=None):
    clusters = pairs(len(frame)) if clusters is None else clusters
    return [finding.code for finding in table_facts(frame, np.asarray(target), clusters).findings]


def test_clusters_and_repeated_clusters_are_counted():
    facts = table_facts(measurements(6), np.arange(6), np.array([0, 0, 1, 2, 2, 2]))
    assert (facts.n_rows, facts.n_clusters, facts.n_repeated) == (6, 3, 2)


def test_a_row_id_as_cluster_is_found():
    frame = measurements()
    assert codes(frame, noisy_target(frame), np.arange(400)) == ["B311"]


def test_the_cluster_ids_as_a_feature_are_found():
    frame = measurements()
    named = frame.assign(patient=pairs(400))
    assert codes(named, noisy_target(frame)) == ["B323"]


# --- a feature that gives away the target ---------------------------------------------------------


def recoded(target):
    draws = np.random.default_rng(2).integers(0, 3, len(target))
    return {
        "the target itself": target,
        "its opposite": 1 - target,
        "texts": np.where(target == 1, "sick", "well"),
        "categories": pd.Categorical(np.where(target == 1, "A", "B")),
        "truth values": target == 1,
        "several codes for a class": [f"{a}{b}" for a, b in zip(target, draws, strict=True)],
        "numbers on either side of a threshold": target + 0.4 * draws / 2,
        "a date that only the sick have": pd.Series(pd.date_range("2020", periods=400)).where(
            target == 1
        ),
        "missing for the sick": np.where(target == 1, np.nan, draws),
    }


@pytest.mark.parametrize("kind", recoded(np.zeros(400, dtype=int)))
def test_a_feature_that_gives_away_the_target_is_found(kind):
    frame = measurements()
    target = noisy_target(frame)
    revealing = frame.assign(late=recoded(target)[kind])
    (finding,) = [
        each
        for each in table_facts(revealing, target, pairs(400)).findings
        if each.code == GIVEN_AWAY
    ]
    assert "'late'" in finding.message
    assert "'x0'" not in finding.message


@pytest.mark.parametrize(("wrong", "expected"), [(4, [GIVEN_AWAY]), (5, [])])
def test_one_row_in_a_thousand_may_differ(wrong, expected):
    frame = measurements(4000)
    target = noisy_target(frame)
    copy = target.copy()
    copy[:wrong] = 1 - copy[:wrong]
    assert codes(frame.assign(copy=copy), target) == expected


def test_a_rare_target_must_be_matched_exactly():
    """Where a constant is right on 99.5%, being right on 99.9% is no proof."""
    frame = measurements(2000)
    target = (np.arange(2000) % 200 == 0).astype(int)
    assert codes(frame.assign(copy=target), target) == [GIVEN_AWAY]
    copy = target.copy()
    copy[0] = 0
    assert codes(frame.assign(copy=copy), target) == []


@pytest.mark.parametrize("form", [lambda y: 3 - 2 * y, np.exp, lambda y: np.round(y, 3)])
def test_a_number_that_is_a_function_of_a_numeric_target_is_found(form):
    frame = measurements()
    target = measurements(seed=7)["x0"].to_numpy()
    assert codes(frame, target) == []
    assert codes(frame.assign(late=form(target)), target) == [GIVEN_AWAY]


def test_ids_constants_and_missing_values_give_nothing_away():
    frame = measurements().assign(
        row=np.random.default_rng(3).permutation(400),
        name=[f"n{i}" for i in range(400)],
        empty=np.nan,
        constant=1,
    )
    for target in (noisy_target(frame), measurements(seed=7)["x0"]):
        assert GIVEN_AWAY not in codes(frame, target)


def test_what_names_a_cluster_gives_nothing_away_about_others():
    """A date of birth tells the sick from the well only among patients that are known."""
    rng = np.random.default_rng(4)
    patients = np.repeat(np.arange(100), 4)
    sick = rng.integers(0, 2, 100)[patients]
    born = rng.permutation(100)[patients]
    assert GIVEN_AWAY not in codes(measurements().assign(born=born), sick, patients)


@pytest.mark.parametrize("n", [4, 8, 12])
def test_tiny_tables_agree_by_chance(n):
    target = np.arange(n) % 2
    assert GIVEN_AWAY not in codes(measurements(n).assign(x3=target), target, np.arange(n))


def test_many_features_of_a_small_table_give_nothing_away_by_chance():
    for seed in range(20):
        frame = measurements(14, columns=200, seed=seed)
        assert GIVEN_AWAY not in codes(frame, np.arange(14) % 2, np.arange(14))


@pytest.mark.parametrize("load", [load_breast_cancer, load_diabetes, load_iris, load_wine])
def test_features_of_real_tables_give_nothing_away(load):
    data = load(as_frame=True)
    assert not {GIVEN_AWAY, COPIES} & set(codes(data.data, data.target))


def test_a_measurement_that_separates_the_classes_by_itself_is_found():
    """One threshold on the petals tells setosa from other irises: a person has to look at that."""
    data = load_iris(as_frame=True)
    assert codes(data.data, data.target == 0) == [GIVEN_AWAY]


def test_lists_as_values_are_passed_over():
    frame = measurements().assign(embedding=[[i, i] for i in range(400)])
    assert codes(frame, noisy_target(frame)) == []


# --- copies of rows -------------------------------------------------------------------------------


def with_copies(frame, target, clusters, share=1.0, times=1):
    """Copy the rows of some clusters under new ids."""
    copied = np.flatnonzero(clusters < share * (clusters.max() + 1))
    parts = [clusters] + [clusters[copied] + 10**6 * (i + 1) for i in range(times)]
    rows = np.concatenate([np.arange(len(frame)), *[copied] * times])
    return (
        frame.iloc[rows].reset_index(drop=True),
        target[rows],
        pd.factorize(np.concatenate(parts))[0],
    )


def discrete(columns, levels, seed, n=800):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.integers(0, levels, (n, columns))).rename(columns=str)
    return frame, rng.integers(0, 2, n), pd.factorize(rng.integers(0, n // 4, n))[0]


@pytest.mark.parametrize(("share", "times"), [(1.0, 1), (1.0, 4), (0.5, 1), (0.3, 2)])
def test_rows_copied_under_new_ids_are_found(share, times):
    frame = measurements(800)
    target = noisy_target(frame)
    table = with_copies(frame, target, np.arange(800) // 4, share, times)
    assert codes(*table) == [COPIES]


def test_the_share_of_copies_is_named():
    frame = measurements(800)
    facts = table_facts(*with_copies(frame, noisy_target(frame), np.arange(800) // 4))
    assert facts.findings[0].message.startswith("100% of the rows equal a row of another cluster")


@pytest.mark.parametrize(("columns", "levels"), [(4, 3), (6, 3), (10, 4)])
def test_copies_are_found_among_rows_of_few_values(columns, levels):
    table = discrete(columns, levels, seed=0)
    assert codes(*table) == []
    assert codes(*with_copies(*table)) == [COPIES]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("columns", "levels"), [(1, 2), (2, 5), (3, 2), (4, 4), (6, 3), (8, 4)])
def test_rows_that_are_equal_by_chance_are_no_copies(columns, levels, seed):
    assert COPIES not in codes(*discrete(columns, levels, seed))


@pytest.mark.parametrize("seed", range(5))
def test_neither_skewed_values_nor_a_giant_cluster_look_like_copies(seed):
    frame, target, clusters = discrete(5, 4, seed)
    skewed = np.random.default_rng(seed).zipf(1.5, (800, 3)).clip(max=50)
    assert COPIES not in codes(pd.DataFrame(skewed).rename(columns=str), target, clusters)
    giant = pd.factorize(np.where(np.arange(800) < 400, -1, clusters))[0]
    assert COPIES not in codes(frame, target, giant)


def test_equal_rows_within_a_cluster_are_no_copies():
    frame = measurements(200)
    twice = frame.loc[np.repeat(np.arange(200), 2)].reset_index(drop=True)
    assert COPIES not in codes(twice, np.repeat(noisy_target(frame), 2), pairs(400))
