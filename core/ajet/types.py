"""The data of the system, in the order it flows. Imports nothing of ours.

task -> group -> episode -> calls (spans of a token tree) -> reward -> samples -> batch.
Token arrays are numpy: ``token_ids int32[T]``, ``mask bool[T]``, ``logprobs float32[T]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int16 = NDArray[np.int16]
    Int32 = NDArray[np.int32]
    Float32 = NDArray[np.float32]
    Float64 = NDArray[np.float64]
    Bool = NDArray[np.bool_]
else:  # names for annotations: numpy itself would cost `ajet --help` a tenth of a second
    Int16 = Int32 = Float32 = Float64 = Bool = object

FinishReason = Literal["stop", "length", "tool_calls"]
Metrics = dict[str, float]


class AjetError(Exception):
    """An error that is meant for the user: names the thing, the place and the remedy in one line.

    ``AjetError(where, text)``, or ``AjetError(text)``. ``where`` begins with a key of the job (``model ./m``), with arguments as
    Python writes them (``resume= ./run``), or with a file. So does the line; the command line writes its options instead, and
    AgentScope's tuner its fields.
    """

    exit_code = 1
    """Of a command that it ends."""

    def __init__(self, *where_and_text: str) -> None:
        super().__init__(*where_and_text)
        *where, self.text = where_and_text
        self.where = "".join(where)
        self.key = self.where.partition(" ")[0]
        """What ``where`` begins with. It stays when `Layers.located` adds the file or the argument that set it."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


class ConfigError(AjetError):
    """The job, the arguments of a command or a function, or a plugin's fields are wrong."""

    exit_code = 2


class ContractBroken(AjetError):
    """A workflow or a judge does something that is wrong in every episode, such as returning an object of the wrong class.
    It ends the run at once; any other exception fails one episode."""


class Finding(NamedTuple):
    """A line of `ajet doctor`."""

    what: str
    found: str
    remedy: str = ""
    """What to do about it; empty where all is well."""
    optional: bool = False
    """True if the finding is information, not an error: the part is optional, and the remedy says how to install it."""


# --------------------------------------------------------------------------- what the user brings


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. ``id`` is unique among the tasks of a job."""

    id: str
    query: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    """Initial chat messages, where the data has more than a query."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Everything else the record holds: the expected ``answer``, a difficulty, …"""


@dataclass(frozen=True, slots=True)
class WorkflowOutput:
    """What a workflow returns. A ``reward`` given here makes the judge optional; ``rewards`` and ``call_rewards`` are as in
    `JudgeOutput`. ``files`` are those that the agent left, by relative path: absolute paths of copies, which exist until the
    episode is judged."""

    reward: float | None = None
    response: Any = None
    is_success: bool | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    call_rewards: Sequence[float] | Mapping[int, float] = ()
    files: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JudgeOutput:
    """A judge's verdict on one episode. ``rewards`` are those of single agents or targets, by name, where
    they differ from ``reward``: an agent's tokens count by its own, else by its target's, else by the
    episode's."""

    reward: float
    is_success: bool | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    feedback: str = ""
    """What was good or wrong, in words: `ajet tune-prompt` and the algorithm `sdpo` learn from it."""
    call_rewards: Sequence[float] | Mapping[int, float] = ()
    """Rewards of single calls, besides that of the episode: one for each of `EpisodeView.messages`, or some of them by their places
    there, from 0. docs/credit.md says what a call learns from them."""


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """What a judge may know of an episode."""

    id: str
    task_id: str
    member: int
    attempt: int
    messages: Sequence[Sequence[Mapping[str, Any]]] = ()
    """The chat of each recorded call, its answer last."""
    output: WorkflowOutput = field(default_factory=WorkflowOutput)
    """What the workflow returned; empty if it failed."""
    failure: str | None = None
    """Why it has nothing to judge: a cause such as "timeout", or None."""


# --------------------------------------------------------------------------- inference


@dataclass(frozen=True, slots=True)
class Spent:
    """What LLM calls used: the tokens that an engine counted or a chat model reported, and their cost where the model has
    prices."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    @classmethod
    def reported(cls, usage: Mapping[str, Any]) -> Spent:
        """The ``usage`` of a chat model's answer; what it leaves out counts as 0."""
        return cls(
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
            float(usage.get("cost") or 0),
        )

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
        )

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 means greedy; its logprobs are those at temperature 1."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    report_kept: bool = False
    """Whether `Generation.kept` is wanted, for training on what top_p, top_k or min_p leave of the distribution."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    """Of this request alone: equal seeds and equal prompts draw equal tokens."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Image:
    """A picture in a chat. ``ref`` is ``sha256:`` and the hash of ``data``, the bytes of its file.

    Its placeholder tokens are stored as ``token``, a number below 0 that no other image of the run has. So whatever compares
    token ids, such as a token tree or an engine's cache, never takes one picture for another.
    """

    ref: str
    data: bytes = field(repr=False)
    type: str
    """The type of its file, such as "png"."""
    token: int

    @property
    def file_name(self) -> str:
        """The name of its file in a run folder."""
        return f"{self.ref.removeprefix('sha256:')}.{self.type}"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    prompt_ids: Int32
    """``int32[T]``; ids below 0 are placeholders of ``images``."""
    sampling: Sampling
    key: tuple[str, int] = ("", 0)
    """(episode id, number of the call in it): names the request in reports and orders batches."""
    blocks_loop: bool = False
    """The caller blocks the rollout's event loop, so no other episode can proceed until it is answered."""
    adapter: str | None = None
    """Name of the LoRA adapter that answers; None: the base weights."""
    images: tuple[Image, ...] = ()
    """The images whose placeholders are in the prompt, each once, in the order of their first one."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The tokens among which each of T tokens was drawn, where top-p, top-k or min-p had removed others: the support of its
    distribution (Keep Sampling Mask: DeepSeek-V3.2, arXiv:2512.02556, sec. 3.1)."""

    counts: Int32
    """``int32[T]``: how many; 0: all of the vocabulary."""
    token_ids: Int32
    """``int32[Σ counts]``: those of the first token, then those of the second, …"""


@dataclass(frozen=True, slots=True)
class Generation:
    """``token_ids int32[T]``; ``logprobs float32[T] = log_softmax(logits / temperature)[token]``,
    before top-p, top-k and min-p, or with ``kept``, over the kept tokens alone; ``weight_versions int32[T]``."""

    token_ids: Int32
    logprobs: Float32
    weight_versions: Int32
    finish_reason: Literal["stop", "length"]
    routed_experts: Int16 | None = None
    """``int16[P + T - 1, layers, k]``: the experts to which each layer of a mixture-of-experts model sent the P tokens of
    the prompt and the sampled ones, except the last, from which nothing was sampled. None if the engine does not say. It is
    used in the process that sampled, and is not written to the journal."""
    kept: Kept | None = None
    """If `Sampling.report_kept` asks for them. Used and not written, as ``routed_experts``; the journal says that there were some."""


@dataclass(frozen=True, slots=True)
class GenerationDelta:
    """The next tokens of a generation, in the arrays of `Generation`. The last one has a
    ``finish_reason``; all of them together are the `Generation`."""

    token_ids: Int32
    logprobs: Float32
    weight_versions: Int32
    finish_reason: Literal["stop", "length"] | None = None
    kept: Kept | None = None


# --------------------------------------------------------------------------- training


@dataclass(frozen=True, slots=True)
class Span:
    """Trained tokens ``[start, end)`` of a sample: who sampled them, and how."""

    start: int
    end: int
    call: int
    agent: str
    target: str
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Hint:
    """What a model that teaches itself reads before the tokens of a sample: the prompt with feedback on the episode in it."""

    token_ids: Int32
    """``int32[H]``."""
    replaces: int
    """The number of tokens at the beginning of the sample in whose place they are; no trained one is among those."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A timeline with its credit. All arrays have the length of ``token_ids``.

    ``mask`` marks the trained tokens; ``logprobs`` are the sampling ones, NaN where not sampled;
    ``weights`` already hold every normalisation (1/E · 1/T_e), so a trainer only sums.

    ``reference`` are the logprobs of a reference model or a teacher, ``before`` those of the trainer before
    its update, both at the tokens' temperatures. None: the trainer finds them out if the loss needs them.

    For an algorithm with a critic, ``advantages`` are the rewards until `Batch.estimate` turns them into advantages:
    it needs ``values``, those of the critic before the update, and adds ``returns``, what the critic learns.
    """

    token_ids: Int32
    mask: Bool
    logprobs: Float32
    advantages: Float32
    weights: Float32
    spans: tuple[Span, ...] = ()
    episode: str = ""
    adapter: str | None = None
    """Name of the LoRA adapter that it trains; None: the base weights."""
    reference: Float32 | None = None
    before: Float32 | None = None
    values: Float32 | None = None
    returns: Float32 | None = None
    pair: int | None = None
    """Samples with the same number are one pair, whose loss compares them: a trainer computes them together."""
    images: tuple[Image, ...] = ()
    """The images whose placeholders, ids below 0, are among ``token_ids``, each once."""
    hint: Hint | None = None
    """What the teacher reads, if the loss needs one; None: it teaches nothing here, and the tokens have no advantage."""
    kept: Kept | None = None
    """Of the trained tokens: their logprobs are over the kept tokens alone, those of the reference too."""


@dataclass(frozen=True, slots=True)
class SampleTree:
    """Samples that share prefixes, each unique token once: for trainers that can compute on trees.

    ``token_ids int32[N]``; ``parents int32[N]``: the index of the token before, always smaller than the
    token's own, -1 at a root. The context of a token is its ancestors. Tokens lie in preorder: a token's
    descendants follow it without a gap.

    Credit is not merged: ``positions[i] int32[T_i]``, ascending, are the indices of the trained tokens of
    ``samples[i]``, which keep their own logprobs, advantages and weights, also where others sampled the same.
    """

    token_ids: Int32
    parents: Int32
    samples: tuple[Sample, ...]
    positions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """What a loss sees: the trained tokens of whole calls. Arrays [N] of torch or numpy, one entry a token.

    Gradients flow through ``new``, ``entropy``, ``values`` and ``student`` only. What ``Batch.needs`` does not name is None.
    """

    new: Any
    """float32: logprobs under the current weights."""
    old: Any
    """float32: the sampling logprobs; NaN where a token was not sampled (transcripts)."""
    advantages: Any
    """float32."""
    calls: Any
    """int64: tokens with the same number belong to one call, all of whose tokens are here."""
    before: Any = None
    """float32: logprobs under the trainer's weights before the update's first step."""
    reference: Any = None
    """float32: logprobs of the reference model, `Sample.reference`."""
    entropy: Any = None
    """float32: entropy, in nats, of the distribution that each token was drawn from, under the current
    weights and at the token's temperature."""
    pairs: Any = None
    """int64: tokens with the same number belong to one pair, all of whose tokens are here. Chosen tokens have positive
    advantages and rejected ones negative; a token of advantage 0 is in no pair."""
    values: Any = None
    """float32: the critic's values of the states in which the tokens were drawn, under the current weights."""
    old_values: Any = None
    """float32: the same before the update's first step, `Sample.values`. Needs "values"."""
    returns: Any = None
    """float32: what the values should be, `Sample.returns`. Needs "values"."""
    student: Any = None
    """float32[N, K + 1]: logprobs, in the state in which the token was drawn, of the K tokens that are likeliest there under the
    current weights, and of all others together (float32[N, V] of a vocabulary of V ≤ K tokens). Needs "teacher"."""
    teacher: Any = None
    """The same of the teacher, who reads `Sample.hint`."""


class Loss(Protocol):
    """The loss of each token, a pure function; ``xp`` is the namespace of the arrays, torch or numpy."""

    def __call__(self, xp: Any, tokens: LossTokens) -> Any: ...


Measures = Callable[[Any, LossTokens], Mapping[str, Any]]
"""Further numbers of each token, [N] by name, from the same arguments as a `Loss`: weighted and summed like it, they are
metrics."""

Need = Literal["before", "reference", "entropy", "pairs", "values", "teacher"]
"""The arrays of `LossTokens` that cost something: a trainer fills those that the batch asks for."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One update's work. A trainer minimises ``Σ_samples Σ_t weights[t] · loss(...)[t]`` over each
    mini-batch, in order; ``mini_batches`` is a list of index groups into ``samples``, one optimizer step
    each. The weights of a mini-batch are already scaled for it. A sample stands in several mini-batches
    where the batch is gone over several times."""

    samples: Sequence[Sample]
    loss: Loss
    mini_batches: Sequence[Sequence[int]]
    learning_rate: float
    needs: frozenset[Need] = frozenset()
    zero_costs_nothing: bool = True
    """Tokens whose advantage is 0 have no loss, so that a trainer may skip samples of nothing else."""
    measures: Measures | None = None
    estimate: Callable[[Sequence[Sample]], tuple[Sequence[Sample], Metrics]] | None = None
    """With "values" in ``needs``: the samples, which have values, with advantages and returns; and metrics."""
    teacher_share: float = 0.0
    """With "teacher" in ``needs``: the share of the current weights in the teacher's logprobs. The rest is the reference's."""

    def has_credit(self, sample: Sample) -> bool:
        """Whether a trained token of the sample can have a gradient: any, or if `zero_costs_nothing`, one whose
        weight · advantage is not 0. Trainers compute only such samples."""
        credit = sample.mask
        if self.zero_costs_nothing:
            credit = credit & (sample.weights * sample.advantages != 0)
        return bool(credit.any())
