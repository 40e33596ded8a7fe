"""What coding agents send in their default settings: each request is answered, and a conversation stays one timeline.

The requests have the fields, types of tools and types of items of Claude Code 2.1 and Codex 0.171, with texts of our own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from ajet.capture.wires import anthropic, responses
from ajet.capture.wires.anthropic import AnthropicMessages
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.capture.wires.responses import Responses
from ajet.interfaces.wire import Refused, TooLong, Wire
from ajet.testing import ScriptedEngine
from ajet.tracker.breaks import find_breaks
from ajet.tracker.timelines import timelines
from tests.patience import PATIENCE

from ..plugins.programs import CLOSED
from .served import CALL, Served, events_of, said

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


new_sdk = pytest.mark.skipif(
    not hasattr(openai.types.responses, "CompactedResponse"), reason="the SDK is older than compaction"
)


def calls(name: str, **arguments: Any) -> str:
    """A call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def post(path: str, body: Any, status: int = 200) -> Any:
    answer = httpx.post(f"{CLOSED}{path}", json=body, timeout=PATIENCE)
    assert answer.status_code == status, answer.text
    return answer.json()


def one_timeline(session: Any) -> bool:
    return len(timelines(session.record.trained_calls)) == 1 and not find_breaks(session.record)


# --------------------------------------------------------------------------- Claude Code


def claude(*messages: Any, **fields: Any) -> dict[str, Any]:
    """A request of Claude Code."""
    cached = {"cache_control": {"type": "ephemeral"}}
    task = {
        "role": "user",
        "content": [{"type": "text", "text": "Context."}, {"type": "text", "text": "Task.", **cached}],
    }
    return {
        "model": "claude-opus-4-8",
        "messages": [task, {"role": "system", "content": "Agents: none."}, *messages],
        "system": [{"type": "text", "text": "x-header: a"}, {"type": "text", "text": "Be brief.", **cached}],
        "tools": [{"name": "Bash", "description": "Runs.", "input_schema": TEXT}],
        "metadata": {"user_id": "{}"},
        "max_tokens": 64_000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        **fields,
    }


@pytest.mark.whole
def test_claude_code_works_in_its_default_settings(bench, tokenizer) -> None:
    answers = iter([f"<think>\nhm\n</think>\n\n{calls('Bash', text='ls')}", "Done."])
    with bench(ScriptedEngine(tokenizer, lambda r, p: next(answers))).session() as session:
        first = post("/messages?beta=true", claude())
        used = first["content"][-1]
        result = {"type": "tool_result", "tool_use_id": used["id"], "content": "a.txt", "is_error": False}
        turn = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        second = post("/messages?beta=true", claude(*turn))
    assert (used["name"], used["input"], second["content"][0]["text"]) == ("Bash", {"text": "ls"}, "Done.")
    assert first["context_management"] == {"applied_edits": []}, "nothing was removed"
    assert one_timeline(session)


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_reads_that_no_edit_of_the_context_was_applied(stream) -> None:
    client = Served(AnthropicMessages(), said("ok")).anthropic.beta.messages
    edits: Any = {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "all"}}]}
    asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    asked |= {"betas": ["context-management-2025-06-27"], "context_management": edits}
    if stream:
        with client.stream(**asked) as events:
            message = events.get_final_message()
    else:
        message = client.create(**asked)
    assert message.context_management and message.context_management.applied_edits == []


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_that_is_not_to_be_shown_comes_back_in_its_signature(stream) -> None:
    server = Served(AnthropicMessages(), said("I add.", "hm", [CALL]), said("2"))
    asked: Any = {"model": "m", "max_tokens": 9, "thinking": {"type": "adaptive", "display": "omitted"}}
    user: Any = {"role": "user", "content": "1 + 1?"}

    def ask(*messages: Any) -> Any:
        if not stream:
            return server.anthropic.messages.create(messages=messages, **asked)
        with server.anthropic.messages.stream(messages=messages, **asked) as events:
            return events.get_final_message()

    first = ask(user)
    assert first.content[0].thinking == "" and "hm" not in first.content[0].signature
    ask(user, {"role": "assistant", "content": first.content}, user)
    assert server.requests[-1].messages[1]["reasoning_content"] == "hm"


def test_blocks_of_other_programs_become_text_or_are_counted() -> None:
    text = {"type": "text", "media_type": "text/plain", "data": "three"}
    inside = {"type": "content", "content": [{"type": "text", "text": "four"}]}
    found = {
        "type": "search_result",
        "title": "one",
        "source": "two",
        "content": [{"type": "text", "text": "x"}],
    }
    named = {"type": "document", "title": "of", "context": "which", "source": text}
    documents = [found, *({"type": "document", "source": source} for source in (text, inside)), named]
    hidden = [{"type": "redacted_thinking", "data": "?"}, {"type": "text", "text": "ok"}]
    told = {"role": "system", "content": "Once.", "clear_at": "next_user_message"}
    user, last = {"role": "user", "content": documents}, {"role": "user", "content": "b"}
    body = claude(user, {"role": "assistant", "content": hidden}, told, last, told)
    request = AnthropicMessages().parse(json.dumps(body).encode())
    said_ = [m["content"] for m in request.messages[3:]]
    assert said_ == ["one\ntwo\nxthreefourof\nwhich\nthree", "ok", "b", "Once."], (
        "a passing message is gone after the next one of the user"
    )
    assert request.left_out == ("encrypted thoughts",)


def test_a_tool_that_is_loaded_later_may_be_called_and_leaves_the_prompts_list_as_it_is(
    bench, tokenizer
) -> None:
    later = {"name": "Later", "description": "Comes later.", "input_schema": TEXT, "defer_loading": True}
    tools = [{"name": "ToolSearch", "input_schema": TEXT}, later]
    answers = iter([calls("ToolSearch", text="x"), calls("Later", text="y")])
    prompts: list[str] = []

    def script(request: Any, prompt: str) -> str:
        prompts.append(prompt)
        return next(answers)

    with bench(ScriptedEngine(tokenizer, script)).session() as session:
        first = post("/messages", claude(tools=tools))
        reference = [{"type": "tool_reference", "tool_name": "Later"}]
        result = {"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": reference}
        turn = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        second = post("/messages", claude(*turn, tools=tools))
    assert "Comes later." not in prompts[0] and prompts[1].count("Comes later.") == 1
    assert second["content"][0]["name"] == "Later" and one_timeline(session)


# --------------------------------------------------------------------------- Codex

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /[a-z]+/"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": GRAMMAR}
NAMESPACES: list[Any] = [
    {"type": "namespace", "name": "functions", "description": "", "tools": [PATCH | {"name": "exec"}]},
    {
        "type": "namespace",
        "name": "team",
        "description": "About agents.",
        "tools": [
            {
                "type": "function",
                "name": "spawn",
                "description": "Spawns.",
                "strict": False,
                "parameters": TEXT,
            },
            {
                "type": "function",
                "name": "wait",
                "description": "Waits.",
                "strict": False,
                "parameters": TEXT,
            },
        ],
    },
]
SEARCH: Any = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": TEXT,
}


def codex(*items: Any, first: Any = (), **fields: Any) -> dict[str, Any]:
    """A request of Codex, with ``first`` before the instructions."""
    developer = {
        "type": "message",
        "id": "msg_1",
        "role": "developer",
        "content": [{"type": "input_text", "text": "Be brief."}],
    }
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Task."}]}
    return {
        "model": "gpt-6.2-sol",
        "input": [*first, developer, user, *items],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "context": "all_turns"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "text": {"verbosity": "low"},
        "client_metadata": {"session_id": "s"},
        **fields,
    }


def test_codex_works_in_its_default_settings(bench, tokenizer) -> None:
    given = [{"type": "additional_tools", "id": "at_1", "role": "developer", "tools": NAMESPACES}]
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    answers = iter(
        ["<think>\nhm\n</think>\n\n" + calls("exec", input="text(1)"), calls("team.spawn", text="x"), "Done."]
    )
    prompts: list[str] = []

    def script(request: Any, prompt: str) -> str:
        prompts.append(prompt)
        return next(answers)

    with bench(ScriptedEngine(tokenizer, script)).session() as session:
        thought, ran = post("/responses", codex(update, first=given))["output"]
        items = [update, {**thought, "content": None}, ran]
        items.append({"type": "custom_tool_call_output", "call_id": ran["call_id"], "output": "1"})
        (spawned,) = post("/responses", codex(*items, first=given))["output"]
        items += [spawned, {"type": "function_call_output", "call_id": spawned["call_id"], "output": "ok"}]
        post("/responses", codex(*items, first=given))
    assert (ran["type"], ran["namespace"], ran["name"], ran["input"]) == (
        "custom_tool_call",
        "functions",
        "exec",
        "text(1)",
    )
    assert (spawned["type"], spawned["namespace"], spawned["name"]) == ("function_call", "team", "spawn")
    assert json.loads(spawned["arguments"]) == {"text": "x"}
    assert "start: /[a-z]+/" in prompts[0], "the model reads the grammar"
    assert prompts[0].count("About agents.") == 1
    assert one_timeline(session), "its thoughts come back, although Codex sends no text of them"


def test_codex_with_another_model_works_too(bench, tokenizer) -> None:
    deferred = NAMESPACES[1]
    tools = [{"type": "function", "name": "run", "strict": False, "parameters": TEXT}, PATCH, SEARCH]
    tools.append({"type": "web_search", "external_web_access": True})
    answers = iter(
        [
            calls("tool_search", text="agents"),
            calls("team.wait", text="x"),
            calls("apply_patch", input="ab"),
            "Done.",
        ]
    )
    prompts: list[str] = []

    def script(request: Any, prompt: str) -> str:
        prompts.append(prompt)
        return next(answers)

    with bench(ScriptedEngine(tokenizer, script)).session() as session:
        (searched,) = post("/responses", codex(tools=tools))["output"]
        items = [
            searched,
            {"type": "tool_search_output", "call_id": searched["call_id"], "tools": [deferred]},
        ]
        (waited,) = post("/responses", codex(*items, tools=tools))["output"]
        items += [waited, {"type": "function_call_output", "call_id": waited["call_id"], "output": "ok"}]
        (patched,) = post("/responses", codex(*items, tools=tools))["output"]
        items += [patched, {"type": "custom_tool_call_output", "call_id": patched["call_id"], "output": "ok"}]
        post("/responses", codex(*items, tools=tools))
    assert searched["type"] == "tool_search_call" and searched["arguments"] == {"text": "agents"}
    assert (waited["namespace"], waited["name"], patched["input"]) == ("team", "wait", "ab")
    assert "Waits." not in prompts[0] and "Waits." in prompts[1], (
        "tools that were found stand in the search's result"
    )
    assert session.counters["left_out:web_search"] == 4 and not any(
        "web_search" in prompt for prompt in prompts
    )
    assert one_timeline(session)


@pytest.mark.whole
@new_sdk
def test_the_sdk_streams_calls_with_free_text() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "apply_patch", "arguments": '{"input": "a\\nb"}'},
    }
    server = Served(Responses(), said("", None, [call]))
    with server.openai.responses.stream(model="m", input="x", tools=[PATCH]) as events:  # type: ignore[list-item]
        item: Any = events.get_final_response().output[-1]
    assert (item.type, item.call_id, item.input) == ("custom_tool_call", "c1", "a\nb")
    kinds = [event["type"] for event in events_of(server.streams[0])]
    assert (
        "response.custom_tool_call_input.delta" in kinds and "response.custom_tool_call_input.done" in kinds
    )


@pytest.mark.parametrize(
    ("tool", "name", "arguments", "shown"),
    [
        (PATCH, "apply_patch", '{"input": "a"}', {"input": "a"}),
        (PATCH, "apply_patch", '{"input": {"a": 1}}', {"input": '{"input": {"a": 1}}'}),
        (PATCH, "apply_patch", '{"patch": "a"}', {"input": '{"patch": "a"}'}),
        (PATCH, "apply_patch", "not JSON", {"input": "not JSON"}),
        ({"type": "local_shell"}, "local_shell", '{"command": ["ls"]}', {}),
        ({"type": "local_shell"}, "local_shell", '{"command": ["ls"], "timeout_ms": 5}', {}),
        ({"type": "local_shell"}, "local_shell", '{"command": "ls"}', {}),
        ({"type": "local_shell"}, "local_shell", "not JSON", {}),
        (SEARCH, "tool_search", '{"text": "a"}', {"arguments": {"text": "a"}}),
        (SEARCH, "tool_search", "not JSON", {"arguments": "not JSON"}),
    ],
)
def test_a_call_comes_back_as_the_model_wrote_it_whatever_its_arguments(tool, name, arguments, shown) -> None:
    wire = Responses()
    asked = wire.parse(json.dumps(codex(tools=[tool])).encode())
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    (item,) = wire.reply(asked, [said("", None, [call])], "aa")["output"]
    assert shown.items() <= item.items()
    if item["type"] == "local_shell_call":
        assert item["action"]["type"] == "exec" and isinstance(item["action"]["command"], list)
    output = {"type": item["type"] + "_output", "call_id": item["call_id"], "output": "ok", "tools": []}
    if item["type"] == "tool_search_call":
        output["type"] = "tool_search_output"
    asked = wire.parse(json.dumps(codex(item, output, tools=[tool])).encode())
    (sent,), result = asked.messages[2]["tool_calls"], asked.messages[3]
    written = sent["function"]["arguments"]
    assert written == arguments or json.loads(written) == json.loads(arguments)
    assert sent["id"] == result["tool_call_id"] == "c1"


def test_what_another_agent_says_is_a_message_of_the_user() -> None:
    parts = [
        {"type": "input_text", "text": "Task: "},
        {"type": "encrypted_content", "encrypted_content": "say hi"},
    ]
    item = {"type": "agent_message", "author": "/root", "recipient": "/root/sub", "content": parts}
    request = Responses().parse(json.dumps(codex(item)).encode())
    assert request.messages[-1] == {"role": "user", "content": "Task: say hi"}


def test_tools_that_are_added_after_an_answer_stand_where_they_were_added() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": NAMESPACES[1:]}
    said_ = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
    request = Responses().parse(json.dumps(codex(said_, added, tools=[PATCH])).encode())
    assert [tool["function"]["name"] for tool in request.tools] == ["apply_patch"]
    assert [tool["function"]["name"] for tool in request.told] == ["team.spawn", "team.wait"]
    assert request.messages[-1]["role"] == "developer" and "team.spawn" in request.messages[-1]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_goes_on_with_the_summary_that_the_model_wrote(bench, tokenizer, stream) -> None:
    answers = iter(["<think>\nhm\n</think>\n\nIt is half done.", "Done."])
    prompts: list[str] = []

    def script(request: Any, prompt: str) -> str:
        prompts.append(prompt)
        return next(answers)

    with bench(ScriptedEngine(tokenizer, script)).session() as session:
        body = codex({"type": "compaction_trigger"}, tools=[PATCH], stream=stream)
        answer = httpx.post(f"{CLOSED}/responses", json=body, timeout=PATIENCE)
        response = events_of(answer.content)[-1]["response"] if stream else answer.json()
        (item,) = response["output"]
        post("/responses", codex(item))
    assert item["type"] == "compaction" and "half done" not in item["encrypted_content"]
    assert "Summarise the conversation" in prompts[0] and "It is half done." in prompts[1]
    assert len(session.record.trained_calls) == 2


def test_the_compact_endpoint_keeps_what_the_user_said_and_adds_a_summary(bench, tokenizer) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: "Half done.")).session():
        body = {"model": "m", "instructions": "Be brief.", "input": codex()["input"]}
        reply = post("/responses/compact", body)
        post("/responses/compact", {"model": "m", "input": "Task."})
        assert reply["object"] == "response.compaction"
        assert [item.get("role", item["type"]) for item in reply["output"]] == ["user", "compaction"]
        assert post("/responses", {"model": "m", "input": reply["output"]})["status"] == "completed"


# --------------------------------------------------------------------------- counting


@pytest.mark.parametrize(
    ("path", "counting", "body", "used"),
    [
        ("/messages", "/messages/count_tokens", claude(), "input_tokens"),
        ("/responses", "/responses/input_tokens", codex(tools=[PATCH]), "input_tokens"),
    ],
)
def test_counted_tokens_are_those_of_the_call(bench, tokenizer, path, counting, body, used) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: "ok")).session() as session:
        without = {key: value for key, value in body.items() if key != "max_tokens"}
        counted = post(counting, without)
        assert not session.record.asked, "counting tokens records no call"
        assert (
            counted["input_tokens"]
            == post(path, body)["usage"][used]
            == len(session.record.calls[0].prompt.ids())
        )
        answered = {"role": "assistant", "content": "ok"}
        field = "messages" if path == "/messages" else "input"
        longer = {field: [*body[field], answered, {"role": "user", "content": "more"}]}
        assert post(counting, without | longer)["input_tokens"] == post(path, body | longer)["usage"][used]
        assert one_timeline(session)


@new_sdk
def test_the_sdks_read_counts_and_summaries() -> None:
    claude_sdk = Served(anthropic.AnthropicTokenCount(), said("")).anthropic
    assert (
        claude_sdk.messages.count_tokens(model="m", messages=[{"role": "user", "content": "a"}]).input_tokens
        == 7
    )
    openai_sdk = Served(responses.ResponsesTokenCount(), said("")).openai
    assert openai_sdk.responses.input_tokens.count(model="m", input="a").input_tokens == 7
    openai_sdk = Served(responses.Compaction(), said("Half done.")).openai
    assert [item.type for item in openai_sdk.responses.compact(model="m", input="a").output][
        -1
    ] == "compaction"


# --------------------------------------------------------------------------- a prompt that is too long


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (
            ChatCompletions(),
            "This model's maximum context length is 90 tokens. However, your messages resulted in 99 tokens",
        ),
        (Responses(), "Your input exceeds the context window of this model"),
        (AnthropicMessages(), "prompt is too long: 99 tokens > 89 maximum"),
    ],
)
def test_a_prompt_that_is_too_long_is_refused_in_the_words_of_the_api(wire: Wire, words: str) -> None:
    error = wire.error(TooLong("the prompt has 99 tokens", 99, 90))["error"]
    assert words in error["message"] and "use a model with a longer context" in error["message"]
    assert error.get("code", "context_length_exceeded") == "context_length_exceeded"
    assert words not in str(wire.error(Refused("no", code="context_length_exceeded")))


# --------------------------------------------------------------------------- what the model cannot see

SOURCE = {"type": "base64", "media_type": "image/png", "data": PNG}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}}
URL = f"data:image/png;base64,{PNG}"
FETCHED: list[tuple[str, Callable[..., Any]]] = [
    (
        "/messages",
        lambda part: [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": [part]}, part],
            },
        ],
    ),
    (
        "/responses",
        lambda part: [
            {"role": "user", "content": "Look."},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [part]},
            {"role": "user", "content": [part]},
        ],
    ),
    (
        "/chat/completions",
        lambda part: [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "I look."},
            {"role": "user", "content": [part, part]},
        ],
    ),
]
IMAGES = [
    {"type": "image", "source": SOURCE},
    {"type": "input_image", "image_url": URL},
    {"type": "image_url", "image_url": {"url": URL}},
]
FILES = [
    PDF,
    {"type": "input_file", "filename": "a.pdf", "file_data": "JVBERg=="},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": "JVBERg=="}},
]


def seen(path: str, messages: Any) -> dict[str, Any]:
    field = "input" if path == "/responses" else "messages"
    return {"model": "m", field: messages, **({"max_tokens": 9} if path == "/messages" else {})}


@pytest.mark.parametrize("kind", ["image", "file"])
@pytest.mark.parametrize("number", range(3), ids=[path for path, _ in FETCHED])
def test_what_an_agent_fetched_and_the_model_cannot_see_becomes_an_error_that_it_reads(
    bench, tokenizer, number: int, kind: str
) -> None:
    path, chat = FETCHED[number]
    prompts: list[str] = []
    engine = ScriptedEngine(tokenizer, lambda request, prompt: prompts.append(prompt) or "ok")
    with bench(engine).session() as session:
        post(path, seen(path, chat((IMAGES if kind == "image" else FILES)[number])))
    told = "an image, which you cannot see" if kind == "image" else "a file of a kind that you cannot read"
    assert prompts[0].count(f"[Error: here is {told}") == 2
    assert session.counters[f"left_out:{kind}"] == 1, "counted once a call"


@pytest.mark.parametrize("number", range(3), ids=[path for path, _ in FETCHED])
def test_an_image_or_a_file_of_the_task_is_refused(bench, tokenizer, number: int) -> None:
    path = FETCHED[number][0]
    with bench(ScriptedEngine(tokenizer, lambda r, p: "ok")).session():
        for part in (IMAGES[number], FILES[number]):
            post(path, seen(path, [{"role": "user", "content": [part]}]), 400)
