"""Which arguments the functions of a job get: judges, workflows."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import ajet
from ajet.interfaces.judge import JUDGED
from ajet.utils.signature import bind

VALUES = {"task": "T", "output": "O", "episode": "E"}


def judge(code: str) -> Any:
    """The object `f` of some code, as a judge gets called."""
    space: dict[str, Any] = {"functools": functools}
    exec(code, space)
    return bind(space["f"], JUDGED, 2).partial(space["f"], VALUES)()


@pytest.mark.parametrize(
    ("code", "given"),
    [
        ("def f(task, output): return task, output", ("T", "O")),
        ("def f(task, output, episode): return task, output, episode", ("T", "O", "E")),
        ("def f(t, o): return t, o", ("T", "O")),
        ("def f(t, o, e): return t, o, e", ("T", "O", "E")),
        ("def f(output): return output", "O"),
        ("def f(output, task): return output, task", ("O", "T")),
        ("def f(episode): return episode", "E"),
        ("def f(task): return task", "T"),
        ("def f(*, output, episode): return output, episode", ("O", "E")),
        ("def f(t, o, *, episode): return t, o, episode", ("T", "O", "E")),
        ("def f(task, output, strict=True): return task, output, strict", ("T", "O", True)),
        ("def f(t, o, strict=True): return t, o, strict", ("T", "O", True)),
        ("def f(t, o, episode=None): return t, o, episode", ("T", "O", "E")),
        ("def f(t, /, output): return t, output", ("T", "O")),
        ("def f(*args): return args", ("T", "O", "E")),
        ("def f(*args, **kwargs): return args, kwargs", (("T", "O", "E"), {})),
        ("def f(task, *rest): return task, rest", ("T", ("O", "E"))),
        ("def f(task, *rest, **more): return task, rest, more", ("T", ("O", "E"), {})),
        ("def f(*rest, episode): return rest, episode", (("T", "O"), "E")),
        ("def f(output, **rest): return output, rest", ("O", {"task": "T", "episode": "E"})),
        ("def f(**all): return all", VALUES),
        ("f = functools.partial(lambda n, task, output: (n, task, output), 3)", (3, "T", "O")),
        ("class C:\n    def __call__(self, task, output): return task, output\nf = C()", ("T", "O")),
        (
            "def wrap(g):\n    @functools.wraps(g)\n    def inner(a, b): return g(a, b)\n    return inner\n"
            "@wrap\ndef f(task, output): return task, output",
            ("T", "O"),
        ),
    ],
)
def test_values_go_by_the_names_of_parameters_else_by_position(code: str, given: Any) -> None:
    assert judge(code) == given


@pytest.mark.parametrize(
    "code",
    [
        "def f(): pass",
        "def f(answer): pass",
        "def f(answer, /): pass",
        "def f(output, answer): pass",
        "def f(question, task): pass",
        "def f(a, b, c, d): pass",
        "def f(task, output, *, strict): pass",
        "def f(output, /): pass",
        "def f(output, *rest): pass",
        "def f(a, b, c, d, *rest): pass",
    ],
)
def test_other_signatures_are_refused_with_the_allowed_ones(code: str) -> None:
    with pytest.raises(
        TypeError, match=r"must take \(task, output\) or \(task, output, episode\), but takes \("
    ):
        judge(code)


def test_a_function_that_cannot_be_asked_gets_the_least_by_position() -> None:
    assert bind(min, JUDGED, 2).partial(min, VALUES)() == "O"


def test_judge_classes_with_methods_that_cannot_be_called_are_refused_where_they_are_defined() -> None:
    with pytest.raises(TypeError, match=r"Short\.judge must take \(self, task, output, episode\), but takes"):

        class Short(ajet.Judge):
            async def judge(self, output: Any) -> Any: ...  # type: ignore[override]

    with pytest.raises(TypeError, match=r"Swapped\.judge must take"):

        class Swapped(ajet.Judge):
            async def judge(self, output: Any, task: Any, episode: Any) -> Any: ...

    with pytest.raises(TypeError, match=r"Group\.score_group must take \(self, task, episodes\), but takes"):

        class Group(ajet.GroupJudge):
            async def score_group(self, episodes: Any) -> Any: ...  # type: ignore[override]

    class Fine(ajet.GroupJudge):
        async def judge(self, t: Any, o: Any, e: Any, more: int = 0) -> Any: ...

        async def score_group(self, *members: Any) -> Any: ...

    class Passes(ajet.Judge):
        async def judge(self, task: Any, *args: Any, **kwargs: Any) -> Any: ...
