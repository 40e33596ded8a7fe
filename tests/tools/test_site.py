"""The documentation site in a browser: diagrams are drawn, and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pages import ROOT, tool
from tests.plugins.studio import browser

pytest.importorskip(
    "material", reason="the libraries of the site are not installed; `make docs` installs them"
)
pytestmark = pytest.mark.slow
DIAGRAM = "div.mermaid"
AS_TEXT = "pre.mermaid"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with what pages show; their commands are not run."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "DOCS_RUN": "no"}, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def chromium(site: Path) -> Iterator[Any]:
    with browser.chromium() as found:
        yield found


def opened(chromium: Any, site: Path, name: str, **options: Any) -> tuple[Any, list[str]]:
    """A page of the site, and what it has asked other places for."""
    page = chromium.new_context(**options).new_page()
    foreign: list[str] = []
    page.on(
        "request", lambda request: None if request.url.startswith("file:") else foreign.append(request.url)
    )
    page.goto((site / name).as_uri())
    return page, foreign


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["online.html", "tracker.html"])
def test_diagrams_are_drawn_without_another_host(chromium: Any, site: Path, name: str, scheme: str) -> None:
    if "assets/mermaid.min.js" not in (site / name).read_text():
        pytest.skip("npm could not get mermaid")
    page, foreign = opened(chromium, site, name, color_scheme=scheme)
    page.wait_for_selector(DIAGRAM, timeout=browser.PATIENCE)
    page.wait_for_function(
        f"[...document.querySelectorAll('{DIAGRAM}')].every(drawn => drawn.getBoundingClientRect().height > 100)"
    )
    assert page.locator(DIAGRAM).count() == 2 and page.locator(AS_TEXT).count() == 0
    assert foreign == []


def test_without_their_script_diagrams_stay_text_which_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from mkdocs.config import load_config

    hooks = tool("docs_site")
    config = load_config(str(ROOT / "mkdocs.yml"))
    monkeypatch.setattr(hooks, "mermaid", lambda: None)
    hooks.on_config(config)
    assert "custom_fences" not in config.mdx_configs.get("pymdownx.superfences", {})


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["index.html", "start.html", "coming-from.html"])
def test_no_page_is_wider_than_its_window(chromium: Any, site: Path, name: str, width: int) -> None:
    page, foreign = opened(chromium, site, name, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert foreign == []


def test_a_console_is_copied_without_prompts_and_outputs(chromium: Any, site: Path) -> None:
    page, _ = opened(chromium, site, "start.html")
    copied = [block.get_attribute("data-copy") for block in page.locator("[data-copy]").all()]
    assert "python make_tasks.py\najet run job.yaml" in copied
    assert any("\\\n    --steps 20" in text for text in copied)
