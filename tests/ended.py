"""Random episodes that have ended, as loggers get them, with messages as odd as agents and models make them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ajet.interfaces.events import EpisodeCall, EpisodeEnd, Image
from ajet.tracker.timelines import Timeline
from ajet.types import Span, Task

Message = Mapping[str, Any]
TOOLS = (
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}},
)
ARGUMENTS = (
    '{"a": 1}',
    "{}",
    '{"deep": {"ü": [true, null, 1.5]}}',
    '{"big": 123456789012345678901}',
    "",
    "[1]",
    '{"a": NaN}',
    '{"a": 1e999}',
    '{"a": ',
    "[" * 5_000,
)
WORDS = ("", "yes", "a\nb", " ", "näh 🙂", "\u2028", '{"role": "tool"}')
IMAGES = {
    f"sha256:{n:064x}": Image(f"sha256:{n:064x}", b"", kind, -1 - n) for n, kind in ((1, "png"), (2, "jpeg"))
}


def ended(seed: int, run_dir: Path = Path("runs/one")) -> EpisodeEnd:
    """An episode with up to eight calls in up to three conversations."""
    source = random.Random(seed)
    calls: list[EpisodeCall] = []
    chats: list[Sequence[Message]] = []
    lines: list[Timeline] = []
    for number in range(source.randrange(9)):
        before = source.choice([(), *chats])
        agent, target = source.choice((("agent", "policy"), ("critic", "policy"), ("agent", "frozen")))
        asked = [*before, *_more(source, before[-1] if before else None)]
        answer = _answer(source)
        length = source.randrange(1, 5)
        sampled = target == "policy"
        calls.append(
            EpisodeCall(
                agent=agent,
                target=target,
                started=source.choice((0.0, 1_790_000_000 + number / 8)),
                seconds=0.5,
                prompt_tokens=3 if sampled else None,
                sampled_tokens=length if sampled else None,
                truncated=source.random() < 0.2,
                number=number,
                tools=source.choice(((), TOOLS)),
            )
        )
        chats.append([*asked, answer])
        if sampled:
            lines.append(_line(number, length, source.random() < 0.2))
    return EpisodeEnd(
        run_dir=run_dir,
        id=f"1.{seed}/t/0",
        phase="train",
        step=1,
        task=Task("t", source.choice(("", "1 + 2?")), metadata={"answer": "3", "odd": float("nan")}),
        reward=source.random(),
        is_success=source.choice((None, True)),
        failure=source.choice((None, None, "timeout")),
        metrics={"length": 1.0, "nan": float("nan")},
        response=source.choice((None, "text", {"a": [1, Path("x")]}, object())),
        messages=chats,
        calls=calls,
        images=IMAGES,
        timelines=lines,
    )


def _more(source: random.Random, last: Message | None) -> Iterator[Message]:
    """What follows an answer: results of its tools, in their order or another, some missing; then perhaps what people say."""
    asked = [call["id"] for call in (last or {}).get("tool_calls", ())]
    if source.random() < 0.3:
        source.shuffle(asked)
    if source.random() < 0.2:
        yield {"role": "user", "content": "wait"}
    for identity in asked:
        if source.random() < 0.9:
            yield {"role": "tool", "content": _content(source), "tool_call_id": identity}
    if source.random() < 0.1:
        yield {"role": "tool", "content": "of no call", "tool_call_id": "c99"}
    if source.random() < 0.1:
        yield {"role": "tool", "content": "without an id", "name": "look"}
    if last is None and source.random() < 0.5:
        yield {"role": "system", "content": source.choice(WORDS)}
    if source.random() < 0.2:
        yield {**_answer(source), "content": "an example"}
    if last is None or source.random() < 0.5:
        yield {"role": "user", "content": _content(source), **source.choice(({}, {"name": "ann"}))}
    if source.random() < 0.05:
        yield {"role": "user", "content": "a call?", "tool_calls": [_call(source, 0)]}


def _content(source: random.Random) -> Any:
    if source.random() < 0.8:
        return source.choice(WORDS)
    images = [{"type": "image", "image": ref} for ref in source.sample(list(IMAGES), source.randrange(1, 3))]
    return [{"type": "text", "text": "see"}, *images]


def _answer(source: random.Random) -> Message:
    answer: dict[str, Any] = {"role": "assistant", "content": source.choice(WORDS)}
    if source.random() < 0.3:
        answer["reasoning_content"] = source.choice(("so", "yes"))
    if source.random() < 0.5:
        answer["tool_calls"] = [_call(source, n) for n in range(source.randrange(1, 4))]
    return answer


def _call(source: random.Random, number: int) -> Message:
    identity = source.choice((f"c{number}", f"c{source.randrange(3)}", ""))
    return {
        "id": identity,
        "type": "function",
        "function": {"name": "look", "arguments": source.choice(ARGUMENTS)},
    }


def _line(call: int, length: int, image: bool) -> Timeline:
    """Three tokens of a prompt, one of which may be an image's, and an answer."""
    ids = np.array([7, -2 if image else 8, 9, *range(10, 10 + length)], np.int32)
    mask = np.arange(len(ids)) >= 3
    logprobs = np.where(mask, np.float32(-0.1), np.float32("nan")).astype(np.float32)
    versions = np.where(mask, 4, -1).astype(np.int32)
    return Timeline(ids, mask, logprobs, versions, (Span(3, len(ids), call, "agent", "policy", 0.7),))
