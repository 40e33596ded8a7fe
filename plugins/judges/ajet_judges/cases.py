"""Reads the tests of a task, in the forms that data sets have them, for the judge `code`."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ajet import Task

WRAPPERS = ("ground_truth", "test_cases", "tests", "functional", "assert_case")
"""Keys under which verl's `reward_model`, TRL's `verification_info` and others keep the tests themselves."""
NEEDS = "the judge needs a list of cases, or Python with asserts, unittest or pytest tests, `check(candidate)` or a doctest"


@dataclass(frozen=True, slots=True)
class Talk:
    """A run of the program: what it must print for an input."""

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class TestedCall:
    """An expression, and the values that it may have."""

    expression: str
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Python code, or a doctest, that tests the program."""

    source: str
    """Of ``code``: each check stands between ``__check__(1)`` and ``__check__(-1)``, so that checks that were passed can be counted."""
    style: str = "code"
    """code, pytest or doctest."""
    tests: tuple[str, ...] = ()
    """Its functions and classes that are to be run."""
    checks: tuple[str, ...] = ()
    """Those of its functions that take the function to test."""


Test = Talk | TestedCall | Text


def tests_of(task: Task, key: str, packages: bool) -> list[Test]:
    """The tests in a task's metadata. Raises ValueError, with the task's name, for what holds no test or cannot be run."""
    place = f"task {task.id!r}: metadata[{key!r}]"
    given = task.metadata.get(key)
    if given is None or given in ("", [], (), {}) or (isinstance(given, str) and not given.strip()):
        raise ValueError(f"{place} is {'missing' if given is None else 'empty'}; {NEEDS}")
    tests = list(_read(given, place, entry_point(task), packages))
    if not tests:
        raise ValueError(f"{place} holds no test; {NEEDS}")
    if all(_expects_nothing(test) for test in tests):
        raise ValueError(
            f"{place} expects no output and no value, as of a program that does nothing; {NEEDS}"
        )
    return tests


def _expects_nothing(test: Test) -> bool:
    if isinstance(test, Talk):
        return not test.output.strip()
    return isinstance(test, TestedCall) and set(map(repr, test.results)) == {"None"}


def entry_point(task: Task) -> str | None:
    """The function to test, as HumanEval and LiveCodeBench name it beside their tests."""
    beside = task.metadata.get("metadata")
    if isinstance(beside, str):
        try:
            beside = json.loads(beside)
        except ValueError:
            beside = None
    places = [task.metadata, *([beside] if isinstance(beside, Mapping) else [])]
    names = (place.get(name) for place in places for name in ("entry_point", "func_name", "fn_name"))
    return next((name for name in names if isinstance(name, str) and name), None)


def given_code(task: Task, entry: str | None) -> str:
    """The beginning of the program that the task gives, such as HumanEval's `prompt`: imports, helpers, and the head of the
    function to test. Empty if it gives none."""
    for text in (task.metadata.get("prompt"), task.query):
        if entry and isinstance(text, str) and entry in functions_in(text):
            return text
    return ""


def completed(head: str, rest: str) -> str:
    """The program that ``head`` begins, with the rest of its last function: indented as that is, if only then it is Python."""
    last = next((line for line in reversed(head.splitlines()) if line.strip()), "")
    indented = head + textwrap.indent(rest, last[: len(last) - len(last.lstrip())] or "    ")
    return indented if _compiles(indented) and not _compiles(head + rest) else head + rest


def _compiles(source: str) -> bool:
    try:
        compile(source, "solution.py", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def functions_in(source: str) -> list[str]:
    """The functions at the top level of a program; none if it is not Python."""
    try:
        return [n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def setup_code(task: Task) -> str:
    """What program and tests need before them: MBPP's `test_setup_code` and `test_imports`."""
    parts = [task.metadata.get("test_imports"), task.metadata.get("test_setup_code")]
    return "\n".join("\n".join(part) if isinstance(part, list | tuple) else part for part in parts if part)


def _read(given: Any, place: str, entry: str | None, packages: bool) -> Iterator[Test]:
    if isinstance(given, str):
        given = given.removeprefix("\ufeff")
        if given.lstrip()[:1] in ("[", "{", '"'):
            try:
                inside = json.loads(given)
            except (ValueError, RecursionError):
                pass
            else:
                if inside in ([], {}, ""):
                    raise ValueError(f"{place} is empty; {NEEDS}")
                yield from _read(inside, place, entry, packages)
                return
        yield _text(given, place, packages)
    elif isinstance(given, Mapping):
        case = {key: value for key, value in given.items() if value is not None}
        wrapped = [key for key in WRAPPERS if key in case]
        inputs, outputs = (case.get(f"{name}s", case.get(name)) for name in ("input", "output"))
        if "call" in case or (
            not wrapped and not (isinstance(inputs, list | tuple) and isinstance(outputs, list | tuple))
        ):
            yield _case(given, place, entry)
        elif wrapped:
            yield from _read(case[wrapped[0]], f"{place}[{wrapped[0]!r}]", _name(case, entry), packages)
        else:
            yield from _columns(inputs, outputs, place, case)
    elif isinstance(given, list | tuple):
        for i, one in enumerate(given):
            if isinstance(one, str):
                yield _text(one, f"{place}[{i}]", packages)
            elif isinstance(one, Mapping):
                yield _case(one, f"{place}[{i}]", entry)
            else:
                raise ValueError(f"{place}[{i}] is a {type(one).__name__}; {NEEDS}")
    else:
        raise ValueError(f"{place} is a {type(given).__name__}; {NEEDS}")


def _columns(inputs: Any, outputs: Any, place: str, case: Mapping[str, Any]) -> Iterator[Test]:
    """APPS, TACO, CodeContests: a list of inputs beside a list of outputs; with `fn_name`, of arguments and results."""
    if not inputs or len(inputs) != len(outputs):
        raise ValueError(
            f"{place} has {len(inputs)} inputs and {len(outputs)} outputs; each input needs its output"
        )
    name = _name(case, None)
    for i, (given, wanted) in enumerate(zip(inputs, outputs, strict=True)):
        if name is None:
            yield Talk(_lines(given, f"{place}, input {i}"), _lines(wanted, f"{place}, output {i}"))
        else:
            # Some of these data sets put a result into a list, others do not.
            bare = (wanted[0],) if isinstance(wanted, list) and len(wanted) == 1 else ()
            yield TestedCall(_called(name, _arguments(given, f"{place}, input {i}"), place), (wanted, *bare))


def _case(case: Mapping[str, Any], place: str, entry: str | None) -> Test:
    if case.get("call") is not None and "result" in case:
        return TestedCall(_of_the_program(str(case["call"]), place), (case["result"],))
    if case.get("output") is None or "input" not in case:
        raise ValueError(f"{place} needs `call` and `result`, or `input` and `output`")
    kind = case.get("testtype") or case.get("type")
    if kind not in ("functional", "function_call"):
        given = "" if case["input"] is None else case["input"]
        return Talk(_lines(given, place), _lines(case["output"], place))
    name = _name(case, entry)
    if name is None:
        raise ValueError(
            f"{place} is a call, but nothing names the function: `fn_name` in it, or `entry_point` beside it"
        )
    result = case["output"]
    if isinstance(result, str):
        with suppress(ValueError):  # a text that is not written as JSON
            result = json.loads(result)
    return TestedCall(_called(name, _arguments(case["input"], place), place), (result,))


def _name(case: Mapping[str, Any], entry: str | None) -> str | None:
    return case.get("fn_name") or case.get("func_name") or case.get("entry_point") or entry


def _arguments(given: Any, place: str) -> Sequence[Any]:
    """A list of arguments; or a text with one of them, as JSON, in each line."""
    if isinstance(given, list | tuple):
        return given
    try:
        return [json.loads(line) for line in str(given).splitlines() if line.strip()]
    except ValueError:
        raise ValueError(
            f"{place}: the arguments {str(given)[:80]!r} are not JSON, one in each line"
        ) from None


def _called(name: str, arguments: Sequence[Any], place: str) -> str:
    """A call of a function, or of a method of the class `Solution`: see `runner.py`."""
    return f"__call__({_of_the_program(name, place)!r}, {json.dumps(list(arguments))!r})"


def _of_the_program(expression: str, place: str) -> str:
    """An expression with a name of the program. Raises ValueError for another text, which every program or none would pass."""
    expression = expression.strip()
    try:
        nodes = ast.walk(ast.parse(expression, mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"{place}: {expression[:80]!r} is not a Python expression ({str(error)[:80]})"
        ) from None
    if not any(isinstance(node, ast.Name) for node in nodes):
        raise ValueError(f"{place}: {expression[:80]!r} calls nothing of the program")
    return expression


def _lines(value: Any, place: str) -> str:
    """An input or output: text, a number, or a list of lines."""
    if isinstance(value, list | tuple) and all(isinstance(line, str | int | float) for line in value):
        return "\n".join(str(line).removesuffix("\n") for line in value)
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(
        f"{place} has a {type(value).__name__} for stdin or stdout; it needs text, or a list of lines"
    )


# ------------------------------------------------------------------ tests as text


def _text(source: str, place: str, packages: bool) -> Text:
    text, fault, modules = _understood(source.removeprefix("\ufeff"))
    if fault:
        raise ValueError(f"{place} {fault}; {NEEDS}")
    hidden = [] if packages else sorted(name for name in modules if _is_installed(name))
    if hidden:
        raise ValueError(
            f"{place} needs {', '.join(hidden)}, which a program in the sandbox sees only with `packages: true`"
        )
    if text.style == "pytest" and importlib.util.find_spec("pytest") is None:
        raise ValueError(f"{place} needs pytest, which is not installed here: pip install pytest")
    return text


@lru_cache(maxsize=256)
def _understood(source: str) -> tuple[Text, str, frozenset[str]]:
    """A text of tests, what is wrong with it, and the modules that it needs."""
    try:
        tree = ast.parse(source)
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if ">>>" in source:
            return Text(source, "doctest"), _fault_of_doctest(source), frozenset()
        return Text(source), f"is neither JSON nor Python ({str(error)[:80]})", frozenset()
    if any(isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) for node in nodes):
        return Text(source), "asserts a tuple, which is always true", frozenset()
    if not any(map(_is_check, nodes)):
        document = ast.get_docstring(tree, clean=False) or ""
        if ">>>" in document:
            return Text(document, "doctest"), _fault_of_doctest(document), frozenset()
        return Text(source), "tests nothing", frozenset()
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    modules = {name.partition(".")[0] for name in modules}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    needs_pytest, tests, checks = "pytest" in modules, [], []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = [m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
            tested = [m for m in methods if m.name.startswith("test")]
            if node.bases or (node.name.startswith("Test") and tested):
                tests.append(node.name)
            fixtures = any(m.name.startswith(("setup", "teardown")) for m in methods)
            needs_pytest |= not node.bases and any(fixtures or len(_needed(m)) > 1 for m in tested)
            needs_pytest |= any(isinstance(n, ast.ClassDef) and n.name.startswith("Test") for n in node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            needed = _needed(node)
            if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node)):
                continue  # a generator runs nothing
            if (
                len(needed) == 1
                and node.name not in used
                and (node.name == "check" or needed[0] == "candidate")
            ):
                checks.append(node.name)
            elif node.name.startswith("test") and not (needed and node.name in used):
                tests.append(node.name)
                needs_pytest |= bool(needed)
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    called = {function.name for function in functions} & used
    rest = [n for n in tree.body if not isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    if not (tests or checks or called or any(_is_check(n) for top in rest for n in ast.walk(top))):
        return Text(source), "defines checks, but nothing runs them", frozenset()
    for function in functions:
        runs = _needed(function) or function.decorator_list or function.name in {*used, *tests, *checks}
        if not runs and any(map(_is_check, ast.walk(function))):
            return Text(source), f"defines checks in {function.name}, which nothing runs", frozenset()
    if needs_pytest:
        return Text(source, "pytest"), "", frozenset({*modules, "pytest"})
    counted = ast.unparse(ast.fix_missing_locations(_CountingChecks().visit(tree)))
    return Text(counted, "code", tuple(tests), tuple(checks)), "", frozenset(modules)


_BLOCKS = ast.With | ast.AsyncWith | ast.Try


class _CountingChecks(ast.NodeTransformer):
    """Puts calls around each check. One of a raised exception is one check, whatever it has inside."""

    def visit(self, node: ast.AST) -> Any:
        changed = node if isinstance(node, _BLOCKS) and _is_check(node) else self.generic_visit(node)
        return [_counting(1), changed, _counting(-1)] if _is_check(node) else changed


def _counting(number: int) -> ast.stmt:
    return ast.parse(f"__check__({number})").body[0]


def _is_check(node: ast.AST) -> bool:
    """Whether a statement tests something: an assert, a call such as ``self.assertEqual(…)`` or ``with raises(…)``, a condition with
    a ``raise`` under it, or a ``try`` that fails unless an exception of a kind is raised."""
    if isinstance(node, ast.Expr):
        return _is_assertion(node.value.value if isinstance(node.value, ast.Await) else node.value)
    if isinstance(node, ast.With | ast.AsyncWith):
        return any(_is_assertion(item.context_expr) for item in node.items)
    if isinstance(node, ast.If):
        return any(isinstance(inner, ast.Raise) for inner in node.body)
    if isinstance(node, ast.Try):
        kinds = {
            n.id
            for h in node.handlers
            for n in ast.walk(h.type or ast.Name("Exception"))
            if isinstance(n, ast.Name)
        }
        fails = any(map(_fails, (node.body[-1], *node.orelse[-1:])))
        return fails and bool(kinds) and kinds.isdisjoint(("AssertionError", "Exception", "BaseException"))
    return isinstance(node, ast.Assert) and not (isinstance(node.test, ast.Constant) and node.test.value)


def _fails(node: ast.stmt) -> bool:
    """Whether a statement always fails: ``assert False``, ``self.fail()`` or ``raise``."""
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant) and not node.test.value
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return isinstance(node, ast.Raise) or (isinstance(called, ast.Attribute) and called.attr == "fail")


def _is_assertion(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name.lower().startswith("assert") or name in ("raises", "fail")


def _fault_of_doctest(source: str) -> str:
    try:
        examples = doctest.DocTestParser().get_examples(source)
    except ValueError as error:
        return f"is a doctest that cannot be read ({error})"
    runs = any(example.want and not example.options.get(doctest.SKIP) for example in examples)
    return "" if runs else "is a doctest that expects nothing"


def _needed(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The parameters that a call must give."""
    positional = [*function.args.posonlyargs, *function.args.args]
    return [a.arg for a in positional[: len(positional) - len(function.args.defaults)]]


def _is_installed(module: str) -> bool:
    """Whether a module is one of the packages of this environment."""
    if module in sys.stdlib_module_names:
        return False
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and "-packages" in str(spec.origin)
