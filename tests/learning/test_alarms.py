"""Alarms: runs that learn raise none, and each planted fault raises its own, once, and soon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.learning.alarms import NAMES, Alarms, StoppedByAlarm, describe

RECORDED = Path(__file__).parent / "recorded"
"""Metrics of runs of the examples, as `ajet run` wrote them."""
Line = dict[str, Any]


def recorded(name: str) -> list[Line]:
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", [file.stem for file in sorted(RECORDED.glob("*.jsonl"))])
def test_a_recorded_run_that_learns_raises_no_alarm(name: str) -> None:
    alarms = Alarms()
    alarms.replay(recorded(name))
    assert not alarms.found


def healthy(seed: int = 0, steps: int = 40, base: float = 0.15, **more: float) -> list[Line]:
    """The metrics of a run that learns, with the noise of small batches: 8 groups of 8 episodes, rewards 0 and 1."""
    random = np.random.default_rng(seed)
    lines: list[Line] = []
    for step in range(1, steps + 1):
        mean = base + (0.8 - base) / (1 + np.exp(-(step - steps / 2) / 4))
        rates = random.beta(3 * mean, 3 * (1 - mean), 8)
        passed = random.binomial(8, rates) / 8
        reward = float(passed.mean())
        lines.append(
            {
                "type": "train",
                "step": step,
                "groups": 8,
                "groups_zero_advantage": float(np.mean((passed == 0) | (passed == 1))),
                "episodes": 64,
                "episodes_failed": float(random.binomial(64, 0.02)),
                "episodes_cut": float(random.binomial(64, 0.05)),
                "reward_cut": 0.0,
                "reward": reward,
                "reward_std": float(np.sqrt(reward * (1 - reward))),
                "reward_min": 0.0,
                "reward_max": 1.0,
                "answer_tokens": float(random.normal(60 + step, 6)),
                "sampled_entropy": float(random.normal(0.6 - 0.4 * step / steps, 0.03)),
                "repetition": float(abs(random.normal(0.02, 0.01))),
                "logprob_diff_mean": 1e-3,
                "reference_kl": 0.01 * step,
                "tokens_per_second": float(random.normal(1000, 150)),
                "seconds_rollout": float(random.normal(8, 1)),
                "seconds_update": 2.0,
                "judge/checked": 0.25,
                "judge/check_reward": reward + float(random.normal(-0.03, 0.03)),
                "judge/check_gap": float(random.normal(0.03, 0.03)),
                **more,
            }
        )
        if step % 10 == 0:
            validated = float(random.binomial(64, mean)) / 64
            spread = float(np.sqrt(validated * (1 - validated)))
            lines.append(
                {
                    "type": "validation",
                    "step": step,
                    "reward": validated,
                    "reward_std": spread,
                    "episodes": 64,
                }
            )
    return lines


@pytest.mark.parametrize("seed", range(20))
def test_runs_that_learn_raise_no_alarm_at_any_seed(seed: int) -> None:
    for made in (healthy(seed), healthy(seed, base=0.6), healthy(seed, base=0.05), healthy(seed, base=0.8)):
        alarms = Alarms()
        alarms.replay(made)
        assert not alarms.found, [*describe(alarms.found.values())]


def test_a_run_that_does_not_learn_and_has_signal_raises_none() -> None:
    flat = [line for line in healthy() if line["step"] <= 8] * 5
    for number, line in enumerate(flat):
        line["step"] = number + 1
    alarms = Alarms()
    alarms.replay(flat)
    assert not alarms.found


FROM = 10


def later(**changes: float) -> Callable[[list[Line]], None]:
    """From step FROM on the metrics are these; those of names ending with ``_times`` are so many times as large."""

    def plant(lines: list[Line]) -> None:
        for line in lines:
            if line["step"] >= FROM and line["type"] == "train":
                for name, value in changes.items():
                    own = name.removesuffix("_times").replace("__", "/")
                    line[own] = line[own] * value if name.endswith("_times") else value

    return plant


def unconfirmed(lines: list[Line]) -> None:
    for line in lines:
        if line["type"] == "train":
            line["judge/check_reward"], line["judge/check_gap"] = 0.15, line["reward"] - 0.15


def alike(lines: list[Line]) -> None:
    later(groups_zero_advantage=1.0, reward_std=0.35)(lines)
    for line in lines:
        if line["step"] >= FROM and line["type"] == "train":
            line["reward"] = 0.15 + 0.01 * (line["step"] % 3)


def memorised(lines: list[Line]) -> None:
    for line in lines:
        if line["type"] == "validation" and line["step"] >= 30:
            line |= {"reward": 0.05, "reward_std": 0.2}
        if line["type"] == "validation" and line["step"] == 20:
            line |= {"reward": 0.5, "reward_std": 0.5}


FLAT = {"reward": 0.15, "reward_std": 0.35}
COLLAPSED = {"reward": 0.0, "reward_std": 0.0, "reward_max": 0.0, "groups_zero_advantage": 1.0}
FAULTS: dict[str, tuple[Callable[[list[Line]], None], dict[str, Any]]] = {
    "collapse": (later(**COLLAPSED), {}),
    "reward_fell": (later(reward=0.05, reward_std=0.22), {}),
    "failed_episodes": (later(episodes_failed=25.0), {}),
    "cut_answers": (later(episodes_cut=30.0), {}),
    "judges_disagree": (unconfirmed, {}),
    "no_signal": (alike, {}),
    "entropy_collapse": (later(sampled_entropy=0.01, groups_zero_advantage=0.9, **FLAT), {}),
    "entropy_explosion": (later(sampled_entropy=4.0, **FLAT), {}),
    "length_explosion": (later(answer_tokens=600.0, **FLAT), {}),
    "length_collapse": (later(answer_tokens=3.0, **FLAT), {}),
    "repetition": (later(repetition=0.6), {}),
    "logprob_gap": (later(logprob_diff_mean=0.2), {}),
    "ratio_drift": (later(logprob_diff_mean=0.8), {"on_policy": False}),
    "kl_drift": (later(reference_kl=2.0, **FLAT), {}),
    "stale": (later(staleness=6.0), {"on_policy": False}),
    "slow": (later(seconds_rollout_times=6.0, tokens_per_second_times=0.15), {}),
    "overfitting": (memorised, {}),
}


def test_every_alarm_has_a_planted_fault_and_a_line_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "alarms.md").read_text(encoding="utf-8")
    assert set(FAULTS) == set(NAMES)
    assert not [name for name in NAMES if f"| `{name}` |" not in page]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_raises_its_own_alarm_first_and_once(name: str, seed: int) -> None:
    plant, settings = FAULTS[name]
    lines = healthy(seed, base=0.6 if name == "reward_fell" else 0.15)
    if name != "judges_disagree":
        for line in lines:
            for unchecked in ("judge/checked", "judge/check_reward", "judge/check_gap"):
                line.pop(unchecked, None)
    plant(lines)
    alarms, told = Alarms(**settings), []
    for line in lines:
        if line["type"] == "train":
            told += alarms.step(line["step"], line)
        else:
            told += alarms.validation(line["step"], line)
    assert [alarm.name for alarm in told][:1] == [name]
    assert len({alarm.name for alarm in told}) == len(told), "each is told once"
    if name not in ("overfitting", "judges_disagree"):  # which need a rise of the reward
        assert told[0].step <= FROM + 5
        assert alarms.found[name].steps >= (5 if name == "slow" else 20), "and counted on every step"
    assert told[0].line.startswith(f"step {told[0].step}: ") and "\n" not in told[0].line


@pytest.mark.parametrize("more", [{"forks": 128.0}, {"steered": 128.0}])
@pytest.mark.parametrize("name", ["cut_answers", "judges_disagree"])
def test_forks_and_steered_episodes_neither_hide_an_alarm_nor_raise_one(
    name: str, more: dict[str, float]
) -> None:
    plant, settings = FAULTS[name]
    told = []
    for beside in ({}, {"episodes": 64 + 128.0, **more}):
        lines = healthy()
        plant(lines)
        alarms = Alarms(**settings)
        for line in lines:
            if line["type"] == "train":
                alarms.step(line["step"], {**line, **beside})
        told.append(alarms.found[name].step if name in alarms.found else None)
    assert told[0] and told[0] == told[1]


def test_metrics_say_which_alarms_a_step_has() -> None:
    lines = healthy()
    later(repetition=0.6)(lines)
    alarms = Alarms()
    steps = [line for line in lines if line["type"] == "train"]
    for line in steps:
        alarms.step(line["step"], line)
    assert not any(key.startswith("alarm/") for key in steps[FROM - 2]) and steps[-1]["alarm/repetition"] == 1


def test_a_run_that_goes_on_does_not_tell_an_alarm_again() -> None:
    lines = healthy()
    later(repetition=0.6)(lines)
    alarms = Alarms()
    alarms.replay(lines[:30])
    raised = [alarms.step(line["step"], line) for line in lines[30:] if line["type"] == "train"]
    assert "repetition" in alarms.found and not any(raised)


def test_an_alarm_that_is_to_end_the_run_does() -> None:
    lines = healthy()
    later(repetition=0.6)(lines)
    alarms = Alarms(stop_on=["repetition"])
    with pytest.raises(
        StoppedByAlarm, match=r"^run.stop_on has ended the run at step \d+: .*\(alarm repetition\)$"
    ) as e:
        for line in lines:
            if line["type"] == "train":
                raised = alarms.step(line["step"], line)
                assert alarms.stops(raised) == bool(raised)
                alarms.stop(raised)
    assert e.value.exit_code == 3


def test_tasks_in_an_order_may_end_in_hard_ones() -> None:
    for shuffled in (True, False):
        lines = healthy(base=0.6)
        later(reward=0.05, reward_std=0.22)(lines)
        alarms = Alarms(shuffled=shuffled)
        alarms.replay(lines)
        assert ("reward_fell" in alarms.found) == shuffled


def test_what_has_been_learned_completely_is_no_missing_signal() -> None:
    lines = healthy()
    later(groups_zero_advantage=1.0, reward=1.0, reward_std=0.0, sampled_entropy=0.001)(lines)
    alarms = Alarms()
    alarms.replay(lines)
    assert not alarms.found


@pytest.mark.parametrize(("reward", "alarms"), [(0.875, set()), (0.3, {"entropy_collapse", "no_signal"})])
def test_a_run_that_explores_no_more_is_ill_only_if_it_has_not_learned(
    reward: float, alarms: set[str]
) -> None:
    lines = healthy()
    later(groups_zero_advantage=1.0, reward=reward, reward_std=0.33, sampled_entropy=0.001)(lines)
    found = Alarms()
    found.replay(line for line in lines if line["type"] == "train")
    assert set(found.found) == alarms


@pytest.mark.parametrize("seed", range(8))
def test_answers_that_shrink_while_the_reward_rises_are_no_fault(seed: int) -> None:
    lines = [line for line in healthy(seed, base=0.27) if line["type"] == "train"]
    for line in lines:  # half as many groups: the reward is noisier
        line |= {"groups": 4, "answer_tokens": 60 - 50 / (1 + np.exp(-(line["step"] - 20) / 4))}
    alarms = Alarms()
    alarms.replay(lines)
    assert "length_collapse" not in alarms.found


def test_a_judge_that_gives_one_reward_is_named() -> None:
    lines = [line for line in healthy() if line["type"] == "train"]
    for line in lines:
        line |= {
            "reward": 0.8,
            "reward_std": 0.0,
            "reward_min": 0.8,
            "reward_max": 0.8,
            "groups_zero_advantage": 1.0,
        }
    alarms = Alarms()
    alarms.replay(lines)
    assert "the judge gives every episode the reward 0.8" in alarms.found["no_signal"].what


def test_transcripts_have_no_rewards_and_raise_none() -> None:
    alarms = Alarms()
    assert [alarms.step(step, {"loss": 1.0 / step, "seconds_update": 1.0}) for step in range(1, 30)] == [
        []
    ] * 29
