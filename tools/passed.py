"""Whether the tests of an environment of their own have passed with these sources, which makes it needless to run them again.

    python tools/passed.py verl                 # exit code 0 if they have; CI_ALL=1: always 1
    python tools/passed.py verl --record        # they have just passed: make test-verl does this

`tests/plugins/NAME/passed` has the checksum of all that these tests may depend on, and belongs to the commit.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ("core", "examples/math", "pyproject.toml", "constraints.txt", "Makefile")
"""Files and folders on which the tests of each environment depend, beside its plugins, its page of docs/ and the tests themselves."""


def main() -> None:
    """Compare or record the checksum."""
    name, *options = sys.argv[1:]
    record, found = ROOT / "tests" / "plugins" / name / "passed", checksum(name)
    if options == ["--record"]:
        record.write_text(found + "\n", encoding="utf-8")
        return
    known = record.read_text(encoding="utf-8").strip() if record.exists() else ""
    if found != known or os.environ.get("CI_ALL"):
        sys.exit(1)
    print(
        f"The tests with {name} are not run: they have passed with the same sources (tools/passed.py). CI_ALL=1 runs them."
    )


def checksum(name: str) -> str:
    """Of names and contents of all files on which the tests with ``name`` may depend, of those that git tracks."""
    makefile = (ROOT / "Makefile").read_text()
    (plugins,) = re.findall(rf"^OF_{name.upper()} := (.+)$", makefile, re.MULTILINE)
    (command,) = re.findall(rf"^test-{name}:.*\n(\t.+ pytest .+)$", makefile, re.MULTILINE)
    tests = re.findall(r"\btests/\S+", command)
    tracked = _git(
        *("ls-files", "--", *SHARED, f"docs/{name}.md", *(f"plugins/{one}" for one in plugins.split())),
        *tests,
        *imported(path for folder in tests for path in _git("ls-files", "--", f"{folder}/*.py")),
    )
    total = hashlib.sha256()
    for path in sorted(path for path in tracked if not path.endswith("/passed")):
        content = (ROOT / path).read_bytes()
        total.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
    return total.hexdigest()


def imported(files: Iterable[str]) -> set[str]:
    """The files of tests/ that these import, and those that pytest reads with them."""
    reached: set[str] = set()
    waiting = {*files, "tests/conftest.py", "tests/elsewhere.py", "tests/plugins/conftest.py"}
    while waiting:
        file = waiting.pop()
        if (ROOT / file).is_file() and file not in reached:
            reached.add(file)
            waiting |= {f"{module.replace('.', '/')}.py" for module in _modules(file)}
    return reached


def _modules(file: str) -> Iterator[str]:
    """What a file may import of tests/: each name may be that of a module."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            package = file.split("/")[: -node.level] if node.level else []
            module = ".".join([*package, *([node.module] if node.module else [])])
            if module.partition(".")[0] == "tests":
                yield from (module, *(f"{module}.{name.name}" for name in node.names))


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


if __name__ == "__main__":
    main()
