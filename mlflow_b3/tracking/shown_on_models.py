"""Show the newest audit on runs, LoggedModels and versions, and in a view of MLflow's UI."""

import base64
import json
import logging
import math
import random
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from mlflow_b3.auditing.comparison import Comparison
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.errors import EvidenceError, InputError
from mlflow_b3.evidence.document import RECORDED
from mlflow_b3.refit.loading import matching, registered_version, resolve_source
from mlflow_b3.reporting.document import escaped
from mlflow_b3.reporting.headline import SIGNS, headline_of
from mlflow_b3.reporting.phrases import readable
from mlflow_b3.results import number
from mlflow_b3.tracking.audits import NO_EVIDENCE, runs_where, tried_audits
from mlflow_b3.tracking.metrics_and_files import (
    FOLDER,
    PERCENT,
    insist,
    is_answer,
    log_files,
    log_scalars,
    worth,
)
from mlflow_b3.tracking.runs import LONGEST_NAME, NOTE

# --- The newest audit of a model supersedes the others
#
# MLflow has no locks, and several audits of one model may end at the same time. So the order of audits
# does not depend on who writes last: it is the order of the end times of their runs.

CURRENT, SUPERSEDED = "current", "superseded"
#: Attempts to set a tag.
INSERTS = 3
NONE = "none"
#: The start of the description of a superseded audit.
OPENING = "**Superseded**"


def order(run: Any) -> tuple[float, str]:
    """Return the sort key of an audit's run; runs that `mlflow run` has yet to end come last."""
    ended = run.info.end_time
    return (float("inf") if ended is None else float(ended), run.info.run_id)


def newest(runs: Iterable[Any]) -> Any | None:
    """Return the newest run of audits, or None."""
    return max(runs, key=order, default=None)


def recorded_audits(client: Any, subject: str) -> list[Any]:
    """Return the runs of a model's complete audits that are not deleted, in all experiments.

    Parameters
    ----------
    client : MlflowClient
    subject : str
        The audited model, as in the tag `b3.subject`.
    """
    return [run for run in tried_audits(client, subject) if is_recorded(run)]


def is_recorded(run: Any) -> bool:
    """Return whether a run is of a complete audit and not deleted."""
    return "b3.status" in run.data.tags and run.info.lifecycle_stage == "active"


def is_current(run: Any) -> bool:
    """Return whether the run of a recorded audit is not marked as superseded."""
    return bool(run.data.tags["b3.status"] == CURRENT)


def is_on_model(run: Any) -> bool:
    """Return whether an audit is shown on its model, not only on another run."""
    return bool(run.data.tags.get("b3.evidence") != NO_EVIDENCE)


def end_after(earlier: Iterable[Any]) -> int:
    """Return an end time for an audit, later than that of others even if clocks differ."""
    ends: list[int] = [run.info.end_time + 1 for run in earlier if run.info.end_time is not None]
    return max(int(time.time() * 1000), *ends, 0)


def supersede_older(client: Any, audits: Sequence[Any], successor: Any) -> bool:
    """Mark all audits but the newest as superseded; return whether anything changed."""
    older = [run for run in audits if order(run) < order(successor) and is_current(run)]
    for run in older:
        _supersede(client, run, successor.info.run_id)
    before = [
        run.info.run_id
        for run in audits
        if run in older or run.data.tags.get("b3.superseded_by") == successor.info.run_id
    ]
    names = ", ".join(before) or NONE
    if successor.data.tags.get("b3.supersedes") == names:
        return bool(older)
    _set_tag(client, successor.info.run_id, "b3.supersedes", names)
    return True


def _set_tag(client: Any, run_id: str, key: str, value: str) -> None:
    """Set a tag that another audit may be setting at the same time.

    MLflow inserts a new tag. Of two inserts at once, one violates the key; the next attempt finds the
    tag and updates it.
    """
    from mlflow.exceptions import MlflowException

    for attempt in range(INSERTS):
        try:
            client.set_tag(run_id, key, value)
            return
        except MlflowException as error:
            if attempt == INSERTS - 1 or "IntegrityError" not in str(error):
                raise


def _supersede(client: Any, run: Any, successor: str) -> None:
    """Mark an audit as superseded in its tags, note and name; its numbers stay."""
    run_id = run.info.run_id
    _set_tag(client, run_id, "b3.superseded_by", successor)
    note = run.data.tags.get(NOTE, "")
    if not note.startswith(OPENING):  # another audit may be writing the same now
        text = f"{OPENING} by the audit of run `{successor}`.\n\n{note}"
        _set_tag(client, run_id, NOTE, text)
    if not run.info.run_name.endswith(SUPERSEDED):
        client.update_run(run_id, name=f"{run.info.run_name} {SUPERSEDED}"[:LONGEST_NAME])
    if VERDICT in run.data.tags:
        client.delete_tag(run_id, VERDICT)
    _set_tag(client, run_id, "b3.status", SUPERSEDED)


# --- The page of a registered version, which has no metrics

#: The starts of our descriptions, of earlier versions too; other descriptions are not replaced.
OPENINGS = ("**Leakage audit.**", *(f"**{sign} {word}.**" for word, sign in SIGNS.items()))
#: A gate's verdict with policy and time; a newer audit removes it.
VERDICT = "b3.verdict"


def version_tags(report: AuditReport, tags: dict[str, str]) -> dict[str, str]:
    """Return the tags of a registered version: those of the audit, and its main numbers."""
    low, high = report.e0_interval
    full = report.refit.is_full
    return {
        **tags,
        "b3.e0": number(report.e0 if full else None),
        "b3.e0_interval": f"{number(low)} or more"
        if high is None
        else f"{number(low)} to {number(high)}",
        "b3.loco": number(report.loco),
        "b3.iid": number(report.iid),
    }


def summarize(client: Any, report: AuditReport, audit_run_id: str) -> str:
    """Return the answer of an audit in sentences, with links to its report and its run."""
    experiment = client.get_run(audit_run_id).info.experiment_id
    run = f"#/experiments/{experiment}/runs/{audit_run_id}"
    links = f"[Report]({run}/artifacts/{FOLDER}/{PAGE}) · [Leakage audit]({run})"
    return f"{answer_markdown(report)} {links}"


def answer_markdown(report: AuditReport) -> str:
    """Return the answer of an audit as the beginning of a description."""
    headline = headline_of(readable(report))
    return f"**{headline.sign} {headline.word}.** {escaped(headline.told)}"


def is_ours(description: str | None) -> bool:
    """Return whether a description is missing, or one that an audit wrote."""
    return not description or description.startswith(OPENINGS)


def show_on_versions(
    client: Any, report: AuditReport, audit_run_id: str, tags: dict[str, str]
) -> None:
    """Write tags, and a description if there is no other, to the versions of the audited model."""
    text = summarize(client, report, audit_run_id)
    for name, version in _versions(client, report):
        shown = client.get_model_version(name, version)
        # tags that an earlier version of the package has written must agree with this audit, too
        wanted = {key: tags[key] for key in tags if key in ON_VERSIONS or key in shown.tags}
        # first the run: a server that guards these tags looks there for the evidence
        for key, value in sorted(wanted.items(), key=lambda tag: tag[0] != "b3.audit_run_id"):
            client.set_model_version_tag(name, version, key, value)
        if VERDICT in shown.tags:  # on an older audit
            client.delete_model_version_tag(name, version, VERDICT)
        if is_ours(shown.description):
            client.update_model_version(name, version, description=text)


def forget_verdicts(client: Any, run_ids: Iterable[str | None]) -> None:
    """Remove what a gate said before, because it may say something else now."""
    for run_id in filter(None, run_ids):
        if VERDICT in client.get_run(run_id).data.tags:
            client.delete_tag(run_id, VERDICT)


def _versions(client: Any, report: AuditReport) -> list[tuple[str, str]]:
    """Return the audited version and all others of the same LoggedModel.

    MLflow's own list is a tag that anybody can write, and it omits copies.
    """
    from mlflow.exceptions import MlflowException

    own = registered_version(report.subject.uri)
    found = {} if own is None else {own: None}
    if report.subject.model_id is None:
        return list(found)
    waiting = [f"models:/{report.subject.model_id}", *(f"models:/{n}/{v}" for n, v in found)]
    listed = client.get_logged_model(report.subject.model_id).tags.get("mlflow.modelVersions", "[]")
    with suppress(ValueError, TypeError, KeyError, MlflowException, EvidenceError):
        for name, version in dict.fromkeys(
            (v["name"], str(v["version"])) for v in json.loads(listed)
        ):
            uri = f"models:/{name}/{version}"
            with suppress(MlflowException, EvidenceError):  # it still names those that were deleted
                if resolve_source(client, uri).model_id == report.subject.model_id:
                    found[name, version] = None
                    waiting.append(uri)
    while waiting:
        source = waiting.pop()
        for copy in client.search_model_versions(f"source_path {matching(source)}"):
            key = (copy.name, str(copy.version))
            if copy.source == source and key not in found:
                found[key] = None
                waiting.append("models:/" + "/".join(key))
    return list(found)


# --- The newest audit on the audited run, its LoggedModel and its versions
#
# Several audits may end at once. Each completes its own run, then shows the newest audit of all, and
# repeats that until the newest is shown everywhere. The last writer has checked after writing, so in
# the end all places show the same audit. What is shown is small: metrics, tags, a description and the
# page of the report. The tag `b3.audit_run_id` points to the run that has all files.

#: The tags that show an audit on a run or model; the audit's own run has the same tags.
SHOWN = frozenset(
    f"b3.{name}"
    for name in (
        *("answer", "audit_run_id", "subject", "p0_source", "pattern", "refit", "refit_strength"),
        *("version", "data_digest", "not_known", "evidence", "score"),
    )
)
#: Those of them that a run shows beside its own tags; MLflow's pages show all tags of a run.
ON_RUNS = frozenset({"b3.answer", "b3.audit_run_id", "b3.score", "b3.subject"})
#: The tags of a registered version, whose page has no metrics.
ON_VERSIONS = frozenset(
    f"b3.{name}" for name in ("answer", "audit_run_id", "score", "e0", "e0_interval", "loco", "iid")
)
#: The page of the report, which is shown beside the metrics.
PAGE = "report.html"
#: Files that earlier versions copied to the audited run beside it.
COPIED = frozenset(
    f"{FOLDER}/{name}" for name in ("audit.json", "curves.csv", "plots", "report.md", "report.txt")
)
#: How often to check whether others have written meanwhile.
ROUNDS = 20
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The parts of an audit that are shown elsewhere: numbers, tags, and the page of its report."""

    audit_run_id: str
    report: AuditReport
    tags: Mapping[str, str]
    page: str


@dataclass(frozen=True, kw_only=True)
class Showcase:
    """The places that show an audit, unless there is a newer one.

    Attributes
    ----------
    own : Shown
        The audit just written.
    runs : sequence of str
        The runs that show it.
    subject : str
        The audited model, as in the tag `b3.subject`.
    model_run, model_id : str or None
        The run and the LoggedModel of the audited model; None if they do not show it.
    on_model : bool
        The model itself and its registered versions show it.
    measured_elsewhere : str or None
        A run to which MLflow itself writes the metrics.
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
        for attempt in range(ROUNDS):
            if not self._show_once():
                return
            time.sleep(random.random() * 0.01 * attempt)  # avoid lockstep with other audits
        _LOG.warning(
            "Other audits of %s are still being written; the last of them will be shown.",
            self.subject,
        )

    def withdraw(self) -> None:
        """Show the previous audit again, because this one could not be completed."""
        own = self.own.audit_run_id
        if "b3.status" in self.client.get_run(own).data.tags:
            self.client.delete_tag(own, "b3.status")
        self.show_newest()
        for run_id in self.runs:
            run = self.client.get_run(run_id)
            if run.data.tags.get("b3.audit_run_id") == own and run_id != own:
                _clear(self.client, run)

    def _show_once(self) -> bool:
        """Show the newest audits wherever others are shown; return whether anything changed."""
        audits = recorded_audits(self.client, self.subject)
        of_model = [run for run in audits if is_current(run) and is_on_model(run)]
        mine = [self.client.get_run(self.own.audit_run_id)]
        mine = [run for run in mine if is_recorded(run)]
        changed = False
        for run_id in self.runs:
            of_run = [*mine, *self._child_audits(run_id)]
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

    def _child_audits(self, run_id: str) -> list[Any]:
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
        """Show an audit in a place unless it is already there; return whether anything changed."""
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
            return _same_tags(data.tags, audit, ON_RUNS)
        metrics = {name: value for name, value in data.metrics.items() if name.startswith("b3/")}
        known = {name: value for name, value in metrics.items() if not math.isnan(value)}
        return _same_tags(data.tags, audit, ON_RUNS) and known == {
            name: worth(value)
            for name, value in audit.data.metrics.items()
            if is_answer(name) and not math.isnan(value)
        }

    def _is_on_model(self, _: str, audit: Any) -> bool:
        return _same_tags(self.client.get_logged_model(self.model_id).tags, audit, SHOWN)

    def _put_on_run(self, run_id: str, shown: Shown) -> None:
        log_files(self.client, run_id, {PAGE: shown.page})
        known_elsewhere = run_id == self.measured_elsewhere
        tags = self.client.get_run(run_id).data.tags
        pointer = {key: value for key, value in shown.tags.items() if key in ON_RUNS}
        if is_ours(tags.get(NOTE)):
            pointer[NOTE] = summarize(self.client, shown.report, shown.audit_run_id)
        log_scalars(
            *(self.client, run_id, shown.report, pointer, {}),
            answers_only=not known_elsewhere,
            unknown_only=known_elsewhere,
        )
        # a verdict on an older audit, and tags that earlier versions of the package wrote here
        for key in ({VERDICT} | SHOWN - ON_RUNS) & set(tags):
            if "b3.status" not in tags:  # not of an audit, below which another one was written
                self.client.delete_tag(run_id, key)
        remove_copies(self.client, run_id)

    def _put_on_model(self, _: str, shown: Shown) -> None:
        tags = dict(shown.tags)
        if is_ours(self.client.get_logged_model(self.model_id).tags.get(NOTE)):
            tags[NOTE] = summarize(self.client, shown.report, shown.audit_run_id)
        insist(lambda: self.client.set_logged_model_tags(self.model_id, tags))
        if VERDICT in self.client.get_logged_model(self.model_id).tags:
            self.client.delete_logged_model_tag(self.model_id, VERDICT)

    def _put_on_versions(self, _: str, shown: Shown) -> None:
        tags = {key: value for key, value in shown.tags.items() if key != "b3.evidence"}
        courtesy(
            "the registered version",
            lambda: show_on_versions(
                self.client, shown.report, shown.audit_run_id, version_tags(shown.report, tags)
            ),
        )


def courtesy(what: str, write: Callable[[], None]) -> None:
    """Write something optional; a failure is a warning, because the audit itself is recorded."""
    from mlflow.exceptions import MlflowException

    try:
        write()
    except (MlflowException, OSError) as error:
        if getattr(error, "error_code", "") == "PERMISSION_DENIED" and "not signed" in str(error):
            what_next = (
                "this one is signed next."
                if environ.get(RECORDED)
                else "run 'mlflow-b3 attest' where the signing key is."
            )
            _LOG.warning(
                "The server shows only signed audits on registered versions: %s", what_next
            )
            return
        _LOG.warning("The audit is recorded, but %s could not be written: %s", what, error)


def read_shown(audit: Any) -> Shown:
    """Read the parts of an audit to show from its own run."""
    run_id = audit.info.run_id
    try:
        report = AuditReport.from_json(_read_text(run_id, "audit.json"))
    except (ArithmeticError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"audit.json: {type(error).__name__}: {error}") from error
    return Shown(
        audit_run_id=run_id,
        report=report,
        tags={key: value for key, value in audit.data.tags.items() if key in SHOWN},
        page=_read_text(run_id, PAGE),
    )


def _read_text(run_id: str, name: str) -> str:
    from mlflow.artifacts import download_artifacts

    with tempfile.TemporaryDirectory() as place:
        uri = f"runs:/{run_id}/{FOLDER}/{name}"
        return Path(download_artifacts(artifact_uri=uri, dst_path=place)).read_text("utf-8")


def remove_copies(client: Any, run_id: str) -> None:
    """Remove the files of an audit that earlier versions have copied to the audited run.

    Next to the page of a newer audit they would look like its files. Not every store can remove
    files; a warning names those that stay.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    run = client.get_run(run_id)
    if "b3.status" in run.data.tags:
        return  # the run of an audit, below which another one was written
    copied = [item.path for item in client.list_artifacts(run_id, FOLDER) if item.path in COPIED]
    if not copied:
        return
    try:
        repository = get_artifact_repository(run.info.artifact_uri)
        for path in copied:
            repository.delete_artifacts(path)
    except Exception as error:  # each kind of store has errors of its own
        _LOG.warning(
            "The audit is recorded, but run %s has files of an older audit that could not be removed: "
            "%s (%s: %s)",
            run_id,
            ", ".join(copied),
            type(error).__name__,
            error,
        )


def _same_tags(found: Mapping[str, str], audit: Any, shown: frozenset[str]) -> bool:
    wanted = {key: value for key, value in audit.data.tags.items() if key in shown}
    return {key: value for key, value in found.items() if key in shown} == wanted


def _clear(client: Any, run: Any) -> None:
    """Remove the numbers of a failed audit from a run that showed no other before."""
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException

    now = int(time.time() * 1000)
    names = [name for name in run.data.metrics if name.startswith("b3/")]
    client.log_batch(run.info.run_id, metrics=[Metric(name, math.nan, now, 0) for name in names])
    if NOTE in run.data.tags and is_ours(run.data.tags[NOTE]):
        client.delete_tag(run.info.run_id, NOTE)
    # the tag that names the audit goes last: without it this run would look like an audit itself
    for key in sorted(SHOWN & set(run.data.tags), key=lambda key: key == "b3.audit_run_id"):
        with suppress(MlflowException):
            client.delete_tag(run.info.run_id, key)


# --- The view "b3 audits" of an experiment in MLflow's UI, and links to it
#
# MLflow's runs table shows no metrics until columns are chosen, and hides child runs. The view, stored
# with the experiment, ranks the audits by e0, with columns for answers, scores and the gate's verdicts, a
# chart of reported scores against e0, and their curves.

KEY = "b3"
TAG = f"mlflow.sharedViewState.{KEY}"
NAME = "b3 audits"
FILTER = "tags.`b3.status` = 'current'"
#: Columns of tags: MLflow cuts metrics after ten characters, which tags of three decimals do not fill.
COLUMNS = ("answer", "iid", "loco", "e0", "e0_interval", "verdict")
WIDTHS = {"answer": 190, "iid": 80, "loco": 80, "e0": 80, "e0_interval": 140, "verdict": 190}
SETTINGS = ("loss", "claim")
#: The curves, each with the metric of its axis; doses are steps.
LINES = {"b3_curve/dose": "", "b3_curve/sensitivity": f"b3_curve/{PERCENT}"}
#: Curves that MLflow would draw by itself: they need an axis, or say nothing at a glance.
NOT_DRAWN = ("loss", "residual", "sensitivity_split", PERCENT)
SCATTER = ("b3/iid", "b3/e0")
BARS = ("b3/e0", "b3/gap")
#: Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#5c5c5c")
#: The tag that MLflow takes for the colour of a run.
COLOUR = "mlflow.runColor"
MOST_RUNS = 20
#: Required fields of a view that MLflow 3.10 does not fill in.
DEFAULTS: dict[str, Any] = {
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "datasetsFilter": [],
    "modelVersionFilter": "All Runs",
    "columnWidths": {},
    "runsExpanded": {},
    "runsPinned": [],
    "runsHidden": [],
    "runsVisibilityMap": {},
    "viewMaximized": False,
    "runListHidden": False,
    "useGroupedValuesInCharts": True,
    "hideEmptyCharts": True,
    "groupBy": None,
    "groupsExpanded": {},
    "autoRefreshEnabled": True,
    "globalLineChartConfig": {
        "xAxisKey": "step",
        "lineSmoothness": 0,
        "selectedXAxisMetricKey": "",
    },
}


def add_view(client: Any, run_id: str) -> None:
    """Store the view with the experiment of a run, unless it exists; users may edit it."""
    experiment_id = client.get_run(run_id).info.experiment_id
    if TAG in client.get_experiment(experiment_id).tags:
        return
    now = int(time.time() * 1000)
    state = _view_state()
    packed = base64.b64encode(zlib.compress(_compact(state).encode())).decode()
    named = {"name": NAME, "createdAt": now, "updatedAt": now, "state": f"deflate;{packed}"}
    # older versions of MLflow have no named views and read the state itself
    client.set_experiment_tag(experiment_id, TAG, _compact({**state, **named}))


def _compact(state: dict[str, Any]) -> str:
    """Return JSON that is short enough for a tag."""
    return json.dumps(state, separators=(",", ":"))


def colour_run(client: Any, run_id: str) -> None:
    """Give the run of an audit a colour that no other current audit of its experiment has."""
    run = client.get_run(run_id)
    if COLOUR in run.data.tags:
        return
    others = client.search_runs([run.info.experiment_id], FILTER, max_results=100)
    used = [other.data.tags.get(COLOUR) for other in others]
    # the earliest of those that are used least
    client.set_tag(run_id, COLOUR, min(COLOURS, key=used.count))


def view_links(experiment_id: str) -> dict[str, str]:
    """Return links to the view as table and as charts, relative to the address of the UI."""
    page = f"#/experiments/{experiment_id}/runs?viewStateShareKey={KEY}"
    return {"table": page, "charts": f"{page}&compareRunsMode=CHART"}


def compare_link(run_ids: list[str], experiment_ids: list[str]) -> str:
    """Return a link to MLflow's comparison of runs."""
    runs, experiments = (quote(json.dumps(ids)) for ids in (run_ids, experiment_ids))
    return f"#/compare-runs?runs={runs}&experiments={experiments}"


def _view_state() -> dict[str, Any]:
    columns = [f"tags.`b3.{name}`" for name in COLUMNS]
    columns += [f"params.`b3/{name}`" for name in SETTINGS]
    charts = [_scatter_chart("b3-scatter")]
    charts += [_line_chart(f"b3-{name}", name, axis) for name, axis in LINES.items()]
    charts += [
        {**_chart(f"b3-no-{name}", f"b3_curve/{name}", "LINE", "b3-curves"), "deleted": True}
        for name in NOT_DRAWN
    ]
    charts += [_chart(f"b3-bar-{name}", name, "BAR", "b3-scores") for name in BARS]
    return {
        **DEFAULTS,
        "searchFilter": FILTER,
        # sorted by creation time, MLflow would nest audits under their parents and not draw them
        "orderByKey": "metrics.`b3/e0`",
        "orderByAsc": True,
        "selectedColumns": columns,
        "columnWidths": {f"tags.`b3.{name}`": width for name, width in WIDTHS.items()},
        "columnOrder": columns,
        "runsHiddenMode": f"FIRST_{MOST_RUNS}_RUNS",
        "isAccordionReordered": True,
        "compareRunCharts": charts,
        "compareRunSections": [
            _section("b3-scores", "b3 scores"),
            _section("b3-curves", "b3_curve"),
            _section("b3-rest", "b3", shown=False),
        ],
    }


def _chart(uuid: str, key: str, kind: str, section: str) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "type": kind,
        "runsCountToCompare": MOST_RUNS,
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "metricKey": key,
    }


def _scatter_chart(uuid: str) -> dict[str, Any]:
    x, y = ({"key": key, "type": "METRIC"} for key in SCATTER)
    return {**_chart(uuid, SCATTER[0], "SCATTER", "b3-scores"), "xaxis": x, "yaxis": y}


def _line_chart(uuid: str, key: str, axis: str = "") -> dict[str, Any]:
    """Return the chart of a curve over a metric, or else over its steps."""
    return {
        **_chart(uuid, key, "LINE", "b3-curves"),
        "selectedMetricKeys": [key],
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": "metric" if axis else "step",
        "selectedXAxisMetricKey": axis,
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": True,
    }


def _section(uuid: str, name: str, *, shown: bool = True) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "name": name,
        "display": shown,
        "isReordered": True,
        "deleted": False,
        "isGenerated": False,
    }


# --- Links to audits and comparisons in MLflow's UI


def links_to(run_id: str) -> dict[str, str]:
    """Return the links to an audit's report and to all audits, by name, for a short summary."""
    import mlflow
    from mlflow import MlflowClient

    experiment = MlflowClient().get_run(run_id).info.experiment_id
    address, start = _address(mlflow.get_tracking_uri())
    page = f"#/experiments/{experiment}/runs/{run_id}/artifacts/{FOLDER}/{PAGE}"
    return {
        **({"Start MLflow's UI": start} if start else {}),
        "Report": f"{address}/{page}",
        "All audits": f"{address}/{view_links(experiment)['table']}",
    }


def where_to_look(run_id: str) -> str:
    """Return links to an audit in MLflow's UI."""
    from mlflow import MlflowClient

    client = MlflowClient()
    run = client.get_run(run_id)
    experiment = run.info.experiment_id
    page = f"#/experiments/{experiment}/runs/{run_id}"
    places = {}
    if parent := run.data.tags.get("mlflow.parentRunId"):
        where = client.get_run(parent).info.experiment_id
        places["the audited run"] = f"#/experiments/{where}/runs/{parent}"
    places["this audit"] = page
    places["its report"] = f"{page}/artifacts/b3/report.html"
    places["all audits"] = view_links(experiment)["table"]
    return _format_links(places)


def where_to_compare(comparison: Comparison, run_id: str) -> str:
    """Return links to a comparison and its audits in MLflow's UI."""
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_run(run_id).info.experiment_id
    audits = [c.audit_run_id for c in comparison.contenders if c.audit_run_id]
    experiments = dict.fromkeys(client.get_run(audit).info.experiment_id for audit in audits)
    page = f"#/experiments/{experiment}/runs/{run_id}"
    places = {"this comparison": f"{page}/artifacts/b3/comparison.html"}
    if len(audits) > 1:
        places["side by side"] = compare_link(audits, list(experiments))
    home = next(iter(experiments), experiment)  # of the audits; the comparison may be elsewhere
    places |= {f"all audits, {what}": link for what, link in view_links(home).items()}
    return _format_links(places)


def _format_links(places: dict[str, str]) -> str:
    import mlflow

    address, start = _address(mlflow.get_tracking_uri())
    lines = ["Where to look in MLflow"]
    width = max(map(len, [*places, "start the UI"])) + 1
    if start:
        lines.append(f"  {'start the UI:':<{width}}  {start}")
    lines += [f"  {what + ':':<{width}}  {address}/{link}" for what, link in places.items()]
    return "\n".join(lines)


def _address(tracking_uri: str) -> tuple[str, str]:
    """Return the address of MLflow's UI, and the command that starts it if no server is used."""
    uri = _without_password(tracking_uri)
    if uri.startswith("http"):
        return uri.rstrip("/"), ""
    return "http://127.0.0.1:5000", f"mlflow ui --port 5000 --backend-store-uri {uri}"


def _without_password(uri: str) -> str:
    """Return a URI without user name and password."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in uri else uri
