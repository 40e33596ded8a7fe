"""The engine and the episodes inside Trinity's explorer, over a server that answers as vLLM does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.types import AjetError, ConfigError, GenerateRequest, Sampling
from ajet_trinity.explorer import Agent, ServedEngine, task_of

httpserver = pytest.importorskip("pytest_httpserver")
from werkzeug import Request, Response  # noqa: E402

AGENT = """
import ajet
from openai import AsyncOpenAI

async def run(task, tuner):
    client = AsyncOpenAI(base_url="http://model.example/v1", api_key="none")
    messages = [{"role": "user", "content": task.query}]
    for _ in range(2):
        reply = await client.chat.completions.create(model="m", messages=messages)
        messages += [dict(role="assistant", content=reply.choices[0].message.content), dict(role="user", content="again")]
    return ajet.WorkflowOutput(reward=float(task.metadata["answer"]))
"""


@pytest.fixture
def tokenizer() -> Any:
    pytest.importorskip("transformers")
    from ajet_local.starter.calculator import Calculator

    return Calculator().tokenizer(0)[0]


@pytest.fixture
def server(tokenizer: Any) -> Any:
    """A vLLM server with one answer."""
    received: list[dict[str, Any]] = []
    ids = [*tokenizer.encode("7", add_special_tokens=False), tokenizer.eos_token_id]

    def answer(request: Request) -> Response:
        body = json.loads(request.get_data())
        received.append(body)
        choice = {
            "token_ids": ids,
            "logprobs": {"token_logprobs": [-0.5] * len(ids)},
            "finish_reason": "stop",
        }
        return Response(json.dumps({"choices": [choice]}), content_type="application/json")

    with httpserver.HTTPServer(host="127.0.0.1") as running:
        running.expect_request("/v1/completions").respond_with_handler(answer)
        running.received, running.ids = received, ids
        yield running


def engine_of(server: Any, tokenizer: Any) -> ServedEngine:
    return ServedEngine(server.url_for(""), "key", "the/model", tokenizer, "qwen3", 160)


def run(engine: ServedEngine, use: Callable[[ServedEngine], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        await engine.start()
        try:
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(whole())


@pytest.mark.whole
def test_prompts_and_answers_travel_as_token_ids(server: Any, tokenizer: Any) -> None:
    engine = engine_of(server, tokenizer)
    engine.version = 3
    request = GenerateRequest(np.array([5, 6, 7], np.int32), Sampling(temperature=0.7, max_tokens=9, seed=4))
    found = run(engine, lambda e: e.generate(request))
    assert found.token_ids.tolist() == server.ids
    assert found.logprobs.tolist() == [-0.5] * len(server.ids)
    assert set(found.weight_versions.tolist()) == {3}
    assert found.finish_reason == "stop"
    (body,) = server.received
    assert (body["prompt"], body["temperature"], body["max_tokens"], body["seed"]) == ([5, 6, 7], 0.7, 9, 4)
    assert body["return_token_ids"] and body["model"] == "the/model"


def test_an_answer_without_token_ids_is_an_error(tokenizer: Any) -> None:
    with httpserver.HTTPServer(host="127.0.0.1") as running:
        running.expect_request("/v1/completions").respond_with_json({"choices": [{"text": "7"}]})
        request = GenerateRequest(np.array([5], np.int32), Sampling())
        with pytest.raises(AjetError, match="has no token_ids or logprobs"):
            run(engine_of(running, tokenizer), lambda e: e.generate(request))


@pytest.mark.whole
def test_a_refused_request_is_an_error_that_names_the_server(tokenizer: Any) -> None:
    with httpserver.HTTPServer(host="127.0.0.1") as running:
        running.expect_request("/v1/completions").respond_with_data("no such model", status=404)
        request = GenerateRequest(np.array([5], np.int32), Sampling())
        with pytest.raises(AjetError, match=r"http://127.0.0.1:\d+: answered 404: no such model"):
            run(engine_of(running, tokenizer), lambda e: e.generate(request))


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"query": "unused"}\n')
    file = tmp_path / "job.yaml"
    file.write_text("task: {reader: tasks.jsonl}\nworkflow: agent.py:run\nmodel: the/model\n")
    return file


@pytest.mark.whole
def test_a_group_of_episodes_becomes_timelines_of_several_calls(
    server: Any, tokenizer: Any, job_file: Path
) -> None:
    pytest.importorskip("openai")
    agent = Agent.of(job_file, lambda job: engine_of(server, tokenizer))

    async def group() -> Any:
        try:
            return await agent.group({"question": "1 + 2", "answer": "0.5"}, "3/4", 2, 6)
        finally:
            await agent.close()

    episodes = asyncio.run(group())
    assert [episode.reward for episode in episodes] == [0.5, 0.5]
    for episode in episodes:
        (line,) = agent.timelines(episode)
        assert len(line.spans) == 2
        assert line.token_ids[line.mask].tolist() == server.ids * 2
    assert len(server.received) == 4


@pytest.mark.parametrize("truncating", ["top_p: 0.9", "top_k: 5", "min_p: 0.1"])
def test_sampling_that_changes_logprobs_is_refused(job_file: Path, truncating: str) -> None:
    job_file.write_text(
        job_file.read_text() + f"rollout: {{sampling: {{{truncating}, allow_truncated: true}}}}\n"
    )
    said = rf"rollout\.sampling: {truncating.replace(': ', '=')}: Trinity's vLLM returns logprobs of"
    with pytest.raises(ConfigError, match=said):
        Agent.of(job_file, lambda job: None)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("name", ["query", "question", "prompt"])
def test_a_record_of_trinity_is_a_task(name: str) -> None:
    task = task_of({name: "1 + 2", "answer": "3", "level": 2})
    assert (task.query, task.metadata["answer"], task.metadata["level"]) == ("1 + 2", "3", 2)
