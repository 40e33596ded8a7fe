"""A filter selects calls of an episode that are not trained, although they were sampled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ajet.interfaces.base import Plugin

if TYPE_CHECKING:
    from ajet.tracker.call import Call as Call
    from ajet.tracker.record import EpisodeRecord as EpisodeRecord


class Filter(Plugin):
    """Base of filters: pure functions of an episode's record. What a filter drops is counted under its
    name; a dropped call stays the context of the calls after it."""

    kind = "filter"

    @abstractmethod
    def drop(self, record: EpisodeRecord, calls: Sequence[Call]) -> Collection[int]:
        """Numbers of those ``calls`` whose sampled tokens are not to be trained.

        ``calls`` are the trained calls that earlier filters left, in the order of their requests;
        ``record`` holds all calls of the episode. Other numbers have no effect.
        """
