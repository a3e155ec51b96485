"""Turns formulas into MathML when pages are built, so that no script has to be loaded to read them."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_page_content(content: str, **_: Any) -> str:
    """Replace every formula of a page."""
    made = FORMULA.sub(_mathml, content)
    if 'class="arithmatex"' in made:
        raise ValueError("a formula was not recognised")
    return made


def _mathml(formula: re.Match[str]) -> str:
    tex = html.unescape(formula["tex"]).strip()
    if formula["tag"] == "span":
        return str(convert(tex))
    return f'<div class="formula">{convert(tex, display="block")}</div>'
