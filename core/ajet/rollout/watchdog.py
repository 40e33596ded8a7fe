"""Who waits for whom: every episode's state, and a warning when none of them moves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Board:
    """What each running episode waits for, and since when (seconds of the monotonic clock)."""

    states: dict[str, tuple[str, float]] = field(default_factory=dict)
    last_change: float = field(default_factory=time.monotonic)

    def set(self, episode: str, state: str | None) -> None:
        """An episode now waits for ``state``; None removes it."""
        self.last_change = time.monotonic()
        if state is None:
            self.states.pop(episode, None)
        elif self.states.get(episode, ("", 0.0))[0] != state:
            self.states[episode] = (state, self.last_change)

    def describe(self, most: int = 3) -> str:
        """One line: how many wait for what, and the longest waiting of them."""
        states = dict(self.states)
        now = time.monotonic()
        counts = Counter(state for state, _ in states.values())
        longest = sorted(states.items(), key=lambda item: item[1][1])[:most]
        names = "; ".join(
            f"{episode} in {state} for {now - since:.0f} s" for episode, (state, since) in longest
        )
        return f"{', '.join(f'{n} wait for the {s}' for s, n in counts.most_common())}. Longest: {names}"


async def watch(board: Board, after: float, say: Callable[[str], None]) -> None:
    """Until cancelled, say who waits for whom each time nothing has moved for ``after`` seconds."""
    while True:
        await asyncio.sleep(min(after, 5.0))
        still = time.monotonic() - board.last_change
        if board.states and still >= after:
            say(f"no progress for {still:.0f} s: {board.describe()}")
            board.last_change = time.monotonic()
