"""Calls beside an agent's work, such as titles: they are answered and kept, and not trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

import ajet
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target, choose_target
from ajet.learning.batch import TokenSelection
from ajet.rollout.episode import Episode
from ajet.rollout.journal import episode_from_json, episode_to_json
from ajet.testing import ScriptedEngine
from ajet.tracker.record import SIDE_CALLS, sampled
from ajet.tracker.timelines import timelines

from ..plugins.programs import calling

TOOL: Any = {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}
TITLE = "Counting the files"
ANSWERS = {
    "Name this chat": TITLE,
    "Make a plan": "First list everything, then count it.",
    "Sum up": "There are three files in this folder.",
    "<tool_response>": "It has three.",
    "How many files": calling("shell", command="ls"),
}


def says(request: Any, prompt: str) -> str:
    return next((answer for asked, answer in ANSWERS.items() if asked in prompt), "Nothing to say here.")


class Agent:
    """A coding agent with one tool. It is asked the same whatever it does beside."""

    def __init__(self) -> None:
        self.client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
        self.chat: list[Any] = [{"role": "user", "content": "How many files are here?"}]

    def ask(self, chat: list[Any], model: str = "big", **more: Any) -> Any:
        return self.client.chat.completions.create(model=model, messages=chat, **more).choices[0].message

    def beside(self, text: str, **more: Any) -> str:
        return str(self.ask([{"role": "user", "content": text}], **more).content)

    def work(self) -> str:
        message = self.ask(self.chat, tools=[TOOL])
        if message.tool_calls:
            result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a b c"}
            self.chat += [message, result]
            message = self.ask(self.chat, tools=[TOOL])
        self.chat.append(message)
        return str(message.content)


def titled(task: Any) -> str:
    agent = Agent()
    agent.beside("Name this chat: how many files are here?", model="small")
    return agent.work()


def titled_last(task: Any) -> str:
    agent = Agent()
    result = agent.work()
    agent.beside("Name this chat")
    return result


def planned(task: Any) -> str:
    """The plan goes into the prompt of the agent."""
    agent = Agent()
    agent.chat[0]["content"] += "\n- " + agent.beside("Make a plan").replace(" ", "  ")
    return agent.work()


def summed_up(task: Any) -> str:
    """The agent's last call has no tools, so that it answers in text."""
    agent = Agent()
    agent.work()
    return str(agent.ask([*agent.chat, {"role": "user", "content": "Sum up"}]).content)


def written(task: Any) -> Any:
    """Another call writes the result."""
    agent = Agent()
    agent.work()
    return {"text": agent.beside("Sum up") + "\n"}


def from_notes(task: Any) -> str:
    """The last call has the notes of the agent, and its answer goes elsewhere."""
    agent = Agent()
    agent.beside(f"Sum up, from the notes: {agent.work()}")
    return "done"


def chats(task: Any) -> str:
    """No call has tools."""
    agent = Agent()
    agent.beside("Name this chat")
    return agent.beside("Sum up")


def by_a_colleague(task: Any) -> str:
    """Two agents, one of which has no tools."""
    agent = Agent()
    with ajet.label(agent="namer"):
        agent.beside("Name this chat")
    return agent.work()


@pytest.fixture
def run(bench: Any, tokenizer: Any) -> Callable[..., Episode]:
    def go(workflow: Any, side_calls: str | None = "answer") -> Episode:
        made = bench(ScriptedEngine(tokenizer, says))
        (episode,) = made.run(workflow, side_calls=side_calls)
        assert episode.failure is None, episode.error
        return episode  # type: ignore[no-any-return]

    return go


def untrained(episode: Episode) -> list[str]:
    """The answers of the side calls, and that exactly their tokens are left out, under their rule."""
    side = [call for call in episode.record.calls if call.side]
    lines, dropped = TokenSelection().choose(episode)
    trained = sum(int(line.mask.sum()) for line in lines)
    assert trained + sampled(side) == episode.record.sampled_tokens
    assert dropped.get(SIDE_CALLS, []) == side and dropped.keys() <= {SIDE_CALLS}
    return [str(call.answer.message["content"]) for call in side if call.answer]


# --------------------------------------------------------------------------- which calls they are


@pytest.mark.parametrize("workflow", [titled, titled_last])
def test_a_title_is_not_trained(run: Callable[..., Episode], workflow: Any) -> None:
    assert untrained(run(workflow)) == [TITLE]


@pytest.mark.parametrize("workflow", [planned, summed_up, written, from_notes, chats, by_a_colleague])
def test_what_may_matter_to_the_episode_is_trained(run: Callable[..., Episode], workflow: Any) -> None:
    assert untrained(run(workflow)) == []


@pytest.mark.parametrize("setting", ["train", None])
def test_workflows_in_this_process_train_all_calls_unless_the_job_says_otherwise(
    run: Callable[..., Episode], setting: Any
) -> None:
    episode = run(titled, setting)
    assert untrained(episode) == [] and len(timelines(episode.record.trained_calls)) == 2


def test_the_journal_says_which_calls_they_are_and_how_they_called_their_model(
    run: Callable[..., Episode],
) -> None:
    episode = run(titled)
    line = json.loads(json.dumps(episode_to_json(episode, phase="train", step=1)))
    copy = episode_from_json(line, episode.plan)
    assert [(c.side, c.model) for c in copy.record.calls] == [(True, "small"), (False, "big"), (False, "big")]
    assert untrained(copy) == [TITLE]


# --------------------------------------------------------------------------- targets by the model's name

TARGETS = (
    Target("main"),
    Target("helpers", ("help*",)),
    Target("small", models=("*haiku*", "*nano*"), side=True),
    Target("small helpers", ("help*",), models=("*haiku*",)),
)


@pytest.mark.parametrize(
    ("agent", "model", "target"),
    [
        ("agent", "claude-opus", "main"),
        ("agent", "claude-haiku-4", "small"),
        ("agent", "gpt-5.4-nano", "small"),
        ("helper", "claude-haiku-4", "small"),
    ],
)
def test_targets_with_models_come_before_the_others_each_in_their_order(
    agent: str, model: str, target: str
) -> None:
    assert choose_target(TARGETS, agent, None, model).name == target
    assert choose_target(TARGETS, agent, "helpers", model).name == "helpers", "a label has the last word"


def test_a_target_with_both_takes_what_fits_both() -> None:
    first = TARGETS[3]
    assert [first.takes(*c) for c in (("helper", "haiku"), ("helper", "opus"), ("agent", "haiku"))] == [
        True,
        False,
        False,
    ]


def test_calls_of_a_target_that_is_not_to_be_trained_are_side_calls(bench: Any, tokenizer: Any) -> None:
    made = bench(ScriptedEngine(tokenizer, says))
    with made.session(policy=SamplingPolicy(training=True), targets=TARGETS[::2]) as session:
        agent = Agent()
        agent.beside("Sum up", model="gpt-nano")
        agent.beside("Name this chat")
    assert [(c.target, c.trained, c.side) for c in session.record.calls] == [
        ("small", True, True),
        ("main", True, False),
    ]
