"""Calls and tests a program, in the sandbox and as its ``main.py``. Imports only the standard library.

Results have a channel of their own: the first stdout. What the program prints goes to stderr, and a result counts only with the
token, which has no global name and stands in no file.
"""

from __future__ import annotations

import doctest
import json
import os
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any


def main() -> None:
    """Read a request as JSON from stdin; write a line of token and JSON for each call that has a value, ``[number, value]``, and each
    text that has passed, ``[number, true]``."""
    request = json.load(sys.stdin)
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with open("main.py", "w", encoding="utf-8") as file:  # the tests may import the program's
        file.write(request["main"])
    sys.set_int_max_str_digits(0)
    space = _load(request["given"])

    def call(name: str, arguments: str) -> Any:
        return _entry(space, name)(*json.loads(arguments))

    results: list[Callable[[], str | None]] = [
        *(lambda e=e: _written(eval(e, space, {"__call__": call})) for e in request["calls"]),
        *(lambda t=t: "true" if _passes(t, space, request["entry"]) else None for t in request["texts"]),
    ]
    for number, result in enumerate(results):
        try:
            value = result()
        except BaseException:  # the program's own, SystemExit among them
            continue
        if value is not None:
            print(f"{request['token']}[{number}, {value}]", file=channel, flush=True)
    os._exit(0)  # exit handlers of the program do not run


def _load(given: str) -> dict[str, Any]:
    """The names of the module ``solution``, after the code that the task gives. A program that ends, or asks for an input, has
    defined what it has defined."""
    module = types.ModuleType("solution")
    module.__file__ = os.path.abspath("solution.py")
    sys.modules["solution"] = module
    space = vars(module)
    exec(compile(given, "given.py", "exec"), space)
    with open("solution.py", encoding="utf-8") as file:
        source = file.read()
    with suppress(EOFError, SystemExit):
        exec(compile(source, "solution.py", "exec"), space)
    return space


def _entry(space: dict[str, Any], name: str) -> Any:
    """The function ``name``, or that method of the class `Solution`."""
    if name.isidentifier() and name not in space and "Solution" in space:
        return getattr(space["Solution"](), name)
    return eval(name, space)


def _written(value: Any) -> str:
    """A value as JSON; what is none as its ``repr``."""
    try:
        return json.dumps(value, default=lambda array: array.tolist())
    except (TypeError, ValueError, AttributeError, RecursionError):
        return json.dumps(repr(value))


def _passes(text: Mapping[str, Any], space: dict[str, Any], entry: str) -> bool:
    """Whether tests have been run, and all of them have passed."""
    if text["style"] == "doctest":
        return _doctest(text["source"], space)
    if text["style"] == "pytest":
        return _pytest(text["source"])
    checks: list[int] = []
    space["__check__"] = checks.append
    has_tests = bool(text["tests"] or text["checks"])
    space["__name__"] = "solution" if has_tests else "__main__"
    if has_tests:
        unittest.main = _nothing  # type: ignore[assignment]  # they are run below
    exec(compile(text["source"], "tests.py", "exec"), space)
    named = [(name, space[name]) for name in text["tests"]]
    given: list[Callable[[], Any]] = [partial(_check, space, name, entry) for name in text["checks"]]
    return _all_pass(named, given, _may_skip(text["source"])) and bool(checks) and sum(checks) == 0


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _check(space: dict[str, Any], name: str, entry: str) -> None:
    space[name](_entry(space, entry))


def _may_skip(source: str) -> bool:
    """Whether tests may be skipped: otherwise a program could skip them, by an exception."""
    return "skip" in source.lower() or "xfail" in source


def _all_pass(named: list[tuple[str, Any]], functions: list[Callable[[], Any]], may_skip: bool) -> bool:
    # From async tests, which would not be awaited.
    warnings.filterwarnings("error", message="It is deprecated to return a value")
    suite = unittest.TestSuite()
    for name, test in named:
        if not isinstance(test, type):
            functions.append(test)
        elif issubclass(test, unittest.TestCase):
            suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(test))
        elif name.startswith("Test"):
            functions += [getattr(test(), method) for method in dir(test) if method.startswith("test")]
    for function in functions:
        suite.addTest(unittest.FunctionTestCase(partial(_awaited, function)))
    result = unittest.TestResult()
    suite.run(result)
    return result.wasSuccessful() and (may_skip or not result.skipped)


def _awaited(function: Callable[[], Any]) -> None:
    value = function()
    if isinstance(value, types.CoroutineType):
        import asyncio  # takes longer than most programs

        asyncio.run(value)


def _doctest(source: str, space: dict[str, Any]) -> bool:
    test = doctest.DocTestParser().get_doctest(source, space, "tests", None, 0)
    counts = doctest.DocTestRunner(verbose=False).run(test, out=lambda _: None, clear_globs=False)
    return counts.attempted > 0 and counts.failed == 0


def _pytest(source: str) -> bool:
    import pytest

    may_skip = _may_skip(source)

    class Passed:
        count = 0
        skipped = 0

        def pytest_runtest_logreport(self, report: Any) -> None:
            self.count += report.when == "call" and report.passed
            self.skipped += report.skipped and not may_skip

    names = "import solution; globals().update({k: v for k, v in vars(solution).items() if k[:2] != '__'})"
    with open("test_of_the_task.py", "w", encoding="utf-8") as file:
        file.write(f"{names}\n{source}")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    passed = Passed()
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "--noconftest"]
    return (
        pytest.main([*options, "test_of_the_task.py"], plugins=[passed]) == 0
        and passed.count > passed.skipped == 0
    )


if __name__ == "__main__":
    main()
