"""Questions of the Berkeley Function Calling Leaderboard (BFCL v4), ``simple_python`` and ``multiple``, from its own package.

The two categories share questions, word for word, and the functions that answer them. The parts are therefore chosen by a hash
of the function that is the answer: what is held out is asked in no other part, and its functions are the answer in none.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ajet import Task
from ajet.interfaces.reader import Reader
from ajet.types import ConfigError

INSTALL = "pip install --no-deps bfcl-eval==2026.3.23"
CATEGORIES = ("simple_python", "multiple")
LEFT_OUT = ""
"""Among the right values of an argument: it may be left out."""
Part = Literal["held_out", "examples", "training"]


class Questions(Reader):
    """Questions for reinforcement learning, or with ``held_out`` those that are in no other part."""

    name = "bfcl"
    count: int | None = Field(None, ge=1, description="How many questions; default: all of the part.")
    seed: int = Field(0, description="A different seed takes the questions of the part in a different order.")
    held_out: bool = Field(False, description="Take the held-out questions.")

    def tasks(self) -> list[Task]:
        """See `Reader.tasks`. Raises ConfigError if bfcl-eval is not installed."""
        found = questions("held_out" if self.held_out else "training")
        random.Random(self.seed).shuffle(found)
        return found[: self.count]


def questions(part: Part) -> list[Task]:
    """All questions of a part, in the benchmark's order. Raises ConfigError if bfcl-eval is not installed."""
    return [task for category in CATEGORIES for task in _read(category) if part_of(task) == part]


def part_of(task: Task) -> Part:
    """A quarter of the functions is held out, a quarter is for examples of calls."""
    (function,) = task.metadata["answer"]
    share = int(hashlib.sha256(function.encode()).hexdigest()[:8], 16) / 2**32
    return "held_out" if share < 0.25 else "examples" if share < 0.5 else "training"


def gold(task: Task) -> str:
    """The call that answers a question: the first of the right values, and no argument that may be left out."""
    ((function, arguments),) = task.metadata["answer"].items()
    required = next(f["parameters"]["required"] for f in task.metadata["functions"] if f["name"] == function)
    needed = {name: _first(v) for name, v in arguments.items() if name in required or LEFT_OUT not in v}
    return f"{function}({', '.join(f'{name}={value!r}' for name, value in needed.items())})"


def _first(values: list[Any]) -> Any:
    """The first of the right values. Those of a dictionary are lists of right values, too."""
    return _plain(next(value for value in values if value != LEFT_OUT))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _first(values) for name, values in value.items() if LEFT_OUT not in values}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _read(category: str) -> Iterator[Task]:
    data = _data()
    answers = {line["id"]: line["ground_truth"] for line in _lines(data / "possible_answer", category)}
    for line in _lines(data, category):
        ((message,),) = line["question"]
        (answer,) = answers[line["id"]]
        metadata = {"category": category, "functions": line["function"], "answer": answer}
        yield Task(line["id"], message["content"], metadata=metadata)


def _lines(folder: Path, category: str) -> Iterator[Mapping[str, Any]]:
    text = (folder / f"BFCL_v4_{category}.json").read_text(encoding="utf-8")
    return map(json.loads, text.splitlines())


def _data() -> Path:
    spec = importlib.util.find_spec("bfcl_eval")  # imports nothing
    if spec is None or spec.origin is None:
        raise ConfigError("task.reader", f"bfcl-eval is not installed: {INSTALL}")
    return Path(spec.origin).parent / "data"
