"""Environments of verifiers: a taskset, and the agents that its rollouts run."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class Library:
    """``options`` are the library's configuration of an environment: ``{taskset: {id: NAME, …}, …}``.

    Roles without a runtime get a subprocess of this machine instead of the library's default, a sandbox of a provider.
    """

    def __init__(self, **options: Any) -> None:
        taskset = options.get("taskset") or {}
        roles = vf.env_config_type(taskset.get("id", ""), options.get("id", "")).model_fields
        for name, field in roles.items():
            if isinstance(field.default, vf.AgentConfig):
                options.setdefault(name, {}).setdefault("runtime", {"type": "subprocess"})
        self._options = options
        self._rest: Iterator[Any] = iter(self._new().taskset)
        self._tasks: list[Any] = []
        self._runs = 0

    def tasks(self, count: int) -> list[dict[str, Any]]:
        """The first tasks of the taskset."""
        self._read(count)
        return [_described(task.data, index) for index, task in enumerate(self._tasks[:count])]

    async def run(self, index: int, model: dict[str, str], judge: dict[str, str] | None) -> dict[str, Any]:
        """One episode of the environment. Its reward is the mean of those of the traces that the library would train."""
        self._read(index + 1)
        if judge:  # where its judges look for their endpoint
            os.environ.update(PRIME_INFERENCE_URL=judge["base_url"], PRIME_API_KEY=judge["api_key"])
        self._runs += 1
        variable = f"AJET_KEY_{self._runs}"  # the library keeps a client for each configuration
        os.environ[variable] = model["api_key"]
        client = vf.EvalClientConfig(base_url=model["base_url"], api_key_var=variable)
        environment = self._new()
        try:
            async with environment.serving():
                episode = await environment.run_episode(
                    self._tasks[index], vf.ModelContext(model=model["name"], client=client)
                )
        finally:
            del os.environ[variable]
        return _answer(episode)

    def _new(self) -> Any:
        return vf.load_environment(vf.resolve_env_config(copy.deepcopy(self._options)))

    def _read(self, count: int) -> None:
        self._tasks += itertools.islice(self._rest, max(0, count - len(self._tasks)))


def _described(data: Any, index: int) -> dict[str, Any]:
    prompt = data.prompt if isinstance(data.prompt, str) else ""
    return {"id": str(data.id or data.name or index), "query": prompt, "metadata": {}}


def _answer(episode: Any) -> dict[str, Any]:
    """What an episode means. An error's reward 0 is none."""
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        said = "; ".join(f"{error.type}: {error.message}" for error in errors[-2:])
        return {"ok": False, "error": said or "the library says that the episode is not valid"}
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    metrics: dict[str, float] = {}
    for trace in trained:
        several = f"{trace.agent.name}." if len(trained) > 1 else ""
        metrics |= {f"{several}{name}": float(value) for name, value in trace.metrics.items()}
        metrics |= {f"{several}{name}": r.value for name, r in trace.rewards.items() if r is not None}
    return {
        "ok": True,
        "reward": sum(trace.reward for trace in trained) / len(trained),
        "metrics": metrics,
        "response": trained[-1].last_reply,
        "error": "",
    }
