"""Answers that came to nothing, such as rejected summaries and retries. They are trained, unless a filter leaves them out."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ajet_audit.journal import JournalEpisode

Message = Mapping[str, Any]
Place = tuple[str, int]
"""A message in an episode's chats: its tree, and its row there; the row -1 is the beginning of all chats."""
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)


def unused(episode: JournalEpisode) -> list[int]:
    """Numbers of the calls whose answers no later call used, not even by way of others.

    A prompt uses an answer if it contains it, has another assistant message in its place, or quotes its text in a message
    that no earlier prompt had. The calls of an agent that begin with the same message after the system prompt are a
    conversation; what it ends with, all answers to its last prompt, is its result, and used.
    """
    uses = _Uses(episode)
    useful: dict[int, bool] = {}
    for number in sorted(uses.prompts, reverse=True):
        is_result = not uses.goes_on(number)
        useful[number] = is_result or any(useful[later] for later in uses.by[number])
    return sorted(number for number, is_useful in useful.items() if not is_useful)


class _Uses:
    def __init__(self, episode: JournalEpisode) -> None:
        self._chats: Mapping[str, Sequence[tuple[int, Message]]] = episode.line["chats"]
        calls = {n: call.data for n, call in sorted(episode.calls.items()) if "answer" in call.data}
        self.answers: dict[int, Place] = {n: (call["key"], call["answer"]) for n, call in calls.items()}
        self.prompts: dict[int, Place] = {n: self._above(place) for n, place in self.answers.items()}
        self.by: dict[int, set[int]] = {n: set() for n in calls}
        """The later calls that use each call's answer."""
        self._new: dict[int, list[Message]] = {n: [] for n in calls}
        """The messages that were first sent with each call, up to an earlier answer."""
        self._by_contents()
        begun: defaultdict[tuple[str, Place], list[int]] = defaultdict(list)
        openings = {key: _openings(rows) for key, rows in self._chats.items()}
        for n, (key, row) in self.prompts.items():
            begun[calls[n]["agent"], (key, openings[key][row] if row >= 0 else -1)].append(n)
        self._conversation = {n: numbers for numbers in begun.values() for n in numbers}
        for n, numbers in self._conversation.items():
            if len(numbers) > 1 and not self.by[n]:
                said = self._message(self.answers[n])
                later = (m for m in calls if m > n and any(_has(each, said) for each in self._new[m]))
                self.by[n].update(later)

    def goes_on(self, number: int) -> bool:
        """Whether its conversation goes on after a call: with another prompt, or where one uses another answer of it."""
        return any(
            (other > number and self.prompts[other] != self.prompts[number])
            or (other != number and any(user > number for user in self.by[other]))
            for other in reversed(self._conversation[number])
        )

    def _by_contents(self) -> None:
        answering: defaultdict[Place, list[int]] = defaultdict(list)
        asking: defaultdict[Place, list[int]] = defaultdict(list)
        seen: set[Place] = set()
        for number, place in self.prompts.items():
            while place[1] >= 0 and place not in answering:
                above, message = self._above(place), self._message(place)
                if place not in seen:
                    seen.add(place)
                    self._new[number].append(message)
                if message["role"] == "assistant":
                    for earlier in asking.get(above, ()):
                        self.by[earlier].add(number)
                place = above
            for earlier in answering.get(place, ()):
                self.by[earlier].add(number)
            asking[self.prompts[number]].append(number)
            answering[self.answers[number]].append(number)

    def _above(self, place: Place) -> Place:
        return place[0], self._chats[place[0]][place[1]][0]

    def _message(self, place: Place) -> Message:
        return self._chats[place[0]][place[1]][1]


def _openings(rows: Sequence[tuple[int, Message]]) -> list[int]:
    """For each row, that of its chat's first message after the system prompt."""
    openings: list[int] = []
    for row, (above, _) in enumerate(rows):
        has_begun = above >= 0 and rows[openings[above]][1]["role"] != "system"
        openings.append(openings[above] if has_begun else row)
    return openings


def _has(message: Message, answer: Message) -> bool:
    """Whether a message repeats an answer, or quotes its text."""
    said = text(answer)
    if message["role"] == "assistant" and (text(message), _called(message)) == (said, _called(answer)):
        return True
    return bool(said) and said in text(message)


def text(message: Message, *, strip: bool = True) -> str:
    """The text of a message, an assistant's without its thoughts; by default without outer spaces."""
    content = message.get("content") or ""
    whole = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    whole = _THOUGHTS.sub("", whole) if message["role"] == "assistant" else whole
    return whole.strip() if strip else whole


def _called(message: Message) -> str:
    """The tools that it calls, without the calls' ids."""
    return json.dumps([call["function"] for call in message.get("tool_calls") or ()], sort_keys=True)
