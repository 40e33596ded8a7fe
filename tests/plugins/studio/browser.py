"""Debian's chromium for the tests of the page, and what they ask of a page in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from . import runs

AXE = Path(__file__).resolve().parents[2] / "node" / "node_modules" / "axe-core" / "axe.min.js"
MOST_NODES = 2000
SIZE = {"width": 1280, "height": 800}
PATIENCE = 60_000
"""Milliseconds for something to appear on a busy machine."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A block with the browser; the test is skipped where there is none. While it is open, `asyncio.run` does not work in
    this thread."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = _program()
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        try:
            yield browser
        finally:
            browser.close()


def _program() -> str:
    """The path of chromium; installed, where this process may."""
    for attempt in range(2):
        if found := shutil.which("chromium"):
            return found
        if attempt or os.geteuid() or not shutil.which("apt-get"):
            break
        # Another process of these tests may be installing it: wait for that.
        wait = ["-o", "DPkg::Lock::Timeout=300"]
        install = ["apt-get", *wait, "install", "-y", "--no-install-recommends", "chromium"]
        subprocess.run(
            install, check=False, capture_output=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
    pytest.skip("chromium is not installed (Debian's package `chromium`)")


class Reader:
    """A page of a studio, as its reader uses it. ``faults`` are errors of scripts, and what the Content-Security-Policy forbade."""

    studio: runs.Studio

    def __init__(self, page: Any) -> None:
        self.page = page
        self.faults: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._console)
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    @contextmanager
    def at(self, studio: runs.Studio) -> Iterator[Reader]:
        """A block with this reader at a studio, which must end without faults. The next block at the same one goes on in its page,
        as to load it anew costs as much as a test; unless the page has something to remember."""
        self.studio = studio
        self.faults.clear()
        self.page.set_viewport_size(SIZE)
        self.page.emulate_media(color_scheme="light")
        try:
            yield self
        finally:
            self.page.unroute_all()
            if self._is_there and self.page.evaluate("localStorage.length"):
                self.page.evaluate("localStorage.clear()")
                self.page.goto("about:blank")
            elif self._is_there:
                self.open("/run?run=nowhere")  # which follows no run
        assert self.faults == []

    @property
    def _is_there(self) -> bool:
        return str(self.page.url).startswith(f"{self.studio.url}/")

    def _console(self, message: Any) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.faults.append(message.text)

    def load(self, path: str) -> None:
        """Open an address, as from a bookmark; the first one with the token, as the program prints it."""
        token = "" if self._is_there else f"{'&' if '?' in path else '?'}token={runs.TOKEN}"
        self.page.goto(self.studio.url + path + token)
        self.settled()

    def open(self, path: str) -> None:
        """Open an address, as by a link where the page is there already."""
        if not self._is_there:
            self.load(path)
            return
        self.page.evaluate(
            """path => {
                const link = Object.assign(document.createElement("a"), { href: path });
                document.body.append(link);
                link.click();
                link.remove();
            }""",
            path,
        )
        self.settled()

    def settled(self) -> None:
        """Wait until the view is there."""
        self.page.wait_for_selector("main[aria-busy=false] h1")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def sees(self, text: str, within: str = "main") -> None:
        """Wait for a text."""
        self.page.locator(within).get_by_text(text).first.wait_for()

    def arrives(self, part: str) -> None:
        """Wait for an address that contains a part, and its view."""
        self.page.wait_for_url(lambda url: part in url)
        self.settled()

    def focused(self) -> str:
        """The text of what has the focus."""
        return str(self.page.evaluate("document.activeElement.textContent"))

    def nodes(self) -> int:
        """Nodes of the document: elements, texts, comments."""
        script = """() => {
            const walker = document.createTreeWalker(document, NodeFilter.SHOW_ALL);
            let count = 1;
            while (walker.nextNode()) count += 1;
            return count;
        }"""
        return int(self.page.evaluate(script))

    def too_wide(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(
            self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )

    def violations(self, *rules: str) -> list[str]:
        """What axe calls serious or critical: of all its rules, or only of these."""
        if not AXE.exists():
            pytest.skip("the npm package axe-core is not installed: npm install --prefix tests/node")
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
        found = self.page.evaluate("(options) => axe.run(options)", options)
        return [
            f"{one['id']}: {one['help']}: {node['html'][:200]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]
