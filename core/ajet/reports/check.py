"""What `ajet check` found, as a page of text."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from textwrap import shorten

from ajet.job.job import Job
from ajet.reports.episode import break_report
from ajet.reports.text import describe_break
from ajet.reports.token_text import TokenText
from ajet.runs.check import Report, spread
from ajet.tracker.record import sampled
from ajet.utils.terminal import readable, table

MOST_PRINTED = 20
"""Lines of what an episode has printed."""


def page(job: Job, report: Report) -> str:
    """The report as one page of text."""
    merged, episodes = report.merging, report.episodes
    failed = sum(e.failure is not None for e in episodes)
    calls = sum(report.agents.values())
    answers = [len(c.generation.token_ids) for e in episodes for c in e.record.calls]
    n = len(episodes)
    faults = {"malformed_tool_calls": 0, **report.faults}
    told = ", ".join(f"{count} {_named(name)}" for name, count in faults.items())
    rows = [
        ("episodes", f"{n} run in {report.seconds:.1f} s, {failed} failed"),
        ("reward", f"{spread(report.rewards)}{_accuracy(report)}"),
        (
            "calls captured",
            f"{calls}, {calls / n:.1f} an episode; by agent: {', '.join(f'{a} {k}' for a, k in report.agents.items()) or 'none'}",
        ),
        (
            "answers",
            f"{spread(answers)} tokens; {report.cut} cut off by the length limit, {told}",
        ),
        (
            "longest call",
            f"{report.longest} of {report.context_length} tokens"
            if report.context_length < sys.maxsize
            else f"{report.longest} tokens",
        ),
        ("timelines", f"{merged.timelines / n:.1f} an episode, at most {merged.most_timelines}"),
        (
            "training tokens",
            f"{merged.timeline_tokens} in {merged.timelines} timelines, {merged.trained_tokens} of them trained",
        ),
        (
            "  one row per call",
            f"{merged.call_tokens} in {merged.calls} rows: "
            f"merging leaves {_share(merged.timeline_tokens, merged.call_tokens)}",
        ),
        (
            "  as token trees",
            f"{merged.tree_tokens}, the bound: {_share(merged.tree_tokens, merged.call_tokens)}",
        ),
        (
            "zero advantage",
            f"{report.equal_groups} of {report.groups} groups have equal rewards",
        ),
    ]
    if report.differs is not None:
        why = f"no: {report.differs}; rollout.fork would discard its forks" if report.differs else "yes"
        rows.append(("repeats itself", why))
    rows += report.rows
    if report.memory:
        rows.append(
            (
                "memory of programs",
                f"at most {report.memory >> 20} MiB an episode, so {report.memory * report.concurrency / 2**30:.1f} GiB for "
                f"{report.concurrency} at once",
            )
        )
    for name, count in report.overridden.items():
        value = getattr(job.config.rollout.sampling, name, "its own stream")
        rows.append(
            (f"{name}", f"the agent sets it in {count} calls; training uses {value} (eval keeps the agent's)")
        )
    for policy, tokens in report.dropped.items():
        rows.append(("dropped", f"{tokens} sampled tokens by {policy}"))
    parts = ["\n".join([f"ajet check · {job.workflow.spec} · {job.model}", *report.chat_format.lines()])]
    parts += [table(rows), _breaks(report), *_side_calls(report), *_printed(report)]
    parts.append("\n".join(f"! {what}\n  -> {remedy}" for what, remedy in report.warnings) or "no warnings")
    first = episodes[0].plan.id if episodes else ""
    parts.append("Timelines, trees and breaks: `ajet docs tracker`.")
    show = shlex.join(["ajet", "show", str(report.run_dir)])
    parts.append(table([("the whole run", show), ("one episode", f"{show} {first and shlex.quote(first)}")]))
    return "\n\n".join(parts)


def _breaks(report: Report) -> str:
    """One example of each cause, with the difference in characters and tokens."""
    if not report.merging.calls:
        return "breaks: none, as no call is trained."
    if not report.breaks:
        return "breaks: none. Every call that could continue a conversation did."
    text_of = TokenText(report.run_dir)
    examples = {b.cause: (episode, b) for episode, b in reversed(report.breaks)}
    lines = [f"{len(report.breaks)} calls started a new timeline; one of each kind:"]
    for episode, b in examples.values():
        lines += ["", f"in episode {episode.plan.id}", describe_break(break_report(b, text_of)).plain]
    return "\n".join(lines)


def _side_calls(report: Report) -> Iterator[str]:
    """What is answered and not trained, with the first words of one answer of each kind."""
    if report.side_calls:
        lines = ["side calls are answered and not trained (rollout.side_calls: train trains them):"]
        for (agent, model), calls in report.side_calls.items():
            first = calls[0].answer.message.get("content") if calls[0].answer else calls[0].said
            words = shorten(str(first or ""), 60, placeholder=" …")
            lines.append(
                f"  {len(calls)} of agent {agent}, model {model or 'unnamed'}: {sampled(calls)} tokens, such as {words!r}"
            )
        yield "\n".join(lines)


def _printed(report: Report) -> Iterator[str]:
    """What one episode printed, one that failed if there is any."""
    printing = sorted((e for e in report.episodes if e.printed.text), key=lambda e: e.failure is None)
    if printing:
        lines = readable(printing[0].printed.text).splitlines()
        last = f", the last {MOST_PRINTED} of its {len(lines)} lines" if len(lines) > MOST_PRINTED else ""
        head = f"printed by {printing[0].id}{last}; {len(printing)} of {len(report.episodes)} episodes print:"
        yield "\n  ".join([head, *lines[-MOST_PRINTED:]])


def _named(fault: str) -> str:
    return "unreadable tool calls" if fault == "malformed_tool_calls" else fault.replace("_", " ")


def _accuracy(report: Report) -> str:
    verdicts = [e.is_success for e in report.episodes if e.is_success is not None]
    return f"; {sum(verdicts)} of {len(verdicts)} succeeded" if verdicts else ""


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%} of it" if whole else "nothing"
