"""Command lines of the earlier AgentJet, as today's: ``ajet --conf FILE --backbone verl --with-ray``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ajet import ConfigError
from ajet.cli import run_program
from ajet.utils.terminal import tell

_WITH_VALUES = ("--conf", "--backbone", "--exp-dir", "--debug", "--db", "--kill", "--prefix")
_SERVICES = {
    f"--with-{name}": name for name in ("appworld", "deepfinance", "webshop", "bfcl", "crafters", "logview")
}
_RAY = ("--with-ray", "--with-ray-cluster")
_SWITCHES = (*_SERVICES, *_RAY, "--reboot", "--skip-check-avail-gpu", "--autokill")


def run_earlier(arguments: Sequence[str]) -> None:
    """Print and run today's command if the arguments of ``ajet`` begin with an option of the earlier form, or are those of
    ``ajet run`` with one of its switches. Raises SystemExit with the exit code, and ConfigError for what names no job."""
    if arguments and arguments[0] == "run":
        option = next((word for word in arguments[1:] if word in _SWITCHES), "")
        words = [word for word in arguments[1:] if word not in _SWITCHES]
        given: Mapping[str, str] = dict.fromkeys(arguments[1:], "")
    else:
        option = arguments[0].partition("=")[0] if arguments else ""
        given = _parse(arguments)
        words = _words(given)
    if option not in (*_WITH_VALUES, *_SWITCHES):
        return
    killed = "--kill" in given or "--autokill" in given
    said = " (AgentJet ends what it has started, so there is nothing to kill)" if killed else ""
    for name in _services(given, words):
        words += ["--with", name]
        if name == "logview" and given.get("--exp-dir"):
            words += ["--set", f"services.logview.folder={given['--exp-dir']}"]
    command = shlex.join(["ajet", "run", *words])
    if arguments[0] != "run" and "--conf" not in given:
        if any(switch in given for switch in (*_SERVICES, *_RAY)):
            raise ConfigError(f"ajet {option} is of the earlier AgentJet. Run: {command}{said}")
        raise ConfigError(f"ajet {option} is of the earlier AgentJet; remove it{said}.")
    tell(f"ajet {option} is of the earlier AgentJet. This runs: {command}{said}")
    raise SystemExit(run_program(["run", *words]))


def _services(given: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """The services of the switches. Trinity starts Ray itself, and only verl needs one."""
    other = "--backbone" in words and words[words.index("--backbone") + 1] != "verl"
    ray = ["ray"] if any(option in given for option in _RAY) and not other else []
    return [*ray, *(name for switch, name in _SERVICES.items() if switch in given)]


def _parse(arguments: Sequence[str]) -> Mapping[str, str]:
    """Option -> its value, or nothing for a switch."""
    given: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        option, equals, value = word.partition("=")
        given[option] = value if equals or option not in _WITH_VALUES else next(words, "")
    return given


def _words(given: Mapping[str, str]) -> list[str]:
    """The arguments of ``ajet run``, without services."""
    words = [given.get("--conf") or "job.yaml", "--backbone", given.get("--backbone") or "verl"]
    tags = given.get("--db") or given.get("--debug")
    if tags:
        words += ["--break", tags.replace("|", ",")]
    if given.get("--exp-dir"):
        words += ["--set", f"run.dir={given['--exp-dir']}"]
    return words
