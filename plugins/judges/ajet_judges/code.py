"""The `code` judge: runs the response's Python program against the task's tests, in a sandbox."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

from pydantic import Field, PrivateAttr

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet_judges.sandbox import Isolation, Limits, Ran, run_python
from ajet_judges.text import response_text

_BLOCK = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
CALLS = """\
import json, sys
from solution import *
for call in json.load(sys.stdin):
    try:
        value = eval(call)
        try:
            result = json.dumps(value)
        except (TypeError, ValueError):
            result = json.dumps(repr(value))
    except Exception as error:
        result = "error: " + type(error).__name__
    print("\\n" + result, flush=True)
"""
ASSERTS = """\
import sys
token = sys.stdin.readline()
import solution
space = vars(solution)
exec(compile(open("tests.py").read(), "tests.py", "exec"), space)
print("\\n" + token, flush=True)
"""


class Code(Judge):
    """Runs the episode's Python program against the task's tests, in a sandbox without network or files.

    The program is what the workflow has collected (`output.files`): the tests can import its modules, and those with stdin run its
    `main.py`. Otherwise it is the last Python block in the response, or the whole response if it has no block. The tests are a
    list of cases, ``{input: …, output: …}`` (stdin and stdout) or ``{call: "add(2, 3)", result: 5}``, whose expected
    values never enter the sandbox; or a text of ``assert`` statements, which a program can read and cheat.
    """

    name = "code"

    tests: str = Field("tests", description="Key of the task's metadata that contains the tests.")
    partial: bool = Field(
        False, description="Reward is the share of passed cases; otherwise 1 if all pass, 0 if not."
    )
    limits: Limits = Field(Limits(), description="Limits of one run.")
    isolation: Isolation = Field(
        "full",
        description="full: Linux namespaces, or an error without them; limits: programs can read your files.",
    )
    packages: bool = Field(False, description="Let programs import packages of AgentJet's environment.")
    concurrency: int = Field(4, ge=1, description="Maximum concurrent runs.")
    _slots: asyncio.Semaphore | None = PrivateAttr(None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Limit concurrent runs while a job runs."""
        async with super().open():
            self._slots = asyncio.Semaphore(self.concurrency)
            try:
                yield self
            finally:
                self._slots = None

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        if self._slots is None:
            async with self.open():
                return await self.judge(task, output, episode)
        tests = self._tests(task)
        sources = sources_of(output)
        if not any(map(str.strip, sources.values())):
            return JudgeOutput(0.0, False, {"passed": 0.0})
        passed, runs = await self._passed(sources, tests)
        share = sum(passed) / len(passed)
        metrics = {"passed": share} | {f"stopped/{run.cause}": 1.0 for run in runs if run.cause}
        return JudgeOutput(share if self.partial else float(all(passed)), all(passed), metrics)

    async def _passed(
        self, sources: Mapping[str, str], tests: str | Sequence[Mapping[str, Any]]
    ) -> tuple[list[bool], list[Ran]]:
        if isinstance(tests, str):
            # main.py takes this from stdin before the program starts, and prints it after all tests have passed.
            token = secrets.token_hex(16)
            run = await self._run({**sources, "main.py": ASSERTS, "tests.py": tests}, token)
            return [run.ok and run.stdout.rstrip().endswith(f"\n{token}")], [run]
        calls = [case for case in tests if "call" in case]
        runs = []
        printed: list[str] = []
        if calls:
            stdin = json.dumps([case["call"] for case in calls])
            runs.append(await self._run({**sources, "main.py": CALLS}, stdin))
            printed = [line for line in runs[0].stdout.split("\n") if line][-len(calls) :]
        passed = [
            len(printed) == len(calls) and _equal(printed[i], case["result"]) for i, case in enumerate(calls)
        ]
        others = [case for case in tests if "call" not in case]
        more = await asyncio.gather(*(self._run(sources, str(c["input"])) for c in others))
        passed += [
            run.ok and _lines(run.stdout) == _lines(str(case["output"]))
            for run, case in zip(more, others, strict=True)
        ]
        return passed, [*runs, *more]

    async def _run(self, sources: Mapping[str, str], stdin: str) -> Ran:
        assert self._slots is not None
        async with self._slots:
            return await run_python(
                sources, input=stdin, limits=self.limits, isolation=self.isolation, packages=self.packages
            )

    def _tests(self, task: Task) -> str | Sequence[Mapping[str, Any]]:
        tests = task.metadata.get(self.tests)
        place = f"task {task.id!r}: metadata[{self.tests!r}]"
        if isinstance(tests, str) and tests.strip():
            return tests
        if not isinstance(tests, list | tuple) or not tests:
            found = "missing" if tests is None else "empty" if not tests else f"a {type(tests).__name__}"
            raise ValueError(f"{place} is {found}; the judge needs a list of cases or a text of asserts")
        for i, case in enumerate(tests):
            if not isinstance(case, Mapping) or not (
                {"call", "result"} <= set(case) or {"input", "output"} <= set(case)
            ):
                raise ValueError(f"{place}[{i}] needs `call` and `result`, or `input` and `output`")
        return tests


def sources_of(output: WorkflowOutput) -> dict[str, str]:
    """The texts of an episode's program by relative path; it has a `solution.py` and a `main.py`. Collected files that are no
    text are left out."""
    if not output.files:
        return dict.fromkeys(("solution.py", "main.py"), program_in(response_text(output)))
    sources = {"solution.py": "", "main.py": "raise SystemExit('the agent left no main.py')"}
    for name, path in output.files.items():
        with suppress(UnicodeDecodeError):
            sources[name] = path.read_text(encoding="utf-8")
    return sources


def program_in(response: str) -> str:
    """The last block of Python, or without a language, in a text; the text itself if it has no blocks."""
    blocks = _BLOCK.findall(response)
    python = [code for language, code in blocks if language.lower() in ("", "py", "python", "python3")]
    return python[-1] if python else "" if blocks else response


def _equal(printed: str, result: Any) -> bool:
    try:
        value = json.loads(printed)
    except (ValueError, RecursionError):  # a program can print anything
        return False
    expected = json.loads(json.dumps(result))
    return bool(value == expected) and isinstance(value, bool) == isinstance(expected, bool)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
