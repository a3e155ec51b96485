"""Shows the examples of the repository as pages, and lets links to them lead there."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from notebooks import notebooks, page_of, title_of

EXAMPLES = Path(__file__).parents[2] / "examples"
LINK = re.compile(r"\]\((?P<up>(?:\.\./)*)\.\./examples/(?P<name>\w+)\.(?:py|ipynb)\)")
#: From one notebook to another.
BESIDE = re.compile(r"\]\((?P<name>\w+)\.ipynb\)")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each example, and one that lists them."""
    lines = ["# Examples\n", "Notebooks and programs in the folder `examples` of the repository.\n"]
    lines.append("## Notebooks\n")
    for path in notebooks():
        lines.append(f"- [{title_of(path)}]({path.stem}.md)")
        files.append(File.generated(config, f"examples/{path.stem}.md", content=page_of(path)))
    lines.append("\n## Programs\n")
    for path in sorted(EXAMPLES.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        first = (ast.get_docstring(ast.parse(source)) or path.stem).partition("\n")[0]
        lines.append(f"- [`{path.name}`]({path.stem}.md): {first}")
        text = f"# {path.name}\n\n```python\n{source}```\n"
        files.append(File.generated(config, f"examples/{path.stem}.md", content=text))
    files.append(File.generated(config, "examples/index.md", content="\n".join(lines) + "\n"))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to the files of the repository lead to their pages."""
    return BESIDE.sub(r"](\g<name>.md)", LINK.sub(r"](\g<up>examples/\g<name>.md)", markdown))
