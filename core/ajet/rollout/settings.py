"""The job's ``rollout`` and ``eval`` sections."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ajet.chat.images import ImageLimits
from ajet.interfaces.base import EngineSpec, Seconds, Settings


class TrainingSampling(Settings):
    """Sampling in training; it overrides the agent's own temperature, top_p and seed."""

    temperature: float = Field(1.0, gt=0, le=10, description="Temperature of every trained call.")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Nucleus sampling, of what top_k leaves. Training then compares probabilities over the tokens that were kept.",
    )
    top_k: int = Field(0, ge=0, description="Sample among the k likeliest tokens; 0 means all. As top_p.")
    min_p: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Sample among the tokens that are at least this share as likely as the likeliest; 0 means all. As top_p.",
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Most tokens of an answer, for calls that say none."
    )
    allow_truncated: bool = Field(
        False,
        description="Accept top_p < 1 or top_k from an engine that does not say which tokens it kept: logprobs then do not match the "
        "distribution sampled from.",
    )

    @property
    def truncating(self) -> str:
        """The first of the parameters that remove tokens from the distribution, with its value; "" if there is none."""
        given = {"top_p": self.top_p < 1, "top_k": self.top_k > 0, "min_p": self.min_p > 0}
        return next((f"{name}={getattr(self, name)}" for name, removes in given.items() if removes), "")

    @property
    def exact(self) -> bool:
        """Whether the kept tokens are recorded, so that training can compare probabilities over them."""
        return bool(self.truncating) and not self.allow_truncated


class EvalSampling(Settings):
    """Sampling in evaluation, for parameters that the agent does not set."""

    temperature: float = Field(1.0, ge=0, le=10, description="0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling.")
    top_k: int = Field(0, ge=0, description="Sample among the k likeliest tokens; 0 means all.")
    min_p: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Sample among the tokens that are at least this share as likely as the likeliest; 0 means all.",
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Most tokens of an answer, for calls that say none."
    )


class ImageSettings(Settings):
    """Which images agents may send."""

    max_bytes: int = Field(10 << 20, ge=1, description="Maximum size of an image file in bytes.")
    max_pixels: int = Field(
        16_777_216, ge=1, description="Maximum number of pixels of an image: width times height."
    )
    max_count: int = Field(64, ge=1, description="Maximum number of images in one request.")
    remote: bool = Field(
        False,
        description="Download images that agents send as http(s) addresses. Off: agents must send the bytes, as a data URL.",
    )

    def limits(self) -> ImageLimits:
        """These settings, for `ajet.chat.images`."""
        return ImageLimits(self.max_bytes, self.max_pixels, self.max_count, self.remote)


class GatewaySettings(Settings):
    """At which address programs outside this process reach their model."""

    host: str = Field(
        "127.0.0.1", description="Address to listen on; any but a loopback address is open to the network."
    )
    port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 is a free one.")
    url: str = Field(
        "",
        pattern=r"^(https?://[^/\s]+(/\S*[^/\s])?)?$",
        description="The gateway's URL, without /v1, for programs that do not run on this machine, such as agents in remote sandboxes: "
        "https://HOST of a tunnel or proxy, or http://ADDRESS:PORT; default: where it listens.",
    )


class ForkSettings(Settings):
    """Episodes of a group that are run again from one of their calls; `ajet docs credit`."""

    where: Literal["uniform", "entropy", "value"] = Field(
        "uniform",
        description="From which calls: `uniform`, any; `entropy`, those whose tokens had the lowest mean logprob; `value`, by halves "
        "where rewards differ most. The last two need train.credit: tree.",
    )
    roots: int | None = Field(
        None,
        ge=1,
        description="Independent episodes of a group, below group_size; forks get the tokens of the others. Default: half of them.",
    )
    depth: int = Field(
        1,
        ge=1,
        description="Rounds of forks. From the second on, forks are forked too, and `value` knows more.",
    )


class SteerSettings(Settings):
    """Groups that begin with the first calls of an earlier episode of their task; `ajet docs credit`."""

    band: tuple[float, float] = Field(
        (0.25, 0.75),
        description="Pass rates between which a task is left alone. Below, its groups begin with as few calls of a successful episode "
        "as bring the rate to the lower one; above, with those of a failed one.",
    )
    whole: float = Field(
        0.25,
        gt=0,
        le=1,
        description="Share of all groups that begin from the start, whatever their task: they tell the true pass rate.",
    )
    keep: int = Field(
        4, ge=1, description="Successful and failed episodes of each task that are kept as beginnings."
    )
    demonstrations: Path | None = Field(
        None,
        description="Episodes of another model, or of people, for tasks that have no successful one: transcripts with the field "
        "`task`, or a recording.",
    )

    def aim(self, is_hard: bool) -> float:
        """The share of a steered group that is to do as the episode did with which it begins."""
        return self.band[0] if is_hard else 1 - self.band[1]

    @model_validator(mode="after")
    def _a_band_rises(self) -> SteerSettings:
        if not 0 <= self.band[0] < self.band[1] <= 1:
            raise ValueError(
                "band must be two numbers from 0 to 1, the lower one first, such as [0.25, 0.75]"
            )
        return self


class RolloutSettings(Settings):
    """How episodes run."""

    group_size: int = Field(8, ge=1, description="Episodes per task in a training step.")
    fork: ForkSettings | None = Field(
        None,
        description="Run episodes again from one of their calls: some of a group's episodes are forks, which sample about as many "
        "tokens as the independent episodes would whose place they take.",
    )
    steer: SteerSettings | None = Field(
        None,
        description="Begin groups of tasks that nearly always fail, or succeed, with the first calls of an earlier episode that did "
        "not, so few that some of the group succeed and some do not. These calls are not trained.",
    )
    oversample: float = Field(
        1.0,
        ge=1,
        description="Above 1: start this many times the groups that are needed and train on those that complete first, "
        "whatever their rewards; the rest are cancelled. Not in deterministic runs.",
    )
    concurrency: int = Field(64, ge=1, description="Episodes that run at once.")
    timeout: Seconds = Field(
        300.0, description="Maximum time of one attempt at an episode (300s, 5m); off under a debugger."
    )
    judge_timeout: Seconds = Field(
        60.0, description="Maximum time for judging one episode, or one whole group."
    )
    judge_check_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="Share of the episodes that `judge_check` judges, too, chosen by their ids.",
    )
    retries: int = Field(
        1, ge=0, description="New attempts after a failed one, each with a new workflow instance."
    )
    stall_warning: Seconds = Field(
        60.0, description="Report what the episodes wait for after this long without any progress."
    )
    loop_timeout: Seconds = Field(
        600.0,
        description="End the run when a call in an async workflow or judge has blocked the event loop for this long; off "
        "under a debugger.",
    )
    strict: bool = Field(True, description="Refuse LLM calls that belong to no episode.")
    missed: Literal["report", "refuse"] = Field(
        "report",
        description="What to do with connections of an episode that capture does not see: report them, or refuse them in "
        "the agent's own call, so that no data leaves.",
    )
    gateway: bool = Field(
        False,
        description="Start the loopback server from the beginning, so that forked children are also answered; "
        "cmd: workflows and tuner.as_base_url() start it when they need it.",
    )
    gateway_address: GatewaySettings = Field(
        GatewaySettings(),
        description="Where that server listens, and where programs on other machines reach it.",
    )
    threads: Literal["pools", "all"] = Field(
        "pools",
        description="Which threads keep the episode that starts them: only jobs of thread pools, or plain threads too.",
    )
    workdir: Path | None = Field(
        None, description="Folder in which a cmd: workflow runs; default: where the job names the workflow."
    )
    context_length: int | None = Field(
        None,
        ge=2,
        description="Maximum number of tokens of a prompt and its answer together; default: what the model allows.",
    )
    chat_template: dict[str, Any] = Field(
        {},
        description="Variables for the model's chat template, such as {enable_thinking: false}. Templates differ in theirs.",
    )
    call_example: str = Field(
        "",
        description="One tool call as the model writes it, with NAME, KEY and VALUE in the places of the tool's name, an argument's "
        "name and its text; for models whose calls AgentJet cannot read otherwise.",
    )
    tool_prompt: Literal["", "hermes"] = Field(
        "",
        description="For models whose chat template does not show tools: the format in which AgentJet writes tools, calls and "
        "results into the chat, and reads calls. hermes: as <tool_call> with JSON.",
    )
    tool_calls: Literal["read", "text"] = Field(
        "read",
        description="text: the model's tool calls stay in the text of its answers. Otherwise requests with tools are refused if "
        "the model's calls cannot be read.",
    )
    merge: Literal["token", "text"] = Field(
        "token",
        description="A call continues a conversation if its messages equal the recorded ones (token), or also if they differ only "
        "in outer whitespace, dropped reasoning or call ids (text; the model then sees what it once wrote; counted in calls/drift).",
    )
    side_calls: Literal["train", "answer"] | None = Field(
        None,
        description="What becomes of the calls that a program makes beside its agent's work, such as titles: they are trained, or "
        "only answered; default: answered, if the workflow is a program of its own, else trained.",
    )
    images: ImageSettings = Field(ImageSettings(), description="Which images agents may send.")
    sampling: TrainingSampling = Field(
        TrainingSampling(), description="Sampling parameters of trained calls."
    )

    @model_validator(mode="after")
    def _forks_take_the_place_of_episodes(self) -> RolloutSettings:
        if self.fork and self.roots >= self.group_size:
            raise ValueError(
                f"fork.roots: {self.roots} independent episodes leave nothing of a group of {self.group_size} to forks; lower it, "
                "or raise group_size"
            )
        return self

    @model_validator(mode="after")
    def _one_format_of_calls(self) -> RolloutSettings:
        if self.tool_prompt and self.call_example:
            raise ValueError("tool_prompt already says how calls are written; remove call_example")
        return self

    @property
    def roots(self) -> int:
        """Independent episodes of a group."""
        if self.fork is None:
            return self.group_size
        return self.fork.roots or max(self.group_size // 2, 1)


class EvalSettings(Settings):
    """Validation during training, and `ajet eval`."""

    every: int = Field(
        0, ge=0, description="Validate every this many steps; 0: only before and after training."
    )
    episodes: int = Field(128, ge=1, description="Maximum number of validation tasks.")
    repeats: int = Field(1, ge=1, description="Episodes of each validation task.")
    greedy: bool = Field(False, description="Validate a second time at temperature 0, each task once.")
    engine: EngineSpec = Field(
        {"type": "auto"},
        description="The engine of `ajet eval`, `ajet check` and the backbone debug, or {type: NAME, …}: auto chooses vllm if it "
        "and CUDA are available, else local; or any engine that `ajet plugins` lists.",
    )
    sampling: EvalSampling = Field(EvalSampling(), description="Sampling parameters for calls that set none.")
