"""The README's agent of ten lines, from wheels, in an empty environment: minutes, megabytes, and the reward before and after training.

    make wheels && python bench/from_wheels.py

Nothing is taken from the clone but the wheels in dist/ and the README's text. The last line is one JSON object; the exit code
is 1 if a limit is missed: 120 MiB for the core with its dependencies, 50 ms for `import ajet`, 0.5 s for `ajet --help` (on
idle cores), and a reward that rises by 0.3.
"""

from __future__ import annotations

import json
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "tools")]

from wheels_alone import Environment  # noqa: E402

from tests.pages import files, page  # noqa: E402

LIMITS = {"core_megabytes": 120, "import_ms": 50, "help_seconds": 0.5}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = core(Environment(Path(folder)))
    with tempfile.TemporaryDirectory() as folder:
        found |= ten_lines(Environment(Path(folder)))
    print(json.dumps(found))
    missed = [f"{name} {found[name]} > {limit}" for name, limit in LIMITS.items() if found[name] > limit]
    if found["reward_after"] - found["reward_before"] < 0.3:
        missed.append("the reward did not rise by 0.3")
    sys.exit("; ".join(missed) or 0)


def core(environment: Environment) -> dict[str, float]:
    """Size and speed of the core alone."""
    environment.install("--compile-bytecode", "ajet")
    return {
        "core_megabytes": round(environment.megabytes(), 1),
        "import_ms": round(
            1000
            * (fastest(environment, "python", "-c", "import ajet") - fastest(environment, "python", "-c", ""))
        ),
        "help_seconds": round(fastest(environment, "ajet", "--help"), 2),
    }


def fastest(environment: Environment, *command: str, times: int = 10) -> float:
    """CPU seconds of a program, the least of several runs: other work on the machine matters less to it than elapsed time."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment.run(*command)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(seconds() for _ in range(times))


def ten_lines(environment: Environment) -> dict[str, float]:
    """Install what the README names, write its two files and run its two commands."""
    install, *commands = commands_of(page("README.md"))
    installing, _ = timed(
        lambda: environment.install(*install.removeprefix("pip install ").replace('"', "").split())
    )
    megabytes = environment.megabytes()
    for name, text in files(page("README.md")).items():
        (environment.folder / name).write_text(text, encoding="utf-8")
    running = 0.0
    for command in commands:
        print(f"$ {command}", flush=True)
        seconds, output = timed(lambda command=command: environment.run(*command.split()))
        print(output, flush=True)
        running += seconds
    # Those of the second command: the names are times.
    metrics = max(environment.folder.glob("runs/*/metrics.jsonl"))
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    rewards = [line["reward"] for line in lines if line["type"] == "train"]
    return {
        "install_minutes": round(installing / 60, 2),
        "megabytes": round(megabytes),
        "train_minutes": round(running / 60, 1),
        "reward_before": round(statistics.mean(rewards[:3]), 2),
        "reward_after": round(statistics.mean(rewards[-3:]), 2),
    }


def timed(act: Callable[[], str | None]) -> tuple[float, str | None]:
    """Elapsed seconds of an action, and its result."""
    started = time.monotonic()
    result = act()
    return time.monotonic() - started, result


def commands_of(text: str) -> list[str]:
    """`pip install ...`, then the two `ajet run ...` of "Your own agent in ten lines"."""
    section = text.partition("## Your own agent in ten lines")[2].partition("\n## ")[0]
    return re.findall(r"^((?:pip install|ajet run) .*)$", section, re.MULTILINE)


if __name__ == "__main__":
    main()
