"""In Trinity's explorer: episodes of one of its tasks, what Trinity learns from them, and an engine over its vLLM."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet import AjetError, ConfigError, Job, Task, passthrough
from ajet.interfaces.engine import (
    Engine,
    Float32,
    GenerateRequest,
    Generation,
    GenerationDelta,
    Int32,
    room_for,
)
from ajet.job.layers import job_layers
from ajet.job.objects import given_reader
from ajet.job.prepare import prepare
from ajet.learning.batch import TokenSelection
from ajet.learning.rollouts import plan_group
from ajet.rollout.episode import Episode
from ajet.runs.runtime import Runtime, open_runtime, training_policy
from ajet.tracker.timelines import Timeline

if TYPE_CHECKING:
    import httpx


class Agent:
    """The agent of a job over an engine, for as long as this process lives."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self.job = job
        self.engine = engine
        self._stack = AsyncExitStack()
        self._runtime: Runtime | None = None

    @classmethod
    def of(cls, job_file: Path, engine: Callable[[Job], Engine]) -> Agent:
        """The agent of a job file. Raises ConfigError for a job that Trinity's explorer cannot run."""
        layers = job_layers(job_file)
        layers.set("backbone.name", "debug", "Trinity's explorer", Path.cwd())  # Trinity trains
        job = prepare(layers, read_tasks=False)
        if truncating := job.config.rollout.sampling.truncating:
            raise ConfigError(
                "rollout.sampling",
                f"{truncating}: Trinity's vLLM returns logprobs of the tokens that this keeps, which its trainer does not know; remove "
                "it.",
            )
        return cls(job, engine(job))

    async def group(self, record: Mapping[str, Any], name: str, size: int, first: int) -> list[Episode]:
        """Run and judge ``size`` episodes of a task, numbered from ``first``. Raises AjetError if all of them failed."""
        if self._runtime is None:
            # Trinity keeps no journal of ours.
            opened = open_runtime(self.job, engine=self.engine, shows_prints=True)
            self._runtime = await self._stack.enter_async_context(opened)
        task = task_of(record)
        plans = plan_group(
            Task(name, task.query, task.messages, task.metadata), 1, first, size, self.job.config.run.seed
        )
        episodes = await self._runtime.rollout(training_policy(self.job)).run(plans, lambda episode: None)
        if all(episode.failure for episode in episodes):
            raise AjetError(f"task {name}", f"all {size} episodes failed: {episodes[0].failure}")
        return episodes

    async def close(self) -> None:
        """Close the engine and the rest. An explorer's process has its agent until it ends."""
        self._runtime = None
        await self._stack.aclose()

    def timelines(self, episode: Episode) -> Sequence[Timeline]:
        """What is trained of an episode, by the job's filters; nothing if it failed."""
        if episode.failure is not None:
            return ()
        settings = self.job.config.train
        selection = TokenSelection(self.job.filters, settings.max_timelines, str(self.job.config.run.seed))
        return selection.choose(episode)[0]


def task_of(record: Mapping[str, Any]) -> Task:
    """A record of one of Trinity's task sets as a task; `query` may also be called `question` or `prompt`. Raises ConfigError."""
    known = dict(record)
    for other in ("question", "prompt"):
        if other in known and "query" not in known and "messages" not in known:
            known["query"] = known.pop(other)
    (task,) = given_reader([known], "Trinity's taskset").tasks()
    return task


SECONDS = 3600.0
"""Maximum seconds for one answer, its queue included."""


class ServedEngine:
    """`ajet.interfaces.engine.Engine` over the server at ``url`` (without ``/v1``), which serves ``model``.

    Prompts are sent as token ids and answers come back as token ids, with the logprobs at the request's temperature
    (vLLM's ``logprobs_mode: processed_logprobs``, which Trinity sets). ``version`` is the weight version of new tokens; the
    caller sets it.
    """

    adapters: tuple[str, ...] = ()

    def __init__(
        self, url: str, api_key: str, model: str, tokenizer: Any, model_type: str, context_length: int
    ) -> None:
        self.url = url.rstrip("/")
        self.tokenizer = tokenizer
        self.model_type = model_type
        self.context_length = context_length
        self.version = 0
        self._model = model
        self._key = api_key
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Open the connections."""
        import httpx

        self._client = httpx.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {self._key}"}, timeout=SECONDS
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Engine.generate`. Raises AjetError if the server does not answer as vLLM does."""
        version = self.version
        answer = await self._post(self._body(request))
        try:
            (choice,) = answer["choices"]
            ids = np.array(choice["token_ids"], np.int32)
            logprobs = np.array(choice["logprobs"]["token_logprobs"], np.float32)
            reason = choice["finish_reason"]
        except (LookupError, TypeError, ValueError) as error:
            raise AjetError(
                f"{self.url}: the answer has no token_ids or logprobs ({error!r}). Serve the model with vLLM 0.19 or newer."
            ) from error
        return Generation(
            ids, logprobs, np.full(len(ids), version, np.int32), "length" if reason == "length" else "stop"
        )

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        sampling = request.sampling
        room = room_for(request, self.context_length, len(self.tokenizer))
        return {
            "model": self._model,
            "prompt": request.prompt_ids.tolist(),
            "max_tokens": room,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
            "stop": list(sampling.stop),
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,
            "return_token_ids": True,
        }

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        import httpx

        if self._client is None:
            raise RuntimeError("the engine is not running: await engine.start() first")
        try:
            with passthrough():
                response = await self._client.post("/v1/completions", json=body)
        except httpx.HTTPError as error:
            raise AjetError(f"{self.url}: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise AjetError(f"{self.url}: answered {response.status_code}: {response.text[:200]}")
        answer: dict[str, Any] = json.loads(response.content)
        return answer

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """The whole generation as one piece."""
        whole = await self.generate(request)
        yield GenerationDelta(whole.token_ids, whole.logprobs, whole.weight_versions, whole.finish_reason)

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """Not available: raises AjetError."""
        raise AjetError(f"{self.url}: an engine inside Trinity does not score tokens.")

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
