"""What the models of a comparison are called: readable, stable, and no two the same."""

from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any

from mlflow_b3.reporting.report import AuditReport

#: A name, an audit, and the run that holds the audit.
Named = tuple[str, AuditReport, str | None]
#: How much of an id tells two of them apart.
DIGITS = 8


def name_of(client: Any, reference: str, report: AuditReport, audit_run_id: str | None) -> str:
    """Return a registered version as it was named; else the run that was audited, not its id."""
    from mlflow.exceptions import MlflowException

    run_id = report.settings.run_id or audit_run_id
    versioned = reference.startswith("models:/") and not reference.startswith("models:/m-")
    if versioned or run_id is None:
        return reference
    try:
        return str(client.get_run(run_id).info.run_name)
    except MlflowException:  # the run was removed for good
        return reference


def told_apart(audits: Sequence[Named]) -> list[str]:
    """Return the names of audits; those that several have say more, in whatever order they are.

    Several models of one run, or runs of one name, are told apart by the names that their models
    were logged with; where these are the same too, by the beginning of the model's id, and several
    audits of one model by that of the audit's run.
    """
    names = [name for name, _, _ in audits]
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        for describe in (_logged_name, _model_id, _audit_id):
            more = _described(describe, [audits[place] for place in places])
            if more is not None:
                for place, words in zip(places, more, strict=True):
                    names[place] = f"{name} ({words})"
                break
    return names


def _described(
    describe: Callable[[Named], str | None], audits: Sequence[Named]
) -> list[str] | None:
    """Return a word on each audit; None where one has none, or two have the same."""
    words = [describe(audit) for audit in audits]
    known = [word for word in words if word]
    return known if len(set(known)) == len(words) else None


def _logged_name(audit: Named) -> str | None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    model_id = audit[1].settings.model_id
    try:
        return model_id and str(MlflowClient().get_logged_model(model_id).name)
    except MlflowException:  # deleted, or of another server
        return None


def _model_id(audit: Named) -> str | None:
    model_id = audit[1].settings.model_id
    return model_id and model_id[: len("m-") + DIGITS]


def _audit_id(audit: Named) -> str | None:
    return audit[2] and f"audit {audit[2][:DIGITS]}"


def distinct(names: Sequence[str]) -> list[str]:
    """Return names of which no two are the same: those that are get numbers."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name} ({number})" for number in count(1))
        candidates = numbered if names.count(name) > 1 else chain([name], numbered)
        taken = {*distinct, *(other for other in names if other != name)}
        distinct.append(next(candidate for candidate in candidates if candidate not in taken))
    return distinct
