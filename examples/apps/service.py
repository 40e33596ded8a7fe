"""A user's apps as an environment service: contacts, payments, mail and a calendar, behind a login.

    python service.py 8123

Each episode has its own world, generated from its task's id: people, numbers, letters and dates. The assistant acts
by calls such as ``pay 4 5``. The score depends on the world afterwards: the errand must be done, and nothing else may
have changed.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ajet.environments import ServedEnvironment, State, serve

NAMES = ("ana", "bob", "cem", "dan", "eve", "fay", "gus", "ivy", "kai", "lea", "max", "zoe")
DAYS = ("mon", "tue", "wed", "thu", "fri")
WORDS = ("yes", "no", "hi", "ok", "thanks", "sorry", "soon", "later")
PASSWORDS = (
    "tiger",
    "otter",
    "raven",
    "panda",
    "gecko",
    "camel",
    "moose",
    "koala",
    "zebra",
    "bison",
    "heron",
    "lemur",
)
HOURS = range(1, 9)
LUNCH = HOURS[0]
"""This hour is taken on every day."""
SIZES = {"train": 2000, "validation": 256}
MAX_CALLS = 8
HELP = "login PASSWORD | contacts NAME | pay NUMBER AMOUNT | inbox NAME | mail NAME WORD | free DAY | book DAY HOUR NAME"


@dataclass
class World:
    """The state of the apps. Calls change `payments`, `mails`, `bookings`, `taken` and `logged_in`."""

    password: str
    numbers: dict[str, str]
    letters: dict[str, str]
    taken: dict[str, set[int]]
    payments: list[tuple[str, str]] = field(default_factory=list)
    mails: list[tuple[str, str]] = field(default_factory=list)
    bookings: list[tuple[str, str, str]] = field(default_factory=list)
    logged_in: bool = False

    def free(self, day: str) -> str:
        """The first free hour of a day."""
        return str(next(hour for hour in HOURS if hour not in self.taken[day]))

    def changes(self) -> list[tuple[str, ...]]:
        """All payments, mails and bookings so far."""
        kinds = {"pay": self.payments, "mail": self.mails, "book": self.bookings}
        return [(kind, *done) for kind, all_done in kinds.items() for done in all_done]


@dataclass(frozen=True)
class Errand:
    """A request, and the one change that fulfils it."""

    request: str
    change: tuple[str, ...]


def make(task_id: str) -> tuple[World, Errand]:
    """The world and the errand of a task. No errand is in two splits."""
    split, _, _ = task_id.partition("-")
    rng = random.Random(task_id)
    while True:
        people = rng.sample(NAMES, 6)
        numbers = dict(zip(people, (str(n) for n in rng.sample(range(1, 10), 6)), strict=True))
        letters = {name: f"pay {numbers[name]} {rng.randint(1, 9)}" for name in people}
        taken = {day: {LUNCH, *rng.sample(HOURS, rng.randint(1, 6))} for day in DAYS}
        world = World(rng.choice(PASSWORDS), numbers, letters, taken)
        errand = rng.choice((_pay, _settle, _tell, _meet))(world, rng)
        if held_out(opening(world, errand)) == (split == "validation"):
            return world, errand


def opening(world: World, errand: Errand) -> str:
    """The request to the assistant."""
    return f"Password {world.password}. {errand.request}"


def held_out(words: str) -> bool:
    """Whether a request is kept for validation, by a hash of its text: a quarter of all are."""
    return zlib.crc32(words.encode()) % 4 == 0


def _pay(world: World, rng: random.Random) -> Errand:
    name, amount = rng.choice([*world.numbers]), str(rng.randint(1, 9))
    return Errand(f"Pay {name} {amount}.", ("pay", world.numbers[name], amount))


def _settle(world: World, rng: random.Random) -> Errand:
    name = rng.choice([*world.letters])
    _, number, amount = world.letters[name].split()
    return Errand(f"Do what {name} asks.", ("pay", number, amount))


def _tell(world: World, rng: random.Random) -> Errand:
    name, word = rng.choice([*world.numbers]), rng.choice(WORDS)
    return Errand(f"Tell {name} {word}.", ("mail", name, word))


def _meet(world: World, rng: random.Random) -> Errand:
    name, day = rng.choice([*world.numbers]), rng.choice(DAYS)
    return Errand(f"Meet {name} on {day}.", ("book", day, world.free(day), name))


class Apps(ServedEnvironment):
    """An errand in a user's apps."""

    env_type = "apps"

    def __init__(self, task_id: str, params: Mapping[str, Any]) -> None:
        super().__init__(task_id, params)
        self.world, self.errand = make(task_id)
        self.calls = 0
        self.apps: dict[str, Callable[..., str]] = {
            "login": self._login,
            "contacts": self._contacts,
            "pay": self._pay,
            "inbox": self._inbox,
            "mail": self._mail,
            "free": self._free,
            "book": self._book,
        }

    @classmethod
    def task_ids(cls, split: str, params: Mapping[str, Any]) -> list[str]:
        """The ids of a split. ``params`` may set their ``count`` and ``seed``."""
        if split not in SIZES:
            raise LookupError(f"apps has no split {split!r}; it has {', '.join(SIZES)}")
        return [f"{split}-{params.get('seed', 0)}-{n}" for n in range(int(params.get("count", SIZES[split])))]

    def start(self) -> str:
        return opening(self.world, self.errand)

    def step(self, message: Mapping[str, Any]) -> State:
        """Answer one call, given as text. A wrong call gets an error, and also counts towards `MAX_CALLS`."""
        self.calls += 1
        answer = self._answer(str(message.get("content") or "").split())
        return State(({"role": "user", "content": answer},), is_terminated=self.calls >= MAX_CALLS)

    def evaluate(self) -> float:
        """1 if the errand is the only change, 0 otherwise."""
        return float(self.world.changes() == [self.errand.change])

    def info(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The wanted change, whether it was made, and all unwanted changes."""
        done = self.world.changes()
        damage = [change for change in done if change != self.errand.change]
        damage += [self.errand.change] * max(done.count(self.errand.change) - 1, 0)
        return {"wanted": self.errand.change, "done": self.errand.change in done, "damage": damage}

    def _answer(self, words: list[str]) -> str:
        if self.calls > MAX_CALLS:
            return "error: too many calls"
        if words == ["help"]:
            return HELP
        app = self.apps.get(words[0]) if words else None
        if app is None:
            return "error: no such app, try help"
        if not self.world.logged_in and words[0] != "login":
            return "error: log in first"
        try:
            return app(*words[1:])
        except (KeyError, ValueError):
            return f"error: cannot {' '.join(words)}"
        except TypeError:
            return f"error: {next(form for form in HELP.split(' | ') if form.startswith(words[0]))}"

    def _login(self, password: str) -> str:
        if password != self.world.password:
            return "error: wrong password"
        self.world.logged_in = True
        return "welcome"

    def _contacts(self, name: str) -> str:
        return self.world.numbers[name]

    def _pay(self, number: str, amount: str) -> str:
        if number not in self.world.numbers.values() or not 0 < int(amount) < 100:
            raise ValueError
        self.world.payments.append((number, str(int(amount))))
        return "paid"

    def _inbox(self, name: str) -> str:
        return self.world.letters[name]

    def _mail(self, name: str, word: str) -> str:
        if name not in self.world.numbers:
            raise KeyError(name)
        self.world.mails.append((name, word))
        return "sent"

    def _free(self, day: str) -> str:
        return self.world.free(day)

    def _book(self, day: str, hour: str, name: str) -> str:
        if int(hour) in self.world.taken[day] or int(hour) not in HOURS or name not in self.world.numbers:
            raise ValueError
        self.world.taken[day].add(int(hour))
        self.world.bookings.append((day, str(int(hour)), name))
        return "booked"


if __name__ == "__main__":
    serve(Apps, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8123)
