"""Supervised fine-tuning: transcripts as batches for the same loop and Trainer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ajet import plugin_names
from ajet.chat.finished import Sampled, sampled_in
from ajet.chat.renderer import Chat
from ajet.interfaces.reader import is_trajectory, tasks_of_step
from ajet.learning.algorithms import SFT
from ajet.learning.batch import RolloutBatch
from ajet.learning.settings import TrainSettings
from ajet.types import AjetError, Batch, ConfigError, Sample

Read = TypeVar("Read")
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class FinishedChat:
    """A finished chat, in the chat completions form."""

    messages: Sequence[Mapping[str, Any]]
    """Answers with ``weight: 0`` are context."""
    tools: Sequence[Mapping[str, Any]] = ()
    where: str = "a transcript"
    """``chats.jsonl:17``, for errors."""


def read_transcripts(path: Path) -> list[FinishedChat]:
    """Transcripts of a JSON lines file, whose lines may be trajectories in ATIF, or of a file that is one trajectory, or of all
    ``trajectory*.json`` below a folder. Raises ConfigError with file and line."""
    if path.is_dir():
        files = sorted(path.rglob("trajectory*.json"))
        if not files:
            raise ConfigError(f"{path}: contains no trajectory*.json.")
        return [transcript for file in files for transcript in read_transcripts(file)]
    if path.suffix == ".json" and is_trajectory(whole := _whole(path)):
        return _transcripts(whole, str(path))
    return [one for several in read_lines(path, "transcript", _transcripts) for one in several]


def _transcripts(data: Mapping[str, Any], where: str) -> list[FinishedChat]:
    """The transcript of a line, or those of a trajectory."""
    if not is_trajectory(data):
        messages = messages_of(data.get("messages"), "messages", where)
        return [checked_transcript(messages, data.get("tools") or (), where)]
    atif = plugin_names.atif
    try:
        told = list(atif.transcripts_of(data))
    except atif.UNREADABLE as error:
        raise ConfigError(where, f"cannot be read as a trajectory in ATIF ({error!r}).") from None
    if not told:
        raise ConfigError(where, "the trajectory has no answer of a model to learn. Leave it out.")
    return [
        checked_transcript(messages, tools, f"{where}: {name}" if name else where)
        for name, messages, tools in told
    ]


def _whole(path: Path) -> Any:
    """What a file holds if it is one JSON value; None if it is not."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def read_lines(path: Path, what: str, read: Callable[[Mapping[str, Any], str], Read]) -> list[Read]:
    """What ``read`` makes of each object of a JSON lines file and its place. Raises ConfigError with file and line, also if
    the file contains nothing."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such {what} file.")
    # Split only at newlines: JSON strings may contain other Unicode line ends.
    lines = enumerate(path.read_bytes().split(b"\n"), 1)
    places = [(line, f"{path}:{number}") for number, line in lines if line.strip()]
    records = [read(_object(line, where), where) for line, where in places]
    if not records:
        raise ConfigError(f"{path}: contains no {what}.")
    return records


def _object(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:  # also for text that is not UTF-8
        raise ConfigError(where, f"not JSON ({error}). Fix the line.") from None
    return data if isinstance(data, dict) else {}


def messages_of(value: Any, name: str, where: str) -> Sequence[Mapping[str, Any]]:
    """A line's list of messages. Raises ConfigError if it is something else."""
    if not isinstance(value, list) or not all(isinstance(m, dict) for m in value):
        raise ConfigError(
            f'{where}: needs `{name}`, a list of objects like {{"role": "user", "content": "…"}}.'
        )
    return value


def checked_transcript(messages: Sequence[Mapping[str, Any]], tools: Any, where: str) -> FinishedChat:
    """A transcript from which something can be learned. Raises ConfigError."""
    for message in messages:
        if message.get("role") not in _ROLES:  # chat formats ignore roles that they do not know
            raise ConfigError(
                where, f"a message has the role {message.get('role')!r}; known: {', '.join(_ROLES)}."
            )
        if not (message.get("weight") is None or message["weight"] in (0, 1)):
            raise ConfigError(
                where,
                f"a message has the weight {message['weight']!r}; write 0, for context, or 1, to learn it.",
            )
    if not any(m["role"] == "assistant" and m.get("weight") != 0 for m in messages):
        raise ConfigError(where, "has no assistant message to learn.")
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, dict) for tool in tools):
        raise ConfigError(where, "`tools` must be a list of objects.")
    return FinishedChat(messages, tools, where)


def transcript_samples(
    chat: Chat, transcripts: Sequence[FinishedChat], longest: int, say: Callable[[str], None]
) -> list[list[Sample]]:
    """The samples of each transcript; ``say`` gets what the chat format leaves out or rewrites. Raises ConfigError, which
    names the first transcript of which the chat format cannot write all answers, or that has more than ``longest`` tokens."""
    samples = []
    remarks: dict[str, list[str]] = {}
    for transcript in transcripts:
        lines = _lines(chat, transcript, longest)
        samples.append([_sample(line) for line in lines])
        for remark in dict.fromkeys(r for line in lines for r in _remarks(line)):
            remarks.setdefault(remark, []).append(transcript.where)
    for remark, places in remarks.items():
        say(f"{places[0]}{f' and {len(places) - 1} more' if places[1:] else ''}: {remark}")
    return samples


def samples_of(chat: Chat, transcript: FinishedChat) -> list[Sample]:
    """The samples of one transcript, of any length. Raises ConfigError."""
    return [_sample(line) for line in _lines(chat, transcript)]


def _lines(chat: Chat, transcript: FinishedChat, longest: float = math.inf) -> list[Sampled]:
    try:
        lines = sampled_in(chat, transcript.messages, transcript.tools)
    except AjetError as error:
        raise ConfigError(f"{transcript.where}: the chat format cannot render it: {error}") from error
    weights = iter([m.get("weight") for m in transcript.messages[1:] if m["role"] == "assistant"])
    for line in lines:
        line.spans = [span for span in line.spans if next(weights) != 0]
    lines = [line for line in lines if line.spans]
    length = max((len(line.ids) for line in lines), default=0)
    if not length:
        raise ConfigError(
            transcript.where,
            "has its only assistant message first, where it answers no prompt. Put the prompt before it.",
        )
    if length > longest:
        raise ConfigError(
            f"{transcript.where}: has {length} tokens, but the model's context holds {longest}. "
            "Shorten it or leave it out."
        )
    return lines


def _remarks(line: Sampled) -> Iterator[str]:
    if line.cause:
        yield f"becomes several samples ({line.cause}), so that each answer is trained in the chat in which it is sampled"
    if line.stripped:
        yield "the chat template leaves out the space around an answer, so that is not trained"


def _sample(line: Sampled) -> Sample:
    """A sample whose answers are trained, weight 1 for each token (scaled by `sft_batch`)."""
    mask = np.zeros(len(line.ids), np.bool_)
    for begin, end in line.spans:
        mask[begin:end] = True
    on = mask.astype(np.float32)
    return Sample(np.array(line.ids, np.int32), mask, np.full(len(mask), np.nan, np.float32), on, on)


def sft_batch(samples: Sequence[Sample], learning_rate: float) -> Batch:
    """One optimizer step on the mean loss over all trained tokens of the samples."""
    total = sum(int(s.mask.sum()) for s in samples)
    scaled = [replace(s, weights=s.weights / np.float32(total)) for s in samples]
    return Batch(scaled, SFT().loss, [list(range(len(scaled)))], learning_rate)


@dataclass(frozen=True, slots=True)
class TranscriptSource:
    """A `BatchSource` over the samples of each transcript: each epoch is a new permutation. ``epochs`` bounds how
    often each is shown."""

    samples: Sequence[Sequence[Sample]]
    settings: TrainSettings
    seed: int
    epochs: int | None = None

    async def batch(self, step: int, version: int) -> RolloutBatch:
        """See `BatchSource.batch`."""
        places = in_epochs(step, self.settings.batch_size, len(self.samples), self.seed, self.epochs)
        chosen = [sample for i in places for sample in self.samples[i]]
        tokens = sum(int(s.mask.sum()) for s in chosen)
        return RolloutBatch(sft_batch(chosen, self.settings.rate_at(step)), tokens, {})


def in_epochs(step: int, batch_size: int, count: int, seed: int, epochs: int | None = None) -> list[int]:
    """The indices, of ``count`` things, in the batch of a step: each epoch is a permutation of its own. The last batch of ``epochs``
    may be smaller."""
    batch = tasks_of_step(range(count), step - 1, batch_size, seed)
    return batch if epochs is None else batch[: max(epochs * count - (step - 1) * batch_size, 0)]


def steps_for(epochs: int, transcripts: int, batch_size: int) -> int:
    """Steps that show every transcript ``epochs`` times."""
    return -(-epochs * transcripts // batch_size)
