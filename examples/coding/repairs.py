"""Small repositories, each with one bug that its test shows."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Any

from ajet import Task
from ajet.interfaces.reader import DrawnReader

MODULES = ("farm", "shop", "park", "ship")
FUNCTIONS = {"area": "*", "cost": "*", "total": "+", "both": "+", "rest": "-", "gap": "-"}
"""The function of a module -> what it computes of its two parameters."""
WORDS = ("width", "height", "price", "count", "speed", "hours", "rate", "size")
TEST = """\
from {module} import {function}
from limits import room

try:
    assert {function}({x}, {y}) == {expected}, f"{function}({x}, {y}) is {{{function}({x}, {y})}}, not {expected}"
    assert room(0) == {limit}, f"room(0) is {{room(0)}}, not {limit}"
except Exception as error:
    raise SystemExit(f"{{type(error).__name__}}: {{error}}")
print("passed")
"""


@dataclass(frozen=True)
class Repair:
    """A repository with a bug. Its module has a function of two parameters, `limits.py` a constant."""

    module: str
    function: str
    names: tuple[str, str]
    numbers: tuple[int, int]
    """The arguments in the test."""
    limit: int
    bug: str
    """What is wrong: the operator (``+``), something added (`` + 1``), or the constant (``7``)."""

    @property
    def id(self) -> str:
        """All that distinguishes it from others."""
        shown = (self.module, self.function, *self.names, *self.numbers, self.limit, self.bug)
        return "_".join(map(str, shown))

    @property
    def fix(self) -> tuple[str, str, str]:
        """The file with the bug, what is wrong in it, and what is right."""
        if self.bug.isdecimal():
            return "limits.py", self.bug, str(self.limit)
        return f"{self.module}.py", self.bug, FUNCTIONS[self.function] if len(self.bug) == 1 else ""

    @property
    def right_files(self) -> dict[str, str]:
        """The repository without the bug."""
        x, y = self.numbers
        about = {"module": self.module, "function": self.function, "limit": self.limit, "x": x, "y": y}
        expression = f" {FUNCTIONS[self.function]} ".join(self.names)
        return {
            f"{self.module}.py": f"def {self.function}({', '.join(self.names)}):\n    return {expression}\n",
            "limits.py": f"LIMIT = {self.limit}\n\ndef room(used):\n    return LIMIT - used\n",
            "test.py": TEST.format(**about, expected=self.value(x, y)),
        }

    @property
    def files(self) -> dict[str, str]:
        """The repository."""
        name, wrong, right = self.fix
        text = self.right_files[name]
        return self.right_files | {name: text.replace(right, wrong) if right else f"{text[:-1]}{wrong}\n"}

    @property
    def query(self) -> str:
        """What the agent is asked."""
        return f"python test.py fails. Files: {' '.join(self.files)}"

    def value(self, x: int, y: int) -> int:
        """What the function must return."""
        return {"*": x * y, "+": x + y, "-": x - y}[FUNCTIONS[self.function]]

    @property
    def tests(self) -> list[dict[str, Any]]:
        """What the judge tests: calls that the agent has not seen, with their results."""
        rng = random.Random(self.id)
        cases = [(rng.randrange(2, 50), rng.randrange(2, 50)) for _ in range(3)]
        return [
            *(
                {"call": f"__import__('{self.module}').{self.function}{case}", "result": self.value(*case)}
                for case in cases
            ),
            *({"call": f"__import__('limits').room({x})", "result": self.limit - x} for x, _ in cases),
        ]


def draw(rng: random.Random, *, held_out: bool = False) -> Repair:
    """A repository, either for training or held out."""
    while True:
        function = rng.choice(list(FUNCTIONS))
        y, x = sorted(rng.sample(range(2, 10), 2))
        limit, other = rng.sample(range(1, 10), 2)
        operator = rng.choice([o for o in "+-*" if o != FUNCTIONS[function]])
        bug = rng.choice([operator, rng.choice([" + 1", " - 1"]), str(other)])
        a, b = rng.sample(WORDS, 2)
        repair = Repair(rng.choice(MODULES), function, (a, b), (x, y), limit, bug)
        if is_held_out(repair.id) == held_out:
            return repair


def is_held_out(repair: str) -> bool:
    """Whether a repository is kept for validation, by a hash of its id: a quarter of all are."""
    return zlib.crc32(repair.encode()) % 4 == 0


class Repairs(DrawnReader):
    """Distinct repositories: either only held-out ones, or none of them."""

    name = "repairs"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        repair = draw(rng, held_out=self.held_out)
        return Task(repair.id, repair.query, metadata={"files": repair.files, "tests": repair.tests})
