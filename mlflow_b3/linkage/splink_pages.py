"""Splink's labelling pages for the records of a review."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.row_ids import listed


def splink_labelling_pages(
    linker: Any,
    ids: Iterable[Any],
    folder: str | Path,
    *,
    match_weight_threshold: float = -4.0,
) -> list[Path]:
    """Write a page for each record on which Splink shows the records that resemble it.

    Parameters
    ----------
    linker : splink.Linker
        The linker of the table.
    ids : sequence
        The records to be reviewed, by Splink's unique id.
    folder : path
        Where to write the pages; it is made if needed, and pages in it are written over.
    match_weight_threshold : float
        Show records with a larger match weight, in bits. The whole table is compared, whatever the
        blocking rules; a lower threshold shows more of it.

    Returns
    -------
    list of Path
        One HTML page for each record, of about 1.3 MB.

    Notes
    -----
    A page replaces the list of candidates, not the search: records below the threshold are not on
    it. Splink's own predictions are not shown, so that they do not sway the reviewer. What was found
    goes into the column `mates` of the sheet.
    """
    write = getattr(getattr(linker, "evaluation", None), "labelling_tool_for_specific_record", None)
    if write is None:
        raise InputError(
            f"linker={type(linker).__name__} has no evaluation.labelling_tool_for_specific_record; "
            "give the Linker of Splink 4 or later."
        )
    names = list(ids)
    quoted = [str(name) for name in names if "'" in str(name)]
    if quoted:
        raise InputError(
            f"ids: Splink cannot look up {len(quoted)} ids with a quote: {listed(quoted)}."
        )
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    pages = []
    for place, name in enumerate(names, start=1):
        page = target / f"{place:04d}-{re.sub(r'[^A-Za-z0-9-]', '_', str(name))[:80]}.html"
        write(
            name,
            out_path=str(page),
            overwrite=True,
            match_weight_threshold=match_weight_threshold,
            show_splink_predictions_in_interface=False,
        )
        pages.append(page)
    return pages
