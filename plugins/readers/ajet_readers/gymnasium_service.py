"""Gymnasium environments as an environment service, in text.

    python -m ajet_readers.gymnasium_service FrozenLake-v1 --options '{"is_slippery": false}' --port 8080

The state is the world's ``ansi`` rendering if it has one, else its observation. The last action that the agent's
message names, by name or number, is performed. The score is the sum of rewards.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ajet import AjetError
from ajet.environments import ServedEnvironment, State, serve
from ajet_readers.extras import needs

_NAMES = {
    "FrozenLake": ("left", "down", "right", "up"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}
_NAMES |= {"CliffWalking": ("up", "right", "down", "left"), "Blackjack": ("stick", "hit")}


def served(
    env: str,
    options: Mapping[str, Any] | None = None,
    actions: Sequence[str] | None = None,
    seeds: int = 1000,
) -> type[ServedEnvironment]:
    """A Gymnasium environment with discrete actions, as a class to serve. Its ``env_type`` is ``env``; its tasks are
    seeds: the first ``seeds`` for the split `train`, the same number of further ones for `test`.

    ``actions`` names the actions in order. The default names are words for FrozenLake, Taxi, CliffWalking and
    Blackjack, else numbers. Raises gymnasium's error for an unknown environment, TypeError if the actions are not
    discrete, ValueError unless there is one word for each action.
    """
    made = _make(env, options or {})
    space = made.action_space
    made.close()
    if not isinstance(space, needs("gymnasium", "gymnasium").spaces.Discrete):
        raise TypeError(f"{env}: its actions are {space}, not discrete, so text cannot name them")
    numbers = range(int(space.start), int(space.start + space.n))
    names = tuple(actions or next((n for stem, n in _NAMES.items() if env.startswith(f"{stem}-")), ()))
    names = names or tuple(map(str, numbers))
    if len(names) != len(numbers):
        raise ValueError(f"{len(numbers)} actions, but {len(names)} names: {', '.join(names)}")
    if several := [name for name in names if not re.fullmatch(r"\w+", name)]:
        raise ValueError(f"{several[0]!r} is not one word, so it would not be found in a message")
    numbered = {name.lower(): number for number, name in zip(numbers, names, strict=True)}
    numbered |= {str(number): number for number in numbers}

    given = {
        "given_options": dict(options or {}),
        "action_names": names,
        "train_seeds": seeds,
        "numbers": numbered,
    }
    return type("Served", (GymnasiumEnvironment,), {"env_type": env, **given})


class GymnasiumEnvironment(ServedEnvironment):
    """Base of the classes that `served` makes. A task's id is the seed; ``params["options"]`` override the options."""

    given_options: ClassVar[dict[str, Any]]
    action_names: ClassVar[tuple[str, ...]]
    numbers: ClassVar[dict[str, int]]
    """Each action's number, by its lower-case name and by the number as text."""
    train_seeds: ClassVar[int]

    def __init__(self, task_id: str, params: Mapping[str, Any]) -> None:
        super().__init__(task_id, params)
        self._world = _make(self.env_type, {**self.given_options, **(params.get("options") or {})})
        self._return = 0.0

    @classmethod
    def task_ids(cls, split: str, params: Mapping[str, Any]) -> list[str]:
        """The seeds of a split: those of `test` follow those of `train`."""
        if split not in ("train", "test"):
            raise LookupError(f"no split {split!r}; there are 'train' and 'test'")
        first = 0 if split == "train" else cls.train_seeds
        return [str(seed) for seed in range(first, first + cls.train_seeds)]

    def start(self) -> State:
        """Reset the world with the task's seed."""
        observation, _ = self._world.reset(seed=int(self.task_id))
        return self._state(observation, 0.0, False)

    def step(self, message: Mapping[str, Any]) -> State:
        """Perform the last action that the message names; without one, the world does not change."""
        content = str(message.get("content") or "").lower()
        words = [word for word in re.findall(r"\w+", content) if word in self.numbers]
        if not words:
            return State(({"role": "user", "content": f"Name an action: {', '.join(self.action_names)}."},))
        observation, reward, terminated, truncated, _ = self._world.step(self.numbers[words[-1]])
        self._return += float(reward)
        return self._state(observation, float(reward), bool(terminated or truncated))

    def evaluate(self) -> float:
        """The sum of the rewards."""
        return self._return

    def close(self) -> None:
        """Close the world."""
        self._world.close()

    def _state(self, observation: Any, reward: float, over: bool) -> State:
        picture = self._world.render() if self._world.render_mode == "ansi" else None
        shown = picture if isinstance(picture, str) else str(observation)
        shown = re.sub(
            r"\x1b\[[0-9;]*m([^\x1b]*)\x1b\[0m", r"[\1]", shown
        ).strip()  # colour marks the agent's position
        return State(({"role": "user", "content": shown},), reward, over)


def _make(env: str, options: Mapping[str, Any]) -> Any:
    gymnasium = needs("gymnasium", "gymnasium")
    mode = {"render_mode": "ansi"} if "ansi" in _modes(gymnasium, env) else {}
    return gymnasium.make(env, **{**mode, **options})


def _modes(gymnasium: Any, env: str) -> Sequence[str]:
    """The render modes of an environment."""
    from importlib import import_module

    entry = gymnasium.spec(env).entry_point
    if isinstance(entry, str):
        module, _, name = entry.partition(":")
        entry = getattr(import_module(module), name)
    modes: Sequence[str] = getattr(entry, "metadata", {}).get("render_modes", ())
    return modes


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m ajet_readers.gymnasium_service", description="Serve Gymnasium."
    )
    parser.add_argument("env", help="id of the environment")
    parser.add_argument(
        "--options", type=json.loads, default={}, help="keyword arguments for gymnasium.make, as JSON"
    )
    parser.add_argument("--actions", help="names of the actions in their order, separated by commas")
    parser.add_argument("--seeds", type=int, default=1000, help="number of tasks in each split")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0 chooses a free port")
    asked = parser.parse_args()
    actions = asked.actions.split(",") if asked.actions else None
    try:
        environment = served(asked.env, asked.options, actions, asked.seeds)
    except Exception as error:  # gymnasium's errors, and any that the environment's constructor raises
        sys.exit(f"error: {asked.env}: {type(error).__name__}: {' '.join(str(error).split())}")
    try:
        serve(environment, host=asked.host, port=asked.port)
    except AjetError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
