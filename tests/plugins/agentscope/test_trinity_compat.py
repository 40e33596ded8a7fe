"""Reward functions with the names and arguments of Trinity's."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec

import pytest

from ajet.rollout.failures import describe_exception
from ajet_agentscope.trinity_compat import MathBoxedRewardFn, make_importable


@pytest.mark.parametrize(
    ("response", "truth", "accuracy"),
    [
        (r"so it is \boxed{42}", "42", 1.0),
        (r"\boxed{41}, no: \boxed{42}", "42", 1.0),
        (r"\boxed{1,000}", "1000", 1.0),
        (r"\boxed{41}", "42", 0.0),
        ("42", "42", 0.0),
        ("", "42", 0.0),
        (None, "42", 0.0),
        (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}", 1.0),
    ],
)
def test_the_last_box_counts(response: str | None, truth: str, accuracy: float) -> None:
    assert MathBoxedRewardFn()(response=response, truth=truth) == {"accuracy": accuracy, "format_score": 0.0}


def test_a_missing_pair_of_think_tags_costs_something_if_asked() -> None:
    reward = MathBoxedRewardFn(anything=1)
    said = r"<think>six times seven</think> \boxed{42}"
    assert reward(said, "42", with_think=True) == {"accuracy": 1.0, "format_score": 0.0}
    found = reward(r"\boxed{42}", "42", with_think=True, format_score_coef=0.2, unused=1)
    assert found == {"accuracy": 1.0, "format_score": -0.2}
    assert reward("</think> <think>", "42", with_think=True)["format_score"] == -0.1


def test_it_is_called_inside_a_running_event_loop() -> None:
    async def judge() -> dict[str, float]:
        return MathBoxedRewardFn()(r"\boxed{1/2}", "0.5")

    assert asyncio.run(judge())["accuracy"] == 1.0


@pytest.fixture
def without_trinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test may have made it importable."""
    for name in [name for name in sys.modules if name.split(".")[0] == "trinity"]:
        monkeypatch.delitem(sys.modules, name)
    if find_spec("trinity") is not None:
        pytest.skip("Trinity is installed")


@pytest.mark.usefixtures("without_trinity")
def test_it_is_importable_by_trinitys_name_however_often_it_is_offered() -> None:
    make_importable()
    offered = sys.modules["trinity"]
    make_importable()
    assert sys.modules["trinity"] is offered
    from trinity.common.rewards.math_reward import MathBoxedRewardFn as found

    assert found is MathBoxedRewardFn and find_spec("trinity") is offered.__spec__


@pytest.mark.usefixtures("without_trinity")
def test_the_error_of_an_episode_that_needs_trinity_names_the_module() -> None:
    async def judge() -> None:
        from trinity.common.rewards.math_reward import MathBoxedRewardFn  # noqa: F401

    with pytest.raises(ModuleNotFoundError) as error:
        asyncio.run(judge())
    assert describe_exception(error.value).endswith("in ajet_agentscope.trinity_compat, too")
    assert "trinity_compat" not in describe_exception(ModuleNotFoundError("No module named 'x'", name="x"))
