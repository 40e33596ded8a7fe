"""Finds the program in an answer, in the ways in which models write programs."""

from __future__ import annotations

import ast
import builtins
import io
import re
import textwrap
from bisect import bisect_left
from dataclasses import dataclass

PYTHON = ("python", "py", "python3", "py3")
MOST_ENDS = 20
"""Lines that may end a block, of which the first is taken with which the block is Python."""
_OPEN = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*\{?\.?([\w+#-]*)[^`\n]*")
_OPEN_BEHIND_WORDS = re.compile(r"[^`]*()(`{3,})[ \t]*((?:python|py)3?)[ \t]*", re.IGNORECASE)
_CLOSE = re.compile(r"[ \t]*(?:`{3,}|~{3,})[ \t]*")
_PROGRAM = re.compile(r"^(?:async def|def|class)\b|\binput\(|\bstdin\b|\bopen\(0\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Block:
    language: str
    code: str


def program_in(response: str) -> str:
    """The program in a text: the last block that defines or reads something, with those before it whose names it uses. Blocks
    without a language, which often hold outputs, count if none says Python. The text itself if it has no blocks."""
    blocks = _blocks(response)
    if not blocks:
        return response
    codes = [b.code for b in blocks if b.language in PYTHON] or [b.code for b in blocks if not b.language]
    if not codes:
        return ""
    ranks = [_rank(code) for code in codes]
    last = len(ranks) - 1 - ranks[::-1].index(max(ranks))
    program = codes[last]
    missing = _names_missing_in(program)
    for code in reversed(codes[:last]):
        if not missing:
            break
        if missing & _names_defined_in(code):
            program = f"{code}\n{program}"
            missing = _names_missing_in(program)
    return program


def _blocks(text: str) -> list[_Block]:
    """The fenced blocks, without the indentation of their fences. The last one may be unclosed."""
    # Python's line ends: other ones, which `splitlines` has, may stand in its strings.
    lines = [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]
    ends = [i for i, line in enumerate(lines) if _CLOSE.fullmatch(line)]
    blocks = []
    at = cut = 0
    while at < len(lines):
        opened = _OPEN.fullmatch(lines[at]) or _OPEN_BEHIND_WORDS.fullmatch(lines[at])
        at += 1
        if not opened:
            continue
        indent, fence, language = len(opened[1]), opened[2], opened[3].lower()
        first = bisect_left(ends, at)
        near = [i for i in ends[first : first + MOST_ENDS] if lines[i].strip().startswith(fence)] or [
            len(lines)
        ]
        end, code = near[0], _dedented(lines[at : near[0]], indent)
        if language in PYTHON and _tree(code) is None:  # a fence in a docstring
            for other in near[1:]:
                whole = _dedented(lines[at:other], indent)
                if _tree(whole) is not None:
                    end, code = other, whole
                    break
            else:
                closing = next((i for i in range(at, end) if fence in lines[i]), None)
                if closing is not None and (cut := cut + 1) <= MOST_ENDS:  # a fence behind the last line
                    short = _dedented([*lines[at:closing], lines[closing].partition(fence)[0]], indent)
                    if short.strip() and _tree(short) is not None:
                        end, code = closing, short
        blocks.append(_Block(language, code))
        at = end + 1
    return blocks


def _dedented(lines: list[str], indent: int) -> str:
    kept = [line[indent:] if not line[:indent].strip() else line.lstrip() for line in lines]
    code = "".join(f"{line}\n" for line in kept)
    return code if _tree(code) is not None else textwrap.dedent(code)


def _rank(code: str) -> int:
    """2: defines or reads something; 1: does something; 0: an output, or nothing."""
    if _PROGRAM.search(code):
        return 2
    tree = _tree(code)
    if tree is None:
        return 0
    return int(any(not isinstance(n, ast.Expr) or isinstance(n.value, ast.Call) for n in tree.body))


def _names_missing_in(code: str) -> set[str]:
    tree = _tree(code)
    if tree is None:
        return set()
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - _names_bound_in(tree) - set(vars(builtins))


def _names_bound_in(tree: ast.Module) -> set[str]:
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return bound


def _names_defined_in(code: str) -> set[str]:
    """Names at the top level, as far as a later block can use them."""
    tree = _tree(code)
    return set() if tree is None else _names_bound_in(tree)


def _tree(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
