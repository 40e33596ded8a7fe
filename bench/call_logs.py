"""Logs of LLM calls as agents make them, with token ids: the common work of everything about timelines.

A log is a list of calls in the order in which they were made. Text and ids go together: a message's text
is its ids in words, except where a scenario changes one of the two on purpose. The chat format is
ChatML's: a header of three tokens, the body, an end and a newline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.types import Float32, Int32

Message = dict[str, Any]

VOCABULARY = 1000
ROLES = {"system": 0, "user": 1, "assistant": 2, "tool": 3}
START, END, NEWLINE, FIRST_WORD = 4, 5, 6, 8
WORDS = np.array([f"w{token:03d}" for token in range(VOCABULARY)])


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One call. The prompt is a view of its conversation's ids, so a long log stays small."""

    number: int
    agent: str
    prompt_ids: Int32
    completion_ids: Int32
    logprobs: Float32
    conversation: list[Message]
    said: int
    """How many messages of the conversation the prompt holds."""

    @property
    def prompt_messages(self) -> list[Message]:
        """The prompt's messages."""
        return self.conversation[: self.said]

    @property
    def answer(self) -> Message:
        """The sampled message, as the client got it."""
        text = " ".join(WORDS[self.completion_ids[:-1]])
        return {"role": "assistant", "content": text}

    @property
    def messages(self) -> list[Message]:
        """The prompt's messages and the answer."""
        return [*self.prompt_messages, self.answer]


class Conversation:
    """What one agent has heard and said so far. It only grows; `fork` where history goes another way."""

    def __init__(self, log: Log, agent: str) -> None:
        self.log = log
        self.agent = agent
        self.messages: list[Message] = []
        self.ids: list[Int32] = []

    def fork(self, keep: int | None = None) -> Conversation:
        """Another conversation that begins like this one (with its first ``keep`` messages)."""
        other = Conversation(self.log, self.agent)
        other.messages, other.ids = self.messages[:keep], self.ids[:keep]
        return other

    def say(self, role: str, tokens: int) -> Conversation:
        """A message of so many random tokens."""
        return self.quote(role, self.log.words(tokens))

    def quote(self, role: str, body: Int32, text: str | None = None) -> Conversation:
        """A message of these tokens; its text is theirs unless it is given."""
        text = " ".join(WORDS[body]) if text is None else text
        self.messages.append({"role": role, "content": text})
        head = [START, ROLES[role], NEWLINE]
        self.ids.append(np.concatenate([head, body, [END, NEWLINE]]).astype(np.int32))
        return self

    def call(self, low: int, high: int | None = None) -> Int32:
        """An answer of ``low`` to ``high`` tokens: its call goes to the log, its body is returned. It is
        not part of the conversation until it is quoted."""
        body = self.log.words(self.log.between(low, high or low))
        self.log.entries.append((self, len(self.messages), body))
        return body


class Log:
    """Collects the calls of one episode."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        self.rng = np.random.default_rng(seed)
        self.scale = scale
        self.entries: list[tuple[Conversation, int, Int32]] = []

    def scaled(self, tokens: int) -> int:
        """That many tokens at this log's scale, at least one."""
        return max(1, int(tokens * self.scale))

    def words(self, tokens: int) -> Int32:
        return self.rng.integers(FIRST_WORD, VOCABULARY, self.scaled(tokens)).astype(np.int32)

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def calls(self) -> list[LoggedCall]:
        """The log. The answer's header ends each prompt, so prompts are cut from the rendered chat."""
        header = np.array([START, ROLES["assistant"], NEWLINE], np.int32)
        rendered: dict[int, tuple[Int32, list[int]]] = {}
        found = []
        for number, (chat, said, body) in enumerate(self.entries):
            if id(chat) not in rendered:
                ends = np.cumsum([0, *map(len, chat.ids)]).tolist()
                rendered[id(chat)] = np.concatenate([*chat.ids, header]), ends
            ids, ends = rendered[id(chat)]
            stop = ends[said] + len(header)
            prompt = ids[:stop]
            if not np.array_equal(prompt[-len(header) :], header):  # something else was said next
                prompt = np.concatenate([ids[: ends[said]], header])
            completion = np.append(body, np.int32(END))
            logprobs = -self.rng.exponential(0.5, len(completion)).astype(np.float32)
            found.append(LoggedCall(number, chat.agent, prompt, completion, logprobs, chat.messages, said))
        return found


def tool30(log: Log, turns: int = 30) -> None:
    """A tool agent: each answer is followed by a tool's result."""
    chat = Conversation(log, "solver").say("system", 400).say("user", 120)
    for _ in range(turns):
        chat.quote("assistant", chat.call(30, 70)).say("tool", log.between(40, 110))


def grow(log: Log, calls: int) -> None:
    """A conversation of so many short turns."""
    chat = Conversation(log, "solver").say("system", 100).say("user", 30)
    for _ in range(calls):
        chat.quote("assistant", chat.call(20)).say("tool", 20)


def drift(log: Log) -> None:
    """A tool agent whose framework changes 20 % of the answers before it sends them back."""
    chat = Conversation(log, "solver").say("system", 400).say("user", 120)
    for _ in range(30):
        body = chat.call(30, 70)
        if log.chance(0.2):
            body = np.concatenate([body[: len(body) // 2], log.words(5)])
        chat.quote("assistant", body).say("tool", log.between(40, 110))


def retok(log: Log) -> None:
    """A tool agent 20 % of whose answers come back as other tokens of the same text."""
    chat = Conversation(log, "solver").say("system", 400).say("user", 120)
    for _ in range(30):
        body = again = chat.call(30, 70)
        if log.chance(0.2):
            half = len(body) // 2
            again = np.concatenate([body[:half], log.words(2), body[half + 3 :]])
        chat.quote("assistant", again, " ".join(WORDS[body])).say("tool", log.between(40, 110))


def retry(log: Log) -> None:
    """An agent that shows the model its malformed answers and the errors until one is well-formed, and
    then forgets them."""
    chat = Conversation(log, "solver").say("system", 300).say("user", 100)
    for _ in range(25):
        attempt = chat
        body = attempt.call(30, 80)
        for _ in range(3):
            if not log.chance(0.35):
                break
            attempt = chat.fork().quote("assistant", body).say("user", log.between(40, 90))
            body = attempt.call(30, 80)
        chat.quote("assistant", body).say("tool", log.between(60, 140))


def fanout(log: Log) -> None:
    """Sixteen sub-agents that share eight thousand tokens."""
    trunk = Conversation(log, "branch").say("system", 2000).say("user", 6000)
    for number in range(16):
        chat = trunk.fork().say("user", 20)
        chat.agent = f"branch{number}"
        for _ in range(3):
            chat.quote("assistant", chat.call(100, 200)).say("tool", 60)


def werewolf(log: Log, calls: int = 200) -> None:
    """Nine players hear each other; now and then their memories are compressed to a summary."""
    begun = [Conversation(log, f"player{i}").say("system", 600) for i in range(9)]
    players = [chat.fork().say("user", 80) for chat in begun]
    for number in range(calls):
        speaker = players[number % 9]
        body = speaker.call(40, 90)
        speaker.quote("assistant", body)
        heard = np.append(np.int32(FIRST_WORD + number % 9), body[-log.scaled(40) :])
        for player in players:
            if player is not speaker:
                player.quote("user", heard)
        if number % 72 == 71:
            players = [chat.fork().say("user", 200) for chat in begun]


def mixed(log: Log, calls: int) -> None:
    """Nine agents in turn, each with its own growing context that is cut at forty messages."""
    chats = [Conversation(log, f"agent{i}").say("system", 100).say("user", 30) for i in range(9)]
    for number in range(calls):
        chat = chats[number % 9]
        chat.quote("assistant", chat.call(20)).say("user", 20)
        if len(chat.messages) > 40:
            chats[number % 9] = chat.fork(1).say("user", 60)


SCENARIOS: dict[str, Callable[[Log], None]] = {
    "tool30": tool30,
    "werewolf": werewolf,
    "retry": retry,
    "fanout": fanout,
    "drift": drift,
    "retok": retok,
    "grow": lambda log: grow(log, 100),
    "mixed": lambda log: mixed(log, 1000),
}
"""The scenarios, `grow` and `mixed` at a size for comparing rows; both take any number of calls."""


def make_log(scenario: Callable[[Log], None], seed: int = 0, scale: float = 1.0) -> list[LoggedCall]:
    """The calls of a scenario, its texts shortened by ``scale``; equal seeds give equal logs."""
    log = Log(seed, scale)
    scenario(log)
    return log.calls()
