"""Calls through verl's client and load balancer to servers whose answers are scripted; run by test_engine.py."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import ray
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from ajet.types import AjetError, GenerateRequest, Generation, Sampling
from ajet_local.starter.calculator import Calculator
from ajet_verl.cluster import NAMESPACE, end_ray, start_ray
from ajet_verl.engine import Servers, VerlEngine, passes_seeds
from ajet_verl.recorder import Pulse, Recorder

STOP, FOREVER, BROKEN = 3, 5, 6
SECONDS = 300.0


class EngineDeadError(Exception):
    """As vLLM's, which its server raises in every call after its engine process has ended."""


def _routed(expert: int, tokens: int) -> np.ndarray:
    """One layer that sends all tokens to one expert."""
    return np.full((tokens, 1, 1), expert, np.uint8)


class Server:
    """Aborts its first request after three tokens and continues it with new weights. Never answers a prompt that begins with
    `FOREVER`; its engine ends at a prompt that begins with `BROKEN`."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.running = self.cancelled = 0
        self.broken = False

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """The next answer."""
        self.broken = self.broken or prompt_ids[0] == BROKEN
        if self.broken:
            raise EngineDeadError("EngineCore encountered an issue.")
        if prompt_ids[0] == FOREVER:
            return await self._forever()
        self.asked.append({"prompt": prompt_ids, **sampling_params})
        given = len(prompt_ids) - sampling_params.get("routed_experts_prompt_start", 0)
        if len(self.asked) == 1:
            return TokenOutput(
                token_ids=[11, 12, 13],
                log_probs=[-1, -2, -3],
                routed_experts=_routed(4, given + 2),
                stop_reason="aborted",
                extra_fields={"global_steps": 4},
            )
        if len(self.asked) == 2:
            return TokenOutput(
                token_ids=[14, STOP],
                log_probs=[-4, -5],
                routed_experts=_routed(5, given + 1),
                stop_reason="completed",
                extra_fields={"global_steps": 5},
            )
        ids = [20] * sampling_params["max_tokens"]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-1.0] * len(ids),
            routed_experts=_routed(6, given + len(ids) - 1),
            extra_fields={"global_steps": 5},
        )

    async def _forever(self) -> None:
        self.running += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def state(self) -> dict[str, Any]:
        """The requests that it has answered, and how many others run and were cancelled."""
        return {"asked": self.asked, "running": self.running, "cancelled": self.cancelled}


class Cluster:
    """Servers behind verl's load balancer, and an engine that calls them."""

    def __init__(self, *names: str, mode: str = "sync", full_determinism: bool = False) -> None:
        self.servers = {name: ray.remote(Server).options(max_concurrency=100).remote() for name in names}
        self.balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers=self.servers)
        rollout = {"name": "vllm", "full_determinism": full_determinism}
        config = OmegaConf.create(
            {"actor_rollout_ref": {"rollout": rollout}, "trainer": {"v1": {"trainer_mode": mode}}}
        )
        self.said: list[str] = []
        self.failed: list[str] = []
        client = FullyAsyncLLMServerClient(config, self.balancer)
        self.client = Servers(client, self.said.append, self.failed.append)
        self.engine = VerlEngine(
            self.client,
            Calculator().tokenizer(0)[0],
            "qwen3",
            64,
            seeded=passes_seeds(config),
        )

    async def ask(self, episode: str, number: int = 0, first: int = 1) -> Generation:
        sampling = Sampling(max_tokens=9, stop_token_ids=(STOP,), seed=7)
        prompt = np.array([first, 2], np.int32)
        return await self.engine.generate(GenerateRequest(prompt, sampling, (episode, number)))

    async def states(self) -> dict[str, dict[str, Any]]:
        return {name: await server.state.remote() for name, server in self.servers.items()}

    async def asked(self) -> list[dict[str, Any]]:
        return [request for state in (await self.states()).values() for request in state["asked"]]

    async def inflight(self) -> int:
        return int(await self.balancer.get_total_inflight.remote())


async def until(condition: Callable[[], Awaitable[bool]]) -> bool:
    """Wait for the condition; returns whether it came true."""
    for _ in range(int(SECONDS / 0.05)):
        if await condition():
            return True
        await asyncio.sleep(0.05)
    return False


async def resumed() -> dict[str, Any]:
    """Two calls of an episode, of which the first is aborted and continued; and how many episodes the load balancer counts."""
    cluster = Cluster("one", mode="colocate_async", full_determinism=True)
    answers = [await cluster.ask("e", number) for number in range(2)]
    counted = await cluster.inflight()
    cluster.client.let_go("e")

    async def released() -> bool:
        return await cluster.inflight() == 0

    found = [
        {
            "tokens": a.token_ids.tolist(),
            "logprobs": a.logprobs.tolist(),
            "versions": a.weight_versions.tolist(),
            "finish": a.finish_reason,
            "experts": None if a.routed_experts is None else a.routed_experts.flatten().tolist(),
        }
        for a in answers
    ]
    return {"answers": found, "seen": await cluster.asked(), "counted": [counted, await until(released)]}


async def seeds() -> dict[str, Any]:
    """The requests of a call in sync mode, without and with verl's full determinism."""
    found = {}
    for name, full in (("usual", False), ("deterministic", True)):
        cluster = Cluster("one", full_determinism=full)
        await cluster.ask("e")
        found[name] = (await cluster.asked())[0]
    return found


async def cancelled() -> dict[str, Any]:
    """A call that is cancelled while its server runs it."""
    cluster = Cluster("one")
    call = asyncio.create_task(cluster.ask("e", first=FOREVER))

    async def count(name: str) -> int:
        return int((await cluster.states())["one"][name])

    async def runs() -> bool:
        return await count("running") == 1

    async def stopped() -> bool:
        return await count("cancelled") == 1

    async def released() -> bool:
        return await cluster.inflight() == 0

    begun = await until(runs)
    call.cancel()
    await asyncio.wait([call])
    cluster.client.let_go("e")
    return {"begun": begun, "stopped": await until(stopped), "released": await until(released)}


async def dead() -> dict[str, Any]:
    """A server ends during a call, then the engine of the other one."""
    cluster = Cluster("one", "two")
    call = asyncio.create_task(cluster.ask("e", first=FOREVER))
    busy = ""

    async def runs() -> bool:
        nonlocal busy
        busy = next((name for name, state in (await cluster.states()).items() if state["running"]), "")
        return bool(busy)

    await until(runs)
    ray.kill(cluster.servers.pop(busy))

    async def moved() -> bool:
        return all(state["running"] for state in (await cluster.states()).values())

    found: dict[str, Any] = {"busy": busy, "moved": await until(moved)}
    call.cancel()
    await asyncio.wait([call])
    found["same_episode"] = (await cluster.ask("e", 1)).token_ids.tolist()
    found["others"] = [len((await cluster.ask(f"e{n}")).token_ids) for n in range(4)]
    found["said"], found["failed_early"] = list(cluster.said), list(cluster.failed)
    found["names"] = [busy, *cluster.servers]
    try:
        await cluster.ask("e", 2, first=BROKEN)
    except AjetError as error:
        found["error"] = str(error)
    found["failed"] = cluster.failed
    return found


async def pulses() -> dict[str, Any]:
    """Progress that another process reports to the recorder, and to one that has ended."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"name": "recorder", "namespace": NAMESPACE}
        recorder = ray.remote(Recorder).options(**options).remote(folder, (), (), 1, False)
        await recorder.tasks.remote()

        def beat(pulse: Pulse) -> None:
            pulse.beat()
            pulse.beat()

        await ray.remote(beat).remote(Pulse("recorder"))
        await ray.remote(beat).remote(Pulse("another"))
        found: list[str] = []

        async def reported() -> bool:
            found.extend(event.kind for event in await recorder.events.remote())
            return bool(found)

        await until(reported)
        return {"events": found}


async def main() -> None:
    """Run every scenario and print what happened."""
    print(json.dumps({f.__name__: await f() for f in (resumed, seeds, cancelled, dead, pulses)}))


if __name__ == "__main__":
    start_ray(num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
    asyncio.run(main())
    end_ray()
