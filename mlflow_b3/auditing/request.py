"""The options of an audit, parsed and checked before anything is read or fitted."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from mlflow_b3.auditing.extension import Extension, find_extension
from mlflow_b3.auditing.leakage import Leakage, LinkageArguments, make_claim
from mlflow_b3.auditing.report import DOSE
from mlflow_b3.data.folds import DEFAULT_FOLDS, count_folds, load_folds
from mlflow_b3.data.losses import Loss, named_loss
from mlflow_b3.data.scores import Score, loss_or_score
from mlflow_b3.data.table import AuditData, join_target
from mlflow_b3.errors import InputError, check_seed, choose
from mlflow_b3.estimation.estimate import Method
from mlflow_b3.estimation.leakage_test import TESTS
from mlflow_b3.measurement.campaign import check_timed_test
from mlflow_b3.measurement.design import (
    DOSES,
    count_row_folds,
    least_fits,
    parse_budget,
    parse_levels,
    parse_seconds,
    plan_doses,
    plan_fits,
)
from mlflow_b3.measurement.refits import FragmentSizes, parse_fragments
from mlflow_b3.measurement.runner import Means, WorkerSettings
from mlflow_b3.options import PYTHON, options_of
from mlflow_b3.results import loss_words, read_number

SCHEMES = ("subset", "replace")
#: Larger than any loss that a float can hold.
LARGEST_THRESHOLD = 1e300
LEAST_TRAINING_ROWS = 2
#: Whether methods solve e0 from the losses by dose; None means if possible.
BY_DOSE: dict[str, bool | None] = {DOSE: True, "auto": None}


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """The options of an audit, parsed and checked as far as that is possible without model and table.

    Attributes
    ----------
    started : float
        When the audit was requested, by `time.monotonic`.
    model, data, target, cluster, loss, row_id
        As in `mlflow_b3.audit`.
    scoring : str, scorer or None
        As it was given.
    score : Score or None
        The score to audit, if it is not the mean of a loss.
    by : str, sequence or None
        Groups of rows with scores of their own.
    claim : Leakage
        What is known about the leakage.
    linkage : LinkageArguments
    taken_as_right : bool
        No cluster id is taken as wrong, because the method assumes so if nothing else is known.
    folds : object
        A number, a splitter, or splits; the folds of a file are read.
    repeats : int or None
    fragments : FragmentSizes or None
    method : Method
        How a loss curve is extrapolated.
    by_dose : bool or None
        Whether e0 is to be solved from the losses by dose; None means if possible.
    extension : Extension
        What the method adds to the audit.
    scheme, test : str
    levels : str or int
    n_train : int or None
    threshold : float or None
    distribution : bool
    budget : int, str or None
    trainer : object
    refit : str
    refit_options : mapping or None
    sample_weight : str or None
    seed : int
    means : Means
    journal : object
    """

    started: float
    model: Any
    data: Any
    target: str
    cluster: Any
    loss: Any
    scoring: Any
    score: Score | None
    by: Any
    row_id: str | None
    claim: Leakage
    linkage: LinkageArguments
    taken_as_right: bool
    folds: Any
    repeats: int | None
    fragments: FragmentSizes | None
    method: Method
    by_dose: bool | None
    extension: Extension
    scheme: str
    levels: str | int
    n_train: int | None
    test: str
    threshold: float | None
    distribution: bool
    budget: int | str | None
    trainer: Any
    refit: str
    refit_options: Mapping[str, Any] | None
    sample_weight: str | None
    seed: int
    means: Means
    journal: Any

    @property
    def folds_given(self) -> bool:
        """Whether the folds themselves, or a splitter, are given."""
        return self.folds is not None and not isinstance(self.folds, (int, np.integer, str))

    def affordable_folds(self, table: AuditData) -> Any:
        """Return the folds; by default not one for each of a few clusters if the budget is too small for that."""
        fits, _ = parse_budget(self.budget)
        if self.folds is not None or fits is None:
            return self.folds
        count = count_folds(table, None)
        assert count is not None
        short = count > DEFAULT_FOLDS and fits < count + count_row_folds(count)
        return max(DEFAULT_FOLDS, fits // 2) if short else None

    def check_budget(self, table: AuditData | None = None, stochastic: bool = False) -> None:
        """Refuse a budget that is too small for the folds, if their number is known."""
        whole = isinstance(self.folds, (int, np.integer)) and not isinstance(self.folds, bool)
        count = int(self.folds) if whole else None
        if table is not None and self.linkage.safe_threshold is None:
            count = count_folds(table, self.affordable_folds(table))
        fits, _ = parse_budget(self.budget)
        if fits is None:
            return
        if self.by_dose is not False:
            if count is not None and count > 0:
                plan_doses(fits, n_folds=count, n_iid=count_row_folds(count), slots=len(DOSES))
            return
        design: dict[str, Any] = {"levels": self.levels, "from_zero": self.scheme == "replace"}
        each = least_fits(n_folds=1, stochastic=stochastic, **design)
        if count is None and fits < each:
            raise InputError(
                f"budget={fits} refits is too little: every fold needs at least {each}."
            )
        if count is not None and count > 0:
            plan_fits(fits, n_folds=count, stochastic=stochastic, **design)


def translate_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `mlflow_b3.audit` with scikit-learn's names replaced by ours.

    `y` becomes a column of the table, `groups` is `cluster`, and `cv` is `folds`.
    """
    options = dict(given)
    problems = []
    for theirs, ours in (("groups", "cluster"), ("cv", "folds")):
        value = options.pop(theirs, None)
        if value is None:
            continue
        if options.get(ours) is not None:
            problems.append(f"{theirs} and {ours} are the same; give one of them.")
        options[ours] = value
    y = options.pop("y", None)
    if y is not None and options.get("target") is not None:
        problems.append("y and target are the same; give one of them.")
    if y is None and options.get("target") is None:
        problems.append("target is missing; give the name of its column, or its values as y.")
    if options.get("cluster") is None:
        problems.append(
            "cluster is missing; give the name of a column, or the labels of the rows, as cluster or "
            "groups."
        )
    if problems:
        raise InputError.from_problems("audit", problems)
    if y is not None:
        options["data"], options["target"] = join_target(options["data"], y)
    return options


def make_request(given: Mapping[str, Any]) -> Request:
    """Parse and check the options of an audit, before anything is read or fitted.

    Parameters
    ----------
    given : mapping
        Options by name, as `mlflow_b3.options.flat_options` returns them; others have their defaults.
    """
    started = time.monotonic()
    options = {option.name: option.default for option in options_of(PYTHON)} | dict(given)
    folds = load_folds(options["folds"])
    linkage = LinkageArguments(**_chosen(options, LinkageArguments) | {"folds": folds})
    names = ("method_options", "refit", "refit_options", "distribution")
    check_kinds(*(options[name] for name in names))
    asked = isinstance(options["method"], str) and options["method"] == DOSE
    if asked and options["method_options"]:
        raise InputError(f"method={DOSE!r} has no options; leave method_options out.")
    chosen = "auto" if asked else options["method"]
    extension = find_extension(chosen, options["method_options"])
    claim, taken_as_right = _read_claim(options, linkage, extension)
    by_dose = True if asked else BY_DOSE.get(str(extension.e0_method), False)
    if claim.split_beside is not None and extension.e0_method == "auto":
        by_dose = True  # no other method corrects for both
    fragments = options["fragments"]
    loss, score = _read_score(options, extension)
    parsed = {
        "loss": loss,
        "score": score,
        "started": started,
        "claim": claim,
        "linkage": linkage,
        "taken_as_right": taken_as_right,
        "folds": folds,
        "fragments": None if fragments is None else parse_fragments(fragments),
    }
    parsed |= {
        "method": extension.estimator(),
        "by_dose": by_dose,
        "extension": extension,
        "threshold": read_number(options["threshold"]),
        "levels": parse_levels(options["levels"]),
        "means": _read_means(options),
    }
    request = Request(**_chosen(options, Request) | parsed)
    check_settings(request)
    extension.check(n_train=request.n_train)
    check_timed_test(request.test, request.budget)
    check_threshold(request.threshold, request.score or named_loss(request.loss))
    request.check_budget()
    n_train = None if request.n_train is None else int(request.n_train)
    return replace(request, seed=int(request.seed), n_train=n_train)


def _chosen(options: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the options that are fields of a dataclass."""
    return {field.name: options[field.name] for field in fields(kind) if field.name in options}


def _read_score(options: Mapping[str, Any], extension: Extension) -> tuple[Any, Score | None]:
    """Return the loss, and the score that is audited in its place."""
    loss, found = loss_or_score(options["loss"], options["scoring"])
    if found is None:
        return loss, None
    if extension.e0_method != "auto" or not extension.supports(found):
        method = options["method"]
        raise InputError(
            f"scoring={found.name!r} needs method='dose', not {method!r}, which is for mean losses. Leave "
            "the method out, or give a loss."
        )
    return None, found


def _read_claim(
    options: Mapping[str, Any], linkage: LinkageArguments, extension: Extension
) -> tuple[Leakage, bool]:
    """Return what is known about the leakage, and whether the ids are taken as right."""
    p0 = options["p0"]
    grid = isinstance(p0, str) and p0 == "grid"  # says nothing
    rates = (None if grid else p0, options["cluster_error"], options["split_rate"])
    known = any(value is not None for value in rates)
    taken_as_right = (
        extension.takes_ids_as_right
        and p0 is None
        and not known
        and linkage.source(otherwise_known=False) is None
    )
    claim = make_claim(
        p0=p0,
        p0_validation=options["p0_validation"],
        cluster_error=0.0 if taken_as_right else options["cluster_error"],
        split_rate=options["split_rate"],
        evidence=linkage.source(otherwise_known=known),
    )
    return claim, taken_as_right


def _read_means(options: Mapping[str, Any]) -> Means:
    """Return how refits are run."""
    workers = {name: options[name] for name in ("n_jobs", "backend", "address")}
    return Means(
        workers=WorkerSettings(**workers),
        fit_timeout=parse_seconds("fit_timeout", options["fit_timeout"]),
        progress=options["progress"],
    )


def check_settings(request: Request) -> None:
    """Refuse options that are wrong for every model and table."""
    if request.distribution and not (request.claim.is_known and request.claim.misplaces):
        raise InputError(
            "distribution=True needs the share of misplaced rows: give p0 or cluster_error."
        )
    choose("scheme", request.scheme, SCHEMES)
    if request.n_train is not None:
        _check_n_train(request.n_train, request.scheme)
    choose("test", request.test, TESTS)
    check_seed(request.seed)
    threshold = request.threshold
    number = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if threshold is not None and not (number and abs(threshold) < LARGEST_THRESHOLD):
        raise InputError(f"threshold={threshold!r} must be a finite number.")


def check_threshold(threshold: float | None, loss: Loss | Score | None) -> None:
    """Refuse a threshold that the loss or score never or always reaches.

    Parameters
    ----------
    threshold : float or None
    loss : Loss, Score or None
        None if it is not known yet.
    """
    if threshold is None or loss is None:
        return
    least: float | None
    most: float | None
    if isinstance(loss, Score) and loss.greater:
        least, most = None if loss.bound is None else 1 - loss.bound, 1.0
    else:
        least, most = 0.0 if isinstance(loss, Score) else loss.floor, loss.bound
        if least is None:
            return
    if (least is None or least <= threshold) and (most is None or threshold <= most):
        return
    if least is None:
        limits = f"is at most {most:g}"
    elif most is None:
        limits = f"is at least {least:g}"
    else:
        limits = f"lies between {least:g} and {most:.4g}"
    hint = ""
    if most == 1 and 1 < threshold <= 100:
        hint = f' For a percentage give {threshold / 100:g} or "{threshold:g}%".'
    raise InputError(
        f"threshold={threshold:g} decides nothing: the {loss_words(loss.name)} ({loss.name}) "
        f"{limits}. Give a threshold in that range.{hint}"
    )


def _check_n_train(n_train: Any, scheme: str) -> None:
    whole = isinstance(n_train, Integral) and not isinstance(n_train, bool)
    if not whole or n_train < LEAST_TRAINING_ROWS:
        raise InputError(
            f"n_train={n_train!r} must be a whole number from {LEAST_TRAINING_ROWS}: the number of "
            "rows of a resampled training set."
        )
    if scheme != "replace":
        raise InputError(
            f"n_train={n_train} needs scheme='replace': without replacement, training sets are as "
            "large as the fold allows. Give both, or neither."
        )


def check_kinds(
    method_options: object, refit: object, refit_options: object, distribution: object
) -> None:
    """Refuse values of the wrong type, as configuration files may contain."""
    problems = [
        f"{name}={value!r} must be a mapping of names to values."
        for name, value in (("method_options", method_options), ("refit_options", refit_options))
        if value is not None and not isinstance(value, Mapping)
    ]
    if not isinstance(refit, str):
        problems.append(
            f"refit={refit!r} must be the name of a route, such as 'auto', or RefitOptions."
        )
    if not isinstance(distribution, (bool, np.bool_)):
        problems.append(f"distribution={distribution!r} must be True or False.")
    if problems:
        raise InputError.from_problems("audit", problems)
