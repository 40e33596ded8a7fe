"""What `ajet forecast` found, as a page of text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from ajet import Job
from ajet.runs.check import spread, warnings_of
from ajet.utils.statistics import Interval
from ajet.utils.terminal import table
from ajet_advice.forecast.figures import ForecastFigures


def page(job: Job, forecast: ForecastFigures) -> str:
    """The forecast as one page of text."""
    report = forecast.report
    failed = sum(e.failure is not None for e in report.episodes)
    answers = [len(c.generation.token_ids) for e in report.episodes for c in e.record.calls]
    rows = [
        (
            "episodes",
            f"{len(report.episodes)} of {forecast.tasks} tasks in {report.seconds:.0f} s, {failed} failed",
        ),
        ("reward", _interval(forecast.reward) if forecast.reward else "none"),
        *((f"pass@{k}", _percent(share)) for k, share in forecast.pass_at.items()),
        *((f"signal, groups of {size}", _percent(share)) for size, share in forecast.signal.items()),
    ]
    if forecast.pass_at:
        rows.append(
            ("tasks", f"{forecast.always} always solved, {forecast.never} never, of {forecast.tasks}")
        )
    if forecast.judge:
        noise = forecast.judge
        rows.append(
            (
                "judge",
                f"judged again, {noise.changed} of {noise.judged} outputs get another reward; its noise is {noise.share:.0%} of the "
                "differences within groups",
            )
        )
    if forecast.gradient:
        rows.append(("gradient", _gradient(forecast)))
    rows += [
        ("answers", f"{spread(answers)} tokens, {report.cut} of {len(answers)} cut off by the length limit"),
        ("a step", _step(forecast)),
        ("steps", _steps(forecast, job.config.train.learning_rate)),
    ]
    if forecast.run.steps:
        where = "on the GPUs, without agents and judges" if forecast.gpus else _here(forecast)
        rows.append(("the run", f"{forecast.run.steps} steps {where}: {forecast.run}"))
    parts = [f"ajet forecast · {job.workflow.spec} · {job.model}", table(rows, most=110)]
    parts.append("\n".join(_verdict(forecast)))
    if forecast.suggestions:
        parts.append(
            "\n".join(["worth a try:", *(f"  {setting}\n    {why}" for setting, why in forecast.suggestions)])
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


def _verdict(forecast: ForecastFigures) -> Iterator[str]:
    if not forecast.causes:
        yield "Nothing was found that would keep this job from learning."
    for name, what, remedy in forecast.causes:
        yield f"! {name}: {what}\n  -> {remedy}"
    if forecast.holes == []:
        yield "No text was found that the judge rewards without a solution."


def _gradient(forecast: ForecastFigures) -> str:
    gradient = forecast.gradient
    assert gradient
    if not math.isfinite(gradient.noise_scale):
        return f"no common direction in {gradient.groups} groups: noise hides it"
    return (
        f"signal equals noise at about {gradient.noise_scale:.0f} groups; signal to noise of a step is about "
        f"{gradient.signal_to_noise:.1f}"
    )


def _step(forecast: ForecastFigures) -> str:
    what = "it takes" if forecast.probe else "its episodes take"
    told = (
        f"about {forecast.step_tokens:,.0f} sampled tokens; {what} about {forecast.step_seconds:.0f} s here"
    )
    if forecast.gpus:
        told += f"; on the GPUs {forecast.gpus['low']:.0f} to {forecast.gpus['high']:.0f} s, without agents and judges"
    return told


def _here(facts: ForecastFigures) -> str:
    """What the seconds of a step contain."""
    return "here" if facts.probe else "here, without updates"


def _steps(facts: ForecastFigures, rate: float) -> str:
    if not facts.steps:
        return "no estimate"
    middle, low, high = facts.steps
    unit, seconds = ("minutes", 60) if middle * facts.step_seconds < 2 * 3600 else ("hours", 3600)
    each = facts.step_seconds / seconds
    why = (
        f"by {len(facts.probe.rates)} steps that were trained"
        if facts.probe
        else "as 9 of 10 runs of the examples"
    )
    return (
        f"about {middle:.0f} to {facts.target:.0%} ({low:.0f} to {high:.0f}, {why}) with train.learning_rate {rate:g}"
        f"{'' if facts.probe else ' if that suits the model'}, {middle * each:.1f} {unit} {_here(facts)} "
        f"({low * each:.1f} to {high * each:.1f})"
    )


def _interval(interval: Interval) -> str:
    return f"{interval[0]:.2f} ({interval[1]:.2f} to {interval[2]:.2f})"


def _percent(interval: Interval) -> str:
    return f"{interval[0]:.0%} ({interval[1]:.0%} to {interval[2]:.0%})"
