"""examples/word_problems: the first command. Its agent, its problems and its judge."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet import Task

FOLDER = Path(__file__).parents[2] / "examples" / "word_problems"


def load(name: str) -> ModuleType:
    """A fresh module from a file of the example."""
    spec = importlib.util.spec_from_file_location(f"example_word_problems_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


problems = load("problems")


def read(**fields: Any) -> list[Task]:
    return list(problems.Problems(**fields).tasks())


# ------------------------------------------------------------------ the agent


def answered(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch, *answers: str) -> tuple[str, list[Any]]:
    """What the agent answers where a model gives these answers, and the chats that it sent."""
    chats: list[Any] = []

    def reply(request: Request) -> Response:
        chats.append(request.get_json()["messages"])
        message = {"role": "assistant", "content": answers[len(chats) - 1]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        said = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return Response(json.dumps(said), content_type="application/json")

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(reply)
    monkeypatch.setenv("OPENAI_BASE_URL", httpserver.url_for("/v1"))
    monkeypatch.setenv("NO_PROXY", httpserver.host)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return asyncio.run(load("agent").run(SimpleNamespace(query="How many?"))), chats


def test_the_agent_shows_the_protocol_and_sends_the_result_of_the_sum(
    httpserver: HTTPServer, monkeypatch: Any
) -> None:
    answer, (first, second) = answered(httpserver, monkeypatch, "CALC(4*12+5)", "53")
    assert answer == "53"
    shown = [m["content"] for m in first if m["role"] == "assistant"]
    assert shown == ["CALC(310+25)", "335", "CALC(4*12-5)", "43", "CALC(210-14+35)", "231"]
    assert second[: len(first)] == first and second[-1]["content"].startswith("53\n")


def test_an_answer_without_a_sum_is_the_last_one(httpserver: HTTPServer, monkeypatch: Any) -> None:
    answer, chats = answered(httpserver, monkeypatch, "I do not know.")
    assert (answer, len(chats)) == ("I do not know.", 1)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("7/2", "3.5"),
        ("-3 + 5", "2"),
        ("60*99999", "5999940"),
        ("1/0", "error: ZeroDivisionError"),
        ("2+", "error: SyntaxError"),
        ("2**9", "error: ValueError"),
        ("9" * 59, "1e+59"),
    ],
)
def test_the_calculator_answers_whatever_the_model_writes(expression: str, told: str) -> None:
    assert load("agent").calculate(expression) == told


def test_no_line_of_the_agent_knows_us() -> None:
    assert "ajet" not in (FOLDER / "agent.py").read_text().lower()


# ------------------------------------------------------------------ problems and judge


def test_problems_are_reproducible_and_those_held_out_are_in_no_training_set() -> None:
    training = {task.query for seed in range(3) for task in read(count=240, seed=seed)}
    held = read(count=128, held_out=True)
    assert read(count=128, held_out=True) == held != read(count=128, held_out=True, seed=1)
    assert training.isdisjoint(task.query for task in held)


def test_a_third_of_the_held_out_problems_have_patterns_that_training_never_shows() -> None:
    held = read(count=300, held_out=True)
    new = [task for task in held if task.metadata["pattern"] == "new"]
    assert 70 <= len(new) <= 130 and all(task.id.startswith("new-") for task in new)
    assert {task.metadata["pattern"] for task in read(count=300)} == {"known"}
    patterns = [{pattern for pattern, _ in kind} for kind in (problems.KNOWN, problems.NEW)]
    assert patterns[0].isdisjoint(patterns[1])


def test_the_answer_of_each_pattern_follows_from_its_numbers() -> None:
    for pattern, answer in (*problems.KNOWN, *problems.NEW):
        numbers = {"a": 700, "b": 200, "c": 30, "s": 20, "k": 10}
        used = [value for letter, value in numbers.items() if f"{{{letter}}}" in pattern]
        found = answer(*numbers.values())
        if {20, 10} <= set(used):
            assert found == 200 + (30 if 30 in used else 0), pattern
        else:
            assert found in {700 + sign * 200 + other * 30 for sign in (1, -1) for other in (0, 1, -1)}, (
                pattern
            )


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("53", 1),
        ("Ada has 53 coins.", 1),
        ("4*12+5=53", 1),
        ("53, not 54", 0),
        ("1,053", 0),
        ("", 0),
        ("53.5", 0),
    ],
)
def test_the_last_number_must_be_the_answer(response: str, reward: float) -> None:
    task = Task("t", metadata={"answer": "53"})
    assert problems.judge(task, SimpleNamespace(response=response)) == reward
