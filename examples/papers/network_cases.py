"""Networks of network_likelihoods.py: samples, and the paper's small network, many of which train at once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import cvc_cases
import cvc_design
import numpy as np
from cvc_cases import FURTHEST_SCORE, SHORT, Row
from cvc_design import Array, Folds
from experiment import needs
from scipy.special import expit, logit

from mlflow_b3.correlated.field import MOST_SD, covariances, fit_field
from mlflow_b3.correlated.formulas import SLOPES, BiasSums
from mlflow_b3.correlated.mixed import fit_mixed_logistic
from mlflow_b3.correlated.network_losses import group_effect_loss, pair_effect_loss
from mlflow_b3.correlated.structure import Field, Level, Structure, WorkingModel
from mlflow_b3.correlated.targets import Draw, Draws, smoothed_logistic

#: Two hidden layers with ReLU, as in appendix A.3.
HIDDEN = (100, 20)
#: Passes over the rows, and learning rates of weights and of the logarithms of sd and reach.
EPOCHS, RATE, EFFECT_RATE = 60, 0.002, 0.05
#: Passes by cross entropy before those by pairs, as in appendix A.3.
FIRST_EPOCHS = 20
#: Nodes in training: errors of the likelihood are below 1e-5 for groups, and 1e-3 for pairs, at sd 2.
NODES, PAIR_NODES = 15, 9
FOLDS = 5
FEATURES = 5
#: Twenty identities with ten images each, and twelve regions with nine rows each.
IDENTITIES, IMAGES, IDENTITY_SD = 20, 10, 1.0
FIELD_SD, FIELD_REACH = cvc_cases.FIELD_SD, cvc_cases.FIELD_REACH
#: New regions of a layout, and how many of their rows a sample is compared with.
NEW_REGIONS, NEW_ROWS = 20, 40


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One table, of which the truth is known.

    Attributes
    ----------
    X, mean : array
        Features, and log odds without effects.
    target : array (n,)
    in_use : array (n,)
        Probability of class 1 of the same rows in new groups or regions.
    group : array (n,)
        Identity or region.
    places : array (n, 2) or None
    folds, whole : list of (training rows, validation rows)
        Folds of rows, and of whole groups.
    again : callable
        `(count, start) → Draw`: more samples of the same rows, from the truth.
    """

    X: Array
    mean: Array
    target: Array
    in_use: Array
    group: Array
    places: Array | None
    folds: Folds
    whole: Folds
    again: Callable[[int, int], Draw]

    @property
    def structure(self) -> Structure:
        """What correlates the rows."""
        return structure_of(self.group, self.places)


def structure_of(group: Array, places: Array | None) -> Structure:
    """Return groups, or a field with regions."""
    level = Level(name="group", codes=group)
    if places is None:
        return Structure(levels=(level,))
    return Structure(field=Field(coordinates=places, regions=level, kernel="gaussian"))


def working_model(mean: Array, sd: float, reach: float | None = None) -> WorkingModel:
    """Return a working model that is given, with a Gaussian kernel for a field."""
    return WorkingModel(
        task="classification",
        mean=mean,
        sd=(sd,),
        sd_low=(sd,),
        sd_high=(sd,),
        reach=reach,
        kernel="gaussian" if reach else "exponential",
    )


def sample_of(
    X: Array,
    mean: Array,
    group: Array,
    places: Array | None,
    again: Callable[[int, int], Draw],
    rng: np.random.Generator,
) -> Sample:
    """Return a table with the first of the samples from the truth, and folds."""
    first = again(1, 0)
    return Sample(
        X=X.astype(np.float32),
        mean=mean,
        target=first.target[0],
        in_use=first.deployed[0],
        group=group,
        places=places,
        folds=cvc_design.random_folds(len(X), FOLDS, rng),
        whole=cvc_design.folds_of((rng.permutation(group.max() + 1) % FOLDS)[group]),
        again=lambda count, start: again(count, start + 1),
    )


def draw_features(group: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return features that differ between groups, and a mean that is not linear in them."""
    noise = np.sqrt(1.5) * rng.standard_normal((len(group), FEATURES))
    X = 0.63 * (rng.standard_normal((group.max() + 1, FEATURES))[group] + noise)
    return X, np.asarray(np.tanh(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3])


def identities(seed: int) -> Sample:
    """Return ten rows of each of 20 identities (appendix A.2); the model will meet new ones."""
    rng = np.random.default_rng([seed, 2])
    group = np.repeat(np.arange(IDENTITIES), IMAGES)
    X, mean = draw_features(group, rng)
    truth = Draws(working_model(mean, IDENTITY_SD), structure_of(group, None), seed)
    return sample_of(X, mean, group, None, truth.batch, rng)


def regions(seed: int) -> Sample:
    """Return nine rows in each of twelve regions of a field with a Gaussian kernel (appendix A.3)."""
    rng = np.random.default_rng([seed, 3])
    group = cvc_cases.REGION
    X, mean = draw_features(group, rng)
    places = cvc_cases.places_of(rng)
    new = np.concatenate([cvc_cases.places_of(rng) for _ in range(NEW_REGIONS)])
    truth = FieldTruth(mean, places, new, FIELD_SD, FIELD_REACH, seed)
    return sample_of(X, mean, group, places, truth, rng)


class FieldTruth:
    """Samples of a field, whose rows in use are in real new regions: what the correction approximates."""

    def __init__(
        self, mean: Array, places: Array, new: Array, sd: float, reach: float, seed: int
    ) -> None:
        self.mean, self.seed = mean, seed
        self.root, self.weights, self.left = cvc_cases.field_given(
            places, new, lambda one, other: covariances(one, other, sd, reach, "gaussian")
        )

    def __call__(self, count: int, start: int) -> Draw:
        """Return samples by their numbers."""
        rngs = [np.random.default_rng([self.seed, 5, start + number]) for number in range(count)]
        field = np.stack([self.root @ rng.standard_normal(len(self.mean)) for rng in rngs])
        expected = expit(self.mean + field)
        target = np.stack([rng.random(len(self.mean)) for rng in rngs]) < expected
        deployed = np.zeros_like(field)
        for number, rng in enumerate(rngs):
            rows = rng.choice(len(self.weights), NEW_ROWS, replace=False)
            known = self.mean + (self.weights[rows] @ field[number])[:, None]
            deployed[number] = smoothed_logistic(known, self.left[rows][:, None]).mean(axis=0)
        return Draw(expected=expected, deployed=deployed, target=target.astype(float))


# --- Many networks of one shape, which train at once on the same rows


class Networks:
    """Networks with two hidden layers, and an effect's sd and reach for each; initial weights as in `torch.nn.Linear`."""

    def __init__(self, count: int, seed: int) -> None:
        torch = needs("torch")
        generator = torch.Generator().manual_seed(seed)
        sizes = (FEATURES, *HIDDEN, 1)
        self.weights = []
        for inputs, outputs in pairwise(sizes):
            for rows in (inputs, 1):
                value = torch.rand((count, rows, outputs), generator=generator)
                self.weights.append(((2 * value - 1) / inputs**0.5).requires_grad_())
        self.log_sd, self.log_reach = (torch.zeros(count, requires_grad=True) for _ in range(2))

    def __call__(self, X: Any) -> Any:
        """Return the log odds of the rows, one line for each network."""
        hidden = X
        for layer in range(0, len(self.weights), 2):
            linear = hidden @ self.weights[layer] + self.weights[layer + 1]
            hidden = linear.relu() if layer < len(self.weights) - 2 else linear
        return hidden[..., 0]


def train(
    likelihood: str, sample: Sample, rows: Array, targets: Array, seed: int
) -> tuple[Networks, Callable[[Array], Array]]:
    """Train a network for each line of targets on some rows.

    Parameters
    ----------
    likelihood : {"none", "groups", "pairs"}
        Cross entropy, or the likelihood with the effect of the group, or that of pairs.
    """
    torch = needs("torch")
    networks = Networks(len(targets), seed)
    X, y = torch.as_tensor(sample.X[rows]), torch.as_tensor(targets, dtype=torch.float32)
    group = torch.as_tensor(sample.group[rows])
    optimizer = torch.optim.Adam(
        [
            {"params": networks.weights, "lr": RATE},
            {"params": [networks.log_sd, networks.log_reach], "lr": EFFECT_RATE},
        ]
    )
    pairs = draw_pairs(sample, rows, np.random.default_rng([seed, 4]))
    for epoch in range(EPOCHS):
        f = networks(X)
        if likelihood == "groups":
            loss = group_effect_loss(f, y, group, networks.log_sd.exp(), nodes=NODES)
        elif likelihood == "pairs" and epoch >= FIRST_EPOCHS:
            loss = pairs_loss(networks, sample, rows, f, y, next(pairs))
        else:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(f, y, reduction="none")
            loss = loss.mean(-1)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()

    def predict(others: Array) -> Array:
        with torch.no_grad():
            return np.asarray(networks(torch.as_tensor(sample.X[others])).double().numpy())

    return networks, predict


def draw_pairs(sample: Sample, rows: Array, rng: np.random.Generator) -> Iterator[Array]:
    """Draw a mate for each row in each pass: of its own group, in a field every other time any row."""
    group = sample.group[rows]
    same = (group[:, None] == group[None]) & ~np.eye(len(rows), dtype=bool)
    turn = 0
    while True:
        allowed = same if sample.places is None or turn % 2 == 0 else ~np.eye(len(rows), dtype=bool)
        mate = (rng.random(same.shape) * allowed).argmax(axis=1)
        yield np.column_stack([np.arange(len(rows)), mate])
        turn += 1


def pairs_loss(
    networks: Networks, sample: Sample, rows: Array, f: Any, y: Any, pairs: Array
) -> Any:
    """Return the loss of pairs: an effect of the group, or of a field with a Gaussian kernel."""
    torch = needs("torch")
    variance = (2 * networks.log_sd).exp()
    shared = torch.ones(len(networks.log_sd), len(pairs))
    if sample.places is not None:
        places = sample.places[rows]
        distance = np.linalg.norm(places[pairs[:, 0]] - places[pairs[:, 1]], axis=1)
        squares = torch.as_tensor(distance**2, dtype=f.dtype)
        shared = (-squares / (2 * networks.log_reach[:, None]).exp()).exp()
    return pair_effect_loss(
        f[:, pairs], y[:, pairs], variance, variance[:, None] * shared, nodes=PAIR_NODES
    )


# --- Cross-validation, its corrections and the truth of one learner in one sample


def averaged(f: Array, sd: Array) -> Array:
    """Return the log odds of the mean of p(1 | f + sd u) over u."""
    chance = smoothed_logistic(f, np.broadcast_to(sd[:, None], f.shape))
    return np.asarray(logit(np.clip(chance, 1e-9, 1 - 1e-9)))


def measure(likelihood: str, sample: Sample, seed: int, draws: int) -> Row:
    """Return CV, bias, corrections and the loss in new groups, for both predictions of a network.

    Corrections and the bias are from `draws` refits of each fold.
    """
    everything = np.arange(len(sample.target))
    whole, predict = train(likelihood, sample, everything, sample.target[None], seed)
    found = [float(value.exp()[0].detach()) for value in (whole.log_sd, whole.log_reach)]
    sd, reach = min(found[0], MOST_SD), None if sample.places is None else found[1]
    score = score_world(likelihood, sample, seed)
    models = {"score": score}
    if likelihood != "none":
        models["own"] = working_model(predict(everything)[0], sd, reach)
    if sample.places is not None:
        models["model"] = working_model(sample.mean, FIELD_SD, FIELD_REACH)
    worlds = {"bias": sample.again}
    worlds |= {name: Draws(model, sample.structure, seed).batch for name, model in models.items()}
    kinds = ("f",) if likelihood == "none" else ("f", "averaged")
    scores = {kind: np.empty(len(everything)) for kind in kinds}
    sums = {(*names,): BiasSums(FOLDS) for names in product(kinds, SHORT, worlds)}
    for fold, (training, held) in enumerate(sample.folds):
        drawn = {name: world(draws, fold * draws) for name, world in worlds.items()}
        targets = np.vstack([sample.target, *(many.target for many in drawn.values())])
        number = 1000 * seed + fold
        networks, predict = train(likelihood, sample, training, targets[:, training], number)
        f, sds = predict(held), networks.log_sd.exp().detach().double().numpy()
        for kind in kinds:
            own, *others = np.split(
                f if kind == "f" else averaged(f, sds), 1 + draws * np.arange(len(drawn))
            )
            scores[kind][held] = own[0]
            for (name, many), lines in zip(drawn.items(), others, strict=True):
                for loss in SHORT:
                    parts = (SLOPES[loss](lines), many.expected[:, held], many.deployed[:, held])
                    for line in zip(*parts, strict=True):
                        sums[kind, loss, name].add(fold, *line)
    row = {
        "sd": sd,
        "sd score": score.sd[0],
        "reach": reach or np.nan,
        "reach score": score.reach or np.nan,
    }
    for kind, loss in product(kinds, SHORT):
        name = f"{SHORT[loss]} {kind}"
        row[f"{name} CV"] = float(cvc_design.LOSSES[loss](sample.target, scores[kind]).mean())
        row[f"{name} GenErr"] = float(cvc_design.LOSSES[loss](sample.in_use, scores[kind]).mean())
        row |= {f"{name} {world}": sums[kind, loss, world].bias().value for world in worlds}
    return row


def score_world(likelihood: str, sample: Sample, seed: int) -> WorkingModel:
    """Return the recalibrated score of networks trained without the group of a row, the default of `cvc`."""
    scores = np.empty(len(sample.target))
    for fold, (training, held) in enumerate(sample.whole):
        target = sample.target[None, training]
        scores[held] = train(likelihood, sample, training, target, 1000 * seed + 500 + fold)[1](
            held
        )[0]
    clipped = np.clip(scores, -FURTHEST_SCORE, FURTHEST_SCORE)
    design = np.column_stack([np.ones(len(scores)), clipped])
    if sample.places is None:
        fit = fit_mixed_logistic(sample.target, design, (sample.group,), intervals=False)
        return working_model(design @ fit.coefficients, fit.sd[0])
    field = fit_field(
        sample.target, design, sample.places, "classification", kernel="gaussian", intervals=False
    )
    return working_model(design @ field.coefficients, field.sd, field.reach)
