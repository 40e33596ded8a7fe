"""Replays recordings: the workflow and the judge run, and recorded replies answer their LLM calls."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ajet.capture.context import without_endpoints
from ajet.capture.judge_calls import JudgeCall
from ajet.capture.replies import Form, NotRecorded, Replies, difference, request_of
from ajet.chat.messages import BadMessage, normalise
from ajet.interfaces.wire import Answer, Refused
from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.failures import FailureKind
from ajet.rollout.journal import plain_response
from ajet.rollout.recording import RecordedEpisode
from ajet.runs.jobs import Given, job_of
from ajet.runs.runtime import open_runtime, training_policy
from ajet.types import ConfigError
from ajet.utils.asyncrun import run


@dataclass(frozen=True, slots=True)
class Replayed:
    """An episode that was run again."""

    recorded: RecordedEpisode
    episode: Episode
    differences: Sequence[str]
    """What is not as recorded, a line each; empty if all is."""


def replay_layers(given: Given, episodes: Sequence[RecordedEpisode]) -> Layers:
    """The job to replay episodes with: its tasks are the recorded ones, and it needs no model. Raises ConfigError."""
    tasks = {episode.task.id: episode.task.task() for episode in episodes}
    if not tasks:
        raise ConfigError("replay=", "the recording has no episodes. Record again.")
    layers = job_of({**given, "tasks": list(tasks.values())})
    layers.set("task.validation", None, "replay=", Path.cwd())
    layers.set("backbone", "debug", "replay=", Path.cwd())
    return layers


def replay(job: Job, episodes: Sequence[RecordedEpisode], ignore: Sequence[str] = ()) -> list[Replayed]:
    """Run recorded episodes again, in their order; ``ignore`` are regular expressions of text that may differ in requests.
    Raises ConfigError for one that is not valid, or for messages of a recording that are not."""
    patterns = [_pattern(text) for text in ignore]
    with without_endpoints():
        return run(_replay(job, episodes, patterns), job.progress.say)


async def _replay(
    job: Job, episodes: Sequence[RecordedEpisode], ignore: Sequence[re.Pattern[str]]
) -> list[Replayed]:
    settings = job.config.rollout.model_copy(update={"retries": 0, "concurrency": 1})
    job = replace(
        job,
        config=job.config.model_copy(update={"rollout": settings}),
        targets=[replace(target, model=None) for target in job.targets],
    )
    replies = {episode.id: _replies(episode, ignore) for episode in episodes}
    judged = {episode.id: _judge_replies(episode, ignore) for episode in episodes}
    groups = {group: number for number, group in enumerate(dict.fromkeys(e.group for e in episodes))}
    plans = [Plan(e.id, e.id, e.task.task(), e.member, groups[e.group]) for e in episodes]
    async with open_runtime(job, engine=None, shows_prints=True) as runtime:
        targets = tuple(replace(target, replies=replies) for target in runtime.targets)
        rollout = replace(runtime, targets=targets).rollout(training_policy(job))
        ran = await replace(rollout, judge_replies=judged).run(plans, lambda episode: None)
    return [
        Replayed(
            recorded,
            episode,
            list(_differences(recorded, episode, replies[recorded.id], judged[recorded.id])),
        )
        for recorded, episode in zip(episodes, ran, strict=True)
    ]


def _replies(episode: RecordedEpisode, ignore: Sequence[re.Pattern[str]]) -> Replies[Answer | Refused]:
    replies = []
    for number, call in enumerate(episode.calls):
        asked = call.request
        try:
            if call.reply and asked.prompt is None:
                normalise(call.reply.message, len(asked.messages))
            request = request_of(Form(ignore), asked.messages, asked.tools, asked.prompt)
        except (BadMessage, NotRecorded) as error:
            raise ConfigError(
                f"the recording of {episode.id}, calls[{number}]: {str(error).rstrip('.')}. Correct the file, or record again."
            ) from None
        replies.append((call.agent, request, call.answer()))
    return Replies(replies, ignore)


def _judge_replies(episode: RecordedEpisode, ignore: Sequence[re.Pattern[str]]) -> Replies[JudgeCall]:
    return Replies([("judge", Form(ignore).body(c.request), c.call()) for c in episode.judge_calls], ignore)


def _differences(
    recorded: RecordedEpisode,
    episode: Episode,
    replies: Replies[Answer | Refused],
    judged: Replies[JudgeCall],
) -> Iterator[str]:
    """What a replay did differently."""
    yield from replies.missing
    yield from (line.replace("of agent 'judge'", "of the judge") for line in judged.missing)
    unused = replies.unused
    if unused and not replies.missing:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        yield f"{_calls(len(unused))} not made: agent {unused[0]}{more}"
    if episode.failed and episode.failed.kind is FailureKind.NOT_RECORDED:
        return  # the missing request says why
    if episode.failure != recorded.failure:
        failed = f"{episode.failure}: {episode.error}" if episode.failure else "none"
        yield f"failure {failed}; recorded {recorded.failure or 'none'}"
    now, was = (_text(r) for r in (plain_response(episode.output.response), recorded.response))
    if now != was:
        yield f"response {difference(now, was)}"
    if episode.failure is None and recorded.verdict is not None:
        yield from _other_verdict(episode, recorded)


def _other_verdict(episode: Episode, recorded: RecordedEpisode) -> Iterator[str]:
    was = recorded.verdict
    assert was
    if not math.isclose(episode.reward, was.reward):
        yield f"reward {episode.reward:g}, recorded {was.reward:g}"
    if dict(episode.rewards) != was.rewards:
        yield f"rewards {dict(episode.rewards)}, recorded {was.rewards}"
    if dict(episode.call_rewards) != was.call_rewards:
        yield f"rewards of calls {dict(episode.call_rewards)}, recorded {was.call_rewards}"
    if episode.is_success != was.is_success:
        yield f"success {episode.is_success}, recorded {was.is_success}"


def _text(response: Any) -> str:
    return response if isinstance(response, str) else json.dumps(response, sort_keys=True)


def _calls(count: int) -> str:
    return "1 recorded call was" if count == 1 else f"{count} recorded calls were"


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"ignore: {text!r} is not a regular expression ({error}).") from None
