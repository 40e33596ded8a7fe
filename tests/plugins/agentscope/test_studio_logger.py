"""The logger `agentscope_studio`: what Studio receives of a run, and that the run never waits for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet import ConfigError
from ajet.interfaces.backbone import RunResult
from ajet_agentscope.studio import AgentScopeStudio, sending, spans
from tests.core.test_hooks import Training, scripted_backbone, training  # noqa: F401
from tests.pages import files, page
from tests.patience import PATIENCE

from ..programs import SYSTEM, require, script
from .studio_server import REGISTER, TRACES, Studio, attributes, studio_server

AGENT = """
from tests.plugins.programs import CLOSED, ask_plainly

def solve(task):
    ask_plainly(task.query)
    return "done"

def fails(task):
    ask_plainly(task.query)
    raise KeyError("lost")

def broken_text(task):
    import json
    import httpx2
    messages = [{"role": "user", "content": "half a character: \\ud83d"}]
    body = json.dumps({"model": "m", "messages": messages})
    httpx2.post(f"{CLOSED}/chat/completions", content=body)
    return "also \\ud83d"

def two_agents(task):
    import ajet
    with ajet.label(agent="solver"):
        ask_plainly(task.query)
    with ajet.label(agent="critic"):
        ask_plainly(task.query)

async def agentscope(task):
    from agentscope.agent import Agent
    from agentscope.credential import OpenAICredential
    from agentscope.message import UserMsg
    from agentscope.model import OpenAIChatModel
    from agentscope.permission import PermissionBehavior, PermissionDecision
    from agentscope.tool import FunctionTool, Toolkit
    from tests.plugins.programs import SYSTEM, calculate

    def calculator(expression: str) -> str:
        "Evaluate an arithmetic expression."
        return calculate(expression)

    there = OpenAICredential(api_key="k", base_url=CLOSED)
    model = OpenAIChatModel(credential=there, model="m", stream=False, max_retries=0)
    allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="")
    tools = Toolkit(tools=[FunctionTool(calculator, permission=allowed)])
    agent = Agent("solver", SYSTEM, model, tools)
    return (await agent.reply(UserMsg("user", task.query))).get_text_content()
"""


@pytest.fixture
def studio() -> Iterator[Studio]:
    with studio_server() as studio:
        yield studio


@pytest.fixture
def run(training: Training, tokenizer: Any) -> Any:  # noqa: F811
    """Train for a step, with four episodes of "12 + 30" whose model is a script."""
    (training.folder / "agent.py").write_text(AGENT)
    training.attach("solver", ajet_plugins=lambda: [scripted_backbone(tokenizer, script, "solver")])
    tasks = [{"id": f"t{i}", "query": "12 + 30"} for i in range(2)]
    (training.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))

    def run(url: str, workflow: str = "solve", **options: Any) -> RunResult:
        resume, sets = options.pop("resume", None), options.pop("sets", {})
        logger = {"type": "agentscope_studio", "url": url, **options}
        return training.run(
            workflow, steps=1, loggers=[logger], sets={"backbone.name": "solver", **sets}, resume=resume
        )

    return run


def said(training: Training) -> list[str]:  # noqa: F811
    return [line for line in training.lines.said if "agentscope_studio" in line]


def text(part: dict[str, Any]) -> tuple[str, Any]:
    return part["type"], part.get("content", part.get("response", part.get("name")))


def chat(span: Any, attribute: str) -> list[tuple[str, list[tuple[str, Any]]]]:
    """(role, [(type, content) of each part]) of each message."""
    return [(m["role"], [text(p) for p in m["parts"]]) for m in json.loads(attributes(span)[attribute])]


# ------------------------------------------------------------------ what arrives


@pytest.mark.whole
def test_the_run_is_registered_then_its_episodes_arrive_then_it_is_done(
    run: Any,
    studio: Studio,
    training: Training,  # noqa: F811
) -> None:
    result = run(studio.url, project="sums")
    assert [path for path, _ in studio.arrived] == [REGISTER, *[TRACES] * 4, REGISTER]
    first, last = studio.runs
    assert (first["project"], first["name"], first["status"]) == ("sums", result.run_dir.name, "running")
    assert first["run_dir"] == str(result.run_dir) and isinstance(first["pid"], int)
    assert last == {**first, "status": "done"}
    assert not said(training)


def test_a_trace_is_an_episode_with_its_calls_and_tools_in_order(run: Any, studio: Studio) -> None:
    result = run(studio.url)
    conversations = {attributes(s)["gen_ai.conversation.id"] for trace in studio.traces for s in trace}
    assert conversations == {studio.runs[0]["id"]}
    journal = {json.loads(line)["id"] for line in (result.run_dir / "episodes.jsonl").open()}
    assert {attributes(trace[0])["ajet.episode.id"] for trace in studio.traces} == journal
    for trace in studio.traces:
        root, *below = trace
        assert [s.name for s in trace] == [
            "invoke_agent agent",
            "chat starter",
            "execute_tool calculator",
            "chat starter",
        ]
        assert root.parent_span_id == b"" and {s.parent_span_id for s in below} == {root.span_id}
        assert len({s.span_id for s in trace}) == 4 and {s.trace_id for s in trace} == {root.trace_id}
        for span in trace:
            assert 0 < root.start_time_unix_nano <= span.start_time_unix_nano
            assert span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano
            assert span.status.code == span.status.STATUS_CODE_OK
        first, tool, second = below
        assert first.end_time_unix_nano <= tool.start_time_unix_nano
        assert tool.end_time_unix_nano <= second.start_time_unix_nano


@pytest.mark.whole
def test_chats_have_their_messages_and_tokens_and_tools_their_result(run: Any, studio: Studio) -> None:
    run(studio.url)
    root, first, tool, second = studio.traces[0]
    assert chat(root, "gen_ai.input.messages") == [("user", [("text", "12 + 30")])]
    assert chat(root, "gen_ai.output.messages") == [("assistant", [("text", "done")])]
    asked = [("system", [("text", SYSTEM)]), ("user", [("text", "12 + 30")])]
    assert chat(first, "gen_ai.input.messages") == asked
    thinks = [("reasoning", "A sum."), ("text", "I calculate."), ("tool_call", "calculator")]
    assert chat(first, "gen_ai.output.messages") == [("assistant", thinks)]
    (message,) = json.loads(attributes(first)["gen_ai.output.messages"])
    assert message["finish_reason"] == "tool_call"
    assert message["parts"][-1]["arguments"] == {"expression": "12 + 30"}
    assert [role for role, _ in chat(second, "gen_ai.input.messages")] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert chat(second, "gen_ai.input.messages")[-1] == ("tool", [("tool_call_response", "42")])
    assert chat(second, "gen_ai.output.messages") == [("assistant", [("text", "The result is 42.")])]
    for span in (first, second):
        facts = attributes(span)
        assert facts["gen_ai.request.model"] == "starter" and facts["ajet.target"] == "policy"
        assert facts["gen_ai.usage.input_tokens"] > facts["gen_ai.usage.output_tokens"] > 0
    facts = attributes(tool)
    assert facts["gen_ai.tool.call.id"] == message["parts"][-1]["id"]
    assert json.loads(facts["gen_ai.tool.call.arguments"]) == {"expression": "12 + 30"}
    assert facts["gen_ai.tool.call.result"] == "42"


@pytest.mark.whole
def test_the_reward_is_an_evaluation_of_the_episode(run: Any, studio: Studio) -> None:
    run(studio.url)
    for root, *below in studio.traces:
        (event,) = root.events
        assert event.name == "gen_ai.evaluation.result"
        assert attributes(event) == {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 1.0}
        assert not any(span.events for span in below)
        facts = attributes(root)
        assert (facts["ajet.phase"], facts["ajet.step"]) == ("train", 1)


@pytest.mark.whole
def test_an_agent_of_agentscope_has_its_name(run: Any, studio: Studio) -> None:
    require("agentscope.credential")
    run(studio.url, "agentscope")
    for root, *below in studio.traces:
        assert root.name == "invoke_agent solver"
        assert [s.name.split()[0] for s in below] == ["chat", "execute_tool", "chat"]
        assert chat(root, "gen_ai.output.messages") == [("assistant", [("text", "The result is 42.")])]


def test_calls_of_a_frozen_target_name_its_model_and_no_tokens(
    run: Any,
    studio: Studio,
    training: Training,  # noqa: F811
) -> None:
    (training.folder / "critic.yaml").write_text('- say: "Well done."')
    frozen = {"type": "script", "path": str(training.folder / "critic.yaml")}
    targets = {"policy": {"agents": ["solver"]}, "critic": {"agents": ["critic"], "frozen_model": frozen}}
    run(studio.url, "two_agents", sets={"targets": targets})
    for root, *below in studio.traces:
        assert root.name == "invoke_agent solver, critic"
        chats = [attributes(s) for s in below if s.name.startswith("chat")]
        answered = [(facts["gen_ai.agent.name"], facts["gen_ai.request.model"]) for facts in chats]
        assert answered == [("solver", "starter")] * 2 + [("critic", "script")] * 2
        assert ["gen_ai.usage.input_tokens" in facts for facts in chats] == [True, True, False, False]


def test_a_failed_episode_has_its_error_and_no_reward(run: Any, studio: Studio) -> None:
    with pytest.raises(Exception, match="all 4 episodes failed"):
        run(studio.url, "fails")
    assert len(studio.traces) == 4 and [r["status"] for r in studio.runs] == ["running", "done"]
    for root, *_ in studio.traces:
        assert not root.events and root.status.code == root.status.STATUS_CODE_ERROR
        assert "lost" in root.status.message
        assert attributes(root)["error.type"] == "workflow:KeyError"


def test_halves_of_characters_are_replaced(run: Any, studio: Studio) -> None:
    run(studio.url, "broken_text")
    assert len(studio.traces) == 4
    root, call = studio.traces[0]
    assert chat(root, "gen_ai.output.messages") == [("assistant", [("text", "also ?")])]
    assert chat(call, "gen_ai.input.messages") == [("user", [("text", "half a character: ?")])]


@pytest.mark.whole
def test_a_large_episode_is_sent_in_several_requests(
    run: Any, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "LARGEST_REQUEST", 2000)
    run(studio.url)
    assert len(studio.sizes) > 4
    assert [[s.name.split()[0] for s in trace] for trace in studio.traces] == [
        ["invoke_agent", "chat", "execute_tool", "chat"]
    ] * 4


@pytest.mark.whole
def test_a_resumed_run_keeps_its_id(run: Any, studio: Studio) -> None:
    result = run(studio.url)
    run(studio.url, resume=result.run_dir)
    assert len(studio.runs) == 4 and len({r["id"] for r in studio.runs}) == 1
    run(studio.url)
    assert len({r["id"] for r in studio.runs}) == 2


# ------------------------------------------------------------------ when Studio does not answer


@pytest.mark.whole
def test_a_run_without_studio_says_so_once_and_counts_at_its_end(
    run: Any,
    training: Training,  # noqa: F811
) -> None:
    assert run("http://127.0.0.1:9").steps == 1
    unreachable, counted = said(training)
    assert unreachable.startswith("logger agentscope_studio: sending to http://127.0.0.1:9 failed (Connect")
    assert "Is AgentScope Studio running there? The run continues." in unreachable
    assert counted == "logger agentscope_studio: 4 of 4 episodes were not sent to http://127.0.0.1:9"
    assert "\n" not in unreachable


@pytest.mark.whole
def test_a_run_does_not_wait_for_a_studio_that_hangs(
    run: Any,
    studio: Studio,
    training: Training,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "FLUSHING", 0.05)
    ended = threading.Event()

    def answer(path: str) -> int:
        assert ended.wait(PATIENCE)
        return 200

    studio.answer = answer
    try:
        assert run(studio.url).steps == 1
        assert not studio.arrived, "the first request is still unanswered"
        assert said(training) == [f"logger agentscope_studio: 4 of 4 episodes were not sent to {studio.url}"]
    finally:
        ended.set()


@pytest.mark.whole
def test_episodes_are_left_out_where_too_many_wait(
    run: Any,
    studio: Studio,
    training: Training,  # noqa: F811
) -> None:
    at_the_end = threading.Event()
    studio.answer = lambda path: 200 if at_the_end.wait(PATIENCE) else 500
    training.attach("end", ajet_run_end=lambda event: at_the_end.set())
    run(studio.url, waiting=1)
    assert len(studio.traces) == 1
    assert said(training) == [f"logger agentscope_studio: 3 of 4 episodes were not sent to {studio.url}"]


@pytest.mark.whole
def test_what_studio_refuses_is_counted_and_the_rest_arrives(
    run: Any,
    studio: Studio,
    training: Training,  # noqa: F811
) -> None:
    asked: list[str] = []

    def answer(path: str) -> int:
        asked.append(path)
        return 413 if asked.count(TRACES) == 2 and path == TRACES else 200

    studio.answer = answer
    run(studio.url)
    assert len(studio.traces) == 3
    refused, counted = said(training)
    assert "413" in refused and "\n" not in refused
    assert "1 of 4 episodes were not sent" in counted


@pytest.mark.whole
def test_a_studio_that_starts_during_the_run_receives_the_run_first(run: Any, studio: Studio) -> None:
    asked: list[str] = []

    def answer(path: str) -> int:
        asked.append(path)
        return 503 if len(asked) <= 2 else 200

    studio.answer = answer
    run(studio.url)
    assert asked[:2] == [REGISTER, REGISTER], "at the start, and for the first episode"
    assert [path for path, _ in studio.arrived] == [REGISTER, *[TRACES] * 3, REGISTER]


# ------------------------------------------------------------------ the logger itself


@pytest.mark.whole
def test_the_page_has_a_job_that_runs_and_every_key(
    run: Any,
    studio: Studio,
) -> None:
    text = page("docs/loggers.md")
    (logger,) = yaml.safe_load(files(text)["studio.yaml"])["run"]["loggers"]
    assert logger.pop("type") == AgentScopeStudio.name
    run(**{**logger, "url": studio.url})
    assert studio.runs[0]["project"] == "my agent"
    for name, field in AgentScopeStudio.model_fields.items():
        assert f"| `{name}` | `{field.default}` |" in text


def test_nothing_is_sent_unless_the_job_names_the_logger(
    training: Training,  # noqa: F811
    studio: Studio,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AgentScopeStudio.model_fields["url"], "default", studio.url)
    training.run(steps=1)
    assert not studio.arrived


@pytest.mark.parametrize("url", ["localhost:3000", "ftp://studio", "http://"])
def test_an_address_that_is_not_one_is_refused(run: Any, url: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.loggers\.0\.url"):
        run(url)


@pytest.mark.whole
def test_importing_the_plugin_imports_no_protobuf(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import ajet_agentscope, sys; print([m for m in sys.modules if m.startswith(('google', 'opentel', 'httpx'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
