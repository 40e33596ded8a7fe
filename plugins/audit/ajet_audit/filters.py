"""Which calls the job's filters and limits leave out, computed from the journal."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ajet_audit.branches import Message, Place, text, unused
from ajet_audit.journal import JournalCall, JournalEpisode

SIDE_CALLS, MAX_TIMELINES = "side_calls", "max_timelines"
"""The rules that exclude the calls which a program makes beside its agent's work, and those above `train.max_timelines`."""
LONGEST_PERIOD = 32
"""Tokens that an answer may repeat to count as degenerate."""
TELLING = 16
"""Characters of an answer from which on its text in another message is a quotation."""


class Filters:
    """The filters and limits of a job."""

    def __init__(self, filters: Sequence[Any], most: int | None, seed: int) -> None:
        self._filters = [({"type": f} if isinstance(f, str) else f) for f in filters]
        self._most, self._seed = most, seed

    @property
    def names(self) -> set[str]:
        """The rules that a record may name."""
        limits = () if self._most is None else (MAX_TIMELINES,)
        return {SIDE_CALLS, *limits, *(f["type"] for f in self._filters)}

    @property
    def unknown(self) -> list[str]:
        """The names of filters that are not AgentJet's."""
        return [f["type"] for f in self._filters if f["type"] not in _KNOWN]

    def left_out(self, episode: JournalEpisode, told: Mapping[int, str]) -> dict[int, str]:
        """The rule that leaves out a call, for each call that one does. ``told`` is what the record says, which counts for
        filters that are not known here."""
        calls = {number: call for number, call in episode.calls.items() if call.trained}
        rules = {number: SIDE_CALLS for number, call in calls.items() if call.side}
        for settings in self._filters:
            name = settings["type"]
            if name in _KNOWN:
                out: Collection[int] = _KNOWN[name](episode, settings)
            else:
                out = [number for number, rule in told.items() if rule == name]
            rules |= {number: name for number in out if number in calls and number not in rules}
        if self._most is not None:
            lines = _timelines([c for n, c in calls.items() if n not in rules and c.end > c.start])
            if len(lines) > self._most:
                draw = random.Random(f"{self._seed}/{episode.id}")
                chosen = draw.sample(range(len(lines)), self._most)
                rest = (line for i, line in enumerate(lines) if i not in chosen)
                rules |= {number: MAX_TIMELINES for line in rest for number in line}
        return rules


def _over_long(episode: JournalEpisode, settings: Mapping[str, Any]) -> list[int]:
    return [number for number, call in episode.calls.items() if call.end > settings["max_tokens"]]


def _repetition(episode: JournalEpisode, settings: Mapping[str, Any]) -> list[int]:
    """Answers that were cut, and whose end, half of them at least, repeats a few tokens."""
    numbers = []
    for number, call in episode.calls.items():
        said = call.ids[call.start :]
        least = max(settings.get("min_tokens", 64), len(said) / 2)
        if call.data["tokens"]["finish_reason"] == "length" and _repeated(said) >= least:
            numbers.append(number)
    return numbers


def _repeated(ids: Any) -> int:
    longest = 0
    for period in range(1, min(LONGEST_PERIOD, len(ids) // 2) + 1):
        length = period
        while length < len(ids) and ids[-1 - length] == ids[-1 - length + period]:
            length += 1
        if length >= 2 * period:
            longest = max(longest, length)
    return longest


def _timelines(calls: Sequence[JournalCall]) -> list[list[int]]:
    """The calls of each sequence to train: the deepest call that is left, and those on the way to it, as late as possible."""
    left = sorted(calls, key=lambda call: (-call.end, call.number))
    lines = []
    while left:
        last, limit, line = left[0], left[0].end, []
        for call in left:
            on_the_way = call.data["key"] == last.data["key"] and np.array_equal(
                last.ids[: call.end], call.ids
            )
            if call.end <= limit and on_the_way:
                line.append(call.number)
                limit = call.start
        lines.append(line)
        left = [call for call in left if call.number not in line]
    return lines


def _discarded(episode: JournalEpisode, settings: Mapping[str, Any]) -> list[int]:
    """Failed attempts: a later prompt took them back, by one of the journal's breaks, or went on from another answer to the same
    prompt; and no prompt after that has them."""
    chats = _RecordedChats(episode)
    by: dict[int, int] = {}
    for number, later in (*chats.cut_out(), *chats.passed_over()):
        by[number] = max(later, by.get(number, later))
    return [number for number, later in by.items() if chats.last(number) < later]


class _RecordedChats:
    """The chats of an episode: which prompts contain which messages, and which messages are answers."""

    def __init__(self, episode: JournalEpisode) -> None:
        self._rows: Mapping[str, Sequence[tuple[int, Message]]] = episode.line["chats"]
        self._breaks = episode.line["breaks"]
        self._calls = {n: c.data for n, c in sorted(episode.calls.items()) if "answer" in c.data}
        self._prompts: dict[int, Place] = {}
        self._first: dict[Place, int] = {}
        self._last: defaultdict[Place, dict[str, int]] = defaultdict(dict)
        self._answers: defaultdict[Place, list[int]] = defaultdict(list)
        for number, call in self._calls.items():
            key, answer = call["key"], call["answer"]
            end = self._rows[key][answer][0]
            self._prompts[number] = key, end
            self._answers[key, answer].append(number)
            if call["tokens"].get("continues"):
                self._answers[key, self._joined(key, end, answer)].append(number)
            for place in self._path(key, end):
                self._first.setdefault(place, number)
                self._last[place][call["agent"]] = number

    def cut_out(self) -> Iterator[tuple[int, int]]:
        """Calls whose answers a later prompt left out, each with that prompt's call."""
        for broken in self._breaks:
            later, start = broken["call"], broken["message"]
            if broken["cause"] != "turns removed" or not {later, broken["after"]} <= self._calls.keys():
                continue
            kept = {_loose(self._message(p)) for p in [*self._path(*self._prompts[later])][::-1][start:]}
            call = self._calls[broken["after"]]
            for place in [*self._path(call["key"], call["answer"])][::-1][start:]:
                if _loose(self._message(place)) not in kept:
                    for number in self._answers[place]:
                        if number < later and self._calls[number]["agent"] == self._calls[later]["agent"]:
                            yield number, later

    def passed_over(self) -> Iterator[tuple[int, int]]:
        """Calls whose answer was never used while another answer to the same prompt was, each with the last call that did so."""
        groups: defaultdict[Place, list[int]] = defaultdict(list)
        for number, place in self._prompts.items():
            groups[place].append(number)
        for group in groups.values() if len(groups) < len(self._prompts) else ():
            used: dict[str, int] = {}
            idle = []
            for number in group:
                through, quoted = self.last(number), self._last_quoting(number)
                if max(through, quoted) < 0:
                    idle.append(number)
                telling = quoted if len(text(self._said(number))) >= TELLING else -1
                agent = self._calls[number]["agent"]
                used[agent] = max(through, telling, used.get(agent, -1))
            yield from ((n, used[self._calls[n]["agent"]]) for n in idle if used[self._calls[n]["agent"]] > n)

    def last(self, number: int) -> int:
        """The last call of the same agent whose prompt contains a call's answer; -1 if none does."""
        call = self._calls[number]
        return self._last.get((call["key"], call["answer"]), {}).get(call["agent"], -1)

    def _last_quoting(self, number: int) -> int:
        """The same for prompts with its text in a new message that is not an answer."""
        said, agent = text(self._said(number)), self._calls[number]["agent"]
        return max(
            (
                by.get(agent, -1)
                for place, by in self._last.items()
                if said
                and self._first[place] > number
                and self._message(place)["role"] != "assistant"
                and said in text(self._message(place), strip=False)
            ),
            default=-1,
        )

    def _joined(self, key: str, prefill: int, answer: int) -> int:
        """The row of a prefill and its continuation as one message; -1 if no prompt has it."""
        rows = self._rows[key]
        above, begun = rows[prefill]
        whole = text(begun, strip=False) + text(rows[answer][1], strip=False)
        same = (i for i, (a, m) in enumerate(rows) if a == above and m["role"] == "assistant")
        return next((i for i in same if i != prefill and text(rows[i][1], strip=False) == whole), -1)

    def _said(self, number: int) -> Message:
        return self._message((self._calls[number]["key"], self._calls[number]["answer"]))

    def _message(self, place: Place) -> Message:
        return self._rows[place[0]][place[1]][1]

    def _path(self, key: str, row: int) -> Iterator[Place]:
        """A message and those before it, the last one first."""
        while row >= 0:
            yield key, row
            row = self._rows[key][row][0]


def _loose(message: Message) -> str:
    """A message without the ids of its calls, reasoning and outer spaces."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    told = [message["role"], message.get("name"), text(message), [[c["name"], _object(c)] for c in calls]]
    return json.dumps(told, sort_keys=True)


def _object(function: Mapping[str, Any]) -> Any:
    try:
        return json.loads(function["arguments"])
    except (TypeError, ValueError):
        return function["arguments"]


_KNOWN: Mapping[str, Callable[[JournalEpisode, Mapping[str, Any]], Collection[int]]] = {
    "over_long": _over_long,
    "repetition": _repetition,
    "discarded_attempts": _discarded,
    "unused_branches": lambda episode, settings: unused(episode),
}
