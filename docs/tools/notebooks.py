"""Runs the notebooks in examples/, and shows them as pages: python docs/tools/notebooks.py [--write] [NAME …].

Without --write the notebooks are run as they would be by a reader, and nothing is kept: they must end without an
error, print about what is stored, and stay small. With --write what they print is stored in them.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
#: A notebook is read in a browser and kept in Git: no more bytes of output than this.
MOST_OUTPUT = 120_000
#: Seconds that one cell may take on a busy machine.
TIMEOUT = 600
#: Links to the documentation, as they are in the folder of the examples.
LINK = re.compile(r"\]\(\.\./docs/")
#: What pandas adds to every table.
STYLE = re.compile(r"<style scoped>.*?</style>\n?", re.DOTALL)
KEPT = ("text/html", "image/png", "text/plain")

Cell = dict[str, Any]


def notebooks() -> list[Path]:
    """Return the notebooks of the repository."""
    return sorted(EXAMPLES.glob("*.ipynb"))


def read(path: Path) -> list[Cell]:
    """Return the cells of a notebook."""
    cells: list[Cell] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def title_of(path: Path) -> str:
    """Return the heading of a notebook."""
    return "".join(read(path)[0]["source"]).partition("\n")[0].removeprefix("# ")


# --- Pages


def page_of(path: Path) -> str:
    """Return a notebook as Markdown, with what it printed and drew."""
    parts = []
    for cell in read(path):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(LINK.sub("](../", source))
            continue
        parts.append(f"```python\n{source}\n```")
        described = cell["metadata"].get("alt", "")
        parts += [shown for each in cell["outputs"] if (shown := _output(each, described))]
    note = f"*This page is the notebook `examples/{path.name}` of the repository.*"
    return "\n\n".join([parts[0], note, *parts[1:]]) + "\n"


def _output(output: Cell, described: str) -> str:
    """Return what a cell printed or drew; `described` is for those who do not see the picture."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output["data"]
    if "image/png" in data:
        png = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="{described}" src="data:image/png;base64,{png}">'
    if "text/html" in data:
        # a blank line would end the block of HTML for Markdown
        html = re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]))
        return f'<div class="notebook-output">\n{html}\n</div>'
    return f"```text\n{''.join(data['text/plain'])}\n```"


# --- Running


def run(path: Path) -> tuple[Any, float]:
    """Run a notebook in a kernel of its own; return it with its outputs, and the seconds it took."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        coalesce_streams=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(EXAMPLES)}},
    )
    started = time.monotonic()
    client.execute()
    return _tidied(notebook), time.monotonic() - started


def _tidied(notebook: Any) -> Any:
    """Keep what a reader sees: no times, no ids of cells that change, one form of each output."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        # libraries log there, with times and paths
        cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
        for output in cell.outputs:
            if "data" in output:
                best = next(kind for kind in KEPT if kind in output.data)
                text = output.data[best]
                output.data = {best: STYLE.sub("", text) if best == "text/html" else text}
                output.metadata = {}
    return notebook


def kinds(cells: list[Cell]) -> list[list[str]]:
    """Return which kinds of output each cell has."""
    return [
        [next(iter(output.get("data", {output["output_type"]: 0}))) for output in cell["outputs"]]
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def size_of(cells: list[Cell]) -> int:
    """Return the characters of all outputs."""
    return sum(len(json.dumps(cell["outputs"])) for cell in cells if cell["cell_type"] == "code")


def main() -> None:
    """Run the notebooks, and say what is wrong with them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="store what the notebooks print")
    parser.add_argument("names", nargs="*", help="names of notebooks; by default all")
    given = parser.parse_args()
    problems = []
    for path in notebooks():
        if given.names and path.stem not in given.names:
            continue
        import nbformat

        notebook, seconds = run(path)
        cells, before = json.loads(nbformat.writes(notebook))["cells"], read(path)
        print(f"{path.name}: {seconds:.0f} s, {size_of(cells):,} characters of output")
        if size_of(cells) > MOST_OUTPUT:
            problems.append(f"{path.name} prints more than {MOST_OUTPUT:,} characters")
        if given.write:
            path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        elif kinds(cells) != kinds(before):
            problems.append(f"{path.name} prints other things than are stored in it: use --write")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
