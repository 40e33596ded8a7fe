"""What the figures of a run mean, in words."""

from __future__ import annotations

from ajet.reports.run_summary import MEANINGS
from ajet.tracker.breaks import CAUSES

METRICS = {
    "reward": "mean reward of the judged episodes",
    "reward_std": "standard deviation of the rewards",
    "reward_min": "lowest reward",
    "reward_max": "highest reward",
    "reward_cut": "mean reward of the episodes with an answer that ended at its length",
    "accuracy": "share of the episodes that succeeded; failed episodes count as those that did not",
    "episodes": "episodes of the step",
    "rated": "replies of the version that have a reward",
    "episodes_cut": "judged episodes with an answer that ended at its length",
    "episodes_failed": "episodes that failed after their last attempt",
    "episodes_zero_advantage": "share of the episodes whose advantage is zero, so that they teach nothing",
    "forks": "episodes that were run again from one of their calls",
    "forks_diverged": "forks that asked something else than their parents, so that they were discarded",
    "steered": "episodes that began with calls of an earlier episode",
    "steered_diverged": "of these, those that asked something else than that episode, so that they were discarded",
    "steered_calls": "mean number of calls with which they began",
    "steered_reward": "their mean reward; it is not in `reward`",
    "steered_accuracy": "share of them that succeeded",
    "groups_steered": "groups of the step that began with calls of an earlier episode",
    "groups": "groups of the step",
    "groups_zero_advantage": "share of the groups in which no token has an advantage, as with equal rewards: they teach nothing",
    "answer_tokens": "mean tokens of the answers to train",
    "answers_cut": "share of these answers that ended at their length",
    "sampled_entropy": "mean of -logprob over their tokens, in nats: an estimate of the policy's entropy",
    "repetition": "share of their sequences of 4 tokens that occur earlier in the same answer",
    "calls_per_episode": "LLM calls that an episode made on average",
    "timelines_per_episode": "timelines that an episode became on average; 1 if no conversation broke",
    "merge_ratio": "tokens of the timelines, divided by those that their calls would have one by one; below 1 where calls share",
    "tokens_sampled": "tokens that the engine sampled",
    "tokens_per_second": "tokens sampled in each second of the rollout",
    "tokens_trained": "sampled tokens with an advantage other than zero",
    "tokens_zero_advantage": "sampled tokens whose advantage is zero",
    "breaks": "places where a call could not continue its conversation",
    "loss": "the training loss",
    "grad_norm": "norm of the gradient before clipping",
    "optimizer_steps": "steps that the optimizer took",
    "learning_rate": "learning rate of the last optimizer step",
    "logprob_diff_max": "greatest difference between the engine's and the trainer's logprob of a token",
    "logprob_diff_mean": "mean difference between the engine's and the trainer's logprobs of the tokens",
    "reference_kl": "KL divergence from the reference model",
    "weight_version": "number of publishes up to this step",
    "staleness": "updates between the weights that sampled a token and those that learn from it",
    "seconds_rollout": "seconds in which the episodes ran",
    "seconds_update": "seconds of the update",
    "seconds_checkpoint": "seconds that the update waited for a checkpoint that was still being written",
    "unmatched_reward_names": "names in `rewards` that are neither an agent nor a target of the episode",
}
_FAMILIES = {
    "alarm": "1 on steps that have this alarm (`ajet docs alarms`)",
    "failed": "episodes that failed with this cause",
    "dropped": "sampled tokens that this policy left untrained",
    "judge": "mean of a metric that the judge or the workflow gave",
    "loss": "the training loss of this target",
    "grad_norm": "norm of this target's gradient before clipping",
}


def explain_metric(name: str) -> str:
    """What a metric means; empty if it is not one of the core's."""
    family, _, rest = name.partition("/")
    if not rest:
        return METRICS.get(name, "")
    if family == "calls":
        return explain_counter(rest)
    if family == "breaks":
        return f"breaks with this cause. {CAUSES.get(rest, '')}".strip()
    return _FAMILIES.get(family, "")


def explain_counter(name: str) -> str:
    """What a counter of an episode means; empty if it is not one of the core's."""
    return MEANINGS.get(name.partition(":")[0], "")
