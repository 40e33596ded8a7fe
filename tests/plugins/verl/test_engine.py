"""Calls to verl's servers: aborted ones continue, cancelled ones stop in the server, and dead servers get none."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ajet.types import GenerateRequest, Generation, Sampling
from ajet_verl.engine import DRAWS, VerlEngine
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, open_machine


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Any]]:
    """What the driver prints. One Ray cluster serves all tests, because its start takes most of the time."""
    with tempfile.TemporaryDirectory() as folder, open_machine(Path(folder)) as machine:
        yield _printed(machine)


def _printed(machine: Machine) -> dict[str, Any]:
    driver = str(Path(__file__).with_name("engine_driver.py"))
    lines = machine.run(sys.executable, driver, seconds=4 * PATIENCE).strip().splitlines()
    printed: dict[str, Any] = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    return printed


def test_an_aborted_call_continues_after_its_last_token(found: dict[str, Any]) -> None:
    resumed, cut = found["resumed"]["answers"]
    assert resumed == {
        "tokens": [11, 12, 13, 14, 3],
        "logprobs": [-1, -2, -3, -4, -5],
        "versions": [4, 4, 4, 5, 5],
        "finish": "stop",
        # Of two prompt tokens and four sampled ones; nothing followed the last.
        "experts": [4, 4, 4, 4, 5, 5],
    }
    assert cut["experts"] == [4, *[6] * 9], "an earlier call has read the first token"
    assert cut["finish"] == "length" and len(cut["tokens"]) == 9
    first, second, _ = found["resumed"]["seen"]
    assert (first["prompt"], first["max_tokens"]) == ([1, 2], 9)
    assert (second["prompt"], second["max_tokens"]) == ([1, 2, 11, 12, 13], 6)
    assert "seed" not in first  # the continued call would repeat its random numbers
    assert first["temperature"] == 1.0 and first["logprobs"] and first["ignore_eos"]


def test_a_call_has_a_seed_only_with_verls_full_determinism(found: dict[str, Any]) -> None:
    assert "seed" not in found["seeds"]["usual"]
    assert found["seeds"]["deterministic"]["seed"] == 7


def test_the_load_balancer_is_asked_once_for_all_calls_of_an_episode(found: dict[str, Any]) -> None:
    assert found["resumed"]["counted"] == [1, True], "while the episode runs, and when it has ended"


def test_a_cancelled_call_is_cancelled_in_its_server(found: dict[str, Any]) -> None:
    assert found["cancelled"] == {"begun": True, "stopped": True, "released": True}


def test_calls_of_a_dead_server_go_to_the_others(found: dict[str, Any]) -> None:
    dead = found["dead"]
    assert dead["moved"], "the call was not repeated on the other server"
    assert len(dead["same_episode"]) in (5, 9) and dead["others"] == [9] * 4
    (said,) = dead["said"]
    assert said.startswith(f"inference server {dead['busy']} is dead; its calls go to the others: ")
    assert not dead["failed_early"]


def test_without_servers_the_run_ends_with_an_error_that_names_them(found: dict[str, Any]) -> None:
    dead = found["dead"]
    assert dead["error"].startswith("no inference server is left. ")
    assert all(f"{name}: " in dead["error"] for name in dead["names"])
    assert dead["failed"] == [dead["error"]]


def test_another_process_reports_progress(found: dict[str, Any]) -> None:
    assert found["pulses"]["events"] == ["alive"]


class Scripted:
    """verl's servers, with given replies: (ids, aborted). Its n-th call sends all tokens to expert n."""

    def __init__(self, *replies: tuple[list[int], bool]) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[list[int], int, int]] = []
        self.ended: list[str] = []
        self.returned: list[int] = []
        """Of how many tokens each call has returned the experts."""

    async def generate(
        self, episode: str, prompt: list[int], params: dict[str, Any], *_: Any
    ) -> SimpleNamespace:
        self.asked.append((prompt, params["max_tokens"], params["seed"]))
        ids, aborted = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        start = params.get("routed_experts_prompt_start", 0)
        assert start < len(prompt), "vLLM's engine ends"
        self.returned.append(len(prompt) - start + len(ids) - 1)
        return SimpleNamespace(
            token_ids=ids,
            log_probs=[-float(n) for n in range(1, len(ids) + 1)],
            routed_experts=np.full((self.returned[-1], 1, 1), len(self.asked), np.uint8),
            stop_reason="aborted" if aborted else "completed",
            extra_fields={"global_steps": len(self.asked)},
        )

    def let_go(self, episode: str) -> None:
        self.ended.append(episode)


class Tokenizer:
    """With the ids 0 to 9."""

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(10)}

    def __len__(self) -> int:
        return 10


def _engine(servers: Scripted) -> VerlEngine:
    return VerlEngine(servers, Tokenizer(), "qwen3", 64, seeded=True)  # type: ignore[arg-type]


def _ask(engine: VerlEngine, prompt: list[int], episode: str = "e") -> Generation:
    sampling = Sampling(max_tokens=9, seed=7)
    request = GenerateRequest(np.array(prompt, np.int32), sampling, (episode, 0))
    return asyncio.run(engine.generate(request))


def _sampled(*replies: tuple[list[int], bool]) -> tuple[Generation, list[tuple[list[int], int, int]]]:
    """What an engine answers, and what it asks for."""
    servers = Scripted(*replies)
    return _ask(_engine(servers), [1, 2]), servers.asked


@pytest.mark.parametrize(
    ("prompt", "returned", "experts"),
    [
        ([1, 2, 5, 6, 3, 4], 4, [1, 1, 1, 2, 2, 2, 2]),  # it continues: 6 was sampled, and not read
        ([1, 2, 7, 4], 3, [1, 1, 2, 2, 2]),  # it shares two tokens
        ([1, 2], 2, [1, 2, 2]),
        ([9, 2], 3, [2, 2, 2]),
    ],
)
def test_a_call_asks_for_the_experts_of_tokens_that_no_call_of_its_episode_has_read(
    prompt: list[int], returned: int, experts: list[int]
) -> None:
    servers = Scripted(([5, 6], False))
    engine = _engine(servers)
    _ask(engine, [1, 2])
    got = _ask(engine, prompt)
    assert servers.returned == [3, returned]
    assert got.routed_experts is not None and got.routed_experts.flatten().tolist() == experts


def test_an_episode_that_has_ended_leaves_no_experts() -> None:
    servers = Scripted(([5, 6], False))
    engine = _engine(servers)
    for episode in ("e", "other"):
        _ask(engine, [1, 2], episode)
    engine.let_go("e")
    _ask(engine, [1, 2])
    assert servers.returned == [3, 3, 3] and servers.ended == ["e"]


def test_an_id_without_a_token_is_drawn_again_and_what_is_before_it_stays() -> None:
    got, asked = _sampled(([5, 6, 10, 7], False), ([12], True), ([8, 9], False))
    assert got.token_ids.tolist() == [5, 6, 8, 9]
    assert got.logprobs.tolist() == [-1, -2, -1, -2] and got.weight_versions.tolist() == [1, 1, 3, 3]
    assert asked == [([1, 2], 9, 7), ([1, 2, 5, 6], 7, 8), ([1, 2, 5, 6], 7, 9)]
    assert got.routed_experts is not None
    assert got.routed_experts.flatten().tolist() == [1, 1, 1, 3, 3]


def test_an_id_without_a_token_that_is_always_drawn_is_returned_for_the_call_to_fail() -> None:
    got, asked = _sampled(([5, 10], False), ([10], False))
    assert got.token_ids.tolist() == [5, 10] and len(asked) == DRAWS
