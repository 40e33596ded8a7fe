"""What answers LLM calls: an Engine (tokens in, tokens out) or a ChatModel (messages in, message out)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from ajet.interfaces.base import Plugin
from ajet.interfaces.progress import Progress
from ajet.types import AjetError, ConfigError
from ajet.types import Float32 as Float32
from ajet.types import GenerateRequest as GenerateRequest
from ajet.types import Generation as Generation
from ajet.types import GenerationDelta as GenerationDelta
from ajet.types import Image as Image
from ajet.types import Int32 as Int32
from ajet.types import Kept as Kept
from ajet.types import Sampling as Sampling

if TYPE_CHECKING:
    from ajet.chat.vision import Vision


@runtime_checkable
class Engine(Protocol):
    """Inference in tokens. All methods run on the engine's own event loop (`ajet.capture.portal`), so they never
    run at the same time in two threads. An engine that takes images also has ``vision``, the `ajet.chat.vision.Vision` of its
    model, or None if that reads only text.
    """

    context_length: int
    """Maximum number of tokens of prompt and completion together."""
    tokenizer: Any
    """The Hugging Face tokenizer of the model; `ajet.chat.renderer` renders with it."""
    model_type: str
    """The architecture's name in Hugging Face configs ("qwen3", "llama", …): a hint at the chat family."""

    @property
    def adapters(self) -> Collection[str]:
        """Names that `GenerateRequest.adapter` may have."""
        ...

    async def start(self) -> None: ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion. Cancelling the awaiting task stops the generation.

        The stop token that ended it is part of ``token_ids``. With stop strings the text may run
        past the string by the rest of a token. Raises ValueError if the prompt leaves no room.
        """
        ...

    def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """Like `generate`, but in pieces as they are sampled. Closing the iterator stops the generation."""
        ...

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """Logprobs of given tokens, ``float32[T]``; the first, having no context, is NaN."""
        ...

    async def close(self) -> None: ...


class SharedEngine(Engine, Protocol):
    """An engine that takes new weights while it runs. It may be on the device of their trainer."""

    @property
    def takes_gpu(self) -> bool:
        """Whether `load_weights` copies tensors from the trainer's GPU memory itself. Others get copies in the CPU's."""
        ...

    def begin(self) -> Callable[[], None]:
        """Begin to start, beside the caller; `start` then waits for that. The result ends what no `start` waits for, without waiting;
        later it does nothing."""
        ...

    async def sleep(self) -> None:
        """Wait for the calls in progress, and give the device's memory to the trainer. Later calls wait for `load_weights`. An
        engine that frees no memory may go on instead."""
        ...

    async def load_weights(self, source: Mapping[str, Any], version: int) -> int:
        """Take the memory back if the engine sleeps, load torch tensors by the names of the model's checkpoint, drop what was
        cached under other weights, and sample under this version, which it returns. Raises AjetError for weights that do not
        fit."""
        ...

    async def load_adapters(self, folder: Path, version: int) -> int:
        """The same with LoRA adapters: ``folder`` has one of each adapter's name, in peft's layout."""
        ...


class ChatModelFailed(AjetError):
    """A chat model did not answer. The agent's client gets ``status``, the HTTP status of the model's endpoint."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class ChatModel(Protocol):
    """A model with a message interface: hosted APIs, scripts, frozen targets. Its answers have no tokens, so
    they are never trained. It runs where an `Engine` does."""

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], sampling: Sampling
    ) -> Mapping[str, Any]:
        """The assistant message, in the chat completions form (``role``, ``content``, ``tool_calls``). It may also hold
        ``usage`` ({prompt_tokens, completion_tokens, cost}): what this answer used, and ``finish_reason``: "length" if it was cut.
        May raise ChatModelFailed."""
        ...


def room_for(request: GenerateRequest, context_length: int, vocabulary: int) -> int:
    """Maximum number of tokens to sample for a request: what it asks for, limited by the room in the context.

    ``vocabulary`` is the number of token ids. Raises ValueError when the request cannot be served.
    """
    ids, wanted = request.prompt_ids, request.sampling.max_tokens
    room = context_length - len(ids)
    if len(ids) == 0:
        raise ValueError("the prompt is empty")
    if room < 1:
        raise ValueError(
            f"the prompt has {len(ids)} tokens, but the model's context holds {context_length} "
            "and needs one free. Shorten the chat or take a model with a longer context."
        )
    if int(ids.max()) >= vocabulary or not set(ids[ids < 0].tolist()) <= {i.token for i in request.images}:
        raise ValueError(f"the prompt has token ids outside 0..{vocabulary - 1}")
    if wanted is not None and wanted < 1:
        raise ValueError(f"max_tokens must be at least 1, not {wanted}")
    sampling = request.sampling
    if not 0 <= sampling.temperature < math.inf:
        raise ValueError(f"temperature must be a number from 0 on, not {sampling.temperature}")
    if not 0 < sampling.top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, not {sampling.top_p}")
    if sampling.top_k < 0:
        raise ValueError(f"top_k must be 0 (all tokens) or more, not {sampling.top_k}")
    if not 0 <= sampling.min_p < 1:
        raise ValueError(f"min_p must be from 0 (all tokens) to below 1, not {sampling.min_p}")
    return room if wanted is None else min(room, wanted)


class EnginePlugin(Plugin):
    """An engine to choose by name, for answering without training."""

    kind = "engine"
    backbone: ClassVar[str] = ""
    """The backbone that samples with this engine. The engine also takes the keys of this backbone in a job that it has
    fields for, and answers where no other engine is preferred."""
    binding: ClassVar[frozenset[str]] = frozenset()
    """Keys of this backbone that only this engine honours: it answers jobs that set one."""

    @classmethod
    def preferred(cls, model: str) -> bool:
        """Whether `auto` should choose this engine for the model: it can serve the model, and is faster on this machine than
        the backbone's own engine."""
        return False

    @abstractmethod
    def build(self, model: str, seed: int, progress: Progress) -> Engine:
        """The engine for a model (folder, Hugging Face id or recipe); `start` is called later."""

    def build_shared(
        self,
        model: str,
        seed: int,
        progress: Progress,
        *,
        dtype: str,
        cache: int,
        context: int,
        requests: int | None = None,
        sleeps: bool = True,
        ranks: Mapping[str, int] = MappingProxyType({}),
    ) -> SharedEngine:
        """The engine for a model folder whose weights a trainer in this process changes, on the same device. It computes in
        ``dtype`` (float32, bfloat16) and has ``cache`` bytes for keys and values, of contexts of ``context`` tokens. It is
        fast up to about ``requests`` at once, None: unknown. Without ``sleeps``, it goes on sampling during updates. With ``ranks``, it
        gets LoRA adapters of these names and ranks, and the model's own weights stay. Raises ConfigError if the engine cannot do
        that."""
        raise ConfigError(
            f"the engine {self.name!r} does not sample from weights in training; local and vllm do."
        )

    @abstractmethod
    def tokenizer(self, model: str, seed: int) -> tuple[Any, str]:
        """A model's tokenizer and the name of its architecture, without its weights."""

    def vision(self, model: str, tokenizer: Any) -> Vision | None:
        """How a model sees images, without its weights; None if it reads only text."""
        return None

    @classmethod
    def support(cls, model: str) -> Mapping[str, str]:
        """What the engine and its backbone can do with a model, without its weights, for ``ajet doctor --model``: a few words for each
        part, such as ``trainer``; empty if that is not known."""
        return {}


class ChatModelPlugin(Plugin):
    """A ChatModel to choose by name: its fields say which endpoint, file or model."""

    kind = "chat model"

    @abstractmethod
    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], sampling: Sampling
    ) -> Mapping[str, Any]:
        """See `ChatModel.complete`."""
