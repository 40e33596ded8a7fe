"""What Trinity must know of an algorithm whose advantages and loss are AgentJet's."""

from __future__ import annotations

from typing import Any

from trinity.algorithm.algorithm import AlgorithmType


class Given(AlgorithmType):
    """Rows bring their advantages. Trinity neither computes nor reorders anything."""

    use_critic = False
    use_reference = False
    compute_advantage_in_trainer = False
    can_balance_batch = False
    schema = "experience"

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return {"kl_penalty_fn": "none", "kl_loss_fn": "none", "entropy_loss_fn": "none"}


class GivenWithReference(Given):
    """Trinity also computes the logprobs of the initial weights."""

    use_reference = True
