"""What people say of episodes: lines of RUN/feedback.jsonl, which `ajet data from-feedback` reads."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from ajet.rollout.recorder import FEEDBACK
from ajet.utils.files import writing
from ajet_studio.answers import wrong
from ajet_studio.lines import NotALine, finite, parse_whole

MOST_TEXT = 1_000_000


def checked(body: Any) -> dict[str, Any]:
    """The rating, comment and correction of a request. Raises RefusedView (400)."""
    if not isinstance(body, dict):
        raise wrong("the body is not a JSON object")
    rating, texts = body.get("rating"), {}
    if isinstance(rating, bool) or not isinstance(rating, int | float | None):
        raise wrong("rating: not a number")
    if rating is not None and not (math.isfinite(rating) and (rating == -1 or 0 <= rating <= 1)):
        raise wrong("rating: not -1 and not a number from 0 to 1")
    for name in ("comment", "correction"):
        texts[name] = body.get(name) or ""
        if not isinstance(texts[name], str) or len(texts[name]) > MOST_TEXT:
            raise wrong(f"{name}: not a text of at most {MOST_TEXT:,} characters")
    if rating is None and not any(texts.values()):
        raise wrong("nothing to store: give a rating, a comment or a correction")
    return {"rating": rating, **texts}


class FeedbackFile:
    """The feedback in a run folder."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FEEDBACK

    def ratings(self, episode: str) -> list[dict[str, Any]]:
        """The ratings of an episode, in the order in which they were given."""
        ratings = []
        try:
            with self._path.open("rb") as file:
                for raw in file:
                    try:
                        line = finite(parse_whole(raw))
                    except NotALine:
                        continue
                    if isinstance(line, dict) and line.get("id") == episode:
                        ratings.append(
                            {name: line.get(name) for name in ("rating", "comment", "correction", "time")}
                        )
        except OSError:
            return []
        return ratings

    def rate(self, episode: str, rating: float | None, comment: str, correction: str) -> None:
        """Append a line. Raises AjetError if the file cannot be written."""
        line = {
            "id": episode,
            "rating": rating,
            "comment": comment,
            "correction": correction,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        with writing(self._path), open(self._path, "ab", opener=_no_link) as file:
            file.write(json.dumps(line).encode() + b"\n")  # ASCII, as texts may contain lone surrogates


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o644)
