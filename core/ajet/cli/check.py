"""``ajet check``: run a few episodes without training and explain what would happen in training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.options import JobFile, JudgeName, Seed, Sets, Tasks, With, Workflow, flag

if TYPE_CHECKING:
    from ajet.job.job import Job
    from ajet.runs.check import Report


def check(
    job_file: JobFile = None,
    workflow: Workflow = None,
    tasks: Tasks = None,
    judge: JudgeName = None,
    model: Annotated[
        str | None, typer.Option(help="Folder, Hugging Face id, or a recipe: `starter` or recipe.py:Name.")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Answers to use instead of the model's: a YAML list of rules with `say` or `call`, and `turn`, the "
            "number of the call in its episode, from 0.",
        ),
    ] = None,
    context_length: Annotated[
        int | None,
        typer.Option(metavar="N", help="Maximum tokens of a call with --answers; default: no limit.", min=1),
    ] = None,
    task_count: Annotated[
        int, typer.Option("--first", metavar="N", help="Run the first N tasks.", min=1)
    ] = 4,
    group_size: Annotated[
        int, typer.Option(help="Episodes per task, in place of rollout.group_size.", min=1)
    ] = 4,
    seed: Seed = None,
    with_: With = None,
    sets: Sets = None,
) -> None:
    """Run a few episodes without training: what is captured, what merges, what breaks and why.

    Exit code 0: at least one episode was run and judged; 1: all episodes failed; 2: the job is wrong.
    """
    from ajet.cli.layers import services
    from ajet.cli.progress import make_progress
    from ajet.interfaces.progress import reporting_to
    from ajet.job.layers import import_from_here
    from ajet.job.prepare import prepare
    from ajet.runs.arguments import check_layers, checking_engine, require_answers
    from ajet.runs.check import check as run_check

    require_answers(flag, answers, context_length)
    layers = check_layers(
        flag, job_file, workflow=workflow, tasks=tasks, judge=judge, model=model, seed=seed, sets=sets
    )
    import_from_here()
    with services(layers, with_), make_progress() as progress, reporting_to(progress):
        job = prepare(layers).with_progress(progress)
        engine = checking_engine(job, answers, context_length)
        report = run_check(job, engine, tasks=task_count, group_size=group_size)
    print(page(job, report))
    if all(episode.failure is not None for episode in report.episodes):
        raise typer.Exit(1)


def page(job: Job, report: Report) -> str:
    """The report as one page of text."""
    from ajet.cli.table import table
    from ajet.runs.check import spread

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
    for name, count in report.overridden.items():
        value = getattr(job.config.rollout.sampling, name, "its own stream")
        rows.append(
            (f"{name}", f"the agent sets it in {count} calls; training uses {value} (eval keeps the agent's)")
        )
    for policy, tokens in report.dropped.items():
        rows.append(("dropped", f"{tokens} sampled tokens by {policy}"))
    parts = ["\n".join([f"ajet check · {job.workflow.spec} · {job.model}", *report.chat_format.lines()])]
    parts += [table(rows), _breaks(report)]
    parts.append("\n".join(f"! {what}\n  -> {remedy}" for what, remedy in report.warnings) or "no warnings")
    first = episodes[0].plan.id if episodes else ""
    parts.append(
        "Timelines, trees and breaks: see “The context tracker” in the documentation (docs/tracker.md)."
    )
    next_ = [
        ("the whole run", f"ajet show {report.run_dir}"),
        ("one episode", f"ajet show {report.run_dir} {first}"),
    ]
    parts.append(table(next_))
    return "\n\n".join(parts)


def _breaks(report: Report) -> str:
    """One example of each cause, with the difference in characters and tokens."""
    from ajet.cli.show_text import describe_break
    from ajet.reports.episode import break_report
    from ajet.reports.token_text import TokenText

    if not report.breaks:
        return "breaks: none. Every call that could continue a conversation did."
    text_of = TokenText(report.run_dir)
    examples = {b.cause: (episode, b) for episode, b in reversed(report.breaks)}
    lines = [f"{len(report.breaks)} calls started a new timeline; one of each kind:"]
    for episode, b in examples.values():
        lines += ["", f"in episode {episode.plan.id}", describe_break(break_report(b, text_of)).plain]
    return "\n".join(lines)


def _named(fault: str) -> str:
    return "unreadable tool calls" if fault == "malformed_tool_calls" else fault.replace("_", " ")


def _accuracy(report: Report) -> str:
    verdicts = [e.is_success for e in report.episodes if e.is_success is not None]
    return f"; {sum(verdicts)} of {len(verdicts)} succeeded" if verdicts else ""


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%} of it" if whole else "nothing"
