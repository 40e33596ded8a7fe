"""Nearest names, for errors about misspelt ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OF_TRL = {
    "beta": "kl",
    "eval_dataset": "validation",
    "max_completion_length": "max_tokens",
    "max_prompt_length": "context_length",
    "max_steps": "steps",
    "num_generations": "group_size",
    "per_device_train_batch_size": "batch_size",
    "reward_funcs": "judge",
    "train_dataset": "tasks",
}
"""Names of TRL's trainers, and the last parts of ours."""


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` without its question mark, or nothing when no name is near."""
    match = nearest_name(word, known)
    return f"; did you mean {match!r}" if match else ""


def nearest_name(word: str, known: Iterable[str]) -> str:
    """The name that ``word`` most likely means: TRL's name for it, one that it abbreviates, such as ``learning_rate`` for ``lr``,
    else one with almost the same spelling; "" if none is near. The last part of a dotted name may be abbreviated."""
    names = list(known)
    if meant := OF_TRL.get(word.rpartition(".")[2]):
        return next((name for name in names if name.rpartition(".")[2] == meant), "")
    longer = [name for name in names if _abbreviates(word, name)]
    matches = difflib.get_close_matches(word, longer or names, n=1, cutoff=0.0 if longer else 0.6)
    return matches[0] if matches else ""


def _abbreviates(word: str, name: str) -> bool:
    last = name.rpartition(".")[2]
    parts = last.split("_")
    initials = "".join(part[:1] for part in parts) if len(parts) > 1 else ""
    return word == initials or (len(word) >= 3 and last.startswith(word))
