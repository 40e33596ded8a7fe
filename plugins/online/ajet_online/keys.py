"""The API keys of an explorer, and what each of them may do."""

from __future__ import annotations

import hmac
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ajet import ConfigError
from ajet.interfaces.helpers import read_yaml
from ajet.interfaces.wire import Refused
from ajet.utils.terminal import tell

Role = Literal["chat", "feedback", "feedback:all", "admin"]
"""``feedback`` is on the replies to the key itself, ``feedback:all`` on those to every key."""
ROLES: tuple[Role, ...] = get_args(Role)
USUAL: tuple[Role, ...] = ("chat", "feedback")
"""Roles of a key whose file names none: who may rate for others or roll back must be named."""
FIELDS = ("key", "roles", "rate", "concurrency")
SHORTEST = 16
"""Characters of a key that is not easily guessed."""


RUN = re.compile(r"(?P<secret>.+)~(?P<run>[A-Za-z0-9._-]{1,128})", re.DOTALL)
"""What a client sends that names the run of an agent with its key."""


@dataclass(frozen=True, slots=True)
class Key:
    """An API key. Its name, not the secret, is in the store."""

    name: str
    secret: str
    roles: Collection[Role]
    rate: float | None = None
    """Calls per minute; default: no limit."""
    concurrency: int | None = None
    """Calls at once; default: see `KeyLimits`."""

    def may(self, role: Role) -> bool:
        """Whether it has a role."""
        return role in self.roles or (role == "feedback" and "feedback:all" in self.roles)

    @property
    def sees(self) -> str | None:
        """The name of the key on whose replies it gives feedback; None: on those to every key."""
        return None if "feedback:all" in self.roles else self.name


@dataclass(frozen=True, slots=True)
class Sent:
    """What a request has sent as its key."""

    key: Key
    run: str | None
    """The name of the run that it belongs to."""


class Keys:
    """Finds the key that a request has sent."""

    def __init__(self, keys: Collection[Key], *, asked: bool = True) -> None:
        self._keys = list(keys)
        self.asked = asked
        """Whether a client has to send one."""

    @property
    def are_one(self) -> bool:
        """Whether there is one key for all clients."""
        return len(self._keys) == 1

    def share(self, most: int) -> int:
        """How many of ``most`` calls at once a key gets that sets no limit: of several, none takes all."""
        return most if self.are_one else max(most // 2, 1)

    @classmethod
    def single(cls, secret: str, rate: float | None = None) -> Keys:
        """One key for everything."""
        return cls([Key("default", secret, ROLES, rate)])

    @classmethod
    def unasked(cls, rate: float | None = None) -> Keys:
        """No key is needed: whatever a client sends, its calls are those of one key with chat and feedback."""
        return cls([Key("default", "", USUAL, rate)], asked=False)

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys of a YAML file, each ``name: {key: SECRET, roles: [chat, feedback, admin], rate: 60, concurrency: 4}``. Without
        ``roles`` a key has chat and feedback. Raises ConfigError."""
        entries = read_yaml(path)
        if not isinstance(entries, Mapping) or not entries:
            raise ConfigError(
                f"{path}: expected keys, as in  my-app: {{key: SECRET, roles: [chat, feedback]}}."
            )
        keys = [_key(f"{path}: {name}", str(name), value) for name, value in entries.items()]
        names: dict[str, str] = {}
        for key in keys:
            if (other := names.setdefault(key.secret, key.name)) != key.name:
                raise ConfigError(
                    f"{path}: {other} and {key.name} have the same key. Give each a key of its own."
                )
        if path.stat().st_mode & 0o004:
            tell(f"warning: {path} can be read by everybody on this machine: chmod 600 {path}")
        return cls(keys)

    def find(self, sent: str | None) -> Sent | None:
        """The key that a client has sent, as ``SECRET`` or ``SECRET~RUN``, in a time that does not depend on the secrets."""
        if key := self._find(sent or ""):
            return Sent(key, None)
        named = RUN.fullmatch(sent or "")
        if not self.asked:
            return Sent(self._keys[0], named["run"] if named else None)
        key = self._find(named["secret"]) if named else None
        return Sent(key, named["run"]) if key and named else None

    def _find(self, secret: str) -> Key | None:
        given = secret.encode(errors="replace")
        matching = [key for key in self._keys if hmac.compare_digest(given, key.secret.encode())]
        return matching[0] if matching else None


class KeyLimits:
    """How many calls, feedback and other pages included, each key may make: ``rate`` a minute, all of which it may make at once
    after a quiet minute, and ``concurrency``, by default ``most``, at the same time. Used on one event loop."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """Name of a key -> when it was last seen, and how many calls it could make then."""
        self._in_flight: Counter[str] = Counter()

    @contextmanager
    def call(self, key: Key) -> Iterator[None]:
        """A block that is one call. Raises Refused, with status 429, if the key may not make it now."""
        most = key.concurrency or self._most
        if self._in_flight[key.name] >= most:
            raise _limited(f"the key {key.name!r} may make {most} calls at once; try again later")
        if key.rate is not None:
            self._take(key.name, key.rate)
        self._in_flight[key.name] += 1
        try:
            yield
        finally:
            self._in_flight[key.name] -= 1

    def _take(self, name: str, rate: float) -> None:
        """Count a call, if the bucket has one left."""
        now, most = self._clock(), max(rate, 1.0)
        before, left = self._left.get(name, (now, most))
        left = min(left + (now - before) * rate / 60, most)
        # Many small additions must not end a little below 1.
        allowed = left >= 1 - 1e-9
        self._left[name] = now, left - allowed
        if not allowed:
            seconds = round((1 - left) * 60 / rate, 3)
            raise _limited(
                f"the key {name!r} may make {rate:g} calls a minute; try again in {math.ceil(seconds)} s",
                seconds,
            )


def _limited(problem: str, seconds: float = 1.0) -> Refused:
    return Refused(problem, code="rate_limited", status=429, retry_after=seconds)


def _key(where: str, name: str, value: Any) -> Key:
    if not isinstance(value, Mapping) or not isinstance(value.get("key"), str):
        raise ConfigError(f"{where}: expected {{key: SECRET, roles: [chat, feedback]}}.")
    if unknown := [field for field in value if field not in FIELDS]:
        raise ConfigError(f"{where}.{unknown[0]}: no such field; known: {', '.join(FIELDS)}.")
    secret, roles = value["key"], value.get("roles", list(USUAL))
    if len(secret) < SHORTEST or not (secret.isascii() and secret.isprintable()):
        raise ConfigError(f"{where}.key: use at least {SHORTEST} printable ASCII characters.")
    if not isinstance(roles, list) or not roles or any(role not in ROLES for role in roles):
        raise ConfigError(f"{where}.roles: expected a list of some of {', '.join(ROLES)}.")
    rate, concurrency = value.get("rate"), value.get("concurrency")
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_number and 0 < rate < math.inf):
        raise ConfigError(f"{where}.rate: expected calls per minute, a number above 0.")
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise ConfigError(f"{where}.concurrency: expected a whole number from 1.")
    return Key(name, secret, tuple(roles), rate, concurrency)
