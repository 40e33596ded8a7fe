"""Many programs of the judge `code` in one sandbox, each in a process of its own: a sandbox takes longer than most programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from ajet_judges import Limits, code
from ajet_judges.sandbox import Ran, run_python

ALL_OF_THEM = """
import asyncio, doctest, json, os, runpy, sys, unittest  # most programs need them

def run(folder):
    os.chdir(folder)
    sys.path[0] = os.getcwd()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    os.closerange(3, 256)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    runpy.run_path("main.py", run_name="__main__")

def text(folder, name):
    with open(f"{folder}/{name}", errors="replace") as file:
        return file.read()

ran = []
for folder in sorted(name for name in os.listdir() if name.isdigit()):
    child = os.fork()
    if not child:
        run(folder)
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ran.append((folder, (code, text(folder, "stdout"), text(folder, "stderr"))))
print(json.dumps(dict(ran)))
"""
Verdict = TypeVar("Verdict")
LIMITS = Limits(seconds=120, cpu_seconds=60, output=4096)


class Together:
    """In place of `run_python`: programs that are asked for at once run in one sandbox, one after the other."""

    def __init__(self) -> None:
        self._asked: list[tuple[Mapping[str, str], str]] = []
        self._running: asyncio.Task[list[Ran]] | None = None

    async def run_python(self, sources: Mapping[str, str], *, input: str, **_: Any) -> Ran:
        place = len(self._asked)
        self._asked.append((sources, input))
        self._running = running = self._running or asyncio.ensure_future(self._all())
        return (await running)[place]

    async def _all(self) -> list[Ran]:
        await asyncio.sleep(0.1)  # the judges that are not there yet are of the next sandbox
        asked, self._asked, self._running = self._asked, [], None
        files = {
            f"{number}/{name}": text
            for number, (sources, input) in enumerate(asked)
            for name, text in {**sources, "stdin": input}.items()
        }
        ran = await run_python({**files, "main.py": ALL_OF_THEM}, limits=LIMITS)
        assert ran.ok, ran.describe()
        found = json.loads(ran.stdout)
        return [Ran(*_ended(found[str(number)])) for number in range(len(asked))]


def _ended(found: Sequence[Any]) -> tuple[Any, ...]:
    code, stdout, stderr = found
    return code, None, stdout, stderr, 0


def together(judgements: Sequence[Coroutine[Any, Any, Verdict]]) -> list[Verdict]:
    """The verdicts of the judge `code`, whose programs run in one sandbox."""

    async def all_of_them() -> list[Verdict]:
        return await asyncio.gather(*judgements)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "run_python", Together().run_python)
        return asyncio.run(all_of_them())
