"""A service: a program that a job needs beside it, such as an environment or the model of a judge."""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from ajet.interfaces.base import Plugin, Seconds

_HEALTH_SECONDS = 5.0
_SECRET = re.compile(
    r"(KEY|KEY_ID|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(^|_)(PAT|PASS|PWD|DSN))$",
    re.IGNORECASE,
)
_WITH_PASSWORD = re.compile(r"\w://[^/@\s]*:[^/@\s]+@")


def looks_secret(variable: str, value: str = "") -> bool:
    """Whether the name of an environment variable says that its value is a secret, or the value is an address with a password."""
    named = variable != "PWD" and _SECRET.search(variable) is not None
    return named or _WITH_PASSWORD.search(value) is not None


def own_python(program: str) -> str:
    """The Python that runs `ajet` for ``python`` and ``python3``, as PATH may have another one, or none; other programs as they are."""
    return sys.executable if program in ("python", "python3") else program


class Service(Plugin):
    """Base of services. If the service is already healthy, the job uses it as it is. Otherwise its command is started in
    a session of its own, and stopped when the last job that uses it ends.

    Its fields are the job's ``services.<name>`` section. It inherits the environment of `ajet`, including secrets.
    """

    kind = "service"

    workdir: Path | None = Field(
        None, description="Folder in which it is started; default: the folder of the job file."
    )
    environment: dict[str, str] = Field({}, description="Environment variables for it; no secrets.")
    secrets: tuple[str, ...] = Field(
        (),
        description="Environment variables that it needs and inherits; their values are never shown.",
    )
    start_timeout: Seconds = Field(60.0, description="Maximum time until it is healthy.")
    stop_timeout: Seconds = Field(10.0, description="Maximum time to end by itself before it is killed.")

    @property
    @abstractmethod
    def address(self) -> str:
        """Its address: jobs that name the same address share a service."""

    @abstractmethod
    def argv(self) -> list[str]:
        """The command, which must stay in the foreground. All users of the machine can read it."""

    @abstractmethod
    def healthy(self) -> bool:
        """Whether it works, answered within seconds. Raises TimeoutError if it is up but busy."""

    @field_validator("environment", mode="before")
    @classmethod
    def _texts(cls, variables: Any) -> Any:
        return {k: _text(v) for k, v in variables.items()} if isinstance(variables, dict) else variables

    def likely_secrets(self) -> list[str]:
        """Variables of ``environment`` whose names say that they do not belong there. (No validator, as the
        errors of those show what they found.)"""
        return [name for name in self.environment if looks_secret(name)]


class Command(Service):
    """A program with a health URL."""

    name = "command"

    command: tuple[str, ...] = Field(
        description="Program and arguments, without a shell; `python` is the one that runs ajet.",
        min_length=1,
    )
    health: str = Field(description="URL that answers GET with a status below 400 once it works.")

    @field_validator("command", mode="before")
    @classmethod
    def _list(cls, command: Any) -> Any:
        if isinstance(command, str):
            raise ValueError("write a list, [program, argument, …], as no shell reads it")
        return [_text(word) for word in command] if isinstance(command, list | tuple) else command

    @field_validator("health")
    @classmethod
    def _url(cls, url: str) -> str:
        if not re.match(r"https?://[^/@]+(/|$)", url):
            raise ValueError("expected http://HOST:PORT/PATH, without a password")
        return url

    @property
    def address(self) -> str:
        """See `Service.address`."""
        return self.health

    def argv(self) -> list[str]:
        """See `Service.argv`."""
        program, *arguments = self.command
        return [own_python(program), *arguments]

    def healthy(self) -> bool:
        """See `Service.healthy`. Asked without a proxy."""
        from http.client import HTTPException
        from urllib.error import URLError
        from urllib.request import ProxyHandler, build_opener

        try:
            with build_opener(ProxyHandler({})).open(self.health, timeout=_HEALTH_SECONDS):
                return True
        except TimeoutError:
            raise
        except URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise error.reason from None
            return False
        except (OSError, HTTPException):  # the program that listens there does not speak HTTP
            return False


def _text(value: Any) -> Any:
    """YAML reads 8080 as a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
