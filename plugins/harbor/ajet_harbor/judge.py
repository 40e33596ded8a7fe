"""The reward that Harbor's verifier gave a trial."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet.interfaces.workflow import WorkflowFailed

KEY = "reward"
"""The name under which a verifier that writes a single number is read by Harbor."""


class HarborJudge(Judge):
    """Takes the rewards that Harbor's verifier wrote."""

    name = "harbor"

    weights: dict[str, float] = Field(
        {},
        description="How much each of the verifier's rewards counts, by name; default: only its `reward`, or the one it has.",
    )
    success: float = Field(1.0, description="The reward from which on an episode has succeeded.")

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        """See `Judge.judge`. The verifier's other rewards are metrics."""
        returned = output.response
        rewards = returned.get("rewards") if isinstance(returned, Mapping) else None
        if not rewards:
            raise WorkflowFailed(
                "no_trial",
                "the judge harbor reads the results of the workflow harbor; name that in `workflow`",
            )
        reward = weighed(rewards, self.weights)
        parts = {name: value for name, value in rewards.items() if name != KEY}
        return JudgeOutput(reward, reward >= self.success, {**output.metrics, **parts})


def weighed(rewards: Mapping[str, float], weights: Mapping[str, float] | None = None) -> float:
    """The sum of the rewards that the weights name. Raises WorkflowFailed for one that the verifier did not give."""
    chosen = weights or {next(iter(rewards)) if len(rewards) == 1 else KEY: 1.0}
    if missing := sorted(chosen.keys() - rewards.keys()):
        raise WorkflowFailed(
            "no_reward",
            f"the verifier gave no {missing[0]!r}, but {', '.join(map(repr, sorted(rewards)))}; say what counts: "
            "judge: {type: harbor, weights: {NAME: 1}}",
        )
    return sum(weight * rewards[name] for name, weight in chosen.items())
