"""Scripted players: the habits that the recipe teaches, and experts for the tests."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from game import Game, briefing


@dataclass(frozen=True)
class Habits:
    """How often a player does something, as shares; else it says that it knows nothing or suspects anyone, and
    chooses anyone."""

    tell: float = 0.0
    """The seer names a wolf that it has seen."""
    confess: float = 0.0
    """A wolf says that it is a wolf."""
    lie: float = 0.0
    """A wolf says of another player that it is a wolf."""
    follow: float = 0.0
    """A player votes for the last one who was put on trial; the seer for a wolf that it has seen."""
    spare: float = 0.0
    """A wolf chooses among players who are not wolves."""
    silence: float = 0.0
    """The wolves kill someone who called a wolf a wolf."""


@dataclass
class Player:
    """A player that plays by its habits, from what it has heard; ``messages`` is its chat."""

    name: str
    roles: Mapping[str, str]
    habits: Habits
    rng: random.Random
    messages: list[dict[str, Any]] = field(default_factory=list)
    wolves: list[str] = field(default_factory=list)
    """Those that this player knows: the pack of a wolf, what the seer has seen."""
    accused: list[tuple[str, str]] = field(default_factory=list)
    """(who said it, of whom)."""
    on_trial: list[str] = field(default_factory=list)
    """Those that were called a wolf on this day, the last one first."""
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.role = self.roles[self.name]
        self.messages.append({"role": "system", "content": briefing(self.roles, self.name)})
        if self.role == "wolf":
            self.wolves = [name for name, role in self.roles.items() if role == "wolf"]

    def answer(self, text: str) -> str:
        """The answer to what the moderator tells."""
        *heard, request = text.splitlines()
        for line in heard:
            if seen := re.fullmatch(r"(\w+) is a wolf\.", line):
                self.wolves.append(seen[1])
            if out := re.match(r"(?:Day \d+\. )?(\w+) is (?:dead|voted out)", line):
                self.gone.add(out[1])
            if said := re.fullmatch(r"(\w+): (\w+) is a wolf\.", line):
                self.accused.append((said[1], said[2]))
        trial = next((line for line in heard if line.startswith("On trial: ")), "")
        self.on_trial = re.findall(r"\w+", trial)[2:]
        answer = self._say() if request == "What do you say?" else self._choose(request)
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        return answer

    def _often(self, share: float) -> bool:
        return self.rng.random() < share

    def _say(self) -> str:
        others = [name for name in self.roles if name != self.name and name not in self.gone]
        wolves = [name for name in others if name in self.wolves]
        if self.role == "seer" and wolves and self._often(self.habits.tell):
            return f"{wolves[0]} is a wolf."
        if self.role == "wolf" and self._often(self.habits.confess):
            return "I am a wolf."
        if self.role == "wolf" and self._often(self.habits.lie):
            return f"{self.rng.choice([name for name in others if name not in wolves])} is a wolf."
        return f"I suspect {self.rng.choice(others)}." if self._often(0.5) else "I know nothing."

    def _choose(self, request: str) -> str:
        asked, _, listed = request.rstrip("?").partition(": ")
        names = re.split(r", | or ", listed)
        verb = next(v for v in ("kill", "look at", "protect", "vote for") if asked.endswith(f"you {v}"))
        if verb == "vote for":
            names = self._vote(names)
        elif verb == "kill":
            names = self._kill(names)
        return f"I {verb} {self.rng.choice(names)}."

    def _vote(self, names: list[str]) -> list[str]:
        if self.role == "wolf" and self._often(self.habits.spare):
            names = [name for name in names if name not in self.wolves]
        known = [name for name in names if name in self.wolves] if self.role == "seer" else []
        called = known or [name for name in self.on_trial if name in names][:1]
        return called if called and self._often(self.habits.follow) else names

    def _kill(self, names: list[str]) -> list[str]:
        witnesses = [who for who, of in self.accused if of in self.wolves and who in names]
        return witnesses if witnesses and self._often(self.habits.silence) else names


def play(
    roles: Mapping[str, str], rng: random.Random, wolves: Habits, village: Habits
) -> tuple[Game, str, dict[str, Player]]:
    """A game between scripted players: (the game, the side that wins, its players)."""
    players = {
        name: Player(name, roles, wolves if role == "wolf" else village, rng) for name, role in roles.items()
    }

    async def ask(name: str, text: str) -> str:
        return players[name].answer(text)

    game = Game(roles, ask, seed=str(rng.random()))
    return game, asyncio.run(game.play()), players
