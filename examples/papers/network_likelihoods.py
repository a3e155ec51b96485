"""Networks trained with random effects, by identity and by pairs: CV, CV_c and the truth (CVc, appendices A.2 and A.3)."""

import network_cases
import numpy as np
import pandas as pd
from cvc_cases import SHORT, Row
from experiment import Outcome, Request, Table, needs, with_error
from network_cases import Array
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import expit, log_expit, logsumexp

from mlflow_b3.correlated.network_losses import group_effect_loss

#: Setting and training likelihood, with their words in the tables.
CASES = {
    ("identities", "none"): "cross entropy",
    ("identities", "groups"): "effects by identity",
    ("identities", "pairs"): "effects by pairs",
    ("regions", "none"): "cross entropy",
    ("regions", "pairs"): "field by pairs",
}
TITLES = {
    "identities": "20 identities with 10 rows each, the model meets new ones (appendix A.2)",
    "regions": "12 regions of a field with 9 rows each, the model meets new ones (appendix A.3)",
}
PREDICTIONS = {"f": "p(1 given f)", "averaged": "mean over the effect"}
TRUTH = {
    "identities": (network_cases.IDENTITY_SD, None),
    "regions": (network_cases.FIELD_SD, network_cases.FIELD_REACH),
}
SIZES, NODES = (5, 20, 50, 200), (9, 15, 31)


def run(request: Request) -> Outcome:
    needs("torch").set_num_threads(1)
    count, measured = (1, quick_sample) if request.quick else (24, full_sample)
    rows = request.trials(measured, range(request.seed, request.seed + count), "samples")
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    tables = [accuracy_table()]
    for setting in TITLES:
        tables += [losses_table(found, setting), biases_table(found, setting)]
    metrics = {
        name.replace(" ", "_"): float(np.nanmean(values))
        for name, values in found.items()
        if np.isfinite(values).any()
    }
    files = {"samples.csv": pd.DataFrame(found).to_csv(index=False, float_format="%.6g")}
    return Outcome(tables=tables, metrics=metrics | {"samples": float(len(rows))}, files=files)


def quick_sample(seed: int) -> Row:
    """Return one sample with few refits."""
    return measure_sample(seed, 2)


def full_sample(seed: int) -> Row:
    """Return one sample."""
    return measure_sample(seed, 4)


def measure_sample(seed: int, draws: int) -> Row:
    """Return all settings and likelihoods in one sample."""
    row: Row = {}
    for setting, likelihood in CASES:
        sample = getattr(network_cases, setting)(seed)
        measured = network_cases.measure(likelihood, sample, seed, draws)
        row |= {f"{setting} {likelihood} {name}": value for name, value in measured.items()}
    return row


def _lines(found: dict[str, Array], setting: str) -> list[tuple[str, str, str]]:
    """Return loss, words and the names of the values of each line of a table."""
    lines = []
    for short in SHORT.values():
        for (where, likelihood), words in CASES.items():
            for kind, how in PREDICTIONS.items():
                name = f"{setting} {likelihood} {short} {kind}"
                # averaging changes no label
                if (
                    where != setting
                    or f"{name} CV" not in found
                    or (short == "error rate" and kind != "f")
                ):
                    continue
                lines.append(
                    (
                        short,
                        words
                        if likelihood == "none" or short == "error rate"
                        else f"{words}, {how}",
                        name,
                    )
                )
    return lines


def losses_table(found: dict[str, Array], setting: str) -> Table:
    """Return CV, CV_c and the loss in new groups."""
    rows = []
    for short, words, name in _lines(found, setting):
        cv = found[f"{name} CV"]
        corrected = [
            with_error(cv + found[f"{name} {world}"]) if f"{name} {world}" in found else "–"
            for world in ("score", "own", "bias")
        ]
        rows.append([short, words, with_error(cv), *corrected, with_error(found[f"{name} GenErr"])])
    return Table(
        title=f"{TITLES[setting]}: losses",
        columns=[
            "loss",
            "training, prediction",
            "CV",
            "CV_c, default of `cvc`",
            "CV_c, network's own effects",
            "CV + true bias",
            "new groups",
        ],
        rows=rows,
        note=f"{len(found[f'{setting} none sd'])} samples. New groups: the same rows in new groups, mean over their effects.",
    )


def biases_table(found: dict[str, Array], setting: str) -> Table:
    """Return the true bias of cross-validation and its corrections, and the effects that were found."""
    rows = []
    for short, words, name in _lines(found, setting):
        likelihood = name.split()[1]
        true = found[f"{name} bias"]
        cells = [
            with_error(found[f"{name} {world}"]) if f"{name} {world}" in found else "–"
            for world in ("score", "own", "model")
        ]
        sds = [
            _middle(found[f"{setting} {likelihood} {what}{whose}"])
            for what in ("sd", *(["reach"] if setting == "regions" else []))
            for whose in ("", " score")
        ]
        if likelihood == "none":
            sds[::2] = ["–"] * len(sds[::2])
        rows.append([short, words, with_error(true), *cells, *sds])
    sd, reach = TRUTH[setting]
    effects = [f"sd, network (truth {sd:.3g})", "sd, `cvc`"]
    effects += [] if reach is None else [f"reach, network (truth {reach:.3g})", "reach, `cvc`"]
    return Table(
        title=f"{TITLES[setting]}: bias of cross-validation and its corrections",
        columns=[
            "loss",
            "training, prediction",
            "true bias",
            "default of `cvc`",
            "network's own effects",
            "true model",
            *effects,
        ],
        rows=rows,
        note="True bias: of the same features"
        + (" and places" if setting == "regions" else "")
        + ", by simulation from the truth. Effects: medians over samples.",
    )


def _middle(values: Array) -> str:
    return f"{np.median(values):.2f}"


def accuracy_table() -> Table:
    """Return errors of a group's log likelihood with nodes by the law of the effect, and around the most likely one."""
    rows = []
    for sd in (1.0, 2.0):
        for size in SIZES:
            rng = np.random.default_rng(size)
            f = rng.normal(size=(20, size))
            y = (rng.random(f.shape) < expit(f + sd * rng.normal(size=(20, 1)))).astype(float)
            exact = _by_group(f, y, sd, 61)
            cells = [np.abs(_by_law(f, y, sd, nodes) - exact).mean() for nodes in NODES]
            cells += [np.abs(_by_group(f, y, sd, nodes) - exact).mean() for nodes in NODES]
            rows.append([f"{sd:g}", size, *(f"{cell:.0e}" for cell in cells)])
    return Table(
        title="mean error of the log likelihood of a group",
        columns=[
            "sd",
            "rows of a group",
            *(f"published, {n} nodes" for n in NODES),
            *(f"`group_effect_loss`, {n} nodes" for n in NODES),
        ],
        rows=rows,
        note="Published: nodes by the law of the effect. Against 61 nodes around the most likely effect; 20 groups.",
    )


def _by_law(f: Array, y: Array, sd: float, nodes: int) -> Array:
    places, weights = hermegauss(nodes)
    z = (2 * y - 1)[..., None] * (f[..., None] + sd * places)
    return np.asarray(logsumexp(np.log(weights / weights.sum()) + log_expit(z).sum(axis=1), axis=1))


def _by_group(f: Array, y: Array, sd: float, nodes: int) -> Array:
    torch = needs("torch")
    loss = group_effect_loss(
        torch.as_tensor(f), torch.as_tensor(y), np.zeros(f.shape[1]), sd, nodes=nodes
    )
    return -f.shape[1] * np.asarray(loss.numpy())
