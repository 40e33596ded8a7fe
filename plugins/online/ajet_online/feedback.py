"""What clients say of replies: AgentScope's form, and ours."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ajet.interfaces.wire import Refused
from ajet_online.redaction import Redaction
from ajet_online.store import Rated, TraceStore

REPLY_ID = re.compile(r"(?:[A-Za-z]{1,16}[-_])?([0-9a-f]{24}(?:-\d{1,3})?)")
"""A reply's id, at the end of what a client got, such as ``chatcmpl-…``."""
LONGEST_ID = 64
LONGEST_NAME = 256
"""Characters of the name of a task or a run: PostgreSQL's indexes take no longer ones."""
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
LATEST = 32_503_680_000.0
"""The year 3000, in seconds since 1970: a larger time is in milliseconds."""
THUMBS = ("down", "up")
"""They give the lowest and the highest reward."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback on replies.

    The form of AgentScope's Java client is ``{msg_ids, reward, task_id, run_id}``. Ours may name a ``run`` or a
    ``conversation`` (by any of its replies) in place of ``msg_ids``. Then ``task_id`` may be missing: the task is the run, or
    the conversation, so all its replies are one episode. ``thumb`` (``up`` or ``down``) may stand in place of ``reward``; with a
    ``comment`` or a ``correction``, which is of replies that are named, there may be neither. ``details`` changes only the
    answer.
    """

    given: Mapping[str, str]
    """Id of a reply -> what the client wrote. Empty if a run or a conversation is named."""
    run: str | None
    conversation: str | None
    reward: float | None
    task_id: str | None
    """None: the run or the conversation."""
    run_id: str
    comment: str | None
    correction: str | None

    @classmethod
    def read(cls, asked: Mapping[str, Any], bounds: tuple[float, float]) -> Self:
        """The feedback of a request, whose reward must be within ``bounds``. Raises Refused, with status 400."""
        named = [name for name in ("msg_ids", "run", "conversation") if asked.get(name) is not None]
        if len(named) != 1:
            raise bad("exactly one of msg_ids, run and conversation must be given")
        run = name_in(asked, "run") if named == ["run"] else None
        conversation = reply_id(asked["conversation"], "conversation") if named == ["conversation"] else None
        comment, correction = text_in(asked, "comment"), text_in(asked, "correction")
        if correction is not None and named != ["msg_ids"]:
            raise bad("a correction is of one reply: name it in msg_ids")
        return cls(
            given=_ids(asked["msg_ids"]) if named == ["msg_ids"] else {},
            run=run,
            conversation=conversation,
            reward=_reward(asked, bounds, optional=comment is not None or correction is not None),
            task_id=name_in(asked, "task_id")
            if named == ["msg_ids"] or asked.get("task_id") is not None
            else None,
            run_id=name_in(asked, "run_id", "0"),
            comment=comment,
            correction=correction,
        )

    def redacted(self, redaction: Redaction) -> Self:
        """The feedback with its texts as they may be stored. Raises Refused."""
        return replace(
            self,
            comment=None if self.comment is None else redaction.text("user", self.comment),
            correction=None if self.correction is None else redaction.text("assistant", self.correction),
        )

    def give(self, store: TraceStore, key: str | None) -> Rated:
        """Write it to the store, for replies to an API key, or to any."""
        ids = list(self.given)
        if not ids:
            ids = store.replies_of(run=self.run, reply=self.conversation, key=key)
            if not ids:
                return Rated([], [], [self.run or self.conversation or ""])
        return store.rate(
            ids,
            self.reward,
            self.task_id or self.run or ids[0],  # a conversation is called like its first reply
            self.run_id,
            comment=self.comment,
            correction=self.correction,
            key=key,
        )

    def as_given(self, ids: Sequence[str]) -> list[str]:
        """Ids as the client wrote them."""
        return [self.given.get(name, name) for name in ids]


def _ids(given: Any) -> dict[str, str]:
    if not isinstance(given, list) or not given:
        raise bad("msg_ids must be a list of at least one reply id")
    return {reply_id(name, "msg_ids"): name for name in given}


def _reward(asked: Mapping[str, Any], bounds: tuple[float, float], *, optional: bool) -> float | None:
    reward, thumb = asked.get("reward"), asked.get("thumb")
    if thumb is not None:
        if reward is not None:
            raise bad("give reward or thumb, not both")
        if thumb not in THUMBS:
            raise bad("thumb must be up or down")
        return bounds[THUMBS.index(thumb)]
    if reward is None and optional:
        return None
    low, high = bounds
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not low <= reward <= high:
        raise bad(
            f"reward must be a number from {low:g} to {high:g}, the bounds that plugins.online.rewards of the job sets"
        )
    return float(reward)


def reply_id(given: Any, name: str) -> str:
    """The id of a reply in what a client got. Raises Refused."""
    if not isinstance(given, str) or not 0 < len(given) <= LONGEST_ID:
        raise bad(f"{name}: the id of a reply is a string of at most {LONGEST_ID} characters")
    return id_of_reply(given) or storable(given, name)


def id_of_reply(text: str) -> str | None:
    """The id of a reply of an explorer in what a client got; None if it is of something else."""
    match = REPLY_ID.fullmatch(text)
    return match[1] if match else None


def time_in(asked: Mapping[str, Any], name: str) -> float:
    """A field that is a time in seconds since 1970. Raises Refused."""
    value = asked.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LATEST:
        raise bad(f"{name} must be a time in seconds, not milliseconds, since 1970")
    return float(value)


def read_object(body: bytes, known: Collection[str]) -> dict[str, Any]:
    """A JSON object with no other fields than the known ones. Raises Refused."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise bad("the body must be a JSON object")
    if unknown := sorted(set(fields) - set(known)):
        raise bad(f"unknown field {unknown[0][:LONGEST_ID]!r}; this page takes {', '.join(known)}")
    return fields


def name_in(asked: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A field that is an id: a string or a number, as clients write both. Raises Refused."""
    value = asked.get(name)
    value = default if value is None else value
    if value is None:
        raise bad(
            f"{name} is missing; for a rating of one reply, give the reply's id"
            if name == "task_id"
            else f"{name} is missing"
        )
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise bad(f"{name} must be a string or an integer")
    if len(str(value)) > LONGEST_NAME:
        raise bad(f"{name} has more than {LONGEST_NAME} characters")
    return storable(str(value), name)


def text_in(asked: Mapping[str, Any], name: str) -> str | None:
    """A field that is a text, if it is given. Raises Refused."""
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise bad(f"{name} must be a string")
    return None if value is None else storable(value, name)


def storable(text: str, name: str) -> str:
    """A text that databases can store. Raises Refused."""
    if UNSTORABLE.search(text):
        raise bad(f"{name} has zero characters or halves of surrogate pairs, which cannot be stored")
    return text


def bad(problem: str) -> Refused:
    """A request that is not valid."""
    return Refused(problem, code="invalid_request", status=400)
