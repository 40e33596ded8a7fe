"""Judges merged timelines and token trees by the raw log alone: no code in common with the tracker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
