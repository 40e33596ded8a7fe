"""The `code` judge: programs of responses against tests of tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ajet import EpisodeView, JudgeOutput, Task, WorkflowOutput
from ajet_judges import Code
from ajet_judges.code import program_in
from ajet_judges.sandbox import Limits

from .test_sandbox import with_walls

CALLS = [{"call": "add(2, 3)", "result": 5}, {"call": "add('a', 'b')", "result": "ab"}]
DOUBLES = [{"input": "2\n", "output": "4\n"}, {"input": "5", "output": "10"}]
PATIENT = Limits(seconds=60, cpu_seconds=10)
QUICK = Limits(seconds=1.5, cpu_seconds=1)
"""For programs that do not end."""
ENDLESS = ("while True: pass", "import time\ntime.sleep(90)")


def judge(response: Any, tests: Any, **fields: Any) -> JudgeOutput:
    task = Task("t1", metadata={} if tests is None else {"tests": tests})
    output = WorkflowOutput(response=response)
    code = Code(**{"limits": PATIENT, **fields})
    return asyncio.run(code.judge(task, output, EpisodeView("e", "t1", 0, 0)))


@with_walls
def test_a_program_that_passes_every_call_has_succeeded() -> None:
    assert judge("def add(a, b): return a + b", CALLS) == JudgeOutput(1.0, True, {"passed": 1.0})


@with_walls
def test_one_that_fails_a_call_has_not_unless_a_part_counts() -> None:
    source = "def add(a, b): return int(a) + int(b)"
    assert judge(source, CALLS) == JudgeOutput(0.0, False, {"passed": 0.5})
    assert judge(source, CALLS, partial=True).reward == 0.5


@with_walls
def test_programs_that_read_and_write() -> None:
    assert judge("```python\nprint(2 * int(input()))\n```", DOUBLES).reward == 1.0
    assert judge("```python\nprint(4)\n```", DOUBLES, partial=True).reward == 0.5
    assert judge("print(2 * int(input())); raise SystemExit(1)", DOUBLES).reward == 0.0


@with_walls
def test_collected_files_are_the_program(tmp_path: Path) -> None:
    def judged(tests: Any, **texts: str) -> float:
        files = {}
        for name, text in texts.items():
            files[f"src/{name}.py"] = tmp_path / f"{name}.py"
            files[f"src/{name}.py"].write_text(text)
        (tmp_path / "main.py").write_text("from src import farm\nprint(farm.area(int(input()), 2))")
        files["main.py"] = tmp_path / "main.py"
        output = WorkflowOutput(response="done", files=files)
        task = Task("t1", metadata={"tests": tests})
        return asyncio.run(Code(limits=PATIENT).judge(task, output, EpisodeView("e", "t1", 0, 0))).reward

    for tests in (
        "from src.farm import area\nassert area(2, 3) == 6",
        [{"call": "__import__('src.farm').farm.area(2, 3)", "result": 6}, {"input": "3", "output": "6"}],
    ):
        assert judged(tests, farm="def area(a, b): return a * b") == 1.0
        assert judged(tests, farm="def area(a, b): return a + b") == 0.0


@with_walls
def test_texts_of_asserts() -> None:
    tests = "assert add(2, 3) == 5\ndef test():\n    assert add(1, 1) == 2\ntest()"
    assert judge("def add(a, b): return a + b", tests).reward == 1.0
    assert judge("def add(a, b): return 5", tests).reward == 0.0


@with_walls
@pytest.mark.parametrize(
    "source",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit()",
        "print('5\\n5\\n\"ab\"')",
        "def add(a, b): return True",
        "class Equal:\n    def __eq__(self, o): return True\ndef add(a, b): return Equal()",
        "import json\njson.dumps = lambda v: 'anything'\ndef add(a, b): return 0",
        "def add(a, b): return float('nan')",
        "syntax error(",
        *ENDLESS,
    ],
)
def test_what_does_not_solve_the_task_has_nothing(source: str) -> None:
    limits = QUICK if source in ENDLESS else PATIENT
    assert judge(source, CALLS, partial=True, limits=limits).reward == 0.0
    if "print" not in source:
        asserted = judge(source, "assert add(2, 3) == 5 and add('a', 'b') == 'ab'", limits=limits)
        assert asserted.reward == 0.0 or "Equal" in source


@with_walls
def test_what_cannot_be_read_as_json_is_wrong_and_no_failure_of_the_judge() -> None:
    deep = "import os\nfor _ in range(2): print('[' * 100_000, flush=True)\nos._exit(0)"
    assert judge(deep, CALLS) == JudgeOutput(0.0, False, {"passed": 0.0})


@with_walls
def test_what_stopped_a_program_is_told() -> None:
    assert judge("import time\ntime.sleep(90)", CALLS, limits=QUICK).metrics == {
        "passed": 0.0,
        "stopped/time": 1.0,
    }


@pytest.mark.parametrize("response", [None, "", "```text\nno program\n```"])
def test_no_program_is_wrong_and_nothing_is_run(response: Any) -> None:
    assert judge(response, CALLS) == JudgeOutput(0.0, False, {"passed": 0.0})


@pytest.mark.parametrize(
    ("tests", "fault"),
    [
        (None, r"metadata\['tests'\] is missing"),
        ([], "is empty"),
        (7, "is a int"),
        ([{"call": "f()"}], r"\[0\] needs `call` and `result`"),
        ([CALLS[0], "assert f()"], r"\[1\] needs"),
    ],
)
def test_a_task_without_usable_tests_is_an_error_that_names_it(tests: Any, fault: str) -> None:
    with pytest.raises(
        ValueError, match=f"task 't1': .*{fault}" if "metadata" not in fault else f"task 't1': {fault}"
    ):
        judge("x = 1", tests)


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("x = 1", "x = 1"),
        ("First:\n```python\nx = 1\n```\nbetter:\n```py\nx = 2\n```\ndone", "x = 2\n"),
        ("```\nx = 3\n```", "x = 3\n"),
        ("```bash\nls\n```\n```python3 title=a.py\nx = 4\n```\n```json\n{}\n```", "x = 4\n"),
        ("```bash\nls\n```", ""),
    ],
)
def test_the_program_is_the_last_block_of_python(response: str, program: str) -> None:
    assert program_in(response) == program
