"""docs/online-runner.md: its example works, and its tables are those of the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import pytest

from ajet_online import Counts, Runner
from tests.pages import blocks, files, page

from .fake_explorer import KEY, FakeExplorer, Message, call_tools, fake_explorer, say

PAGE = page("docs/online-runner.md")


def test_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")

    def answer(messages: list[Message]) -> Message:
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if results:
            return say(" | ".join(results))
        return call_tools("find_order", "cancel_order", number="A7")

    with fake_explorer() as explorer:
        explorer.answer = answer
        monkeypatch.setenv("PRODUCTION_URL", explorer.production.base_url)
        monkeypatch.setenv("PRODUCTION_KEY", explorer.production.api_key)
        service = load(files(PAGE)["service.py"], explorer)
        with service["runner"] as runner:
            assert runner.run("Cancel my order A7.") == "on its way | done"
        assert (runner.counts.selected, runner.counts.shadow_runs, runner.counts.refused_tools) == (1, 4, 4)
        refusal = [block.strip() for block in blocks(PAGE, "") if block.startswith("tool ")]
        finals = [body["messages"] for _, body in explorer.shadow_calls() if len(body["messages"]) > 1]
        assert [messages[-1]["content"] for messages in finals] == refusal * 4
        assert {messages[-2]["content"] for messages in finals} == {"cancelled"}  # what the tool reads now
        assert len(explorer.feedback) == 4 and len(explorer.commits) == 1


def load(source: str, explorer: FakeExplorer) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "service"}
    source = source.replace("http://127.0.0.1:8000", explorer.url).replace("a-secret-of-my-own", KEY)
    exec(source, names)
    return names


def test_the_strategy_of_the_page() -> None:
    (source,) = [block for block in blocks(PAGE, "python") if "def long_answers" in block]
    names: dict[str, Any] = {}
    exec(source, names)
    from ajet_online import Request

    request = Request("t", 1.5, False, (), {})
    assert not names["long_answers"]("task", "short", request).train
    decision = names["long_answers"]("task", "long " * 1000, request)
    assert decision.train and decision.metadata == {"seconds": 1.5}


def test_the_page_has_every_counter_and_default() -> None:
    (table,) = re.findall(r"\| counter \|.*", PAGE, re.DOTALL)
    assert {field.name for field in dataclasses.fields(Counts)} == set(re.findall(r"`(\w+)`", table))
    parameters = inspect.signature(Runner).parameters
    for name in ("pool", "queue", "timeout"):
        assert f"| `{name}` | {parameters[name].default:g} |" in PAGE
    assert "`commit_interval` seconds (default: 300)" in PAGE
