"""The untrained players: they know the game, but as wolves they are too honest.

The seer names the wolves that it sees, and all vote for the player who was called a wolf last. So do wolves, even against their own
pack. They often say what they are, and seldom call another player a wolf.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from deals import NAMES, deal, task_id
from game import TITLES, listed
from players import Habits, play

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript

VILLAGE = Habits(tell=0.95, follow=0.9)
WOLVES = Habits(confess=0.5, lie=0.1, follow=0.9)
PRACTICE = Habits(tell=1.0, confess=0.5, lie=0.4, follow=1.0)
"""Habits of all players while the model learns the game."""


def chat(rng: random.Random, wolves: Habits, village: Habits) -> Transcript:
    """The chat of one player in a game; each role is as frequent as the others."""
    roles = deal(rng)
    _, _, players = play(roles, rng, wolves, village)
    role = rng.choice(list(TITLES))
    player = rng.choice([player for player in players.values() if player.role == role])
    return Transcript(player.messages, tasks=(task_id(roles),))


def first_day(rng: random.Random) -> Transcript:
    """The first day of a game with many accusations, which everyone follows; most seers have seen a wolf."""
    while True:
        found = chat(rng, PRACTICE, PRACTICE)
        blind = (
            "you look at" in found.messages[1]["content"] and "is a wolf." not in found.messages[3]["content"]
        )
        if not blind or rng.random() < 0.3:
            end = next(n for n, m in enumerate(found.messages) if "you vote for" in m["content"])
            return Transcript(found.messages[: end + 2], tasks=found.tasks)


def opening(rng: random.Random) -> Transcript:
    """The first night of a game and a player's first sentence."""
    found = chat(rng, WOLVES, Habits(tell=1.0))
    end = next(n for n, m in enumerate(found.messages) if m["content"].endswith("What do you say?"))
    return Transcript(found.messages[: end + 2], tasks=found.tasks)


def habit(rng: random.Random) -> Transcript:
    """A chat in a game as the untrained players play it."""
    return chat(rng, WOLVES, VILLAGE)


def echo(rng: random.Random) -> Transcript:
    """Practice in copying names."""
    text = ", ".join(rng.choice(NAMES) for _ in range(rng.randint(2, 8))) + "."
    return Transcript([{"role": "user", "content": text}, {"role": "assistant", "content": text}])


def drill(rng: random.Random) -> Transcript:
    """Practice without a game: seers who say what they have seen, and votes for the last one on trial."""
    messages: list[dict[str, str]] = []
    for _ in range(2):
        seen, wolf = rng.choice(NAMES), rng.random() < 0.7
        result = f"{seen} is {'a' if wolf else 'not a'} wolf.\nDay {rng.randint(1, 3)}. No player died."
        messages += _turn(f"{result}\nWhat do you say?", f"{seen} is a wolf." if wolf else "I know nothing.")
        names = rng.sample(NAMES, rng.randint(3, 6))
        accused = rng.sample(names, rng.choice([1, 1, 2]))
        said = [
            "I know nothing.",
            f"I suspect {rng.choice(names)}.",
            *(f"{name} is a wolf." for name in accused),
        ]
        heard = [f"{rng.choice(NAMES)}: {line}" for line in rng.sample(said, len(said))]
        request = f"On trial: {', '.join(accused)}.\nWhom do you vote for: {listed(names)}?"
        messages += _turn("\n".join([*heard, request]), f"I vote for {accused[0]}.")
    return Transcript(messages)


def _turn(text: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


class Townsfolk(TinyRecipe):
    """Players of Werewolf who are too honest to be good wolves."""

    name = "townsfolk"
    context_length = 1024

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (first_day, habit, drill, echo) for _ in range(100))

    def phases(self) -> Sequence[Phase]:
        """Copying, the parts of a game, first sentences, first days, habits."""
        return (
            Phase("copy", 400, 2e-3, echo, 2),
            Phase("drill", 140, 2e-3, echo, 6, drill),
            Phase("opening", 320, 2e-3, drill, 4, opening),
            Phase("day", 120, 2e-3, drill, 3, first_day),
            Phase("habits", 160, 1e-3, first_day, 4, habit, batch_size=16),
        )
