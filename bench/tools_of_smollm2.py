"""What a model does with the tools of `unseen_tools`: its calls, their arguments, and its final answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from unseen_tools import REQUESTS, TALK, TOOLS, TRIED, Request

from ajet.chat.messages import normalise
from ajet.chat.renderer import Chat
from ajet.interfaces.engine import Engine, GenerateRequest, Sampling

CALL_TOKENS, ANSWER_TOKENS = 96, 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model did with a request. If it calls a wrong tool, its arguments and its answer count as wrong, too."""

    request: Request
    said: str
    """The first answer as text, with its call."""
    right_tool: bool = False
    right_arguments: bool = False
    answer: str | None = None

    @property
    def repeats(self) -> bool:
        """Whether the final answer has everything of the result that it must repeat."""
        said = (self.answer or "").casefold()
        return all(part.casefold() in said for part in self.request.repeats)


def figures(
    engine: Engine, chat: Chat, temperature: float, seed: int = 0
) -> tuple[dict[str, float], list[Outcome]]:
    """Shares of right tools and arguments among the requests, of repeated results among the answers after a call of the right tool,
    and of answers without a call where no tool is needed; those that begin with ``later_`` are of the requests from `TRIED` on."""

    async def run() -> tuple[list[Outcome], list[bool]]:
        await engine.start()
        try:
            model = _Model(engine, chat, temperature, seed)
            outcomes = await asyncio.gather(*(model.attempt(i, r) for i, r in enumerate(REQUESTS)))
            return outcomes, await asyncio.gather(*(model.is_silent(i, text) for i, text in enumerate(TALK)))
        finally:
            await engine.close()

    outcomes, silent = asyncio.run(run())
    later = {f"later_{name}": share for name, share in _shares(outcomes[TRIED:]).items()}
    return {**_shares(outcomes), **later, "no_needless_call": _mean(silent)}, outcomes


def _shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {
        "right_tool": _mean([o.right_tool for o in outcomes]),
        "right_arguments": _mean([o.right_arguments for o in outcomes]),
        "answer_repeats": _mean([o.repeats for o in outcomes if o.answer is not None]),
    }


class _Model:
    def __init__(self, engine: Engine, chat: Chat, temperature: float, seed: int) -> None:
        self._engine, self._chat, self._temperature, self._seed = engine, chat, temperature, seed

    async def attempt(self, index: int, request: Request) -> Outcome:
        tools = offered(index, request.tool)
        asked = [{"role": "user", "content": request.text}]
        said, parsed = await self._say(asked, tools, CALL_TOKENS, index)
        if len(parsed.tool_calls) != 1 or parsed.tool_calls[0][0] != request.tool:
            return Outcome(request, said)
        arguments = json.loads(parsed.tool_calls[0][1])
        function = {"name": request.tool, "arguments": parsed.tool_calls[0][1]}
        call = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }
        told = {"role": "tool", "tool_call_id": "c", "content": request.result}
        _, answer = await self._say([*asked, call, told], tools, ANSWER_TOKENS, index)
        return Outcome(request, said, True, right(arguments, request.arguments), answer.content)

    async def is_silent(self, index: int, text: str) -> bool:
        _, parsed = await self._say(
            [{"role": "user", "content": text}], offered(index, None), ANSWER_TOKENS, index
        )
        return not parsed.tool_calls and not parsed.malformed

    async def _say(
        self, messages: Sequence[Mapping[str, Any]], tools: list[Any], most: int, index: int
    ) -> Any:
        prompt = self._chat.render([normalise(m, i) for i, m in enumerate(messages)], tools)
        sampling = Sampling(
            temperature=self._temperature,
            max_tokens=most,
            stop_token_ids=self._chat.stop_token_ids,
            seed=1000 * self._seed + index,
        )
        found = await self._engine.generate(GenerateRequest(np.array(prompt, dtype=np.int32), sampling))
        ids = found.token_ids.tolist()
        return self._chat.text(ids), self._chat.parse(ids, prompt, tools)


def offered(index: int, tool: str | None) -> list[dict[str, Any]]:
    """The tools that a request offers: the right one if there is one, and up to three others."""
    rng = random.Random(index)
    names = rng.sample([name for name in TOOLS if name != tool], rng.randint(0 if tool else 1, 3)) + [
        tool
    ] * (tool is not None)
    rng.shuffle(names)
    return [TOOLS[name] for name in names]


def right(found: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether the arguments are the wanted ones; a tuple lists values that are all right. Case does not count in texts, nor a full
    stop at their end."""
    if not isinstance(found, dict) or found.keys() != wanted.keys():
        return False
    return all(
        any(_same(found[k], v) for v in (w if isinstance(w, tuple) else (w,))) for k, w in wanted.items()
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one.strip().rstrip(".").casefold() == other.strip().rstrip(".").casefold()
    return isinstance(one, str) == isinstance(other, str) and one == other


def _mean(found: Sequence[bool]) -> float:
    return round(float(np.mean(found)), 3) if found else 0.0


def load(folder: Path) -> tuple[Engine, Chat]:
    """Engine and chat of the model in a folder, in bfloat16 on one thread."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ajet_local.engine import LocalEngine

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    return LocalEngine(model, tokenizer, max_batch=32), Chat(tokenizer, model.config.model_type)
