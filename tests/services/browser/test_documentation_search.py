"""The documentation as files: its search works without a server, and loads nothing from elsewhere."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if find_spec("mkdocs") is None:
        pytest.skip("the pages are built with the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("start", ["index.html", "howto/ci-gate.html"])
def test_the_search_works_in_files(site, chromium, start):
    page = chromium.new_page()
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    page.goto((site / start).as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("tipping point")
    link = page.locator(".md-search-result__link").first
    link.wait_for(state="attached")
    assert link.get_attribute("href").startswith("file:")
    assert [each for each in loaded if not each.startswith(("file:", "data:", "blob:"))] == []
    page.close()
