"""What people said of a run's episodes, as labelled examples for `ajet judge learn` and transcripts for `ajet sft`.

``feedback.jsonl`` in the run folder has one JSON object a line: ``id`` of the episode, ``rating`` (a number, true, false, good or bad;
higher is better), ``comment``, ``correction`` (the response that would have been right) and ``time``. Of several lines about an
episode the last rating, the last comment and the last correction count.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ajet import ConfigError, Task
from ajet.reports.folder import RecordedRun
from ajet.rollout.episode import Episode
from ajet.rollout.recorder import FEEDBACK
from ajet.tracker.call import Exchange

_WORDS = {"good": 1.0, "bad": 0.0}


@dataclass(frozen=True, slots=True)
class Feedback:
    """What was said of one episode."""

    id: str
    rating: float | None = None
    comment: str = ""
    correction: str = ""
    """The response that would have been right; empty if none was given."""


def read_feedback(run_dir: Path) -> dict[str, Feedback]:
    """The feedback on each episode, by its id. A last line that is still being written is skipped. Raises ConfigError, which
    names file and line, for a line that is not feedback, and if there is no file."""
    file = run_dir / FEEDBACK
    if not file.is_file():
        raise ConfigError(f"{file}: no such file. Rate some episodes of the run first.")
    lines = file.read_bytes().split(b"\n")[:-1]
    given = (_feedback(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip())
    by_episode: dict[str, Feedback] = {}
    for said in given:
        before = by_episode.get(said.id, said)
        by_episode[said.id] = replace(
            before,
            rating=before.rating if said.rating is None else said.rating,
            comment=said.comment or before.comment,
            correction=said.correction or before.correction,
        )
    return by_episode


def labelled_examples(run: RecordedRun, feedback: Mapping[str, Feedback]) -> Iterator[dict[str, Any]]:
    """A response and its label for each rated episode, as `ajet judge learn` reads them: ``query``, ``answer`` (if the task has
    one), ``response`` and ``label``. A correction is a response with the best label."""
    best = best_rating(feedback)
    for episode, said in _of(run, feedback):
        about = _about(episode.plan.task)
        if said.rating is not None:
            yield {**about, "response": _text(episode.output.response), "label": said.rating}
        if said.correction:
            yield {**about, "response": said.correction, "label": 1.0 if best is None else best}


def transcripts(
    run: RecordedRun, feedback: Mapping[str, Feedback], least: float | None = None
) -> Iterator[dict[str, Any]]:
    """The chats to learn, as `ajet sft` reads them: ``messages`` and ``tools``. These are the chats of corrected episodes, with the
    correction as the last answer, and of others whose rating is at least ``least``, by default the best one."""
    enough = best_rating(feedback) if least is None else least
    for episode, said in _of(run, feedback):
        good = said.rating is not None and enough is not None and said.rating >= enough
        last = _last_exchange(episode)
        if last is None or not (said.correction or good):
            continue
        messages = [dict(message) for message in last.chat()]
        if said.correction:
            messages[-1] = {"role": "assistant", "content": said.correction}
        yield {"messages": messages, **({"tools": list(last.tools)} if last.tools else {})}


def best_rating(feedback: Mapping[str, Feedback]) -> float | None:
    """The highest rating; None without any."""
    return max((said.rating for said in feedback.values() if said.rating is not None), default=None)


def _of(run: RecordedRun, feedback: Mapping[str, Feedback]) -> Iterator[tuple[Episode, Feedback]]:
    for entry in run.entries:
        if said := feedback.get(entry.id):
            yield run.episode(entry), said


def _last_exchange(episode: Episode) -> Exchange | None:
    """The call whose answer is the response, or else the last one."""
    response = _text(episode.output.response)
    exchanges = episode.record.exchanges[::-1]
    same = (e for e in exchanges if response and response in str(e.chat()[-1].get("content") or ""))
    return next(same, exchanges[0] if exchanges else None)


def _about(task: Task) -> dict[str, Any]:
    asked = "\n\n".join(str(message.get("content") or "") for message in task.messages)
    answer = task.metadata.get("answer")
    return {"query": task.query or asked, **({} if answer is None else {"answer": answer})}


def _text(response: Any) -> str:
    if response is None:
        return ""
    return response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)


def _feedback(line: bytes, where: str) -> Feedback:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, f"not JSON ({error}). Fix or remove the line.") from None
    if not isinstance(data, dict) or not isinstance(data.get("id"), str):
        raise ConfigError(where, "needs `id`, the id of an episode. Fix or remove the line.")
    rating = data.get("rating")
    value = _WORDS.get(rating) if isinstance(rating, str) else rating
    if rating is not None and not (isinstance(value, int | float) and abs(value) <= sys.float_info.max):
        raise ConfigError(where, f"`rating` is {rating!r}; write a number, true, false, good or bad.")
    texts = {name: data.get(name) or "" for name in ("comment", "correction")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ConfigError(where, f"`{name}` is not a text. Fix or remove the line.")
    return Feedback(data["id"], None if value is None else float(value), **texts)
