"""Tables and paragraphs on a terminal and in Markdown; reports as files."""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from mlflow_b3.errors import InputError
from mlflow_b3.reporting.drawing import Draw, to_svg
from mlflow_b3.reporting.tables import Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture with the words that go with it.

    Attributes
    ----------
    name : str
        Unique in its page.
    title, alt : str
        Read aloud instead of the picture.
    caption : str
        How to read the picture.
    draw : callable
        Draws on the matplotlib axes that it is given.
    height : float
        Of the axes, in pixels.
    data : Table, optional
        The same in numbers, for forms of a report without pictures.
    """

    name: str
    title: str
    alt: str
    caption: str
    draw: Draw
    height: float = 230
    data: Table | None = None

    def svg(self, *, standalone: bool = False) -> str:
        """Return the picture as SVG, for a page that has the styles or as a file of its own."""
        return to_svg(
            self.draw,
            name=self.name,
            title=self.title,
            alt=self.alt,
            height=self.height,
            standalone=standalone,
        )


# --- Tables and paragraphs on a terminal and in Markdown

WIDTH = 92


def escaped(text: str) -> str:
    """Return text that a Markdown viewer shows as it is: no markup, no links, one line."""
    for character in "\\`*_{}[]<>|#~&$":
        text = text.replace(character, "\\" + character)
    for link, broken in (("://", ":\\//"), ("www.", "www\\."), ("@", "\\@")):
        text = text.replace(link, broken)
    return text.replace("\n", " ")


def listed(sentences: Iterable[str]) -> str:
    """Return sentences as a Markdown list."""
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)


def titled(tables: Iterable[Table]) -> list[str]:
    """Return Markdown tables below their titles."""
    return [f"{escaped(table.title)}:\n\n{markdown_table(table)}" for table in tables]


def markdown_table(table: Table) -> str:
    """Return a table in Markdown."""
    rows = [tuple(escaped(cell) for cell in row) for row in (table.head, *table.rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([head, "|" + "---|" * len(table.head), *body])


def aligned(rows: tuple[tuple[str, ...], ...], right: int | None = None) -> list[str]:
    """Return rows of cells as lines whose columns are below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "   ".join(
            cell.rjust(width) if place == right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def paragraphs(title: str, texts: Iterable[str]) -> str:
    """Return wrapped paragraphs below a title; nothing where there are none."""
    wrapped = [
        textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ") for text in texts
    ]
    return "\n".join([title, *wrapped]) if wrapped else ""


# --- Reports as files


def checked_path(argument: str, path: str | PathLike[str]) -> Path:
    """Return where a report shall be written, before the work is done; refuse what cannot be."""
    try:
        file = Path(path)
        folder, inside = file.is_dir(), file.parent.is_dir()
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"{argument}={path!r} is not the path of a file: {error}") from error
    if folder:
        raise InputError(f"{argument}={str(path)!r} is a folder; give the name of a file.")
    if not inside:
        raise InputError(
            f"{argument}={str(path)!r}: the folder {str(file.parent)!r} does not exist."
        )
    return file


def write_text(argument: str, path: Path, text: str) -> None:
    """Write a report, or say why that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{argument}={str(path)!r} cannot be written: {error}") from error
