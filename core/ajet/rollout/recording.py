"""A recording: episodes with everything that is needed to run them again without a model, as one JSON file for people.

`ajet.reports.recording` makes recordings of run folders, `ajet.runs.replay` replays them.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from ajet import plugin_names
from ajet.capture.answers import logprobs_for_client
from ajet.capture.judge_calls import JudgeCall
from ajet.interfaces.reader import is_trajectory
from ajet.interfaces.wire import Answer, Refused
from ajet.types import AjetError, ConfigError, FinishReason, Task
from ajet.utils.files import write_whole

VERSION = 1


class _Part(BaseModel):
    """A part of the file. Fields that it does not know are ignored."""

    model_config = ConfigDict(frozen=True)


class RecordedRequest(_Part):
    """What an agent sent."""

    messages: list[dict[str, Any]] = []
    """In the chat completions form, whatever the API was."""
    tools: list[dict[str, Any]] = []
    prompt: str | list[int] | None = None
    """Text or token ids to continue, in place of messages."""
    sampling: dict[str, Any] = {}
    """The parameters that the request set. A replay does not compare them."""


class Usage(_Part):
    """Tokens of a call; 0 if a chat model answered."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None


class Tokens(_Part):
    """The sampled tokens, one entry each."""

    ids: list[int]
    logprobs: list[float]
    texts: list[str] | None = None
    """None if the run folder has no tokenizer."""


class RecordedReply(_Part):
    """What the model said."""

    message: dict[str, Any]
    finish_reason: FinishReason = "stop"
    stop: str | None = None
    """The stop string that ended it."""
    usage: Usage = Usage()
    tokens: Tokens | None = None

    def answer(self) -> Answer:
        """The reply as capture gives it to a client."""
        logprobs = None
        if self.tokens and self.tokens.texts is not None:
            given = logprobs_for_client(np.asarray(self.tokens.logprobs, np.float32))
            logprobs = tuple(zip(self.tokens.texts, given, strict=False))
        used = self.usage
        return Answer(
            self.message,
            self.finish_reason,
            used.prompt_tokens,
            used.completion_tokens,
            logprobs,
            used.reasoning_tokens,
            self.stop,
        )


class RecordedError(_Part):
    """An error that the agent's client got in place of a reply."""

    code: str
    status: int = 400
    message: str = ""


class RecordedCall(_Part):
    """An LLM call of the workflow, with a reply or an error."""

    agent: str = "agent"
    target: str = "policy"
    request: RecordedRequest
    reply: RecordedReply | None = None
    error: RecordedError | None = None

    @model_validator(mode="after")
    def _answered(self) -> Self:
        if (self.reply is None) == (self.error is None):
            raise ValueError("needs either a reply or an error")
        return self

    def answer(self) -> Answer | Refused:
        """What capture gives the client."""
        if self.reply is not None:
            return self.reply.answer()
        assert self.error
        return Refused(self.error.message, code=self.error.code, status=self.error.status)


class RecordedJudgeCall(_Part):
    """An LLM call of the judge."""

    url: str = ""
    request: Any
    response: Any

    def call(self) -> JudgeCall:
        """The call as capture keeps it."""
        return JudgeCall(self.url, self.request, self.response)


class RecordedVerdict(_Part):
    """What the judge said."""

    reward: FiniteFloat
    rewards: dict[str, FiniteFloat] = {}
    is_success: bool | None = None
    metrics: dict[str, float] = {}
    feedback: str = ""
    call_rewards: dict[int, FiniteFloat] = {}


class GivenTask(_Part):
    """The task of an episode."""

    id: str
    query: str = ""
    messages: list[dict[str, Any]] = []
    metadata: dict[str, Any] = {}

    def task(self) -> Task:
        """The task as workflows get it."""
        return Task(self.id, self.query, tuple(self.messages), self.metadata)


class RecordedEpisode(_Part):
    """An episode."""

    id: str
    group: str
    """Equal for the episodes of one group."""
    member: int = 0
    task: GivenTask
    calls: list[RecordedCall] = []
    judge_calls: list[RecordedJudgeCall] = []
    response: Any = None
    """What the workflow returned."""
    verdict: RecordedVerdict | None = None
    """None if the episode failed."""
    failure: str | None = None
    error: str = ""
    """The failure in words."""


class Recording(_Part):
    """The file."""

    recording: int = VERSION
    """The version of this format."""
    ajet: str = Field(default_factory=lambda: importlib.metadata.version("ajet"))
    """The version that wrote it."""
    run: str = ""
    """The name of the run folder."""
    episodes: list[RecordedEpisode]

    @classmethod
    def read(cls, file: Path) -> Self:
        """A recording, or a trajectory in ATIF as a recording of one episode. Raises ConfigError if the file is neither, or a
        recording of another version."""
        try:
            data = json.loads(file.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{file}: cannot be read ({error.strerror}). Name a file that `--record` wrote."
            ) from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file}: not JSON ({error}). Record again, or restore the file.") from None
        if is_trajectory(data):
            atif = plugin_names.atif
            try:
                data = {"recording": VERSION, "episodes": [atif.recorded(data)]}
            except atif.UNREADABLE as error:
                raise ConfigError(f"{file}: cannot be read as a trajectory in ATIF ({error!r}).") from None
        if not isinstance(data, dict) or "recording" not in data:
            raise ConfigError(
                f"{file}: not a recording. Name a file that `--record` wrote, or a trajectory in ATIF."
            )
        if data["recording"] != VERSION:
            raise ConfigError(
                f"{file}: a recording of version {str(data['recording'])[:20]!r}, written by ajet {str(data.get('ajet'))[:20]}; this "
                f"ajet reads version {VERSION}. Record again."
            )
        try:
            read = cls.model_validate(data)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, fault["loc"]))
            raise ConfigError(
                f"{file}: {place}: {fault['msg'].lower()}. Record again, or correct the file."
            ) from None
        for id_, count in Counter(episode.id for episode in read.episodes).items():
            if count > 1:
                raise ConfigError(f"{file}: {count} episodes have the id {id_!r}. Remove all but one.")
        return read

    def text(self) -> str:
        """The file's text: indented JSON, with lists of numbers or words in one line."""
        head = {"recording": VERSION, "ajet": self.ajet}
        return "".join(_written(head | self.model_dump(mode="json", exclude_defaults=True), 0)) + "\n"

    def write(self, file: Path) -> None:
        """Write the file. Raises AjetError."""
        write_whole(file, self.text())

    def find(self, episode: str) -> RecordedEpisode:
        """The episode whose id is, or contains, a text. Raises AjetError if there is not exactly one."""
        matching = [e for e in self.episodes if e.id == episode] or [
            e for e in self.episodes if episode in e.id
        ]
        if len(matching) == 1:
            return matching[0]
        some = ", ".join(e.id for e in (matching or self.episodes)[:5])
        raise AjetError(
            f"{episode or 'the recording'}: {len(matching)} episodes have this in their id. Name one: {some}."
        )


def _written(value: Any, depth: int) -> Iterator[str]:
    """JSON text, indented by one space a level."""
    if isinstance(value, Mapping) and value:
        opening, closing = "{", "}"
        items: Sequence[tuple[str, Any]] = [(f"{_scalar(key)}: ", inner) for key, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        opening, closing = "[", "]"
        items = [("", inner) for inner in value]
    elif isinstance(value, list):
        yield f"[{', '.join(map(_scalar, value))}]"
        return
    else:
        yield _scalar(value)
        return
    inside = "\n" + " " * (depth + 1)
    for number, (start, inner) in enumerate(items):
        yield f"{opening if number == 0 else ','}{inside}{start}"
        yield from _written(inner, depth + 1)
    yield f"\n{' ' * depth}{closing}"


def _scalar(value: Any) -> str:
    """A value as JSON, readable unless it holds half a surrogate pair, which UTF-8 cannot."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or _is_whole(text) else json.dumps(value)


def _is_whole(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
