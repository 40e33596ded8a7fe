"""The record of one episode's calls, which training, the journal and every report read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.tracker.conversations import Said, new_root
from ajet.tracker.tree import Node, TokenTree
from ajet.types import AjetError, Generation, GenerationDelta, Int32

if TYPE_CHECKING:
    from ajet.chat.continuing import Written

Message = Mapping[str, Any]


class EpisodeClosed(AjetError):
    """A call arrived after its episode had ended."""


@dataclass(frozen=True, slots=True)
class Basis:
    """How the prompt of a call was made."""

    rendered: Written | None = None
    """What the chat format knows about the prompt's rendering."""
    rendered_messages: int = 0
    """Messages at the beginning that were rendered; those after them follow stored ids."""
    sent: Mapping[int, Message] = field(default_factory=dict)
    """Those of them that are a recorded reply in another form, by their index."""
    was: str = ""
    """If the chat template is the cause of a break: what it wrote there before."""
    now: str = ""
    """What the chat template writes there now."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One LLM call: a sampled span at a place in a token tree.

    ``prompt`` and ``end`` are nodes: what the engine saw, and the same plus what it sampled.
    """

    number: int
    """Numbers follow the order of the requests."""
    agent: str
    target: str
    key: str
    """Merging key: calls share a tree if target and tool list are the same."""
    prompt: Node
    end: Node
    generation: Generation
    temperature: float
    trained: bool
    """Greedy calls and frozen targets are recorded, but not trained."""
    parent: int | None = None
    """The call whose conversation this prompt continued by stored ids."""
    cause: str = ""
    """Why a recognised conversation could not be continued by its stored ids."""
    said: Said | None = None
    """The prompt's last message; None for a call recorded without messages."""
    basis: Basis | None = None
    """How the prompt was made; None for a call read from a journal."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The messages of a call to an engine or a chat model. ``answer`` is below the prompt's messages."""

    number: int
    agent: str
    target: str
    key: str
    answer: Said

    def chat(self) -> list[Message]:
        """The prompt's messages and the answer."""
        return self.answer.chat()


class EpisodeRecord:
    """Calls, trees and conversations of one attempt at an episode. Not thread-safe: the engine's loop
    owns it until it is closed."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.exchanges: list[Exchange] = []
        self.trees: dict[str, TokenTree] = {}
        self.chats: dict[str, Said] = {}
        """The root of the conversations of each merging key."""
        self.closed = False

    def tree(self, key: str) -> TokenTree:
        """The token tree of a merging key."""
        if key not in self.trees:
            self.trees[key] = TokenTree()
        return self.trees[key]

    def chat(self, key: str) -> Said:
        """The root of the conversations of a merging key."""
        if key not in self.chats:
            self.chats[key] = new_root()
        return self.chats[key]

    def add(self, call: Call, answer: Message | None = None) -> Said | None:
        """Record a call and the conversation that ends with its answer; return the answer's node, if the call has
        messages. Raises EpisodeClosed after `close`."""
        if self.closed:
            raise EpisodeClosed("the episode has ended; this call is not recorded")
        self.calls.append(call)
        if call.said is None or answer is None:
            return None
        node = call.said.say(answer)
        self.exchanges.append(Exchange(call.number, call.agent, call.target, call.key, node))
        for said in (node, _prefilled(call.said, answer)):
            if said is not None:
                said.answered_by(call)
        return node

    def close(self) -> None:
        """Stop recording calls, and sort them in the order of their requests."""
        self.closed = True
        self.calls.sort(key=lambda c: c.number)
        self.exchanges.sort(key=lambda e: e.number)

    @property
    def answered(self) -> int:
        """How many calls were answered, with messages or without."""
        return len(self.exchanges) + sum(call.said is None for call in self.calls)

    @property
    def trained_calls(self) -> list[Call]:
        """The calls to train, in the order of their requests."""
        return sorted((c for c in self.calls if c.trained), key=lambda c: c.number)

    @property
    def sampled_tokens(self) -> int:
        """The number of sampled tokens to train."""
        return sampled(c for c in self.calls if c.trained)


def _prefilled(said: Said, answer: Message) -> Said | None:
    """The node of a prefill and its continuation as one message, as most frameworks keep it."""
    if said.message.get("role") != "assistant" or said.parent is None:
        return None
    whole = (said.message.get("content") or "") + (answer.get("content") or "")
    return said.parent.say({**answer, "content": whole})


def sampled(calls: Iterable[Call]) -> int:
    """Tokens that the calls sampled."""
    return sum(len(c.generation.token_ids) for c in calls)


def merging_key(target: str, tools: Sequence[Message]) -> str:
    """Calls with equal keys may share a timeline: same target and same tool list, with its keys in the same order,
    because chat templates write them in that order."""
    text = json.dumps(list(tools), ensure_ascii=False, default=str)
    return f"{target}/{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}"


ROUNDING = 1e-4
"""How far a logprob may exceed 0, because floating point rounds."""
_KINDS = {"i": "integer", "u": "integer", "f": "float"}
"""Names of numpy's dtype kinds."""


def check_generation(generation: Generation | GenerationDelta, vocabulary: int) -> None:
    """Check that an engine's result can be trained. Raises ValueError, with what is wrong, if the arrays have
    other types or lengths than `Generation` specifies, a token id is outside ``0..vocabulary - 1``, or a logprob
    is not finite or is above 0."""
    ids, logprobs, versions = generation.token_ids, generation.logprobs, generation.weight_versions
    for name, array, kind in (
        ("token_ids", ids, "integer"),
        ("logprobs", logprobs, "float"),
        ("weight_versions", versions, "integer"),
    ):
        if not (isinstance(array, np.ndarray) and array.ndim == 1 and _KINDS.get(array.dtype.kind) == kind):
            raise ValueError(f"{name} that are not an array of one dimension and of type {kind}")
    if not len(ids) == len(logprobs) == len(versions):
        raise ValueError(f"{len(ids)} tokens, {len(logprobs)} logprobs and {len(versions)} weight versions")
    known = (ids >= 0) & (ids < vocabulary)
    if not known.all():
        unknown = ids[known.argmin()]
        raise ValueError(f"the token id {unknown}, which is outside the vocabulary, 0..{vocabulary - 1}")
    good = (logprobs > -np.inf) & (logprobs <= ROUNDING)  # NaN is neither
    if not good.all():
        place = int(good.argmin())
        raise ValueError(
            f"logprob {logprobs[place]} at token {place} of {len(ids)}; logprobs must be finite and at most 0"
        )


def as_ids(ids: Sequence[int]) -> Int32:
    """Token ids as ``int32[T]``."""
    return np.asarray(ids, dtype=np.int32)
