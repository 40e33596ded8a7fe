"""`select_model` of AgentScope's tuner, with chat models of the installed AgentScope (1 or 2) and a real HTTP server."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import random
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ajet.types import AjetError, ConfigError
from ajet_agentscope.tuner import DatasetConfig, JudgeOutput, WorkflowOutput, select_model
from ajet_agentscope.tuner.model_selection import avg_time_judge, avg_token_consumption_judge, counted

from ..programs import require

require("agentscope")
IS_1 = importlib.metadata.version("agentscope").startswith("1.")
SKILL = {"good": 0.95, "same": 0.95, "bad": 0.3, "broken": 0.0}
TOKENS = {"good": (300, 100), "same": (300, 100), "bad": (30, 10), "broken": (0, 0)}
RECORDS = 20


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name, asked = body["model"], json.dumps(body["messages"])
        if name == "broken":
            self._send(400, "application/json", json.dumps({"error": {"message": "no credit left"}}))
            return
        said = "right" if random.Random(asked).random() < SKILL[name] else "wrong"
        prompt, completion = TOKENS[name]
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        whole = {"id": "x", "object": "chat.completion", "created": 1, "model": name, "usage": usage}
        message = {"role": "assistant", "content": said}
        if not body.get("stream"):
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            self._send(200, "application/json", json.dumps({**whole, "choices": choices}))
            return
        pieces = [
            {**whole, "usage": None, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**whole, "usage": None, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**whole, "choices": []},
        ]
        lines = [f"data: {json.dumps(piece | {'object': 'chat.completion.chunk'})}\n\n" for piece in pieces]
        self._send(200, "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]))

    def _send(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """AgentScope's clients leave their connections open until the process ends."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


def chat_model(url: str, name: str, *, stream: bool = False) -> Any:
    """A chat model as users of this AgentScope make it."""
    from agentscope import model

    if IS_1:
        settings = {"base_url": url, "max_retries": 0}
        return model.OpenAIChatModel(name, api_key="k", stream=stream, client_kwargs=settings)
    from agentscope.credential import OpenAICredential

    credential = OpenAICredential(api_key="k", base_url=url)
    return model.OpenAIChatModel(credential=credential, model=name, stream=stream, max_retries=0)


async def ask(model: Any, text: str) -> str:
    """The text of the model's answer."""
    if IS_1:
        messages: Any = [{"role": "user", "content": text}]
    else:
        from agentscope.message import UserMsg

        messages = [UserMsg("user", text)]
    answer = await model(messages)
    if isinstance(answer, AsyncIterator):
        chunks = [chunk async for chunk in answer]
        answer = chunks[-1]
    blocks = answer.content
    return "".join(b["text"] if isinstance(b, dict) else b.text for b in blocks)


async def workflow(task: dict[str, Any], model: Any) -> WorkflowOutput:
    return WorkflowOutput(response=await ask(model, task["question"]), metrics={"words": 1.0})


async def judge(task: dict[str, Any], response: Any) -> JudgeOutput:
    assert response["metrics"]["words"] == 1.0
    return JudgeOutput(reward=float(response["response"] == "right"), metrics={"seen": 1.0})


@pytest.fixture
def data(tmp_path: Path) -> DatasetConfig:
    lines = [json.dumps({"question": f"question {i}"}) for i in range(RECORDS)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    return DatasetConfig(path=str(tmp_path / "train.jsonl"))


def select(data: DatasetConfig, models: list[Any], **changed: Any) -> tuple[Any, dict[str, float]]:
    functions = {"workflow_func": workflow, "judge_func": judge} | changed
    return asyncio.run(select_model(train_dataset=data, candidate_models=models, **functions))


def test_the_better_model_is_returned_with_metrics(data: DatasetConfig, url: str) -> None:
    bad, good = (chat_model(url, name) for name in ("bad", "good"))
    best, metrics = select(data, [bad, good])
    assert best is good
    assert metrics["is_significant"] == 1 and metrics["p_value"] < 0.05
    assert metrics["reward_avg"] > 0.8 and metrics["seen_avg"] == 1 and metrics["failed"] == 0
    assert metrics["total_tokens_avg"] == 400 and metrics["reward_standard_error"] > 0


def test_equal_models_are_reported(data: DatasetConfig, url: str, caplog: pytest.LogCaptureFixture) -> None:
    _, metrics = select(data, [chat_model(url, "good"), chat_model(url, "same")])
    assert metrics["is_significant"] == 0 and metrics["p_value"] == 1
    assert "no difference between good" in caplog.text


@pytest.mark.whole
@pytest.mark.parametrize("stream", [False, True])
def test_the_judge_of_tokens_prefers_the_frugal_model(data: DatasetConfig, url: str, stream: bool) -> None:
    good, bad = (chat_model(url, name, stream=stream) for name in ("good", "bad"))
    best, metrics = select(data, [good, bad], judge_func=avg_token_consumption_judge)
    assert best is bad
    assert (metrics["token_consumed_avg"], metrics["reward_avg"]) == (40, -40)


def test_the_judge_of_time_prefers_the_fast_model(data: DatasetConfig, url: str) -> None:
    async def slow(task: dict[str, Any], model: Any) -> WorkflowOutput:
        is_slow = "good" in (getattr(model, "model_name", ""), getattr(model, "model", ""))
        await asyncio.sleep(0.05 if is_slow else 0)
        return WorkflowOutput(response="")

    good, bad = (chat_model(url, name) for name in ("good", "bad"))
    best, metrics = select(data, [good, bad], judge_func=avg_time_judge, workflow_func=slow, max_threads=20)
    assert best is bad and metrics["avg_time_seconds_avg"] == -metrics["reward_avg"] > 0


def test_a_model_without_usage_is_an_error_for_the_judge_of_tokens(data: DatasetConfig, url: str) -> None:
    async def silent(task: dict[str, Any], model: Any) -> WorkflowOutput:
        return WorkflowOutput(response="right")

    models = [chat_model(url, name) for name in ("good", "bad")]
    with pytest.raises(AjetError, match=r"20 of 20 episodes failed.*report no usage"):
        select(data, models, judge_func=avg_token_consumption_judge, workflow_func=silent)


@pytest.mark.whole
def test_a_broken_model_never_wins(data: DatasetConfig, url: str, caplog: pytest.LogCaptureFixture) -> None:
    broken, bad, good = (chat_model(url, name) for name in ("broken", "bad", "good"))
    best, metrics = select(data, [broken, bad, good])
    assert best is good and metrics["is_significant"] == 1
    assert "broken: 20 of 20 episodes failed" in caplog.text and "no credit left" in caplog.text
    best, metrics = select(data, [broken, good])
    assert best is good and metrics["is_significant"] == 0  # there was nothing to compare it with


def test_single_failures_are_counted(data: DatasetConfig, url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def fragile(task: dict[str, Any], model: Any) -> WorkflowOutput:
        if task["question"].endswith("1"):
            raise RuntimeError("lost")
        return await workflow(task, model)

    _, metrics = select(data, [chat_model(url, "good"), chat_model(url, "bad")], workflow_func=fragile)
    assert metrics["failed"] == 2 and metrics["reward_avg"] <= 0.9
    assert caplog.text.count("2 of 20 episodes failed. First: RuntimeError: lost") == 2


def test_no_more_episodes_at_once_than_threads_and_the_data_set_says_how_many(
    data: DatasetConfig, url: str
) -> None:
    running, most, ran = 0, 0, 0

    async def watched(task: dict[str, Any], model: Any) -> WorkflowOutput:
        nonlocal running, most, ran
        running, ran = running + 1, ran + 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return WorkflowOutput(response=task["question"], metrics={"words": 1.0})

    few = data.model_copy(update={"total_steps": 4, "total_epochs": 2})
    select(few, [chat_model(url, "good"), chat_model(url, "bad")], workflow_func=watched, max_threads=3)
    assert most == 3 and ran == 2 * 4 * 2


def test_the_workflow_gets_a_model_of_the_same_class_and_the_candidate_is_left_alone(url: str) -> None:
    model = chat_model(url, "good")
    cls = type(model)
    copied, usage = counted(model)
    assert isinstance(copied, cls) and type(model) is cls
    assert asyncio.run(ask(copied, "question 0")) in ("right", "wrong")
    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (1, 300, 100)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"workflow_func": lambda task: None},
            "workflow_func: takes (task); it must take exactly (task, model)",
        ),
        ({"judge_func": lambda _task, response: None}, "it must take exactly (task, response)"),
        ({"max_threads": 0}, "max_threads: is 0"),
    ],
)
def test_mistakes_are_one_line(data: DatasetConfig, url: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        select(data, [chat_model(url, "good"), chat_model(url, "bad")], **changed)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_one_candidate_and_a_judge_that_returns_a_number_are_refused(data: DatasetConfig, url: str) -> None:
    async def number(task: dict[str, Any], response: Any) -> Any:
        return 1.0

    good = chat_model(url, "good")
    with pytest.raises(ConfigError, match="candidate_models: has 1; give at least two"):
        select(data, [good])
    with pytest.raises(ConfigError, match="judge_func: returned float; return JudgeOutput"):
        select(data, [good, good], judge_func=number)


@pytest.fixture(autouse=True)
def _shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ajet.tuner")
