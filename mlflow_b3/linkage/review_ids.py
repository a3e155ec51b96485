"""Ids of rows as they are written on a sheet."""

import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.row_ids import id_text

#: What people write where they found no mate.
NONE_WORDS = ("none", "no", "-", "–", "—")


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
