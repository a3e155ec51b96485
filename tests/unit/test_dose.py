"""The loss on new clusters from losses at known doses."""

import doctest
import json
from dataclasses import replace

import numpy as np
import pytest

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.dose import DoseFit, DoseSolution, estimate_doses
from mlflow_b3.estimation.effects import Effects
from mlflow_b3.measurement.doses import DoseLosses

DOSES = (0, 1, 2, 3, 5)


class MixedLaw:
    """Rows lose nothing of their injected dose, and have one or all other mates with small chances."""

    def __init__(self, one: float = 0.0, all_others: float = 0.0) -> None:
        self.none, self.one, self.all_others = 1 - one - all_others, one, all_others

    def validation(self, size: int, dose: int) -> np.ndarray:
        law = np.zeros(size + 1)
        law[dose] += self.none
        law[min(dose + 1, size - 1)] += self.one
        law[size - 1] += self.all_others
        return law

    def plain(self, size: int) -> np.ndarray:
        return self.validation(size, 0)

    def held_back(self, size: int) -> np.ndarray:
        return np.eye(size + 1)[size - 1]

    def row_folds(self, size: int) -> np.ndarray:
        return self.held_back(size)

    def expecting(self, effects: Effects) -> "Expectations":
        return Expectations(self, effects)


class Expectations(MixedLaw):
    """The same law, by expectations of effects."""

    def __init__(self, law: MixedLaw, effects: Effects) -> None:
        self.law, self.effects = law, effects

    def validation(self, size: int, dose: int) -> np.ndarray:
        return self.of(self.law.validation(size, dose))

    def held_back(self, size: int) -> np.ndarray:
        return self.of(self.law.held_back(size))

    def of(self, chances: np.ndarray) -> np.ndarray:
        doses = np.arange(len(chances))
        return np.array([*(self.effects.at(doses) @ chances), chances[0], doses @ chances])


def simulated(
    g,
    law,
    *,
    clusters: int = 300,
    size: int = 10,
    noise: float = 0.0,
    between: float = 0.0,
    passes: int = 3,
    steps: int = len(DOSES),
    shift: float = 0.0,
    by_row: bool = False,
    seed: int = 0,
) -> DoseLosses:
    """Losses whose means are those of the law, with noise of scores and differences of clusters."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(clusters), size)
    level = between * rng.normal(size=clusters)[rows]
    curve = g(np.arange(size + 1))
    means = [law.validation(size, dose) @ curve for dose in DOSES]
    means += [law.held_back(size) @ curve, law.row_folds(size) @ curve]
    sums, counts = np.zeros((len(means), len(rows))), np.zeros((len(means), len(rows)))
    order = rng.integers(len(DOSES), size=clusters)
    for j, mean in enumerate(means):
        number = np.full(len(rows), passes)
        if j == len(DOSES) + 1:
            number = np.full(len(rows), int(by_row))
        elif steps < len(DOSES) and j < len(DOSES):
            number = passes * ((order[rows] + j) % len(DOSES) < steps)
        draws = noise * rng.normal(size=len(rows)) * np.sqrt(number)
        sums[j] = number * (mean + shift + level) + draws
        counts[j] = number
    whole = law.plain(size) @ curve + level + noise * rng.normal(size=(passes, len(rows)))
    folds = rng.integers(5, size=(passes, clusters))[:, rows]
    return DoseLosses.from_rows(
        clusters=rows,
        doses=[DOSES] * clusters,
        sums=sums,
        counts=counts,
        whole=whole,
        folds=folds,
        training_share=0.8,
        held_back_share=0.05,
        refits=5 * passes * (1 + steps),
    )


def saturating(d):
    return 0.2 + 0.2 * np.exp(-np.asarray(d) / 3.0)


def step(d):
    return np.where(np.asarray(d) >= 1, 0.1, 0.4)


def late(d):
    return np.where(np.asarray(d) >= 2, 0.1, 0.4)


LEAKY = MixedLaw(one=0.3, all_others=0.08)


@pytest.mark.parametrize("g", [saturating, step, late])
def test_e0_and_the_curve_are_found_where_losses_have_no_noise(g):
    found = estimate_doses(simulated(g, LEAKY), LEAKY)
    assert found.e0 == pytest.approx(g(0), abs=0.012)
    assert abs(found.e0 - g(0)) < 0.25 * abs(found.loco - g(0))
    assert found.curve.d[:4] == (0, 1, 2, 3)
    np.testing.assert_allclose(found.curve.loss[:4], g(np.arange(4)), atol=0.02)
    assert found.effect == pytest.approx(g(0) - g(9), abs=0.02)
    assert not found.shrunk


def test_rows_in_folds_of_single_rows_are_enough_for_an_answer():
    """With one refit for each fold of clusters and of rows, there are no rotated refits."""
    losses = simulated(saturating, LEAKY, noise=0.3, between=0.2, passes=1, steps=0, by_row=True)
    counts, differences = losses.counts.copy(), losses.differences.copy()
    counts[: losses.by_row] = 0
    differences[: losses.by_row] = 0
    losses = replace(losses, counts=counts, differences=differences)
    found = estimate_doses(losses, LEAKY)
    low, high = found.interval
    assert low < saturating(0) < high
    assert found.loco < found.e0
    more = estimate_doses(simulated(saturating, LEAKY, noise=0.3, between=0.2), LEAKY)
    assert high - low > more.interval[1] - more.interval[0]


def test_right_ids_return_the_score_unchanged():
    losses = simulated(saturating, MixedLaw(), noise=0.3, between=0.2)
    found = estimate_doses(losses, MixedLaw())
    assert found.e0 == found.loco
    assert found.variance.ids == 0
    assert found.unseen == pytest.approx(1)


def test_without_an_effect_the_estimate_stays_at_the_score():
    corrections = []
    for seed in range(10):
        losses = simulated(
            lambda d: 0.3 + 0.0 * np.asarray(d), LEAKY, noise=0.4, between=0.2, seed=seed
        )
        found = estimate_doses(losses, LEAKY)
        corrections.append((found.e0 - found.loco) / found.stderr)
    assert np.sqrt(np.mean(np.square(corrections))) < 0.2
    assert found.shrunk
    assert found.no_effect > 0.5


def test_a_different_mix_of_clusters_in_training_is_not_taken_for_an_effect_of_mates():
    losses = simulated(
        lambda d: 0.3 + 0.0 * np.asarray(d), LEAKY, noise=0.3, between=0.2, shift=-0.02
    )
    found = estimate_doses(losses, LEAKY)
    assert abs(found.e0 - found.loco) < 0.003
    assert found.p_value > 0.05


def test_intervals_cover_the_loss_on_new_clusters():
    covered = []
    for seed in range(60):
        losses = simulated(saturating, LEAKY, clusters=80, noise=0.4, between=0.15, seed=seed)
        low, high = estimate_doses(losses, LEAKY).interval
        covered.append(low <= saturating(0) <= high)
    assert np.mean(covered) >= 0.9


def test_ten_refits_give_an_answer_with_a_wider_interval():
    many = estimate_doses(simulated(saturating, LEAKY, noise=0.4, between=0.1), LEAKY)
    few = estimate_doses(
        simulated(saturating, LEAKY, noise=0.4, between=0.1, passes=1, steps=1), LEAKY
    )
    assert few.refits == 10
    assert few.interval[0] < saturating(0) < few.interval[1]
    assert few.stderr > many.stderr
    assert few.variance.refits > many.variance.refits


def test_the_parts_of_the_variance_add_up():
    found = estimate_doses(simulated(saturating, LEAKY, noise=0.3, between=0.2), LEAKY)
    parts = found.variance
    assert parts.clusters + parts.refits + parts.ids == pytest.approx(found.stderr**2)
    assert min(parts.clusters, parts.refits, parts.ids) >= 0


def test_more_clusters_and_more_refits_narrow_their_own_parts():
    base = estimate_doses(simulated(saturating, LEAKY, noise=0.3, between=0.2), LEAKY).variance
    clusters = simulated(saturating, LEAKY, clusters=1200, noise=0.3, between=0.2)
    refits = simulated(saturating, LEAKY, passes=12, noise=0.3, between=0.2)
    assert estimate_doses(clusters, LEAKY).variance.clusters < 0.5 * base.clusters
    assert estimate_doses(refits, LEAKY).variance.refits < 0.5 * base.refits


def test_a_range_of_rates_covers_the_intervals_at_both_ends():
    losses = simulated(saturating, LEAKY, noise=0.3, between=0.1)
    fit = DoseFit(losses)
    ends = MixedLaw(0.1, 0.02), MixedLaw(0.5, 0.15)
    low, high = fit.reading(ends[0]), fit.reading(ends[1])
    found = fit.estimate(LEAKY, law_range=ends)
    assert found.interval == (min(low.low, high.low), max(low.high, high.high))
    assert found.variance.ids > fit.estimate(LEAKY).variance.ids
    assert low.e0 < found.e0 < high.e0


def test_nothing_is_known_of_e0_where_every_row_has_mates_in_training():
    all_leaked = MixedLaw(one=1.0)
    losses = simulated(step, all_leaked, noise=0.3, between=0.1)
    found = estimate_doses(losses, all_leaked)
    assert found.unseen == pytest.approx(0)
    assert found.interval[1] - found.interval[0] > 3 * (
        found.loco_interval[1] - found.loco_interval[0]
    )


def test_intervals_stay_wide_where_few_rows_have_no_mates_and_a_step_fits_as_well_as_no_effect():
    """At even odds of an effect, they are 5.6 times as wide as those of LOCO."""
    law = MixedLaw(one=0.95)
    wider = []
    for seed in range(6):
        found = estimate_doses(
            simulated(step, law, clusters=40, noise=0.3, between=0.05, seed=seed), law
        )
        wider.append(np.ptp(found.interval) / np.ptp(found.loco_interval))
    assert np.mean(wider) > 7


def test_influences_are_those_of_leaving_clusters_out():
    losses = simulated(saturating, LEAKY, clusters=60, noise=0.3, between=0.2)
    fit = DoseFit(losses)
    loco, e0 = fit.loco_influence, fit.influence(LEAKY)
    whole = estimate_doses(losses, LEAKY)
    changes = []
    for cluster in range(60):
        kept = np.arange(60) != cluster
        rest = replace(
            losses,
            sizes=losses.sizes[kept],
            doses=losses.doses[:, kept],
            differences=losses.differences[:, kept],
            counts=losses.counts[:, kept],
            loco=losses.loco[:, kept],
            folds=losses.folds[:, kept],
        )
        found = estimate_doses(rest, LEAKY)
        changes.append((whole.loco - found.loco, whole.e0 - found.e0))
    assert np.corrcoef(loco, [change[0] for change in changes])[0, 1] > 0.999
    assert np.corrcoef(e0, [change[1] for change in changes])[0, 1] > 0.95


def test_squared_losses_scale_with_the_target():
    losses = simulated(saturating, LEAKY, noise=0.2, between=0.1)
    scaled = replace(losses, differences=100 * losses.differences, loco=100 * losses.loco)
    small = estimate_doses(losses, LEAKY, bounds=(0.0, None))
    large = estimate_doses(scaled, LEAKY, bounds=(0.0, None))
    assert large.e0 == pytest.approx(100 * small.e0)
    np.testing.assert_allclose(large.interval, 100 * np.array(small.interval))


def test_losses_and_estimates_survive_json():
    losses = simulated(saturating, LEAKY, clusters=20, noise=0.3)
    again = DoseLosses.from_dict(json.loads(json.dumps(losses.to_dict())))
    found = estimate_doses(losses, LEAKY)
    assert estimate_doses(again, LEAKY) == found
    assert DoseSolution.from_json(found.to_json()) == found


def test_clusters_that_were_never_validated_are_left_out():
    losses = simulated(saturating, LEAKY, clusters=40, noise=0.2)
    loco = losses.loco.copy()
    loco[:, :5] = np.nan
    partly = DoseLosses(**{**vars(losses), "loco": loco})
    found = estimate_doses(partly, LEAKY)
    assert found.loco == pytest.approx(np.mean(losses.loco[:, 5:]))
    again = DoseLosses.from_dict(json.loads(json.dumps(partly.to_dict())))
    assert estimate_doses(again, LEAKY) == found


def test_wrong_shapes_and_levels_are_refused():
    losses = simulated(saturating, LEAKY, clusters=20)
    with pytest.raises(InputError, match="sizes has shape"):
        DoseLosses(**{**vars(losses), "sizes": losses.sizes[1:]})
    with pytest.raises(InputError, match="two clusters"):
        DoseLosses(**{**vars(losses), "loco": np.full_like(losses.loco, np.nan)})
    with pytest.raises(InputError, match="nothing beside whole refits"):
        DoseLosses(**{**vars(losses), "counts": 0 * losses.counts})
    with pytest.raises(InputError, match="level=95"):
        DoseFit(losses, level=95)
    with pytest.raises(InputError, match="bounds"):
        DoseFit(losses, bounds=(1.0, 0.0))


def test_the_example_of_the_estimate_runs():
    (example,) = doctest.DocTestFinder().find(estimate_doses, globs={})
    failed, tried = doctest.DocTestRunner().run(example)
    assert (failed, tried > 0) == (0, True)


def without_errors(clusters: int = 300) -> DoseLosses:
    return simulated(lambda d: np.zeros(len(d)), LEAKY, clusters=clusters)


def test_clusters_without_errors_limit_the_loss_by_their_number_and_not_to_nothing():
    found = estimate_doses(without_errors(), LEAKY)
    unseen = 300 * LEAKY.none  # clusters' worth of rows without mates in training
    assert (found.e0, found.interval[0]) == (0, 0)
    assert (1 - found.interval[1]) ** unseen == pytest.approx(0.025)
    assert found.interval[1] == pytest.approx(3.7 / unseen, rel=0.02)
    assert estimate_doses(without_errors(30), LEAKY).interval[1] > 9 * found.interval[1]


def test_no_error_says_nothing_about_scores_that_depend_on_the_rarer_class():
    assert DoseFit(without_errors(), is_mean=False).estimate(LEAKY).interval == (0, 1)
    ranked = DoseFit(without_errors(), is_mean=False, chance=0.5).estimate(LEAKY)
    assert ranked.interval == (0, 0.5)


def test_an_interval_contains_its_estimate_however_small_that_is():
    losses = simulated(lambda d: np.full(len(d), 1e-4), LEAKY)
    for bounds in ((0.0, 1.0), (0.0, None), (1e-4, 1.0)):
        fit = DoseFit(losses, bounds=bounds)
        found, read = fit.estimate(LEAKY), fit.reading(LEAKY)
        assert found.interval[0] <= found.e0 <= found.interval[1]
        assert read.low <= read.e0 <= read.high
        for loss, low, high in zip(
            found.curve.loss, found.curve.low, found.curve.high, strict=True
        ):
            assert low <= loss <= high
