"""The rules of alarms, each with a threshold and a remedy.

A rule is a function of what has been recorded, so a run folder's metrics tell its alarms again, on every backbone. Thresholds
were chosen so that the recorded runs of examples that learn raise no alarm (`tests/learning/recorded`), and planted faults do;
docs/alarms.md has them as a table.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ajet.learning.alarm_history import FIRST, RECENT, History, apart, episodes, whole
from ajet.types import Metrics
from ajet.utils.statistics import wilson

GROUPS = 40
"""Groups, the last ones, in which the share of those with signal is counted."""
USUAL = 50
"""Steps before those whose time is the usual one."""


@dataclass(frozen=True, slots=True)
class AlarmRule:
    """``holds`` says what is wrong; "" if nothing is."""

    holds: Callable[[History], str]
    remedy: str


def _collapse(h: History) -> str:
    return h.collapse.found()


def _reward_fell(h: History) -> str:
    now = h.reward(h.steps[-RECENT:])
    if not (h.shuffled and h.compared and now and h.best) or h.collapse.found():
        return ""
    lost = h.best[0] - now[0]
    if lost < 0.5 * (h.best[0] - h.low) or -apart(now, h.best) < 4:
        return ""
    return f"the reward has fallen from {h.best[0]:.3g} to {now[0]:.3g}"


def _no_signal(h: History) -> str:
    groups = equal = 0.0
    for count, step in enumerate(reversed(h.steps)):
        if count >= RECENT and groups >= GROUPS:
            break
        groups += step.get("groups", 0) + _skipped(step)
        equal += step.get("groups_zero_advantage", 0) * step.get("groups", 0) + _skipped(step)
    if len(h.steps) < RECENT or groups < GROUPS or wilson(equal / groups, groups)[1] <= 0.9:
        return ""
    if h.collapse.found() or h.learned():  # what it has learned, it need not learn
        return ""
    if h.low == h.high not in (0, 1):
        why = f"the judge gives every episode the reward {h.low:g}"
    elif h.level() >= 0.9:
        why = "the tasks are solved already"
    else:
        why = "the tasks are too hard, or the model always does the same"
    return f"{equal:.0f} of the last {groups:.0f} groups have equal rewards, so nothing is learned: {why}"


def _skipped(step: Metrics) -> float:
    return step.get("groups_skipped", 0.0) if step.get("groups_zero_advantage", 0.0) < 1 else 0.0


def _entropy_collapse(h: History) -> str:
    first, now, equal = h.first("sampled_entropy"), h.now("sampled_entropy"), h.now("groups_zero_advantage")
    if first is None or now is None or now >= 0.1 * first or (equal or 0) < 0.8:
        return ""
    if h.learned() or h.level() >= 0.9:
        return ""
    return f"the entropy has fallen from {first:.3g} to {now:.3g} nats a token, so the model explores no more"


def _entropy_explosion(h: History) -> str:
    pair = h.both("sampled_entropy")
    if not pair or pair[1] < max(3 * pair[0], pair[0] + 0.5) or h.rise() >= 2:
        return ""
    return f"the entropy has risen from {pair[0]:.3g} to {pair[1]:.3g} nats a token, and the reward has not"


def _length_explosion(h: History) -> str:
    pair = h.both("answer_tokens")
    if not pair or pair[1] < max(3 * pair[0], pair[0] + 16) or h.rise() >= 2:
        return ""
    return f"answers have grown from {pair[0]:.0f} to {pair[1]:.0f} tokens, and the reward has not"


def _length_collapse(h: History) -> str:
    pair = h.both("answer_tokens")
    if not pair or pair[1] > min(pair[0] / 3, pair[0] - 8) or h.rise() >= 1:
        return ""
    return f"answers have shrunk from {pair[0]:.0f} to {pair[1]:.0f} tokens, and the reward has not risen"


def _repetition(h: History) -> str:
    pair = h.both("repetition")
    if not pair or pair[1] < max(0.3, pair[0] + 0.2):
        return ""
    return f"{pair[1]:.0%} of the sequences of 4 tokens repeat earlier ones of their answer, at the beginning {pair[0]:.0%}"


def _cut_answers(h: History) -> str:
    share = h.share("episodes_cut", whole)
    cut = [s["reward_cut"] for s in h.steps[-RECENT:] if "reward_cut" in s]
    if share is None or share < 0.3 or not cut:
        return ""
    if statistics.fmean(cut) > h.low + 0.1 * (h.high - h.low):
        return ""
    return f"{share:.0%} of the episodes have an answer that ended at its length, and they get the reward {statistics.fmean(cut):.3g}"


def _failed_episodes(h: History) -> str:
    share = h.share("episodes_failed", episodes)
    if share is None or share < 0.2:
        return ""
    causes: dict[str, float] = {}
    for step in h.steps[-RECENT:]:
        for name, count in step.items():
            if name.startswith("failed/"):
                causes[name.removeprefix("failed/")] = causes.get(name.removeprefix("failed/"), 0) + count
    most = f", most by {max(causes, key=causes.__getitem__)}" if causes else ""
    return f"{share:.0%} of the episodes fail{most}"


def _logprob_gap(h: History) -> str:
    gap = h.steps[-1].get("logprob_diff_mean", 0.0)
    own = h.on_policy and not h.steps[-1].get("staleness")
    if not (own or len(h.steps) == 1) or h.corrected or gap <= 0.1:
        return ""
    return f"the trainer's logprobs of sampled tokens differ from the engine's by {gap:.2f} on average, so every update is off-policy"


def _ratio_drift(h: History) -> str:
    gap = h.now("logprob_diff_mean")
    if h.on_policy or h.corrected or gap is None or gap <= 0.3:
        return ""
    return (
        f"ratios have drifted: logprobs of sampled tokens differ from the trainer's by {gap:.2f} on average"
    )


def _kl_drift(h: History) -> str:
    now = h.now("reference_kl")
    if now is None or now <= 1 or h.rise() >= 2:
        return ""
    return f"the model is {now:.2f} nats a token from the reference, and the reward has not risen"


def _stale(h: History) -> str:
    dropped, age = h.share("episodes_stale", episodes), h.now("staleness")
    if dropped is not None and dropped >= 0.5:
        return f"{dropped:.0%} of the episodes are dropped because older weights sampled them"
    if age is not None and age >= 4 and not h.corrected:
        return f"tokens are trained {age:.0f} weight versions after they were sampled"
    return ""


def _slow(h: History) -> str:
    before, recent = h.steps[1:-RECENT][-USUAL:], h.steps[-RECENT:]  # the first step warms up
    seconds = [s.get("seconds_rollout", 0) + s.get("seconds_update", 0) for s in (*before, *recent)]
    speeds = [s.get("tokens_per_second", 0.0) for s in (*before, *recent)]
    if len(before) < RECENT or not all(seconds) or not all(speeds):
        return ""
    usual, speed = statistics.median(seconds[:-RECENT]), statistics.median(speeds[:-RECENT])
    now, slowest = min(seconds[-RECENT:]), max(speeds[-RECENT:])
    if now < 3 * usual or slowest > speed / 3:
        return ""
    return f"each of the last {RECENT} steps took {now / usual:.0f} times as long as usual ({usual:.1f} s)"


def _judges_disagree(h: History) -> str:
    """The gap between judge and second judge has grown, the reward has risen, and less than half of that is confirmed."""
    names = ("reward", "judge/check_reward", "judge/check_gap", "judge/checked")
    pairs = [pair for name in names if (pair := h.both(name))]
    if len(pairs) < len(names) or h.rise() < 3:
        return ""
    (r0, r1), (c0, c1), (g0, g1), (n0, n1) = pairs
    parts = ((h.steps[:FIRST], n0), (h.steps[-RECENT:], n1))
    checked = [(steps, sum(map(whole, steps)) * max(share, 1e-9)) for steps, share in parts]
    error = math.sqrt(sum(statistics.fmean(s["reward_std"] ** 2 for s in steps) / n for steps, n in checked))
    rose, confirmed = r1 - r0, c1 - c0
    if g1 - g0 < 4 * error or confirmed >= rose / 2:
        return ""
    return f"the reward has risen by {rose:.3g}, and that of the second judge by {confirmed:.3g}"


def _overfitting(h: History) -> str:
    means = [
        (step, (m["reward"], m.get("reward_std", 0.0) ** 2 / max(m.get("episodes", 1), 1)))
        for step, m in h.validations
        if "reward" in m
    ]
    if len(means) < 3:
        return ""
    at, best = max(means[:-1], key=lambda one: one[1][0])
    then, now = h.reward(h.steps[max(at - RECENT, 0) : at]), h.reward(h.steps[-RECENT:])
    fell = -apart(means[-1][1], best)
    if at == 0 or fell < 3 or then is None or now is None or now[0] <= then[0]:
        return ""
    return f"the validation reward has fallen from {best[0]:.3g} (step {at}) to {means[-1][1][0]:.3g}, while that of training rose"


_LOWER = "Lower train.learning_rate, or set train.kl"
STEP_RULES: Mapping[str, AlarmRule] = {
    "collapse": AlarmRule(_collapse, "Stop the run if it stays so, and lower train.learning_rate"),
    "reward_fell": AlarmRule(_reward_fell, f"{_LOWER}; go on from an earlier checkpoint"),
    "failed_episodes": AlarmRule(_failed_episodes, "`ajet show` has their causes and remedies"),
    "cut_answers": AlarmRule(
        _cut_answers,
        "Show the model a short answer in the prompt, or raise the agent's max_tokens or rollout.sampling.max_tokens",
    ),
    "judges_disagree": AlarmRule(
        _judges_disagree,
        "The judge may be cheated: read episodes (`ajet show`), and run `ajet forecast --attack`",
    ),
    "no_signal": AlarmRule(_no_signal, "Use tasks that succeed sometimes, or task.selector: difficulty"),
    "entropy_collapse": AlarmRule(
        _entropy_collapse, "Set train.entropy, use dapo, or lower train.learning_rate"
    ),
    "entropy_explosion": AlarmRule(_entropy_explosion, f"{_LOWER}, or lower train.entropy"),
    "length_explosion": AlarmRule(
        _length_explosion, "Use dr_grpo or dapo, and bound rollout.sampling.max_tokens"
    ),
    "length_collapse": AlarmRule(_length_collapse, f"{_LOWER}; read episodes (`ajet show`)"),
    "repetition": AlarmRule(_repetition, f"{_LOWER}; let the judge refuse answers that repeat themselves"),
    "logprob_gap": AlarmRule(
        _logprob_gap,
        "Set train.correction=truncated, or let both compute in the same type "
        "(`ajet docs algorithms#what-a-job-can-add-to-any-algorithm`)",
    ),
    "ratio_drift": AlarmRule(_ratio_drift, "Set train.correction=truncated or a lower train.max_staleness"),
    "kl_drift": AlarmRule(_kl_drift, "Raise train.kl, or lower train.learning_rate"),
    "stale": AlarmRule(
        _stale, "Lower rollout.oversample, raise train.max_staleness, or set train.correction=truncated"
    ),
    "slow": AlarmRule(
        _slow, "Look at the machine and the agent's services; `ajet show` has the time of each episode"
    ),
}
RUINS = frozenset(
    {"collapse", "reward_fell", "entropy_explosion", "length_collapse", "repetition", "kl_drift"}
)
"""Rules by which training itself has ruined the model."""
VALIDATION_RULES: Mapping[str, AlarmRule] = {
    "overfitting": AlarmRule(
        _overfitting, "Use more tasks, fewer steps, or train.keep_best; take the checkpoint of then"
    ),
}
