"""Trying the starter on its tasks: two turns with the calculator, straight through the engine."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.interfaces.engine import Engine
from ajet.types import GenerateRequest, Generation, Int32, Sampling
from ajet_local.starter.sums import TOOL, evaluate, opening, task_expression

CHECK_TASKS = 256


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of the model: what it read and what it wrote."""

    prompt_ids: Int32
    generation: Generation


@dataclass(frozen=True, slots=True)
class Attempt:
    """An episode: its turns, the expression it called the tool with (None: no valid call), its answer."""

    turns: tuple[Turn, ...]
    called: str | None
    answer: str

    def solves(self, expression: str) -> bool:
        """Whether the answer is the value of ``expression``, written as a whole number."""
        return self.answer.strip() == str(evaluate(expression))


async def attempt(engine: Engine, renderer: Any, expression: str, temperature: float, seed: int) -> Attempt:
    """Let the model work on one problem. Equal seeds give equal attempts; temperature 0 is greedy."""
    turns: list[Turn] = []

    async def turn(prompt: list[int]) -> Any:
        sampling = Sampling(
            temperature=temperature,
            max_tokens=48,
            stop_token_ids=tuple(renderer.get_stop_token_ids()),
            seed=2 * seed + len(turns),
        )
        ids = np.array(prompt, dtype=np.int32)
        turns.append(Turn(ids, await engine.generate(GenerateRequest(ids, sampling))))
        return renderer.parse_response(turns[-1].generation.token_ids.tolist(), prompt_ids=prompt)

    first = await turn(renderer.render_ids(opening(expression), tools=[TOOL], add_generation_prompt=True))
    called = called_expression(first)
    if called is None:
        return Attempt(tuple(turns), None, first.content)
    try:
        result = str(evaluate(called))
    except ValueError as error:
        result = f"error: {error}"
    message = {"role": "tool", "tool_call_id": "call_0", "content": result}
    written = turns[0].generation.token_ids.tolist()
    bridged = renderer.bridge_to_next_turn(turns[0].prompt_ids.tolist(), written, [message], tools=[TOOL])
    if bridged is None:
        return Attempt(tuple(turns), called, "")
    second = await turn(bridged.token_ids)
    return Attempt(tuple(turns), called, second.content)


def called_expression(response: Any) -> str | None:
    """The expression of the one well-formed calculator call in a parsed response, else None."""
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
    """Share of ``expressions`` solved, one attempt each."""
    attempts = await asyncio.gather(
        *(attempt(engine, renderer, e, temperature, seed + i) for i, e in enumerate(expressions))
    )
    return float(np.mean([a.solves(e) for a, e in zip(attempts, expressions, strict=True)]))


async def sampled_accuracy(engine: Engine, renderer: Any, rng: random.Random) -> float:
    """Sampled accuracy on `CHECK_TASKS` fresh problems, none of them held out."""
    expressions = [task_expression(rng) for _ in range(CHECK_TASKS)]
    return await accuracy(engine, renderer, expressions, temperature=1.0)
