"""Which tasks the steps of a run take: in order, at random, from easy to hard, or by estimated pass rates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ajet.job.config import Layers
from ajet.job.prepare import prepare
from ajet.learning.settings import SelectorSettings
from ajet.learning.task_selector import PassRate, TaskSelector, make_selector, pass_rates
from ajet.types import AjetError, ConfigError, Metrics, Task

SIZE, MEMBERS = 8, 8
HIDDEN = np.linspace(0, 1, 101)
"""The pass rates of the model in a simulation."""


def tasks(**fields: Any) -> list[Task]:
    """A task for each hidden pass rate; ``fields`` are metadata, as functions of it."""
    return [
        Task(f"t{i}", "", metadata={n: f(rate) for n, f in fields.items()}) for i, rate in enumerate(HIDDEN)
    ]


def selector(found: list[Task], type: str = "difficulty", *, seed: int = 0, **settings: Any) -> TaskSelector:
    return make_selector(
        SelectorSettings(type=type, **settings), found, batch_size=SIZE, group_size=MEMBERS, seed=seed
    )


def chosen(which: TaskSelector, step: int = 1, count: int = SIZE) -> list[int]:
    """The numbers of the tasks of a step."""
    return [int(task.id[1:]) for task in islice(which.order(step), count)]


def simulate(which: TaskSelector, steps: int, rates: np.ndarray = HIDDEN, first: int = 1) -> list[Metrics]:
    """Steps in which each task of a batch passes as often as its rate says."""
    draw = np.random.default_rng(first)
    return [
        which.observe(
            [
                PassRate(f"t{n}", draw.binomial(MEMBERS, rates[n]) / MEMBERS, MEMBERS)
                for n in chosen(which, step)
            ]
        )
        for step in range(first, first + steps)
    ]


def test_sequential_takes_the_tasks_as_the_reader_gives_them_and_further_groups_those_that_follow() -> None:
    found = selector(tasks(), "sequential")
    assert chosen(found, 1) == [*range(8)] and chosen(found, 2, 10) == [*range(8, 18)]
    assert chosen(found, 13) == [96, 97, 98, 99, 100, 0, 1, 2]


def test_easy_to_hard_takes_the_highest_pass_rates_first() -> None:
    found = selector(tasks(rate=lambda rate: round(rate)), "easy_to_hard", pass_rates=["rate"])
    assert chosen(found, 1) == [*range(51, 59)], "equal ones in the reader's order"
    assert chosen(found, 7) == [99, 100, *range(6)]


def test_shuffle_takes_every_task_once_in_an_epoch() -> None:
    found = selector(tasks(), "shuffle")
    epoch = [n for step in range(1, 13) for n in chosen(found, step)]
    assert len(set(epoch)) == 96 and epoch != sorted(epoch)


def test_a_step_that_takes_no_further_groups_does_not_go_through_all_tasks() -> None:
    class Large(list[Task]):
        def __iter__(self) -> Iterator[Task]:
            raise AssertionError("all tasks are read")

    found = make_selector(SelectorSettings(), Large(tasks()), batch_size=SIZE, group_size=MEMBERS, seed=0)
    assert chosen(found) == chosen(selector(tasks(), "shuffle"))


def test_without_knowledge_any_task_is_as_likely_and_the_seed_decides() -> None:
    one, same, other = (chosen(selector(tasks(), seed=seed)) for seed in (3, 3, 4))
    assert one == same != other
    untried = selector(tasks(), thompson_sampling=False)
    assert chosen(untried) != [*range(SIZE)], "ties are broken at random, not by the reader's order"


@pytest.mark.parametrize("target", [0.25, 0.5, 0.8])
def test_tasks_near_the_target_are_found_by_their_rewards_alone(target: float) -> None:
    found = selector(tasks(), target_pass_rate=target, forgetting=0.02)
    simulate(found, 60)
    late = [HIDDEN[n] for step in range(61, 71) for n in chosen(found, step)]
    assert abs(np.mean(late) - target) < 0.12
    assert np.std(late) < 0.2 < np.std(HIDDEN)


def test_known_pass_rates_of_the_model_find_them_in_the_first_step() -> None:
    found = selector(tasks(rate=float), pass_rates=["rate"], thompson_sampling=False, target_pass_rate=0.5)
    assert sorted(chosen(found)) == [*range(46, 54)] or sorted(chosen(found)) == [*range(47, 55)]


def test_one_known_pass_rate_follows_a_model_that_gets_better() -> None:
    """All tasks are hard at first; later the model passes four times as much."""
    known = HIDDEN / 5
    better = np.clip(known * 4, 0, 1)
    found = selector(
        [Task(f"t{n}", "", metadata={"rate": float(rate)}) for n, rate in enumerate(known)],
        pass_rates=["rate"],
    )
    before = simulate(found, 5, known)
    after = simulate(found, 40, better, first=6)
    assert before[-1]["selector/pass_rate"] < 0.3
    assert abs(np.mean([m["selector/pass_rate"] for m in after[-10:]]) - 0.5) < 0.1


def test_the_model_is_placed_between_a_weaker_and_a_stronger_one() -> None:
    """Tasks that no step has had are estimated, too."""
    weaker, stronger = HIDDEN**3, HIDDEN**0.3
    between = (weaker + stronger) / 2
    found: Any = selector(
        tasks(**{"a.weak": lambda r: r**3, "strong": lambda r: r**0.3}), pass_rates=["a.weak", "strong"]
    )
    simulate(found, 12, between)
    unseen = ~found._seen
    assert unseen.sum() > 30
    assert np.abs(found.expected() - between)[unseen].mean() < 0.1


def test_a_temperature_spreads_the_choice() -> None:
    def spread(temperature: float) -> float:
        found = selector(
            tasks(rate=float), pass_rates=["rate"], thompson_sampling=False, softmax_temperature=temperature
        )
        return float(np.std([HIDDEN[n] for step in range(1, 20) for n in chosen(found, step)]))

    assert spread(0.0) < 0.05 < spread(0.05) < spread(10.0)


def test_what_was_learned_is_forgotten() -> None:
    found: Any = selector(tasks(), forgetting=0.5)
    found.observe([PassRate("t0", 0.0, MEMBERS)])
    low = found.expected()[0]
    for _ in range(20):
        found.observe([PassRate("t1", 1.0, MEMBERS)])
    assert low == pytest.approx(1 / 10) and found.expected()[0] == pytest.approx(0.5, abs=1e-4)
    assert found.expected()[1] > 0.9


def test_the_same_groups_bring_another_selector_into_the_same_state_bit_for_bit() -> None:
    one, other = (selector(tasks(rate=float), pass_rates=["rate"], seed=5) for _ in range(2))
    told = []
    for step in range(1, 12):
        told.append([PassRate(f"t{n}", HIDDEN[n] ** 2, MEMBERS) for n in chosen(one, step)])
        one.observe(told[-1])
    for groups in told:
        other.observe(groups)
    assert one._passed.tobytes() == other._passed.tobytes()  # type: ignore[attr-defined]
    assert chosen(one, 12, 101) == chosen(other, 12, 101)


def test_metrics_tell_what_was_expected_and_what_came() -> None:
    found = selector(tasks(rate=float), pass_rates=["rate"], thompson_sampling=False)
    metrics = found.observe(
        [PassRate("t50", 1.0, MEMBERS), PassRate("t50", 0.5, MEMBERS), PassRate("gone", 0.0, 8)]
    )
    assert metrics["selector/pass_rate"] == 0.75 and metrics["selector/tasks_seen"] == 1
    assert metrics["selector/expected_pass_rate"] == pytest.approx(0.5)
    assert 0.5 < metrics["selector/expected_pass_rate_all"] < 0.9, "the model is better than the field says"
    assert found.observe([]) == {}


def episode(group: int, reward: float, is_success: bool | None = None, failure: str | None = None) -> Any:
    plan = SimpleNamespace(task=Task(f"t{group}"), group=group, id=f"1.{group}/t{group}/0")
    return SimpleNamespace(plan=plan, id=plan.id, reward=reward, is_success=is_success, failure=failure)


def test_an_episode_passes_by_its_success_else_by_its_reward_and_never_by_failing() -> None:
    found = [
        *(episode(0, 0.25), episode(0, 1.0), episode(0, 1.0, failure="timeout"), episode(0, 0.75)),
        *(episode(2, -3.0, is_success=True), episode(2, 9.0, is_success=False)),
    ]
    assert pass_rates(found) == [PassRate("t0", 0.5, 4), PassRate("t2", 0.5, 2)]
    with pytest.raises(
        AjetError, match=r"^task.selector: the reward -0.1 of 1.0/t0/0 is not a pass rate.*is_success"
    ):
        pass_rates([episode(0, -0.1)])


JOB = {"workflow": "flow.py:run", "model": "somewhere/model"}
REFUSED = {
    "a field that a record lacks": (
        {"type": "difficulty", "pass_rates": ["rate"]},
        r"task.selector.pass_rates: the field 'rate' of the task 'b' is None, not a number from 0 to 1. Its fields: level",
    ),
    "a field that holds something else than a rate": (
        {"type": "easy_to_hard", "pass_rates": ["level"]},
        "the field 'level' of the task 'a' is 3, not",
    ),
    "a key without effect": (
        {"type": "sequential", "target_pass_rate": 0.2},
        "task.selector: target_pass_rate has no effect with type: sequential; remove it",
    ),
    "no field to sort by": ("easy_to_hard", r"task.selector: easy_to_hard needs pass_rates: \[FIELD\]"),
    "an unknown type": (
        "hardest",
        "task.selector.type: input should be 'shuffle', 'sequential', 'easy_to_hard' or",
    ),
    "an unknown key": (
        {"type": "difficulty", "taget_pass_rate": 1},
        "did you mean 'target_pass_rate'. Known: type, ",
    ),
}


@pytest.mark.parametrize("spec, said", REFUSED.values(), ids=REFUSED)
def test_what_a_job_cannot_mean_is_refused_before_it_starts(spec: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("async def run(task):\n    return 1.0\n")
    (tmp_path / "tasks.jsonl").write_text(
        '{"id": "a", "query": "q", "level": 3, "rate": 0.5}\n{"id": "b", "query": "q", "level": 1}\n'
    )
    layers = Layers()
    layers.add(
        {**JOB, "task": {"reader": "tasks.jsonl", "selector": spec}, "backbone": "debug"},
        "job.yaml",
        tmp_path,
    )
    with pytest.raises(ConfigError, match=said):
        prepare(layers)
