"""Runs the calculator model on its tasks: two turns with the tool, directly through the engine."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.interfaces.engine import Engine, GenerateRequest, Generation, Int32, Sampling
from ajet_local.starter.sums import TOOL, evaluate, opening, task_expression

CHECK_TASKS = 256
"""Problems of one trial."""


@dataclass(frozen=True, slots=True)
class TrialTurn:
    """One call of the model: its prompt and its answer."""

    prompt_ids: Int32
    generation: Generation


@dataclass(frozen=True, slots=True)
class TrialAttempt:
    """An attempt at a problem: its turns, the expression passed to the tool (None: no valid call), the answer."""

    turns: tuple[TrialTurn, ...]
    called: str | None
    answer: str

    def solves(self, expression: str) -> bool:
        """Whether the answer is the value of ``expression``, written as a whole number."""
        return self.answer.strip() == str(evaluate(expression))


async def attempt(
    engine: Engine, renderer: Any, expression: str, temperature: float, seed: int
) -> TrialAttempt:
    """Run the model on one problem. Equal seeds give equal attempts; temperature 0 is greedy."""
    turns: list[TrialTurn] = []

    async def turn(prompt: list[int]) -> Any:
        sampling = Sampling(
            temperature=temperature,
            max_tokens=48,
            stop_token_ids=tuple(renderer.get_stop_token_ids()),
            seed=2 * seed + len(turns),
        )
        ids = np.array(prompt, dtype=np.int32)
        turns.append(TrialTurn(ids, await engine.generate(GenerateRequest(ids, sampling))))
        return renderer.parse_response(turns[-1].generation.token_ids.tolist(), prompt_ids=prompt)

    first = await turn(renderer.render_ids(opening(expression), tools=[TOOL], add_generation_prompt=True))
    called = called_expression(first)
    if called is None:
        return TrialAttempt(tuple(turns), None, first.content)
    try:
        result = str(evaluate(called))
    except ValueError as error:
        result = f"error: {error}"
    message = {"role": "tool", "tool_call_id": "call_0", "content": result}
    written = turns[0].generation.token_ids.tolist()
    bridged = renderer.bridge_to_next_turn(turns[0].prompt_ids.tolist(), written, [message], tools=[TOOL])
    if bridged is None:
        return TrialAttempt(tuple(turns), called, "")
    second = await turn(bridged.token_ids)
    return TrialAttempt(tuple(turns), called, second.content)


def called_expression(response: Any) -> str | None:
    """The expression of a parsed response's calculator call; None unless there is exactly one valid call."""
    if len(response.tool_calls) != 1 or response.tool_calls[0].name != TOOL["function"]["name"]:
        return None
    arguments = response.tool_calls[0].arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    expression = arguments.get("expression") if isinstance(arguments, dict) else None
    return expression if isinstance(expression, str) and set(expression) <= set("0123456789+- ") else None


async def accuracy(
    engine: Engine, renderer: Any, expressions: Sequence[str], temperature: float, seed: int = 0
) -> float:
    """Share of ``expressions`` that are solved, with one attempt each."""
    attempts = await asyncio.gather(
        *(attempt(engine, renderer, e, temperature, seed + i) for i, e in enumerate(expressions))
    )
    return float(np.mean([a.solves(e) for a, e in zip(attempts, expressions, strict=True)]))


async def sampled_accuracy(engine: Engine, renderer: Any, rng: random.Random) -> float:
    """Accuracy at temperature 1 on `CHECK_TASKS` new problems, none of them held out."""
    expressions = [task_expression(rng) for _ in range(CHECK_TASKS)]
    return await accuracy(engine, renderer, expressions, temperature=1.0)
