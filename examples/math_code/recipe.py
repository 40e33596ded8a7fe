"""The untrained programmer: it writes valid Python, but often the wrong program, and ignores errors."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent import SYSTEM, python
from problems import draw, kind, problem_id

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript, tool_call

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": python.name,
            "description": python.description,
            "parameters": python.params_json_schema,
            "strict": python.strict_json_schema,
        },
    },
)
"""The agent's tool, as the model sees it."""
HASTY = 0.3
"""Share of the problems that it answers without a program, with the last number of the question."""
WRONG = 0.75
"""Share of its programs that are the wrong ones."""
STUBBORN = 0.7
"""Share of the errors after which it answers, with the last number of the question."""


def program(entry: Mapping[str, Any]) -> str:
    """A program that prints the answer."""
    given = entry["metadata"]
    match kind(entry):
        case "gcd" | "lcm" as function:
            return f"import math\nprint(math.{function}({', '.join(map(str, given['numbers']))}))"
        case _:
            return f"print(bin({given['number']}).count('1'))"


def wrong(entry: Mapping[str, Any]) -> tuple[str, str]:
    """A program with a typical mistake, and what it prints: no import, or the ones of the decimal number."""
    given, right = entry["metadata"], program(entry)
    match kind(entry):
        case "gcd" | "lcm":
            return right.removeprefix("import math\n"), no_import()
        case _:
            return right.replace("bin", "str"), str(str(given["number"]).count("1"))


def no_import() -> str:
    """The tool's result for a program that has not imported `math`."""
    try:
        exec("math.gcd(1, 2)", {})
    except NameError as error:
        return f"exit 1: {traceback.format_exception_only(error)[-1].strip()}"
    raise AssertionError


def session(
    rng: random.Random, entry: Mapping[str, Any], hasty: float, mistaken: float, stubborn: float
) -> Transcript:
    """The agent's messages for a problem: with these probabilities, it answers without a program, its first program is the
    wrong one, and it answers after an error. Such an answer is the question's last number."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": entry["question"]},
    ]
    answer = problem_id(entry).split("-")[-1]
    programs = [] if rng.random() < hasty else [(program(entry), entry["answer"])]
    if programs and rng.random() < mistaken:
        programs.insert(0, wrong(entry))
        if programs[0][1] != no_import() or rng.random() < stubborn:
            programs.pop()
    for code, printed in programs:
        messages += [
            tool_call(python.name, {"code": code}),
            {"role": "tool", "tool_call_id": "call_0", "content": printed},
        ]
        answer = printed if printed.isdecimal() else answer
    messages.append({"role": "assistant", "content": answer})
    return Transcript(messages, TOOLS, (problem_id(entry),))


def careful(rng: random.Random) -> Transcript:
    """A session with the right program, often after an error that is corrected."""
    entry = draw(rng)
    return session(rng, entry, 0.0, 0.5 if kind(entry) in ("gcd", "lcm") else 0.0, 0.0)


def careless(rng: random.Random) -> Transcript:
    """A session of the untrained programmer."""
    return session(rng, draw(rng), HASTY, WRONG, STUBBORN)


def echo(rng: random.Random) -> Transcript:
    """Practice in copying numbers and programs."""
    entry = draw(rng)
    numbers = " ".join(str(rng.randrange(10 ** rng.randint(2, 5))) for _ in range(5))
    text = rng.choice([program(entry), numbers, numbers])
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return Transcript(messages, tasks=(problem_id(entry),))


class Programmer(TinyRecipe):
    """A programmer that writes valid Python, but mostly the wrong program."""

    name = "programmer"
    vocabulary = 768
    context_length = 768

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (careful, careless, echo) for _ in range(100))

    def phases(self) -> Sequence[Phase]:
        """Copying, right programs, habits."""
        return (
            Phase("copy", 320, 2e-3, echo, 2),
            Phase("programs", 200, 2e-3, echo, 8, careful),
            Phase("habits", 60, 1e-3, careful, 4, careless),
        )
