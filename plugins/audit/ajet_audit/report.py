"""The result of an audit as text, and as one JSON object."""

from __future__ import annotations

import json

from ajet.utils.terminal import table
from ajet_audit.steps import Audit

SHOWN = 50
"""Faults that are printed."""
RULES = {
    "after_the_last_checkpoint": "their step is not in the newest weights",
    "done_again": "a resumed run did their step again",
    "equal_rewards": "their group was replaced: train.dynamic_sampling",
    "failed": "their episode failed",
    "frozen": "their target is not trained",
    "greedy": "rollout.sampling.temperature is 0",
    "max_timelines": "train.max_timelines",
    "no_credit": "advantage 0, as with equal rewards",
    "not_in_batch": "the backbone did not use them, and does not say why",
    "not_received": "no client got the answer",
    "not_recorded": "the backbone does not say whether they were trained",
    "over_long_rows": "their timeline was too long: backbone.verl.long_rows",
    "oversampled": "their group was not needed: rollout.oversample",
    "retried_attempts": "their attempt failed, and another one followed",
    "side_calls": "calls beside the agent's work: rollout.side_calls, or a target with train: false",
    "stale": "train.max_staleness",
    "validation": "validation, not training",
}
"""What the rules mean; others are filters of the job."""


def describe(audit: Audit) -> str:
    """The table, what could not be checked, and the faults, a line each."""
    rows = [("trained", f"{audit.trained:,}", "once each, in the context in which they were sampled")]
    rows += [
        (rule, f"{count:,}", RULES.get(rule, "a filter of the job"))
        for rule, count in sorted(audit.excluded.items())
        if count
    ]
    first = audit.notes[:1] if audit.is_verl else []
    steps = f"{len(audit.folder.steps)} step{'s' if len(audit.folder.steps) != 1 else ''}"
    lines = [
        *(f"not checked: {note}" for note in first),
        f"{audit.folder.path.name}: {steps}, {audit.calls:,} calls, {audit.sampled:,} sampled tokens",
        "",
    ]
    lines.append(table(rows))
    if audit.unused:
        episode, numbers = next(iter(audit.unused.items()))
        lines += [
            "",
            f"used by no later call: {sum(map(len, audit.unused.values()))} answers, {audit.unused_tokens:,} trained tokens, such as "
            f"{'call' if len(numbers) == 1 else 'calls'} {', '.join(map(str, numbers))} of {episode}; "
            "train.filters: [unused_branches] leaves them out",
        ]
    notes = audit.notes[len(first) :]
    lines += ["", *(f"not checked: {note}" for note in notes)] if notes else []
    lines += ["", *(f"unexplained: {fault}" for fault in audit.faults[:SHOWN] or ["nothing"])]
    if len(audit.faults) > SHOWN:
        lines.append(f"… and {len(audit.faults) - SHOWN:,} more")
    return "\n".join(lines)


def as_json(audit: Audit) -> str:
    """One JSON object, on one line."""
    return json.dumps(
        {
            "calls": audit.calls,
            "sampled_tokens": audit.sampled,
            "trained_tokens": audit.trained,
            "excluded": {rule: count for rule, count in sorted(audit.excluded.items()) if count},
            "unused_branches": {
                "calls": sum(map(len, audit.unused.values())),
                "trained_tokens": audit.unused_tokens,
            },
            "unexplained": len(audit.faults),
            "steps": len(audit.folder.steps),
            "sha256": audit.folder.hashes,
        }
    )
