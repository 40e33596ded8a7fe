"""Feedback in its usual forms: scores, thumbs, labels, comments, corrections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet_readers.jsonl import parse_line, read_lines
from ajet_readers.traces.trace import TraceFeedback

_NAMES = ("trace_id", "traceId", "span_id", "spanId", "response_id", "conversation_id", "id")
_SCORES = ("score", "rating", "value", "reward", "gen_ai.evaluation.score.value")
_THUMBS = ("thumbs", "thumb", "vote", "label", "liked", "sentiment", "gen_ai.evaluation.score.label")
_COMMENTS = ("comment", "comments", "explanation", "text", "gen_ai.evaluation.explanation")
_CORRECTIONS = ("correction", "expected", "corrected_answer")
_GOOD = {
    "up",
    "thumbs_up",
    "good",
    "positive",
    "like",
    "liked",
    "pass",
    "correct",
    "relevant",
    "yes",
    "true",
    "+1",
    "1",
}
_BAD = {
    "down",
    "thumbs_down",
    "bad",
    "negative",
    "dislike",
    "disliked",
    "fail",
    "incorrect",
    "no",
    "false",
    "-1",
    "0",
}
_BAD |= {"not_relevant"}

Scale = tuple[float, float]


def read_feedback(record: Mapping[str, Any], scale: Scale) -> TraceFeedback | None:
    """The feedback in a record; None if there is none. Raises ValueError for a score outside the scale, and for a value that is not a
    score or a thumb."""
    score = _score(_first(record, _SCORES), scale)
    if score is None:
        score = _thumb(_first(record, _THUMBS))
    comment, correction = (_first(record, names) for names in (_COMMENTS, _CORRECTIONS))
    if score is None and not comment and not correction:
        return None
    return TraceFeedback(score, str(comment or ""), str(correction or ""))


def read_feedback_file(path: Path, scale: Scale) -> Iterator[tuple[frozenset[str], TraceFeedback]]:
    """Yield (ids of the trace or call, feedback) for each line. Raises ConfigError with file and line."""
    for number, line in enumerate(read_lines(path, "feedback"), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        record = parse_line(line, place, "Fix the line.")
        names = frozenset(str(record[name]) for name in _NAMES if record.get(name))
        try:
            feedback = read_feedback(record, scale)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}.") from None
        if not names:
            raise ConfigError(f"{place}: does not name a trace; add one of {', '.join(_NAMES)}.")
        if feedback is None:
            raise ConfigError(
                f"{place}: contains no feedback; add a score, thumbs, a comment or a correction."
            )
        yield names, feedback


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def _score(value: Any, scale: Scale) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return _thumb(value)
    if not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a score")
    low, high = scale
    if not min(scale) <= value <= max(scale):
        raise ValueError(
            f"the score {value:g} is outside {low:g} to {high:g}; set the reader's `scale`, such as task.reader.scale=[1,5]"
        )
    return (value - low) / (high - low)


def _thumb(value: Any) -> float | None:
    if value is None:
        return None
    word = str(value).strip().casefold().replace(" ", "_").replace("👍", "up").replace("👎", "down")
    if word in _GOOD:
        return 1.0
    if word in _BAD:
        return 0.0
    raise ValueError(f"{value!r} is neither thumbs up nor thumbs down")
