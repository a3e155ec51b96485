"""Write an audit to its run: metrics, curves, parameters, tags, files and evidence."""

import csv
import io
import json
import logging
import math
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from os import PathLike, environ
from pathlib import Path
from typing import Any

from mlflow_b3.auditing.extension import EXTENSIONS, extension_report
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.data.folds import Fold, fold_table, read_fold_table
from mlflow_b3.data.scores import named_score
from mlflow_b3.errors import EvidenceError, InputError
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.evidence.document import SIGNING_KEY, Evidence, digest
from mlflow_b3.measurement.collecting import Measurement
from mlflow_b3.refit.loading import ModelSource, digest_model, digest_of, resolve_source
from mlflow_b3.reporting import document
from mlflow_b3.reporting.charts import charts_of
from mlflow_b3.reporting.headline import headline_of
from mlflow_b3.reporting.pages import audit_document
from mlflow_b3.results import number

# --- Metrics, curves, parameters and tags

LONGEST_PARAMETER = 500


def metrics_of(report: AuditReport) -> dict[str, float | None]:
    """Return the scalar metrics of a report; None for unknown values."""
    low, high = report.e0_interval
    split = not report.leakage.misplaces
    seen = report.claim.range if report.linkage is not None else None
    values = {
        # a threshold on this metric must not be met by a lower bound
        "e0": report.e0 if report.refit.is_full else None,
        "e0_low": low,
        "e0_high": high,
        "e0_secant": report.e0_secant,
        # shares of split clusters must not be compared with tipping_p0, which counts misplaced rows
        "p0": None if split else report.p0,
        "seen_share": report.p0 if split else None,
        "seen_share_low": seen and seen[0],
        "seen_share_high": seen and seen[1],
        "p0_star": report.search.p0_star,
        "residual": report.residual,
        "loco": report.loco,
        "iid": report.iid,
        "gap": report.e0 - report.iid if report.refit.is_full and report.e0 is not None else None,
        "inflation": report.inflation,
        "test_statistic": report.test.statistic,
        "test_pvalue": report.test.pvalue,
        "tipping_p0": report.tipping_p0,
        "tipping_cluster_error": report.tipping_cluster_error,
        "tipping_split_rate": report.tipping_split_rate,
        "fits": float(report.measured.fits),
        "refit_full": float(report.refit.is_full),
        "refit_agreement": report.refit.agreement,
    }
    for part in report.extensions:
        values |= part.metrics(report.refit.strength)
    return {f"b3/{name}": None if value is None else float(value) for name, value in values.items()}


#: The metrics that answer: those of the audited run and its LoggedModel. All are on the audit's own run.
ANSWERS = tuple(
    f"b3/{name}"
    for name in ("e0", "e0_low", "e0_high", "iid", "loco", "gap", "p0_star", "residual")
)


def answers_of(report: AuditReport) -> dict[str, float | None]:
    """Return the metrics that answer, rounded to what they are worth; the others are unknown here."""
    return {
        name: worth(value) if is_answer(name) and value is not None else None
        for name, value in metrics_of(report).items()
    }


def is_answer(name: str) -> bool:
    """Return whether the audited run shows a metric."""
    return name in ANSWERS or name in extension_metrics()


def worth(value: float) -> float:
    """Return a number with four digits. Intervals are hundreds of times wider than the rest."""
    return float(f"{value:.4g}")


def extension_metrics() -> tuple[str, ...]:
    """Return the metrics that only audits with an extension have."""
    return tuple(f"b3/{name}" for key in EXTENSIONS for name in extension_report(key).METRICS)


#: The rates of wrong ids in percent, at the steps of the sensitivity curve.
PERCENT = "wrong_ids_percent"


def curves_of(report: AuditReport) -> dict[str, list[tuple[int, float]]]:
    """Return the stepped metrics of a report: (1000 x, y) for each point, (d, y) for doses.

    The x axis of the loss is the exposure, which is comparable between folds and tables; of the
    residual p0; of the sensitivity curves the cluster error or split rate; and of CV_c the multiple of
    the estimated standard deviations.
    """
    axis = report.sensitivity.error or report.sensitivity.p0
    series = {
        "loss": zip(report.curve.exposure, report.curve.loss, strict=True),
        "residual": zip(report.search.p0, report.search.residual, strict=True),
        "sensitivity": zip(axis, report.sensitivity.e0, strict=True),
    }
    # the axis of the sensitivity curves in percent, for charts that take a metric as their axis
    series[PERCENT] = zip(axis, (100 * x for x in axis), strict=True)
    split = report.fragment_sensitivity
    if split is not None and split.error is not None:
        series["sensitivity_split"] = zip(split.error, split.e0, strict=True)
    for curve in (part.curve() for part in report.extensions):
        series[curve.name] = zip(curve.x, curve.y, strict=True)
    curves = {
        f"b3_curve/{name}": [(round(1000 * x), float(y)) for x, y in points]
        for name, points in series.items()
    }
    if report.dose is not None:
        curves["b3_curve/dose"] = list(zip(report.dose.d, report.dose.loss, strict=True))
    return curves


def parameters_of(report: AuditReport) -> dict[str, str]:
    """Return the parameters of the audit's own run: the settings of the audit."""
    subject, plan, claim = report.subject, report.plan, report.claim
    values = {
        "model": subject.uri or subject.model,
        "data": subject.data_source,
        "target": subject.target,
        "cluster": subject.cluster,
        "loss": subject.loss,
        "scoring": subject.loss if named_score(subject.loss) is not None else None,
        "p0_source": report.p0_source,
        "claim": claim.range and _range(claim.range),
        "split_rate": claim.split_range and _range(claim.split_range),
        "pattern": claim.pattern,
        "fragments": plan.fragment_sizes if report.leakage.splits else None,
        "folds": str(len(report.folds) // plan.repeats),
        "repeats": str(plan.repeats),
        "folds_digest": plan.folds_digest,
        "fold_threshold": plan.fold_threshold,
        "purge_threshold": plan.purge_threshold,
        "threshold": number(report.threshold) if plan.threshold_given else None,
        "method": plan.method,
        "scheme": plan.scheme,
        "test": report.test.method,
        "refit": report.refit.route,
        "sample_weight": subject.sample_weight,
        "seed": plan.seed,
    }
    for part in report.extensions:
        values |= part.parameters()
    return {
        f"b3/{name}": str(value)[:LONGEST_PARAMETER]
        for name, value in values.items()
        if value not in (None, "")
    }


def _range(ends: tuple[float, float]) -> str:
    return " to ".join(dict.fromkeys(f"{end:.6g}" for end in ends))


def tags_of(report: AuditReport, audit_run_id: str) -> dict[str, str]:
    """Return the tags that identify an audit and summarize it without its files."""
    subject = report.subject
    unknown = [name for name, value in metrics_of(report).items() if value is None]
    headline = headline_of(report)
    return {
        "b3.answer": headline.short,
        "b3.audit_run_id": audit_run_id,
        # audits of the same model share it; a run may have several models
        "b3.subject": subject.model_id or subject.uri or subject.run_id or "none",
        # the loss or score that the metrics are in; an audit of another one replaces it
        "b3.score": subject.loss,
        "b3.p0_source": report.p0_source,
        "b3.pattern": report.claim.pattern,
        "b3.refit": report.refit.route,
        "b3.refit_strength": report.refit.strength,
        "b3.version": report.version,
        "b3.data_digest": subject.data_digest,
        # MLflow keeps metrics of older audits on the LoggedModel; these do not belong to this audit
        "b3.not_known": ", ".join(unknown) or "none",
    }


# --- Files, by their path under `b3/`

#: How much of a table's digest fits into MLflow's field.
DATASET_DIGEST = 12
#: Files that grow with the rows of the table; only the audit's own run has them.
OF_ROWS = ("folds.csv", "influence.csv", "measurements.json")


def files_of(report: AuditReport) -> dict[str, str]:
    """Return the text of every file of an audit.

    A report that was read from JSON lacks the parts that grow with the rows of the table.
    """
    page = audit_document(report)
    files = {
        "audit.json": report.to_json(),
        "curves.csv": curves_table(report),
        "report.html": document.to_html(page),
        "report.md": document.to_markdown(page),
        "report.txt": f"{document.to_text(page)}\n",
    }
    charts = charts_of(report, page.figures)
    files |= {f"plots/{name}.svg": text for name, text in charts.items()}
    if report.splits is not None:
        files["folds.csv"] = fold_table(report.splits, report.subject.n_rows)
    if report.influence is not None:
        files["influence.csv"] = report.influence.to_csv()
    if report.measurements is not None:
        files["measurements.json"] = report.measurements.to_json()
    return files


def curves_table(report: AuditReport) -> str:
    """Return all curves of a report as one CSV table."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["curve", "axis", "x", "value", "low", "high"])
    for share, y, noise in zip(
        report.curve.injected, report.curve.loss, report.curve.stderr or (), strict=True
    ):
        writer.writerow(["loss", "injected", share, y, y - 1.96 * noise, y + 1.96 * noise])
    for p0, y in zip(report.search.p0, report.search.residual, strict=True):
        writer.writerow(["residual", "p0", p0, y, "", ""])
    for curve in (report.sensitivity, report.fragment_sensitivity):
        if curve is not None:
            x = curve.p0 if curve.error is None else curve.error
            error = "cluster_error" if curve.pattern == "rows" else "split_rate"
            axis = "p0" if curve.error is None else error
            for row in zip(x, curve.e0, curve.low, curve.high, strict=True):
                writer.writerow([f"sensitivity_{curve.pattern}", axis, *row])
    for added in (part.curve() for part in report.extensions):
        for at, y in zip(added.x, added.y, strict=True):
            writer.writerow([added.name, added.axis, at, y, "", ""])
    doses = report.dose
    if doses is not None:
        for point in zip(doses.d, doses.loss, doses.low, doses.high, strict=True):
            writer.writerow(["dose", "rows", *point])
    return file.getvalue()


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files to an existing folder, creating subfolders."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def save_report(report: AuditReport) -> Path:
    """Save all files of an audit, or none, to a new folder here; `load_report` reads them back."""
    stamp = time.strftime("b3-audit-%Y%m%d-%H%M%S")
    for attempt in range(1000):
        folder = Path(f"{stamp}-{attempt}" if attempt else stamp)
        if not folder.exists():
            break
    folder.mkdir()
    try:
        write_files(folder, files_of(report))
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)  # half an audit would look complete
        raise
    return folder


def load_report(folder: str | PathLike[str]) -> AuditReport:
    """Read an audit from the folder of its files, including the parts that grow with the rows."""
    place = Path(folder)
    try:
        report = AuditReport.from_json((place / "audit.json").read_text(encoding="utf-8"))
        table, influence, measurements = (place / name for name in OF_ROWS)
        if table.exists():
            splits = read_fold_table(table).splits
            folds = tuple(Fold(training=t, validation=v) for t, v in splits)
            report = replace(report, splits=folds)
        if influence.exists():
            text = influence.read_text(encoding="utf-8")
            report = replace(report, influence=Influence.from_csv(text))
        if measurements.exists():
            measured = Measurement.from_json(measurements.read_text(encoding="utf-8"))
            report = replace(report, measurements=measured)
    except (OSError, ArithmeticError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{str(folder)!r} has no readable audit: {type(error).__name__}: {error}"
        ) from error
    return report


# --- Writing to a run

FOLDER = "b3"
#: A metric that every audit has.
ALWAYS = "b3/iid"
#: MLflow's error code if another client inserted the same row at the same time.
COLLISION = "BAD_REQUEST"
#: Seconds to wait after each collision.
PAUSES = (0.1, 0.3, 1.0)


def log_dataset(client: Any, child: str, report: AuditReport, model_id: str | None) -> None:
    """Log the audited table as the input of an audit's run."""
    subject = report.subject
    from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput

    source = subject.data_source
    profile = {"num_rows": subject.n_rows, "num_clusters": subject.n_clusters}
    dataset = Dataset(
        name=_dataset_name(report),
        digest=_dataset_digest(report),
        source_type="code" if source is None else "local",
        source=json.dumps(
            {"tags": {"mlflow.source.name": "mlflow-b3"}} if source is None else {"uri": source}
        ),
        profile=json.dumps(profile),
    )
    inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", "audit")])]
    models = [LoggedModelInput(model_id)] if model_id else None
    insist(lambda: client.log_inputs(child, datasets=inputs, models=models))


def _dataset_name(report: AuditReport) -> str:
    source = report.subject.data_source
    return "b3-audit" if source is None else Path(source).name


def _dataset_digest(report: AuditReport) -> str:
    """Return the part of the digest that fits into MLflow's field; a tag has all of it."""
    return report.subject.data_digest[:DATASET_DIGEST]


def log_scalars(
    client: Any,
    run_id: str,
    report: AuditReport,
    tags: dict[str, str],
    parameters: dict[str, str],
    *,
    model_id: str | None = None,
    answers_only: bool = False,
    unknown_only: bool = False,
) -> None:
    """Write the metrics, tags and parameters of a run in one request.

    A model gets those metrics that answer; with `answers_only` so does the run, and other values that
    it has from earlier versions are cleared.
    """
    from mlflow.entities import Metric, Param, RunTag

    earlier = client.get_run(run_id).data.metrics
    now = _now()
    if ALWAYS in earlier:
        # MLflow shows the value with the latest time, and the earlier writer's clock may be ahead
        before = client.get_metric_history(run_id, ALWAYS)
        now = max(now, *(metric.timestamp + 1 for metric in before))
    metrics = []
    found = answers_of(report) if answers_only else metrics_of(report)
    # an older audit of the run may have had an extension that this one lacks
    for name, value in (dict.fromkeys(extension_metrics()) | found).items():
        if value is None:
            if name not in earlier:
                continue
            value = math.nan  # do not show an older audit's value
        elif unknown_only:
            continue
        # MLflow stores a model's NaN as 0
        linked = model_id if math.isfinite(value) and is_answer(name) else None
        extra = {}
        if linked is not None:
            extra = {
                "model_id": linked,
                "dataset_name": _dataset_name(report),
                "dataset_digest": _dataset_digest(report),
                "run_id": run_id,
            }
        metrics.append(Metric(name, value, now, 0, **extra))
    params = [Param(name, value) for name, value in parameters.items()]
    named = [RunTag(name, value) for name, value in tags.items()]
    insist(lambda: client.log_batch(run_id, metrics=metrics, params=params, tags=named))


def log_curves(client: Any, child: str, report: AuditReport) -> None:
    """Write the curves of an audit as stepped metrics."""
    from mlflow.entities import Metric

    now = _now()
    metrics = [
        Metric(name, value, now, step)
        for name, points in curves_of(report).items()
        for step, value in points
    ]
    client.log_batch(child, metrics=metrics)


def insist(write: Callable[[], None]) -> None:
    """Retry a write that collides with another audit.

    MLflow first looks for a dataset, metric or tag and then inserts it. If two clients do so at once,
    its database refuses the second insert.
    """
    from mlflow.exceptions import MlflowException

    for pause in PAUSES:
        try:
            write()
        except MlflowException as error:
            if error.error_code != COLLISION:
                raise
            time.sleep(pause)
        else:
            return
    write()


def log_files(client: Any, run_id: str, files: Mapping[str, str]) -> None:
    """Write files under `b3/` in the artifacts of a run."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), files)
        client.log_artifacts(run_id, folder, FOLDER)


def _now() -> int:
    return int(time.time() * 1000)


# --- Evidence, which gates rely on
#
# Nothing here signs. An audit runs the model's code, so its process has no key;
# `mlflow_b3.gating.attesting` checks the evidence and signs it in another process.

#: The path of the policy for gates and servers.
POLICY = "MLFLOW_B3_POLICY"
PACKAGES = ("mlflow-b3", "mlflow", "numpy", "scipy", "pandas", "scikit-learn", "cvxpy")
_LOG = logging.getLogger(__name__)


def warn_of_key() -> None:
    """Warn if the signing key is in the environment of an audit, where the model's code can read it."""
    if environ.get(SIGNING_KEY):
        _LOG.warning(
            "%s is set in the process that runs the model's own code, which can read it. It is not "
            "used here: sign afterwards, in another process, with 'mlflow-b3 attest'.",
            SIGNING_KEY,
        )


def issue_evidence(
    client: Any,
    report: AuditReport,
    *,
    audit_run_id: str,
    files: Mapping[str, str],
    tags: Mapping[str, str],
    earlier: tuple[str, ...] = (),
    preregistration: dict[str, Any] | None = None,
) -> Evidence | None:
    """Return the evidence of an audit; None if the model is not in MLflow or has changed.

    Parameters
    ----------
    client : MlflowClient
    report : AuditReport
    audit_run_id : str
    files : mapping of str to str
        The audit's files by name.
    tags : mapping of str to str
        The tags that a registered version will get.
    earlier : tuple of str
        Runs of earlier audits of the same model.
    preregistration : dict, optional
        What was committed before the audit ran.
    """
    found = _model_files(client, report)
    if found is None:
        return None
    source, present = found
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Evidence(
        issued_at=now,
        measured_at=report.measured.measured_at or now,
        audit_run_id=audit_run_id,
        model_id=source.model_id,
        run_id=report.subject.run_id,
        source=source.source,
        model_digest=digest_of(present),
        model_files=present,
        data_digest=report.subject.data_digest,
        rows_digest=report.subject.rows_digest,
        folds_digest=report.plan.folds_digest,
        files={name: digest(text.encode()) for name, text in files.items()},
        settings=parameters_of(report),
        results=dict(metrics_of(report)),
        tags=dict(tags),
        packages=_package_versions(),
        preregistration=preregistration,
        earlier_audits=earlier,
    )


def _model_files(client: Any, report: AuditReport) -> tuple[ModelSource, dict[str, str]] | None:
    """Return the source and digests of the model's files; None if they have changed."""
    subject = report.subject
    from mlflow.exceptions import MlflowException

    if subject.uri is None or subject.model_digest is None:
        return None
    try:
        source = resolve_source(
            client,
            f"models:/{subject.model_id}" if subject.model_id else subject.uri,
        )
        present = digest_model(source.location)
    except (MlflowException, OSError, EvidenceError) as error:
        _LOG.warning(
            "The audit has no evidence for gates: cannot read the model's files: %s", error
        )
        return None
    if digest_of(present) != subject.model_digest:
        _LOG.warning("The audit has no evidence for gates: the model's files have changed since.")
        return None
    return source, present


def _package_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
