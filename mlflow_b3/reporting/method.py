"""How the numbers of an audit were made, in words."""

from mlflow_b3.refit.agreement import CLASSES_READ
from mlflow_b3.reporting.cvc_words import describe_cvc
from mlflow_b3.reporting.report import AuditReport, Settings
from mlflow_b3.wording import percent, shortened

ROUTE_WORDS = {
    "clone": "an untrained copy with the same parameters was trained on other rows",
    "parameters": "a model with the recovered parameters was trained on other rows",
    "trainer": "the training function was called with other rows",
    "fresh": "the network was initialised anew and trained by its recipe on other rows",
    "hot-start": "training went on from the logged weights on other rows",
    "last-layer": "the network's last layer was trained again on other rows, its features kept",
    "head": "a linear model on the model's outputs was trained on other rows",
}


def describe_method(report: AuditReport) -> str:
    """Return how the numbers were made, for the record."""
    s = report.settings
    draws = "without replacement at full size" if s.scheme == "subset" else "with replacement"
    draws += "" if s.n_train is None else f", {s.n_train} rows each"
    features = f"features {shortened(s.features)}" if s.features else "no features"
    corrected = "" if report.cvc is None else f" {describe_cvc(report.cvc)}"
    return (
        f"{s.n_rows} rows, {s.n_clusters} clusters by {s.cluster!r}, {features}, "
        f"{fold_words(report)}, "
        f"loss {s.loss}, {s.fits} refits by route '{s.refit}', drawn {draws}, estimator "
        f"{estimator_words(report)}, curve sharpness at most "
        f"{report.curve.sharpness}, seed {s.seed}, data {s.data_digest}, mlflow-b3 {s.version}.{corrected}"
    )


def describe_refit(report: AuditReport) -> str:
    """Return how the model was trained again, and what that means for the result."""
    s = report.settings
    meaning = (
        "so that all of the bias can show"
        if s.refit_strength == "full"
        else "so that only part of the bias can show: losses are lower bounds"
    )
    what = ROUTE_WORDS.get(s.refit, "the model was trained again by another package's flavour")
    parts = [f"Route '{s.refit}': {what}, {meaning}", *s.refit_notes]
    if s.sample_weight is not None:
        parts.append(f"rows were weighted by {s.sample_weight!r} in training, not in the losses")
    if s.refit_agreement is not None:
        equal = (
            "its predictions" if s.task == "classification" else "the variance of its predictions"
        )
        parts.append(
            f"trained on all rows it agrees with {original_words(s)} in {percent(s.refit_agreement)} of "
            f"{equal}" + (", by that reading of its classes" if _classes_read(s) else "")
        )
    return "; ".join(parts) + "."


def _classes_read(settings: Settings) -> bool:
    return any(note.startswith(CLASSES_READ) for note in settings.refit_notes)


def original_words(settings: Settings) -> str:
    """Return what the model is called that refits are compared with."""
    return "the fitted model that was given" if settings.uri is None else "the logged model"


def estimator_words(report: AuditReport) -> str:
    """Return the estimator of the loss on new clusters, with its options."""
    s = report.settings
    if s.pattern == "fragments":
        return "mixture"
    options = [f"{name} {value}" for name, value in s.method_options.items()]
    if report.sketch_error is not None:
        options.append(f"error of sketching at most {report.sketch_error:.2g} times e0")
    return f"{s.method} ({', '.join(options)})" if options else s.method


def fold_words(report: AuditReport) -> str:
    """Return how many folds there were, and what they kept together."""
    settings = report.settings
    each = len(report.folds) // settings.repeats
    count = "1 fold" if each == 1 else f"{each} folds"
    if settings.repeats > 1:
        count += f" assigned anew {settings.repeats} times"
    if settings.fold_threshold is not None:
        count += (
            f" that keep rows with a match probability from {settings.fold_threshold:g} together"
        )
    if settings.purge_threshold is not None:
        count += (
            " without training rows whose cluster has a match probability from "
            f"{settings.purge_threshold:g} with validation rows"
        )
    return count
