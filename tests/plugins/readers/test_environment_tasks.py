"""The `environment` reader, and Gymnasium's FrozenLake as the service behind it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ajet import ConfigError
from ajet.environments import EnvironmentFailed, ServedEnvironment, environment, serving
from ajet.interfaces.reader import read_all
from ajet_readers import EnvironmentTasks

gymnasium = pytest.importorskip("gymnasium")
from ajet_readers.gymnasium_service import served  # noqa: E402
from tests.patience import PATIENCE  # noqa: E402

RIGHT_WAY = ["down", "down", "right", "right", "down", "right"]


class Empty(ServedEnvironment):
    """An environment without tasks."""

    env_type = "empty"

    @classmethod
    def task_ids(cls, split: str, params: Mapping[str, Any]) -> Any:
        return {"train": [], "by_split": {"train": ["a"]}}[split]

    def start(self) -> str:
        return ""

    def step(self, message: Mapping[str, Any]) -> str:
        return ""

    def evaluate(self) -> float:
        return 0.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    lake = served("FrozenLake-v1", {"is_slippery": False}, seeds=20)
    with serving(lake, served("CartPole-v1"), Empty) as url:
        yield url


def tasks(url: str, env_type: str = "FrozenLake-v1", **fields: Any) -> Any:
    return read_all(EnvironmentTasks(url=url, env_type=env_type, **fields), "task.reader")


def say(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_the_tasks_of_a_split_say_what_to_create(url: str) -> None:
    found = tasks(url, split="test", limit=2, params={"options": {"map_name": "8x8"}})
    assert [t.id for t in found] == ["FrozenLake-v1-20", "FrozenLake-v1-21"]
    with environment(found[0]) as env:
        assert len(env.state.messages[0]["content"].splitlines()) == 8
    assert not {t.id for t in tasks(url)} & {t.id for t in tasks(url, split="test")}


def test_frozen_lake_is_crossed_in_words(url: str) -> None:
    with environment(tasks(url)[0]) as env:
        assert env.state.messages[0]["content"] == "[S]FFF\nFHFH\nFFFH\nHFFG"
        for word in RIGHT_WAY:
            assert not env.state.is_terminated
            env.step(say(f"Not up, I go {word.upper()}."))
        assert env.state.is_terminated and env.state.reward == 1.0
        assert env.state.messages[0]["content"].endswith("HFF[G]")
    assert env.score == 1.0


def test_a_hole_ends_it_without_a_score(url: str) -> None:
    with environment(tasks(url)[0]) as env:
        env.step(say("right"))
        assert env.step(say("1")).is_terminated
    assert env.score == 0.0


def test_a_message_without_an_action_changes_nothing(url: str) -> None:
    with environment(tasks(url)[0]) as env:
        answer = env.step(say("I do not know."))
        assert answer.messages[0]["content"] == "Name an action: left, down, right, up."
        assert not answer.is_terminated and env.step(say("left")).messages[0]["content"].startswith("(Left)")


def test_a_seed_decides_what_happens() -> None:
    with serving(served("FrozenLake-v1")) as url:  # slippery

        def walk(task: Any) -> list[Any]:
            with environment(task) as env:
                return [env.step(say("right")).messages for _ in range(3)]

        first, second, *_ = found = tasks(url)
        assert walk(first) == walk(first)
        assert len({json.dumps(walk(t)) for t in found[:8]}) > 1 and first.id != second.id


def test_observations_stand_for_worlds_without_a_picture(url: str) -> None:
    with environment(tasks(url, "CartPole-v1")[0]) as env:
        assert re.fullmatch(r"\[[-\d. ]+\]", env.state.messages[0]["content"])
        assert env.step(say("1")).reward == 1.0


def test_actions_that_text_cannot_name_are_refused() -> None:
    with pytest.raises(TypeError, match="not discrete"):
        served("Pendulum-v1")
    with pytest.raises(ValueError, match="4 actions, but 2 names: left, right"):
        served("FrozenLake-v1", actions=["left", "right"])
    with pytest.raises(ValueError, match="'go left' is not one word"):
        served("FrozenLake-v1", actions=["go left", "down", "right", "up"])


class Switch(gymnasium.Env):  # type: ignore[misc]
    """Two actions, numbered from 1; the second one ends it."""

    action_space = gymnasium.spaces.Discrete(2, start=1)
    observation_space = gymnasium.spaces.Discrete(1)

    def reset(self, **_: Any) -> Any:
        return 0, {}

    def step(self, action: int) -> Any:
        assert self.action_space.contains(action)
        return 0, float(action == 2), action == 2, False, {}


@pytest.mark.parametrize("actions", [None, ["Wait", "End"]])
def test_actions_are_numbered_as_the_world_does(actions: Any) -> None:
    gymnasium.register("Switch-v0", Switch)
    try:
        made = served("Switch-v0", actions=actions)("0", {})
        made.start()
        assert not made.step(say((actions or ["1", "2"])[0])).is_terminated
        assert made.step(say("2")).is_terminated and made.evaluate() == 1.0
    finally:
        del gymnasium.registry["Switch-v0"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env_type": "Lake"}, "no env_type 'Lake'; there are FrozenLake-v1, CartPole-v1, empty"),
        ({"split": "validation"}, "no split 'validation'; there are 'train' and 'test'"),
        ({"env_type": "empty"}, "the split 'train' of 'empty' is empty."),
    ],
)
def test_what_the_service_does_not_have_is_named(url: str, fields: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tasks(url, **fields)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_an_unreachable_service(url: str) -> None:
    with serving(Empty) as gone:
        pass
    with pytest.raises(ConfigError, match=r"get_env_profile: ConnectError: .* Is the service running\?"):
        tasks(gone)


@pytest.mark.whole
def test_the_command_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "ajet_readers.gymnasium_service", "FrozenLake-v1", "--port", "0"]
    command += ["--options", '{"is_slippery": false}', "--actions", "l,d,r,u"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout
        url = running.stdout.readline().split()[-1]
        with environment(tasks(url)[0]) as env:
            env.step(say("d"))
        assert env.score == 0.0
        with pytest.raises(EnvironmentFailed), environment(tasks(url)[0], task_id="no number"):
            pass
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE) in (0, -signal.SIGINT, 130)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["FrozenLak-v1"], "error: FrozenLak-v1: NameNotFound: "),
        (["Pendulum-v1"], "error: Pendulum-v1: TypeError: Pendulum-v1: its actions are"),
        (["FrozenLake-v1", "--port", "PORT"], "error: the service cannot listen on 127.0.0.1:"),
    ],
)
def test_what_the_command_cannot_serve_is_said_in_a_line(url: str, words: list[str], message: str) -> None:
    words = [url.rpartition(":")[2] if word == "PORT" else word for word in words]
    command = [sys.executable, "-m", "ajet_readers.gymnasium_service", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(message)
    assert "Traceback" not in done.stderr
