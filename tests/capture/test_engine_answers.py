"""What an engine answers is checked before it is recorded: a wrong answer fails the call, not the batch."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest

from ajet.learning.algorithms import GRPO
from ajet.learning.batch import Learning, build_batch
from ajet.rollout.summary import failures
from ajet.testing import ScriptedEngine
from ajet.types import GenerateRequest, Generation, GenerationDelta

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
Fault = Callable[[Any], Any]


class Faulty(ScriptedEngine):
    """Answers with a fault where the prompt says ``question 1``."""

    fault: Fault = staticmethod(lambda given: given)

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `ajet.Engine.generate`."""
        return self._spoilt(request, await super().generate(request))

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """See `ajet.Engine.stream`."""
        async for delta in super().stream(request):
            yield self._spoilt(request, delta)

    def _spoilt(self, request: GenerateRequest, given: Any) -> Any:
        spoils = "question 1" in self.tokenizer.decode(request.prompt_ids)
        return self.fault(given) if spoils else given


def changed(name: str, change: Callable[[Any], Any]) -> Fault:
    return lambda given: replace(given, **{name: change(getattr(given, name))})


def first(value: Any) -> Callable[[Any], Any]:
    """The same array with another first entry."""
    return lambda array: np.concatenate([np.array([value], array.dtype), array[1:]])


FAULTS = {
    "a logprob is missing": (changed("logprobs", lambda a: a[:-1]), r"\d+ tokens, \d+ logprobs"),
    "a version is missing": (changed("weight_versions", lambda a: a[:-1]), r"weight versions"),
    "NaN": (changed("logprobs", first(np.nan)), "logprob nan at token 0 of"),
    "minus infinity": (changed("logprobs", first(-np.inf)), "logprob -inf at token 0 of"),
    "infinity": (changed("logprobs", first(np.inf)), "logprob inf at token 0 of"),
    "a probability above 1": (changed("logprobs", first(0.5)), "logprob 0.5 at token 0 of"),
    "an unknown token": (
        changed("token_ids", first(10**6)),
        "the token id 1000000, for which the tokenizer has no token",
    ),
    "a negative token": (changed("token_ids", first(-1)), "the token id -1, which is outside"),
    "a list": (changed("token_ids", lambda a: a.tolist()), "token_ids that are not an array"),
    "tokens as floats": (changed("token_ids", lambda a: a * 1.0), "token_ids that are not an array"),
}


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_wrong_answer_of_an_engine_fails_its_episode_and_names_the_engine_and_the_call(
    bench: Any, tokenizer: Any, fault: Fault, said: str, stream: bool
) -> None:
    async def agent(task: Any) -> float:
        asked = {"model": "m", "messages": [{"role": "user", "content": task.query}], "stream": stream}
        reply = await CLIENT.chat.completions.create(**asked)
        if stream:
            async for _ in reply:
                pass
        return 1.0

    engine = Faulty(tokenizer, lambda request, prompt: "yes, of course")
    engine.fault = fault
    episodes = bench(engine).run(agent, tasks=2)
    assert failures(episodes) == {"engine": 1}
    bad = episodes[1]
    assert bad.error.startswith(f"Faulty answered call 0 of episode {bad.plan.id} with ")
    assert re.search(said, bad.error)
    assert ("ajet.testing.conformance" in bad.error) != ("has no token" in said), (
        "a model may have more rows than tokens"
    )
    assert not bad.record.calls and len(episodes[0].record.calls) == 1
    batch = build_batch(episodes, Learning(GRPO()), mini_batches=1, learning_rate=1.0, seed="s")
    assert batch is not None, "the other episode is trained"
