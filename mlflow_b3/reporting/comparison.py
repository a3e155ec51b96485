"""A comparison of audited models as text, Markdown, CSV and JSON."""

import csv
import io
from itertools import chain
from typing import Any

from mlflow_b3.comparing import Comparison
from mlflow_b3.reporting.comparison_page import comparison_page, comparison_plot
from mlflow_b3.reporting.comparison_words import (
    TITLE,
    comparison_tables,
    explain_comparison,
    readable_names,
)
from mlflow_b3.reporting.layout import aligned, escaped, listed, paragraphs, titled

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def comparison_text(comparison: Comparison) -> str:
    """Return a comparison as text for a terminal."""
    comparison = readable_names(comparison)
    sections = [
        f"{TITLE}\n{'=' * len(TITLE)}",
        paragraphs("In words", explain_comparison(comparison)),
        *(
            "\n".join([table.title, *aligned((table.head, *table.rows))])
            for table in comparison_tables(comparison)
        ),
        paragraphs("Mind", comparison.notes),
    ]
    return "\n\n".join(section for section in sections if section)


def comparison_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown."""
    comparison = readable_names(comparison)
    parts = [
        f"# {TITLE}",
        *(escaped(sentence) for sentence in explain_comparison(comparison)),
        *titled(comparison_tables(comparison)),
        listed(comparison.notes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def comparison_csv(comparison: Comparison) -> str:
    """Return the ranking as a CSV table with all digits.

    Text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    file = io.StringIO()
    rows = [c.to_dict() for c in comparison.contenders]
    pairs = ("loco_interval", "e0_interval", "cvc_interval")
    names = chain.from_iterable(
        (f"{n[:-9]}_low", f"{n[:-9]}_high") if n in pairs else (n,) for n in rows[0]
    )
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        cells = ((row[n] or (None, None)) if n in pairs else (row[n],) for n in row)
        writer.writerow(map(_no_formula, chain.from_iterable(cells)))
    return file.getvalue()


def _no_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell


def comparison_files(comparison: Comparison) -> dict[str, str]:
    """Return the text of every file of a comparison, by name."""
    return {
        "comparison.csv": comparison_csv(comparison),
        "comparison.html": comparison_page(comparison),
        "comparison.json": comparison.to_json(),
        "comparison.md": comparison_markdown(comparison),
        "comparison.svg": comparison_plot(comparison).standalone(),
    }
