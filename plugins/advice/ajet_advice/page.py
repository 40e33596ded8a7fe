"""What `ajet forecast` found, as a page of text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from ajet import Job
from ajet.runs.check import spread, warnings_of
from ajet.utils.terminal import table
from ajet.utils.wilson import Interval
from ajet_advice.forecast.figures import ForecastFigures


def page(job: Job, found: ForecastFigures) -> str:
    """The forecast as one page of text."""
    report = found.report
    failed = sum(e.failure is not None for e in report.episodes)
    answers = [len(c.generation.token_ids) for e in report.episodes for c in e.record.calls]
    rows = [
        (
            "episodes",
            f"{len(report.episodes)} of {found.tasks} tasks in {report.seconds:.0f} s, {failed} failed",
        ),
        ("reward", _interval(found.reward) if found.reward else "none"),
        *((f"pass@{k}", _percent(share)) for k, share in found.pass_at.items()),
        *((f"signal, groups of {size}", _percent(share)) for size, share in found.signal.items()),
        ("tasks", f"{found.always} always solved, {found.never} never, of {found.tasks}"),
    ]
    if found.judge:
        noise = found.judge
        rows.append(
            (
                "judge",
                f"judged again, {noise.changed} of {noise.judged} outputs get another reward; its noise is {noise.share:.0%} of the "
                "differences within groups",
            )
        )
    if found.gradient:
        rows.append(("gradient", _gradient(found)))
    rows += [
        ("answers", f"{spread(answers)} tokens, {report.cut} of {len(answers)} cut off by the length limit"),
        ("a step", _step(found)),
        ("steps", _steps(found, job.config.train.learning_rate)),
    ]
    if found.run.steps:
        where = "on the GPUs, without agents and judges" if found.gpus else "here"
        rows.append(("the run", f"{found.run.steps} steps {where}: {found.run}"))
    parts = [f"ajet forecast · {job.workflow.spec} · {job.model}", table(rows, most=110)]
    parts.append("\n".join(_verdict(found)))
    if found.suggestions:
        parts.append(
            "\n".join(["worth a try:", *(f"  {setting}\n    {why}" for setting, why in found.suggestions)])
        )
    if more := warnings_of(report):
        parts.append("\n".join(f"! {what}\n  -> {remedy}" for what, remedy in more))
    parts.append(
        table(
            [
                ("every episode", shlex.join(["ajet", "show", str(report.run_dir)])),
                ("what it means", "ajet docs alarms"),
            ]
        )
    )
    return "\n\n".join(parts)


def _verdict(found: ForecastFigures) -> Iterator[str]:
    if not found.causes:
        yield "Nothing was found that would keep this job from learning."
    for name, what, remedy in found.causes:
        yield f"! {name}: {what}\n  -> {remedy}"
    if found.holes == []:
        yield "No text was found that the judge rewards without a solution."


def _gradient(found: ForecastFigures) -> str:
    gradient = found.gradient
    assert gradient
    if not math.isfinite(gradient.noise_scale):
        return f"no common direction in {gradient.groups} groups: noise hides it"
    return (
        f"signal equals noise at about {gradient.noise_scale:.0f} groups; signal to noise of a step is about "
        f"{gradient.signal_to_noise:.1f}"
    )


def _step(found: ForecastFigures) -> str:
    what = "it takes" if found.probe else "its episodes take"
    told = f"about {found.step_tokens:,.0f} sampled tokens; {what} about {found.step_seconds:.0f} s here"
    if found.gpus:
        told += (
            f"; on the GPUs {found.gpus['low']:.0f} to {found.gpus['high']:.0f} s, without agents and judges"
        )
    return told


def _steps(found: ForecastFigures, rate: float) -> str:
    if not found.steps:
        return "no estimate"
    middle, low, high = found.steps
    unit, seconds = ("minutes", 60) if middle * found.step_seconds < 2 * 3600 else ("hours", 3600)
    each = found.step_seconds / seconds
    why = (
        f"by {len(found.probe.rates)} steps that were trained"
        if found.probe
        else "as 9 of 10 runs of the examples"
    )
    return (
        f"about {middle:.0f} to {found.target:.0%} ({low:.0f} to {high:.0f}, {why}) with train.learning_rate {rate:g}"
        f"{'' if found.probe else ' if that suits the model'}, {middle * each:.1f} {unit} here ({low * each:.1f} to {high * each:.1f})"
    )


def _interval(found: Interval) -> str:
    return f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})"


def _percent(found: Interval) -> str:
    return f"{found[0]:.0%} ({found[1]:.0%} to {found[2]:.0%})"
