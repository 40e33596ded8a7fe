"""Judges prompts, merged timelines and token trees by the raw log alone: no code in common with the tracker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.tracker.forest import TokenForest
from ajet.tracker.timelines import Timeline
from ajet.types import Float32, Int32


@dataclass(frozen=True, slots=True)
class RawCall:
    """What an engine was given and what it answered."""

    prompt_ids: Int32
    completion_ids: Int32
    logprobs: Float32
    versions: Int32

    @property
    def whole(self) -> Int32:
        return np.concatenate([self.prompt_ids, self.completion_ids])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of sampled tokens: never trained, trained too often, trained after other tokens than the
    engine saw (or with other logprobs or versions than its own)."""

    lost: int
    doubled: int
    out_of_context: int

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.lost + other.lost,
            self.doubled + other.doubled,
            self.out_of_context + other.out_of_context,
        )


def judge_timelines(lines: Iterable[Timeline], log: Mapping[int, RawCall]) -> Verdict:
    """The verdict on timelines of the calls of a log, by number."""
    trained = {number: np.zeros(len(call.completion_ids), np.int64) for number, call in log.items()}
    wrong = 0
    for line in lines:
        rest = line.mask.copy()
        for span in line.spans:
            call, at = log[span.call], len(log[span.call].prompt_ids)
            own = slice(span.start, span.end)
            if (
                span.start != at
                or not np.array_equal(line.token_ids[: span.end], call.whole)
                or not line.mask[own].all()
                or not np.array_equal(line.logprobs[own], call.logprobs)
                or not np.array_equal(line.versions[own], call.versions)
            ):
                wrong += span.end - span.start
            trained[span.call][span.start - at : span.end - at] += 1
            rest[own] = False
        wrong += int(rest.sum())  # trained, but nobody's
        silent = ~line.mask
        wrong += int((~np.isnan(line.logprobs[silent]) | (line.versions[silent] != -1)).sum())
    return _counted(trained.values(), wrong)


def judge_forest(tree: TokenForest, log: Mapping[int, RawCall]) -> Verdict:
    """The verdict on a token tree of the calls of a log."""
    trained = {number: np.zeros(len(call.completion_ids), np.int64) for number, call in log.items()}
    ids, parents = tree.token_ids.tolist(), tree.parents.tolist()
    wrong = sum(not -1 <= parent < index for index, parent in enumerate(parents))
    for call, span in zip(tree.calls, tree.spans, strict=True):
        raw = log[call.number]
        if len(span) == len(raw.completion_ids):
            trained[call.number] += 1
        path, index = [], int(span[-1]) if len(span) else -1
        while index >= 0:
            path.append(index)
            index = parents[index]
        path.reverse()
        context = [ids[index] for index in path]
        if len(span) and (context != raw.whole.tolist() or path[-len(span) :] != span.tolist()):
            wrong += len(span)
    return _counted(trained.values(), wrong)


def distinct_prefixes(sequences: Iterable[Int32]) -> int:
    """How many different prefixes the sequences have: the tokens that a tree of them must hold."""
    ordered = _ordered(sequences)
    return sum(map(len, ordered)) // 4 - sum(map(_shared, ordered, ordered[1:]))


def maximal(sequences: Iterable[Int32]) -> list[int]:
    """Lengths of the sequences that no other one continues; equal ones count once."""
    ordered = _ordered(sequences)
    after = [*ordered[1:], b""]
    return [len(a) // 4 for a, b in zip(ordered, after, strict=True) if not b.startswith(a)]


def fewest_rows(calls: Sequence[RawCall]) -> tuple[int, int]:
    """The fewest rows that train each call's tokens once in their context, and the fewest tokens that
    rows may have in all.

    Calls that may follow each other in a row form a partial order, so this is a chain cover: a maximum
    matching of calls with their successors, the longest first (only the last call of a row costs tokens).
    """
    calls = [c for c in calls if len(c.completion_ids)]
    prompts = [c.prompt_ids.tolist() for c in calls]
    wholes = [c.whole.tolist() for c in calls]
    later = [
        [j for j, prompt in enumerate(prompts) if prompt[: len(whole)] == whole and i != j]
        for i, whole in enumerate(wholes)
    ]
    before: dict[int, int] = {}

    def follow(i: int, seen: set[int]) -> bool:
        for j in later[i]:
            if j not in seen:
                seen.add(j)
                if j not in before or follow(before[j], seen):
                    before[j] = i
                    return True
        return False

    order = sorted(range(len(calls)), key=lambda i: -len(wholes[i]))
    last = [i for i in order if not follow(i, set())]
    return len(last), sum(len(wholes[i]) for i in last)


def _counted(trained: Iterable[NDArray[np.int64]], wrong: int) -> Verdict:
    times = np.concatenate([*trained, np.zeros(0, np.int64)])
    return Verdict(int((times == 0).sum()), int(np.maximum(times - 1, 0).sum()), wrong)


def _ordered(sequences: Iterable[Int32]) -> list[bytes]:
    """Different sequences in the order of a dictionary."""
    return sorted({np.asarray(ids).astype(">i4").tobytes() for ids in sequences})


def _shared(a: bytes, b: bytes) -> int:
    """Tokens at the beginning in which two sequences agree."""
    n = min(len(a), len(b))
    same = np.frombuffer(a[:n], ">i4") == np.frombuffer(b[:n], ">i4")
    return n // 4 if same.all() else int(same.argmin())


# --------------------------------------------------------------------------- prompts (rule 6)


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call as the client sent it, what the engine was given, and what the client got back."""

    number: int
    messages: Sequence[Mapping[str, Any]]
    """The whole chat; where the client named a reply, with that reply and the chat before it."""
    tools: Sequence[Mapping[str, Any]]
    prompt_ids: list[int]
    completion_ids: list[int]
    reply: Mapping[str, Any]
    continues: bool = False
    """Whether the reply was to continue the last message."""
    said: Mapping[str, Any] | None = None
    """What of the reply follows the prompt, if not all of it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """How a prompt is explained: the messages that it is the rendering of, the call whose ids it begins with,
    and how many messages at the beginning were rendered as the client sent them."""

    messages: tuple[Mapping[str, Any], ...]
    continues: int | None
    rendered: int
    text: str
    """What the template writes for them: the text of the prompt."""


@dataclass
class PromptJudge:
    """Judges each prompt by the tokenizer's own template: it must be the template's text for the client's
    messages, or the ids of an earlier call, whose reply the client sent back and the template writes in full, and
    the template's text after that reply."""

    tokenizer: Any
    stops: frozenset[int]
    """Tokens that may end a reply."""
    calls: dict[int, SentCall] = field(default_factory=dict)
    origins: dict[int, Origin] = field(default_factory=dict)

    def judge(self, call: SentCall) -> str:
        """What is wrong with a call's prompt; empty if nothing is. Calls come in the order of their numbers."""
        earlier = next(self._within(call), None) if call.continues else None
        if earlier:
            origin: Origin | None = replace(self.origins[earlier.number], continues=earlier.number)
        else:
            origin = self._continued(call) or self._rendered(call)
        if origin is None:
            return f"call {call.number}: no chat that the client sent is written so: {self._shown(call.prompt_ids)!r}"
        self.origins[call.number] = origin
        self.calls[call.number] = _as_one_reply(call, earlier) if call.continues else call
        return ""

    def _within(self, call: SentCall) -> Iterator[SentCall]:
        """Earlier calls whose reply is the client's last message, and whose ids, without the end of the turn, are the prompt."""
        for earlier in self._parents(call):
            stored = earlier.prompt_ids + _unended(earlier.completion_ids, self.stops)
            whole = len(earlier.messages) + 1 == len(call.messages)
            if whole and stored == call.prompt_ids and self._same_before(call, self.origins[earlier.number]):
                yield earlier

    def could_continue(self, call: SentCall) -> bool:
        """Whether the client sent a recorded reply back after the same chat, which is rendered anew."""
        origin = self.origins.get(call.number)
        if origin is None or origin.continues is not None:
            return False
        return any(
            all(
                _plain(sent) == _plain(held)
                or (is_reply(sent, held) and any(held is c.reply for c in self.calls.values()))
                for sent, held in zip(call.messages, self.origins[earlier.number].messages, strict=False)
            )
            for earlier in self._parents(call)
        )

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        continues: bool = False,
    ) -> str:
        """What the template writes."""
        given = [_with_objects(message) for message in messages]
        end = {"continue_final_message": True} if continues else {"add_generation_prompt": True}
        return str(
            self.tokenizer.apply_chat_template(given, tools=list(tools) or None, tokenize=False, **end)
        )

    def _rendered(self, call: SentCall) -> Origin | None:
        text = self.text(call.messages, call.tools, call.continues)
        same = self._shown(call.prompt_ids) == text if call.continues else self._ids(text) == call.prompt_ids
        before = call.messages[: len(call.messages) - call.continues]
        return Origin(tuple(before), None, len(before), text) if same else None

    def _parents(self, call: SentCall) -> Iterable[SentCall]:
        """Earlier calls of which the client's chat holds the prompt and the reply."""
        for earlier in self.calls.values():
            place = len(earlier.messages)
            if earlier.tools != call.tools or place >= len(call.messages):
                continue
            if is_reply(call.messages[place], earlier.reply) and earlier.number in self.origins:
                yield earlier

    def _continued(self, call: SentCall) -> Origin | None:
        for earlier in self._parents(call):
            stored = earlier.prompt_ids + earlier.completion_ids
            origin = self.origins[earlier.number]
            if call.prompt_ids[: len(stored)] != stored or not self._same_before(call, origin):
                continue
            place = len(earlier.messages)
            whole = (*origin.messages, earlier.reply, *call.messages[place + 1 :])
            text = self.text(whole, call.tools, call.continues)
            if self._is_written(call, earlier, origin.text, text, call.prompt_ids[len(stored) :]):
                before = whole[: len(whole) - call.continues]
                return Origin(before, earlier.number, origin.rendered, text)
        return None

    def _same_before(self, call: SentCall, origin: Origin) -> bool:
        """Whether the client sent the earlier call's messages again: those that were rendered, unchanged; of
        those that follow stored ids, the replies at least as the same replies."""
        for place, message in enumerate(origin.messages):
            sent = call.messages[place]
            same = _plain(sent) == _plain(message)
            if place < origin.rendered:
                if not same:
                    return False
            elif not same and not is_reply(sent, message):
                return False
        return True

    def _is_written(
        self,
        call: SentCall,
        earlier: SentCall,
        before: str,
        text: str,
        rest: list[int],
    ) -> bool:
        """Whether the template writes the earlier prompt, then the reply in full, then the rest."""
        last = earlier.completion_ids[-1] if earlier.completion_ids else None
        tails = [self._shown(rest)]
        if last in self.stops:
            tails += [self._shown([stop]) + tails[0] for stop in self.stops]
        for tail in tails:
            if text.startswith(before) and text.endswith(tail) and len(before) <= len(text) - len(tail):
                written = text[len(before) : len(text) - len(tail)]
                ids = self._ids(tail)
                ends = {len(ids) - len(rest), 0}
                if call.continues or (ids[len(ids) - len(rest) :] == rest and max(ends) <= 1):
                    return says_in_full(written, earlier.said or earlier.reply)
        return False

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _shown(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


def _as_one_reply(call: SentCall, earlier: SentCall | None) -> SentCall:
    """A call whose reply continues a message as one whose reply is both. ``earlier``: the call that sampled that message."""
    *before, begun = call.messages
    whole = {
        **begun,
        **call.reply,
        "content": (begun.get("content") or "") + (call.reply.get("content") or ""),
    }
    if earlier is None:
        return replace(call, messages=before, reply=whole, said=call.reply)
    at = len(earlier.prompt_ids)
    return replace(
        earlier,
        number=call.number,
        completion_ids=[*call.prompt_ids[at:], *call.completion_ids],
        reply=whole,
        said=whole
        if earlier.said is None
        else {**whole, "content": whole["content"].removeprefix(_prefix(earlier))},
    )


def _prefix(call: SentCall) -> str:
    """The beginning of a reply that was in the prompt."""
    assert call.said is not None
    return str(call.reply["content"]).removesuffix(call.said.get("content") or "")


def _unended(ids: list[int], stops: frozenset[int]) -> list[int]:
    return ids[:-1] if ids and ids[-1] in stops else ids


def is_reply(sent: Mapping[str, Any], reply: Mapping[str, Any]) -> bool:
    """Whether a client's message is a reply: same content and tool calls, and the reasoning, if it is sent."""
    told = sent.get("reasoning_content")
    return (
        sent["role"] == "assistant"
        and (sent.get("content") or "") == (reply.get("content") or "")
        and _calls(sent) == _calls(reply)
        and (not told or told.strip() == (reply.get("reasoning_content") or "").strip())
    )


def says_in_full(written: str, reply: Mapping[str, Any]) -> bool:
    """Whether a text holds a reply's reasoning, content, and the names and arguments of its tool calls, and does
    not say much else."""
    pieces = [(reply.get("reasoning_content") or "").strip(), (reply.get("content") or "").strip()]
    for _, name, arguments in _calls(reply):
        pieces += [name, *(json.dumps(value, ensure_ascii=False) for value in arguments.values())]
    rest = written
    for piece in pieces:
        if piece not in rest:
            return False
        rest = rest.replace(piece, "", 1)
    return len(rest.split()) <= 12 * (1 + len(_calls(reply)))  # marks of the format


def _calls(message: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    return [
        (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
        for c in message.get("tool_calls") or ()
    ]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in message.items() if v}


def _with_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its tool arguments as objects, as chat templates expect them."""
    plain = {k: v for k, v in message.items() if v is not None}
    plain.setdefault("content", "")
    if message.get("tool_calls"):
        plain["tool_calls"] = [
            {**c, "function": {**c["function"], "arguments": json.loads(c["function"]["arguments"])}}
            for c in message["tool_calls"]
        ]
    return plain
