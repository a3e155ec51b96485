"""The types of the command line's options, for which an empty text is nothing."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from mlflow_b3.wording import read_number


class Share(click.ParamType):  # type: ignore[type-arg]
    """A number or percentage, a range LOW,HIGH of them, or a word; an empty text is nothing."""

    name = "SHARE"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | tuple[float, float] | str | None:
        """Parse the text."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if not value.strip() or value.strip() == "grid":
            return None  # the grid search is what is done when nothing is known
        if value.strip() in self.words:
            return value.strip()
        try:
            numbers = tuple(_number(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        if len(numbers) == 1:
            return numbers[0]
        if len(numbers) == 2:
            return numbers[0], numbers[1]
        return self.fail(f"{value!r} is not a number such as 0.1 or 10%, or LOW,HIGH", param, ctx)


def _number(text: str) -> float:
    """Parse a number, which may be a percentage such as 10%."""
    return float(read_number(text))


class Optional(click.ParamType):  # type: ignore[type-arg]
    """Another type, where an empty text is nothing: MLproject parameters cannot be left out."""

    def __init__(self, inner: Callable[[str], Any], name: str) -> None:
        self.inner = inner
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text."""
        if not isinstance(value, str):
            return value
        if not value.strip():
            return None
        try:
            return self.inner(value)
        except ValueError:
            return self.fail(f"{value!r} is not of type {self.name}", param, ctx)


#: A comma after which the next NAME=VALUE begins; other commas are between the items of a list.
BETWEEN = re.compile(r",(?=[^,=]*=)")


def _named_values(text: str) -> dict[str, Any]:
    """Parse NAME=VALUE, or several with commas between them.

    A value is a number, true, false or a text. Several texts with commas between them are a list, and
    so is JSON in brackets, in which texts may have commas of their own.
    """
    values: dict[str, Any] = {}
    while text:
        name, equals, text = (part.strip() for part in text.partition("="))
        if not (name and equals) or "," in name:
            raise ValueError
        if text.startswith("["):
            values[name], end = json.JSONDecoder().raw_decode(text)
            nothing, *rest = text[end:].split(",", 1)
            if nothing.strip():
                raise ValueError
        else:
            value, *rest = BETWEEN.split(text, 1)
            values[name] = _value(value)
        text = rest[0] if rest else ""
    return values


def _value(text: str) -> bool | int | float | str | list[str]:
    items = [item.strip() for item in text.split(",")]
    if "=" in text or (items[1:] and not all(items)):
        raise ValueError
    return items if items[1:] else _number_or_text(items[0])


def _number_or_text(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _folds(text: str) -> int | str:
    return text if text == "balanced" or text.endswith(".csv") else int(text)


TEXT = Optional(str, "TEXT")
YES_NO = Optional(lambda text: click.BOOL.convert(text, None, None), "BOOLEAN")
FOLDS = Optional(_folds, "NUMBER|balanced|FILE")
NUMBER = Optional(_number, "NUMBER")
WHOLE = Optional(int, "INTEGER")
NAMED_VALUES = Optional(_named_values, "NAME=VALUE")
