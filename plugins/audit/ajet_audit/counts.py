"""How many episodes and groups a step has by the job, and what metrics.jsonl says of them."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from ajet_audit.files import Folder
from ajet_audit.journal import JournalEntry, JournalEpisode

Told = Callable[[str], None]
DIVERGED = "diverged"
"""The failure of a fork that did other things than its parent; it does not count as a failed episode."""
_TRAINED = re.compile(r"(\d+)\.(\d+)/(.*)/(\d+)", re.DOTALL)


def named(entry: JournalEntry, line: Mapping[str, Any], *, is_verl: bool, is_loop: bool) -> str:
    """How an episode's id contradicts its line; empty if it does not. An id has the step, the place of its group there, the
    task and the number in the group; verl may train an episode in a later step, and a loop of the user's as well."""
    if entry.phase != "train":
        belongs = entry.id.startswith(f"{entry.phase}@{entry.step}/")
        return "" if belongs else f"it is in the journal as one of {entry.phase} at step {entry.step}"
    match = _TRAINED.fullmatch(entry.id)
    if match is None:
        return "it is in the journal as one that was trained"
    step, _, task, member = match.groups()
    if (task, int(member)) != (line["task"], line["member"]):
        return f"the journal has it as number {line['member']} of task {line['task']}"
    if int(step) != entry.step and is_loop and not is_verl:
        return f"the journal has it as one of step {entry.step}"
    return ""


def wrong_groups(
    folder: Folder, groups: Mapping[str, Sequence[JournalEpisode]], numbers: Mapping[str, int], wrong: Told
) -> None:
    """Name what groups of a step are not as the job has them. ``groups`` are the complete ones by name, ``numbers`` those of the
    episodes in the batch."""
    fork, size = folder.setting("rollout.fork"), folder.setting("rollout.group_size", 8)
    roots = (fork.get("roots") or max(size // 2, 1)) if fork else size
    for name, members in groups.items():
        independent = [e for e in members if "fork" not in e.line or e.is_steered]
        recorded = sorted(e.line["member"] for e in independent)
        if (
            len(
                {
                    (fork.get("parent"), fork.get("calls"))
                    for e in independent
                    for fork in [e.line.get("fork", {})]
                }
            )
            > 1
        ):
            wrong(f"group {name}: its episodes do not all begin with the same calls")
        if recorded != list(range(roots)):
            wrong(f"group {name}: the journal has {len(recorded)} of its {roots} episodes")
        forks = sorted(e.line["member"] for e in members if e not in independent)
        if forks != list(range(roots, roots + len(forks))):
            wrong(f"group {name}: a fork is missing in the journal")
        if forks and not fork:
            wrong(f"group {name}: it has forks, but the job has no rollout.fork")
    wanted = folder.setting("train.batch_size", 8)
    if len(groups) != wanted if folder.setting("train.dynamic_sampling", 1) == 1 else len(groups) < wanted:
        wrong(f"it has {len(groups)} groups, but train.batch_size is {wanted}")
    for name, number in numbers.items():
        if (parts := _TRAINED.fullmatch(name)) and int(parts[2]) != number:
            wrong(f"episode {name}: it counts in group {number}")


def figures(episode: JournalEpisode) -> dict[str, Any]:
    """What `wrong_metrics` needs of an episode."""
    line = episode.line
    kept = {name: line.get(name) for name in ("failure", "reward", "is_success", "counters", "fork")}
    kept["steered"] = episode.is_steered
    causes = [broken["cause"] for broken in line.get("breaks", ())]
    return {**kept, "breaks": causes, "sampled": episode.sampled()}


def wrong_metrics(metrics: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]], wrong: Told) -> None:
    """Name what a line of metrics.jsonl says that differs from its episodes, which are what `figures` gives."""
    for name, value in _summed(episodes).items():
        said = metrics.get(name, 0.0)
        if not math.isclose(said, value, rel_tol=1e-6, abs_tol=1e-9):
            wrong(f"metrics.jsonl says {name} {said:g}, but the journal gives {value:g}")


def _summed(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    independent = [line for line in lines if not line["fork"]]
    steered = [line for line in lines if line["steered"]]
    judged = [line for line in independent if not line["failure"]]
    rewards, verdicts = [line["reward"] for line in judged], [line["is_success"] for line in judged]
    sums: dict[str, float] = {
        "episodes": len(lines),
        "episodes_failed": sum(line["failure"] not in (None, DIVERGED) for line in lines),
        "tokens_sampled": sum(line["sampled"] for line in lines),
        "tokens_failed": sum(line["sampled"] for line in lines if line["failure"]),
        "forks": len(lines) - len(independent) - len(steered),
        "forks_diverged": sum(line["failure"] == DIVERGED and not line["steered"] for line in lines),
        "steered": len(steered),
        "steered_diverged": sum(line["failure"] == DIVERGED for line in steered),
    }
    if steered:
        sums["steered_calls"] = fmean(line["fork"]["calls"] for line in steered)
        if rewarded := [line["reward"] for line in steered if not line["failure"]]:
            sums["steered_reward"] = fmean(rewarded)
    if rewards:
        sums |= {"reward": fmean(rewards), "reward_std": pstdev(rewards)}
        sums |= {"reward_min": min(rewards), "reward_max": max(rewards)}
    if any(verdict is not None for verdict in verdicts):
        sums["accuracy"] = sum(map(bool, verdicts)) / len(independent)
    breaks = Counter(cause for line in lines for cause in line["breaks"])
    sums |= {"breaks": breaks.total(), **{f"breaks/{cause}": count for cause, count in breaks.items()}}
    failures = Counter(line["failure"] for line in lines if line["failure"] not in (None, DIVERGED))
    sums |= {f"failed/{cause}": count for cause, count in failures.items()}
    counters: Counter[str] = sum((Counter(line["counters"]) for line in lines), Counter())
    return sums | {f"calls/{name}": count for name, count in counters.items()}


def shares(groups: Sequence[int], parts: int, seed: str) -> list[Collection[int]]:
    """The groups of each mini-batch: a seeded choice, of nearly equal size."""
    numbers = list(groups)
    random.Random(seed).shuffle(numbers)
    parts = min(parts, len(numbers))
    return [set(numbers[i::parts]) for i in range(parts)]
