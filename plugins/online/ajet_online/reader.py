"""Tasks from the store: what users have asked, with their feedback on the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ajet import Task
from ajet.interfaces.base import PathOrName
from ajet.interfaces.reader import SelectingReader

if TYPE_CHECKING:  # loaded only when used, so that `ajet --help` stays fast
    from ajet_online.trace import Trace


class StoreReader(SelectingReader):
    """One task per reply that has feedback, in the order in which they were recorded.

    The task's ``messages`` are the chat before the reply, and its query is the last user's message. Its ``metadata`` contains
    the ``response``, the ``reward``, the ``comment``, and an ``answer``: the user's correction, or a response that was liked.
    """

    name = "store"

    store: PathOrName = Field(description="The store's file or URL.")
    liked: float = Field(0.5, description="The reward from which a response becomes the task's `answer`.")

    def source(self) -> Iterator[Task]:
        """See `SelectingReader.source`."""
        from ajet_online.store import opened

        with opened(self.store, "read") as store:
            for trace in store.rated():
                yield self._task(trace, chat_of(store, trace))

    def _task(self, trace: Trace, chat: Sequence[Any]) -> Task:
        response = _text(trace.answer)
        liked = trace.reward is not None and trace.reward >= self.liked
        answer = trace.correction if trace.correction is not None else response if liked else None
        about = {
            "answer": answer,
            "response": response,
            "reward": trace.reward,
            "comment": trace.comment,
            "agent": trace.agent,
            "conversation": trace.conversation,
        }
        query = next((_text(m) for m in reversed(chat) if m.get("role") == "user"), "")
        return Task(trace.id, query, tuple(chat), {k: v for k, v in about.items() if v is not None})

    def group_of(self, task: Task) -> str:
        """Replies of one conversation stay in one part."""
        return str(task.metadata["conversation"])


def chat_of(store: Any, trace: Trace) -> list[Any]:
    """The messages of a trace's prompt, with those of its conversation before it."""
    if trace.parent is None:
        return list(trace.messages)
    others = {other.id: other for other in store.conversation(trace.conversation)}
    chat: list[Any] = []
    above: str | None = trace.parent
    own = list(trace.messages)
    while above is not None:
        parent = others[above]
        chat = [*parent.messages, parent.answer, *chat]
        above = parent.parent
    return [*chat, *own]


def _text(message: Any) -> str:
    """A message's text; of several parts, those that are text."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if part.get("type") in ("text", "input_text"))
