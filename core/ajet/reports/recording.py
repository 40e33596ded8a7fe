"""Makes recordings of the episodes in a run folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ajet.reports.folder import episode_of, group_of
from ajet.reports.token_text import TokenText
from ajet.rollout.episode import Episode
from ajet.rollout.recording import (
    GivenTask,
    RecordedCall,
    RecordedEpisode,
    RecordedError,
    RecordedJudgeCall,
    RecordedReply,
    RecordedRequest,
    RecordedVerdict,
    Recording,
    Tokens,
    Usage,
)
from ajet.tracker.call import Call, Exchange, Message
from ajet.types import AjetError, FinishReason


def record(run_dir: Path, lines: Iterable[Mapping[str, Any]]) -> Recording:
    """The recording of some episodes of a run folder, given as lines of its journal. Raises AjetError for a line that lacks the
    task."""
    text_of = TokenText(run_dir)
    return Recording(run=run_dir.name, episodes=[_episode(run_dir, line, text_of) for line in lines])


def _episode(run_dir: Path, line: Mapping[str, Any], text_of: TokenText) -> RecordedEpisode:
    if "given" not in line:
        raise AjetError(
            f"{run_dir}: the journal has only the id of the task of {line['id']}, not what it holds: JSON cannot hold it, or an "
            "earlier version wrote the journal. Give the task plain values, and run it again."
        )
    episode = episode_of(line)
    verdict = RecordedVerdict(
        reward=episode.reward,
        rewards=dict(episode.rewards),
        is_success=episode.is_success,
        metrics={name: value for name, value in episode.metrics.items() if math.isfinite(value)},
        feedback=episode.feedback,
        call_rewards=dict(episode.call_rewards),
    )
    return RecordedEpisode(
        id=episode.id,
        group=(group_of(episode.id) or episode.id).rstrip("/"),
        member=episode.plan.member,
        task=GivenTask(id=episode.plan.task.id, **line["given"]),
        calls=_calls(episode, text_of),
        judge_calls=[
            RecordedJudgeCall(url=c.url, request=c.request, response=c.response) for c in episode.judge_calls
        ],
        response=episode.output.response,
        verdict=None if episode.failure else verdict,
        failure=episode.failure,
        error=episode.error,
    )


def _calls(episode: Episode, text_of: TokenText) -> list[RecordedCall]:
    """The calls in the order of their requests."""
    known = [call for call in episode.record.asked if call.code or call.answer or isinstance(call, Call)]
    return [_call(call, text_of) for call in sorted(known, key=lambda call: call.number)]


def _call(call: Exchange, text_of: TokenText) -> RecordedCall:
    request = RecordedRequest(
        messages=[dict(message) for message in (call.chat_end.chat() if call.chat_end else ())],
        tools=[dict(tool) for tool in call.tools],
        prompt=call.text if call.text is None or isinstance(call.text, str) else list(call.text),
        sampling=dict(call.sampling),
    )
    if call.code:
        error = RecordedError(code=call.code, status=call.status, message=call.error)
        return RecordedCall(agent=call.agent, target=call.target, request=request, error=error)
    sampled = call if isinstance(call, Call) else None
    message = call.answer.message if call.answer else {"role": "assistant", "content": call.said or ""}
    usage = Usage(
        prompt_tokens=sampled.prompt.length if sampled else 0,
        completion_tokens=len(sampled.generation.token_ids) if sampled else 0,
        reasoning_tokens=call.reasoning_tokens,
    )
    reply = RecordedReply(
        message=dict(message),
        finish_reason=_reason(message, sampled),
        stop=call.stop,
        usage=usage,
        tokens=_tokens(sampled, text_of) if sampled else None,
    )
    return RecordedCall(agent=call.agent, target=call.target, request=request, reply=reply)


def _tokens(call: Call, text_of: TokenText) -> Tokens:
    ids = call.generation.token_ids.tolist()
    texts = text_of(ids)
    known = [text for text in texts if text is not None]
    return Tokens(
        ids=ids,
        logprobs=[float(str(logprob)) for logprob in call.generation.logprobs],  # the shortest equal float32
        texts=known if len(known) == len(texts) else None,
    )


def _reason(message: Message, sampled: Call | None) -> FinishReason:
    reason = sampled.generation.finish_reason if sampled else "stop"
    return "tool_calls" if message.get("tool_calls") and reason == "stop" else reason
