"""The record of one episode's calls, which training, the journal and every report read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

import numpy as np

from ajet.tracker.call import Call, Exchange, Message, MessageNode, new_root
from ajet.tracker.tree import TokenTree
from ajet.types import AjetError, Generation, GenerationDelta, Image, Int32, Kept

SIDE_CALLS = "side_calls"
"""The rule that leaves side calls out of batches."""


class EpisodeClosed(AjetError):
    """A call arrived after its episode had ended."""


class IdWithoutToken(ValueError):
    """An engine has sampled an id that cannot be decoded."""


class EpisodeRecord:
    """Calls, trees and conversations of one attempt at an episode. Not thread-safe: the engine's loop
    owns it until it is closed."""

    def __init__(self) -> None:
        self.asked: list[Exchange] = []
        """Every call that was recorded, in the order of the requests once the record is closed."""
        self.calls: list[Call] = []
        """Those that an engine answered. A list of its own: the gateway counts them after each call."""
        self.trees: dict[str, TokenTree] = {}
        self.chats: dict[str, MessageNode] = {}
        """The root of the conversations of each merging key."""
        self.tools: dict[str, Sequence[Message]] = {}
        """The tools of each merging key that has any."""
        self.images: dict[str, Image] = {}
        """The images of all messages, by reference; empty if the record was read from a journal."""
        self.image_tokens: dict[int, str] = {}
        """In a record that was read from a journal: the reference of each image, by its token."""
        self.closed = False

    def tree(self, key: str) -> TokenTree:
        """The token tree of a merging key."""
        if key not in self.trees:
            self.trees[key] = TokenTree()
        return self.trees[key]

    def chat(self, key: str) -> MessageNode:
        """The root of the conversations of a merging key."""
        if key not in self.chats:
            self.chats[key] = new_root()
        return self.chats[key]

    @property
    def exchanges(self) -> list[Exchange]:
        """The calls with messages that an engine or a chat model answered."""
        return [call for call in self.asked if call.answer is not None]

    @property
    def refused(self) -> list[Exchange]:
        """The calls that got an error."""
        return [call for call in self.asked if call.code]

    def add(self, call: Exchange, answer: Message | None = None) -> MessageNode | None:
        """Record a call and the conversation that ends with its answer; return the answer's node, if the call has
        messages. Raises EpisodeClosed after `close`."""
        if self.closed:
            raise EpisodeClosed("the episode has ended; this call is not recorded")
        self.asked.append(call)
        if call.tools:
            call.tools = self.tools.setdefault(call.key, call.tools)
        if isinstance(call, Call):
            self.calls.append(call)
        if call.chat_end is None or answer is None:
            return None
        node = call.answer = call.chat_end.add(answer)
        if isinstance(call, Call):
            for each in nodes_of_answer(call, node):
                each.answered_by(call)
        return node

    def images_in(self, ids: Int32) -> tuple[Image, ...]:
        """The images whose placeholders are among ``ids`` (int32[T]), as far as they are in memory, in the order of their first
        one."""
        if not self.images:  # the usual case, at no cost
            return ()
        tokens = dict.fromkeys(ids[ids < 0].tolist())
        known = {image.token: image for image in self.images.values()}
        return tuple(known[token] for token in tokens if token in known)

    def close(self) -> None:
        """Stop recording calls, and sort them in the order of their requests."""
        self.closed = True
        for calls in (self.asked, self.calls):
            calls.sort(key=lambda call: call.number)

    @property
    def answered(self) -> int:
        """How many calls were answered, with messages or without."""
        return sum(not call.code for call in self.asked)

    @property
    def trained_calls(self) -> list[Call]:
        """The calls to train, in the order of their requests."""
        return sorted((c for c in self.calls if c.trained), key=lambda c: c.number)

    @property
    def path(self) -> list[Call]:
        """The calls that an engine answered, as credit and forks count them: those that a fork replayed, in the order of its parent's
        path, then those that it sampled, in the order of their requests."""
        return sorted(self.calls, key=lambda c: (not c.replayed, c.place, c.number))

    @property
    def sampled_tokens(self) -> int:
        """The number of sampled tokens to train."""
        return sampled(c for c in self.calls if c.trained)


def nodes_of_answer(call: Call, answer: MessageNode) -> list[MessageNode]:
    """The nodes at which a later prompt continues a call: that of its answer; and, if this continues a prefill, that of both as one
    message, as most frameworks keep it."""
    prefill = answer.parent
    if not (call.continues and prefill and prefill.parent):
        return [answer]
    content = (prefill.message.get("content") or "") + (answer.message.get("content") or "")
    return [answer, prefill.parent.add({**prefill.message, **answer.message, "content": content})]


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
    other types or lengths than `Generation` specifies, a token id is outside ``0..vocabulary - 1`` or not among the kept ones, or
    a logprob is not finite or is above 0."""
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
        if unknown >= vocabulary:
            raise IdWithoutToken(
                f"the token id {unknown}, for which the tokenizer has no token: its ids end with {vocabulary - 1}, and the model has "
                "more. The local engine and the engine vllm never sample such ids"
            )
        raise ValueError(f"the token id {unknown}, which is outside the vocabulary, 0..{vocabulary - 1}")
    good = (logprobs > -np.inf) & (logprobs <= ROUNDING)  # NaN is neither
    if not good.all():
        index = int(good.argmin())
        raise ValueError(
            f"logprob {logprobs[index]} at token {index} of {len(ids)}; logprobs must be finite and at most 0"
        )
    if generation.kept is not None:
        _check_kept(generation.kept, ids, vocabulary)


def joined_kept(parts: Sequence[Generation | GenerationDelta]) -> Kept | None:
    """The kept tokens of all parts, one after the other; None if no part says them."""
    if all(part.kept is None for part in parts):
        return None
    counts = [np.zeros(len(p.token_ids), np.int32) if p.kept is None else p.kept.counts for p in parts]
    token_ids = [part.kept.token_ids for part in parts if part.kept is not None]
    return Kept(np.concatenate(counts), np.concatenate(token_ids))


def _check_kept(kept: Kept, ids: Int32, vocabulary: int) -> None:
    """Raise ValueError unless each token of ``ids`` is among those that ``kept`` says of it."""
    counts, among = kept.counts, kept.token_ids
    if len(counts) != len(ids) or counts.min(initial=0) < 0 or counts.sum() != len(among):
        raise ValueError(f"kept tokens of {len(counts)} tokens, {len(among)} in all, for {len(ids)} tokens")
    if len(among) and not 0 <= among.min() <= among.max() < vocabulary:
        raise ValueError(f"kept tokens outside the vocabulary, 0..{vocabulary - 1}")
    owners = np.repeat(np.arange(len(ids)), counts)
    if len(np.unique(owners[among == ids[owners]])) != np.count_nonzero(counts):
        raise ValueError("tokens that are not among those that were kept")


def as_ids(ids: Sequence[int]) -> Int32:
    """Token ids as ``int32[T]``."""
    return np.asarray(ids, dtype=np.int32)
