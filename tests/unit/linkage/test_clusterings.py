"""Components and correlation clusters, against all partitions of a few rows."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from mlflow_b3 import InputError
from mlflow_b3.linkage import components, correlation_cluster
from mlflow_b3.linkage.cluster import (
    CorrelationClusters,
    CoveringProgram,
    SignedGraph,
    grow_regions,
    improve,
    pivot,
    triangle_bound,
)

pytestmark = pytest.mark.newest


def partitions(n):
    """Return all partitions of n rows, each as labels in order of first appearance."""
    grown = [[0]]
    for _ in range(n - 1):
        grown = [[*labels, label] for labels in grown for label in range(max(labels) + 2)]
    return np.array(grown)


def price(n, i, j, w, missing, labels):
    """Add up the disagreements pair by pair, from the definition."""
    weights = np.full((n, n), missing, dtype=float)
    weights[i, j] = weights[j, i] = w
    one, two = np.triu_indices(n, 1)
    pairs, together = weights[one, two], labels[..., one] == labels[..., two]
    return np.where(together, np.maximum(-pairs, 0), np.maximum(pairs, 0)).sum(axis=-1)


def triangle_program(n, i, j, w, missing):
    """Solve the linear program with all triangle inequalities, as the literature states it."""
    weights = np.full((n, n), missing, dtype=float)
    weights[i, j] = weights[j, i] = w
    one, two = np.triu_indices(n, 1)
    number = np.zeros((n, n), dtype=int)
    number[one, two] = number[two, one] = np.arange(len(one))
    rows = []
    for a, b, c in np.array(np.meshgrid(*[range(n)] * 3)).reshape(3, -1).T:
        if len({a, b, c}) == 3:
            row = np.zeros(len(one))
            row[number[a, c]], row[number[a, b]], row[number[b, c]] = 1, -1, -1
            rows.append(row)
    costs = weights[one, two]
    solved = optimize.linprog(costs, A_ub=np.array(rows), b_ub=np.zeros(len(rows)), bounds=(0, 1))
    return solved.fun - np.minimum(costs, 0).sum()


def random_pairs(n, rng, share=0.7):
    i, j = np.triu_indices(n, 1)
    keep = rng.random(len(i)) < share
    return i[keep], j[keep], rng.normal(0, 2, keep.sum())


def signed(n, i, j, w, missing=0.0):
    return SignedGraph(n=n, first=i, second=j, weight=w, missing=missing)


# --- components -----------------------------------------------------------------------------------


def test_components_are_numbered_in_order_of_first_appearance():
    assert components(6, [4, 1], [2, 5]).tolist() == [0, 1, 2, 3, 2, 1]


def test_rows_without_pairs_are_their_own_components():
    assert components(3, [], []).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("n", "i", "j", "text"),
    [
        (0, [], [], "n=0"),
        (True, [], [], "n=True"),
        (2, [0], [2], "0 … 1"),
        (2, [1], [1], "same row twice"),
        (2, [0.5], [1.0], "whole numbers"),
    ],
)
def test_pairs_that_are_none_are_refused(n, i, j, text):
    with pytest.raises(InputError, match=text):
        components(n, i, j)


def test_a_million_pairs_take_seconds():
    rng = np.random.default_rng(0)
    i = rng.integers(0, 100_000, 1_000_000)
    j = (i + rng.integers(1, 50, len(i))) % 100_000
    start = time.perf_counter()
    components(100_000, i, j)
    assert time.perf_counter() - start < 10


# --- correlation clustering -----------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(0, 2**32 - 1), st.sampled_from([0.0, -0.3, -2.0]))
def test_small_components_are_solved_to_the_optimum(n, seed, missing):
    i, j, w = random_pairs(n, np.random.default_rng(seed))
    found = correlation_cluster(n, i, j, w, missing)
    least = price(n, i, j, w, missing, partitions(n)).min()
    assert found.cost == pytest.approx(price(n, i, j, w, missing, np.array(found.labels)))
    assert found.cost == pytest.approx(least, abs=1e-6)
    assert found.gap == pytest.approx(0, abs=1e-6)
    assert found.n_integral + found.n_integer == found.n_contested


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 7), st.integers(0, 2**32 - 1), st.sampled_from([0.0, -0.3, -2.0]))
def test_the_bound_holds_without_a_linear_program(n, seed, missing):
    """With max_lp=0 clusters come from local moves, and the bound from bad triangles."""
    i, j, w = random_pairs(n, np.random.default_rng(seed))
    found = correlation_cluster(n, i, j, w, missing, max_lp=0)
    least = price(n, i, j, w, missing, partitions(n)).min()
    assert 0 <= found.lp_bound <= least + 1e-9
    assert least <= found.cost + 1e-9
    assert found.n_heuristic == found.n_large == found.n_contested


@pytest.mark.parametrize("missing", [0.0, -0.5])
@pytest.mark.parametrize("seed", range(8))
def test_paths_give_the_value_of_the_program_with_triangles(seed, missing):
    rng = np.random.default_rng(seed)
    spine = np.arange(6)
    i, j, w = random_pairs(7, rng)
    extra = rng.uniform(0.5, 2, 6)  # a chain of positive pairs makes it one component
    keep = ~np.isin(i * 7 + j, spine * 7 + spine + 1)
    i, j = np.concatenate([i[keep], spine]), np.concatenate([j[keep], spine + 1])
    w = np.concatenate([w[keep], extra])
    relaxed = CoveringProgram(signed(7, i, j, w, missing)).relax()
    assert relaxed.bound == pytest.approx(triangle_program(7, i, j, w, missing), abs=1e-6)
    d = relaxed.distance
    assert (d[:, None, :] <= d[:, :, None] + d[None, :, :] + 1e-5).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-10, 1e-8, 1.0, 1e8])
def test_the_unit_of_the_weights_does_not_matter(scale):
    rng = np.random.default_rng(3)
    for _ in range(20):
        i, j, w = random_pairs(7, rng)
        found = correlation_cluster(7, i, j, w * scale, -0.5 * scale)
        least = price(7, i, j, w, -0.5, partitions(7)).min()
        assert found.cost / scale == pytest.approx(least)
        assert found.lp_bound / scale <= least + 1e-6


def test_weights_that_must_be_obeyed_do_not_hide_the_others():
    rng = np.random.default_rng(0)
    for _ in range(40):
        i, j, _ = random_pairs(6, rng)
        w = rng.choice([-1e9, -1, 1, 2.5, 1e9], len(i))
        found = correlation_cluster(6, i, j, w)
        assert found.cost == pytest.approx(price(6, i, j, w, 0, partitions(6)).min(), abs=0.01)


def test_disjoint_cliques_are_found_without_a_gap():
    true = np.repeat(np.arange(30), 5)
    i, j = np.triu_indices(len(true), 1)
    found = correlation_cluster(len(true), i, j, np.where(true[i] == true[j], 3.0, -3.0))
    assert found.labels == tuple(true.tolist())
    assert (found.cost, found.lp_bound, found.gap) == (0, 0, 0)
    assert (found.n_clusters, found.n_components, found.n_contested) == (30, 30, 0)


def test_a_bad_triangle_pays_its_cheapest_pair():
    found = correlation_cluster(3, [0, 1, 0], [1, 2, 2], [2.0, 1.5, -4.0])
    assert found.labels == (0, 0, 1)
    assert (found.cost, found.lp_bound) == pytest.approx((1.5, 1.5))
    assert (found.n_contested, found.n_integral) == (1, 1)


def test_a_chain_of_bad_triangles_is_cut_where_it_is_weakest():
    """Rows k and k+1 match, k and k+2 do not: every row but the ends is in up to three triangles."""
    n = 31
    k = np.arange(n)
    i, j = np.concatenate([k[:-1], k[:-2]]), np.concatenate([k[1:], k[2:]])
    w = np.concatenate([np.where(k[:-1] % 2, 1.0, 3.0), np.full(n - 2, -2.0)])
    found = correlation_cluster(n, i, j, w)
    assert found.cost == pytest.approx((n - 1) // 2)
    assert found.gap == pytest.approx(0, abs=1e-6)
    assert np.bincount(found.labels).max() == 2


def test_a_wheel_has_a_fractional_program_and_is_still_solved():
    """One row matches three that do not match each other: halves cost 1.5, whole numbers 2."""
    i, j, w = [0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3], [1, 1, 1, -1, -1, -1]
    graph = signed(4, np.array(i), np.array(j), np.array(w, dtype=float))
    assert CoveringProgram(graph).relax().bound == pytest.approx(1.5)
    found = correlation_cluster(4, i, j, w)
    assert (found.cost, found.lp_bound, found.n_integer) == pytest.approx((2, 2, 1))


def test_weights_of_pairs_that_were_not_scored_count():
    """A chain of matches falls apart as soon as the pairs between its ends speak against it."""
    i, j, w = [0, 1, 2], [1, 2, 3], [1.0, 1.0, 1.0]
    assert correlation_cluster(4, i, j, w).n_clusters == 1
    apart = correlation_cluster(4, i, j, w, -5.0)
    assert apart.labels == (0, 0, 1, 1)
    assert apart.cost == pytest.approx(1)


def test_rows_without_pairs_stay_alone():
    found = correlation_cluster(3, [], [], [])
    assert found.labels == (0, 1, 2)
    assert (found.cost, found.n_components, found.n_contested) == (0, 3, 0)


def test_region_growing_keeps_its_guarantee():
    """Its cost is below (4·ln(n+1) + 1) times the program, on instances that are all noise."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        i, j, w = random_pairs(16, rng, share=1.0)
        graph = signed(16, i, j, w)
        relaxed = CoveringProgram(graph).relax()
        labels = grow_regions(graph, relaxed.distance, rng)
        assert labels.min() >= 0
        assert relaxed.bound <= graph.cost(labels) + 1e-6
        assert graph.cost(labels) <= (4 * np.log(17) + 1) * relaxed.bound


def test_local_moves_never_make_it_dearer():
    rng = np.random.default_rng(5)
    for missing in (0.0, -0.2):
        graph = signed(60, *random_pairs(60, rng, share=0.3), missing)
        start = pivot(graph, rng)
        assert graph.cost(improve(graph, start)) <= graph.cost(start)
        assert triangle_bound(graph, rng) <= graph.cost(improve(graph, start))


def planted(entities, seed=0, others=100_000):
    """Return linked records: true pairs score high, many near ones low, some of them wrongly."""
    rng = np.random.default_rng(seed)
    true = np.repeat(np.arange(entities), rng.geometric(1 / 2.6, entities))
    n = len(true)
    start = rng.integers(0, n, others)
    i = np.concatenate([np.arange(n - step) for step in (1, 2, 3)] + [start])
    j = np.concatenate(
        [np.arange(step, n) for step in (1, 2, 3)] + [(start + rng.integers(4, 60, others)) % n]
    )
    same = true[i] == true[j]
    return true, i, j, np.where(same, rng.normal(6, 4, len(i)), rng.normal(-8, 3, len(i)))


def test_thousands_of_rows_take_seconds_and_are_close_to_optimal():
    true, i, j, w = planted(1_500)
    start = time.perf_counter()
    found = correlation_cluster(len(true), i, j, w)
    assert time.perf_counter() - start < 20  # about 1 s on one core
    assert len(true) > 3_500
    assert found.n_integral / (found.n_contested - found.n_large) > 0.98
    assert found.gap <= 0.05 * found.cost


def test_it_does_not_depend_on_the_order_of_pairs_or_on_repeats():
    true, i, j, w = planted(100, others=2_000)
    order = np.random.default_rng(1).permutation(len(i))
    one = correlation_cluster(len(true), i, j, w)
    two = correlation_cluster(
        len(true), np.r_[j[order], i[:9]], np.r_[i[order], j[:9]], np.r_[w[order], w[:9] - 1]
    )
    assert one.cost == pytest.approx(two.cost)
    assert one.labels == two.labels


def test_the_result_survives_a_round_trip():
    found = correlation_cluster(3, [0, 1, 0], [1, 2, 2], [2.0, 1.5, -4.0])
    assert CorrelationClusters.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"w": [np.nan]}, "missing or infinite"),
        ({"w": [np.inf]}, "off 0 and 1"),
        ({"w": [1.0, 2.0]}, "equal length"),
        ({"w": ["high"]}, "must be numbers"),
        ({"w": [[1.0]]}, "shape"),
        ({"w_missing": 0.1}, "w_missing=0.1"),
        ({"w_missing": np.nan}, "w_missing=nan"),
        ({"max_lp": 2.5}, "max_lp=2.5"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, text):
    with pytest.raises(InputError, match=text):
        correlation_cluster(**{"n": 2, "i": [0], "j": [1], "w": [1.0], **arguments})
