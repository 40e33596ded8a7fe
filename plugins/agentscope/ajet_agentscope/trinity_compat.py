"""Reward functions that AgentScope's samples import from Trinity-RFT, for programs that run without it."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Coroutine
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from typing import Any

from ajet import ConfigError, EpisodeView, Judge, Task, WorkflowOutput


class MathBoxedRewardFn:
    r"""Scores the last ``\boxed{…}`` of a response, as ``trinity.common.rewards.math_reward.MathBoxedRewardFn``. The judge `math`
    compares it with the truth, so it also finds equal values that are written differently."""

    def __init__(self, **kwargs: Any) -> None:
        """Arguments have no effect, as in Trinity."""

    def __call__(
        self,
        response: str | None,
        truth: str | None = None,
        with_think: bool | None = False,
        format_score_coef: float | None = 0.1,
        **kwargs: Any,
    ) -> dict[str, float]:
        """``accuracy`` is 1 or 0. With ``with_think``, ``format_score`` is minus the coefficient for a response without one pair of
        think tags, else 0. Raises ConfigError if the judge is not installed, ValueError if the truth is neither a number nor an
        expression."""
        text = response or ""
        opened, closed = text.find("<think>"), text.find("</think>")
        once = text.count("<think>") == text.count("</think>") == 1 and opened < closed
        penalty = -(format_score_coef or 0.1) if with_think and not once else 0.0
        boxed = r"\boxed" in text and truth is not None
        return {"accuracy": _compared(text, str(truth)) if boxed else 0.0, "format_score": penalty}


def make_importable() -> None:
    """From now on ``trinity.common.rewards.math_reward`` has these functions, as AgentScope's samples import them, unless
    Trinity-RFT is installed."""
    if "trinity" in sys.modules or find_spec("trinity") is not None:
        return
    parts = ("trinity", "common", "rewards", "math_reward")
    names = [".".join(parts[: n + 1]) for n in range(len(parts))]
    modules = [module_from_spec(ModuleSpec(name, None, is_package=True)) for name in names]
    for module, inner in pairwise(modules):
        setattr(module, inner.__name__.rpartition(".")[2], inner)
    modules[-1].MathBoxedRewardFn = MathBoxedRewardFn  # type: ignore[attr-defined]
    sys.modules.update(zip(names, modules, strict=True))


def _compared(response: str, truth: str) -> float:
    task = Task("0", metadata={"answer": truth})
    output = WorkflowOutput(response=response)
    verdict = _wait(_judge().judge(task, output, EpisodeView("0", "0", 0, 0)))
    return float(verdict.reward)


@functools.cache
def _judge() -> Judge:
    """The judge, open: it keeps the processes that compare expressions."""
    from ajet.job.layers import job_layers
    from ajet.job.parts import build_plugin

    try:
        judge = build_plugin(job_layers(None), Judge, {"type": "math"}, "MathBoxedRewardFn")
    except ConfigError as error:
        raise ConfigError(
            f"MathBoxedRewardFn: the judge `math` is not installed: pip install ajet-plugin-judges. ({error})"
        ) from None
    _wait(judge.open().__aenter__())
    return judge


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """An event loop of its own: reward functions are called in the one that runs the episodes."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ajet-trinity-compat", daemon=True).start()
    return loop


def _wait(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()
