"""The job's ``rollout`` and ``eval`` sections."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ajet.interfaces.base import Seconds, Settings


class TrainingSampling(Settings):
    """Sampling in training: over the agent's own temperature, top_p and seed."""

    temperature: float = Field(1.0, gt=0, le=10, description="Temperature of every trained call.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling; below 1 only with allow_truncated.")
    top_k: int = Field(
        0,
        ge=0,
        description="Sample among the k likeliest tokens; 0 means all. Above 0 only with allow_truncated.",
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Most tokens of an answer, for calls that say none."
    )
    allow_truncated: bool = Field(
        False,
        description="Accept top_p < 1 or top_k in training, where logprobs no longer match the distribution sampled from.",
    )

    @model_validator(mode="after")
    def _no_silent_truncation(self) -> TrainingSampling:
        for name, bad in (("top_p", self.top_p < 1), ("top_k", self.top_k > 0)):
            if bad and not self.allow_truncated:
                raise ValueError(
                    f"{name}={getattr(self, name)} truncates the distribution, so recorded logprobs would be wrong for training; "
                    f"remove it or set rollout.sampling.allow_truncated: true"
                )
        return self


class EvalSampling(Settings):
    """Sampling in evaluation, where the agent says nothing itself."""

    temperature: float = Field(1.0, ge=0, le=10, description="0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling.")
    top_k: int = Field(0, ge=0, description="Sample among the k likeliest tokens; 0 means all.")
    max_tokens: int | None = Field(
        None, ge=1, description="Most tokens of an answer, for calls that say none."
    )


class RolloutSettings(Settings):
    """How episodes are run."""

    group_size: int = Field(8, ge=1, description="Episodes of each task in a training step.")
    oversample: float = Field(
        1.0,
        ge=1,
        description="Above 1: start this many times the groups that are needed and train on those that are complete first, "
        "whatever their rewards; the rest is cancelled. Not in deterministic runs.",
    )
    concurrency: int = Field(64, ge=1, description="Episodes that run at once.")
    timeout: Seconds = Field(
        300.0, description="Most time of one attempt at an episode (300s, 5m); off under a debugger."
    )
    judge_timeout: Seconds = Field(
        60.0, description="Most time of judging one episode, or one group together."
    )
    retries: int = Field(
        1, ge=0, description="New attempts after a failed one, each with a fresh workflow instance."
    )
    stall_warning: Seconds = Field(
        60.0, description="Say who waits for whom after so long without any progress."
    )
    loop_timeout: Seconds = Field(
        600.0,
        description="End the run after a blocking call in an async workflow or judge has kept the event loop from running for so "
        "long; off under a debugger.",
    )
    strict: bool = Field(True, description="Refuse LLM calls that belong to no episode.")
    missed: Literal["report", "refuse"] = Field(
        "report",
        description="Connections of an episode that capture does not see (requests, aiohttp, …): report them, or refuse them in the "
        "agent's own call, so that nothing leaves.",
    )
    gateway: bool = Field(
        False,
        description="Start the loopback server from the beginning, so that forked children are answered too; "
        "cmd: workflows and tuner.as_base_url() start it when they need it.",
    )
    threads: Literal["pools", "all"] = Field(
        "pools",
        description="Which threads keep the episode that starts them: jobs of thread pools, or plain threads too.",
    )
    workdir: str | None = Field(
        None, description="Folder in which a cmd: workflow runs; default: where the job names the workflow."
    )
    merge: Literal["token", "text"] = Field(
        "token",
        description="A call continues a conversation if its messages are the recorded ones (token), or also if they differ in outer "
        "whitespace, dropped reasoning or call ids only (text; the model then sees what it once wrote; counted in calls/drift).",
    )
    sampling: TrainingSampling = Field(
        TrainingSampling(), description="Sampling parameters of trained calls."
    )


class EvalSettings(Settings):
    """Validation during training, and `ajet eval`."""

    every: int = Field(
        0, ge=0, description="Validate every so many steps; 0: only before and after training."
    )
    episodes: int = Field(128, ge=1, description="Most validation tasks, one episode each.")
    greedy: bool = Field(False, description="Validate a second time at temperature 0.")
    engine: str = Field(
        "auto",
        description="What answers in `ajet eval`, `ajet check` and on the backbone debug: auto takes vllm where it and CUDA are "
        "there, else local; or any engine that `ajet plugins` lists.",
    )
    sampling: EvalSampling = Field(EvalSampling(), description="Sampling parameters for calls that say none.")
