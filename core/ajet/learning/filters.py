"""The filters that come with the core. None is on by default."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pydantic import Field

from ajet.interfaces.filter import Filter
from ajet.tracker.branches import unused
from ajet.tracker.breaks import discarded
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord
from ajet.types import Int32

LONGEST_PERIOD = 32
"""Maximum tokens of a period; longer repeated passages do not count as degenerate."""


class DiscardedAttempts(Filter):
    """Drop attempts that the agent removed from its own history, such as tool calls that failed."""

    name = "discarded_attempts"

    def drop(self, record: EpisodeRecord, calls: Sequence[Call]) -> Collection[int]:
        """The calls of `ajet.tracker.breaks.discarded`."""
        return discarded(record)


class UnusedBranches(Filter):
    """Drop answers that no later call used, such as rejected summaries and attempts that the agent made again.

    Not for agents that use answers outside their prompts: by votes over several prompts, or by acting on the world.
    """

    name = "unused_branches"

    def drop(self, record: EpisodeRecord, calls: Sequence[Call]) -> Collection[int]:
        """The calls of `ajet.tracker.branches.unused`."""
        return unused(record)


class OverLong(Filter):
    """Drop calls whose prompt and answer together are longer than `max_tokens`."""

    name = "over_long"
    max_tokens: int = Field(ge=1, description="Maximum tokens of a prompt and its answer together.")

    def drop(self, record: EpisodeRecord, calls: Sequence[Call]) -> Collection[int]:
        """The calls with more tokens."""
        return [call.number for call in calls if call.end.length > self.max_tokens]


class Repetition(Filter):
    """Drop answers that repeat themselves until the length limit."""

    name = "repetition"
    min_tokens: int = Field(
        64, ge=2, description="Repeated tokens at the answer's end that count as degenerate."
    )

    def drop(self, record: EpisodeRecord, calls: Sequence[Call]) -> Collection[int]:
        """Calls cut off by length whose end, at least half of the answer, repeats up to 32 tokens.

        An answer that the model ended itself is never dropped, whatever its text: spaces, rules and tables are
        legitimate. Only token ids are compared, so all scripts and languages are treated alike.
        """
        return [
            call.number
            for call in calls
            if call.generation.finish_reason == "length"
            and repeated(call.generation.token_ids)
            >= max(self.min_tokens, len(call.generation.token_ids) / 2)
        ]


def repeated(token_ids: Int32) -> int:
    """Length of the end of ``int32[T]`` that repeats a period of at most 32 tokens at least twice."""
    longest = 0
    for period in range(1, min(LONGEST_PERIOD, len(token_ids) // 2) + 1):
        differs = (token_ids[:-period] != token_ids[period:])[::-1]
        same = int(differs.argmax()) if differs.any() else len(differs)
        if same >= period:
            longest = max(longest, same + period)
    return longest
