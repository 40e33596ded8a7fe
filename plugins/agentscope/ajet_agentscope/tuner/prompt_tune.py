"""`tune_prompt` of AgentScope's tuner, on `ajet.tune_prompt`."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import ajet
from ajet import ConfigError
from ajet.interfaces.helpers import nearest
from ajet_agentscope.trinity_compat import make_importable
from ajet_agentscope.tuner.config import (
    DatasetConfig,
    JudgeOutput,
    JudgeType,
    PromptTuneConfig,
    WorkflowOutput,
    WorkflowType,
    ours,
)

_NAME = "system_prompt"
_REFLECTIONS = {"light": 20, "medium": 60, "heavy": 150}
_ADDRESSES = {
    "dashscope": "https://dashscope.aliyuncs.com/compatible-mode/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "ollama": "http://localhost:11434/v1",
    "openai": "https://api.openai.com/v1",
}
"""The OpenAI-compatible addresses of the providers that `PromptTuneConfig.lm_model_name` may name."""
_WITHOUT_KEY = ("ollama",)


def tune_prompt(
    *,
    workflow: WorkflowType,
    init_system_prompt: str,
    judge_func: JudgeType,
    train_dataset: DatasetConfig,
    eval_dataset: DatasetConfig | None = None,
    config: PromptTuneConfig | None = None,
) -> tuple[str, dict[str, float]]:
    """Search a better system prompt for a workflow that takes ``task`` and ``system_prompt`` and calls its own model.

    Returns the best prompt on ``train_dataset``, and metrics: ``reward_before`` and ``reward_after`` on it, and with an
    ``eval_dataset``, of which the search sees nothing, ``eval_reward_after``; with ``compare_performance`` also
    ``eval_reward_before`` and ``valset_improvement``, in percent. Raises AjetError.
    """
    make_importable()
    settings = ours(PromptTuneConfig, config or PromptTuneConfig())
    check_parameters(workflow, "workflow", ("task", _NAME))
    check_parameters(judge_func, "judge_func", ("task", "response"))
    if settings.optimization_level is None:
        raise ConfigError(
            "PromptTuneConfig.optimization_level: choose light, medium or heavy; None is not supported."
        )
    agent = _Agent(workflow, judge_func)
    train = list(ours(DatasetConfig, train_dataset).records())
    tuned = ajet.tune_prompt(
        workflow=lambda task: agent.run(task.metadata["record"], ajet.prompt(_NAME, init_system_prompt)),
        judge=agent.judge_episode,
        tasks=[ajet.Task(str(number), metadata={"record": record}) for number, record in enumerate(train)],
        reflection=_chat_model(settings.lm_model_name),
        reflections=_REFLECTIONS[settings.optimization_level],
        set={"backbone.prompts.own_models": True, "rollout.concurrency": settings.eval_num_threads},
        progress=settings.eval_display_progress,
    )
    best = tuned.texts[_NAME]
    metrics = {"reward_before": tuned.before.reward, "reward_after": tuned.after.reward}
    if eval_dataset is not None:
        held_out = list(ours(DatasetConfig, eval_dataset).records())
        metrics |= agent.evaluate(init_system_prompt, best, held_out, settings)
    return best, metrics


class _Agent:
    """The user's workflow and judge."""

    def __init__(self, workflow: WorkflowType, judge: JudgeType) -> None:
        self._workflow, self._judge = workflow, judge

    async def run(self, record: Mapping[str, Any], prompt: str) -> Any:
        """The response of the workflow to a record."""
        return ours(WorkflowOutput, await self._workflow(task=dict(record), system_prompt=prompt)).response

    async def judge_episode(self, task: ajet.Task, output: ajet.WorkflowOutput) -> ajet.JudgeOutput:
        """The verdict on an episode."""
        verdict = await self._verdict(task.metadata["record"], output.response)
        return ajet.JudgeOutput(verdict.reward, metrics=verdict.metrics or {})

    def evaluate(
        self, first: str, best: str, held_out: Sequence[Mapping[str, Any]], settings: PromptTuneConfig
    ) -> dict[str, float]:
        """Figures of prompts on records that the search has not seen."""
        rows = self._score(best, held_out, settings.eval_num_threads)
        for record, response, reward in rows[: settings.eval_display_table]:
            print(f"reward {reward:g}: {_short(record)} -> {_short(response)}")
        after = _mean(rows)
        if not settings.compare_performance:
            return {"eval_reward_after": after}
        before = _mean(self._score(first, held_out, settings.eval_num_threads))
        improvement = (after - before) / before * 100 if before else 0.0
        return {
            "eval_reward_before": before,
            "eval_reward_after": after,
            "valset_improvement": improvement,
        }

    def _score(
        self, prompt: str, held_out: Sequence[Mapping[str, Any]], most: int
    ) -> list[tuple[Any, Any, float]]:
        """(record, response, reward) of each record; what fails counts as 0."""

        async def all_of_them() -> list[tuple[Any, Any, float]]:
            limit = asyncio.Semaphore(most)

            async def one(record: Mapping[str, Any]) -> tuple[Any, Any, float]:
                async with limit:
                    try:
                        response = await self.run(record, prompt)
                        return record, response, (await self._verdict(record, response)).reward
                    except Exception as error:
                        return record, f"{type(error).__name__}: {error}", 0.0

            return await asyncio.gather(*map(one, held_out))

        return asyncio.run(all_of_them())

    async def _verdict(self, record: Mapping[str, Any], response: Any) -> JudgeOutput:
        verdict = await self._judge(task=dict(record), response=response)
        try:
            return ours(JudgeOutput, verdict)
        except TypeError:
            raise ConfigError(
                "judge_func", f"returned {type(verdict).__name__}; return JudgeOutput(reward=…)."
            ) from None


def _chat_model(name: str) -> dict[str, Any]:
    """The spec of ``PROVIDER/MODEL``. Raises ConfigError."""
    provider, slash, model = name.partition("/")
    if not slash or provider not in _ADDRESSES:
        raise ConfigError(
            f"PromptTuneConfig.lm_model_name: {name!r}: unknown provider{nearest(provider, _ADDRESSES)}. Write PROVIDER/MODEL with "
            f"one of {', '.join(_ADDRESSES)}; for another OpenAI-compatible server write openai/MODEL and set OPENAI_BASE_URL."
        )
    upper = provider.upper()
    key = f"{upper}_API_KEY"
    if provider not in _WITHOUT_KEY and not os.environ.get(key):
        raise ConfigError(
            f"PromptTuneConfig.lm_model_name: {name}: the environment variable {key} is not set."
        )
    address = (
        os.environ.get(f"{upper}_BASE_URL") or os.environ.get(f"{upper}_API_BASE") or _ADDRESSES[provider]
    )
    return {"type": "openai", "base_url": address, "model": model, "api_key_env": key}


def check_parameters(function: Any, name: str, needed: tuple[str, ...]) -> None:
    """Raises ConfigError unless a function has exactly these parameters."""
    parameters = tuple(inspect.signature(function).parameters)
    if set(parameters) != set(needed):
        raise ConfigError(
            f"{name}: takes ({', '.join(parameters)}); it must take exactly ({', '.join(needed)})."
        )


def _mean(rows: Sequence[tuple[Any, Any, float]]) -> float:
    return sum(reward for _, _, reward in rows) / max(len(rows), 1)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
