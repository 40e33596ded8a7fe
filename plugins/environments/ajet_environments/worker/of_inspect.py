"""Tasks of Inspect: data set, solver and scorer. Each sample is an evaluation."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from typing import Any

from inspect_ai import Task, eval_async
from inspect_ai.model import get_model
from inspect_ai.scorer import value_to_float


class Library:
    """``task`` names the function of a task, ``module:function``; ``arguments`` are its arguments. ``score`` names the score that is
    the reward, ``NAME`` or ``NAME.KEY``; without it, the only one is."""

    def __init__(self, task: str, arguments: Mapping[str, Any] | None = None, score: str = "") -> None:
        module, _, name = task.partition(":")
        self._make = getattr(importlib.import_module(module), name)
        self._arguments = arguments or {}
        self._score = score
        self._samples = [(number, sample) for number, sample in enumerate(self._task().dataset, 1)]

    def tasks(self, count: int) -> list[dict[str, Any]]:
        """The first samples. Their targets stay here."""
        return [_described(number, sample) for number, sample in self._samples[:count]]

    async def run(self, index: int, model: dict[str, str], judge: dict[str, str] | None) -> dict[str, Any]:
        """One evaluation. A frozen target has the role ``grader``, which the library's scorers ask."""
        number, sample = self._samples[index]
        with tempfile.TemporaryDirectory() as folder:
            (log,) = await eval_async(
                self._task(),
                model=_model(model),
                model_roles={"grader": _model(judge)} if judge else None,
                sample_id=number if sample.id is None else sample.id,
                epochs=1,
                log_dir=folder,
                log_samples=True,
                log_realtime=False,
                ctl_server=False,
                acp_server=False,
            )
            done = log.samples[0] if log.samples else None  # read from the log's file
        error = (done and done.error) or log.error
        if log.status != "success" or error or done is None or not done.scores:
            return {"ok": False, "error": error.message if error else f"{log.status}, without a score"}
        return self._answer(done)

    def _task(self) -> Task:
        task: Task = self._make(**self._arguments)
        return task

    def _answer(self, sample: Any) -> dict[str, Any]:
        to_float = value_to_float()
        parts: dict[str, float] = {}
        for name, score in sample.scores.items():
            values = score.value if isinstance(score.value, Mapping) else {"": score.value}
            parts |= {f"{name}.{key}" if key else name: to_float(value) for key, value in values.items()}
        wanted = self._score or (next(iter(parts)) if len(parts) == 1 else "")
        if wanted not in parts:
            raise ValueError(f"name the score that is the reward in `score`: {', '.join(parts)}")
        return {
            "ok": True,
            "reward": parts[wanted],
            "metrics": parts,
            "response": sample.output.completion,
            "error": "",
        }


def _described(number: int, sample: Any) -> dict[str, Any]:
    asked = sample.input if isinstance(sample.input, str) else sample.input[-1].text
    return {"id": str(number if sample.id is None else sample.id), "query": asked, "metadata": {}}


def _model(endpoint: dict[str, str]) -> Any:
    return get_model(
        f"openai-api/ajet/{endpoint['name']}",
        base_url=endpoint["base_url"],
        api_key=endpoint["api_key"],
        memoize=False,
    )
