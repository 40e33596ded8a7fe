"""The API keys of an explorer, and what each of them may do."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ajet.types import ConfigError
from ajet.utils.yaml_file import read_yaml

Role = Literal["chat", "feedback"]
ROLES: tuple[Role, ...] = get_args(Role)
SHORTEST = 16
"""Characters of a key that is not easily guessed."""


@dataclass(frozen=True, slots=True)
class Key:
    """An API key. Its name, not the secret, is in the store."""

    name: str
    secret: str
    roles: Collection[Role]


class Keys:
    """Finds the key that a request has sent."""

    def __init__(self, keys: Collection[Key]) -> None:
        self._keys = list(keys)

    @classmethod
    def single(cls, secret: str) -> Keys:
        """One key for everything."""
        return cls([Key("default", secret, ROLES)])

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys of a YAML file, ``name: {key: SECRET, roles: [chat, feedback]}``. Raises ConfigError."""
        found = read_yaml(path)
        if not isinstance(found, Mapping) or not found:
            raise ConfigError(
                f"{path}: expected keys, as in  my-app: {{key: SECRET, roles: [chat, feedback]}}."
            )
        return cls([_key(path, str(name), value) for name, value in found.items()])

    def find(self, secret: str | None) -> Key | None:
        """The key with this secret, in a time that does not depend on it."""
        given = (secret or "").encode(errors="replace")
        matching = [key for key in self._keys if hmac.compare_digest(given, key.secret.encode())]
        return matching[0] if matching else None


def _key(path: Path, name: str, value: Any) -> Key:
    if not isinstance(value, Mapping) or not isinstance(value.get("key"), str):
        raise ConfigError(f"{path}: {name}: expected {{key: SECRET, roles: [chat, feedback]}}.")
    secret, roles = value["key"], value.get("roles", list(ROLES))
    if len(secret) < SHORTEST or not (secret.isascii() and secret.isprintable()):
        raise ConfigError(f"{path}: {name}.key: use at least {SHORTEST} printable ASCII characters.")
    if not isinstance(roles, list) or not roles or set(roles) - set(ROLES):
        raise ConfigError(f"{path}: {name}.roles: expected some of {', '.join(ROLES)}.")
    return Key(name, secret, tuple(roles))
