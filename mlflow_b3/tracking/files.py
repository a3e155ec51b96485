"""The files that an audit leaves in MLflow, by their path under `b3/`."""

import csv
import io
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.fold_table import fold_table, read_fold_table
from mlflow_b3.folds import Fold
from mlflow_b3.measurement.assembly import Measurement
from mlflow_b3.reporting.charts import charts_of
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.text import to_markdown

#: Files that grow with the rows of the table; only the audit's own run has them.
OF_ROWS = ("folds.csv", "influence.csv", "measurements.json")


def files_of(report: AuditReport) -> dict[str, str]:
    """Return the text of every file of an audit.

    What grows with the rows of the table is known to the report that `audit` returned, not to one
    that was read back from JSON.
    """
    files = {
        "audit.json": report.to_json(),
        "curves.csv": curves_table(report),
        "report.html": report.to_html(),
        "report.md": to_markdown(report),
        "report.txt": f"{report}\n",
    }
    files |= {f"plots/{name}.svg": text for name, text in charts_of(report).items()}
    if report.splits is not None:
        files["folds.csv"] = fold_table(report.splits, report.settings.n_rows)
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
    if report.cvc is not None:
        for times, y in zip(report.cvc.multipliers, report.cvc.sensitivity, strict=True):
            writer.writerow(["cvc", "sd_multiplier", times, y, "", ""])
    return file.getvalue()


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files to a folder that exists, with the folders in between."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def save_report(report: AuditReport) -> Path:
    """Save all files of an audit to a new folder here, or none; `load_report` reads it back."""
    stamp = time.strftime("b3-audit-%Y%m%d-%H%M%S")
    for number in range(1000):
        folder = Path(f"{stamp}-{number}" if number else stamp)
        if not folder.exists():
            break
    folder.mkdir()
    try:
        write_files(folder, files_of(report))
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)  # half an audit would pass for one
        raise
    return folder


def load_report(folder: str | PathLike[str]) -> AuditReport:
    """Read an audit from the folder that holds its files, what grows with the rows included."""
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
            f"{str(folder)!r} holds no audit that can be read: {type(error).__name__}: {error}"
        ) from error
    return report
