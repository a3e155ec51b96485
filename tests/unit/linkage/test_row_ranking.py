"""Which rows a reviewer should see first."""

import numpy as np
import pytest

from mlflow_b3 import InputError
from mlflow_b3.linkage import PairTable
from mlflow_b3.linkage.rows import SuspiciousRow, rank_rows

R = [0.9, 0.5, 0.9, 0.0]
LOSSES = [0.1, 0.0, 1.0, 0.1]


def test_rows_that_make_the_score_look_good_come_first():
    ranked = rank_rows(R, LOSSES)
    assert [found.row for found in ranked] == [0, 1, 2]  # row 3 cannot have leaked
    assert ranked[0].influence == pytest.approx(0.9 * (0.3 - 0.1) / 4)
    assert ranked[2].influence < 0


def test_influence_is_what_leaving_the_row_out_does():
    rng = np.random.default_rng(0)
    losses = rng.random(1000)
    for found in rank_rows(np.ones(1000), losses, most=5):
        without = np.delete(losses, found.row).mean()
        assert found.influence == pytest.approx(without - losses.mean(), rel=0.01)


def test_rows_can_be_ranked_by_probability():
    assert [found.row for found in rank_rows(R, LOSSES, by="probability", most=2)] == [0, 2]


def test_the_most_probable_mate_is_named():
    pairs = PairTable.of([0, 0, 1], [1, 2, 2], [0.9, 0.6, 0.2], 4)
    anywhere = rank_rows(R, LOSSES, pairs=pairs)
    assert (anywhere[0].best_mate, anywhere[0].mate_probability) == (1, 0.9)
    across = rank_rows(R, LOSSES, pairs=pairs, clusters=["a", "a", "b", "c"])
    assert [(found.row, found.best_mate) for found in across] == [(0, 2), (1, 2), (2, 0)]
    assert SuspiciousRow.from_dict(across[0].to_dict()) == across[0]


def test_rows_without_scored_pairs_have_no_mate():
    found = rank_rows(R, LOSSES, pairs=PairTable.of([], [], [], 4))
    assert {row.best_mate for row in found} == {None}


def test_unusable_arguments_are_refused():
    with pytest.raises(InputError, match="Did you mean 'influence'"):
        rank_rows(R, LOSSES, by="influense")
    with pytest.raises(InputError, match="3 problems"):
        rank_rows([0.1, 1.2], [0.1, np.nan], most=0)
    with pytest.raises(InputError, match="pairs refer to 7 rows; there are 4"):
        rank_rows(R, LOSSES, pairs=PairTable.of([0], [1], [0.5], 7))
