"""Documents: the same sections as text, Markdown, a page and a part of a notebook."""

import re
from dataclasses import replace

import pytest
from example_reports import CVC, REPORT, audited, unknown
from test_html import Page

from mlflow_b3 import Finding
from mlflow_b3.reporting.cvc import cvc_document
from mlflow_b3.reporting.document import (
    Answer,
    Document,
    Figure,
    Findings,
    Lines,
    Listing,
    Paragraph,
    Section,
    Table,
    Tile,
    to_card,
    to_html,
    to_markdown,
    to_text,
)
from mlflow_b3.reporting.pages import audit_document

TABLE = Table(header=("score", "value"), rows=(("a", "1"), ("bb", "22")), caption="T", align="lr")


def document(*blocks, folded: bool = False, **answer) -> Document:
    return Document(
        title="A report",
        answer=Answer(**{"sentence": "It holds.", **answer}),
        sections=(Section(heading="First", blocks=blocks, folded=folded),),
        footer="the end",
    )


def figure(data: Table | None = None) -> Figure:
    return Figure(
        name="curve",
        title="Title",
        alt="Alt",
        caption="Caption",
        draw=lambda ax: ax.plot([0, 1], [1, 2]),
        data=data,
    )


def test_every_block_has_its_form_on_a_terminal():
    blocks = (
        Paragraph(text="one " * 10),
        Paragraph(text="Two."),
        TABLE,
        Listing(items=("First.", "Second."), title="A list"),
        Findings(findings=(Finding(code="B315", message="each level."),)),
        Lines(title="Traceback", lines=("  x = 1",)),
    )
    assert to_text(document(*blocks, word="Holds", sign="●"), width=30) == (
        "A report\n========\n\n● Holds: it holds.\n\n"
        "First\n  one one one one one one one\n  one one one\n  Two.\n\n"
        "T\n  score   value\n  a           1\n  bb         22\n\n"
        "A list\n  - First.\n  - Second.\n\n"
        "  B315 (few refits): each\n  level.\n\n"
        "Traceback\n    x = 1"
    )


def test_every_block_has_its_form_in_markdown():
    blocks = (
        Paragraph(text="a*b"),
        Paragraph(text="copy me", quoted=True),
        TABLE,
        Listing(items=("First.",), title="A list"),
        Findings(findings=()),
        Lines(title="Traceback", lines=("x = 1",)),
    )
    assert to_markdown(document(*blocks)) == (
        "# A report\n\n**It holds.**\n\n## First\n\na\\*b\n\n> copy me\n\n"
        "T:\n\n| score | value |\n|---|--:|\n| a | 1 |\n| bb | 22 |\n\n"
        "A list:\n\n- First.\n\nNone.\n\nTraceback:\n\n    x = 1\n"
    )


def test_sentences_of_a_table_are_broken_below_their_beginning_on_a_terminal():
    rows = (("FAIL", "evidence", "one two three"), ("-", "pins", "none"))
    table = Table(header=("", "check", "what was found"), rows=rows, prose=True)
    assert to_text(document(table), width=26).endswith(
        "First\n  FAIL  evidence  one two\n                  three\n  -     pins      none"
    )


def test_a_command_that_may_be_copied_is_not_broken():
    command = "mlflow-b3 audit --model-uri models:/a-model-with-a-long-name/3"
    text = to_text(document(Paragraph(text=command)), width=20)
    assert "--model-uri\n  models:/a-model-with-a-long-name/3" in text


def test_without_a_title_the_answer_comes_first():
    untitled = replace(document(Paragraph(text="Why."), word="FAIL"), title="")
    assert to_text(untitled).startswith("FAIL: it holds.\n\nFirst\n  Why.")
    assert to_markdown(untitled).startswith("**FAIL.** It holds.\n\n## First\n\nWhy.")


def test_a_picture_is_a_table_where_there_are_no_pictures():
    with_data = document(figure(data=TABLE))
    assert "bb         22" in to_text(with_data)
    assert "| bb | 22 |" in to_markdown(with_data)
    page = Page(to_html(with_data))
    assert (page.tags.count("svg"), page.tags.count("table")) == (1, 0)


@pytest.mark.parametrize("form", [to_text, to_markdown])
def test_a_section_without_words_has_no_heading(form):
    assert "First" not in form(document(figure()))


def test_a_terminal_leaves_out_what_is_only_for_pages():
    folded = document(Paragraph(text="Details."), folded=True)
    assert "Details." in to_text(folded)
    (section,) = folded.sections
    aside = replace(folded, sections=(replace(section, in_text=False),))
    assert "Details." not in to_text(aside)
    assert "Details." in to_markdown(aside)
    assert "## First\n\nDetails." in to_markdown(folded)
    assert '<details id="b3-0">\n<summary><h2>First</h2></summary>\n<p>Details.</p>' in to_html(
        folded
    )


@pytest.mark.parametrize(
    "made",
    [
        audit_document(REPORT),
        audit_document(unknown()),
        audit_document(audited()),
        cvc_document(CVC),
    ],
    ids=["audit", "unknown", "with cvc", "cvc"],
)
def test_all_forms_say_the_same(made):
    page = Page(to_html(made)).text
    markdown = to_markdown(made).replace("\\", "")
    terminal = " ".join(to_text(made).split())
    for section in made.sections:
        for block in section.blocks:
            texts = {
                "Paragraph": lambda b: [b.text],
                "Listing": lambda b: list(b.items),
                "Table": lambda b: [cell for row in b.rows for cell in row],
            }.get(type(block).__name__, lambda _: [])(block)
            for text in texts:
                assert text in page
                assert text in markdown
                assert not section.in_text or text in terminal


def test_a_card_for_a_notebook_has_the_answer_only_and_touches_nothing_around_it():
    tiles = (Tile(label="Reported", value="0.1", note="IID", colour="orange"),)
    part = to_card(document(figure(), TABLE, tiles=tiles, facts=(("Tipping point", "none"),)))
    assert part.startswith('<div class="b3-document">')
    page = Page(part)
    assert "Reported 0.1 IID Tipping point none" in page.text
    assert not {"html", "head", "body", "script", "link", "meta", "svg", "table"} & set(page.tags)
    style = part[part.index("<style>") : part.index("</style>")]
    rules = [
        line for line in style.splitlines() if line.startswith(("html", "table", "nav", ":root"))
    ]
    inside = style[style.index(".b3-document{\n") :]
    assert all(rule in inside for rule in rules)
    assert ":root" not in style


def test_the_styles_of_notebooks_for_lists_do_not_reach_a_card():
    # JupyterLab and nbconvert have `.jp-OutputArea-output dt {float: left; width: 20%}` and, with two
    # classes, `.jp-RenderedHTMLCommon ul:not(.list-inline) {padding-left: 2em}`
    part = to_card(document(tiles=(Tile(label="Reported", value="0.1"),)))
    own = part[part.index(".b3-document.b3-document.b3-document{\n") :]
    assert "dl,dt,dd{display:block;float:none;width:auto;overflow:visible;padding:0}" in own
    roots = re.findall(r"(?<!>body)((?:\.b3-document)+)", own)
    assert set(roots) == {3 * ".b3-document"}


def test_names_are_text_in_every_block():
    name = "<script>alert(1)</script>"
    blocks = (
        Paragraph(text=name),
        Listing(items=(name,), title=name),
        Findings(findings=(Finding(code="B315", message=name),)),
        Lines(title=name, lines=(name,)),
        Table(header=(name,), rows=((name,),), caption=name),
    )
    tiles, facts = (Tile(label=name, value=name, note=name),), ((name, name),)
    answer = {"sentence": name, "word": name, "premise": name, "tiles": tiles, "facts": facts}
    page = Page(to_html(document(*blocks, **answer)))
    assert "script" not in page.tags
    assert page.text.count(name) >= 14
