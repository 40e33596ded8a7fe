"""The shadow runs of docs/online.md: their example works, and the tables are those of the code."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from ajet_online import Counts, Runner, SamplingRate, ShadowRun
from tests.pages import blocks, files, page

from .fake_explorer import KEY, FakeExplorer, Message, call_tools, fake_explorer, say

PAGE = page("docs/online.md")


def use_tools(messages: list[Message]) -> Message:
    results = [text(message) for message in messages if message["role"] == "tool"]
    return say(" | ".join(results)) if results else call_tools("find_order", "cancel_order", number="A7")


def text(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.fixture
def explorer(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeExplorer]:
    with fake_explorer() as fake:
        for prefix in ("PRODUCTION", "OPENAI"):
            monkeypatch.setenv(f"{prefix}_URL", fake.production["base_url"])
            monkeypatch.setenv(f"{prefix}_BASE_URL", fake.production["base_url"])
            for name in ("KEY", "API_KEY"):
                monkeypatch.setenv(f"{prefix}_{name}", fake.production["api_key"])
        yield fake


def test_the_example(explorer: FakeExplorer) -> None:
    pytest.importorskip("agentscope.credential")
    from agentscope.message import UserMsg

    explorer.answer = use_tools
    service = load(files(PAGE)["service.py"], explorer)
    with service["runner"] as runner:
        answer = asyncio.run(service["agent"].reply(UserMsg("user", "Cancel my order A7.")))
        assert answer.get_text_content() == "on its way | done"
    assert (runner.counts.selected, runner.counts.shadow_runs, runner.counts.refused_tools) == (1, 4, 4)
    refusal = [block.strip() for block in blocks(PAGE, "") if block.startswith("tool ")]
    finals = [
        body["messages"] for _, body in explorer.shadow_calls() if body["messages"][-1]["role"] == "tool"
    ]
    assert [text(messages[-1]) for messages in finals] == refusal * 4
    assert {text(messages[-2]) for messages in finals} == {"cancelled"}  # what the tool reads now
    assert len(explorer.feedback) == 4 and len(explorer.commits) == 1


def test_the_simulated_user(explorer: FakeExplorer) -> None:
    """The page's customer, an LLM, answers until it is done."""
    said = iter(["Where is my order A7?", "Then cancel it.", "DONE"])

    def answer(messages: list[Message]) -> Message:
        if text(messages[0]).startswith("You are a customer"):
            assert [message["role"] for message in messages[1:3]] == ["assistant", "user"]
            return say(next(said))
        return say(f"answer to: {text(messages[-1])}")

    explorer.answer = answer
    customer = load(files(PAGE)["customer.py"], explorer)["customer"]
    runs: list[ShadowRun] = []
    runner = Runner(
        explorer=explorer.url, key=KEY, select=SamplingRate(1.0), user=customer, reward=runs.append
    )
    with runner:
        assert runner.watch(explorer.ask)("Good morning") == "answer to: Good morning"
    (run,) = runs
    assert [message["content"] for message in run.messages] == [
        *("Good morning", "answer to: Good morning"),
        *("Where is my order A7?", "answer to: Where is my order A7?"),
        *("Then cancel it.", "answer to: Then cancel it."),
    ]
    assert len(explorer.shadow_calls()) == 3, "the customer's own calls are not a part of the run"


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

    request = Request("agent", "t", 1.5, False, (), {})
    assert not names["long_answers"]("task", "short", request).train
    decision = names["long_answers"]("task", "long " * 1000, request)
    assert decision.train and decision.metadata == {"seconds": 1.5}


def test_the_page_has_every_counter_and_default() -> None:
    (table,) = re.findall(r"\| counter \|.*?(?=\n\n)", PAGE, re.DOTALL)
    assert {field.name for field in dataclasses.fields(Counts)} == set(re.findall(r"`(\w+)`", table))
    parameters = inspect.signature(Runner).parameters
    for field in dataclasses.fields(ShadowRun):
        assert f"`{field.name}`" in PAGE
    for name in ("pool", "queue", "timeout"):
        assert f"| `{name}` | {parameters[name].default:g} |" in PAGE
    assert "`commit_interval` seconds (default: 300)" in PAGE
