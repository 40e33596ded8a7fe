"""Problems of reasoning-gym that need a program: common divisors, common multiples, bits."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Mapping
from typing import Any

from ajet import JudgeOutput, Task
from ajet.interfaces.reader import DrawnReader

DATASETS: dict[str, dict[str, Any]] = {
    "gcd": {},
    "lcm": {},
    "count_bits": {"min_n": 1000, "max_n": 99_999},
}
"""Data set -> its options."""


def draw(rng: random.Random, *, held_out: bool = False) -> dict[str, Any]:
    """A problem as reasoning-gym gives it, either for training or held out. Its answer is hard to guess: it has at least two
    digits and is not a number of the question."""
    import reasoning_gym

    name = rng.choice(list(DATASETS))
    while True:
        dataset = reasoning_gym.create_dataset(name, size=1, seed=rng.randrange(2**31), **DATASETS[name])
        entry: dict[str, Any] = dataset[0]
        answer, problem = entry["answer"], problem_id(entry)
        if len(answer) > 1 and answer not in problem.split("-") and is_held_out(problem) == held_out:
            return entry


def problem_id(entry: Mapping[str, Any]) -> str:
    """The data set and the numbers of a problem."""
    return "-".join([kind(entry), *re.findall(r"\d+", entry["question"])])


def is_held_out(problem: str) -> bool:
    """Whether a problem is kept for validation, by a hash of its id: a quarter of all are."""
    return zlib.crc32(problem.encode()) % 4 == 0


def kind(entry: Mapping[str, Any]) -> str:
    """The name of a problem's data set."""
    return str(entry["metadata"]["source_dataset"])


def judge(task: Any, output: Any) -> JudgeOutput:
    """reasoning-gym's score of the answer."""
    from reasoning_gym import get_score_answer_fn

    entry = task.metadata["entry"]
    score = float(get_score_answer_fn(kind(entry))(str(output.response), entry))
    return JudgeOutput(score, score == 1.0)


class Problems(DrawnReader):
    """Distinct problems: either only held-out ones, or none of them."""

    name = "problems"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        entry = draw(rng, held_out=self.held_out)
        kept = {"answer": entry["answer"], "metadata": {"source_dataset": kind(entry)}}
        return Task(problem_id(entry), entry["question"], metadata={"entry": kept})
