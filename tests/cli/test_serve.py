"""`ajet serve`, as a program: a key, a model, a clean end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from ajet.capture.answers import Answerer
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target
from ajet.runs.serve import Sessions
from tests.patience import PATIENCE

from .conftest import Folder

ASK: Any = [{"role": "user", "content": "hi"}]
PATIENT = """
from ajet.capture.gateway import stopping
from ajet.cli import main

stopping.SECONDS_TO_END = 60.0
main()
"""
"""`ajet`, with all the time that a busy machine takes to end."""
Start = Callable[..., tuple[subprocess.Popen[str], str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A random Qwen3 of one layer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **sizes,
    )
    folder = tmp_path_factory.mktemp("model") / "tiny"
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def start(model: Path) -> Iterator[Start]:
    """Start `ajet serve`; the process, its URL and its key."""
    started: list[subprocess.Popen[str]] = []

    def go(*arguments: str, key: str | None = None) -> tuple[subprocess.Popen[str], str, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"AJET_SERVE_KEY": key} if key else {})
        process = subprocess.Popen(
            [sys.executable, "-c", PATIENT, "serve", str(model), "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        assert process.stdout
        serving = process.stdout.readline()
        assert " at http://" in serving, (serving, process.stderr and process.stderr.read())
        url = serving.partition(" at ")[2].split()[0]
        return process, url, key or process.stdout.readline().removeprefix("key: ").strip()

    yield go
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE)


@pytest.mark.whole
def test_it_serves_until_it_is_told_to_end(start: Start) -> None:
    process, url, key = start()
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
    assert [m.id for m in client.models.list()] == ["tiny"]
    answer = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=5)
    assert answer.usage and 0 < answer.usage.completion_tokens <= 5
    pieces = list(client.chat.completions.create(model="tiny", messages=ASK, max_tokens=5, stream=True))
    assert pieces[-1].choices[0].finish_reason or pieces[-2].choices[0].finish_reason
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="other", max_retries=0).models.list()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "2 calls answered" in output and not errors


@pytest.mark.slow
def test_the_agents_sampling_is_honoured(start: Start) -> None:
    _, url, key = start()
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)

    def said(**options: Any) -> str | None:
        return (
            client.chat.completions.create(model="m", messages=ASK, max_tokens=12, **options)
            .choices[0]
            .message.content
        )

    assert said(temperature=0) == said(temperature=0)
    assert said(seed=7) == said(seed=7)
    assert len({said() for _ in range(4)}) > 1


@pytest.mark.slow
def test_a_key_of_ones_own_comes_from_the_environment_and_is_not_printed(start: Start) -> None:
    process, url, key = start(key="my-own-key")
    request = urllib.request.Request(f"{url}/models", headers={"authorization": f"Bearer {key}"})
    assert json.load(urllib.request.urlopen(request))["data"]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{url}/models")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert "my-own-key" not in output + errors


@pytest.mark.slow
def test_an_address_that_others_reach_is_warned_of(start: Start) -> None:
    process, _, _ = start("--host", "0.0.0.0")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and errors.startswith("warning: 0.0.0.0 is not a loopback address")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "nothing"], "--engine: unknown engine 'nothing'"),
        (["--set", "threds=1"], "threds: unknown key; did you mean 'threads'"),
        (["--key", "naïve"], "--key: use printable ASCII"),
        (["--tool-calls", "parse"], "rollout.tool_calls: input should be 'read' or 'text'"),
        (["--call-example", "no call"], "rollout.call_example: "),
        (["--tool-prompt", "hermes"], "writes tools itself. Remove the key."),
    ],
)
def test_what_is_wrong_is_one_line(folder: Folder, model: Path, arguments: list[str], said: str) -> None:
    outcome = folder.ajet("serve", str(model), *arguments)
    assert outcome.code == 2 and said in outcome.err and outcome.err.count("\n") == 1


def test_a_full_session_gives_way_to_a_fresh_one(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from ajet.capture.respond import respond
    from ajet.capture.wires.builtin import BUILTIN_WIRES
    from ajet.chat.renderer import Chat
    from ajet.testing import ScriptedEngine

    monkeypatch.setattr("ajet.runs.serve.MOST_CALLS", 3)
    engine = ScriptedEngine(tokenizer, lambda r, p: "ok")
    policy = SamplingPolicy(training=False)
    sessions = Sessions("k", Answerer(engine, Chat(tokenizer, "qwen3"), (Target("policy"),), policy))
    assert sessions.find("other") is None and sessions.find("ké\ud800") is None
    seen = []
    body = json.dumps({"model": "m", "messages": ASK}).encode()
    for _ in range(7):
        session = sessions.find("k")
        assert session
        seen.append(session.episode)
        reply = asyncio.run(respond(BUILTIN_WIRES[0], session, body, "agent", None))
        assert reply.status == 200 and len(session.record.calls) <= 3
    assert seen == ["serve-1"] * 3 + ["serve-2"] * 3 + ["serve-3"]
