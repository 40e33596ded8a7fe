"""The game of Werewolf: the moderator, who knows the rules and asks the players what they say and do."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

Ask = Callable[[str, str], Awaitable[str]]
"""A player's name, and what the moderator tells it -> what the player answers."""

RULES = (
    "You play Werewolf. Each night but the first the wolves kill a player. The seer looks at one player a night, the "
    "guard protects one. By day all players talk, then vote one out. Who says that a player is a wolf puts it on trial. "
    "The village wins when no wolf is left, the wolves when they are half of the players. Answer in one short sentence."
)
TITLES = {"wolf": "a wolf", "seer": "the seer", "guard": "the guard", "villager": "a villager"}
"""The roles, and how the moderator speaks of them."""
LONGEST = 200
"""Characters of what a player says that the others hear."""


def role_list(players: int) -> list[str]:
    """The roles of so many players: almost a third are wolves. Raises ValueError if there are less than five."""
    if players < 5:
        raise ValueError(f"players: {players} are too few; the game needs 5 or more")
    wolves = max(1, (players - 1) // 3)
    return ["wolf"] * wolves + ["seer", "guard"] + ["villager"] * (players - wolves - 2)


def briefing(roles: Mapping[str, str], player: str) -> str:
    """The system prompt of a player: the rules, the names of all, its role, and for wolves the other wolves."""
    text = f"{RULES}\nPlayers: {', '.join(roles)}.\nYou are {player}, {TITLES[roles[player]]}."
    pack = [name for name, role in roles.items() if role == "wolf" and name != player]
    return f"{text} With you: {', '.join(pack)}." if roles[player] == "wolf" and pack else text


def listed(names: Sequence[str]) -> str:
    """``Ada, Ben or Cleo``."""
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


class Game:
    """One game. ``roles`` are the players in the order of their seats, with their roles; ``ask`` reaches a player; the
    ``seed`` decides what the moderator draws. `log` is all that happened."""

    def __init__(self, roles: Mapping[str, str], ask: Ask, seed: str) -> None:
        self.roles = dict(roles)
        self.alive = list(roles)
        self.log: list[str] = []
        self._ask = ask
        self._rng = random.Random(seed)
        self._unheard: dict[str, list[str]] = {name: [] for name in roles}
        self._seen: set[str] = set()

    async def play(self) -> str:
        """Play to the end; returns the side that wins, `wolves` or `village`."""
        number = 1
        while True:
            await self._night(number)
            if not self.winner:
                await self._day()
            if self.winner:
                self.log.append("The wolves win." if self.winner == "wolves" else "The village wins.")
                return self.winner
            number += 1

    @property
    def winner(self) -> str:
        """The side that has won; empty while the game goes on."""
        wolves = len(self._living("wolf"))
        if not wolves:
            return "village"
        return "wolves" if 2 * wolves >= len(self.alive) else ""

    async def _night(self, number: int) -> None:
        peaceful = number == 1
        killed, _, guarded = await asyncio.gather(
            self._hunt(number, peaceful), self._look(number), self._guard(number, peaceful)
        )
        news = f"Day {number}. No player died."
        if killed and killed != guarded:
            self.alive.remove(killed)
            news = f"Day {number}. {killed} is dead and was {TITLES[self.roles[killed]]}."
        self._tell(self.roles, news)

    async def _hunt(self, number: int, peaceful: bool) -> str:
        """The wolves' victim. They name one after the other, and each hears those before it."""
        pack, prey = self._living("wolf"), [n for n in self.alive if self.roles[n] != "wolf"]
        if peaceful:
            return ""
        named = []
        for wolf in pack:
            reply, choice = await self._choose(wolf, f"Night {number}. Whom do you kill:", prey)
            named.append(choice)
            self._tell([other for other in pack if other != wolf], f"{wolf}: {reply}", log=False)
        return self._most(named)

    async def _look(self, number: int) -> None:
        for seer in self._living("seer"):
            unseen = [name for name in self._others(seer) if name not in self._seen]
            if not unseen:
                return
            _, choice = await self._choose(seer, f"Night {number}. Whom do you look at:", unseen)
            self._seen.add(choice)
            is_wolf = self.roles[choice] == "wolf"
            self._tell([seer], f"{choice} is {'a' if is_wolf else 'not a'} wolf.", log=False)

    async def _guard(self, number: int, peaceful: bool) -> str:
        """Whom the guard protects."""
        for guard in [] if peaceful else self._living("guard"):
            question = f"Night {number}. Whom do you protect:"
            _, choice = await self._choose(guard, question, self._others(guard))
            return choice
        return ""

    async def _day(self) -> None:
        on_trial: list[str] = []
        for player in list(self.alive):
            said = await self._speak(player, "What do you say?")
            self._tell(self._others(player), f"{player}: {said}", log=False)
            called = self._called(player, said)
            if called and called not in on_trial:
                on_trial.insert(0, called)
        if on_trial:
            self._tell(self.alive, f"On trial: {', '.join(on_trial)}.")
        votes = await asyncio.gather(
            *(self._choose(p, "Whom do you vote for:", self._others(p)) for p in self.alive)
        )
        out = self._most([choice for _, choice in votes])
        self.alive.remove(out)
        self._tell(self.roles, f"{out} is voted out and was {TITLES[self.roles[out]]}.")

    def _called(self, player: str, said: str) -> str:
        """Whom a player calls a wolf, another or itself; empty if there is none."""
        found = re.search(rf"\b({self._pattern(self._others(player))}) is a wolf\b|\bI am a wolf\b", said)
        return (found[1] or player) if found else ""

    async def _speak(self, player: str, request: str) -> str:
        """Tell a player what it has not heard, and a request; returns its answer as one line."""
        heard = self._unheard[player]
        self._unheard[player] = []
        answer = await self._ask(player, "\n".join([*heard, request]))
        said = " ".join(answer.split())[:LONGEST]
        self.log.append(f"{player} ({self.roles[player]}): {said}")
        return said

    async def _choose(self, player: str, request: str, names: Sequence[str]) -> tuple[str, str]:
        """What a player answers, and the first of the names in it; if there is none, the moderator draws one."""
        said = await self._speak(player, f"{request} {listed(names)}?")
        found = re.search(rf"\b({self._pattern(names)})\b", said)
        if found:
            return said, found[1]
        choice = self._rng.choice(names)
        self.log.append(f"That names no player who can be chosen; the moderator draws {choice} for {player}.")
        return said, choice

    @staticmethod
    def _pattern(names: Sequence[str]) -> str:
        return "|".join(map(re.escape, names))

    def _most(self, names: Sequence[str]) -> str:
        """The name that occurs most often; among several the moderator draws."""
        count = Counter(names)
        return self._rng.choice(sorted(name for name in count if count[name] == max(count.values())))

    def _tell(self, players: Iterable[str], line: str, log: bool = True) -> None:
        """Let players hear a line before their next answer."""
        for player in players:
            self._unheard[player].append(line)
        if log:
            self.log.append(line)

    def _living(self, role: str) -> list[str]:
        return [name for name in self.alive if self.roles[name] == role]

    def _others(self, player: str) -> list[str]:
        return [name for name in self.alive if name != player]
