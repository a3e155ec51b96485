"""The notebooks in `examples/` as they are stored; `.ci/run` also runs them."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

import mlflow_b3
from mlflow_b3 import linkage

pytestmark = pytest.mark.newest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import notebooks as tool  # noqa: E402 - a program beside the documentation

NOTEBOOKS = tool.notebooks()


def cells(path: Path, kind: str) -> list[dict]:
    return [cell for cell in tool.read(path) if cell["cell_type"] == kind]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} == {"first_audit", "three_models", "linkage_to_gate"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_from_top_to_bottom_without_errors(path):
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [each for cell in code for each in cell["outputs"] if each["output_type"] == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_names_no_machine(path):
    assert tool.size_of(tool.read(path)) < tool.MOST_OUTPUT
    text = path.read_text(encoding="utf-8")
    assert not re.search(r'"(/tmp|/home|/root|/srv|/opt)/|stderr', text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_picture_of_a_notebook_has_a_text_for_those_who_do_not_see_it(path):
    drawn = [cell for cell in cells(path, "code") if "image/png" in json.dumps(cell["outputs"])]
    assert all(cell["metadata"].get("alt") for cell in drawn)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_our_names_in_a_notebook_exist(path):
    for cell in cells(path, "code"):
        for node in ast.walk(ast.parse(source(cell))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                package = {"b3": mlflow_b3, "linkage": linkage}.get(node.value.id)
                assert package is None or hasattr(package, node.attr), node.attr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(path):
    for cell in cells(path, "markdown"):
        for link in re.findall(r"\]\(([^)\s]+)\)", source(cell)):
            assert link.startswith("https:") or (path.parent / link.split("#")[0]).exists(), link


def test_a_page_shows_what_a_notebook_printed_and_drew(tmp_path):
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["1.0\n"]},
        {"output_type": "display_data", "data": {"image/png": "iVBOR\n"}},
        {"output_type": "execute_result", "data": {"text/html": ["<p>a</p>\n", "\n", "<p>b</p>"]}},
    ]
    code = {
        "cell_type": "code",
        "source": ["print(1.0)"],
        "metadata": {"alt": "a line"},
        "outputs": outputs,
    }
    words = {"cell_type": "markdown", "source": ["# Title\n", "[terms](../docs/glossary.md)"]}
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": [words, code]}), encoding="utf-8")
    page = tool.page_of(path)
    assert tool.title_of(path) == "Title"
    assert "[terms](../glossary.md)" in page
    assert "```python\nprint(1.0)\n```" in page
    assert "```text\n1.0\n```" in page
    assert '<img alt="a line" src="data:image/png;base64,iVBOR">' in page
    assert "<p>a</p>\n<p>b</p>" in page
