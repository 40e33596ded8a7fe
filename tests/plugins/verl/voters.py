"""An agent program of 1 to 9 agents: each solves the sum for itself, and the share of those who are right is the reward."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import ajet

sys.path.append(str(Path(__file__).parents[3] / "examples" / "math"))
import agent  # type: ignore[import-not-found]


def voters(task: Any) -> int:
    """How many agents a task gets: a function of the task, so that groups are of one size."""
    return 1 + sum(map(ord, task.id)) % 9


async def run(task: Any) -> ajet.WorkflowOutput:
    """Ask all voters at once."""

    async def vote(number: int) -> str:
        with ajet.label(agent=f"voter{number}"):
            answer: str = await agent.run(task)
            return answer

    votes = await asyncio.gather(*(vote(number) for number in range(voters(task))))
    right = [vote.strip() == str(task.metadata["answer"]) for vote in votes]
    return ajet.WorkflowOutput(reward=sum(right) / len(right), is_success=sum(right) * 2 > len(right))
