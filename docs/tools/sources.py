"""Shows the examples of the repository as pages, and lets links to them lead there."""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

EXAMPLES = Path(__file__).parents[2] / "examples"
LINK = re.compile(r"\]\((?P<up>(?:\.\./)*)\.\./examples/(?P<name>\w+)\.py\)")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each example, and one that lists them."""
    lines = ["# Examples\n", "Programs in the folder `examples` of the repository.\n"]
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
    return LINK.sub(r"](\g<up>examples/\g<name>.md)", markdown)
