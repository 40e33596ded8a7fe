"""The backbone ``prompts``: searches better texts for an agent, and trains no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from ajet import Backbone, ChatModelPlugin, ConfigError
from ajet.interfaces.backbone import Capabilities, RunResult
from ajet.interfaces.base import ChatModelSpec

if TYPE_CHECKING:  # every `ajet --help` loads this module
    from ajet import Job
    from ajet.interfaces.engine import Engine


class PromptSearch(Backbone):
    """Tunes the texts that the workflow gets from `ajet.prompt`; no weights change."""

    name = "prompts"
    capabilities: ClassVar[Capabilities] = Capabilities(trains=False, resumes_without_checkpoint=True)
    reflection: ChatModelSpec | None = Field(
        None,
        description="Chat model that proposes texts: {type: openai, base_url: …, model: …}; take a strong one. Required.",
    )
    answers: ChatModelSpec | None = Field(
        None, description="Chat model that answers the agent; default: eval.engine over `model`."
    )
    own_models: bool = Field(
        False, description="The agent's LLM calls go to their own endpoints, as without AgentJet."
    )
    reflections: int = Field(60, ge=1, description="Maximum calls of the reflection model.")
    episodes: int | None = Field(None, ge=1, description="Maximum number of episodes; default: no limit.")
    cost: float | None = Field(
        None,
        gt=0,
        description="Maximum cost of reflection and answers, in the currency of their prices; looked at before each evaluation.",
    )
    examples: int = Field(3, ge=1, description="Tasks whose episodes the reflection model sees at once.")
    repeats: int = Field(
        1, ge=1, description="Episodes of each task and candidate; their rewards are averaged."
    )
    rewards: tuple[float, float] = Field(
        (0.0, 1.0),
        description="The lowest reward there is, which a failed episode counts, and the highest, which needs no better text.",
    )

    @model_validator(mode="after")
    def _one_source_of_answers(self) -> PromptSearch:
        if self.answers and self.own_models:
            raise ValueError("answers and own_models exclude each other; remove one of them")
        return self

    def run(self, job: Job) -> RunResult:
        """Search until the budget is spent, and write the best texts into the run folder. Raises AjetError; a search that
        has failed or was killed can be resumed."""
        from ajet.job.parts import build_plugin
        from ajet.runs.runtime import answering_engine
        from ajet.utils import asyncrun

        if self.reflection is None:
            raise ConfigError(
                "backbone.prompts.reflection",
                "is required: the chat model that proposes texts, for example "
                "{type: openai, base_url: http://localhost:8000/v1, model: NAME}.",
            )
        if self.cost and _is_free(self.reflection) and _is_free(self.answers):
            raise ConfigError(
                "backbone.prompts.cost",
                "has no effect without prices. Set prompt_price and completion_price of reflection.",
            )

        def built(spec: Mapping[str, Any], where: str) -> ChatModelPlugin:
            return build_plugin(job.layers, ChatModelPlugin, spec, f"backbone.prompts.{where}")

        reflection = built(self.reflection, "reflection")
        answers = built(self.answers, "answers") if self.answers else None
        engine = None if answers or self.own_models else answering_engine(job)
        return asyncrun.run(self._run(job, reflection, answers, engine), job.progress.say)

    async def _run(
        self, job: Job, reflection: ChatModelPlugin, answers: ChatModelPlugin | None, engine: Engine | None
    ) -> RunResult:
        from contextlib import AsyncExitStack, closing

        from ajet.rollout.recorder import JOURNAL, RunRecorder, live_lines
        from ajet.runs.callbacks import Listeners
        from ajet.runs.run_dir import held, keep_tokenizer, new_run_dir
        from ajet.runs.runtime import open_runtime
        from ajet_prompts.budget import Budget
        from ajet_prompts.remembered import Remembered
        from ajet_prompts.running import Running

        folder = job.resume or new_run_dir(job)
        asked = Remembered(model=answers, file=folder / "answers.db") if answers else None
        proposer = Remembered(model=reflection, file=folder / "reflections.db")
        listeners = Listeners(job, folder)
        async with AsyncExitStack() as stack:
            stack.enter_context(held(folder, job.progress.say))
            recorder = stack.enter_context(closing(RunRecorder(folder, listeners.episode_end)))
            if job.resume:
                job.progress.started(folder)
                recorder.supersede(0, {line["id"]: line for line in live_lines(folder / JOURNAL)})
            if engine:
                keep_tokenizer(folder, engine.tokenizer, job.progress)
            runtime = await stack.enter_async_context(
                open_runtime(job, engine=engine, answers=asked, own_models=self.own_models)
            )
            models = AsyncExitStack()
            await runtime.portal.run(models.enter_async_context(proposer.open()))
            try:
                with listeners.run(0 if job.resume else None):
                    budget = Budget(self.reflections, self.episodes, self.cost)
                    running = Running(
                        runtime,
                        recorder,
                        listeners,
                        proposer,
                        asked,
                        budget,
                        repeats=self.repeats,
                        examples=self.examples,
                        rewards=self.rewards,
                    )
                    listeners.result = await running.run()
                    return listeners.result
            finally:
                await runtime.portal.run(models.aclose())


def _is_free(spec: Mapping[str, Any] | None) -> bool:
    """Whether a chat model costs nothing: there is none, or it has no prices."""
    return not spec or (
        spec.get("type") == "openai" and not (spec.get("prompt_price") or spec.get("completion_price"))
    )
