"""verl's vLLM servers with several LoRA adapters: each call is answered by one of them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.lora.request import LoRARequest

from ajet_verl.lora import NOWHERE, of

CALLED: ContextVar[str | None] = ContextVar("ajet_adapter", default=None)
"""The adapter of the call that this asyncio task makes."""


def register() -> None:
    """Make verl start `AdapterServer`, in this process."""
    RolloutReplicaRegistry.register("vllm", lambda: AdapterReplica)


class AdapterReplica(vLLMReplica):
    """verl's replica of a vLLM server, whose server is ours."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.server_class = ray.remote(AdapterServer)


class AdapterServer(vLLMHttpServer):
    """A Ray actor."""

    engine: Any

    async def run_server(self, args: Any) -> None:
        """See verl's server."""
        await super().run_server(self._for_all(args))
        self.engine = AdapterEngine(self.engine, tuple(of(self.model_config)))

    async def run_headless(self, args: Any) -> None:
        """See verl's server."""
        await super().run_headless(self._for_all(args))

    def _for_all(self, args: Any) -> Any:
        """vLLM's arguments, with room for all adapters in a batch; verl allows one."""
        args.max_loras = args.max_cpu_loras = len(of(self.model_config))
        return args

    async def generate(self, *args: Any, adapter: str | None = None, **options: Any) -> Any:
        """See verl's server; ``adapter`` answers, or the base model."""
        CALLED.set(adapter)
        return await super().generate(*args, **options)

    def _get_worker_extension_cls(self) -> str:
        return "ajet_verl.lora_worker.AdapterWorker"


class AdapterEngine:
    """vLLM's engine, of which each call is answered by the adapter `CALLED`."""

    def __init__(self, engine: Any, names: tuple[str, ...]) -> None:
        self._engine = engine
        self._requests = {
            name: LoRARequest(lora_name=name, lora_int_id=number, lora_path=NOWHERE)
            for number, name in enumerate(names, 1)
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def list_loras(self) -> set[int]:
        """None, so that verl does not look for its own before each call."""
        return set()

    def generate(self, **call: Any) -> Any:
        """See vLLM's engine. Raises KeyError for an unknown adapter."""
        name = CALLED.get()
        return self._engine.generate(**call | {"lora_request": self._requests[name] if name else None})
