"""A report as a document of sections, and its forms: text, Markdown, HTML, and files of these.

What a report says is put together once, as a `Document`. The forms differ in markup only: text for a
terminal leaves out some sections, and text and Markdown have tables in place of pictures.
"""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mlflow_b3.errors import InputError
from mlflow_b3.reporting.drawing import CHART_STYLE, Draw, Drawing, colours_of, drawing_of, to_svg
from mlflow_b3.results import Finding

# --- What a document is made of


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Some sentences; `quoted` ones are for others to copy."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Sentences one below the other, with a title where they need one."""

    items: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Findings with their codes; a page says so if there are none."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines that are kept as they are, such as a traceback."""

    lines: tuple[str, ...]
    title: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text.

    Attributes
    ----------
    header : tuple of str
    rows : tuple of tuple of str
    caption : str
    align : str
        A letter for each column, `l` or `r`; columns without one are aligned to the left.
    prose : bool
        Cells are sentences, not numbers. Text for a terminal breaks those of the last column, and
        leaves out the header.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    align: str = ""
    prose: bool = False

    def side(self, column: int) -> str:
        """Return the side that a column is aligned to, `l` or `r`."""
        return self.align[column : column + 1] or "l"


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
    height: float = 205
    data: Table | None = None

    def svg(self, *, standalone: bool = False) -> str:
        """Return the picture as SVG, for a page that has the styles or as a file of its own."""
        return to_svg(self._drawing, title=self.title, alt=self.alt, standalone=standalone)

    @cached_property
    def _drawing(self) -> Drawing:
        return drawing_of(self.draw, name=self.name, height=self.height)


Block = Paragraph | Listing | Findings | Lines | Table | Figure


@dataclass(frozen=True, kw_only=True)
class Section:
    """Blocks below a heading.

    Attributes
    ----------
    heading : str
    blocks : tuple
    folded : bool
        A page shows the heading only, until a reader opens it or prints the page.
    in_text : bool
        Text for a terminal has it, too.
    broad : bool
        On a wide screen it takes the whole width, not half of it.
    """

    heading: str
    blocks: tuple[Block, ...]
    folded: bool = False
    in_text: bool = True
    broad: bool = False


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One number of a card: what it is, its value, what to know about it, and its colour in charts."""

    label: str
    value: str
    note: str = ""
    colour: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a document says in one word and a few sentences; on a page it is a card.

    Attributes
    ----------
    sentence : str
    word, sign : str
        The answer in a word, with its icon; empty where it has none.
    state : str
        The style of the word: `bad`, `open`, `good` or `unknown`.
    premise : str
        What the sentence rests on.
    unit : str
        What the tiles count, and which direction is better.
    tiles : tuple of Tile
        Its main numbers. Text and Markdown have tables instead.
    facts : tuple of (str, str)
        What else belongs to the answer, each with its name.
    findings : tuple of Finding
        Shown by their titles.
    """

    sentence: str
    word: str = ""
    sign: str = ""
    state: str = ""
    premise: str = ""
    unit: str = ""
    tiles: tuple[Tile, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def told(self) -> str:
        """The sentence and its premise."""
        return f"{self.sentence} {self.premise}".strip()


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report: its answer, and sections that say why.

    Attributes
    ----------
    title : str
        Text and Markdown have none where it is empty.
    answer : Answer
    sections : tuple of Section
        Those without blocks are left out.
    footer : str
    """

    title: str
    answer: Answer
    sections: tuple[Section, ...]
    footer: str = ""

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures of all sections, by name."""
        blocks = (block for section in self.sections for block in section.blocks)
        return {block.name: block for block in blocks if isinstance(block, Figure)}


def paragraphs(texts: Iterable[str]) -> list[Paragraph]:
    """Return each text as a paragraph."""
    return [Paragraph(text=text) for text in texts]


def lists(items: Iterable[str], title: str = "") -> list[Listing]:
    """Return sentences as a list; no list if there are none."""
    listing = Listing(items=tuple(items), title=title)
    return [listing] if listing.items else []


# --- Text for a terminal

WIDTH = 92


def to_text(document: Document, width: int = WIDTH) -> str:
    """Return a document as text for a terminal, without the sections that only pages have."""
    answer = document.answer
    sentence = answer.told
    if answer.word:
        sentence = f"{_word(answer)}: {sentence[0].lower()}{sentence[1:]}"
    parts = [
        f"{document.title}\n{'=' * len(document.title)}" if document.title else "",
        _filled(sentence, width, rest="  "),
        *(_section_text(section, width) for section in document.sections if section.in_text),
    ]
    return "\n\n".join(part for part in parts if part)


def _section_text(section: Section, width: int) -> str:
    shown = [(block, text) for block in section.blocks if (text := _block_text(block, width))]
    lines = [section.heading] if shown and section.heading else []
    for place, (block, text) in enumerate(shown):
        alike = isinstance(block, Paragraph) and isinstance(shown[place - 1][0], Paragraph)
        lines += ["", text] if place and not alike else [text]
    return "\n".join(lines)


def _block_text(block: Block, width: int) -> str:
    match block:
        case Paragraph(text=text):
            return _indented([text], width)
        case Listing(items=items, title=title):
            return "\n".join([*([title] if title else []), bulleted(items, width)])
        case Findings(findings=findings):
            return _indented(map(str, findings), width)
        case Lines(lines=lines, title=title):
            return "\n".join([title, *(f"  {line}" for line in lines)])
        case Table():
            rows = _hanging(block, width) if block.prose else _aligned(block)
            return "\n".join([*([block.caption] if block.caption else []), *rows])
        case Figure(data=data):
            return _block_text(data, width) if data is not None else ""


def bulleted(sentences: Iterable[str], width: int = WIDTH) -> str:
    """Return sentences as a list for a terminal."""
    return "\n".join(_filled(text, width, "  - ", "    ") for text in sentences)


def _word(answer: Answer) -> str:
    return f"{answer.sign} {answer.word}".lstrip()


def _indented(texts: Iterable[str], width: int) -> str:
    return "\n".join(_filled(text, width, "  ", "  ") for text in texts)


def _filled(text: str, width: int, first: str = "", rest: str = "") -> str:
    # commands and ids are copied, so they are not broken
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _hanging(table: Table, width: int) -> list[str]:
    """Return the rows of a table whose last column is text, each broken below its beginning."""
    widths = [max(map(len, column)) for column in zip(*table.rows, strict=True)][:-1]
    lines = []
    for *cells, text in table.rows:
        start = "".join(f"  {cell:<{length}}" for cell, length in zip(cells, widths, strict=True))
        lines.append(_filled(text, width, f"{start}  ", " " * (len(start) + 2)))
    return lines


def _aligned(table: Table) -> list[str]:
    """Return a table as lines whose columns are below each other."""
    rows = (table.header, *table.rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "   ".join(
            cell.rjust(width) if table.side(place) == "r" else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


# --- Markdown, for MLflow's artifact view and for CI


def to_markdown(document: Document) -> str:
    """Return a document as Markdown without any markup but its own."""
    answer = document.answer
    sentence = f"**{escaped(answer.sentence)}** {escaped(answer.premise)}".rstrip()
    if answer.word:
        sentence = f"**{_word(answer)}.** {escaped(answer.told)}"
    parts = [*([f"# {escaped(document.title)}"] if document.title else []), sentence]
    for section in document.sections:
        blocks = [text for block in section.blocks if (text := _block_markdown(block))]
        heading = [f"## {escaped(section.heading)}"] if blocks and section.heading else []
        parts += heading + blocks
    return "\n\n".join(parts) + "\n"


def _block_markdown(block: Block) -> str:
    match block:
        case Paragraph(text=text, quoted=quoted):
            return "> " * quoted + escaped(text)
        case Listing(items=items, title=title):
            return (f"{escaped(title)}:\n\n" if title else "") + listed(items)
        case Findings(findings=findings):
            rows = [f"- **{f.code}** {escaped(f.title)}: {escaped(f.message)}" for f in findings]
            return "\n".join(rows) if rows else "None."
        case Lines(lines=lines, title=title):
            return "\n".join([f"{escaped(title)}:\n", *(f"    {line}" for line in lines)])
        case Table():
            caption = f"{escaped(block.caption)}:\n\n" if block.caption else ""
            return caption + markdown_table(block)
        case Figure(data=data):
            return _block_markdown(data) if data is not None else ""


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


def markdown_table(table: Table) -> str:
    """Return a table in Markdown, without its caption."""
    rows = [tuple(escaped(cell) for cell in row) for row in (table.header, *table.rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in rows)
    sides = ["--:" if table.side(place) == "r" else "---" for place in range(len(table.header))]
    return "\n".join([head, f"|{'|'.join(sides)}|", *body])


# --- HTML that needs no network, no scripts and no other files

FOLDER = "mlflow_b3.reporting"
TEMPLATE = "document.html.j2"


def to_html(document: Document) -> str:
    """Return a document as one HTML page.

    It needs no network and contains no scripts and no links but those to its own sections, so that it
    reads the same in MLflow's artifact view, in a browser and on paper. Every name that others chose is
    text in it.
    """
    return _rendered(document, page=True)


def to_card(document: Document) -> str:
    """Return the answer of a document as a part of a notebook."""
    return _rendered(replace(document, sections=(), footer=""), page=False)


def _rendered(document: Document, *, page: bool) -> str:
    values: dict[str, Any] = {"document": document, "page": page, "style": Markup(_style())}
    return _templates().get_template(TEMPLATE).render(**values, svg=lambda f: Markup(f.svg()))


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader(FOLDER, "."),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment


@cache
def _style() -> str:
    own = files(FOLDER).joinpath("document.css").read_text(encoding="utf-8")
    return colours_of(".b3-document") + CHART_STYLE + own


# --- Reports as files


def checked_path(argument: str, path: str | PathLike[str]) -> Path:
    """Return the path a report is to be written to; refuse impossible ones before any work is done."""
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
    """Write a report, or raise an error that says why that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{argument}={str(path)!r} cannot be written: {error}") from error
