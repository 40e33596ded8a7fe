"""The benchmark's own checker as the judge of an answer."""

from __future__ import annotations

import ast
import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

Calls = list[dict[str, dict[str | None, Any]]]
"""Functions by name, with their arguments by name."""


def judge(task: Any, output: Any) -> float:
    """1 if BFCL's checker accepts the answer, else 0."""
    functions, answer = task.metadata["functions"], task.metadata["answer"]
    try:
        calls = decoded(output.response)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # whatever a model may write
        return 0.0
    if not calls:  # each question wants one
        return 0.0
    check, python = checker()
    found = check(functions, calls, [answer], python, task.metadata["category"], "any")
    return float(found["valid"])


def decoded(text: str) -> Calls:
    """The calls that an answer writes in Python, as BFCL's decoder reads them; brackets around them may be missing. It would evaluate
    expressions, and so run what a model writes: here arguments are literals, or names, which BFCL takes for their text. Raises
    SyntaxError or ValueError."""
    text = text.strip("`\n ")
    text = text if text.startswith("[") else f"[{text}"
    text = text if text.endswith("]") else f"{text}]"
    found = ast.parse(text, mode="eval").body
    calls = found.elts if isinstance(found, ast.List) else [found]
    return [_call(node) for node in calls]


def _call(node: ast.expr) -> dict[str, dict[str | None, Any]]:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    arguments = {k.arg: ast.literal_eval(_NamesAsText().visit(k.value)) for k in node.keywords}
    return {ast.unparse(node.func): arguments}


class _NamesAsText(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Constant:
        return ast.Constant(node.id)


@functools.cache
def checker() -> tuple[Callable[..., dict[str, Any]], Any]:
    """BFCL's `ast_checker`, and its name for Python.

    It imports a table of all models of the leaderboard, and so the clients of a dozen vendors, to look up one thing: whether the
    model's functions have other names. An empty table is in its place while it is imported.
    """
    name = "bfcl_eval.constants.model_config"
    table = ModuleType(name)
    vars(table)["MODEL_CONFIG_MAPPING"] = defaultdict(lambda: SimpleNamespace(underscore_to_dot=False))
    there = sys.modules.setdefault(name, table)
    try:
        from bfcl_eval.constants.enums import Language
        from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    finally:
        if there is table:
            del sys.modules[name]
    return ast_checker, Language.PYTHON
