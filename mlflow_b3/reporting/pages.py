"""HTML pages that need no network, no scripts and no other files."""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mlflow_b3.reporting.palette import COLOURS
from mlflow_b3.reporting.svg import STYLE

FOLDER = "mlflow_b3.reporting"


def page(template: str, **values: Any) -> str:
    """Return a page made of one of our templates; every value is text unless it is `Markup`."""
    style = Markup(_style())
    return _templates().get_template(template).render(style=style, **values)


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader(FOLDER, "."),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )


@cache
def _style() -> str:
    return COLOURS + STYLE + files(FOLDER).joinpath("report.css").read_text(encoding="utf-8")
