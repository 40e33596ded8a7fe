"""Graders that ask a model: `score_model` and `label_model`. Their messages are sent as they are, so what the judged answer says
stands beside the instructions, as at OpenAI; the judges `llm` and `rubric` keep the two apart."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from ajet_judges.endpoint import JudgeEndpoint
from ajet_judges.openai.graders import ImagePart, LabelModel, Message, ScoreModel, TextPart
from ajet_judges.openai.templates import filled
from ajet_judges.questions import MalformedVerdict

VERSION = 1
_CODE_BLOCK = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)
_STEPS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"description": {"type": "string"}, "conclusion": {"type": "string"}},
        "required": ["description", "conclusion"],
        "additionalProperties": False,
    },
}


class GraderEndpoint(JudgeEndpoint):
    """The OpenAI-compatible endpoint of graders that ask a model. Calls to it are never recorded or trained."""

    model: str = Field(
        "", description="Model that answers in place of those that the graders name; default: theirs."
    )
    parameters: dict[str, Any] = Field(
        {}, description="Further fields of each request, stronger than the graders' sampling_params."
    )


class Graded(BaseModel):
    """A model's grade."""

    score: float


@dataclass(frozen=True, slots=True)
class ModelQuestion:
    """What a grader asks its model about one answer."""

    grader: ScoreModel | LabelModel
    model: str
    chat: tuple[dict[str, Any], ...]

    @classmethod
    def about(cls, grader: ScoreModel | LabelModel, model: str, values: Mapping[str, Any]) -> ModelQuestion:
        """Raises NotInSample and ValueError as `filled` does."""
        return cls(grader, model, tuple(_message(message, values) for message in grader.input))

    def key(self, model: Any) -> str:
        """A SHA-256 hash, in hex, of everything that decides an answer."""
        whole = [VERSION, model, self.model, self.chat, self.grader.model_dump(mode="json")]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def messages(self) -> list[dict[str, Any]]:
        """The chat to send."""
        return list(self.chat)

    def fields(self, structured: str) -> dict[str, Any]:
        """The request's further fields. An endpoint that does not enforce the schema is told it in a message."""
        sampling = self.grader.sampling_params
        given: dict[str, Any] = {"model": self.model, **(sampling.request() if sampling else {})}
        if structured == "json_schema":
            schema = {"name": "grade", "strict": True, "schema": self._schema()}
            return {**given, "response_format": {"type": structured, "json_schema": schema}}
        form = f"Answer with one JSON object of this schema and nothing else:\n{json.dumps(self._schema())}"
        given["messages"] = [*self.chat, {"role": "system", "content": form}]
        return {**given, **({"response_format": {"type": structured}} if structured == "json_object" else {})}

    def _schema(self) -> dict[str, Any]:
        labels = (
            {"type": "string", "enum": list(self.grader.labels)}
            if isinstance(self.grader, LabelModel)
            else None
        )
        return {
            "type": "object",
            "properties": {"result": labels or {"type": "number"}, "steps": _STEPS},
            "required": ["result", "steps"],
            "additionalProperties": False,
        }

    def read(self, content: str) -> Graded:
        """The grade in an answer. Raises MalformedVerdict."""
        fence = _CODE_BLOCK.fullmatch(content.strip())
        try:
            answer = json.loads(fence[1] if fence else content)
        except (ValueError, RecursionError):
            answer = None
        result = answer.get("result") if isinstance(answer, dict) else answer
        if isinstance(self.grader, LabelModel):
            if result in self.grader.labels:
                return Graded(score=float(result in self.grader.passing_labels))
        elif isinstance(result, int | float) and not isinstance(result, bool) and result == result:
            low, high = self.grader.range or (0.0, 1.0)
            return Graded(score=min(max(float(result), low), high))
        shown = " ".join(content.split())[:200]
        raise MalformedVerdict(
            f"{self.grader.name or self.grader.type}: the model said {shown!r}, which is not a grade."
        )


def _message(message: Message, values: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a chat completions request."""
    content = message.content
    given: Any
    if isinstance(content, str):
        given = filled(content, values)
    else:
        given = [_part(part, values) for part in (content if isinstance(content, tuple) else (content,))]
    return {"role": "system" if message.role == "developer" else message.role, "content": given}


def _part(part: str | TextPart | ImagePart, values: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "image_url", "image_url": {"url": filled(part.image_url, values), **detail}}
    return {"type": "text", "text": filled(part if isinstance(part, str) else part.text, values)}
