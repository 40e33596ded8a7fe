"""What a request means to the model: which tools are in its prompt, whether its answer may call them, and the variables of
its chat template. The same over each wire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target
from ajet.chat.renderer import Chat
from ajet.testing import ScriptedEngine
from ajet.tracker.breaks import find_breaks
from ajet.tracker.timelines import timelines
from tests.patience import PATIENCE

from ..plugins.programs import CLOSED
from .clients import completed
from .doors import whole_and_streamed

USER = {"role": "user", "content": "1 + 1?"}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
OTHER = CALL.replace("add", "sub")
WIRES: dict[str, dict[str, Any]] = {
    "/chat/completions": {
        "messages": [USER],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}],
        "tool_choice": "none",
    },
    "/responses": {
        "input": [USER],
        "tools": [{"type": "function", "name": "add", "parameters": PARAMETERS}],
        "tool_choice": "none",
    },
    "/messages": {
        "messages": [USER],
        "max_tokens": 99,
        "tools": [{"name": "add", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "none"},
    },
}
each_wire = pytest.mark.parametrize("path", WIRES)


def post(path: str, *without: str, **fields: Any) -> httpx.Response:
    """A request of a wire without some of its fields, and with others."""
    body = {key: value for key, value in WIRES[path].items() if key not in without}
    return httpx.post(f"{CLOSED}{path}", json={"model": "m", **body, **fields}, timeout=PATIENCE)


def said(path: str, reply: Mapping[str, Any]) -> tuple[str, int]:
    """The text of a reply, and how many tools it calls."""
    if path == "/chat/completions":
        message = reply["choices"][0]["message"]
        return message["content"] or "", len(message.get("tool_calls") or ())
    parts = reply["output"] if path == "/responses" else reply["content"]
    calls = sum(part["type"] in ("function_call", "tool_use") for part in parts)
    if path == "/responses":
        parts = [p for item in parts if item["type"] == "message" for p in item["content"]]
    return "".join(part.get("text", "") for part in parts), calls


def seen(bench: Any, tokenizer: Any, number: int = -1) -> str:
    """A prompt as text."""
    return str(tokenizer.decode(bench.engine.requests[number].prompt_ids.tolist()))


# --------------------------------------------------------------------------- tools


@each_wire
def test_with_tool_choice_none_the_tools_stay_in_the_prompt_and_the_answer_is_text(
    bench, tokenizer, path: str
) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: CALL))
    with b.session() as session:
        post(path, "tool_choice")
        text, calls = said(path, post(path).json())
    assert (text, calls) == (CALL, 0)
    assert seen(b, tokenizer, 0) == seen(b, tokenizer, 1) and '"add"' in seen(b, tokenizer)
    first, second = session.record.exchanges
    assert first.key == second.key and first.answer.message["tool_calls"]
    assert second.answer.message == {"role": "assistant", "content": CALL}


def test_a_timeline_goes_on_through_calls_with_tool_choice_none(bench, tokenizer) -> None:
    answers = iter([CALL, "It is 2.", "Yes."])
    b = bench(ScriptedEngine(tokenizer, lambda r, p: next(answers)))
    with b.session() as session:
        turn = completed(post("/chat/completions", "tool_choice").text)
        (call_id,) = turn.calls
        chat = [USER, *turn.said, {"role": "tool", "tool_call_id": call_id, "content": "2"}]
        chat += [*completed(post("/chat/completions", messages=chat).text).said, USER]
        post("/chat/completions", "tool_choice", messages=chat)
    assert len(timelines(session.record.trained_calls)) == 1 and not find_breaks(session.record)


@each_wire
def test_an_answer_to_a_request_without_tools_is_text(bench, tokenizer, path: str) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: f"So: {CALL}")).session():
        assert said(path, post(path, "tools", "tool_choice").json()) == (f"So: {CALL}", 0)


@whole_and_streamed
def test_a_call_of_a_tool_that_was_not_offered_is_text_and_counted(bench, tokenizer, stream: bool) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: OTHER)).session() as session:
        reply = post("/chat/completions", "tool_choice", stream=stream)
    if stream:
        chunks = [
            line.removeprefix("data: ") for line in reply.text.split("\n\n") if line.startswith("data: {")
        ]
        deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
        assert "".join(d.get("content") or "" for d in deltas) == OTHER
        assert not any("tool_calls" in d for d in deltas)
    else:
        assert said("/chat/completions", reply.json()) == (OTHER, 0)
    assert session.counters["unoffered_tool_calls"] == 1 and not session.counters["malformed_tool_calls"]


@whole_and_streamed
def test_the_text_of_a_call_without_tools_streams_as_the_whole_answer(bench, tokenizer, stream: bool) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: f"So: {CALL}")).session() as session:
        post("/chat/completions", stream=stream)
    assert session.record.exchanges[0].answer.message == {"role": "assistant", "content": f"So: {CALL}"}


@pytest.mark.parametrize("without", [("tools", "tool_choice"), ()], ids=["no tools", "none"])
def test_a_call_does_not_pass_a_schema_where_no_tool_could_be_called(bench, tokenizer, without: Any) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    with bench(ScriptedEngine(tokenizer, lambda r, p: CALL)).session():
        reply = post("/chat/completions", *without, response_format=schema)
    assert reply.status_code == 422 and "must be JSON" in reply.json()["error"]["message"]


class Calls:
    """A chat model that calls a tool whatever it is offered, and notes what that is."""

    def __init__(self) -> None:
        self.offered: Any = None
        self.seeds: list[int | None] = []

    async def complete(self, messages: Any, tools: Any, sampling: Any) -> Any:
        self.offered = tools
        self.seeds.append(sampling.seed)
        return {"role": "assistant", "content": "2"}


def test_a_chat_model_is_not_offered_tools_that_it_may_not_call(bench, tokenizer) -> None:
    model = Calls()
    with bench(ScriptedEngine(tokenizer, lambda r, p: "")).session(targets=[Target("judge", model=model)]):
        post("/chat/completions")
        assert not model.offered
        post("/chat/completions", "tool_choice")
        assert [tool["function"]["name"] for tool in model.offered] == ["add"]


FAULT = "the model's tool calls cannot be read. Set rollout.tool_calls: text"


@each_wire
def test_tools_whose_calls_cannot_be_read_are_refused(
    bench, tokenizer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chat, "calls_fault", FAULT, raising=False)
    b = bench(ScriptedEngine(tokenizer, lambda r, p: CALL))
    with b.session() as session:
        refused = post(path, "tool_choice")
        assert refused.status_code == 400 and FAULT in refused.json()["error"]["message"]
        assert session.counters["refused:tools_unreadable"] == 1 and not b.engine.requests
        assert post(path).status_code == post(path, "tools", "tool_choice").status_code == 200


# --------------------------------------------------------------------------- variables of the chat template

OFF: list[dict[str, Any]] = [
    {"enable_thinking": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": False}},
]


@each_wire
@pytest.mark.parametrize("fields", OFF, ids=str)
def test_a_variable_of_the_chat_template_is_honoured(bench, tokenizer, path: str, fields: Any) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "2"))
    with b.session() as session:
        post(path)
        assert post(path, **fields).status_code == 200
        post(path)
    plain, without, again = (seen(b, tokenizer, n) for n in range(3))
    assert plain == again and without == f"{plain}<think>\n\n</think>\n\n"
    assert len({e.key for e in session.record.exchanges}) == 1


def test_a_conversation_whose_variable_changes_is_written_as_the_template_writes_it(bench, tokenizer) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "two"))
    chat: list[Any] = [USER]
    with b.session() as session:
        for thinking in (False, True, True):
            turn = completed(post("/chat/completions", messages=chat, enable_thinking=thinking).text)
            chat = [*chat, *turn.said, USER]
    texts = [
        tokenizer.apply_chat_template(
            chat[: 2 * n + 1],
            tools=WIRES["/chat/completions"]["tools"],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=n > 0,
        )
        for n in range(3)
    ]
    assert [seen(b, tokenizer, n) for n in range(3)] == texts
    assert [c.parent for c in session.record.calls] == [None, None, 1]
    assert [b.call for b in find_breaks(session.record)] == [1]


@each_wire
def test_a_variable_that_the_template_does_not_read_is_refused_by_name(bench, tokenizer, path: str) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "2"))
    with b.session() as session:
        refused = post(path, chat_template_kwargs={"enable_thinkin": False})
        assert refused.status_code == 400 and "enable_thinking" in refused.json()["error"]["message"]
        assert post(path, chat_template_kwargs={"messages": "x"}).status_code == 400
    assert session.counters["refused:unsupported_parameter"] == 2 and not b.engine.requests


@each_wire
@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"enable_thinking": "no"}, "expected true or false"),
        ({"chat_template_kwargs": [1]}, "must be an object"),
        ({"chat_template_kwargs": {"a": [1]}}, '"a" is not a name with a number'),
        ({"chat_template_kwargs": {"a": "x" * 2000}}, '"a" is not a name with a number'),
        ({"chat_template_kwargs": {"a b\n": 1}}, "is not a name with a number"),
        ({"chat_template_kwargs": {f"a{n}": 1 for n in range(21)}}, "at most 20"),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "differ"),
    ],
    ids=lambda x: json.dumps(x)[:40],
)
def test_variables_are_a_few_plain_values(bench, tokenizer, path: str, fields: Any, fault: str) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: "2")).session() as session:
        refused = post(path, **fields)
    assert refused.status_code == 400 and fault in refused.json()["error"]["message"]
    assert session.counters["refused:invalid_request"] == 1


def test_a_chat_model_has_no_variables_and_no_logprobs(bench, tokenizer) -> None:
    targets = [Target("judge", model=Calls())]
    with bench(ScriptedEngine(tokenizer, lambda r, p: "")).session(targets=targets):
        refused = post("/chat/completions", enable_thinking=False, logprobs=True)
    told = refused.json()["error"]["message"]
    assert refused.status_code == 400 and told.endswith("remove enable_thinking, logprobs")


def test_each_choice_of_a_chat_model_has_a_seed_of_its_own(bench, tokenizer) -> None:
    model = Calls()
    made = bench(ScriptedEngine(tokenizer, lambda r, p: ""))
    with made.session(targets=[Target("judge", model=model)], policy=SamplingPolicy(training=False)):
        post("/chat/completions", seed=5, n=2)
    assert model.seeds == [5, 6]
