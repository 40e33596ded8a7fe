"""What answers calls, and how an answer is sampled and read. Nothing of it is recorded here."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from ajet.capture.off_loop import off_loop
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.stream_buffer import StreamBuffer
from ajet.capture.targets import Target
from ajet.chat.images import Images
from ajet.chat.renderer import Chat
from ajet.chat.streaming import stop_at
from ajet.interfaces.engine import Engine
from ajet.interfaces.wire import Answer, ChatRequest, Refused
from ajet.tracker.call import Call, Exchange, Message
from ajet.tracker.record import IdWithoutToken, check_generation, joined_kept
from ajet.types import (
    AjetError,
    FinishReason,
    Float32,
    GenerateRequest,
    Generation,
    GenerationDelta,
)

T = TypeVar("T")
_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "seed", "stop")


@dataclass(frozen=True, slots=True)
class Answerer:
    """What answers calls: an engine with its chat format, or nothing if every target has a model."""

    engine: Engine | None
    chat: Chat | None
    targets: Sequence[Target]
    policy: SamplingPolicy
    by_text: bool = False
    """Policy ``text``: messages that differ in spacing or reasoning only continue a conversation too."""
    limit: int | None = None
    """Maximum number of tokens of a prompt and its answer together, if it is below what the engine allows."""
    images: Images = field(default_factory=Images)
    """Takes images out of requests."""

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of a prompt and its answer together; for an answerer with an engine."""
        assert self.engine
        return self.limit or self.engine.context_length

    async def chat_for(self, request: ChatRequest, target: Target) -> Chat | None:
        """The chat format with the variables that the request sets; None if no engine answers. Raises Refused for a variable
        that the model does not have, for tools whose calls could not be read, and for what a chat model does not give."""
        chat = self.chat
        if target.model and (asked := [*request.template, *["logprobs"] * request.logprobs]):
            raise Refused(
                f"target {target.name!r} is answered by a chat model, whose tokens and chat template are not known here; "
                f"remove {', '.join(asked)}",
                code="unsupported_parameter",
            )
        if not target.by_engine or chat is None:
            return None
        if request.template:
            try:
                chat = await off_loop(chat.with_variables, request.template)
            except AjetError as error:
                raise Refused(str(error), code="unsupported_parameter") from None
        if request.tools and request.may_call and chat.calls_fault:
            raise Refused(chat.calls_fault, code="tools_unreadable")
        return chat

    def blindness(self) -> str:
        """Why a request with an image is refused."""
        engine = self.engine
        if engine is not None and not hasattr(engine, "vision"):
            return f"the request has an image, but {type(engine).__name__} does not take images; use the local backbone, or send text"
        return (
            f"the request has an image, but the model ({engine.model_type if engine else 'none'}) reads only text; set model to "
            "a vision-language model, or send text"
        )


Choice = tuple[Exchange, Answer]
"""A call and its answer, which has not been delivered yet. The call enters the record when it is; until then the ``end`` of a `Call` is
its prompt."""


def seed_of(key: str, number: int) -> int:
    """The sampling seed of a call."""
    name = f"{key}/{number}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


def sampling_of(request: ChatRequest) -> dict[str, Any]:
    """The sampling parameters that a request sets."""
    given = {name: getattr(request, name) for name in _SAMPLING}
    several = {"n": request.n} if request.n > 1 else {}
    return {name: value for name, value in given.items() if value not in (None, ())} | several


def text_ids(chat: Chat, text: str | Sequence[int] | None) -> Sequence[int]:
    """The tokens of a text as it is, including special ones, or token ids. Raises Refused."""
    ids = chat.tokenizer.encode(text.encode(errors="replace").decode()) if isinstance(text, str) else text
    if not ids or not all(0 <= i < len(chat.tokenizer) for i in ids):
        raise Refused(
            f"prompt must hold at least one token, and token ids below {len(chat.tokenizer)}",
            code="invalid_request",
        )
    return ids


async def generate(
    engine: Engine, chat: Chat, wanted: GenerateRequest, buffer: StreamBuffer | None
) -> Generation:
    """What the engine samples. Raises AjetError for an answer that cannot be recorded: it would break a batch."""
    if buffer is None:
        whole = await engine.generate(wanted)
        _check(engine, chat, whole, wanted)
        return whole
    deltas = []
    # Engines stream with generators; closing one stops the generation.
    async with aclosing(cast("AsyncGenerator[GenerationDelta]", engine.stream(wanted))) as stream:
        async for delta in stream:
            _check(engine, chat, delta, wanted)
            deltas.append(delta)
            buffer.sampled(delta.token_ids.tolist())
    return _joined(deltas)


def _check(engine: Engine, chat: Chat, given: Generation | GenerationDelta, wanted: GenerateRequest) -> None:
    try:
        check_generation(given, chat.vocabulary)
        if wanted.sampling.report_kept and given.kept is None:
            raise ValueError("no kept tokens, though it is asked for them")
    except ValueError as error:
        episode, number = wanted.key
        remedy = (
            "" if isinstance(error, IdWithoutToken) else ". Check the engine with ajet.testing.conformance"
        )
        raise AjetError(
            f"{type(engine).__name__} answered call {number} of episode {episode} with {error}{remedy}"
        ) from None


def _joined(deltas: Sequence[GenerationDelta]) -> Generation:
    if not deltas or deltas[-1].finish_reason is None:
        raise AjetError("the engine's stream ended without a finish reason")
    return Generation(
        np.concatenate([d.token_ids for d in deltas]),
        np.concatenate([d.logprobs for d in deltas]),
        np.concatenate([d.weight_versions for d in deltas]),
        deltas[-1].finish_reason,
        kept=joined_kept(deltas),
    )


def read_message(
    chat: Chat,
    call: Call,
    prompt_tail: list[int],
    offered: Sequence[Message],
    stops: tuple[str, ...],
    episode: str,
) -> tuple[dict[str, Any], FinishReason, int | None, Mapping[str, int]]:
    """What a call has sampled as a message, why it ended, how many of its tokens are reasoning, and what is to be counted."""
    generation, ids = call.generation, call.generation.token_ids.tolist()
    if call.chat_end is None:
        content = chat.text(ids)
        content = content[: stop_at(content, stops)]
        return {"role": "assistant", "content": content}, generation.finish_reason, None, {}
    parsed = chat.parse(ids, prompt_tail, offered, goes_on=call.continues)
    thought = parsed.reasoning or ""
    if "cut_thoughts" in parsed.counts:  # perhaps by a stop text
        thought = thought[: stop_at(thought, stops)]
    content = parsed.content[: stop_at(parsed.content, stops)]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought
    reason: FinishReason = generation.finish_reason
    if parsed.tool_calls:
        used = {c["id"] for m in call.chat_end.chat() for c in m.get("tool_calls") or ()}
        ids_written = [i if i not in used else "" for i in parsed.call_ids]
        message["tool_calls"] = [
            {
                # Kimi's chat templates write the id where other templates write the name.
                "id": ids_written[i] or _mint(f"{episode}/{call.number}/{i}"),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for i, (name, arguments) in enumerate(parsed.tool_calls)
        ]
        reason = "tool_calls" if reason == "stop" else reason
    return message, reason, parsed.reasoning_tokens, parsed.counts


def _mint(name: str) -> str:
    """A tool-call id: nine letters and digits, as some chat templates require."""
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()[:9]


def spelled_logprobs(
    chat: Chat, call: Call, message: Message, reasoning: int, stops: tuple[str, ...]
) -> tuple[tuple[str, float], ...]:
    """(text, logprob) of each token of the answer's content; if it calls tools, of each token after its thoughts."""
    content = None if message.get("tool_calls") else str(message["content"])
    goes_on = call.continues or call.chat_end is None
    said = chat.spelling(call.generation.token_ids.tolist(), reasoning, content, stops, goes_on)
    return tuple(zip(said.values(), logprobs_for_client(call.generation.logprobs[[*said]]), strict=True))


def logprobs_for_client(logprobs: Float32) -> list[float]:
    """Logprobs as a client gets them; values that JSON cannot express become the API's lowest value."""
    given: list[float] = np.clip(logprobs, -9999.0, 0.0).tolist()
    return given


async def all_of(coroutines: Iterator[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all coroutines; the first failure cancels the others."""
    first, *others = coroutines
    if not others:
        return [await first]
    tasks = [asyncio.ensure_future(c) for c in (first, *others)]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
