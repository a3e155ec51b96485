"""The files that an audit leaves in MLflow, by their path under `b3/`."""

import csv
import io

from mlflow_b3.fold_table import fold_table
from mlflow_b3.reporting.charts import charts_of
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.text import to_markdown


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
    return files


def curves_table(report: AuditReport) -> str:
    """Return all curves of a report as one CSV table."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["curve", "axis", "x", "value", "low", "high"])
    for x, y, error in zip(
        report.curve.injected, report.curve.loss, report.curve.stderr or (), strict=True
    ):
        writer.writerow(["loss", "injected", x, y, y - 1.96 * error, y + 1.96 * error])
    for x, y in zip(report.search.p0, report.search.residual, strict=True):
        writer.writerow(["residual", "p0", x, y, "", ""])
    for curve in (report.sensitivity, report.fragment_sensitivity):
        if curve is not None and curve.error is not None:
            axis = "cluster_error" if curve.pattern == "rows" else "split_rate"
            for row in zip(curve.error, curve.e0, curve.low, curve.high, strict=True):
                writer.writerow([f"sensitivity_{curve.pattern}", axis, *row])
    return file.getvalue()
