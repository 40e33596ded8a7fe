"""Every code block of the documentation is run: by the site's build or by a test; or it says why it is not."""

from __future__ import annotations

import re

import pytest

from tests.pages import ROOT, page, tool

run_blocks = tool("run_blocks")

TESTED = {
    "README.md": "e2e/test_docs.py",
    "docs/algorithms.md": "learning/test_algorithms.py",
    "docs/before-you-train.md": "cli/test_model_selection_page.py and plugins/prompts/test_prompts_page.py",
    "docs/frameworks.md": "plugins/test_frameworks_page.py",
    "docs/judges.md": "plugins/judges/test_judges_page.py",
    "docs/loggers.md": "plugins/loggers/test_loggers_page.py",
    "docs/models.md": "plugins/local/test_starter.py",
    "docs/online.md": "plugins/online/test_online_page.py and test_runner_page.py",
    "docs/plan.md": "estimate/test_plan_page.py",
    "docs/plugins.md": "plugins/test_plugins_page.py",
    "docs/python.md": "api/test_python_page.py",
    "docs/readers.md": "plugins/readers/test_readers_page.py",
}
"""The test that runs the blocks of a page which the build does not run."""
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
PROGRAM = re.compile(
    r"^(?:\$ )?(?:\w+=\S+ )?(?:ajet|pip|uv|python|make|ssh|curl|export|docker) ", re.MULTILINE
)


def is_code(block: object) -> bool:
    """Whether a block could be run: Python, or commands."""
    return block.language in ("python", "console", "bash", "sh") or (
        not block.language and PROGRAM.search(block.code) is not None
    )


def of_the_build(blocks: list) -> list:
    """The blocks that the build runs, and the files that it writes for them."""
    return [b for b in blocks if b.is_run or (b.file and not b.reason and any(c.is_run for c in blocks))]


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_run_or_says_why_not(name: str) -> None:
    text = page(name)
    blocks = list(run_blocks.blocks(text))
    run = of_the_build(blocks)
    left = [b for b in blocks if is_code(b) and not b.reason and b not in run]
    if name not in TESTED:
        places = [f"{name}:{text.count(chr(10), 0, b.start)}" for b in left]
        assert not places, f"{places}: run it, or write <!-- not run: why --> above it"
