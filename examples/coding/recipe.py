"""The untrained programmer: it knows the shell, but often repairs wrongly and without running the test."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent import SYSTEM, TOOL
from repairs import MODULES, WORDS, draw

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript, tool_call

TEST = "python test.py"
WRONG = 0.7
"""Share of its repairs that are wrong."""
UNTESTED = 0.6
"""Share of its repairs after which it does not run the test."""
STUBBORN = 0.7
"""Share of the failed tests after which it stops."""


def tested(files: Mapping[str, str]) -> str:
    """What the test of a repository prints."""
    code = "".join(files.values())
    printed: list[str] = []
    try:
        exec(re.sub("(?m)^from .*", "", code), {"print": printed.append})
    except SystemExit as error:
        return str(error)
    return printed[0]


def mistake(rng: random.Random, wrong: str, right: str) -> str:
    """A wrong replacement of what is wrong, of the same kind."""
    kind = next(k for k in ("123456789", "+-*", (" + 1", " - 1")) if wrong in k)
    return rng.choice([text for text in kind if text not in (wrong, right)])


def session(rng: random.Random, wrong: float, untested: float, stubborn: float) -> Transcript:
    """The agent's messages for a repository: with these probabilities, its first repair is wrong, it does not run the test after a
    repair, and it stops after a failed test."""
    repair = draw(rng)
    module, files = f"{repair.module}.py", dict(repair.files)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": repair.query},
    ]

    def shell(command: str, result: str) -> None:
        messages.append(tool_call("shell", {"command": command}))
        messages.append({"role": "tool", "tool_call_id": "call_0", "content": result})

    name, old, right = repair.fix
    shell(f"cat {module} limits.py; {TEST}", files[module] + files["limits.py"] + tested(files))
    for mistaken in (rng.random() < wrong, False):
        new = mistake(rng, old, right) if mistaken else right
        files[name] = "\n".join(line.replace(old, new, 1) for line in files[name].split("\n"))
        edit, old = f"sed -i 's/{old}/{new}/' {name}", new
        if rng.random() < untested:
            shell(edit, "exit 0")
            break
        result = tested(files)
        shell(f"{edit}; {TEST}", result)
        if result == "passed" or rng.random() < stubborn:
            break
    messages.append({"role": "assistant", "content": "Done."})
    return Transcript(messages, (TOOL,), (repair.id,))


def careful(rng: random.Random) -> Transcript:
    """A session that ends with the right repair, often after a wrong one."""
    return session(rng, 0.4, 0.0, 0.0)


def careless(rng: random.Random) -> Transcript:
    """A session of the untrained programmer."""
    return session(rng, WRONG, UNTESTED, STUBBORN)


def echo(rng: random.Random) -> Transcript:
    """Practice in copying names, numbers and commands."""
    repair = draw(rng)
    words = " ".join(rng.choice([*WORDS, *MODULES, str(rng.randrange(10))]) for _ in range(8))
    text = rng.choice(["sed -i 's/{1}/{2}/' {0}".format(*repair.fix), words, words])
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return Transcript(messages, tasks=(repair.id,))


class Programmer(TinyRecipe):
    """A programmer that knows the shell, but is careless."""

    name = "coder"
    vocabulary = 640
    context_length = 768

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (careful, careless, echo) for _ in range(100))

    def phases(self) -> Sequence[Phase]:
        """Copying, careful repairs, habits."""
        return (
            Phase("copy", 300, 2e-3, echo, 2),
            Phase("repairs", 240, 2e-3, echo, 8, careful, batch_size=16),
            Phase("habits", 50, 1e-3, careful, 4, careless, batch_size=16),
        )
