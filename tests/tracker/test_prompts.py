"""The prompt that an engine is given is what the chat template writes for the client's messages, except where
recorded ids stand for a reply that came back and that the template writes in full (rule 6).

Random agents do with their histories what agents and frameworks do; `checker.PromptJudge` renders every chat with
the tokenizer's own template. What is not continued must be reported with a cause.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from ajet.interfaces.wire import Refused
from ajet.tracker.breaks import CAUSES, find_breaks
from ajet.tracker.timelines import timelines
from ajet.types import AjetError, GenerateRequest
from tests import templates
from tests.tracker.checker import PromptJudge, SentCall
from tests.tracker.harness import Script

Message = dict[str, Any]

FAST, SLOW = 2, 2000
"""Call graphs of each template in the fast tests, and of all templates in the slow one."""
TOOLS: list[Message] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("add", "look")
]
USERS = ["Go on.", "Go on.", "Why?", "What is <think>this</think> for?", "And twice that?"]
REPLIES = ["two", "two", "It is four.", "yes \n", "<b>bold</b> and long enough to be known again"]
BEGUN = ["The answer is", "Sure"]
THOUGHTS = ["one and one", "hm", "so"]


class Agents:
    """A few histories that random agents grow, edit and fork, and every call they made."""

    def __init__(self, template: str, seed: int) -> None:
        self.random = Random(f"{template}/{seed}")
        self.script = Script(f"template {template}", context_length=100_000)
        chat = self.script.chat
        self.judge = PromptJudge(self.script.tokenizer, frozenset(chat.stop_token_ids))
        self.histories = [self._beginning() for _ in range(2)]
        self.tools: list[Message] = TOOLS[: self.random.randrange(3)]
        self.wrong: list[str] = []
        self.split: list[int] = []
        self.continued = 0

    def _beginning(self) -> list[Message]:
        """A chat that the client wrote: 1 to 20 messages, most often beyond eight."""
        chat: list[Message] = []
        if self.random.random() < 0.8:
            chat.append({"role": "system", "content": "Be brief."})
        for _ in range(self.random.choice([0, 2, 5, 9])):
            chat.append(self._user())
            chat.append(self._written())
        return [*chat, self._user()]

    def _user(self) -> Message:
        return {"role": "user", "content": self.random.choice(USERS)}

    def _written(self) -> Message:
        """An assistant message of the client's own."""
        message: Message = {"role": "assistant", "content": self.random.choice(REPLIES)}
        if self.random.random() < 0.4:
            message["reasoning_content"] = self.random.choice(THOUGHTS)
        if self.random.random() < 0.2:
            message["name"] = self.random.choice(["alice", "bob"])
        return message

    # ---------------------------------------------------------------- what an agent may do next

    def play(self, steps: int) -> None:
        """So many calls."""
        moves = [self._turn, self._turn, self._turn, self._fork, self._edit, self._choices, self._by_id]
        moves += [self._again, self._prefill]
        for _ in range(steps):
            place = self.random.randrange(len(self.histories))
            self.random.choice(moves)(place)

    def _turn(self, place: int) -> None:
        history = self.histories[place]
        if (reply := self._ask(history)) is not None:
            history.append(self._sent_back(reply))
            self._go_on(history)

    def _again(self, place: int) -> None:
        """Two answers in a row, as of two agents in one chat."""
        history = self.histories[place]
        if (reply := self._ask(history)) is not None:
            history.append(self._sent_back(reply))
            self._turn(place)

    def _prefill(self, place: int) -> None:
        """An answer that continues a message: the client's own, or a recorded one."""
        history = self.histories[place]
        begun = {"role": "assistant", "content": self.random.choice(BEGUN)}
        if self.random.random() < 0.4:
            begun = self._ask(history) or begun
        replies = self._call([*history, begun], [], [self._model(self._answer())], continues=True)
        if replies:
            content = (begun.get("content") or "") + (replies[0].get("content") or "")
            whole = {**begun, **replies[0], "content": content}
            history += [begun, replies[0]] if self.random.random() < 0.2 else [self._sent_back(whole)]
            self._go_on(history)

    def _fork(self, place: int) -> None:
        history = self.histories[place]
        users = [i for i, m in enumerate(history) if m["role"] == "user"]
        self.histories[(place + 1) % 2] = history[: self.random.choice(users) + 1]
        self._turn((place + 1) % 2)

    def _edit(self, place: int) -> None:
        history = self.histories[place]
        at = self.random.randrange(len(history))
        message = dict(history[at])
        kind = self.random.randrange(5)
        if message["role"] == "assistant" and kind == 0:
            message["reasoning_content"] = self.random.choice(THOUGHTS)
        elif message["role"] == "assistant" and kind == 1:
            message.pop("reasoning_content", None)
        elif kind == 2:
            message["content"] = f"{(message.get('content') or '').strip()} (edited)"
        elif kind == 3 and message["role"] == "assistant":
            message["name"] = self.random.choice(["alice", "bob"])
        elif kind == 4:
            self.tools = TOOLS[: self.random.randrange(3)]
        history[at] = message
        self._turn(place)

    def _choices(self, place: int) -> None:
        """Two answers of equal text and other reasoning; the agent goes on with the second."""
        history = self.histories[place]
        text = self.random.choice(REPLIES)
        answers = [{"role": "assistant", "content": text, "reasoning_content": t} for t in THOUGHTS[:2]]
        replies = self._call(history, [], [self._model(answer) for answer in answers])
        if replies:
            history.append(self._sent_back(replies[1]))
            self._go_on(history)

    def _by_id(self, place: int) -> None:
        """Two replies of equal text, one after the other; the agent names one of them."""
        history, text = self.histories[place], self._model({"role": "assistant", "content": "two"})
        named = [self._call(history, [], [text], name=True) for _ in range(2)]
        if None not in named:
            reply, reply_id = self.random.choice(named)
            new = [self._user()]
            answer = self._call(new, [*history, reply], [self._model(self._answer())], after=reply_id)
            history += [reply, *new]
            if answer:
                history.append(answer[0])
                self._go_on(history)

    def _go_on(self, history: list[Message]) -> None:
        """What follows a reply: the results of its tools, or what the user says; sometimes an error text."""
        for call in history[-1].get("tool_calls") or ():
            history.append({"role": "tool", "tool_call_id": call["id"], "content": self.random.choice("24")})
        if history[-1]["role"] != "tool" or self.random.random() < 0.2:
            if self.random.random() < 0.1:
                history += [self._user(), self._written()]
            history.append(self._user())

    def _sent_back(self, reply: Message) -> Message:
        """A reply as a framework keeps it."""
        kind = self.random.randrange(10)
        message = dict(reply)
        if kind in (0, 1, 2):
            message.pop("reasoning_content", None)
        elif kind == 3 and "reasoning_content" in message:
            message["reasoning_content"] += " indeed"
        elif kind == 4:
            message["content"] = (message.get("content") or "").strip()
        elif kind == 5:
            message["content"] = f"{message.get('content') or ''} more"
        elif kind == 6:
            message["name"] = "alice"
        return message

    # ---------------------------------------------------------------- one call

    def _answer(self) -> Message:
        answer: Message = {"role": "assistant", "content": self.random.choice(REPLIES)}
        if self.random.random() < 0.5:
            answer["reasoning_content"] = self.random.choice(THOUGHTS)
        if self.tools and self.random.random() < 0.5:
            number = self.random.choice([1, 2**53 + 1])
            call = {"name": "add", "arguments": json.dumps({"b": number, "a": "x y"})}
            answer["tool_calls"] = [{"id": "c", "type": "function", "function": call}]
        return answer

    def _model(self, answer: Message) -> Any:
        """What a model would sample to say it; its text alone where nothing more of it can be read."""
        chat = self.script.chat
        try:
            text = chat.written(answer)
        except AjetError:
            return answer["content"]
        ids = self.script.tokenizer.encode(text, add_special_tokens=False)
        special = {i for i, t in self.script.tokenizer.added_tokens_decoder.items() if t.special}
        return answer["content"] if special & set(ids) else text

    def _ask(self, history: list[Message]) -> Message | None:
        replies = self._call(history, [], [self._model(self._answer())])
        return replies[0] if replies else None

    def _call(
        self,
        messages: list[Message],
        before: list[Message],
        answers: list[Any],
        *,
        name: bool = False,
        after: str | None = None,
        continues: bool = False,
    ) -> Any:
        """A request, judged; its replies (with ``name`` the first and its id), None if it was refused.
        ``before``: the chat of the reply that it names by ``after``."""
        script, asked = self.script, len(self.script.engine.requests)
        try:
            found, reply_id = script.named(
                messages, *answers, tools=self.tools, after=after, continues=continues
            )
        except Refused:
            script.answers.clear()
            return None
        replies = found if isinstance(found, list) else [found]
        sent = [dict(m) for m in (before or messages)] if not before else [*before, *messages]
        for request, reply in zip(script.engine.requests[asked:], replies, strict=True):
            self._judge(request, sent, reply, continues)
        return (replies[0], reply_id) if name else replies

    def _judge(self, request: GenerateRequest, sent: list[Message], reply: Message, continues: bool) -> None:
        number = request.key[1]
        recorded = next(c for c in self.script.record.calls if c.number == number)
        ids = recorded.generation.token_ids.tolist()
        prompt = request.prompt_ids.tolist()
        call = SentCall(number, sent, list(self.tools), prompt, ids, dict(reply), continues)
        if wrong := self.judge.judge(call):
            self.wrong.append(wrong)
        elif self.judge.could_continue(call):
            self.split.append(number)
        else:
            self.continued += self.judge.origins[number].continues is not None

    def unreported(self) -> list[int]:
        """Calls that were rendered anew although they had a reply to go on from, without a break that says why.
        The same prompt again is none, nor one that begins with an earlier call's tokens all the same."""
        record = self.script.record
        reported = {b.call for b in find_breaks(record)}
        calls = {c.number: c for c in record.calls}
        first = {}
        for call in record.calls:
            first.setdefault(call.chat_end, call.number)
        return [
            n
            for n in self.split
            if first[calls[n].chat_end] == n
            and n not in reported
            and not any(
                calls[n].prompt.starts_with(parent.end)
                for parent in record.calls
                if parent.number < n and len(parent.generation.token_ids)
            )
        ]


def play(template: str, seed: int) -> Agents:
    agents = Agents(template, seed)
    agents.play(10)
    timelines(agents.script.record.trained_calls)
    return agents


@pytest.mark.parametrize("template", templates.TEMPLATES)
def test_every_prompt_is_what_the_template_writes_and_every_split_is_reported(template: str) -> None:
    for seed in range(FAST):
        agents = play(template, seed)
        assert not agents.wrong, f"seed {seed}: {agents.wrong[0]}"
        assert not agents.unreported(), f"seed {seed}"
        assert all(b.cause in CAUSES for b in find_breaks(agents.script.record))


@pytest.mark.slow
def test_prompts_and_splits_are_right_in_two_thousand_call_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    names = list(templates.TEMPLATES)
    for number in range(SLOW):
        template, seed = names[number % len(names)], 1000 + number // len(names)
        agents = play(template, seed)
        counts["calls"] += len(agents.script.record.calls)
        counts["continued"] += agents.continued
        counts["split"] += len(agents.split)
        assert not agents.wrong, f"{template}, seed {seed}: {agents.wrong[0]}"
        assert not agents.unreported(), f"{template}, seed {seed}"
    with capsys.disabled():
        print(f"\n{SLOW} call graphs on {len(names)} templates: {dict(counts)}")
    assert counts["continued"] > counts["calls"] / 10 and counts["split"] > 0
