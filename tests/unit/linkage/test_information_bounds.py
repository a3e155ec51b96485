"""Information bounds on linkage, at the settings that the thesis plots and against brute force."""

import numpy as np
import pandas as pd
import pytest

from mlflow_b3 import InputError
from mlflow_b3.linkage import leak_floor, linkage_error_bound
from mlflow_b3.linkage.bounds import (
    bayes_error,
    collision_error,
    field_frequencies,
    hit_miss_channel,
    mi_fano,
    mi_fano_channel,
    printed_fano,
    printed_string_bound,
    string_channel,
)

pytestmark = pytest.mark.newest

#: N, β, number of fields, values of a field: theorem 7, MI-Fano, collision, Bayes error.
SETTINGS = [
    ((100, 0.6, 3, 10), (-0.62, 0.57, 0.71, 0.80)),
    ((500, 0.6, 3, 10), (-0.20, 0.68, 0.88, 0.91)),
    ((100, 0.05, 3, 10), (-5.72, -0.47, 0.097, 0.132)),
    ((100, 0.2, 3, 10), (-3.24, -0.09, 0.26, 0.36)),
    ((100, 0.8, 3, 10), (0.19, 0.77, 0.89, 0.925)),
    ((100, 0.6, 8, 4), (-1.79, 0.495, 0.46, 0.744)),
    ((100, 0.8, 5, 46), (-0.91, 0.50, 0.57, 0.72)),
]

NAMES = [
    "Noah",
    "Liam",
    "Mason",
    "Jacob",
    "William",
    "Ethan",
    "Michael",
    "Alexander",
    "James",
    "Daniel",
    "Emma",
    "Olivia",
    "Sophia",
    "Isabella",
    "Ava",
    "Mia",
    "Emily",
    "Abigail",
    "Madison",
    "Charlotte",
]


def uniform(values, fields=1):
    return [np.full(values, 1 / values)] * fields


def edit_distance(one, two):
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        new = [i]
        for j, b in enumerate(two, 1):
            new.append(min(row[j] + 1, new[-1] + 1, row[j - 1] + (a != b)))
        row = new
    return row[-1]


DISTANCES = np.array([[edit_distance(one, two) for two in NAMES] for one in NAMES])


@pytest.mark.parametrize(("setting", "expected"), SETTINGS)
def test_the_bounds_at_the_settings_of_the_thesis(setting, expected):
    N, beta, fields, values = setting
    theta = uniform(values, fields)
    channels = [hit_miss_channel(theta[0], beta)] * fields
    best = bayes_error(theta, channels, N, draws=20_000)
    found = (
        printed_fano(theta, beta, N),
        mi_fano(theta, beta, N),
        collision_error(theta, beta, N).error,
        best.error,
    )
    assert found == pytest.approx(expected, abs=0.01)
    assert found[0] < found[1]
    assert found[2] <= best.error + 3 * best.stderr
    assert linkage_error_bound(theta, beta, N).error == max(found[1:3])


def test_a_string_field_at_the_setting_of_the_thesis():
    """The twenty most frequent names of 2014, one field, N = 100, β = .6."""
    alpha = uniform(20)
    expected = {0.0: (0.24, 0.71, 0.914), 1.0: (-5.47, 0.30, 0.818)}
    for steepness, values in expected.items():
        channel = [string_channel(alpha[0], DISTANCES, 0.6, steepness)]
        found = (
            printed_string_bound(alpha, [DISTANCES], 0.6, steepness, 100),
            mi_fano_channel(alpha, channel, 100),
            bayes_error(alpha, channel, 100).error,
        )
        assert found == pytest.approx(values, abs=0.01)


def test_without_steepness_strings_are_hit_or_missed():
    alpha = np.random.default_rng(0).dirichlet(np.ones(20))
    channel = string_channel(alpha, DISTANCES, 0.3, 0.0)
    assert channel == pytest.approx(hit_miss_channel(alpha, 0.3))
    assert mi_fano_channel([alpha], [channel], 50) == pytest.approx(mi_fano([alpha], 0.3, 50))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_mi_fano_knows_the_ends(beta):
    """A field that is never wrong carries its entropy, one that is always random nothing."""
    theta = [np.array([0.5, 0.25, 0.25])]
    entropy = 1.5 * np.log(2)
    expected = {0.0: entropy, 1.0: 0.0}
    carried = np.log(1000) - np.log(2) - mi_fano(theta, beta, 1000) * np.log(999)
    assert carried + 1e-12 >= 0
    assert carried <= entropy + 1e-12
    if beta in expected:
        assert carried == pytest.approx(expected[beta])


def test_distortion_can_differ_between_fields():
    theta = uniform(10, 2)
    one, other = [0.1, 0.9], [hit_miss_channel(theta[0], beta) for beta in (0.1, 0.9)]
    assert mi_fano(theta, one, 100) == pytest.approx(mi_fano_channel(theta, other, 100))
    turned = collision_error(theta, one[::-1], 100).error
    assert collision_error(theta, one, 100).error == pytest.approx(turned)
    assert printed_fano(theta, one, 100) == pytest.approx(printed_fano(theta, one[::-1], 100))


def test_one_perfect_field_collides_by_birthdays():
    """ε = 1 - (1-(1-q)^N)/(N·q) for uniform q, and 1 - 1/N when all entities are alike."""
    q, N = 1 / 50, 30
    expected = 1 - (1 - (1 - q) ** N) / (N * q)
    assert collision_error(uniform(50), 0.0, N).error == pytest.approx(expected)
    assert collision_error(uniform(50), 1.0, N).error == pytest.approx(1 - 1 / N)
    assert collision_error([np.ones(1)], 0.3, N).error == pytest.approx(1 - 1 / N)


def test_fields_that_tell_everything_leave_no_error():
    assert collision_error(uniform(10**5, 10), 0.0, 100).error == pytest.approx(0, abs=1e-12)
    many = np.arange(1, 301) / np.arange(1, 301).sum()
    assert collision_error([many] * 200, 0.0, 100, draws=10).error == pytest.approx(0, abs=1e-12)


def test_fields_that_avoid_each_other_may_tell_more_than_independent_ones():
    """Two fields of frequencies 0.9 and 0.1 whose rare values never meet."""
    together = collision_error([[0.8, 0.1, 0.1]], 0.0, 3).error
    assert together == pytest.approx(0.66 - 0.514 / 3)
    assert together < collision_error([[0.9, 0.1]] * 2, 0.0, 3).error


def test_drawn_and_summed_collisions_agree(monkeypatch):
    rng = np.random.default_rng(0)
    theta = [rng.dirichlet(np.ones(30)) for _ in range(3)]
    exact = collision_error(theta, 0.2, 1000)
    monkeypatch.setattr("mlflow_b3.linkage.bounds.MOST_COMBINATIONS", 0)
    drawn = collision_error(theta, 0.2, 1000)
    assert (exact.stderr, exact.draws, drawn.draws) == (0, 0, 100_000)
    assert drawn.error == pytest.approx(exact.error, abs=4 * drawn.stderr)
    assert collision_error(theta, 0.2, 1000, seed=1) != drawn


def test_the_bayes_error_is_that_of_guessing_the_most_probable():
    """Draw entities and rows one by one, and count the wrong guesses."""
    rng = np.random.default_rng(3)
    theta = [rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(4))]
    channels = [rng.dirichlet(np.ones(6), size=5), rng.dirichlet(np.ones(3), size=4)]
    wrong, draws = 0, 4_000
    for _ in range(draws):
        true = [rng.choice(len(t), size=10, p=t) for t in theta]
        own = rng.integers(10)
        seen = [rng.choice(c.shape[1], p=c[y[own]]) for c, y in zip(channels, true, strict=True)]
        weight = np.prod([c[y, x] for c, y, x in zip(channels, true, seen, strict=True)], axis=0)
        wrong += rng.choice(np.flatnonzero(weight >= weight.max() * (1 - 1e-12))) != own
    found = bayes_error(theta, channels, 10, draws=20_000)
    noise = np.sqrt(0.25 / draws) + found.stderr
    assert found.error == pytest.approx(wrong / draws, abs=3 * noise)
    assert mi_fano_channel(theta, channels, 10) <= found.error


def test_de_identified_keys_cannot_support_an_entity_split():
    """Sex, 80 birth years and 100 zip3, wrong in 5%: more entities than the keys can tell apart."""
    rng = np.random.default_rng(0)
    theta = [*uniform(2), *uniform(80), *uniform(100)]
    errors = [linkage_error_bound(theta, 0.05, N).error for N in (10_000, 100_000, 1_000_000)]
    assert errors == pytest.approx([0.34, 0.86, 0.99], abs=0.01)
    floor = leak_floor(0.9, errors[1], 0.1, 5)
    assert floor.validation.low == pytest.approx((0.9 * errors[1] - 0.1) * 0.8)

    frame = pd.DataFrame({"sex": rng.integers(0, 2, 200_000), "year": rng.integers(0, 80, 200_000)})
    frame["zip3"] = rng.integers(0, 100, len(frame))
    found = field_frequencies(frame, ["sex", "year", "zip3"])
    assert [len(field) for field in found] == [2, 80, 100]
    assert linkage_error_bound(found, 0.05, 100_000).error == pytest.approx(errors[1], abs=0.01)


def test_frequencies_need_complete_columns():
    frame = pd.DataFrame({"a": ["x", "x", "y", None], "b": pd.Categorical(list("uuuv"))})
    with pytest.raises(InputError, match=r"missing values in \['a'\]"):
        field_frequencies(frame, ["a", "b"])
    with pytest.raises(InputError, match="columns of the frame"):
        field_frequencies(frame, ["c"])
    with pytest.raises(InputError, match="columns='b'"):
        field_frequencies(frame, "b")
    unused = frame["b"].cat.add_categories(["w"]).to_frame()
    assert [f.tolist() for f in field_frequencies(unused, ["b"])] == [[0.75, 0.25]]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: mi_fano([[0.5, 0.4]], 0.1, 10), "field 0: .* sum to 0.9"),
        (lambda: mi_fano([], 0.1, 10), "empty"),
        (lambda: mi_fano(np.array([0.5, 0.5]), 0.1, 10), "for each field"),
        (lambda: mi_fano(uniform(2), 1.1, 10), "distortion=1.1"),
        (lambda: mi_fano(uniform(2), [0.1, 0.1], 10), "each of 1 fields"),
        (lambda: mi_fano(uniform(2), np.nan, 10), "distortion=nan"),
        (lambda: mi_fano(uniform(2), 0.1, 2), "N=2"),
        (lambda: mi_fano_channel(uniform(2), [], 10), "channels has 0 fields"),
        (lambda: mi_fano_channel(uniform(2), [np.eye(3)], 10), "2 rows are needed"),
        (lambda: mi_fano_channel(uniform(2), [np.ones((2, 2))], 10), "must be probabilities"),
        (lambda: collision_error(uniform(2), 0.1, 10, draws=1), "draws=1"),
        (lambda: bayes_error(uniform(2), [np.eye(2)], 10, seed=-1), "seed=-1"),
        (lambda: printed_fano(uniform(2), 0.0, 10), "theorem 7"),
        (lambda: printed_string_bound(uniform(20), [DISTANCES], 0, 1, 10), "theorem 8"),
        (lambda: printed_string_bound(uniform(20), [], 0.1, 1, 10), "distances has 0 fields"),
        (lambda: string_channel(np.full(20, 0.05), DISTANCES, 0.1, -1), "steepness=-1"),
        (lambda: string_channel(np.full(20, 0.05), np.ones((2, 2)), 0.1, 1), "20 values"),
        (lambda: string_channel(np.full(2, 0.5), np.ones((2, 2)), 0.1, 1), "0 on the diagonal"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(call, text):
    with pytest.raises(InputError, match=text):
        call()
