"""Shows the newest audit where people look: on the audited run, on its LoggedModel, on versions.

Several audits may come to their end at once. Each one first completes its own run; then it shows the
newest audit of all, and looks again, until what is shown is the newest. Whoever writes last has
looked after that, so that all that is shown is of one audit.
"""

import logging
import math
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow_b3.errors import InputError
from mlflow_b3.gating.evidence import FILE
from mlflow_b3.refit.model_files import matching
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.tracking.audits import runs_where
from mlflow_b3.tracking.files import OF_ROWS, load_report
from mlflow_b3.tracking.superseding import (
    is_current,
    is_on_model,
    is_recorded,
    newest,
    recorded_audits,
    supersede_older,
)
from mlflow_b3.tracking.versions import VERDICT, show_on_versions, version_tags
from mlflow_b3.tracking.writing import FOLDER, insist, log_files, log_scalars

#: The tags of a run or model that show an audit; the audit's own run has the same.
SHOWN = frozenset(
    f"b3.{name}"
    for name in (
        *("audit_run_id", "subject", "p0_source", "pattern", "refit", "refit_strength", "version"),
        *("data_digest", "not_known", "evidence"),
    )
)
#: How often to look whether others have written meanwhile.
ROUNDS = 20
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What is shown of an audit."""

    audit_run_id: str
    report: AuditReport
    tags: Mapping[str, str]
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Showcase:
    """Where an audit is shown, unless there is a newer one.

    Attributes
    ----------
    own : Shown
        The audit that has been written now.
    runs : sequence of str
        The runs that show it.
    subject : str
        The audited model, as in the tag `b3.subject`.
    model_run, model_id : str or None
        The run and the LoggedModel of the audited model; None where they do not show it.
    on_model : bool
        The model itself shows it, and so do its registered versions.
    measured_elsewhere : str or None
        A run to which MLflow writes the metrics itself.
    """

    client: Any
    own: Shown
    runs: Sequence[str]
    subject: str
    model_run: str | None
    model_id: str | None
    on_model: bool
    measured_elsewhere: str | None = None
    _written: dict[str, str] = field(default_factory=dict)

    def show_newest(self) -> None:
        """Show the newest audit everywhere, and mark all others of the model as superseded."""
        for number in range(ROUNDS):
            if not self._round():
                return
            time.sleep(random.random() * 0.01 * number)  # out of step with the others
        _LOG.warning(
            "Other audits of %s are being written; the last of them is shown.", self.subject
        )

    def withdraw(self) -> None:
        """Show what was shown before the audit, which could not be written to its end."""
        own = self.own.audit_run_id
        if "b3.status" in self.client.get_run(own).data.tags:
            self.client.delete_tag(own, "b3.status")
        self.show_newest()
        for run_id in self.runs:
            run = self.client.get_run(run_id)
            if run.data.tags.get("b3.audit_run_id") == own and run_id != own:
                _clear(self.client, run)

    def _round(self) -> bool:
        """Show the newest audits, where others are shown; return whether there was anything to do."""
        audits = recorded_audits(self.client, self.subject)
        of_model = [run for run in audits if is_current(run) and is_on_model(run)]
        mine = [self.client.get_run(self.own.audit_run_id)]
        mine = [run for run in mine if is_recorded(run)]
        changed = False
        for run_id in self.runs:
            of_run = [*mine, *self._children(run_id)]
            found = newest([*of_run, *of_model] if run_id == self.model_run else of_run)
            changed |= self._show(run_id, found, self._is_on_run, self._put_on_run)
        if not self.on_model:
            return changed
        last = newest(of_model)
        if self.model_id is not None:
            changed |= self._show("model", last, self._is_on_model, self._put_on_model)
        if last is not None:
            changed |= supersede_older(self.client, audits, last)
        changed |= self._show("versions", last, lambda _, __: True, self._put_on_versions)
        return changed

    def _children(self, run_id: str) -> list[Any]:
        experiment = self.client.get_run(run_id).info.experiment_id
        filters = f"tags.`mlflow.parentRunId` {matching(run_id)}"
        return [run for run in runs_where(self.client, [experiment], filters) if is_recorded(run)]

    def _show(
        self,
        place: str,
        audit: Any | None,
        is_there: Callable[[str, Any], bool],
        put: Callable[[str, Shown], None],
    ) -> bool:
        """Show an audit in a place, where it is not; return whether that had to be done."""
        from mlflow.exceptions import MlflowException

        if audit is None:
            return False
        wanted = audit.info.run_id
        mine, last = wanted == self.own.audit_run_id, self._written.get(place)
        if last in (None, wanted) and not (mine and last is None) and is_there(place, audit):
            return False
        try:
            shown = self.own if mine else read_shown(audit)
        except (MlflowException, OSError, InputError) as error:
            _LOG.warning("The newer audit of run %s cannot be read: %s", wanted, error)
            return False
        put(place, shown)
        self._written[place] = wanted
        return True

    def _is_on_run(self, run_id: str, audit: Any) -> bool:
        data = self.client.get_run(run_id).data
        if run_id == self.measured_elsewhere:
            return _same_tags(data.tags, audit)
        metrics = {name: value for name, value in data.metrics.items() if name.startswith("b3/")}
        known = {name: value for name, value in metrics.items() if not math.isnan(value)}
        wanted = audit.data.metrics.items()
        return _same_tags(data.tags, audit) and known == {
            name: value
            for name, value in wanted
            if name.startswith("b3/") and not math.isnan(value)
        }

    def _is_on_model(self, _: str, audit: Any) -> bool:
        return _same_tags(self.client.get_logged_model(self.model_id).tags, audit)

    def _put_on_run(self, run_id: str, shown: Shown) -> None:
        log_files(self.client, run_id, shown.files)
        known_elsewhere = run_id == self.measured_elsewhere
        log_scalars(
            self.client, run_id, shown.report, dict(shown.tags), {}, unknown_only=known_elsewhere
        )
        if VERDICT in self.client.get_run(run_id).data.tags:
            self.client.delete_tag(run_id, VERDICT)

    def _put_on_model(self, _: str, shown: Shown) -> None:
        insist(lambda: self.client.set_logged_model_tags(self.model_id, dict(shown.tags)))
        if VERDICT in self.client.get_logged_model(self.model_id).tags:
            self.client.delete_logged_model_tag(self.model_id, VERDICT)

    def _put_on_versions(self, _: str, shown: Shown) -> None:
        told = {key: value for key, value in shown.tags.items() if key != "b3.evidence"}
        courtesy(
            "the registered version",
            lambda: show_on_versions(
                self.client, shown.report, shown.audit_run_id, version_tags(shown.report, told)
            ),
        )


def courtesy(what: str, write: Callable[[], None]) -> None:
    """Write what is nice to have: an audit that is complete is not lost because of it."""
    from mlflow.exceptions import MlflowException

    try:
        write()
    except (MlflowException, OSError) as error:
        if getattr(error, "error_code", "") == "PERMISSION_DENIED" and "not signed" in str(error):
            _LOG.warning(
                "The server shows an audit on a registered version once it is signed: run "
                "'mlflow-b3 attest' where the signing key is."
            )
            return
        _LOG.warning("The audit is recorded, but %s could not be written: %s", what, error)


def read_shown(audit: Any) -> Shown:
    """Return what is to be shown of an audit from its own run."""
    from mlflow.artifacts import download_artifacts

    run_id = audit.info.run_id
    with tempfile.TemporaryDirectory() as place:
        folder = Path(download_artifacts(artifact_uri=f"runs:/{run_id}/{FOLDER}", dst_path=place))
        paths = [path for path in folder.rglob("*") if path.is_file()]
        texts = {
            path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths
        }
        report = load_report(folder)
    return Shown(
        audit_run_id=run_id,
        report=report,
        tags={key: value for key, value in audit.data.tags.items() if key in SHOWN},
        files={name: text for name, text in texts.items() if name not in (*OF_ROWS, FILE)},
    )


def _same_tags(found: Mapping[str, str], audit: Any) -> bool:
    wanted = {key: value for key, value in audit.data.tags.items() if key in SHOWN}
    return {key: value for key, value in found.items() if key in SHOWN} == wanted


def _clear(client: Any, run: Any) -> None:
    """Take the numbers of an audit that failed from a run that showed no other before."""
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException

    now = int(time.time() * 1000)
    names = [name for name in run.data.metrics if name.startswith("b3/")]
    client.log_batch(run.info.run_id, metrics=[Metric(name, math.nan, now, 0) for name in names])
    # last of all which audit it shows: until then it is none itself
    for key in sorted(SHOWN & set(run.data.tags), key=lambda key: key == "b3.audit_run_id"):
        with suppress(MlflowException):
            client.delete_tag(run.info.run_id, key)
