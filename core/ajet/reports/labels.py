"""The labels of a report, shared by the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from ajet.reports.episode import ChatLine, EpisodeReport
from ajet.reports.run_summary import Count, RunSummary, StepRow


def run_labels(summary: RunSummary) -> list[tuple[str, str]]:
    """The run's folder, job and state, by name."""
    phases = ", ".join(f"{n} {phase}" for phase, n in summary.episodes.items()) or "none has ended yet"
    job = [
        ("job", f"{summary.workflow}, {summary.algorithm} on {summary.backbone}"),
        ("model", summary.model),
    ]
    return [
        ("run", summary.run),
        *([("name", summary.name)] if summary.name else []),
        *([("tags", ", ".join(summary.tags))] if summary.tags else []),
        *(job if summary.model else []),
        ("state", _state(summary)),
        ("checkpoint", summary.checkpoint or "none"),
        ("episodes", phases + (f"; {summary.retried} of them retried" if summary.retried else "")),
    ]


def _by_name(figures: Mapping[str, float], form: str) -> str:
    """The figures, each preceded by the name of its agent or target, if it has one."""
    return ", ".join(f"{name} {value:{form}}".strip() for name, value in figures.items())


def episode_labels(report: EpisodeReport) -> list[tuple[str, str]]:
    """The outcome of an episode, by name."""
    h = report.header
    verdict = {True: "success", False: "no success", None: ""}[h.is_success]
    group = ", ".join("failed" if r is None else f"{r:g}" for r in h.rewards_of_group)
    labels = [
        ("episode", h.id),
        ("task", f"{h.task}, member {h.member}, {h.phase} at step {h.step}"),
        ("failure", f"{h.failure}: {' '.join(h.error.split())}" if h.failure else ""),
        ("reward", "" if h.failure else f"{h.reward:g}" + (f" ({verdict})" if verdict else "")),
        ("rewards", _by_name(h.rewards, "g")),
        ("advantage", _by_name(h.advantages, "+.4f")),
        ("rewards of group", group if len(h.rewards_of_group) > 1 else ""),
        ("metrics", ", ".join(f"{name} {value:g}" for name, value in h.metrics.items())),
        ("counters", ", ".join(f"{name} {n}" for name, n in h.counters.items() if n)),
        ("attempt", f"{h.attempt + 1}" if h.attempt else ""),
        ("time", f"{h.seconds:.2f} s"),
        ("calls", str(h.calls)),
        ("timelines", f"{h.timelines}, {h.timelines_trained} of them trained" if h.timelines else ""),
        ("response", "" if h.response is None else shortened(" ".join(str(h.response).split()), 200)),
    ]
    return [(name, value) for name, value in labels if value]


def ago(seconds: float) -> str:
    """``12 s``, ``3 min``, ``5 h`` or ``2 days``."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _state(summary: RunSummary) -> str:
    written = f"last episode written {ago(summary.age)} ago" if summary.episodes else ""
    trains = summary.steps or "train" in summary.episodes
    wanted = f" of {summary.steps_wanted}" if summary.steps_wanted else ""
    done = f"step {summary.steps}{wanted} done" if trains else "nothing is trained"
    state = f"{summary.state.name}: {summary.state.why}" if summary.state.why else summary.state.name
    return "; ".join(part for part in (state, done, written) if part)


def step_table(rows: Sequence[StepRow], validates: str) -> list[Sequence[str]]:
    """A table of the columns that are not empty."""
    columns = [
        ("step", [str(row.step) for row in rows]),
        ("reward", [number(row.reward) for row in rows]),
        ("accuracy", [number(row.accuracy) for row in rows]),
        ("zero-adv", ["" if r.zero_advantage is None else f"{r.zero_advantage:.0%}" for r in rows]),
        ("failed", [str(row.failed or "") for row in rows]),
        (f"validation {validates}", [number(row.validation) for row in rows]),
        ("greedy", [number(row.greedy) for row in rows]),
    ]
    if not any(row.reward is not None for row in rows):
        columns.append(("loss", [number(row.loss) for row in rows]))
    used = [(name, cells) for name, cells in columns if any(cells)]
    return [[name for name, _ in used], *zip(*(cells for _, cells in used), strict=True)]


def number(value: float | None) -> str:
    """Three decimals, or nothing."""
    return "" if value is None else f"{value:.3f}"


def counted(summary: RunSummary) -> list[tuple[str, Sequence[Count]]]:
    """What happened how often, by title."""
    titled = ("failures", summary.failures), ("counters", summary.counters), ("breaks", summary.breaks)
    return [(title, counts) for title, counts in titled if counts]


def folds(chat: Sequence[ChatLine], everything: bool) -> Iterator[tuple[str, Sequence[ChatLine]]]:
    """The messages of a chat in their order; in the place of those that are not repeated, the words that say where they were shown."""
    for folded, group in groupby(chat, lambda line: line.same_as is not None and not everything):
        lines = list(group)
        if not folded:
            yield "", lines
            continue
        first, last = lines[0].number, lines[-1].number
        few = f"message {first}" if first == last else f"messages {first}–{last}"
        yield f"{few} as in {lines[0].same_as}", ()


def who(line: ChatLine) -> str:
    """The place of a message, its author and its call."""
    call = f"call {line.call}{', replayed' if line.replayed else ''}" if line.call is not None else ""
    return f"{line.number}  " + " · ".join(part for part in (line.role, line.name, call, line.agent) if part)


def shortened(text: str, most: int) -> str:
    """Beginning and end of a text that is too long."""
    if len(text) <= most:
        return text
    head, tail = text[: most * 3 // 4], text[-most // 4 :]
    return f"{head} … {len(text) - len(head) - len(tail)} characters … {tail}"
