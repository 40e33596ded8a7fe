"""The tests of what differs from the main branch, as arguments for pytest: `make test-changed`.

Plugins never import each other, so those that did not change are not tested. What every test uses, such as `tests/conftest.py`
or `pyproject.toml`, counts as a change of everything.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = "tests/plugins"


def main() -> None:
    """Print the tests' folders and files, one a line; nothing if no test depends on what changed."""
    base = sys.argv[1] if len(sys.argv) > 1 else _base()
    print(*tests_of(_changed(base)), sep="\n")


def tests_of(changed: Iterable[str]) -> list[str]:
    """The tests of changed files, which are named from the root of the repository."""
    found = set()
    for name in changed:
        match Path(name).parts:
            case ("core", *_):
                found |= core_tests()
            case ("plugins", plugin, *_):
                found.add(f"{PLUGINS}/{plugin}")
            case ("examples", example, _, *_):
                own = [str(p.relative_to(ROOT)) for p in ROOT.glob(f"tests/examples/test_{example}*.py")]
                found |= set(own or ["tests/examples"])
            case ("tests", "plugins", plugin, _, *_):
                found.add(f"{PLUGINS}/{plugin}")
            case ("tests", area, *rest) if rest and area != "plugins":
                found.add(f"tests/{area}")
            case ("tests", *_) | ("pyproject.toml" | "constraints.txt",):
                return ["tests"]
            case ("tools" | "docs", *_):
                found.add("tests/tools")
    return sorted(name for name in found if (ROOT / name).exists())


def core_tests() -> set[str]:
    """The folders of tests that are not those of plugins."""
    folders = {p.parent.relative_to(ROOT).parts[1] for p in ROOT.glob("tests/*/**/test_*.py")}
    return {f"tests/{name}" for name in folders - {"plugins"}}


def _base() -> str:
    """Where this branch left the main one; on the main branch itself its last pushed commit, or else HEAD."""
    for branch in ("origin/main", "main"):
        found = _git("merge-base", "HEAD", branch)
        if found:
            return found[0]
    return "HEAD"


def _changed(base: str) -> list[str]:
    """Files that differ from a commit, and those that git does not know yet."""
    return [*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


if __name__ == "__main__":
    main()
