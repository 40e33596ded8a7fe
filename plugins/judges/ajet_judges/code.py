"""The `code` judge: runs the response's Python program against the task's tests, in a sandbox."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet_judges.blocks import program_in
from ajet_judges.cases import (
    Talk,
    TestedCall,
    Text,
    completed,
    entry_point,
    functions_in,
    given_code,
    setup_code,
    tests_of,
)
from ajet_judges.matching import same_output, same_value
from ajet_judges.sandbox import Isolation, Limits, Ran, run_python
from ajet_judges.text import response_text

RUNNER = Path(__file__).with_name("runner.py")


class Code(Judge):
    """Runs the episode's Python program against the task's tests, in a sandbox without network or files.

    The program is what the workflow has collected (`output.files`): the tests can import its modules, and those with stdin run its
    `main.py`. Otherwise it is the last Python block in the response that defines or reads something, or the whole response if it has
    no block. The tests are a list of cases, ``{input: …, output: …}`` (stdin and stdout) or ``{call: "add(2, 3)", result: 5}``,
    whose expected values never enter the sandbox; or Python with asserts, unittest or pytest tests, `check(candidate)` or a doctest,
    which a program could cheat, because it runs in the same process. A text or a list of texts, JSON, and the columns of HumanEval,
    MBPP, APPS, LiveCodeBench and verl are such tests, too. Tests that would not be run are an error.
    """

    name = "code"

    tests: str = Field("tests", description="Key of the task's metadata that contains the tests.")
    partial: bool = Field(
        False, description="Reward is the share of passed cases; otherwise 1 if all pass, 0 if not."
    )
    tolerance: float = Field(
        1e-6,
        ge=0,
        allow_inf_nan=False,
        description="Largest accepted error of decimals, absolute or relative.",
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
        tests = tests_of(task, self.tests, self.packages)
        sources = sources_of(output)
        if not any(map(str.strip, sources.values())):
            return JudgeOutput(0.0, False, {"passed": 0.0})
        talks = [test for test in tests if isinstance(test, Talk)]
        others = [test for test in tests if not isinstance(test, Talk)]
        runs = await asyncio.gather(*(self._run(sources, talk.input) for talk in talks))
        passed = [
            run.ok and same_output(run.stdout, talk.output, self.tolerance)
            for run, talk in zip(runs, talks, strict=True)
        ]
        if others:
            ran, results = await self._tested(task, sources, others)
            runs, passed = [*runs, ran], [*passed, *results]
        share = sum(passed) / len(passed)
        metrics = {"passed": share} | {f"stopped/{run.cause}": 1.0 for run in runs if run.cause}
        return JudgeOutput(share if self.partial else float(all(passed)), all(passed), metrics)

    async def _tested(
        self, task: Task, sources: Mapping[str, str], tests: Sequence[TestedCall | Text]
    ) -> tuple[Ran, list[bool]]:
        """Whether each test has passed, in one run of all."""
        calls = [test for test in tests if isinstance(test, TestedCall)]
        texts = [test for test in tests if isinstance(test, Text)]
        entry, given, program = entry_point(task), setup_code(task), sources["solution.py"]
        functions = functions_in(program)
        if entry is None and any(text.checks for text in texts):
            if len(functions) > 1:
                raise ValueError(
                    f"task {task.id!r}: metadata[{self.tests!r}] defines {texts[0].checks[0]}(candidate), and the program several "
                    "functions; name the one to test in metadata['entry_point']"
                )
            entry = functions[0] if functions else ""
        if (head := given_code(task, entry)) and entry not in functions:
            program = completed(head, program)
        elif head:
            given = f"{given}\n{head}"
        token = secrets.token_hex(16)
        request = {
            "token": token,
            "entry": entry,
            "given": given,
            "main": sources["main.py"],
            "calls": [call.expression for call in calls],
            "texts": [asdict(text) for text in texts],
        }
        ran = await self._run(
            {**sources, "solution.py": program, "main.py": RUNNER.read_text("utf-8")}, json.dumps(request)
        )
        values = _values(ran.stdout, token)
        return ran, [
            *(
                i in values and any(same_value(values[i], r, self.tolerance) for r in _as_json(call.results))
                for i, call in enumerate(calls)
            ),
            *(values.get(len(calls) + i) is True for i in range(len(texts))),
        ]

    async def _run(self, sources: Mapping[str, str], stdin: str) -> Ran:
        assert self._slots is not None
        async with self._slots:
            return await run_python(
                sources, input=stdin, limits=self.limits, isolation=self.isolation, packages=self.packages
            )


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


def _values(stdout: str, token: str) -> dict[int, Any]:
    """What the runner has written, by the number of the call or text."""
    values = {}
    for line in stdout.split("\n"):
        if line.startswith(token):
            with suppress(ValueError, RecursionError):  # a value can be too deep or too long to read
                number, value = json.loads(line[len(token) :])
                values[number] = value
    return values


def _as_json(values: Sequence[Any]) -> Any:
    return json.loads(json.dumps(values))
