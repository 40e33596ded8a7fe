"""`ajet check`: a few episodes without training, and what would become of them in training."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ajet.capture.process.install import InstalledCapture
from ajet.capture.process.uncaptured import REMEDY, Missed
from ajet.capture.refusals import RefusedCalls
from ajet.chat.answers import FAULTS
from ajet.interfaces.engine import Engine
from ajet.job.checks import learns_nothing
from ajet.job.job import Job
from ajet.job.models import about, find_recipe
from ajet.learning.batch import TokenSelection
from ajet.learning.credit import advantages
from ajet.learning.rollouts import plan_step, unmatched_rewards, unmatched_rewards_line
from ajet.rollout.episode import Episode, Fork
from ajet.rollout.failures import LEFT, Failure, FailureKind
from ajet.rollout.groups import judged_groups
from ajet.rollout.recorder import RunRecorder
from ajet.rollout.summary import failures, summarize
from ajet.runs.chat_format import ChatFormatReport, describe
from ajet.runs.run_dir import keep_tokenizer, new_run_dir
from ajet.runs.runtime import Runtime, open_runtime, training_policy
from ajet.services.scripted_engine import ScriptedEngine
from ajet.tracker.branches import unused
from ajet.tracker.breaks import CAUSES, Break, discarded
from ajet.tracker.call import Call
from ajet.tracker.forest import forest
from ajet.tracker.record import merging_key, sampled
from ajet.tracker.side_calls import LONG, letters
from ajet.utils.asyncrun import run

MUCH = 0.1
"""The share of answers from which a fault is worth a warning."""
MOST_SHOWN = 80
"""Characters of a response that a warning shows."""
_LONGER = "Raise the agent's max_tokens or rollout.sampling.max_tokens; if the model rambles, show it a short answer in the prompt."
_SHOW = "show it calls as earlier messages (`ajet docs own-agent#what-a-small-model-needs`)"
_LEARN = f"Look at one with `ajet show`. Where the model has not learned to write calls, {_SHOW}, or fine-tune it (`ajet sft`)."
_FAULTS = {
    "malformed_tool_calls": ("tool calls could not be read, so they stayed text", _LEARN),
    "cut_calls": ("tool calls have no end, so they stayed text", _LONGER),
    "unoffered_tool_calls": (
        "calls are of tools that the request does not offer, so they stayed text",
        "Look at one with `ajet show`: the agent's prompt may name other tools than its requests.",
    ),
    "calls_in_thoughts": ("tool calls stand in thoughts without an end; they ended the thought", _LEARN),
    "cut_thoughts": (
        "answers have a thought without an end, so they may have no text",
        f"{_LONGER} A text of the request's `stop` also ends an answer within its thought.",
    ),
}
"""What went wrong in answers, and what helps, by counter."""
_LEFT_OUT = {
    "image": "The model reads in its place that it cannot see it. Use a vision-language model if the tasks need images.",
    "file": "The model reads in its place that it cannot read it. Give the agent a tool that returns the file's text.",
    "encrypted thoughts": "Only the model that thought them can read them.",
}
_HOSTED = (
    "Only the API's own host runs this tool, so the model is not told of it. Switch it off in the agent."
)
"""What a call was answered without, and what helps; all others are tools."""


@dataclass(frozen=True, slots=True)
class Merging:
    """What merging saves, in tokens over all episodes: one row per call, timelines, unique tokens."""

    calls: int
    call_tokens: int
    timelines: int
    timeline_tokens: int
    most_timelines: int
    tree_tokens: int
    trained_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """A few episodes in numbers, and what is wrong with them."""

    run_dir: Path
    episodes: Sequence[Episode]
    seconds: float
    merging: Merging
    agents: Mapping[str, int]
    """Calls of each agent."""
    overridden: Mapping[str, int]
    """Calls in which the agent set a sampling parameter that training sets itself."""
    refused: Sequence[RefusedCalls]
    """LLM calls that were not answered, of all attempts and of no episode."""
    cut: int
    """Answers that ended at their length."""
    faults: Mapping[str, int]
    """What went wrong in answers with thoughts and tool calls, by the counters' names; without those that are 0."""
    tools_left_out: int
    """Calls with tools that the prompt does not contain."""
    abandoned: int
    """Calls that the agent left before their answer was complete."""
    unmatched: Collection[str]
    """Names in rewards that are neither agents nor targets."""
    left_out: Mapping[str, int]
    """Calls by what their prompts do without: images and files that the model cannot see, tools that it has not."""
    offering: int
    """Calls with tools."""
    calling: int
    """Answers that call one."""
    breaks: Sequence[tuple[Episode, Break]]
    missed: Sequence[Missed]
    """Connections that capture does not see, of all attempts."""
    rewards: Sequence[float]
    groups: int
    equal_groups: int
    """Groups whose rewards are all equal: their advantage is zero."""
    rejected: int
    """Answers that the agent rejected and that would be trained."""
    unused: Mapping[str, Sequence[int]]
    """By episode, the calls whose answers no later call used and that would be trained, without those that were rejected."""
    copied: int
    """Responses with a hidden field of the task that no message of the episode has."""
    longest: int
    """Tokens of the longest call."""
    context_length: int
    dropped: Mapping[str, int]
    side_calls: Mapping[tuple[str, str], Sequence[Call]]
    """By agent and model name, the calls that are answered and not trained."""
    memory: int
    """The most bytes that the programs of one episode had in memory; 0 if there are none or it is unknown."""
    concurrency: int
    """Episodes that run at once."""
    chat_format: ChatFormatReport
    warnings: Sequence[tuple[str, str]] = ()
    """(what is wrong, what helps)"""
    recipe: str = ""
    """What the recipe of the model that answered says of it, if it knows little else."""
    differs: str | None = None
    """What is different when an episode runs again with the same answers: empty if nothing is, None if all failed."""
    rows: Sequence[tuple[str, str]] = ()
    """(what, found), of plugins."""


def check(job: Job, engine: Engine, *, tasks: int, group_size: int) -> Report:
    """Run ``group_size`` episodes of each of the first tasks. They are kept in a run folder."""
    differs: str | None = None

    async def again(runtime: Runtime, episodes: Sequence[Episode]) -> None:
        nonlocal differs
        differs = await repeats(runtime, episodes)

    report = run(examined(job, engine, tasks=tasks, group_size=group_size, also=again), job.progress.say)
    warnings = [*warnings_of(report), *_no_signal(report)]
    settings = job.config.rollout
    if differs and (settings.fork or settings.steer):
        what = "forks" if settings.fork else "steered episodes"
        warnings.append((f"{what} would be discarded: {differs}", Failure(FailureKind.DIVERGED).remedy))
    if why := learns_nothing(job.config.rollout.group_size, job.algorithm):
        warnings.append(("`ajet run` refuses this job", f"rollout.group_size: {why}"))
    return replace(
        report, warnings=warnings, differs=differs, rows=list(_rows_of_plugins(job, report.run_dir))
    )


def _rows_of_plugins(job: Job, run_dir: Path) -> Iterator[tuple[str, str]]:
    given = {"judge": job.judge, "run_dir": run_dir}
    for implementation in job.plugins.manager.hook.ajet_check.get_hookimpls():
        try:
            rows: Any = implementation.function(*[given[name] for name in implementation.argnames])
            yield from rows
        except Exception as error:
            yield implementation.plugin_name, f"its ajet_check failed: {type(error).__name__}: {error}"


async def examined(
    job: Job,
    engine: Engine,
    *,
    tasks: int,
    group_size: int,
    name: str = "check",
    seconds: float | None = None,
    also: Callable[[Runtime, Sequence[Episode]], Awaitable[None]] | None = None,
) -> Report:
    """A few episodes in numbers, without warnings, in a run folder whose name ends with ``name``. After so many ``seconds``
    those that still run are cancelled. ``also`` gets the episodes while all is open."""
    run_dir = new_run_dir(job, name)
    keep_tokenizer(run_dir, engine.tokenizer, job.progress)
    recorder = RunRecorder(run_dir)
    plans = plan_step(
        job.tasks, 1, batch_size=min(tasks, len(job.tasks)), group_size=group_size, seed=job.config.run.seed
    )
    started, finished = time.monotonic(), 0

    def done(episode: Episode) -> None:
        nonlocal finished
        finished += 1
        recorder.episode(episode, phase=name, step=1)
        job.progress.episodes(name, finished, len(plans))

    try:
        async with open_runtime(job, engine=engine) as runtime:
            assert runtime.chat
            chat_format = describe(runtime.chat)
            if chat_format.fault:
                job.progress.say(chat_format.fault)
            context_length = job.config.rollout.context_length or engine.context_length
            enough = asyncio.Event()
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, enough.set)
            episodes = await runtime.rollout(training_policy(job)).run(plans, done, enough)
            took = time.monotonic() - started
            if also is not None:
                await also(runtime, episodes)
        recorder.metrics(name, 1, summarize(episodes, took))
    finally:
        recorder.close()
    report = examine(job, run_dir, episodes, took, context_length, runtime.installed, chat_format)
    recipe = None if isinstance(engine, ScriptedEngine) else find_recipe(job.model)
    return replace(report, recipe=about(recipe) if recipe and recipe.narrow else "")


def examine(
    job: Job,
    run_dir: Path,
    episodes: Sequence[Episode],
    seconds: float,
    context_length: int,
    unseen: InstalledCapture,
    chat_format: ChatFormatReport,
) -> Report:
    """The numbers of a report."""
    calls = [c for e in episodes for c in e.record.calls]
    counters: Counter[str] = sum((e.counters for e in episodes), Counter())
    judged = [e for e in episodes if e.failure is None]
    groups = judged_groups(episodes)
    hides = job.config.task.hides(judged=True) if job.config.task else ()
    readable = set(hides).difference(job.workflow.withheld)
    select = TokenSelection(job.filters, job.config.train.max_timelines, str(job.config.run.seed))
    dropped: Counter[str] = Counter()
    rejected, abandoned = 0, {}
    for e in judged:
        left_out = select.choose(e)[1]
        dropped.update({policy: sampled(out) for policy, out in left_out.items()})
        untrained = {call.number for out in left_out.values() for call in out}
        attempts = discarded(e.record)
        rejected += len(attempts - untrained)
        if numbers := sorted(unused(e.record) - attempts - untrained):
            abandoned[e.id] = numbers
    side: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        if call.side:
            side.setdefault((call.agent, call.model or ""), []).append(call)
    return Report(
        run_dir=run_dir,
        episodes=episodes,
        seconds=seconds,
        merging=merging(episodes, select),
        agents=Counter(x.agent for e in episodes for x in e.record.exchanges),
        overridden=_below(counters, "overridden:"),
        refused=unseen.capture.refusals.found(),
        cut=sum(c.generation.finish_reason == "length" for c in calls),
        faults={name: counters[name] for name in FAULTS if counters[name]},
        tools_left_out=counters["tools_left_out"],
        abandoned=counters["abandoned"],
        unmatched=unmatched_rewards(episodes),
        left_out=_below(counters, "left_out:"),
        offering=sum(c.key != merging_key(c.target, ()) for c in calls),
        calling=sum(bool(c.answer and c.answer.message.get("tool_calls")) for c in calls),
        breaks=[(e, b) for e in episodes for b in e.breaks],
        missed=unseen.missed.found(),
        rewards=[e.reward for e in judged],
        groups=len(groups),
        equal_groups=sum(
            not any(value for episode in group for value in episode.values())
            for group in advantages(job.algorithm, groups).values()
        ),
        rejected=rejected,
        unused=abandoned,
        copied=sum(any(_copied(e, name) for name in readable) for e in judged),
        longest=max((c.end.length for c in calls), default=0),
        context_length=context_length,
        dropped=dropped,
        side_calls=side,
        memory=max((e.memory for e in episodes), default=0),
        concurrency=job.config.rollout.concurrency,
        chat_format=chat_format,
    )


def merging(episodes: Sequence[Episode], select: TokenSelection) -> Merging:
    """Tokens of all episodes as one row per call, as timelines, and as trees."""
    calls = [c for e in episodes for c in e.record.trained_calls]
    lines = [select.choose(e)[0] for e in episodes]
    trees = 0
    for episode in episodes:
        by_key: dict[str, list[Call]] = {}
        for call in episode.record.trained_calls:
            by_key.setdefault(call.key, []).append(call)
        trees += sum(len(forest(group).token_ids) for group in by_key.values())
    return Merging(
        calls=len(calls),
        call_tokens=sum(c.end.length for c in calls),
        timelines=sum(map(len, lines)),
        timeline_tokens=sum(len(line.token_ids) for own in lines for line in own),
        most_timelines=max(map(len, lines), default=0),
        tree_tokens=trees,
        trained_tokens=sum(int(line.mask.sum()) for own in lines for line in own),
    )


def warnings_of(report: Report) -> list[tuple[str, str]]:
    """What a user should look at before training, worst first, each with a remedy."""
    episodes, merged = report.episodes, report.merging
    answers = sum(len(e.record.calls) for e in episodes)
    begun = sum(report.faults.get(name, 0) for name in ("cut_calls", "malformed_tool_calls"))
    uncalled = report.calling < MUCH * report.offering and begun <= MUCH * answers
    too_long = any(e.failed and e.failed.kind is FailureKind.CONTEXT_OVERFLOW for e in episodes)
    first = {e.failed.cause: e.failed for e in reversed(episodes) if e.failed}
    warnings = [
        (f"{n} of {len(episodes)} episodes failed: {cause}: {first[cause].text}", first[cause].remedy)
        for cause, n in failures(episodes).most_common()
    ]
    if report.recipe and (too_long or uncalled or report.tools_left_out):
        remedy = "If the agent asks for anything else, name another --model: smollm2, smollm2-tools, a folder or a Hugging Face id."
        warnings.insert(0, (f"the model is {report.recipe}", remedy))
    for m in report.missed:
        warnings.append((f"{m.count} connections were not captured: {m.where}", REMEDY))
    warnings += [(refused.line, refused.message) for refused in report.refused]
    if answers and not merged.calls:
        warnings.append(
            (
                "no call belongs to a trained target",
                "Check `targets`, `train.targets` and the agents' labels.",
            )
        )
    for cause, n in Counter(b.cause for _, b in report.breaks).most_common():
        warnings.append((f"{n} calls could not continue their conversation: {cause}", CAUSES[cause]))
    if report.cut > MUCH * answers:
        warnings.append(
            (
                f"{report.cut} of {answers} answers ended at their length",
                _LONGER,
            )
        )
    if report.unmatched:
        remedy = f"Name them as the calls do: {', '.join(sorted(report.agents))}."
        warnings.append((unmatched_rewards_line(report.unmatched), remedy))
    if report.abandoned and report.agents:
        said = f"{report.abandoned} calls were left before their answer was complete, and are not recorded"
        warnings.append((said, LEFT))
    if report.tools_left_out:
        warnings.append(
            (
                f"{report.tools_left_out} calls have tools that the model does not see: its chat template writes no tools",
                "Set rollout.tool_prompt: hermes, with which AgentJet writes them, or use a model that knows tools (smollm2-tools).",
            )
        )
    elif uncalled:
        warnings.append(
            (
                f"{report.offering} calls offer tools, of which {report.calling} got a tool call",
                f"Of the recipes, smollm2-tools calls tools. A small model needs examples: {_SHOW}.",
            )
        )
    for what, count in report.left_out.items():
        warnings.append(
            (f"{count} calls were answered without what they ask for: {what}", _LEFT_OUT.get(what, _HOSTED))
        )
    for name, count in report.faults.items():
        if count > MUCH * answers:
            what, remedy = _FAULTS[name]
            one = next(e.id for e in episodes if e.counters[name])
            warnings.append((f"{count} {what}, such as in {one}", remedy))
    if report.longest > 0.8 * report.context_length:
        warnings.append(
            (
                f"the longest call has {report.longest} of {report.context_length} tokens of context",
                "Shorten histories or tool results, or use a model with a longer context.",
            )
        )
    needed, there = report.memory * report.concurrency, total_memory()
    if there and needed > there:
        warnings.append(
            (
                f"the programs of an episode take {report.memory >> 20} MiB, so {report.concurrency} at once take "
                f"{needed / 2**30:.1f} GiB of the machine's {there / 2**30:.1f} GiB",
                f"Set rollout.concurrency to {max(1, there // (2 * report.memory))} or less.",
            )
        )
    if report.rejected:
        warnings.append(
            (
                f"{report.rejected} answers were rejected by the agent: a later prompt uses another one, or leaves them out",
                "To train none of them: train.filters: [discarded_attempts].",
            )
        )
    if report.unused:
        episode, numbers = next(iter(report.unused.items()))
        warnings.append(
            (
                f"{sum(map(len, report.unused.values()))} answers were never used by a later call, such as "
                f"{'call' if len(numbers) == 1 else 'calls'} {', '.join(map(str, numbers))} of {episode}",
                "Nothing is wrong if the program used them itself. To train none of them: train.filters: [unused_branches].",
            )
        )
    if report.copied:
        warnings.append(
            (
                f"{report.copied} responses repeat the task's answer, which no message has: does the agent read it in the task?",
                "Nothing is wrong if its own code works the answer out. Else let only the judge read that field of the metadata.",
            )
        )
    return warnings


def _no_signal(report: Report) -> Iterator[tuple[str, str]]:
    if set(report.rewards) == {0}:
        response = next(e.output.response for e in report.episodes if e.failure is None)
        yield (
            f"no response got a reward, such as {str(response)[:MOST_SHOWN]!r}",
            "Return what the judge expects; of a command it is the last line of stdout. `ajet show` has the chats and verdicts. If the "
            "answers are wrong: `ajet docs own-agent#what-a-small-model-needs`.",
        )
    if report.groups and report.equal_groups > report.groups / 2:
        yield (
            f"{report.equal_groups} of {report.groups} groups have equal rewards: nothing can be learned from them",
            "Check more of them (--first, --group-size), or use tasks that succeed sometimes, or a finer reward. `ajet forecast` "
            "says more.",
        )


def _copied(episode: Episode, name: str) -> bool:
    """Whether an episode's response repeats this field of its task, and no message has it. Short values must be all of the
    response, because a long one has many by chance."""
    value, response = (letters(x) for x in (episode.plan.task.metadata.get(name), episode.output.response))
    if not value or not (value in response if len(value) >= LONG else value == response):
        return False
    return not any(value in letters(exchange.chat()) for exchange in episode.record.exchanges)


def spread(values: Sequence[float]) -> str:
    """``0.50 (0 to 1)``"""
    if not values:
        return "none"
    return f"{statistics.fmean(values):.2f} ({min(values):g} to {max(values):g})"


def _below(counters: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {k.removeprefix(prefix): n for k, n in counters.items() if k.startswith(prefix) and n}


async def repeats(runtime: Runtime, episodes: Sequence[Episode]) -> str | None:
    """What is different when the first episode that did not fail runs again: empty if nothing is; None if all failed."""
    first = next((e for e in episodes if e.failure is None and e.record.calls), None)
    if first is None:
        return None
    whole = Fork(first.id, len(first.record.calls), first.record)
    plan = replace(first.plan, id=f"{first.id}/again", fork=whole)
    again = await runtime.runner(training_policy(runtime.job)).run(plan, 0)
    return again.error


def total_memory() -> int:
    """Bytes of this machine's memory, or of the container's if that has a limit of its own; 0 if unknown."""
    total = 0
    with contextlib.suppress(OSError, ValueError, AttributeError):  # names that this system does not have
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max" means none
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total
