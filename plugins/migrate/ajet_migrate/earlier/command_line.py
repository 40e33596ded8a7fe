"""Command lines of the earlier AgentJet: ``ajet --conf FILE --backbone verl --with-ray``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ajet import ConfigError

_WITH_VALUES = ("--conf", "--backbone", "--exp-dir", "--debug", "--db", "--kill", "--prefix")
_SERVICES = {f"--with-{name}": name for name in ("appworld", "deepfinance", "webshop", "bfcl", "crafters")}
_RAY = ("--with-ray", "--with-ray-cluster")
_SWITCHES = (*_SERVICES, *_RAY, "--with-logview", "--reboot", "--skip-check-avail-gpu", "--autokill")


def refuse_earlier(arguments: Sequence[str]) -> None:
    """ConfigError with today's command if the arguments of ``ajet`` begin with an option of the earlier form."""
    if arguments and arguments[0] == "run":
        _refuse_in_run(arguments[1:])
    option = arguments[0].partition("=")[0] if arguments else ""
    if option not in (*_WITH_VALUES, *_SWITCHES):
        return
    given = _parse(arguments)
    services = [name for switch, name in _SERVICES.items() if switch in given]
    said = _said(given, services)
    if "--conf" not in given and not services:
        raise ConfigError(f"ajet {option} is of the earlier AgentJet; remove it{said}.")
    raise ConfigError(f"ajet {option} is of the earlier AgentJet. Run: {_todays(given, services)}{said}")


def _refuse_in_run(words: Sequence[str]) -> None:
    """The same for a switch after ``ajet run JOB.yaml``."""
    given = {word.partition("=")[0]: "" for word in words}
    switch = next((option for option in given if option in _SWITCHES), None)
    if switch is None:
        return
    services = [name for option, name in _SERVICES.items() if option in given]
    command = ["ajet", "run", *(word for word in words if word.partition("=")[0] not in _SWITCHES)]
    for name in ("ray", *services) if any(option in given for option in _RAY) else services:
        command += ["--with", name]
    raise ConfigError(
        f"ajet run {switch} is of the earlier AgentJet. Run: {shlex.join(command)}{_said(given, services)}"
    )


def _said(given: Mapping[str, str], services: Sequence[str]) -> str:
    """What takes the place of options, in brackets; empty if nothing needs a word."""
    notes = []
    if "--kill" in given or "--autokill" in given:
        notes.append("AgentJet ends what it has started, so there is nothing to kill")
    if "--with-logview" in given:
        notes.append("`ajet studio` shows runs in a browser")
    if services:
        notes.append(
            f"declare {' and '.join(services)} under `services` in the job (`ajet docs environments#services`)"
        )
    return f" ({'; '.join(notes)})" if notes else ""


def _parse(arguments: Sequence[str]) -> Mapping[str, str]:
    """Option -> its value, or nothing for a switch."""
    given: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        option, equals, value = word.partition("=")
        given[option] = value if equals or option not in _WITH_VALUES else next(words, "")
    return given


def _todays(given: Mapping[str, str], services: Sequence[str]) -> str:
    job, first = given.get("--conf") or "job.yaml", ""
    if _is_earlier_file(job):
        first, job = f"{shlex.join(['ajet', 'config', 'from-earlier', job])} > job.yaml && ", "job.yaml"
    backbone = given.get("--backbone") or "verl"
    command = ["ajet", "run", job, "--backbone", backbone]
    # Trinity starts Ray itself, and debug needs none.
    named = ["ray"] if backbone == "verl" and any(option in given for option in _RAY) else []
    for name in (*named, *services):
        command += ["--with", name]
    tags = given.get("--db") or given.get("--debug")
    if tags:
        command += ["--break", tags.replace("|", ",")]
    if given.get("--exp-dir"):
        command += ["--set", f"run.dir={given['--exp-dir']}"]
    return first + shlex.join(command)


def _is_earlier_file(name: str) -> bool:
    from ajet.interfaces.helpers import read_yaml
    from ajet_migrate.earlier.job_file import section_of

    path = Path(name)
    try:
        return path.is_file() and section_of(read_yaml(path)) is not None
    except ConfigError:
        # `ajet run` says what is wrong with the file.
        return False
