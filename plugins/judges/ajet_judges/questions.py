"""A question to a judge model: instructions, fenced data, and the schema of the verdict."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ajet import Task, Unreadable
from ajet_judges.fence import RULE, fenced, neutral, new_mark

V = TypeVar("V", bound=BaseModel)
A = TypeVar("A", bound=BaseModel, covariant=True)
VERSION = 1
"""Version of the prompt's wording; part of the cache key."""


class MalformedVerdict(Unreadable):
    """A judge model's answer is not a verdict of the requested schema."""


class Verdict(BaseModel):
    """Base of verdicts, with no further fields and strict types. The reason comes first, so that a model gives it before
    it decides."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str


class Askable(Protocol[A]):
    """What an open endpoint can be asked; `Question` is the one of our own prompts."""

    def key(self, model: Any) -> str:
        """A hash of everything that decides an answer, including the model."""
        ...

    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The chat to send."""
        ...

    def fields(self, structured: str) -> dict[str, Any]:
        """The request's further fields, by how the endpoint enforces a schema."""
        ...

    def read(self, content: str) -> A:
        """The verdict in an answer. Raises MalformedVerdict."""
        ...


@dataclass(frozen=True, slots=True)
class Question(Generic[V]):
    """A question for one verdict. ``data`` contains the texts to judge, by name; they are never instructions."""

    instructions: str
    data: Mapping[str, str]
    verdict: type[V]
    _clean: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_clean", {name: neutral(text) for name, text in self.data.items()})

    def key(self, model: Any) -> str:
        """A SHA-256 hash, in hex, of everything that decides an answer, including the model."""
        whole = [VERSION, model, self.instructions, list(self._clean.items()), self._schema()]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def messages(self) -> list[dict[str, str]]:
        """The chat to send, with a new random mark."""
        mark = new_mark([self.instructions, *self._clean.values()])
        form = json.dumps(self._schema(), ensure_ascii=False)
        system = (
            f"{self.instructions}\n\n{RULE.format(mark=mark)}\n\n"
            f"Answer with one JSON object of this schema and nothing else:\n{form}"
        )
        user = "\n\n".join(fenced(name, text, mark) for name, text in self._clean.items())
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    def fields(self, structured: str) -> dict[str, Any]:
        """The request's further fields: ``response_format``, if the endpoint supports it."""
        if structured == "none":
            return {}
        if structured == "json_object":
            return {"response_format": {"type": structured}}
        schema = {"name": "verdict", "strict": True, "schema": self._schema()}
        return {"response_format": {"type": structured, "json_schema": schema}}

    def read(self, content: str) -> V:
        """The verdict in an answer. The whole answer must be the verdict, because an answer may quote the data. Raises
        MalformedVerdict."""
        fence = _CODE_BLOCK.fullmatch(content.strip())
        try:
            return self.verdict.model_validate_json(fence[1] if fence else content)
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join(map(str, fault["loc"])) or "answer"
            shown = " ".join(content.split())[:200]
            remedy = (
                "Start its server with a reasoning parser, such as vLLM's --reasoning-parser, or turn its thoughts off."
                if content.lstrip().startswith("<think>")
                else "Use a model that follows a JSON schema, or raise endpoint.parameters.max_tokens."
            )
            raise MalformedVerdict(
                f"malformed verdict: {place}: {fault['msg']}; the judge model said {shown!r}. {remedy}"
            ) from None

    def _schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = _without_titles(self.verdict.model_json_schema())
        schema.pop("description", None)
        return schema


_CODE_BLOCK = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        kept = {k: v for k, v in schema.items() if k != "title" or not isinstance(v, str)}
        return {k: _without_titles(v) for k, v in kept.items()}
    return [_without_titles(s) for s in schema] if isinstance(schema, list) else schema


def task_text(task: Task) -> str:
    """The agent's task, as text."""
    messages = [f"{m.get('role', '')}: {m.get('content', '')}" for m in task.messages]
    return "\n\n".join([*([task.query] if task.query else []), *messages])
