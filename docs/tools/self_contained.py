"""Fails the build when a page would load anything from another host."""

from html.parser import HTMLParser
from typing import Any

#: Attributes through which a page loads something by itself; links to follow are `href` of `a`.
LOADING = {"src", "srcset", "data", "poster"}
HARMLESS_RELATIONS = {"canonical", "next", "prev"}


class _Assets(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        loaded = [value for name, value in given.items() if name in LOADING]
        if tag == "link" and given.get("rel") not in HARMLESS_RELATIONS:
            loaded.append(given.get("href", ""))
        self.found += [value for value in loaded if value.startswith(("http:", "https:", "//"))]


def external_assets(page: str) -> list[str]:
    """Return the addresses on other hosts that a page loads when it is opened."""
    parser = _Assets()
    parser.feed(page)
    return parser.found


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that is not self-contained."""
    from mkdocs.exceptions import PluginError

    if found := external_assets(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {', '.join(found)}")
    return output
