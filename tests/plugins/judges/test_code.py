"""The `code` judge: programs of responses against tests of tasks."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from ajet import EpisodeView, JudgeOutput, Task, WorkflowOutput
from ajet_judges import Code
from ajet_judges.blocks import program_in
from ajet_judges.matching import same_output, same_value
from ajet_judges.sandbox import Limits
from tests.pages import files, page
from tests.tiers import fast

from .test_sandbox import with_walls
from .together import together

CALLS = [{"call": "add(2, 3)", "result": 5}, {"call": "add('a', 'b')", "result": "ab"}]
DOUBLES = [{"input": "2\n", "output": "4\n"}, {"input": "5", "output": "10"}]
PATIENT = Limits(seconds=60, cpu_seconds=10)
QUICK = Limits(seconds=1.5, cpu_seconds=1)
"""For programs that do not end."""
ENDLESS = ("while True: pass", "import time\ntime.sleep(90)")


def judge(response: Any, tests: Any, beside: dict[str, Any] | None = None, **fields: Any) -> JudgeOutput:
    return asyncio.run(judged(response, tests, beside, **fields))


async def judged(
    response: Any, tests: Any, beside: dict[str, Any] | None = None, **fields: Any
) -> JudgeOutput:
    task = Task("t1", metadata={"tests": tests, **(beside or {})})
    output = WorkflowOutput(response=response)
    code = Code(**{"limits": PATIENT, **fields})
    return await code.judge(task, output, EpisodeView("e", "t1", 0, 0))


def rewards(*judgements: Any) -> list[float]:
    """Of `judged`, in one sandbox."""
    return [verdict.reward for verdict in together(judgements)]


@with_walls
def test_a_program_that_passes_every_call_has_succeeded() -> None:
    assert judge("def add(a, b): return a + b", CALLS) == JudgeOutput(1.0, True, {"passed": 1.0})


@pytest.mark.whole
@with_walls
def test_one_that_fails_a_call_has_not_unless_a_part_counts() -> None:
    source = "def add(a, b): return int(a) + int(b)"
    assert judge(source, CALLS) == JudgeOutput(0.0, False, {"passed": 0.5})
    assert judge(source, CALLS, partial=True).reward == 0.5


@pytest.mark.whole
@with_walls
def test_programs_that_read_and_write() -> None:
    assert judge("```python\nprint(2 * int(input()))\n```", DOUBLES).reward == 1.0
    assert judge("```python\nprint(4)\n```", DOUBLES, partial=True).reward == 0.5
    assert judge("print(2 * int(input())); raise SystemExit(1)", DOUBLES).reward == 0.0


def left(folder: Path, tests: Any, **texts: str) -> Any:
    """The verdict on an agent that has left a module of each text; to be awaited."""
    files = {}
    for name, text in texts.items():
        files[f"{name.replace('__', '/')}.py"] = path = folder / f"{len(list(folder.iterdir()))}.py"
        path.write_text(text)
    output = WorkflowOutput(response="done", files=files)
    task = Task("t1", metadata={"tests": tests})
    return Code(limits=PATIENT).judge(task, output, EpisodeView("e", "t1", 0, 0))


@pytest.mark.whole
@with_walls
def test_collected_files_are_the_program(tmp_path: Path) -> None:
    main = "from src import farm\nprint(farm.area(int(input()), 2))"
    right, wrong = "def area(a, b): return a * b", "def area(a, b): return a + b"
    all_tests: list[Any] = [
        "from src.farm import area\nassert area(2, 3) == 6",
        [{"call": "__import__('src.farm').farm.area(2, 3)", "result": 6}, {"input": "3", "output": "6"}],
    ]
    found = rewards(
        *(left(tmp_path, tests, main=main, src__farm=farm) for tests in all_tests for farm in (right, wrong))
    )
    assert found == [1.0, 0.0] * 2


ADD = "def add(a, b):\n    return a + b"
METHOD = "class Solution:\n    def add(self, a, b):\n        return a + b"
UNITTEST = "import unittest\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
BEGUN = 'import math\ndef add(a, b):\n    """The sum."""\n'
FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "HumanEval": (CHECK, {"entry_point": "add", "prompt": BEGUN}),
    "check without entry_point": (CHECK, {}),
    "check that is called": (f"{CHECK}check(add)", {}),
    "LeetCode": (CHECK, {"entry_point": "Solution().add"}),
    "MBPP": (
        ["assert add(1, 2) == 3", "assert math.isclose(add(1, 1), 2)"],
        {"test_imports": ["import math"]},
    ),
    "APPS, functions": ('{"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}', {}),
    "LiveCodeBench, functions": (
        '[{"input": "1\\n2", "output": "3", "testtype": "functional"}]',
        {"metadata": '{"func_name": "add"}'},
    ),
    "verl": ({"style": "rule", "ground_truth": '{"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}'}, {}),
    "verl, asserts": ({"ground_truth": '{"assert_case": ["assert add(1, 2) == 3"]}'}, {}),
    "TRL": (
        {
            "language": "python",
            "test_cases": [{"fn_name": "add", "input": [1, 2], "output": 3, "type": "function_call"}],
        },
        {},
    ),
    "functions of pytest": ("from solution import add\ndef test_add():\n    assert add(1, 2) == 3\n", {}),
    "classes of pytest": ("class TestAdd:\n    def test_it(self):\n        assert add(1, 2) == 3\n", {}),
    "async": ("async def test_add():\n    assert add(1, 2) == 3\n", {}),
    "unittest": (UNITTEST, {}),
    "unittest, main": (f"{UNITTEST}if __name__ == '__main__':\n    unittest.main()", {}),
    "unittest, a runner": (
        f"{UNITTEST}unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))",
        {},
    ),
    "main": ("if __name__ == '__main__':\n    assert add(1, 2) == 3", {}),
    "printed failures": ("try:\n    assert add(1, 2) == 3\nexcept AssertionError:\n    print('failed')", {}),
    "raise": ("if add(1, 2) != 3:\n    raise ValueError", {}),
    "an exception": ("try:\n    add(1, None)\n    assert False\nexcept TypeError:\n    pass", {}),
    "an exception, else": (
        "try:\n    add(1, None)\nexcept TypeError:\n    pass\nelse:\n    raise ValueError",
        {},
    ),
    "a check within one of an exception": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_add(self):\n"
        "        with self.assertRaises(TypeError):\n            assert add(1, None) == 3",
        {},
    ),
    "doctest": (">>> add(1, 2)\n3\n", {}),
    "doctest in a docstring": ('"""\n>>> add(1, 2)\n3\n"""', {}),
    "JSON as text": ('[{"call": "add(1, 2)", "result": 3}]', {}),
    "Parquet": ([{"call": "add(1, 2)", "result": 3, "input": None, "output": None}], {}),
}


@pytest.fixture(scope="module")
def of_forms() -> dict[str, list[float]]:
    """The rewards of a right and of a wrong program, by the form of the tests."""
    right = [METHOD if form == "LeetCode" else ADD for form in FORMS]
    wrong = [source.replace("a + b", "0") for source in right]
    found = rewards(*map(judged, right + wrong, *zip(*[*FORMS.values()] * 2, strict=True)))
    return {form: found[place :: len(FORMS)] for place, form in enumerate(FORMS)}


@with_walls
@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_tests_is_run(of_forms: dict[str, list[float]], form: str) -> None:
    assert of_forms[form] == [1.0, 0.0]


@pytest.mark.whole
@with_walls
def test_a_method_of_solution_is_found_and_a_begun_function_is_continued() -> None:
    assert judge(METHOD, {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}).reward == 1.0
    beside = {"entry_point": "add", "prompt": BEGUN}
    assert judge("    return math.floor(a + b)", CHECK, beside).reward == 1.0
    assert judge("```python\n    return math.floor(a + b)\n```", CHECK, beside).reward == 1.0
    assert judge("    pass", CHECK, beside).reward == 0.0


PYTEST = """import pytest
@pytest.mark.parametrize("a, b, c", [(1, 2, 3), (0, 0, 0)])
def test_add(a, b, c):
    assert add(a, b) == c
"""


@pytest.mark.whole
@with_walls
def test_what_needs_pytest_is_run_by_it() -> None:
    room = Limits(seconds=60, cpu_seconds=20, memory=2048)
    assert judge(ADD, PYTEST, packages=True, limits=room).reward == 1.0
    assert judge("def add(a, b): return 0", PYTEST, packages=True, limits=room).reward == 0.0


DOUBLED = "print(int(input()) * 2)"
TALKS: list[tuple[Any, str]] = [
    ([{"input": ["21"], "output": ["42"]}], DOUBLED),
    ('{"inputs": ["21\\n"], "outputs": ["42\\n"]}', DOUBLED),
    ('[{"input": "21", "output": "42", "testtype": "stdin"}]', DOUBLED),
    ([{"input": "21", "output": "42", "call": None, "result": None}], DOUBLED),
    ([{"input": 0, "output": 1}], "print(int(input()) + 1)"),
    ([{"input": None, "output": "1"}], "print(1)"),
]


@pytest.mark.kept
@with_walls
def test_inputs_and_outputs_in_their_forms() -> None:
    assert rewards(*(judged(program, tests) for tests, program in TALKS)) == [1.0] * len(TALKS)
    assert rewards(*(judged("print(7)", tests) for tests, _ in TALKS)) == [0.0] * len(TALKS)


PRINTING = [
    "def f(x):\n    print('x is', x, end='')\n    return x + 1",
    "import atexit\natexit.register(print, 'bye')\ndef f(x):\n    return x + 1",
    "__all__ = []\njson = sys = eval = '{}'\ndef f(x):\n    return x + 1",
    "def f(x):\n    return x + 1\nprint(f(int(input())))",
    "import os\ndef f(x):\n    os.write(1, b'[0, 0]')\n    return x + 1",
]


@pytest.mark.whole
@with_walls
def test_what_a_called_function_prints_is_not_its_result() -> None:
    tests = [{"call": f"f({x})", "result": x + 1} for x in (1, 2)]
    assert rewards(*(judged(source, tests) for source in PRINTING)) == [1.0] * len(PRINTING)


FORGED = [
    "import os\nfor fd in range(1, 64):\n    try: os.write(fd, b'[0, 3]\\n[0, true]\\n')\n    except OSError: pass",
    "import __main__, os\nfor v in vars(__main__).values():\n    os.write(3, f'{v}[0, true]\\n'.encode())",
    "import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(\"[0, 3]\")'])\nos._exit(0)",
]


@pytest.mark.whole
@with_walls
def test_a_program_does_not_write_its_own_result() -> None:
    called, asserted = [{"call": "add(1, 2)", "result": 3}], "assert add(1, 2) == 3"
    found = rewards(*(judged(source, tests) for source in FORGED for tests in (called, asserted)))
    assert found == [0.0] * 2 * len(FORGED)


@pytest.mark.whole
@with_walls
def test_tests_of_what_an_agent_should_have_left(tmp_path: Path) -> None:
    tests = "def test_area():\n    from {} import area\n    assert area(2) == 4\n"
    area = "def area(a): return a * a"
    modules = [
        left(tmp_path, tests.format("farm"), notes="I could not do it."),
        left(tmp_path, tests.format("farm"), farm=area),
        left(tmp_path, tests.format("main"), main=area),
    ]
    assert rewards(*modules) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        (0.1 + 0.2, 0.3, True),
        ([1.1, 3.3000000000000003], [1.1, 3.3], True),
        ({"a": 1.0}, {"a": 1}, True),
        (float("nan"), float("nan"), True),
        (1.05e-34, 6.63e-34, False),
        (1e-9, 0.0, True),
        (1_000_000_000.5, 1_000_000_000, False),
        (10**400, 1.5, False),
        (True, 1, False),
        ("3.0", "3", False),
        ([1.0], [1.0, 2.0], False),
    ],
)
def test_values_are_equal_up_to_the_tolerance(found: Any, expected: Any, same: bool) -> None:
    assert same_value(found, expected, 1e-6) is same


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("0.333333", "0.333333333333", True),
        ("Case 1: 3.0", "Case 1: 3", True),
        ("[0.1, 0.30000000000000004]\n\n", "[0.1, 0.3]", True),
        ("7", "007", False),
        ("1.05e-34", "6.63e-34", False),
        ("1 2", "1  2", False),
        ("1\n2", "1 2", False),
        ("a1.0", "a1.00", False),
        ("9" * 200_000 + "x", "9" * 200_000 + "y", False),
    ],
)
def test_outputs_are_equal_up_to_the_tolerance(found: str, expected: str, same: bool) -> None:
    assert same_output(found, expected, 1e-6) is same


@pytest.mark.whole
@with_walls
def test_the_tolerance_may_be_none() -> None:
    tests = [{"call": "add(.1, .2)", "result": 0.3}]
    assert [judge(ADD, tests, tolerance=t).reward for t in (1e-6, 0.0)] == [1.0, 0.0]


@pytest.mark.whole
@with_walls
def test_texts_of_asserts() -> None:
    tests = "assert add(2, 3) == 5\ndef test():\n    assert add(1, 1) == 2\ntest()"
    assert judge("def add(a, b): return a + b", tests).reward == 1.0
    assert judge("def add(a, b): return 5", tests).reward == 0.0


SKIPPING = "import unittest\ndef add(a, b):\n    if a: raise unittest.SkipTest\n    return a + b"
TWO = "def test_0():\n    assert add(0, 0) == 0\ndef test_1():\n    got = add(1, 2)\n    assert got == 3\n"


@pytest.mark.whole
@with_walls
def test_a_program_skips_no_test() -> None:
    skip = "import unittest\nclass T(unittest.TestCase):\n    @unittest.skip('slow')\n    def test_1(self):\n        assert 0\n"
    passed = rewards(
        judged(SKIPPING, TWO), judged(ADD, TWO), judged(ADD, f"{UNITTEST}{skip}".replace("T(", "S(", 1))
    )
    assert passed == [0.0, 1.0, 1.0]


WRONG = [
    "import os; os._exit(0)",
    "import sys; sys.exit()",
    "print('5\\n5\\n\"ab\"')",
    "def add(a, b): return True",
    "class Equal:\n    def __eq__(self, o): return True\ndef add(a, b): return Equal()",
    "import json\njson.dumps = lambda v: 'anything'\ndef add(a, b): return 0",
    "def add(a, b): return float('nan')",
    "syntax error(",
]


@pytest.mark.whole
@with_walls
def test_the_coding_example_of_the_gateway_page_is_not_solved_by_a_line_that_cheats(tmp_path: Path) -> None:
    tests = json.loads(files(page("docs/gateway.md"))["functions.jsonl"])["tests"]
    sources = (
        "import os; os._exit(0)",
        "import sys; sys.exit()",
        "add = lambda a, b: type('', (int,), {'__eq__': lambda *_: True})()",
        "def add(a, b): return a + b",
    )
    cheated = [left(tmp_path, tests, add=source) for source in sources]
    assert rewards(*cheated) == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.whole
@with_walls
def test_what_does_not_solve_the_task_has_nothing() -> None:
    found = rewards(*(judged(source, CALLS, partial=True) for source in WRONG))
    assert found == [0.0] * len(WRONG)
    asserted = "assert add(2, 3) == 5 and add('a', 'b') == 'ab'"
    # A text cannot tell what is equal to everything.
    sources = [source for source in WRONG if "Equal" not in source]
    assert rewards(*(judged(source, asserted) for source in sources)) == [0.0] * len(sources)


@pytest.mark.whole
@with_walls
@pytest.mark.parametrize("source", fast({1}, ENDLESS))
def test_what_does_not_end_has_nothing(source: str) -> None:
    assert judge(source, CALLS, partial=True, limits=QUICK).reward == 0.0
    assert judge(source, "assert add(2, 3) == 5", limits=QUICK).reward == 0.0


@pytest.mark.whole
@with_walls
def test_what_cannot_be_read_as_json_is_wrong_and_no_failure_of_the_judge() -> None:
    deep = "import os\nfor _ in range(2): print('[' * 100_000, flush=True)\nos._exit(0)"
    assert judge(deep, CALLS) == JudgeOutput(0.0, False, {"passed": 0.0})


@pytest.mark.whole
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
        ([{"call": None, "result": 1, "input": "1", "output": None}], r"\[0\] needs `call` and `result`"),
        ([CALLS[0], 7], r"\[1\] is a int"),
        ([{"call": "x = add(1, 2)", "result": 3}], r"\[0\]: 'x = add\(1, 2\)' is not a Python expression"),
        ([{"call": "add(1, 2", "result": 3}], "is not a Python expression"),
        ([{"call": "1 + 2", "result": 3}], "calls nothing of the program"),
        ({"inputs": [[1]], "outputs": [2], "fn_name": "two words"}, "'two words' is not a Python expression"),
        ("[]", "is empty"),
        ('{"inputs": ["1"], "outputs": []}', "1 inputs and 0 outputs"),
        ({"other": 1}, "needs `call` and `result`"),
        ([{"input": {"a": 1}, "output": "1"}], "a dict for stdin or stdout"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], "nothing names the function"),
        ("eJxLTEoGAAJNASc=", "is neither JSON nor Python|tests nothing"),
        ("some prose.", "is neither JSON nor Python"),
        ("[add(1, 2), 3]", "tests nothing"),
        ("def test_add():\n    add(1, 2) == 3", "tests nothing"),
        ("def helper():\n    assert add(1, 2) == 3", "defines checks, but nothing runs them"),
        ("def main():\n    assert add(1, 2) == 3\nassert callable(add)", "in main, which nothing runs"),
        ("def test_add():\n    yield\n    assert add(1, 2) == 3", "defines checks, but nothing runs them"),
        ("assert (add(1, 2) == 3, 'no sum')", "asserts a tuple, which is always true"),
        ("assert True\nprint(add(1, 2) == 3)", "tests nothing"),
        (">>> x = add(1, 2)", "a doctest that expects nothing"),
        (">>> add(1, 2)  # doctest: +SKIP\n3", "a doctest that expects nothing"),
        ([{"call": "add(1, 2)", "result": None}], "expects no output and no value"),
        ([{"input": "1", "output": " "}, {"input": "2", "output": ""}], "expects no output and no value"),
        ("def check(candidate):\n    return candidate(1, 2) == 3", "tests nothing"),
        ("def test_add(capsys):\n    assert add(1, 2) == 3", "needs pytest, .*packages: true"),
        (PYTEST, "needs pytest, .*packages: true"),
        ("import numpy as np\nassert np.isclose(add(1, 2), 3)", "needs numpy, .*packages: true"),
    ],
)
def test_a_task_without_usable_tests_is_an_error_that_names_it(tests: Any, fault: str) -> None:
    with pytest.raises(
        ValueError, match=f"task 't1': .*{fault}" if "metadata" not in fault else f"task 't1': {fault}"
    ):
        judge("x = 1", tests)


def test_a_check_of_one_of_several_functions_needs_its_name() -> None:
    with pytest.raises(ValueError, match=r"task 't1': .*check\(candidate\).*entry_point"):
        judge(f"{ADD}\ndef other(): pass", CHECK)


P = "print(int(input()) * 2)\n"
F = "def f(x):\n    return x * 2\n"


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("x = 1", "x = 1"),
        ("First:\n```python\nx = 1\n```\nbetter:\n```py\nx = 2\n```\ndone", "x = 2\n"),
        ("```\nx = 3\n```", "x = 3\n"),
        ("```bash\nls\n```\n```python3 title=a.py\nx = 4\n```\n```json\n{}\n```", "x = 4\n"),
        ("```bash\nls\n```", ""),
        (f"```python\n{P}```\nFor 21 it prints\n```\n42\n```", P),
        (f"```\n{P}```\nFor 21 it prints\n```\n42\n```", P),
        (f"1. Read:\n   ```python\n   {P}   ```", P),
        (f"1. Read:\n   ```python\n{P}   ```", P),
        (f"~~~python\n{P}~~~", P),
        (f"````python\n{P}````", P),
        (f"``` {{.python}}\n{P}```", P),
        (f"```python\n{P}", P),
        (f'```python\n"""Use:\n```\n21\n```\n"""\n{P}```', f'"""Use:\n```\n21\n```\n"""\n{P}'),
        (f"```python\n{F}```\nFor example:\n```python\nprint(f(2))\n```", F),
        (
            f"```python\n{F}```\nThen:\n```python\nprint(f(int(input())))\n```",
            f"{F}\nprint(f(int(input())))\n",
        ),
        (f"```python\n{F}```\nBetter:\n```python\n{P}```", P),
        (f"```python\n{F}```\n```python\ndef f(x:\n```", "def f(x:\n"),
        ("```python\r\nx = 1\r\n```\r\n", "x = 1\n"),
        ("```python\nx = 'a\u2028b\x85'\n\x0cy = 1\n```", "x = 'a\u2028b\x85'\n\x0cy = 1\n"),
        (f"The program: ```python\n{P}```\nDone.", P),
        (f"Put it into ```python fences:\n```python\n{P}```", P),
        (f"```python\n{P.strip()}```\nFor 21:\n```\n42\n```", P),
    ],
)
def test_the_program_is_found_in_the_ways_in_which_models_write_it(response: str, program: str) -> None:
    assert program_in(response) == program


@pytest.mark.parametrize(
    "text",
    [
        "```python\n" * 3000,
        "```\n" * 20_000,
        "~~~ " * 9000,
        "(" * 50_000,
        "```py\n" + "(" * 90_000 + "\n```" * 40,
        "```py\n" + "x = (```\n" * 9000,
        " a  ```python \n" * 4000 + " " * 90_000 + "a ```",
    ],
)
def test_whatever_a_model_writes_is_read_at_once(text: str) -> None:
    start = time.process_time()
    program_in(text)
    assert time.process_time() - start < 1.0
