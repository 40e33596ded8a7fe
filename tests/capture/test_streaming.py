"""Streamed replies through the real SDK and raw clients: as sampled, cut off when nobody listens, and the
same record as without streaming (tracker case 46)."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.capture.answers import Answerer
from ajet.capture.respond import respond
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Session
from ajet.capture.targets import Target
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.chat.renderer import Chat
from ajet.interfaces.wire import ChatRequest, Piece
from ajet.testing import ScriptedEngine
from ajet.tracker.timelines import timelines
from tests import tokenizers
from tests.engines import Waiting, with_patience
from tests.patience import PATIENCE
from tests.properties import examples

from ..plugins.programs import calling

CLOSED = "http://127.0.0.1:9/v1"
URL = f"{CLOSED}/chat/completions"
TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "description": "", "parameters": {"type": "object", "properties": {}}},
}
USER: Any = [{"role": "user", "content": "hi"}]
SAID = "It is 2, über 日本 🙂, of course."
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture
def sdk() -> openai.OpenAI:
    return openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=0)


@pytest.fixture
def asdk() -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=CLOSED, api_key="k", max_retries=0)


def says(tokenizer: Any, said: str = SAID, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(tokenizer, lambda r, p: said, **options)


def slow(tokenizer: Any, **options: Any) -> ScriptedEngine:
    """One that would take hours."""
    return says(tokenizer, "word " * 50, seconds_between=600, **options)


def content(chunks: Any, choice: int = 0) -> str:
    return "".join(
        c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == choice and c.delta
    )


def records(session: Session) -> list[Any]:
    """All that a record holds, to be compared."""
    return [
        (
            c.number,
            c.agent,
            c.key,
            c.prompt.ids().tolist(),
            c.generation.token_ids.tolist(),
            c.parent,
            c.cause,
        )
        for c in session.record.calls
    ] + [e.chat() for e in session.record.exchanges]


# ---------------------------------------------------------------- the SDK


def test_a_stream_comes_as_it_is_sampled(bench, tokenizer, sdk) -> None:
    chunks: list[Any] = []
    engine = Waiting(tokenizer, lambda r, p: SAID, until=lambda: len(chunks) > 8)
    with bench(engine).session() as session:
        for chunk in sdk.chat.completions.create(model="m", messages=USER, stream=True):
            chunks.append(chunk)
            assert not session.record.calls or chunk.choices[0].finish_reason
    assert content(chunks) == SAID and chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[0].choices[0].delta.role == "assistant" and len(chunks) > 10
    assert len({c.id for c in chunks}) == 1
    assert len(session.record.calls) == 1 and not engine.cancelled


def test_an_async_stream(bench, tokenizer, asdk) -> None:
    async def agent() -> list[Any]:
        stream = await asdk.chat.completions.create(model="m", messages=USER, stream=True)
        return [chunk async for chunk in stream]

    with bench(says(tokenizer)).session() as session:
        chunks = asyncio.run(agent())
    assert content(chunks) == SAID and len(session.record.calls) == 1


@pytest.mark.parametrize(
    "said",
    [SAID, "", ADD, f"I add.\n{ADD}\n{ADD}", "<think>\nhm, so\n</think>\n\n2", f"<think>a</think>{ADD}"],
)
@pytest.mark.parametrize("n", [1, 3])
def test_the_streamed_message_is_the_one_without_streaming(bench, tokenizer, sdk, said, n) -> None:
    b = bench(says(tokenizer, said))
    asked: Any = {"model": "m", "messages": USER, "tools": [TOOL], "n": n, "logprobs": True}
    with b.session() as one:
        whole = sdk.chat.completions.create(**asked)
    with (
        b.session() as two,
        sdk.chat.completions.stream(**asked, stream_options={"include_usage": True}) as s,
    ):
        streamed = s.get_final_completion()
    assert records(one) == records(two)
    for ours, theirs in zip(streamed.choices, whole.choices, strict=True):
        said_so = ours.message.model_dump(exclude={"parsed"}, exclude_none=True)
        for call in said_so.get("tool_calls") or ():
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        assert said_so == theirs.message.model_dump(exclude_none=True)
        assert ours.finish_reason == theirs.finish_reason and ours.logprobs == theirs.logprobs
    assert streamed.usage == whole.usage


def test_tool_calls_come_in_deltas_of_name_and_arguments(bench, tokenizer, sdk) -> None:
    with bench(says(tokenizer, f"I add.\n{ADD}\n{ADD}")).session():
        chunks = list(sdk.chat.completions.create(model="m", messages=USER, tools=[TOOL], stream=True))
    deltas = [t for c in chunks for t in c.choices[0].delta.tool_calls or ()]
    assert [d.index for d in deltas] == [0, 0, 1, 1]
    assert [(d.function.name, d.function.arguments) for d in deltas[:2]] == [("add", ""), (None, '{"a": 1}')]
    assert deltas[0].id and deltas[0].id != deltas[2].id and deltas[1].id is None
    assert content(chunks) == "I add." and chunks[-1].choices[0].finish_reason == "tool_calls"


def test_reasoning_and_usage_chunks(bench, tokenizer, sdk) -> None:
    with bench(says(tokenizer, "<think>\nhm, so\n</think>\n\nIt is 2.")).session() as session:
        create = sdk.chat.completions.create
        chunks = list(create(model="m", messages=USER, stream=True, stream_options={"include_usage": True}))
        plain = list(create(model="m", messages=USER, stream=True))
    thoughts = [getattr(c.choices[0].delta, "reasoning_content", None) for c in chunks if c.choices]
    assert "".join(t or "" for t in thoughts) == "hm, so" and content(chunks) == "It is 2."
    assert chunks[-1].choices == [] and all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].usage.completion_tokens == len(session.record.calls[0].generation.token_ids)
    assert all("usage" not in c.model_fields_set for c in plain), "as only those who ask for it expect it"


@pytest.mark.parametrize(("kept", "parent"), [(-1, 0), (-2, None)], ids=["last", "another"])
def test_the_last_piece_of_the_reasoning_is_what_nodes_client_sends_back(
    bench, tokenizer, sdk, kept: int, parent: int | None
) -> None:
    """openai's Node.js client replaces each piece of a field that it does not know by the next one."""
    said = "<think>\nOne, two, three.\n</think>\n\n" + calling("add", a=1)
    with bench(ScriptedEngine(tokenizer, lambda r, p: said)).session() as session:
        deltas = [
            c.choices[0].delta
            for c in sdk.chat.completions.create(model="m", messages=USER, tools=[TOOL], stream=True)
        ]
        thoughts = [t for d in deltas if (t := getattr(d, "reasoning_content", None))]
        calls = [call.model_dump(exclude={"index"}) for d in deltas for call in d.tool_calls or ()]
        calls = [{**calls[0], "function": {"name": "add", "arguments": '{"a": 1}'}}]
        assert len(thoughts) > 2
        sent = {"role": "assistant", "reasoning_content": thoughts[kept], "tool_calls": calls}
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "2"}
        sdk.chat.completions.create(model="m", messages=[*USER, sent, result], tools=[TOOL])
    assert [call.parent for call in session.record.calls] == [None, parent]


def test_stop_strings_and_length(bench, tokenizer, sdk) -> None:
    with bench(says(tokenizer, "one two three four")).session():
        create = sdk.chat.completions.create
        cut = list(create(model="m", messages=USER, stream=True, stop=[" thr", "wo th"]))
        short = list(create(model="m", messages=USER, stream=True, max_tokens=2))
    assert content(cut) == "one t"
    assert short[-1].choices[0].finish_reason == "length"


def test_a_stop_text_within_a_thought_is_hidden_like_one_in_the_text(bench, tokenizer, sdk) -> None:
    asked: Any = {"model": "m", "messages": USER, "stop": ["Observation:", "</x>"]}
    saying: list[str] = []
    b = bench(ScriptedEngine(tokenizer, lambda r, p: saying[0]))
    for said, thought, text in (
        ("<think>\nlet me see. Observation: x", "let me see. ", ""),
        ("<think>\nOb</x>", "Ob", ""),
        ("<think>\nI read Obs\n</think>\n\nIt is 2. Observation: y", "I read Obs", "It is 2. "),
    ):
        saying[:] = [said]
        with b.session():
            whole = sdk.chat.completions.create(**asked).choices[0].message
            chunks = list(sdk.chat.completions.create(**asked, stream=True))
        assert (whole.reasoning_content, whole.content) == (thought, text)
        deltas = [c.choices[0].delta.model_dump() for c in chunks]
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == thought
        assert content(chunks) == text


def test_raw_and_streaming_responses_of_the_sdk(bench, tokenizer, sdk, asdk) -> None:
    async def agent() -> str:
        with_response = asdk.chat.completions.with_streaming_response
        async with with_response.create(model="m", messages=USER, stream=True) as response:
            return "".join([line async for line in response.iter_lines()])

    with bench(says(tokenizer)).session() as session:
        raw = sdk.chat.completions.with_raw_response.create(model="m", messages=USER, stream=True)
        assert raw.headers["content-type"].startswith("text/event-stream") and raw.elapsed.total_seconds() > 0
        assert content(list(raw.parse())) == SAID
        whole = sdk.chat.completions.with_raw_response.create(model="m", messages=USER)
        assert whole.parse().choices[0].message.content == SAID and whole.elapsed.total_seconds() > 0
        assert asyncio.run(agent()).endswith("data: [DONE]")
    assert len(session.record.calls) == 3


def test_from_a_thread_and_inside_a_running_loop(bench, tokenizer, sdk) -> None:
    async def agent() -> list[Any]:
        return list(sdk.chat.completions.create(model="m", messages=USER, stream=True))

    b = bench(says(tokenizer))
    with b.session() as session:
        chunks = asyncio.run(agent())
        client = openai.OpenAI(base_url=CLOSED, api_key=session.key, max_retries=0)
        found: list[Any] = []
        create = client.chat.completions.create
        thread = threading.Thread(target=lambda: found.extend(create(model="m", messages=USER, stream=True)))
        thread.start()
        thread.join(PATIENCE)
    assert content(chunks) == content(found) == SAID and b.capture.counters["blocking_calls"] == 1


# ---------------------------------------------------------------- raw clients


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_raw_clients_read_events_as_lines_bytes_or_whole(bench, tokenizer, module) -> None:
    body = {"messages": USER, "stream": True}
    with bench(says(tokenizer)).session() as session, module.Client() as client:
        with client.stream("POST", URL, json=body) as response:
            lines = [line for line in response.iter_lines() if line]
        with client.stream("POST", URL, json=body) as response:
            parts = list(response.iter_bytes())
        whole = client.post(URL, json=body)
        with client.stream("POST", URL, json=body) as response:
            late = response.read()
    assert isinstance(response, module.Response) and response.is_closed
    assert isinstance(response.stream, module.SyncByteStream)
    assert lines[-1] == "data: [DONE]" and b"".join(parts).endswith(b"data: [DONE]\n\n")
    texts = [text_of(t) for t in ("\n".join(lines), b"".join(parts).decode(), whole.text, late.decode())]
    assert texts == [SAID] * 4 and len(session.record.calls) == 4


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_raw_async_clients_too(bench, tokenizer, module) -> None:
    async def agent() -> list[str]:
        async with module.AsyncClient() as client:
            async with client.stream("POST", URL, json={"messages": USER, "stream": True}) as response:
                lines = [line async for line in response.aiter_lines()]
            return ["\n".join(lines), (await client.post(URL, json={"messages": USER, "stream": True})).text]

    with bench(says(tokenizer)).session():
        assert [text_of(t) for t in asyncio.run(agent())] == [SAID, SAID]


def text_of(events: str) -> str:
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)


def test_a_closed_client_raises_as_ever(bench, tokenizer) -> None:
    client = httpx.Client()
    client.close()
    with bench(says(tokenizer)).session(), pytest.raises(RuntimeError, match="closed"):
        client.post(URL, json={"messages": USER})


# ---------------------------------------------------------------- nobody listens any more


@pytest.mark.whole
@pytest.mark.parametrize("module", [httpx, httpx2])
def test_the_read_timeout_holds_between_events(bench, tokenizer, module) -> None:
    engine = slow(tokenizer)
    read: list[str] = []

    def ask(seconds: float) -> None:
        with (
            module.Client(timeout=seconds) as client,
            pytest.raises(module.ReadTimeout),
            client.stream("POST", URL, json={"messages": USER, "stream": True}) as response,
        ):
            for line in response.iter_lines():
                read.append(line)

    with bench(engine).session() as session:
        with_patience(ask, lambda: read, 0.8)
        assert read[0].startswith("data: ") and engine.cancelled == len(engine.requests)
    assert not session.record.calls and not session.record.exchanges


@pytest.mark.whole
def test_a_timeout_of_the_sdk_in_the_middle(bench, tokenizer) -> None:
    engine = slow(tokenizer)
    read: list[Any] = []

    def ask(seconds: float) -> None:
        engine.requests.clear()
        engine.cancelled = 0
        client = openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=3, timeout=seconds)
        with pytest.raises((openai.APITimeoutError, httpx2.ReadTimeout, httpx.ReadTimeout)):
            for chunk in client.chat.completions.create(model="m", messages=USER, stream=True):
                read.append(chunk)

    with bench(engine).session() as session:
        with_patience(ask, lambda: read, 0.8)
    assert engine.cancelled == 1 and len(engine.requests) == 1 and not session.record.calls


def test_a_timeout_before_sampling_begins(bench, tokenizer) -> None:
    engine = slow(tokenizer, seconds=600)

    def ask(seconds: float) -> None:
        client = openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=0, timeout=seconds)
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(model="m", messages=USER, stream=True)

    with bench(engine).session() as session:
        with_patience(ask, lambda: engine.requests)
    assert engine.cancelled == len(engine.requests) and not session.record.calls


def test_a_cancelled_task_in_the_middle(bench, tokenizer, asdk) -> None:
    reading = asyncio.Event()

    async def read() -> None:
        async for _ in await asdk.chat.completions.create(model="m", messages=USER, stream=True):
            reading.set()

    async def agent() -> None:
        task = asyncio.create_task(read())
        await asyncio.wait_for(reading.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    engine = slow(tokenizer)
    with bench(engine).session() as session:
        asyncio.run(agent())
    assert engine.cancelled == 1 and not session.record.calls


def test_a_closed_response_stops_the_generation(bench, tokenizer, sdk, asdk) -> None:
    async def agent() -> None:
        stream = await asdk.chat.completions.create(model="m", messages=USER, stream=True)
        await anext(aiter(stream))
        await stream.close()

    engine = slow(tokenizer)
    with bench(engine).session() as session:
        stream = sdk.chat.completions.create(model="m", messages=USER, stream=True)
        next(iter(stream))
        stream.response.close()
        assert engine.cancelled == 1
        asyncio.run(agent())
        assert engine.cancelled == 2
    assert not session.record.calls


def test_a_forgotten_response_stops_the_generation(bench, tokenizer, sdk) -> None:
    engine = slow(tokenizer)
    with bench(engine).session() as session:
        for _ in sdk.chat.completions.create(model="m", messages=USER, stream=True):
            break
        gc.collect()
        assert engine.cancelled == 1
    assert not session.record.calls


def test_whether_a_reply_that_nobody_finished_is_recorded_does_not_depend_on_the_engines_speed(
    bench, tokenizer, sdk
) -> None:
    with bench(says(tokenizer)).session() as session:
        stream = sdk.chat.completions.create(model="m", messages=USER, stream=True)
        next(iter(stream))
        time.sleep(0.1)  # by now all of it is sampled
        stream.close()
        assert not session.record.calls and not session.in_flight
        list(sdk.chat.completions.create(model="m", messages=USER, stream=True))
    assert [c.number for c in session.record.calls] == [1]


def test_a_reply_that_is_closed_before_anyone_reads_it_stops_too(tokenizer) -> None:
    engine = slow(tokenizer)
    chat = Chat(tokenizer, "qwen3")
    session = Session("e", "e", Answerer(engine, chat, (Target("policy"),), SamplingPolicy(training=True)))

    async def ask() -> None:
        body = json.dumps({"messages": USER, "stream": True}).encode()
        reply = await respond(ChatCompletions(), session, body, "agent", None)
        assert reply.events and session.in_flight == 1
        await reply.events.aclose()
        await reply.events.aclose()
        assert [part async for part in reply.events] == []

    asyncio.run(ask())
    assert engine.cancelled == 1 and not session.record.calls and not session.in_flight


def test_the_end_of_an_episode_ends_its_streams(bench, tokenizer, sdk) -> None:
    engine = slow(tokenizer)
    b = bench(engine)
    with b.session() as session:
        stream = iter(sdk.chat.completions.create(model="m", messages=USER, stream=True))
        next(stream)
        asyncio.run(b.capture.end(session))
        with pytest.raises(openai.APIError, match="has ended"):
            list(stream)
    assert engine.cancelled == 1 and not session.record.calls


def test_one_choice_that_fails_ends_the_others_and_leaves_nothing(bench, tokenizer, sdk) -> None:
    def script(request: Any, prompt: str) -> str:
        if request.key[1] % 3 == 1:
            raise RuntimeError("out of memory")
        return "word " * 50

    engine = ScriptedEngine(tokenizer, script, seconds_between=600)
    with bench(engine).session() as session:
        with pytest.raises(openai.APIError, match="out of memory"):
            list(sdk.chat.completions.create(model="m", messages=USER, n=3, stream=True))
        with pytest.raises(openai.BadRequestError, match="out of memory"):
            sdk.chat.completions.create(model="m", messages=USER, n=2)
    assert not session.record.calls and engine.cancelled == 2


# ---------------------------------------------------------------- failures


class Broken(ScriptedEngine):
    """Breaks after some tokens."""

    after = 2
    error: Exception | None = RuntimeError("out of memory")

    async def stream(self, request: Any) -> Any:
        """See `ajet.Engine.stream`."""
        count = 0
        async for delta in super().stream(request):
            if count == self.after:
                if self.error:
                    raise self.error
                return
            count += 1
            yield delta


def test_a_failure_before_the_first_event_is_a_plain_error(bench, tokenizer, sdk) -> None:
    engine = Broken(tokenizer, lambda r, p: SAID)
    engine.after = 0
    with bench(engine).session() as session, pytest.raises(openai.BadRequestError, match="out of memory"):
        sdk.with_options(max_retries=4).chat.completions.create(model="m", messages=USER, stream=True)
    assert session.engine_error == "RuntimeError: out of memory" and len(engine.requests) == 1
    assert session.counters["refused:engine_error"] == 1 and not session.record.calls


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), None])
def test_a_failure_in_the_middle_is_an_error_event_and_nothing_is_recorded(
    bench, tokenizer, sdk, error
) -> None:
    engine = Broken(tokenizer, lambda r, p: SAID)
    engine.error = error
    with bench(engine).session() as session:
        stream = sdk.chat.completions.create(model="m", messages=USER, stream=True)
        with pytest.raises(openai.APIError, match="out of memory" if error else "without a finish reason"):
            list(stream)
    assert session.counters["refused:engine_error"] == 1 and not session.record.calls


def test_a_chat_models_answer_is_streamed_whole(bench, tokenizer, sdk) -> None:
    class Model:
        async def complete(self, messages: Any, tools: Any, sampling: Any) -> Any:
            return {"role": "assistant", "content": "frozen", "reasoning_content": "hm"}

    targets = (Target("critic", ("*",), Model(), trained=False),)
    with bench(says(tokenizer)).session(targets=targets) as session:
        chunks = list(sdk.chat.completions.create(model="m", messages=USER, stream=True))
    assert content(chunks) == "frozen" and len(session.record.exchanges) == 1 and not session.record.calls


# ---------------------------------------------------------------- the same record


@pytest.mark.whole
def test_a_two_step_agent_leaves_the_same_timelines_streaming_and_in_fixed_batches(
    bench, tokenizer, asdk
) -> None:
    def script(request: Any, prompt: str) -> str:
        return "It is 2." if "<tool_response>" in prompt else f"Let me add.\n{ADD}"

    def agent(stream: bool) -> Any:
        async def run(task: Any, tuner: Any) -> str:
            messages: list[Any] = [{"role": "user", "content": task.query}]
            strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}  # 2.x streams no others
            asked: Any = {"model": "m", "messages": messages, "tools": [strict]}
            for _ in range(2):
                if stream:
                    async with asdk.chat.completions.stream(**asked) as events:
                        answer = (await events.get_final_completion()).choices[0].message
                else:
                    answer = (await asdk.chat.completions.create(**asked)).choices[0].message
                messages.append(answer.model_dump(exclude_none=True, exclude={"parsed"}))
                for call in answer.tool_calls or ():
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "2"})
            return answer.content or ""

        return run

    b = bench(ScriptedEngine(tokenizer, script))
    runs = [
        b.run(agent(stream), tasks=3, group_size=2, deterministic=deterministic)
        for stream in (False, True)
        for deterministic in (False, True)
    ]
    found = [[line for e in run for line in timelines(e.record.trained_calls)] for run in runs]
    assert [len(lines) for lines in found] == [6] * 4 and not any(e.failure for run in runs for e in run)
    for lines in found[1:]:
        for one, two in zip(found[0], lines, strict=True):
            assert one.token_ids.tolist() == two.token_ids.tolist() and (one.mask == two.mask).all()


FAMILIES = {
    family: Chat(getattr(tokenizers, family)(), tokenizers.MODEL_TYPES[family])
    for family in ("qwen3", "llama3", "plain", "thinker", "base")
}
WORDS = st.sampled_from(
    (
        *(
            "a",
            " ",
            "\n",
            " the answer",
            "ü",
            "日本",
            "🙂",
            "<",
            "{",
            "}",
            "</",
            "<think>",
            "</think>",
            "STOP",
            "ST",
        ),
        *("<tool_call>", "</tool_call>", ADD, '{"name": "add", "parameters": {"a": 1}}', "END OF", "OF"),
    )
)


@pytest.mark.parametrize("family", FAMILIES)
@examples(150)
@given(
    said=st.lists(WORDS | st.text(max_size=4), max_size=12).map("".join),
    more=st.lists(st.integers(0, 399), max_size=3),
    stop=st.sampled_from([(), ("STOP",), ("OF\n", "END", " ", "ü"), ("TOP", "STOP ", "\n"), ("</think>",)]),
    raw=st.booleans(),
)
def test_pieces_make_up_the_message_and_the_record_is_the_same(
    family: str, said: str, more: list[int], stop: tuple[str, ...], raw: bool
) -> None:
    chat = FAMILIES[family]
    ids = [*chat.tokenizer.encode(said, add_special_tokens=False), *more, chat.stop_token_ids[0]]
    engine = ScriptedEngine(chat.tokenizer, lambda r, p: ids)
    request = ChatRequest("m", USER, (), n=2, stop=stop, prompt="Once" if raw else None)
    policy = SamplingPolicy(training=True)
    one, two = (Session("e", "e", Answerer(engine, chat, (Target("policy"),), policy)) for _ in range(2))
    pieces: list[Piece] = []

    async def both() -> tuple[Any, Any]:
        whole = await one.answer(request, "agent", None, False)
        return whole, two.take(request, await two.choices(request, "agent", None, False, pieces.append))

    whole, streamed = asyncio.run(both())
    assert whole == streamed and records(one) == records(two)
    for choice, answer in enumerate(streamed):
        kinds = [(p.kind, p.text) for p in pieces if p.choice == choice and p.text]
        for kind, key in (("content", "content"), ("reasoning", "reasoning_content")):
            assert "".join(t for k, t in kinds if k == kind) == (answer.message.get(key) or "")
        assert "reasoning" not in [
            k for k, _ in kinds[[k for k, _ in (*kinds, ("content", ""))].index("content") :]
        ]


# ---------------------------------------------------------------- whatever is asked


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = (
    *("model", "tools", "n", "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop"),
    *("tool_choice", "response_format", "stream", "stream_options", "logprobs", "top_logprobs", "modalities"),
    *("parallel_tool_calls", "functions", "reasoning_effort", "logit_bias", "frequency_penalty"),
)
SCHEMAS = st.dictionaries(
    st.sampled_from(["type", "properties", "required", "$ref", "pattern", "items", "enum", "anyOf"]),
    JSON
    | st.sampled_from(
        ["object", "string", "#", "http://127.0.0.1:9/x", "(", ["a"], {"a": {"type": "integer"}}]
    ),
    max_size=3,
)
SENSIBLE: dict[str, Any] = {
    "n": st.integers(1, 3),
    "stream": st.booleans(),
    "tools": st.just([TOOL]),
    "tool_choice": st.sampled_from(
        ["auto", "none", "required", {"type": "function", "function": {"name": "add"}}]
    ),
    "response_format": st.sampled_from([{"type": "json_object"}, {"type": "text"}])
    | SCHEMAS.map(lambda s: {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}),
    "stop": st.text(max_size=2) | st.lists(st.text(max_size=2), max_size=3),
    "stream_options": st.just({"include_usage": True}),
    "logprobs": st.booleans(),
    "max_tokens": st.integers(1, 30),
}
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "x"])},
        optional={
            "content": st.text(max_size=8) | JSON,
            "tool_calls": JSON,
            "name": JSON,
            "tool_call_id": JSON,
            "reasoning_content": JSON,
            "function_call": JSON,
        },
    ),
    max_size=4,
)


@st.composite
def bodies(draw: Any) -> bytes:
    """Requests that are right in most, so that much of the code is reached."""
    rarely = st.integers(0, 9).map(lambda n: n == 0)
    if draw(rarely):
        return draw(st.binary(max_size=20) | JSON.map(lambda value: json.dumps(value).encode()))
    body: dict[str, Any] = {"messages": draw(MESSAGES | JSON) if draw(rarely) else USER}
    for name in draw(st.lists(st.sampled_from([*SENSIBLE, *SENSIBLE, *FIELDS]), unique=True, max_size=5)):
        body[name] = draw(JSON if name not in SENSIBLE or draw(rarely) else SENSIBLE[name])
    return json.dumps(body).encode()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@examples(600)
@given(body=bodies(), said=st.sampled_from([SAID, ADD, '{"a": 1}', ""]))
def test_whatever_is_asked_the_reply_is_in_the_dialect(loop: asyncio.Runner, body: bytes, said: str) -> None:
    chat = FAMILIES["qwen3"]
    engine = ScriptedEngine(chat.tokenizer, lambda r, p: said)
    session = Session("e", "e", Answerer(engine, chat, (Target("policy"),), SamplingPolicy(training=True)))

    async def ask() -> tuple[Any, list[bytes]]:
        reply = await respond(ChatCompletions(), session, body, "agent", None)
        return reply, [part async for part in reply.events] if reply.events else []

    reply, parts = loop.run(asyncio.wait_for(ask(), PATIENCE))
    assert reply.status in (200, 400, 422) and not session.counters["refused:internal_error"]
    if reply.events:
        assert all(parts) and b"".join(parts).endswith(b"data: [DONE]\n\n")
        for event in b"".join(parts).decode().split("\n\n")[:-2]:
            assert event.startswith("data: ") and isinstance(json.loads(event[6:]), dict)
    else:
        whole = json.loads(reply.body)
        message = whole.get("error", {}).get("message", "")
        assert (
            ("error" in whole) == (reply.status != 200) and "\n" not in message and "Traceback" not in message
        )
    assert not session.in_flight
