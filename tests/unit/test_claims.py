"""What a user may say about the leakage, and what follows for each fold."""

import numpy as np
import pytest

from mlflow_b3.auditing.leakage import (
    Unknown,
    make_claim,
    mean_shares,
    recorded_leakage,
    shares_by_fold,
)
from mlflow_b3.data.folds import FoldSummary
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.problem import LeakShares


def fold(training, validation, clusters_training=4, clusters_validation=1):
    return FoldSummary(
        n_training=training,
        n_validation=validation,
        clusters_training=clusters_training,
        clusters_validation=clusters_validation,
        shared_clusters=0,
        shared_rows=0.0,
    )


FOLDS = [fold(80, 20), fold(60, 40)]


# ---------------------------------------------------------------- making a claim


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"p0": (0.1, 0.2), "p0_validation": 0.05},
        {"cluster_error": 0.1},
        {"split_rate": 0.1},
        {"evidence": "match_column"},
        {"evidence": "resolved_rows"},
    ],
    ids=str,
)
def test_what_is_known_can_be_read_back_from_a_report(arguments):
    known = make_claim(**arguments)
    assert recorded_leakage(known.summary()) == known


@pytest.mark.parametrize("arguments", [{}, {"p0": None}, {"p0": "grid"}])
def test_without_numbers_nothing_is_claimed(arguments):
    assert make_claim(**arguments) == Unknown()


@pytest.mark.parametrize(
    ("source", "pattern"),
    [("p0", "rows"), ("cluster_error", "rows"), ("split_rate", "fragments")],
)
@pytest.mark.parametrize(
    ("value", "limits"),
    [
        (0.1, (0.1, 0.1)),
        (0, (0.0, 0.0)),
        ((0.1, 0.2), (0.1, 0.2)),
        ([0.1, 0.2], (0.1, 0.2)),
        (np.float64(0.1), (0.1, 0.1)),
        (np.array([0.1, 0.2]), (0.1, 0.2)),
    ],
    ids=str,
)
def test_number_or_pair_makes_a_claim_of_the_arguments_pattern(source, pattern, value, limits):
    claim = make_claim(**{source: value})
    assert (claim.pattern, claim.source) == (pattern, source)
    assert (claim.low, claim.high) == limits


@pytest.mark.parametrize(
    "arguments",
    [
        {"p0": 0.1, "cluster_error": 0.1},
        {"p0": 0.1, "split_rate": 0.1},
        {"p0": 0, "cluster_error": 0, "split_rate": 0},
    ],
    ids=lambda arguments: "+".join(arguments),
)
def test_mixing_claims_is_an_error_that_names_them(arguments):
    with pytest.raises(InputError, match=f"{' and '.join(arguments)} cannot be given together"):
        make_claim(**arguments)


def test_misplaced_rows_and_split_clusters_may_be_stated_together():
    claim = make_claim(cluster_error=0.1, split_rate=(0.1, 0.2))
    assert (claim.pattern, claim.source) == ("rows", "cluster_error")
    assert (claim.low, claim.high, claim.split_beside) == (0.1, 0.1, (0.1, 0.2))


def test_grid_may_stand_beside_another_claim():
    assert make_claim(p0="grid", cluster_error=0.1).source == "cluster_error"


@pytest.mark.parametrize("arguments", [{}, {"cluster_error": 0.1}, {"split_rate": 0.1}])
def test_p0_validation_goes_with_p0_only(arguments):
    with pytest.raises(InputError, match="p0_validation needs p0"):
        make_claim(p0_validation=0.1, **arguments)


@pytest.mark.parametrize("source", ["p0", "cluster_error", "split_rate"])
@pytest.mark.parametrize(
    "value",
    [-0.1, 1, 1.5, np.nan, np.inf, (0.2, 0.1), (-0.1, 0.1), (0.5, 1.0), (0.1, np.nan), True],
    ids=str,
)
def test_shares_must_lie_between_0_and_1(source, value):
    with pytest.raises(InputError) as caught:
        make_claim(**{source: value})
    assert str(caught.value) == (
        f"{source}={value!r} must lie in [0, 1), low before high; give a share, not a percentage."
    )


@pytest.mark.parametrize("source", ["p0", "cluster_error", "split_rate"])
@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("10%", 0.1, 0.1), (" 10% ", 0.1, 0.1), ("0.1", 0.1, 0.1), ("5%,15%", 0.05, 0.15)],
)
def test_percentages_and_numbers_may_be_texts(source, text, low, high):
    claim = make_claim(**{source: text})
    assert (claim.low, claim.high) == pytest.approx((low, high))
    assert make_claim(**{source: ("5%", 0.15)}).low == pytest.approx(0.05)


@pytest.mark.parametrize("text", ["110%", "-5%", "15%,5%"])
def test_percentages_that_cannot_be_are_refused(text):
    with pytest.raises(InputError, match=r"must lie in \[0, 1\)"):
        make_claim(cluster_error=text)


@pytest.mark.parametrize("value", [(0.1,), (0.1, 0.2, 0.3), (None, 0.1), {}, object], ids=str)
def test_anything_but_a_number_or_a_pair_is_refused(value):
    with pytest.raises(InputError, match=r"p0=.* must be a number or a pair \(low, high\)"):
        make_claim(p0=value)


@pytest.mark.parametrize(
    ("source", "hint"), [("p0", ", or 'grid'"), ("cluster_error", r"\.$"), ("split_rate", r"\.$")]
)
def test_words_are_refused_and_grid_is_offered_for_p0_only(source, hint):
    with pytest.raises(InputError, match=rf"{source}='some' is not usable.*\(low, high\){hint}"):
        make_claim(**{source: "some"})


# ---------------------------------------------------------------- shares of folds


def test_as_many_rows_leak_back_unless_the_user_says_otherwise():
    """The cluster error whose p_T is 0.05 on average; as many rows then leak either way."""
    shares = make_claim(p0=0.05).shares(0.05, FOLDS)
    assert mean_shares(shares, [20 / 60, 40 / 60]).p0 == pytest.approx(0.05)
    for share, fold in zip(shares, FOLDS, strict=True):
        leaked = share.p0 * fold.n_training
        assert leaked == pytest.approx(share.p0_validation * fold.n_validation)


@pytest.mark.parametrize("back", [0, 0.3])
def test_given_p0_validation_holds_in_every_fold(back):
    shares = make_claim(p0=0.05, p0_validation=back).shares(0.05, FOLDS)
    assert shares == [LeakShares(p0=0.05, p0_validation=back)] * 2


@pytest.mark.parametrize("value", [0.34, 0.5, 0.9])
def test_p0_that_the_fold_sizes_do_not_allow_is_refused_with_a_way_out(value):
    """A third of the rows are validated on; p0 = 0.34 would need more than all ids to be wrong."""
    with pytest.raises(InputError) as caught:
        make_claim(p0=value).shares(value, FOLDS)
    text = str(caught.value)
    assert f"p0={value:g} is impossible if as many rows leak back" in text
    assert "33% of their rows in validation" in text
    assert "p0_validation=0" in text


def test_the_same_p0_is_possible_when_rows_leak_one_way():
    assert make_claim(p0=0.9, p0_validation=0).shares(0.9, FOLDS)[0].clean == pytest.approx(0.1)


def test_shares_that_add_up_to_one_are_refused():
    with pytest.raises(InputError, match=r"p0=0\.5 and p0_validation=0\.5 add up to 1 or more"):
        make_claim(p0=0.5, p0_validation=0.5).shares(0.5, FOLDS)


@pytest.mark.parametrize("back", [-0.1, 1, 1.5, np.nan, "x"])
def test_p0_validation_must_lie_between_0_and_1(back):
    with pytest.raises(InputError, match=r"p0_validation=.* must"):
        make_claim(p0=0.1, p0_validation=back).shares(0.1, FOLDS)


def test_cluster_error_spreads_over_the_sides_by_their_rows():
    expected = [
        LeakShares(p0=0.1 * 20 / 100, p0_validation=0.1 * 80 / 100),
        LeakShares(p0=0.1 * 40 / 100, p0_validation=0.1 * 60 / 100),
    ]
    assert make_claim(cluster_error=0.1).shares(0.1, FOLDS) == expected
    assert shares_by_fold(0.1, FOLDS) == expected


@pytest.mark.parametrize("error", [0.0, 0.3, 0.999])
def test_cluster_error_moves_as_many_rows_in_as_out(error):
    for share, sizes in zip(shares_by_fold(error, FOLDS), FOLDS, strict=True):
        moved_in = share.p0 * sizes.n_training
        assert moved_in == pytest.approx(share.p0_validation * sizes.n_validation)


def test_mean_shares_are_weighted():
    shares = [LeakShares(p0=0.1, p0_validation=0.2), LeakShares(p0=0.3, p0_validation=0.4)]
    mean = mean_shares(shares, [0.25, 0.75])
    assert (mean.p0, mean.p0_validation) == (pytest.approx(0.25), pytest.approx(0.35))


def test_row_of_a_split_cluster_is_seen_unless_its_mates_fell_into_the_same_fold():
    # one of 5 ids is validated: all 4 others train. Two of 5: of the 4 others, 3 train.
    alone, paired = fold(80, 20, 4, 1), fold(60, 40, 3, 2)
    claim = make_claim(split_rate=0.5)
    assert claim.seen(0.5, [alone]).share == pytest.approx(0.5)
    assert claim.seen(0.5, [paired]).share == pytest.approx(0.5 * 3 / 4)
    assert claim.seen(0.5, [alone, paired]).share == pytest.approx(0.5 * (20 + 40 * 3 / 4) / 60)
