"""What the reflection model gets to see of an episode."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ajet.rollout.episode import Episode

MOST_TASK, MOST_CHAT, MOST_RESULT = 3000, 6000, 2000
"""Characters of each part; the rest is cut out of the middle, and the cut says how much is missing."""


def example(episode: Episode) -> dict[str, str]:
    """The task, the chats without their system prompts, the result and the verdict of an episode."""
    task = episode.plan.task
    known = {"query": task.query, "messages": list(task.messages), **task.metadata}
    view = episode.view()
    parts = {
        "Task": _shortened(_written({k: v for k, v in known.items() if v}), MOST_TASK),
        "Messages": _shortened(_chats(view.messages), MOST_CHAT),
        "Result": _shortened(_written(episode.output.response), MOST_RESULT),
        "Feedback": _verdict(episode),
    }
    return {name: text for name, text in parts.items() if text}


def _verdict(episode: Episode) -> str:
    if episode.failure:
        return f"The episode failed, which counts as reward 0. {episode.failure}: {episode.error}"
    success = {True: ", a success", False: ", not a success", None: ""}[episode.is_success]
    figures = "".join(f"\n{name}: {value:g}" for name, value in sorted(episode.metrics.items()))
    words = f"\n{episode.feedback}" if episode.feedback else ""
    return f"Reward {episode.reward:g}{success}.{figures}{words}"


def _chats(chats: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """The longest chats: those that no other one continues."""
    longest: list[list[Mapping[str, Any]]] = []
    for chat in sorted(map(list, chats), key=len, reverse=True):
        if not any(other[: len(chat)] == chat for other in longest):
            longest.append(chat)
    return "\n\n---\n\n".join(
        "\n".join(_message(message) for message in chat if message.get("role") != "system")
        for chat in longest
    )


def _message(message: Mapping[str, Any]) -> str:
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    content = _written(message.get("content")) if message.get("content") else ""
    return f"{message.get('role')}: {content}{' calls ' + _written(calls) if calls else ''}"


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n[… {len(text) - most:,} characters …]\n{text[-most // 2 :]}"
