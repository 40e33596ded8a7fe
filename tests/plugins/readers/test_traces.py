"""The `traces` reader: what was asked in production, from every kind of log, with its feedback."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet import ConfigError, Task
from ajet.interfaces.progress import Silent, reporting_to
from ajet.interfaces.reader import read_all
from ajet_readers import JsonLines, Traces
from tests.program import Program

from .scripted_endpoint import endpoint

QUESTION = "What grows in the woods?"
ANSWER = "Oaks grow there."


def read(path: Path, **fields: Any) -> list[Task]:
    return read_all(Traces(path=path, cache=path.parent / "cache", **fields), "task.reader")


def fault(path: Path, **fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


# ------------------------------------------------------------------ spans of a real agent


@pytest.fixture(scope="module")
def spans() -> Iterator[list[Any]]:
    """What AgentScope's tracing records of an agent that calls a tool, then answers."""
    for name in ("agentscope.agent", "opentelemetry.sdk.trace"):
        pytest.importorskip(name)
    from agentscope.agent import Agent
    from agentscope.credential import OpenAICredential
    from agentscope.message import UserMsg
    from agentscope.middleware import TracingMiddleware
    from agentscope.model import OpenAIChatModel
    from agentscope.permission import PermissionBehavior, PermissionDecision
    from agentscope.tool import FunctionTool, Toolkit
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    def look(place: str) -> str:
        """Look what grows somewhere."""
        return "oaks"

    class Model(OpenAIChatModel):
        pass

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with HTTPServer() as server:
        server.expect_request("/v1/chat/completions").respond_with_handler(looks_first)
        there = OpenAICredential(api_key="k", base_url=server.url_for("/v1"))
        model = Model(credential=there, model="m", stream=False, max_retries=0)
        allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="")
        tools = Toolkit(tools=[FunctionTool(look, permission=allowed)])
        agent = Agent("guide", "Be brief.", model, tools, middlewares=[TracingMiddleware()])
        asyncio.run(agent.reply(UserMsg("user", QUESTION)))
    yield list(exporter.get_finished_spans())


def looks_first(request: Request) -> Response:
    """A model that looks first and answers then."""
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    if request.get_json()["messages"][-1]["role"] != "tool":
        function = {"name": "look", "arguments": '{"place": "woods"}'}
        calls = [{"id": "c1", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    answer = {"id": "r", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    return Response(json.dumps({**answer, "usage": usage}), content_type="application/json")


def as_lines(spans: list[Any], folder: Path) -> Path:
    """One span a line, as the SDK's exporter for consoles writes them."""
    path = folder / "spans.jsonl"
    path.write_text("".join(span.to_json(indent=None) + "\n" for span in spans))
    return path


def as_otlp(spans: list[Any], folder: Path) -> Path:
    """OTLP's JSON, by the SDK's own encoder."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    def hexadecimal(value: Any) -> Any:
        if isinstance(value, dict):
            ids = {"traceId", "spanId", "parentSpanId"}
            return {k: base64.b64decode(v).hex() if k in ids else hexadecimal(v) for k, v in value.items()}
        return [hexadecimal(item) for item in value] if isinstance(value, list) else value

    path = folder / "otlp.json"
    path.write_text(json.dumps(hexadecimal(MessageToDict(encode_spans(spans)))))
    return path


def as_studio(spans: list[Any], folder: Path, *, nested: bool = False) -> Path:
    """The table that AgentScope Studio keeps, with attributes flat or, as before its migration, nested."""
    path = folder / "database.sqlite"
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE span_table (id varchar PRIMARY KEY, traceId varchar, spanId varchar, parentSpanId varchar,"
            "name varchar, kind integer, startTimeUnixNano varchar, endTimeUnixNano varchar, attributes json,"
            "events json, links json, status json, resource json, scope json, operationName varchar, runId varchar,"
            "latencyNs float)"
        )
        for span in spans:
            attributes: dict[str, Any] = {}
            for key, value in span.attributes.items():
                with suppress(ValueError):  # Studio parses strings that are JSON
                    value = json.loads(value) if isinstance(value, str) else value
                *parents, last = key.split(".") if nested else [key]
                node = attributes
                for parent in parents:
                    node = node.setdefault(parent, {})
                node[last] = value
            trace_id, span_id = f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"
            moments = (str(span.start_time), str(span.end_time))
            status = json.dumps({"code": 1, "message": ""})
            database.execute(
                "INSERT INTO span_table (id, traceId, spanId, name, kind, startTimeUnixNano, endTimeUnixNano,"
                "attributes, events, status, resource, scope, latencyNs) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    span_id,
                    trace_id,
                    span_id,
                    span.name,
                    1,
                    *moments,
                    json.dumps(attributes),
                    "[]",
                    status,
                    "{}",
                    "{}",
                    1.0,
                ),
            )
    database.close()
    return path


def as_nested_studio(spans: list[Any], folder: Path) -> Path:
    return as_studio(spans, folder, nested=True)


@pytest.mark.parametrize("export", [as_lines, as_otlp, as_studio, as_nested_studio])
def test_an_agents_trace_is_the_same_task_from_every_kind_of_export(
    spans: list[Any], tmp_path: Path, export: Any
) -> None:
    [task] = read(export(spans, tmp_path))
    assert task.id == f"trace-{spans[0].context.trace_id:032x}"
    assert task.query == QUESTION and task.messages == ()
    assert task.metadata["response"] == ANSWER and "answer" not in task.metadata
    assert task.metadata["model"] == "m"


def test_the_collectors_files_hold_a_batch_a_line_whatever_their_suffix(
    spans: list[Any], tmp_path: Path
) -> None:
    batch = as_otlp(spans, tmp_path).read_text()
    other = batch.replace(f"{spans[0].context.trace_id:032x}", "f" * 32)
    for suffix in ("json", "jsonl", "ndjson"):
        folder = tmp_path / suffix
        folder.mkdir()
        (folder / f"traces.{suffix}").write_text(f"{batch}\n{other}\n")
        assert len(read(folder)) == 2
    pretty = tmp_path / "pretty.json"
    pretty.write_text(json.dumps(json.loads(batch), indent=2))
    assert len(read(pretty)) == 1


def test_a_folder_of_several_exports_of_one_trace_counts_it_once(spans: list[Any], tmp_path: Path) -> None:
    for export in (as_lines, as_otlp, as_studio):
        export(spans, tmp_path)
    assert len(read(tmp_path)) == 1


def test_the_calls_of_a_trace_are_in_order_with_their_tools(spans: list[Any], tmp_path: Path) -> None:
    from ajet_readers.traces.sources import read_traces
    from ajet_readers.traces.trace import assemble

    [trace] = assemble(read_traces(as_otlp(spans, tmp_path), None, (0, 1)))
    first, second = trace.calls
    assert first.answer and first.answer["tool_calls"][0]["function"] == {
        "name": "look",
        "arguments": '{"place": "woods"}',
    }
    assert [m["role"] for m in second.messages][:3] == ["system", "user", "assistant"]
    [result] = [m for m in second.messages if m["role"] == "tool"]
    assert result["tool_call_id"] == "c1" and "oaks" in result["content"]


# ------------------------------------------------------------------ OpenTelemetry by hand


def chat_span(trace: str, query: str, answer: str | None = "ok", **more: Any) -> dict[str, Any]:
    """A span of a chat as one line, with structured attributes."""
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": query}]}],
    }
    if answer is not None:
        parts = [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": answer}]
        attributes["gen_ai.output.messages"] = [{"role": "assistant", "parts": parts}]
    attributes |= more.pop("attributes", {})
    span = {"trace_id": trace, "span_id": f"s{trace}", "name": "chat m", "attributes": attributes}
    return {**span, "start_time": f"2026-01-{int(trace):02}T00:00:00Z", **more}


def evaluation(**fields: Any) -> dict[str, Any]:
    attributes = {f"gen_ai.evaluation.{key.replace('__', '.')}": value for key, value in fields.items()}
    return {
        "name": "gen_ai.evaluation.result",
        "attributes": {"gen_ai.evaluation.name": "user", **attributes},
    }


def test_tasks_are_in_the_order_of_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *(chat_span(str(i), f"q{i}") for i in (3, 1, 2)))
    assert [t.query for t in read(path)] == ["q1", "q2", "q3"]


def test_system_instructions_and_history(tmp_path: Path) -> None:
    def said(role: str, text: str) -> Any:
        return {"role": role, "parts": [{"type": "text", "content": text}]}

    given = [said("user", "Hello"), said("assistant", "Hi."), said("user", "And now?")]
    attributes = {
        "gen_ai.input.messages": json.dumps(given),
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be kind."}]),
    }
    [task] = read(write(tmp_path / "a.jsonl", chat_span("1", "", attributes=attributes)))
    assert task.query == "And now?"
    assert [(m["role"], m["content"]) for m in task.messages] == [
        ("user", "Hello"),
        ("assistant", "Hi."),
        ("user", "And now?"),
    ]


def test_content_may_be_recorded_in_an_event(tmp_path: Path) -> None:
    span = chat_span("1", "in the event")
    details = {"name": "gen_ai.client.inference.operation.details", "attributes": span["attributes"]}
    bare = {**span, "attributes": {"gen_ai.operation.name": "chat"}, "events": [details]}
    assert [t.query for t in read(write(tmp_path / "a.jsonl", bare))] == ["in the event"]


def in_numbered_attributes() -> dict[str, Any]:
    """As OpenLLMetry writes them."""
    tool = {"gen_ai.prompt.2.tool_calls.0.id": "c1", "gen_ai.prompt.2.tool_calls.0.name": "look"}
    attributes = {
        "llm.request.type": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Be brief.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": QUESTION,
        "gen_ai.prompt.2.role": "assistant",
        **tool,
        "gen_ai.prompt.2.tool_calls.0.arguments": '{"place": "woods"}',
        "gen_ai.prompt.3.role": "tool",
        "gen_ai.prompt.3.content": "oaks",
        "gen_ai.prompt.3.tool_call_id": "c1",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": ANSWER,
    }
    return chat_span("1", "") | {"attributes": attributes}


def in_events() -> dict[str, Any]:
    """As the conventions had it before messages were attributes."""
    function = {"name": "look", "arguments": '{"place": "woods"}'}
    said = {
        "system.message": {"content": "Be brief."},
        "user.message": {"content": QUESTION},
        "assistant.message": {"tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        "tool.message": {"id": "c1", "content": "oaks"},
        "choice": {"index": 0, "finish_reason": "stop", "message": {"content": ANSWER}},
    }
    events = [
        {"name": f"gen_ai.{name}", "attributes": {"gen_ai.event.content": json.dumps(content)}}
        for name, content in said.items()
    ]
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    return chat_span("1", "") | {"attributes": attributes, "events": events}


@pytest.mark.parametrize("span", [in_numbered_attributes(), in_events()])
def test_older_ways_to_record_messages(tmp_path: Path, span: Any) -> None:
    from ajet_readers.traces.sources import read_traces

    path = write(tmp_path / "a.jsonl", span)
    [task] = read(path)
    assert (task.query, task.metadata["response"], task.metadata["model"]) == (QUESTION, ANSWER, "m")
    [call] = read_traces(path, None, (0, 1)).calls
    assert [m["role"] for m in call.messages] == ["system", "user", "assistant", "tool"]
    assert call.messages[2]["tool_calls"][0]["function"]["name"] == "look"
    assert call.messages[3]["tool_call_id"] == "c1"


def test_evaluations_in_spans_and_in_logs_are_feedback(tmp_path: Path) -> None:
    logs = [
        {
            "eventName": "gen_ai.evaluation.result",
            "traceId": "3",
            "spanId": "s3",
            "attributes": [
                {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.25}},
                {"key": "gen_ai.evaluation.explanation", "value": {"stringValue": "too long"}},
            ],
        },
        {
            "eventName": "gen_ai.evaluation.result",
            "attributes": [
                {"key": "gen_ai.evaluation.score.label", "value": {"stringValue": "pass"}},
                {"key": "gen_ai.response.id", "value": {"stringValue": "r4"}},
            ],
        },
    ]
    path = write(
        tmp_path / "a.jsonl",
        chat_span("1", "q1", events=[evaluation(score__value=0.75, explanation="nice")]),
        chat_span("2", "q2", events=[evaluation(score__label="not_relevant")]),
        chat_span("3", "q3"),
        chat_span("4", "q4", attributes={"gen_ai.response.id": "r4"}),
        {"resourceLogs": [{"scopeLogs": [{"logRecords": logs}]}]},
    )
    assert [t.metadata["feedback"] for t in read(path)] == [
        {"score": 0.75, "comments": ["nice"]},
        {"score": 0.0, "comments": []},
        {"score": 0.25, "comments": ["too long"]},
        {"score": 1.0, "comments": []},
    ]


# ------------------------------------------------------------------ logs of OpenAI calls


def test_requests_and_responses_in_the_layouts_of_proxies_batches_and_transcripts(tmp_path: Path) -> None:
    ask = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    answer = {"role": "assistant", "content": "a"}
    path = write(
        tmp_path / "log.jsonl",
        {
            "id": "1",
            "request": {"messages": ask},
            "response": {"choices": [{"message": answer}]},
            "timestamp": 1,
        },
        {
            "custom_id": "2",
            "body": {"messages": ask},
            "response": {"body": {"choices": [{"message": answer}]}},
        },
        {"messages": [*ask, answer], "timestamp": 2},
    )
    tasks = read(path)
    assert [(t.query, t.metadata["response"], t.messages) for t in tasks] == [("q", "a", ())] * 3
    assert {t.id for t in tasks} >= {"trace-1", "trace-2"} and len({t.id for t in tasks}) == 3
    assert read(path) == tasks


def test_logs_of_the_responses_api(tmp_path: Path) -> None:
    def said(role: str, kind: str, text: str) -> Any:
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"place": "woods"}'}
    result = {"type": "function_call_output", "call_id": "c1", "output": "oaks"}
    history = [said("user", "input_text", "Hello"), said("assistant", "output_text", "Hi."), call, result]
    thought = {"type": "reasoning", "summary": []}
    path = write(
        tmp_path / "log.jsonl",
        {
            "request": {"model": "m", "input": QUESTION, "instructions": "Be brief."},
            "response": {
                "id": "r1",
                "created_at": 2,
                "output": [thought, said("assistant", "output_text", ANSWER)],
            },
        },
        {
            "body": {"model": "m", "input": [*history, {"role": "user", "content": "And now?"}]},
            "response": {"body": {"id": "r2", "created_at": 1, "output": [call]}},
        },
    )
    second, first = read(path)
    assert (first.id, first.query, first.metadata["response"], first.messages) == (
        "trace-r1",
        QUESTION,
        ANSWER,
        (),
    )
    assert second.query == "And now?" and second.metadata["response"] == ""
    assert [m["role"] for m in second.messages] == ["user", "assistant", "assistant", "tool", "user"]
    assert second.messages[2]["tool_calls"][0]["function"]["name"] == "look"


def test_feedback_in_the_records_themselves(tmp_path: Path) -> None:
    def record(i: int, **more: Any) -> dict[str, Any]:
        chat = [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]
        return {"id": str(i), "messages": chat, "timestamp": i, **more}

    path = write(
        tmp_path / "log.jsonl",
        record(1, feedback="thumbs_up"),
        record(2, feedback={"thumbs": "👎", "comment": "wrong"}),
        record(3, score=4),
        record(4, feedback=[{"score": 2}, {"score": 4}]),
        record(5, feedback={"correction": "better"}),
        record(6),
    )
    tasks = read(path, scale=(1, 5))
    assert [t.metadata.get("feedback", {}).get("score") for t in tasks] == [1.0, 0.0, 0.75, 0.5, None, None]
    assert tasks[1].metadata["feedback"]["comments"] == ["wrong"]
    assert [t.metadata.get("answer") for t in tasks] == ["a1", None, "a3", "a4", "better", None]
    everything = [t.metadata.get("answer") for t in read(path, scale=(1, 5), answers="all")]
    assert everything == ["a1", "a2", "a3", "a4", "better", "a6"]
    assert [t.metadata.get("answer") for t in read(path, scale=(1, 5), answers="none")][4] == "better"


def test_a_score_outside_the_scale_is_refused_and_what_has_no_question_is_counted(
    tmp_path: Path,
) -> None:
    asked = {"id": "1", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    path = write(tmp_path / "log.jsonl", {**asked, "rating": 2})
    assert "log.jsonl:1" in fault(
        path
    ) and "the score 2 is outside 0 to 1; set the reader's `scale`" in fault(path)
    (task,) = read(path, scale=(5, 1))
    assert task.metadata["feedback"]["score"] == 0.75, "1 is best"
    own = {"id": "2", "messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}]}
    embedded = {
        "request": {"input": "chunk 17"},
        "response": {"object": "list", "data": [{"embedding": [0.5]}]},
    }
    told: list[str] = []

    class Told(Silent):
        def say(self, text: str) -> None:
            told.append(text)

    with reporting_to(Told()):
        assert len(read(write(path, asked, own, embedded))) == 1
    assert told == [
        f"{path}: records that are not chats, and are left out: 1",
        "traces: 2 traces → with a question 1",
    ]


def test_feedback_from_a_file_finds_its_trace_by_any_of_its_names(tmp_path: Path) -> None:
    traces = write(
        tmp_path / "a.jsonl",
        chat_span("1", "q1"),
        chat_span("2", "q2", attributes={"gen_ai.conversation.id": "c2", "gen_ai.response.id": "r2"}),
    )
    feedback = write(
        tmp_path / "feedback.ndjson",
        {"trace_id": "1", "score": 1},
        {"span_id": "s1", "score": 0, "comment": "slow"},
        {"conversation_id": "c2", "thumbs": "down"},
        {"response_id": "unknown", "thumbs": "down"},
    )
    told: list[str] = []

    class Told(Silent):
        def say(self, text: str) -> None:
            told.append(text)

    with reporting_to(Told()):
        scores = [t.metadata["feedback"] for t in read(traces, feedback=feedback)]
    assert told[0] == f"{feedback}: 1 of 4 lines match no trace that was read"
    assert scores == [{"score": 0.5, "comments": ["slow"]}, {"score": 0.0, "comments": []}]


# ------------------------------------------------------------------ filters


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Nine traces: scores 0, .25, …, 1 on the first five; the eighth failed, the ninth repeats the first."""
    lines = [
        chat_span(
            str(i + 1), f"question number {'abcdefghi'[i] * 9}", events=[evaluation(score__value=i / 4)]
        )
        if i < 5
        else chat_span(str(i + 1), f"question number {'abcdefghi'[i] * 9}")
        for i in range(8)
    ]
    lines[7] |= {"status": {"status_code": "ERROR"}}
    return write(tmp_path / "many.jsonl", *lines, chat_span("9", "Question number aaaaaaaaa?"))


def letters_of(tasks: list[Task]) -> str:
    return "".join(t.query.rstrip("?")[-1] for t in tasks)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([{"type": "succeeded"}], "abcdefga"),
        ([{"type": "feedback", "min": 0.5}], "cde"),
        ([{"type": "feedback", "max": 0.25, "missing": "keep"}], "abfgha"),
        ([{"type": "length", "max_characters": 25}], "abcdefgh"),
        ([{"type": "length", "min_calls": 2}], ""),
        ([{"type": "pattern", "pattern": "A{9}"}], "aa"),
        ([{"type": "pattern", "pattern": "a|b{9}", "drop": True}], "cdefgh"),
        ([{"type": "pattern", "pattern": "^ok$", "of": "response"}], "abcdefgha"),
        ([{"type": "near_duplicates"}], "abcdefgh"),
        ([{"type": "feedback", "min": 0.25}, {"type": "pattern", "pattern": "[bd]{9}"}], "bd"),
    ],
)
def test_filters_are_chained(many: Path, filters: Any, left: str) -> None:
    if not left:
        assert "yielded no task" in fault(many, filters=filters)
    else:
        assert letters_of(read(many, filters=filters)) == left


@pytest.mark.whole
def test_a_model_chooses_and_is_asked_once_about_each(many: Path) -> None:
    def answer(system: str, given: Any) -> str:
        assert "could be sold" in system
        good = given["request"][-1]["content"][-2] in "bdf"
        return f'I think {{"score": {0.9 if good else 0.1}}}'

    with endpoint(answer) as served:
        model = {"base_url": served.url, "model": "m"}
        filters = [{"type": "llm", "model": model, "criterion": "It could be sold.", "min": 0.8}]
        for _ in range(2):
            assert letters_of(read(many, filters=filters)) == "bdf"
        assert len(served.asked) == 9
        with many.open("a") as file:
            file.write(json.dumps(chat_span("10", "question number bbbbbdddd")) + "\n")
        assert len(read(many, filters=filters)) == 4 and len(served.asked) == 10


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"filters": [{"type": "suceeded"}]}, r"no filter 'suceeded'; did you mean 'succeeded'. Known: succ"),
        ({"filters": [{"type": "pattern", "pattern": "("}]}, r"0 \(pattern\): pattern: not a regular expr"),
        (
            {"filters": [{"type": "succeeded"}, {"type": "feedback", "mini": 1}]},
            r"1 \(feedback\): no field 'mini'; did you mean 'min'. Known: type, min, max, missing",
        ),
        ({"filters": [{"type": "feedback", "min": 3}]}, r"0 \(feedback\): min: Input should be less than or"),
        ({"filters": [{"type": "llm", "model": {"model": "m"}}]}, r"0 \(llm\): model.base_url: Field requi"),
        ({"scale": (1, 1)}, "the worst and the best score are the same"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, fields: Any, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        Traces(path=tmp_path, **fields)


# ------------------------------------------------------------------ bad input


def test_bad_input_is_named_with_its_place(tmp_path: Path) -> None:
    assert "no such file or folder" in fault(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "contains no traces" in fault(tmp_path / "empty")
    lone = write(tmp_path / "lone.jsonl", chat_span("1", "q"))
    assert fault(lone, feedback=tmp_path / "none").endswith("no such file. Check the reader's `feedback`.")
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps(chat_span("1", "q")) + "\n{broken\n")
    assert fault(broken).startswith(f"{broken}:2: not JSON")
    spans = write(tmp_path / "s.jsonl", chat_span("1", "q", attributes={"gen_ai.input.messages": "[1]"}))
    assert fault(spans).startswith(f"{spans}:1: cannot be read as OpenTelemetry spans (the span's messages")
    silent = chat_span("1", "q")
    del silent["attributes"]["gen_ai.input.messages"]
    assert "Does the exporter record the messages' content?" in fault(
        write(tmp_path / "silent.jsonl", silent)
    )
    log = write(tmp_path / "log.jsonl", {"prompt": "q"})
    unread = f"{log}:1: cannot be read as a call of chat completions"
    assert fault(log) == f"{unread} (has neither `messages` nor `input`; the record has 'prompt')."
    database = tmp_path / "other.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE x (y)")
    connection.close()
    assert fault(database).startswith(f"{database}: not a database of AgentScope Studio (no such table")


@pytest.mark.parametrize(
    "record",
    [
        {"body": '{"messages": []}'},
        {"request": "Who?", "messages": [{"role": "user", "content": "Who?"}]},
        {"messages": [{"role": "user", "content": "Who?"}], "completion": "Me."},
        {"input": [{"content": "Who?"}]},
        {"input": ["Who?"]},
        {"input": "Who?", "output": ["Me."]},
        {"messages": [{"role": "user", "content": "Who?"}], "response": {"choices": ["Me."]}},
        {"messages": [{"role": "user", "content": "Who?"}], "response": {"choices": [{"message": "Me."}]}},
    ],
)
def test_a_log_of_another_layout_is_named_with_its_line(tmp_path: Path, record: Any) -> None:
    log = write(tmp_path / "log.jsonl", record)
    assert fault(log).startswith(f"{log}:1: cannot be read as a call of chat completions (")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"score": 1}, "does not name a trace"),
        ({"trace_id": "1"}, "contains no feedback"),
        ({"trace_id": "1", "thumbs": "sideways"}, "'sideways' is neither thumbs up nor thumbs down"),
        ({"trace_id": "1", "score": [1]}, "[1] is not a score"),
    ],
)
def test_bad_feedback_is_named_with_its_line(tmp_path: Path, line: Any, message: str) -> None:
    traces = write(tmp_path / "a.jsonl", chat_span("1", "q1"))
    feedback = write(tmp_path / "feedback.txt", line)
    assert fault(traces, feedback=feedback).startswith(f"{feedback}:1: {message}")


# ------------------------------------------------------------------ the command


@pytest.fixture
def from_traces(tmp_path: Path, ajet: Program, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What `ajet data from-traces` prints, on the folder ``traces``."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> str:
        done = ajet("data", "from-traces", "--traces", "traces", *options)
        assert done.code == 0, done.err
        return done.out + done.err

    return run


def test_a_text_cut_within_a_character_is_written_as_one_that_a_job_can_read(
    tmp_path: Path, from_traces: Callable[..., str]
) -> None:
    (tmp_path / "traces").mkdir()
    write(tmp_path / "traces" / "1.jsonl", chat_span("1", "what is \ud83d"), chat_span("2", "one\u2028two"))
    assert "2 new tasks added" in from_traces()
    tasks = read_all(JsonLines(path=tmp_path / "tasks.jsonl"), "r")
    assert [t.query for t in tasks] == ["what is \ufffd", "one\u2028two"]
    (tmp_path / "tasks.jsonl.seen").unlink()  # as if the first run had ended between the two files
    assert "0 new tasks added" in from_traces()


def test_where_to_write_is_checked_first(
    tmp_path: Path, ajet: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ajet("data", "from-traces", "--traces", "none", "--output", ".")
    assert done.code == 2
    assert done.err == "error: --output .: is a directory. Name a file that can be written.\n"


def test_a_second_run_of_the_command_adds_only_what_is_new(
    tmp_path: Path, from_traces: Callable[..., str]
) -> None:
    def run() -> str:
        return from_traces("--set", "filters=[{type: near_duplicates}]")

    (tmp_path / "traces").mkdir()
    write(tmp_path / "traces" / "1.jsonl", *(chat_span(str(i), f"what is {i}?") for i in (1, 2, 3)))
    assert "3 new tasks added to tasks.jsonl; 0 were there before" in run()
    output = tmp_path / "tasks.jsonl"
    first = output.read_text().splitlines()
    output.write_text("\n".join(first[1:]))  # the user removes a line, and the last newline
    write(
        tmp_path / "traces" / "2.jsonl",
        *(chat_span(str(i), f"what is {i}?") for i in (3, 4)),
        chat_span("5", "what is 1?"),
    )
    out = run()
    assert "1 new tasks added" in out and "traces: 5 traces → near_duplicates 4" in out
    assert "0 new tasks added" in run()
    assert [t.query for t in read_all(JsonLines(path=output), "r")] == [
        "what is 2?",
        "what is 3?",
        "what is 4?",
    ]
