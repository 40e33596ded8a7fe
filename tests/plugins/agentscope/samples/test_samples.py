"""Programs of AgentScope's users move by one import: each sample runs as they would start it, on AgentScope 1."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.plugins.programs import calling, require
from tests.tiny import save_tiny_model

require("agentscope", "torch", "datasets")
if not importlib.metadata.version("agentscope").startswith("1."):
    pytest.skip("AgentScope 1 is not installed: make test-agentscope-samples", allow_module_level=True)

HERE = Path(__file__).parent
SECONDS = 4 * PATIENCE
NUMBERS = [(n, n + 2) for n in range(4)]
SUMS = [
    {
        "question": f"Ann has {a} pens and gets {b}. How many has she?",
        "answer": f"{a} and {b} are {a + b}.\n#### {a + b}",
        "small_pass_rate": 0.25 * (n % 4),
        "large_pass_rate": 0.5 + 0.125 * (n % 4),
    }
    for n, (a, b) in enumerate(NUMBERS)
]
PATIENTS = [
    {
        "messages": [
            {"role": "user", "content": "My head hurts."},
            {"role": "assistant", "content": "Since when?"},
            {"role": "user", "content": f"For {n} days."},
        ],
        "decision_truth": "continue",
        "info_truth": "age",
    }
    for n in range(4)
]
Run = Callable[..., str]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny", tokenizer, context=8192)


@pytest.fixture
def run(tmp_path: Path, tiny: Path) -> Run:
    """Write data sets, and run a sample where they are; what it has printed."""
    for name, records in (
        ("gsm8k/train", SUMS),
        ("patients/train", PATIENTS),
        ("games/train", [{"seed": n} for n in range(2)]),
        ("mails/train", [{"question": "When is lunch?", "answer": "at noon"}] * 4),
        ("lakes/train", [{"size": 2, "seed": n} for n in range(4)]),
        ("shares/train", [{"query": "What does Acme cost?"}] * 4),
        ("shares/validation", [{"query": "What does Acme cost today?"}]),
        ("words/test", [{"question": "Wasser und Brot", "answer": "water and bread"}] * 3),
    ):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (tmp_path / "gsm8k" / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: train.jsonl\n---\n"
    )

    def sample(name: str, *arguments: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, str(HERE / name), *arguments],
            cwd=tmp_path,
            env={**os.environ, "SAMPLE_MODEL": str(tiny), "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    return sample


@pytest.mark.parametrize(
    ("name", "project", "arguments"),
    [
        ("model_tuning.py", "AgentScope", ()),
        ("math_agent.py", "AgentScope", ()),
        ("data_augment.py", "Data-Augmentation", ("--config", str(HERE / "data_augment.yaml"))),
        ("learn_to_ask.py", "Learn2Ask", ()),
        ("werewolf_game.py", "AgentScope-Werewolves", ()),
        ("frozen_lake.py", "Lakes", ()),
        ("email_search.py", "Mails", ()),
    ],
)
def test_it_trains_two_steps(
    run: Run, tmp_path: Path, name: str, project: str, arguments: tuple[str, ...]
) -> None:
    said = run(name, *arguments)
    (experiment,) = (tmp_path / "checkpoints" / project).iterdir()
    assert (experiment / "global_step_2" / "config.json").is_file()
    steps = [json.loads(line) for line in (experiment / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in steps if line["type"] == "train"]
    assert [(step["step"], step["episodes_failed"]) for step in steps] == [(1, 0), (2, 0)]
    assert len(said.splitlines()) < 100, "the agents' answers are not on the terminal"
    episodes = [json.loads(line) for line in (experiment / "run" / "episodes.jsonl").read_text().splitlines()]
    printed = [e.get("printed", "") for e in episodes if e["type"] == "episode"]
    assert printed and all(re.search("react_agent:|Player", text) for text in printed)


def test_an_agent_with_the_tools_of_a_server_is_trained_from_its_file_alone(
    run: Run, tmp_path: Path, prices: str
) -> None:
    said = run("deep_finance.py", FINANCE_MCP_URL=prices)
    assert "explorer.rollout_model" in said and "no effect of" in said
    experiment = tmp_path / "checkpoints" / "DeepFinance" / "DeepFinance-8B"
    assert (experiment / "global_step_2" / "config.json").is_file()
    steps = [json.loads(line) for line in (experiment / "run" / "metrics.jsonl").read_text().splitlines()]
    rewards = [(step["episodes_failed"], step["reward"]) for step in steps if step["type"] == "train"]
    assert rewards == [(0, 1.0), (0, 1.0)], "the judge saw the server's tool and the file's workflow_args"


def test_the_selector_follows_the_pass_rates_of_the_records(run: Run, tmp_path: Path) -> None:
    run("data_augment.py", "--config", str(HERE / "data_augment.yaml"))
    (experiment,) = (tmp_path / "checkpoints" / "Data-Augmentation").iterdir()
    job = (experiment / "run" / "job.yaml").read_text()
    assert "small_pass_rate" in job and "large_pass_rate" in job


def test_an_example_of_prompt_tuning_runs(run: Run, tmp_path: Path, model: Endpoint) -> None:
    import pandas

    for name in ("train", "test"):
        pandas.DataFrame(SUMS).to_parquet(tmp_path / f"{name}.parquet")
    said = run(
        "prompt_tuning.py", SAMPLE_URL=model.url, DASHSCOPE_API_KEY="key", DASHSCOPE_BASE_URL=model.url
    )
    assert "Optimized prompt: You are an agent. Answer in a box." in said
    metrics = eval(re.search(r"Metrics: (\{.*\})", said)[1])
    assert metrics["reward_after"] > metrics["reward_before"] == 0


def test_an_example_of_model_selection_runs(run: Run, model: Endpoint) -> None:
    said = run("model_selection.py", SAMPLE_URL=model.url)
    assert re.findall("Selected best model: (.*)", said) == ["careful", "careless"]


@pytest.fixture
def prices() -> Iterator[str]:
    """The address of an MCP server with a tool `price`."""
    import uvicorn
    from mcp.server.fastmcp import FastMCP

    served = FastMCP("finance")
    served.tool(name="price")(lambda share="Acme": f"{share} costs 12.")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(served.sse_app(), log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/sse"
        server.force_exit = server.should_exit = True
        thread.join(PATIENCE)


class Endpoint:
    """A scripted model behind HTTP: it solves sums in a box if told so, proposes to tell it so, and translates."""

    def __init__(self, url: str) -> None:
        self.url = url

    @staticmethod
    def answer(asked: dict[str, Any]) -> str:
        said = [
            m["content"] if isinstance(m["content"], str) else m["content"][0]["text"]
            for m in asked["messages"]
        ]
        if asked["model"] == "qwen3-max":
            return "```\nYou are an agent. Answer in a box.\n```"
        if asked["model"] in ("careless", "careful"):
            return "water" if asked["model"] == "careless" else "water and bread, or so the dictionary says"
        total = sum(map(int, re.findall(r"\d+", said[-1])))
        return f"\\boxed{{{total}}}" if "box" in said[0] else str(total)


@pytest.fixture
def model() -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = Endpoint.answer(asked)
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 9, "completion_tokens": len(text), "total_tokens": 9 + len(text)}
            answer = {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": asked["model"],
                "usage": usage,
            }
            lines = [json.dumps({**answer, "choices": [choice]})]
            if asked.get("stream"):
                chunk = {**choice, "delta": message}
                whole = {**answer, "object": "chat.completion.chunk", "choices": [chunk]}
                lines = [f"data: {json.dumps(whole)}\n", "data: [DONE]\n"]
            content = "\n".join(lines).encode()
            self.send_response(200)
            self.send_header(
                "content-type", "text/event-stream" if asked.get("stream") else "application/json"
            )
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield Endpoint(f"http://127.0.0.1:{server.server_port}/v1")
        server.shutdown()


def play(request: Any, prompt: str) -> str:
    """A player who agrees with everything and votes for the first whom it may vote for."""
    last = prompt.rpartition("<|im_start|>user")[2]
    names = re.search(r'"enum": \["(\w+)"', prompt)
    if "<tool_response>" in last or '"generate_response"' not in prompt:
        return "So be it."
    if names:
        return calling("generate_response", response="I vote.", vote=names[1])
    return calling("generate_response", response="Yes.", reach_agreement=True)


def test_a_whole_game_of_werewolves_is_played(prepared: Callable[..., Any]) -> None:
    from ajet import Task, Tuner
    from ajet.plugins import load_plugins

    sys.path.insert(0, str(HERE))
    try:
        import werewolf_game
    finally:
        sys.path.remove(str(HERE))
    with prepared(play).session() as session:
        tuner = Tuner("http://127.0.0.1:9/v1", session.key, load_plugins().handles)
        model = tuner.as_agentscope_model(stream=False)
        task = dict(Task("0", metadata={"seed": 0}).metadata)
        output = asyncio.run(werewolf_game.run_werewolves_workflow(task, model, {"participant": model}))
    assert "unexpected_error" not in output.metrics
    assert output.reward in (0.0, 1.0)
    assert {call.agent for call in session.record.exchanges} == {f"Player{n}" for n in range(1, 5)}
