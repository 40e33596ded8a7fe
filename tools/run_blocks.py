"""Runs the commands of a documentation page, and puts what they print into the page.

A page is worked through from its top, in an empty folder. A block that follows a file name in backticks and a colon is
written to this file. The lines after ``$ `` of a ``console`` block are run in a shell; the lines that follow are what they
print. A line ``...`` stands for lines that are left out. A comment ``<!-- not run: REASON -->`` keeps the next block from
being written and run, and ``<!-- files: FOLDER -->`` copies the files of a folder of the repository.

The site gets what was printed. The page must show the same, but for its numbers, as times and versions differ between
machines.

A training of minutes is shortened: ``<!-- shortened: ARGUMENTS -->`` adds arguments to the last command of the next block,
such as fewer steps, and ``<!-- shortened -->`` stands above commands that look at such a run. The site then gets what the
page shows. Its words are compared, too, but for lines with an arrow, which say what the whole training changed.

    python tools/run_blocks.py docs/start.md      # run all in full, and put what is printed now into the page
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
SECONDS = 1800
"""The most time that a command may take."""
COLUMNS = 88
OMITTED = "..."

_BLOCK = re.compile(
    r"^(?:<!-- files: (?P<folder>\S+) -->\n)?(?:<!-- not run: (?P<reason>.+?) -->\n\n?)?"
    r"(?:<!-- (?P<shortened>shortened)(?:: (?P<fewer>.+?))? -->\n\n?)?(?:^`(?P<file>[\w./-]+)`:\n\n)?"
    r"^(?P<fence>`{3,})(?P<language>\w*)\n(?P<code>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)


class BlockFailed(Exception):
    """A command failed, or printed something else than its page shows."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    code: str
    file: str
    """The file of which it is the content, or ""."""
    folder: str
    """The folder of the repository whose files it needs, or ""."""
    reason: str
    """Why it is not run, or ""."""
    shortened: bool
    """Whether the build runs less than the page shows."""
    fewer: str
    """What the build then adds to the last command, or ""."""
    start: int
    """Where its code begins in the page."""

    @property
    def is_run(self) -> bool:
        return self.language == "console" and not self.reason


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page, from its top."""
    for found in _BLOCK.finditer(text):
        named = {
            name: found[name] or "" for name in ("language", "code", "file", "folder", "reason", "fewer")
        }
        yield Block(**named, shortened=found["shortened"] is not None, start=found.start("code"))


def run_page(text: str, name: str, *, update: bool = False) -> str:
    """The page with what its commands print now; with ``update``, also where it shows something else. Raises BlockFailed."""
    if not any(block.is_run for block in blocks(text)):
        return text
    parts = []
    end = 0
    with tempfile.TemporaryDirectory(prefix="ajet-docs-") as made:
        folder = Path(made).resolve() / Path(name).stem
        folder.mkdir()
        for block in blocks(text):
            if block.folder:
                shutil.copytree(ROOT / block.folder, folder, dirs_exist_ok=True)
            if block.file and not block.reason:
                path = folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.code, encoding="utf-8")
            if block.is_run:
                place = f"{name}:{text.count(chr(10), 0, block.start) + 1}"
                parts += [text[end : block.start], run_block(block, folder, place, update)]
                end = block.start + len(block.code)
    return "".join([*parts, text[end:]])


def run_block(block: Block, folder: Path, place: str, update: bool) -> str:
    """The code of a ``console`` block with what its commands print in the folder."""
    shortened = block.shortened and not update
    commands = list(_COMMAND.finditer(block.code))

    def printed(found: re.Match[str]) -> str:
        command = found["command"]
        last = found.start() == commands[-1].start()
        real = output(f"{command} {block.fewer}" if shortened and last else command, folder, place)
        shown = found["shown"].splitlines()
        if shortened:
            fits = fitted([OMITTED if "→" in line else line for line in shown], real) is not None
            lines = shown if fits else None
        else:
            lines = real if update and shown == [OMITTED] else fitted(shown, real)
        if lines is None and not update:
            raise BlockFailed(
                f"{place}: `{command}` prints something else than the page shows. See what differs with "
                f"`python tools/run_blocks.py {place.partition(':')[0]}` and git diff. It prints:\n"
                + "\n".join(real)
            )
        return "".join(f"{line}\n" for line in [f"$ {command}", *(real if lines is None else lines)])

    return _COMMAND.sub(printed, block.code)


def output(command: str, folder: Path, place: str) -> list[str]:
    """What a command prints in the folder, without the names of this machine's folders."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",  # bars appear only where a model must be built first
        # What a page installs goes into a folder beside its own, and nothing else is fetched or built apart.
        "PIP_TARGET": str(folder.parent / "installed"),
        "PYTHONPATH": str(folder.parent / "installed"),
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's name for "on"
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    for name in ("FORCE_COLOR", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BlockFailed(f"{place}: `{command}` ended with exit code {done.returncode}:\n{done.stdout}")
    home = "/home/ada"
    text = done.stdout.replace(str(folder.parent), home).replace(str(BIN.parent), f"{home}/.venv")
    return [line.rstrip() for line in text.splitlines()]


def fitted(shown: list[str], real: list[str]) -> list[str] | None:
    """The real lines in place of the shown ones, without those that the page leaves out; None if they do not fit."""
    parts: list[list[str]] = [[]]
    for line in shown:
        if line == OMITTED:
            parts.append([])
        else:
            parts[-1].append(line)
    first, *others = parts
    if not _alike(first, real[: len(first)]) or (not others and len(first) != len(real)):
        return None
    result = real[: len(first)]
    at = len(first)
    for number, part in enumerate(others, start=1):
        last = number == len(others)
        starts = [len(real) - len(part)] if last and part else range(at, len(real) - len(part) + 1)
        found = next((s for s in starts if s >= at and _alike(part, real[s : s + len(part)])), None)
        if found is None:
            return None
        result += [OMITTED, *real[found : found + len(part)]]
        at = found + len(part)
    return result


def _alike(shown: list[str], real: list[str]) -> bool:
    return [_without_numbers(line) for line in shown] == [_without_numbers(line) for line in real]


_NUMBER = re.compile(r"\b[0-9a-f]{12}\b|\d+(?:[.,:]\d+)*(?:e-?\d+)?|[▁-█]+")
"""A number, the id of a task, or a curve."""


def _without_numbers(line: str) -> str:
    """The line with all numbers and gaps alike, as these differ between machines and versions; ``p < 0.001`` is a number, too."""
    return re.sub(r"\s+", " ", _NUMBER.sub("0", line)).replace("p < 0", "p = 0").strip()


def main(names: list[str]) -> None:
    """Update pages."""
    for name in names:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        path.write_text(run_page(text, name, update=True), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
