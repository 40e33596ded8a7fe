"""Whether this code is in a shadow run, which tools may run there, and where its LLM calls go."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextvars import ContextVar


class Shadow:
    """The shadow run that this context belongs to."""

    def __init__(
        self, explorer: str, key: str, read_only: Collection[str], on_refused: Callable[[], None]
    ) -> None:
        self.explorer, self.key = explorer, key
        """The address of the explorer, without ``/v1``, and a key that names the run."""
        self._read_only = read_only
        self._on_refused = on_refused
        self.refused: list[str] = []
        """Names of the tools whose calls were refused, in order."""

    def refuse(self, name: str, declared: bool) -> str | None:
        """The text that a call of this tool returns; None if the tool may run: its function is declared read-only, or its
        name."""
        if declared or name in self._read_only:
            return None
        self.refused.append(name)
        self._on_refused()
        return f"tool {name!r} is not read-only, so it does not run in a shadow run"


current_shadow: ContextVar[Shadow | None] = ContextVar("ajet_online_shadow", default=None)


def in_shadow_run() -> bool:
    """Whether this code is in a shadow run. For side effects other than tools, such as writing a conversation to a
    database."""
    return current_shadow.get() is not None
