"""Results and errors of linkage as people read them."""

import numpy as np
import pytest

from mlflow_b3.errors import InputError
from mlflow_b3.linkage import (
    LeakEstimate,
    PairTable,
    correlation_cluster,
    leak_curve,
    leak_floor,
    leak_from_resolved_rows,
    leak_safe_folds,
    leak_truth,
    rows_needed,
)
from mlflow_b3.linkage.folds import safe_groups
from mlflow_b3.linkage.leak import LeakShare

SHARE = LeakShare(point=0.1234, low=0.08, high=0.2)
PAIRS = ([0, 2, 4], [2, 4, 6], [0.9, 0.3, 0.05])
CLUSTERS = np.repeat(np.arange(400), 2)


def estimate(kind="estimate", **changes):
    values = {"train": SHARE, "validation": SHARE, "method": "scored-pairs", "level": 0.95}
    return LeakEstimate(**{**values, "kind": kind, "n_folds": 5.0, **changes})


def test_a_share_is_written_with_its_interval():
    assert str(SHARE) == "12.3% (8% to 20%)"
    assert str(LeakShare(point=None, low=0.0, high=0.2)) == "0% to 20%"
    assert str(LeakShare(point=0.2, low=0.2, high=0.2)) == "20%"
    assert str(LeakShare(point=None, low=0.0, high=1e-16)) == "0% to 0%"


def test_an_estimate_is_written_in_a_sentence():
    assert str(estimate(n_labels=120)) == (
        "12.3% (8% to 20%) of the validation rows have a true mate in training, and 12.3% (8% to "
        "20%) of the training rows have one in validation (by scored-pairs, 120 checked by hand; 5 "
        "folds, confidence 95%)."
    )
    assert str(estimate("upper")).startswith("At most 20% of the validation rows")
    assert str(estimate("lower")).startswith("At least 8% of the validation rows")
    assert str(estimate("uncalibrated")).endswith("an order of magnitude.")


def test_a_curve_is_written_as_a_table():
    curve = leak_curve(*PAIRS, 4, CLUSTERS, (0.5, 0.1))
    head, *lines = str(curve).splitlines()
    assert head.split("  ")[0] == "lever"
    assert "score mass left" in head
    assert [line.split()[0] for line in lines] == ["none", "folds", "folds", "purging", "purging"]
    assert [line.split()[1] for line in lines[1:]] == ["0.5", "0.1", "0.5", "0.1"]
    assert lines[0].split() == ["none", "100%", "0.25%", "0%"]


def test_a_curve_of_measured_shares_shows_them():
    true = np.where(CLUSTERS == 1, 0, CLUSTERS)
    rows, mates = [0, 1, 2, 9], [[1, 2, 3], [0, 2, 3], [0, 1, 3], [8]]
    curve = leak_curve(*PAIRS, 4, CLUSTERS, [0.5], leak=lambda folds: leak_truth(true, folds))
    assert "validation rows seen  training rows leaked  largest group" in str(curve)
    assert "score mass" not in str(curve)
    assert str(curve.points[0].validation) in str(curve).splitlines()[1]

    def by_review(folds):
        return leak_from_resolved_rows(rows, mates, folds, CLUSTERS) if len(folds) > 4 else None

    with_gaps = leak_curve(*PAIRS, 4, CLUSTERS, [0.5], leak=by_review)
    assert "unknown" in str(with_gaps).splitlines()[-1]  # four purged splits


def test_labels_of_many_rows_are_not_printed():
    folds = leak_safe_folds(*PAIRS, 0.2, 4, CLUSTERS)
    assert str(folds) == (
        "4 folds, the largest 0% above the mean, of 800 rows in 398 groups that keep pairs with a "
        "probability of at least 0.2 together; the largest has 0.75% of the rows."
    )
    groups = safe_groups(*PAIRS, 0.2, CLUSTERS, max_group=0.005)
    assert "together, except for 1 of them; the largest has" in str(groups)
    clusters = correlation_cluster(500, [0, 1, 0], [1, 2, 2], [2.0, 1.0, -3.0])
    assert str(clusters) == (
        "500 rows in 499 clusters; the cost of disagreements is 1, and no clustering costs less "
        "than 1."
    )
    probable = estimate(row_probability=(0.1,) * 500)
    for made in (folds, groups, clusters, probable):
        assert len(repr(made)) < 400


@pytest.mark.parametrize(
    "call",
    [
        lambda: PairTable.of([0], [1], [97.0]),
        lambda: leak_safe_folds(*PAIRS, 10, 4, CLUSTERS),
        lambda: leak_floor(30, 0.1, 0.1, 5),
        lambda: leak_from_resolved_rows([0], [[]], CLUSTERS % 4, CLUSTERS, sensitivity=90),
        lambda: rows_needed(20, 0.25),
    ],
)
def test_percentages_are_told_from_shares(call):
    with pytest.raises(InputError, match="Give a share, not a percentage"):
        call()
