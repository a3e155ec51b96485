"""Match-and-merge with functions of one's own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_b3 import InputError
from mlflow_b3.linkage import components, match_and_merge


def share_a_value(one, two):
    """Match records that agree in any value of any field: representative after a union."""
    return any(one[field] & two[field] for field in one)


def union(one, two):
    return {field: one[field] | two[field] for field in one}


def people(values):
    return [{"phone": frozenset({phone}), "mail": frozenset({mail})} for phone, mail in values]


pairs_of_values = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(pairs_of_values)
def test_with_unions_it_finds_the_connected_components(values):
    records = people(values)
    i, j = np.triu_indices(len(records), 1)
    matched = [share_a_value(records[a], records[b]) for a, b in zip(i, j, strict=True)]
    found = match_and_merge(records, share_a_value, union)
    assert found.labels == tuple(components(len(records), i[matched], j[matched]).tolist())


@settings(max_examples=80, deadline=None)
@given(pairs_of_values, st.integers(0, 2**32 - 1))
def test_the_order_of_records_does_not_matter_then(values, seed):
    order = np.random.default_rng(seed).permutation(len(values))
    plain = match_and_merge(people(values), share_a_value, union)
    mixed = match_and_merge(people([values[row] for row in order]), share_a_value, union)
    same = np.equal.outer(np.array(plain.labels)[order], np.array(plain.labels)[order])
    assert (same == np.equal.outer(mixed.labels, mixed.labels)).all()
    merged = [
        sorted((tuple(r["phone"]), tuple(r["mail"])) for r in m.records) for m in (plain, mixed)
    ]
    assert merged[0] == merged[1]


@settings(max_examples=80, deadline=None)
@given(pairs_of_values)
def test_no_two_merged_records_match_and_the_work_is_limited(values):
    found = match_and_merge(people(values), share_a_value, union)
    n = len(values)
    assert found.comparisons <= 2 * n * n
    assert len(found.records) == max(found.labels) + 1
    for place, one in enumerate(found.records):
        assert not any(share_a_value(one, two) for two in found.records[:place])


def test_the_merged_record_of_a_cluster_holds_what_its_rows_say():
    found = match_and_merge(people([(1, 1), (2, 2), (1, 2), (3, 3)]), share_a_value, union)
    assert found.labels == (0, 0, 0, 1)
    assert found.records[0] == {"phone": {1, 2}, "mail": {1, 2}}
    assert found.comparisons == 1 + 1 + 1 + 1  # 1-0, 2-0, both-1, 3-all


def close(one, two):
    return abs(one[0] - two[0]) <= 1


def average(one, two):
    size = one[1] + two[1]
    return (one[0] * one[1] + two[0] * two[1]) / size, size


def test_with_averages_the_order_of_records_matters():
    """0 and 1 merge to 0.5, which is too far from 2, though 1 was not; and the other way round."""
    forward = match_and_merge([(0.0, 1), (1.0, 1), (2.0, 1)], close, average)
    backward = match_and_merge([(2.0, 1), (1.0, 1), (0.0, 1)], close, average)
    assert forward.records == ((0.5, 2), (2.0, 1))
    assert backward.records == ((1.5, 2), (0.0, 1))


def test_nothing_to_merge_and_things_that_are_no_functions_are_refused():
    with pytest.raises(InputError, match="records is empty"):
        match_and_merge([], close, average)
    with pytest.raises(InputError, match="merge=None"):
        match_and_merge([1], close, None)
