"""Ids of rows as they are written on a sheet, and as spreadsheets give them back."""

import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.row_ids import id_text

#: What people write where they found no mate.
NONE_WORDS = ("none", "no", "-", "–", "—")
#: A number as spreadsheets change it: without leading zeros, or with decimals.
NUMBER = re.compile(r"0*(\d+)(?:\.0+)?")


def id_texts(ids: Iterable[Any]) -> list[str]:
    """Return ids as they are written on a sheet; refuse those that could not be read back."""
    texts = [id_text(name) for name in ids]
    index = pd.Index(texts)
    problems = []
    for wrong, what in (
        ([text for text in texts if re.search(r"[;\r\n]", text)], "hold a semicolon or line break"),
        ([text for text in texts if text.lower() in (*NONE_WORDS, "")], "are empty or mean `none`"),
        (index[index.duplicated()].unique().tolist(), "occur more than once"),
    ):
        if wrong:
            some = ", ".join(repr(text) for text in wrong[:5]) + (" …" if len(wrong) > 5 else "")
            problems.append(f"{len(wrong)} ids {what}: {some}; number the rows instead.")
    if problems:
        raise InputError.from_problems("ids", problems)
    return texts


def row_lookup(texts: list[str]) -> dict[str, int]:
    """Return the row of each id, also of numbers as spreadsheets change them, where that is unique."""
    exact = {text: row for row, text in enumerate(texts)}
    changed: dict[str, list[int]] = {}
    for text, row in exact.items():
        changed.setdefault(_number(text), []).append(row)
    return {name: rows[0] for name, rows in changed.items() if len(rows) == 1} | exact


def _number(text: str) -> str:
    match = NUMBER.fullmatch(text)
    return match.group(1) if match else text


def find_row(text: str, lookup: dict[str, int]) -> int | None:
    """Return the row of an id, None if there is no such id."""
    return lookup.get(text, lookup.get(_number(text)))
