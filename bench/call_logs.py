"""Synthetic logs of agents' LLM calls, with token ids: the workload of the benchmarks of timelines.

A log is a list of calls in order. A message's text is its ids as words, unless a scenario changes one of the two on
purpose. The chat format is ChatML's: a header of three tokens, the body, an end and a newline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord
from ajet.types import Float32, Generation, Int32

Message = dict[str, Any]

VOCABULARY = 1000
ROLES = {"system": 0, "user": 1, "assistant": 2, "tool": 3}
START, END, NEWLINE, FIRST_WORD = 4, 5, 6, 8
TURNS = 12
"""Of an episode of `forks`."""
WORDS = np.array([f"w{token:03d}" for token in range(VOCABULARY)])


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One call. The prompt is a view of its conversation's ids, so a long log needs little memory."""

    number: int
    agent: str
    prompt_ids: Int32
    completion_ids: Int32
    logprobs: Float32
    conversation: list[Message]
    length: int
    """Number of the conversation's messages that are in the prompt."""

    @property
    def prompt_messages(self) -> list[Message]:
        """The prompt's messages."""
        return self.conversation[: self.length]

    @property
    def answer(self) -> Message:
        """The sampled message, as the client receives it."""
        text = " ".join(WORDS[self.completion_ids[:-1]])
        return {"role": "assistant", "content": text}

    @property
    def messages(self) -> list[Message]:
        """The prompt's messages and the answer."""
        return [*self.prompt_messages, self.answer]


class Conversation:
    """One agent's messages so far. It only grows; use `fork` where history branches."""

    def __init__(self, log: Log, agent: str) -> None:
        self.log = log
        self.agent = agent
        self.messages: list[Message] = []
        self.ids: list[Int32] = []

    def fork(self, keep: int | None = None) -> Conversation:
        """A new conversation with this one's messages, or only its first ``keep``."""
        other = Conversation(self.log, self.agent)
        other.messages, other.ids = self.messages[:keep], self.ids[:keep]
        return other

    def add_random(self, role: str, tokens: int) -> Conversation:
        """Add a message of this many random tokens."""
        return self.add(role, self.log.words(tokens))

    def add(self, role: str, body: Int32, text: str | None = None) -> Conversation:
        """Add a message of these tokens; by default its text is their words."""
        text = " ".join(WORDS[body]) if text is None else text
        self.messages.append({"role": role, "content": text})
        head = [START, ROLES[role], NEWLINE]
        self.ids.append(np.concatenate([head, body, [END, NEWLINE]]).astype(np.int32))
        return self

    def call(self, low: int, high: int | None = None) -> Int32:
        """Log a call whose answer has ``low`` to ``high`` tokens, and return the answer's tokens. The answer is not in the
        conversation until it is added."""
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
        """A number of tokens at this log's scale, at least one."""
        return max(1, int(tokens * self.scale))

    def words(self, tokens: int) -> Int32:
        return self.rng.integers(FIRST_WORD, VOCABULARY, self.scaled(tokens)).astype(np.int32)

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def calls(self) -> list[LoggedCall]:
        """The calls so far. Each prompt ends with the answer's header, so prompts are slices of the rendered chat."""
        header = np.array([START, ROLES["assistant"], NEWLINE], np.int32)
        rendered: dict[int, tuple[Int32, list[int]]] = {}
        found = []
        for number, (chat, length, body) in enumerate(self.entries):
            if id(chat) not in rendered:
                ends = np.cumsum([0, *map(len, chat.ids)]).tolist()
                rendered[id(chat)] = np.concatenate([*chat.ids, header]), ends
            ids, ends = rendered[id(chat)]
            stop = ends[length] + len(header)
            prompt = ids[:stop]
            if not np.array_equal(prompt[-len(header) :], header):  # the next message has another role
                prompt = np.concatenate([ids[: ends[length]], header])
            completion = np.append(body, np.int32(END))
            logprobs = -self.rng.exponential(0.5, len(completion)).astype(np.float32)
            found.append(LoggedCall(number, chat.agent, prompt, completion, logprobs, chat.messages, length))
        return found


def tool30(log: Log, turns: int = 30) -> None:
    """A tool agent: each answer is followed by a tool's result."""
    chat = Conversation(log, "solver").add_random("system", 400).add_random("user", 120)
    for _ in range(turns):
        chat.add("assistant", chat.call(30, 70)).add_random("tool", log.between(40, 110))


def grow(log: Log, calls: int) -> None:
    """A conversation of ``calls`` short turns."""
    chat = Conversation(log, "solver").add_random("system", 100).add_random("user", 30)
    for _ in range(calls):
        chat.add("assistant", chat.call(20)).add_random("tool", 20)


def drift(log: Log) -> None:
    """A tool agent whose framework changes 20 % of the answers before it sends them back."""
    chat = Conversation(log, "solver").add_random("system", 400).add_random("user", 120)
    for _ in range(30):
        body = chat.call(30, 70)
        if log.chance(0.2):
            body = np.concatenate([body[: len(body) // 2], log.words(5)])
        chat.add("assistant", body).add_random("tool", log.between(40, 110))


def retok(log: Log) -> None:
    """A tool agent; 20 % of its answers come back as different tokens of the same text."""
    chat = Conversation(log, "solver").add_random("system", 400).add_random("user", 120)
    for _ in range(30):
        body = returned = chat.call(30, 70)
        if log.chance(0.2):
            half = len(body) // 2
            returned = np.concatenate([body[:half], log.words(2), body[half + 3 :]])
        chat.add("assistant", returned, " ".join(WORDS[body])).add_random("tool", log.between(40, 110))


def retry(log: Log) -> None:
    """An agent that sends malformed answers and their errors back to the model until an answer is well-formed, and then
    drops them from the history."""
    chat = Conversation(log, "solver").add_random("system", 300).add_random("user", 100)
    for _ in range(25):
        attempt = chat
        body = attempt.call(30, 80)
        for _ in range(3):
            if not log.chance(0.35):
                break
            attempt = chat.fork().add("assistant", body).add_random("user", log.between(40, 90))
            body = attempt.call(30, 80)
        chat.add("assistant", body).add_random("tool", log.between(60, 140))


def fanout(log: Log) -> None:
    """Sixteen sub-agents that share a prompt of eight thousand tokens."""
    trunk = Conversation(log, "branch").add_random("system", 2000).add_random("user", 6000)
    for number in range(16):
        chat = trunk.fork().add_random("user", 20)
        chat.agent = f"branch{number}"
        for _ in range(3):
            chat.add("assistant", chat.call(100, 200)).add_random("tool", 60)


def werewolf(log: Log, calls: int = 200) -> None:
    """Nine players read each other's messages; every 72 calls, a summary replaces their histories."""
    systems = [Conversation(log, f"player{i}").add_random("system", 600) for i in range(9)]
    players = [chat.fork().add_random("user", 80) for chat in systems]
    for number in range(calls):
        speaker = players[number % 9]
        body = speaker.call(40, 90)
        speaker.add("assistant", body)
        message = np.append(np.int32(FIRST_WORD + number % 9), body[-log.scaled(40) :])
        for player in players:
            if player is not speaker:
                player.add("user", message)
        if number % 72 == 71:
            players = [chat.fork().add_random("user", 200) for chat in systems]


def mixed(log: Log, calls: int) -> None:
    """Nine alternating agents, each with its own growing history that is cut at forty messages."""
    chats = [
        Conversation(log, f"agent{i}").add_random("system", 100).add_random("user", 30) for i in range(9)
    ]
    for number in range(calls):
        chat = chats[number % 9]
        chat.add("assistant", chat.call(20)).add_random("user", 20)
        if len(chat.messages) > 40:
            chats[number % 9] = chat.fork(1).add_random("user", 60)


def forks(log: Log) -> None:
    """The episodes of a group with forks: four roots of twelve turns, and two rounds of forks from any turn."""
    roots = Conversation(log, "solver").add_random("system", 400).add_random("user", 120)
    episodes = [_episode(log, roots.fork(), 0) for _ in range(4)]
    for _ in range(2):
        for _ in range(4):
            chat = episodes[log.between(0, len(episodes) - 1)]
            turn = log.between(1, TURNS - 1)
            episodes.append(_episode(log, chat.fork(2 + 2 * turn), turn))


def _episode(log: Log, chat: Conversation, turn: int) -> Conversation:
    for _ in range(turn, TURNS):
        chat.add("assistant", chat.call(30, 70)).add_random("tool", log.between(40, 110))
    return chat


SCENARIOS: dict[str, Callable[[Log], None]] = {
    "tool30": tool30,
    "werewolf": werewolf,
    "retry": retry,
    "fanout": fanout,
    "forks": forks,
    "drift": drift,
    "retok": retok,
    "grow": lambda log: grow(log, 100),
    "mixed": lambda log: mixed(log, 1000),
}
"""All scenarios; `grow` and `mixed`, which take any number of calls, at a size for comparing rows."""


def make_log(scenario: Callable[[Log], None], seed: int = 0, scale: float = 1.0) -> list[LoggedCall]:
    """The calls of a scenario, with texts shortened by ``scale``; equal seeds give equal logs."""
    log = Log(seed, scale)
    scenario(log)
    return log.calls()


def generations(log: Sequence[LoggedCall]) -> list[Generation]:
    """The engine's answers to these calls."""
    return [Generation(c.completion_ids, c.logprobs, versions(c.completion_ids), "stop") for c in log]


def versions(ids: np.ndarray) -> np.ndarray:
    return np.zeros(len(ids), np.int32)


def recorded(log: Sequence[LoggedCall], answers: Sequence[Generation]) -> EpisodeRecord:
    """The record of an episode with these calls; every prompt is looked up from the root."""
    record = EpisodeRecord()
    tree = record.tree("policy")
    for logged, answer in zip(log, answers, strict=True):
        prompt = tree.extend(tree.root, logged.prompt_ids)
        end = tree.extend(prompt, answer.token_ids)
        record.add(
            Call(logged.number, logged.agent, "policy", "policy", prompt, end, answer, 1.0, trained=True)
        )
    return record
