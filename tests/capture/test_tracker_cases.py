"""The tracker's cases that clients see, over every wire and through both doors (numbers as in tests/tracker/cases.md)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ajet.testing import ScriptedEngine
from tests.engines import with_patience
from tests.patience import PATIENCE
from tests.tiers import thinned

from ..plugins.programs import TOOL, calling, lines, script
from .clients import HOOKED, QUESTION, completed, joined, tool_messages
from .doors import Door, behind, each_door, whole_and_streamed

WIRES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"model": "m", "messages": [QUESTION]},
    "/responses": {"model": "m", "input": [QUESTION]},
    "/completions": {"model": "m", "prompt": "Once"},
    "/messages": {"model": "m", "messages": [QUESTION], "max_tokens": 99},
}
LIMITS = {"/responses": "max_output_tokens"}
each_wire = pytest.mark.parametrize("path", WIRES)


def post(url: str, path: str, key: str, body: dict[str, Any]) -> str:
    """The body of a reply."""
    headers = {"authorization": f"Bearer {key}"}
    response = httpx.post(f"{url}{path}", json=body, headers=headers, timeout=PATIENCE)
    assert response.status_code == 200, response.text
    return response.text


def events(text: str) -> list[dict[str, Any]]:
    """The data of server-sent events."""
    data = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {"))
    return [json.loads(found) for found in data]


def ending(path: str, text: str, stream: bool) -> tuple[str, int]:
    """Why an answer ended, in the dialect's words, and how many tokens the dialect says it has."""
    told = events(text) if stream else [json.loads(text)]
    if path == "/responses":
        response = told[-1]["response"] if stream else told[-1]
        why = (response["incomplete_details"] or {"reason": response["status"]})["reason"]
        return why, response["usage"]["output_tokens"]
    if path == "/messages":
        last = next(e for e in told if e["type"] == "message_delta") if stream else told[0]
        return (last["delta"] if stream else last)["stop_reason"], last["usage"]["output_tokens"]
    (why,) = (c["finish_reason"] for e in told for c in e["choices"] if c["finish_reason"])
    return why, told[-1]["usage"]["completion_tokens"]


@each_door
@each_wire
@whole_and_streamed
@thinned
def test_38_an_output_of_exactly_max_tokens_ends_by_its_length(
    bench, tokenizer, path: str, stream: bool, door: Door
) -> None:
    said = "one two three"
    size = len(tokenizer.encode(said, add_special_tokens=False))
    b = bench(ScriptedEngine(tokenizer, lambda r, p: said))
    usage = {"stream_options": {"include_usage": True}} if stream and path.endswith("completions") else {}
    reasons = {"/responses": ("max_output_tokens", "completed"), "/messages": ("max_tokens", "end_turn")}
    cut, whole = reasons.get(path, ("length", "stop"))
    for limit, why in ((size, cut), (size + 1, whole)):  # one more leaves room for the end of the turn
        with b.session() as session, behind(door, b) as url:
            body = WIRES[path] | {LIMITS.get(path, "max_tokens"): limit, "stream": stream} | usage
            text = post(url, path, session.key, body)
        assert ending(path, text, stream) == (why, limit)
        (call,) = session.record.calls
        ids = call.generation.token_ids.tolist()
        assert len(ids) == limit and tokenizer.decode(ids[:size]) == said


@each_door
@each_wire
@whole_and_streamed
@pytest.mark.parametrize("how", ["timeout", "cancelled"])
@thinned
def test_41_a_client_that_gives_up_stops_its_generation_and_leaves_no_ghost_call(
    bench, tokenizer, path: str, stream: bool, door: Door, how: str
) -> None:
    pause = {"seconds_between": 600.0} if stream else {"seconds": 600.0}  # streamed: in the middle
    engine = ScriptedEngine(tokenizer, lambda r, p: "one two three", **pause)
    b = bench(engine)

    async def ask(url: str, seconds: float) -> None:
        headers = {"authorization": f"Bearer {session.key}"}
        limit = httpx.Timeout(PATIENCE, read=seconds)
        body = WIRES[path] | {"stream": stream}
        async with (
            httpx.AsyncClient(timeout=limit) as client,
            client.stream("POST", f"{url}{path}", json=body, headers=headers) as response,
        ):
            await response.aread()

    async def give_up(url: str, seconds: float) -> None:
        task = asyncio.create_task(ask(url, seconds))
        if how == "cancelled":
            while not engine.requests:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            task.cancel()
        with pytest.raises(httpx.ReadTimeout if how == "timeout" else asyncio.CancelledError):
            await task

    with b.session() as session, behind(door, b) as url:
        patience = PATIENCE / 2 if how == "cancelled" else 0.5
        with_patience(lambda seconds: asyncio.run(give_up(url, seconds)), lambda: engine.requests, patience)
        deadline = time.monotonic() + PATIENCE
        while session.in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (engine.cancelled, session.in_flight) == (len(engine.requests), 0)
    assert not session.record.calls and not session.record.exchanges


def written(session: Any) -> list[Any]:
    """All of a record: tokens, logprobs, versions, why each prompt is as it is, and every chat."""
    calls = session.record.calls
    return [
        lines(session.record),
        [(c.number, c.agent, c.target, c.parent, c.cause, c.temperature) for c in calls],
        [(c.generation.finish_reason, c.generation.weight_versions.tolist()) for c in calls],
        [(e.agent, e.chat()) for e in session.record.exchanges],
    ]


@each_door
@pytest.mark.parametrize("name", HOOKED)
@thinned
def test_46_a_streamed_conversation_leaves_the_record_of_one_that_is_not(
    bench, tokenizer, name: str, door: Door
) -> None:
    records = []
    b = bench(ScriptedEngine(tokenizer, script))
    for stream in (False, True):
        with b.session() as session, behind(door, b) as url:
            HOOKED[name](url, session.key, stream)
        records.append(written(session))
    assert records[0] == records[1] and len(records[0][1]) == 2


@each_door
def test_46_a_streamed_completion_leaves_the_record_of_one_that_is_not(bench, tokenizer, door: Door) -> None:
    records = []
    b = bench(ScriptedEngine(tokenizer, lambda r, p: " upon a time"))
    for stream in (False, True):
        with b.session() as session, behind(door, b) as url:
            post(url, "/completions", session.key, WIRES["/completions"] | {"stream": stream})
        records.append(written(session))
    assert records[0] == records[1] and len(records[0][1]) == 1


def two_calls(request: Any, prompt: str) -> str:
    if "<tool_response>" in prompt:
        return "<think>\nBoth are there.\n</think>\n\nThey are 3 and 7."
    sums = [calling("calculator", expression=text) for text in ("1 + 2", "3 + 4")]
    return "<think>\nTwo sums.\n</think>\n\nI add.\n" + "\n".join(sums)


def by_chat(ask: Callable[[str, dict[str, Any]], str], stream: bool) -> None:
    messages: list[Any] = [QUESTION]
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    for _ in range(2):
        text = ask("/chat/completions", {"messages": messages, "tools": [TOOL], **usage})
        turn = joined(text.splitlines()) if stream else completed(text)
        messages += [*turn.said, *tool_messages({call_id: call_id for call_id in turn.calls})]


def by_items(ask: Callable[[str, dict[str, Any]], str], stream: bool, *, ids: bool = True) -> None:
    items: list[Any] = [QUESTION]
    for _ in range(2):
        text = ask("/responses", {"input": items, "tools": [{"type": "function", **TOOL["function"]}]})
        output = (events(text)[-1]["response"] if stream else json.loads(text))["output"]
        assert [item["type"] for item in output[:2]] == ["reasoning", "message"]
        calls = [item for item in output if item["type"] == "function_call"]
        items += output if ids else [{k: v for k, v in item.items() if k != "id"} for item in output]
        for call in calls:
            result = {"call_id": call["call_id"], "output": call["call_id"]}
            items.append({"type": "function_call_output", **result})


@each_door
@whole_and_streamed
@pytest.mark.parametrize("ids", [True, False], ids=["", "without ids"])
@thinned
def test_48_the_items_of_a_turn_are_one_message_and_the_record_that_of_chat_completions(
    bench, tokenizer, stream: bool, ids: bool, door: Door
) -> None:
    b = bench(ScriptedEngine(tokenizer, two_calls))
    records = []
    for agent in (by_chat, lambda ask, stream: by_items(ask, stream, ids=ids)):
        with b.session() as session, behind(door, b) as url:
            agent(
                lambda path, body: post(url, path, session.key, {"model": "m", "stream": stream, **body}),
                stream,
            )
        records.append(written(session))
    assert records[0] == records[1]
    assert len(records[0][0]) == 1 and [call[3] for call in records[0][1]] == [None, 0]
