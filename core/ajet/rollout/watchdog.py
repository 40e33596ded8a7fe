"""Tracks what every episode waits for, and warns when none makes progress.

`watch` runs on the event loop and sees waiting episodes. `watched_loop` is a separate thread and sees what blocks the
loop itself: no deadline is kept then, and nothing on the loop could report it. `watching` does both.
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from ajet.capture.process.uncaptured import location_on_stack
from ajet.types import AjetError
from ajet.utils.asyncrun import end_run
from ajet.utils.breakpoints import under_debugger


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
        """One line: how many episodes wait for what, and which have waited longest."""
        states = dict(self.states)
        now = time.monotonic()
        counts = Counter(state for state, _ in states.values())
        longest = sorted(states.items(), key=lambda item: item[1][1])[:most]
        names = "; ".join(
            f"{episode} in {state} for {now - since:.0f} s" for episode, (state, since) in longest
        )
        return f"{', '.join(f'{n} wait for the {s}' for s, n in counts.most_common())}. Longest: {names}"


@asynccontextmanager
async def watching(
    board: Board,
    after: float,
    limit: float,
    say: Callable[[str], None],
    end: Callable[[AjetError], bool] | None = None,
) -> AsyncIterator[None]:
    """A block of a coroutine in which `watch` and `watched_loop` watch the board and the event loop."""
    watcher = asyncio.ensure_future(watch(board, after, say))
    try:
        with watched_loop(board, after, limit, say, end):
            yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def watch(board: Board, after: float, say: Callable[[str], None]) -> None:
    """Until cancelled, report what episodes wait for each time there was no progress for ``after`` seconds."""
    told = float("-inf")
    while True:
        await asyncio.sleep(min(after, 5.0))
        now = time.monotonic()
        if board.states and now - max(board.last_change, told) >= after:
            say(f"no progress for {now - board.last_change:.0f} s: {board.describe()}")
            told = now


@contextmanager
def watched_loop(
    board: Board,
    after: float,
    limit: float,
    say: Callable[[str], None],
    end: Callable[[AjetError], bool] | None = None,
) -> Iterator[None]:
    """A block of a coroutine. If a call blocks the event loop for ``after`` seconds without any progress, say which one, of one
    line of code less and less often; after ``limit`` seconds ``end``, by default `end_run`, is called in the watching thread; if it
    returns False, that is reported. A debugger may block the loop without limit. While native code holds the interpreter's lock, no
    Python code runs, here neither: after ``limit`` seconds the stack of each thread is printed."""
    loop = asyncio.get_running_loop()
    watch = _LoopWatch(loop, board, after, limit, say, end or partial(end_run, loop))
    thread = threading.Thread(target=watch.run, name="ajet-watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.ended.set()


class _LoopWatch:
    """See `watched_loop`. Made in the thread of the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        board: Board,
        after: float,
        limit: float,
        say: Callable[[str], None],
        end: Callable[[AjetError], bool],
    ) -> None:
        self.ended = threading.Event()
        self._loop = loop
        self._thread = threading.get_ident()
        self._board = board
        self._after = after
        self._limit = limit
        self._say = say
        self._end = end
        self._look = min(after, limit, 5.0) / 2
        self._wait: dict[str, float] = {}
        self._quiet_until: dict[str, float] = {}
        """By line of code."""

    def run(self) -> None:
        """Watch until the block has ended."""
        try:
            while not self.ended.wait(self._look):
                self._heed_native_code()
                turned = threading.Event()
                try:
                    self._loop.call_soon_threadsafe(turned.set)
                except RuntimeError:  # the loop has been closed: a debugger may delay this thread that long
                    return
                if not turned.wait(self._look):
                    self._blocked(turned)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _heed_native_code(self) -> None:
        """Let a thread of the interpreter, which needs no lock, print all stacks if this is not called again in time."""
        with suppress(AttributeError, OSError, RuntimeError, ValueError):  # sys.stderr is not a file
            faulthandler.dump_traceback_later(self._limit, file=sys.__stderr__ or 2)

    def _blocked(self, turned: threading.Event) -> None:
        """Warn, and at the limit end the run, until the loop runs again."""
        step, still, told, ended = self._look / 4, 0.0, 0.0, False
        moved = self._board.last_change
        while True:
            began = time.monotonic()
            self._heed_native_code()
            if turned.wait(step) or self.ended.is_set():
                return
            if under_debugger() or self._board.last_change != moved:
                # A blocking client that is answered is slow, but its episode progresses.
                moved, still, told = self._board.last_change, 0.0, 0.0
                continue
            still += min(time.monotonic() - began, 2 * step)  # a process that was suspended did not block
            if still - told >= self._after:
                told = still
                self._tell(still)
            if still >= self._limit and not ended:
                ended = True
                limit = f"rollout.loop_timeout is {self._limit:g} s"
                if not self._end(AjetError(self._describe(still, f"The run was ended because {limit}."))):
                    no_remedy = f"{limit}, but only a run in the main thread can be ended. End this process."
                    self._say(self._describe(still, no_remedy))

    def _tell(self, seconds: float) -> None:
        """Say what blocks the loop; of one line of code, each time after twice as long as before."""
        location = location_on_stack(sys._current_frames().get(self._thread))
        now = time.monotonic()
        if now < self._quiet_until.get(location, 0.0):
            return
        self._wait[location] = 2 * self._wait.get(location, self._after)
        self._quiet_until[location] = now + self._wait[location]
        self._say(
            self._describe(seconds, "Meanwhile no other episode makes progress, and no deadline is kept.")
        )

    def _describe(self, seconds: float, consequence: str) -> str:
        task = asyncio.current_task(self._loop)
        location = location_on_stack(sys._current_frames().get(self._thread))
        return (
            f"{task.get_name() if task else 'a callback'} has blocked the event loop for {seconds:.0f} s"
            f"{f' at {location}' if location else ''}. {consequence} Use an async call or `await "
            "asyncio.to_thread(...)` there, or make it a plain `def` function, which runs in a thread."
        )
