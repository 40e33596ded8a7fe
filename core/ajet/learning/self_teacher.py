"""What the teacher of a `SelfTaught` algorithm reads: the prompt of an episode with feedback on it, before the tokens that the
episode sampled.

A timeline begins with the prompt of a call that continues no other. Its teacher reads the chat of this call with the feedback
after the last message of the user, and then the rest of the timeline, token by token: tools' results, other calls' answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.chat.messages import text_of
from ajet.chat.renderer import Chat
from ajet.interfaces.algorithm import SelfTaught
from ajet.rollout.episode import Episode
from ajet.tracker.call import Call, Message
from ajet.tracker.timelines import Timeline
from ajet.types import AjetError, Hint


@dataclass(frozen=True, slots=True)
class SelfTeacher:
    """Writes hints for one model, whose contexts have at most ``context_length`` tokens."""

    algorithm: SelfTaught
    chat: Chat
    context_length: int

    def feedback(self, episodes: Sequence[Episode]) -> dict[str, str]:
        """The feedback on each judged episode, by id: the judge's, else, if `SelfTaught.solution` is set, the answer of another episode
        of its group. Episodes without feedback are left out."""
        feedback = {}
        for episode in episodes:
            said = episode.feedback.strip() or self._solution(episode, episodes)
            if said and episode.failure is None:
                feedback[episode.id] = said
        return feedback

    def _solution(self, episode: Episode, episodes: Sequence[Episode]) -> str:
        """The answer of the best other episode of the group, the first of equals."""
        least = self.algorithm.solution
        if least is None:
            return ""
        others = [
            e
            for e in episodes
            if e.plan.group == episode.plan.group
            and e is not episode
            and e.failure is None
            and e.reward >= least
        ]
        best = max(others, key=lambda e: e.reward, default=None)
        answers = [e.answer for e in best.record.exchanges if e.answer] if best else []
        answer = text_of(answers[-1].message) if answers else ""
        return self.algorithm.solution_template.replace("{answer}", answer) if answer.strip() else ""

    def hint(self, episode: Episode, line: Timeline, feedback: str) -> Hint | None:
        """What the teacher of a timeline reads in place of the first call's prompt; None if it cannot: the call has no messages,
        its prompt is not what the chat format writes for them now, or there is no room in the context."""
        first = _first(episode, line)
        if first is None or first.chat_end is None:
            return None
        messages, tools = first.chat_end.chat(), first.tools
        said = self.algorithm.template.replace("{feedback}", feedback)
        try:
            if not np.array_equal(self.chat.render(messages, tools), first.prompt.ids()):
                return None
            ids = np.array(self.chat.render(with_feedback(messages, said), tools), np.int32)
        except AjetError:
            return None
        length = len(ids) + len(line.token_ids) - first.prompt.length
        return Hint(ids, first.prompt.length) if length <= self.context_length else None


def _first(episode: Episode, line: Timeline) -> Call | None:
    """The call whose prompt begins the timeline, the shortest one."""
    keys = {call.number: call.key for call in episode.record.calls}
    key = keys[line.spans[0].call]
    begins = [
        call
        for call in episode.record.calls
        if call.key == key and np.array_equal(line.token_ids[: call.prompt.length], call.prompt.ids())
    ]
    return min(begins, key=lambda call: call.prompt.length, default=None)


def with_feedback(messages: Sequence[Message], said: str) -> list[Message]:
    """A chat with a text after the last message of the user, or in a message of its own if the user has said nothing."""
    at = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)
    if at is None:
        return [*messages, {"role": "user", "content": said.strip()}]
    return [*messages[:at], _longer(messages[at], said), *messages[at + 1 :]]


def _longer(message: Message, said: str) -> Mapping[str, Any]:
    content = message.get("content") or ""
    if isinstance(content, str):
        return {**message, "content": content + said}
    return {**message, "content": [*content, {"type": "text", "text": said}]}
