"""`ajet.select_model`: which of two models is better, over twenty seeds; objects, names and resuming."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import httpx2
import pytest

import ajet
from ajet.types import Spent
from ajet_selection.comparison import Comparison, Outcome, compare, describe_comparison

pytestmark = pytest.mark.whole

TASKS = 30


class Table(ajet.ChatModelPlugin):
    """A chat model that answers task i with its i-th number, which is the reward."""

    name = "table"
    says: tuple[float, ...]

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], sampling: Any
    ) -> Mapping[str, Any]:
        said = repr(self.says[int(messages[-1]["content"])])
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cost": 0.25}
        return {"role": "assistant", "content": said, "usage": usage}


async def agent(task: ajet.Task) -> Any:
    async with httpx2.AsyncClient() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
        answer = (await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)).json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["total_tokens"]


def judge(task: ajet.Task, output: ajet.WorkflowOutput) -> float:
    text, tokens = output.response
    assert tokens == 15  # the agent sees what its model reports
    return float(text)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def select(models: Any, **further: Any) -> ajet.Selection:
    tasks = [{"id": f"t{i}", "query": str(i)} for i in range(TASKS)]
    return ajet.select_model(
        models=models, workflow=agent, tasks=tasks, judge=judge, progress=False, **further
    )


def two(seed: int, errors: float) -> dict[str, Table]:
    """Two models whose rewards differ by this many standard errors of the paired difference, in changing order."""
    draw = random.Random(seed)
    noise = [draw.gauss(0, 1) for _ in range(TASKS)]
    differences = [(x - mean(noise)) / stdev(noise) + errors / TASKS**0.5 for x in noise]
    base = [draw.gauss(0, 3) for _ in range(TASKS)]  # tasks are of very different difficulty
    models = {
        "better": Table(says=tuple(b + d for b, d in zip(base, differences, strict=True))),
        "worse": Table(says=tuple(base)),
    }
    return models if seed % 2 else dict(reversed(models.items()))


def compared(models: Mapping[str, Table]) -> Comparison:
    """What `select_model` compares, without running episodes: their rewards are known."""
    return compare(
        {
            name: [Outcome(f"t{i}", reward, 1.0, Spent()) for i, reward in enumerate(table.says)]
            for name, table in models.items()
        }
    )


def test_the_better_of_two_models_is_picked_in_20_of_20_seeds_if_they_differ_by_3_standard_errors() -> None:
    found = [compared(two(seed, errors=3)) for seed in range(20)]
    assert [(f.best, f.is_significant) for f in found] == [("better", True)] * 20
    run = select(two(0, errors=3))
    assert (run.best, run.is_significant) == ("better", True)
    difference = run.differences["worse"].reward
    assert difference.mean == pytest.approx(found[0].differences[0].reward.mean)
    assert difference.standard_error and difference.mean / difference.standard_error == pytest.approx(3)


@pytest.mark.parametrize("errors", [0, 1])
def test_no_difference_is_reported_in_20_of_20_seeds_if_there_is_none(errors: float) -> None:
    found = [compared(two(seed, errors)) for seed in range(20)]
    assert [f.is_significant for f in found] == [False] * 20
    run = select(two(0, errors))
    assert not run.is_significant and "no difference between" in run.table()


def test_long_paths_do_not_shift_the_columns() -> None:
    found = compared({f"/runs/{'a' * size}": Table(says=(1.0, 2.0)) for size in (10, 90)})
    head, *rows = describe_comparison(found).splitlines()[:3]
    assert {row[head.index("reward") - 2 :][:3] for row in rows} == {"  1"}


def test_figures_are_read_from_the_run_folder() -> None:
    found = select(two(1, errors=3))
    better = found.models["better"]
    assert better.tokens == found.models["worse"].tokens and better.episodes == TASKS
    assert better.tokens and (better.tokens.mean, better.tokens.standard_error) == (15, 0)
    assert better.cost and better.cost.mean == 0.25
    assert [e.task for e in found.run("better").episodes() if e.reward > 0]
    assert ajet.Selection(found.dir).best == "better"
    assert repr(found) == "<Selection of 2 models, best better>"


def test_models_may_be_specs_and_a_list_names_them_by_their_model(tmp_path: Path) -> None:
    for name in ("yes", "no"):
        (tmp_path / f"{name}.yaml").write_text(f"- {{say: '{int(name == 'yes')}'}}\n")

    async def plain(task: ajet.Task) -> str:
        async with httpx2.AsyncClient() as client:
            body = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
            answer = (await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)).json()
        return str(answer["choices"][0]["message"]["content"])

    found = ajet.select_model(
        models={name: {"type": "script", "path": f"{name}.yaml"} for name in ("no", "yes")},
        workflow=plain,
        judge=lambda task, output: float(output.response),
        tasks=[{"query": str(i)} for i in range(6)],
        progress=False,
    )
    assert found.best == "yes" and found.is_significant
    assert found.models["yes"].tokens is None  # a script reports none
    with pytest.raises(ajet.ConfigError, match="models=: table is named twice"):
        select([*two(1, 3).values()])


def test_a_comparison_is_resumed_with_its_models_and_keeps_finished_episodes() -> None:
    models = two(1, errors=3)
    short = models["worse"].model_copy(update={"says": models["worse"].says[:-1]})  # fails at the last task
    found = select({**models, "worse": short}, set={"rollout.retries": 0})
    assert found.models["worse"].failed == 1
    again = ajet.select_model(models=models, workflow=agent, judge=judge, resume=found.dir, progress=False)
    assert again.dir == found.dir and again.models["worse"].failed == 0
    assert again.models["worse"].episodes == again.models["better"].episodes == TASKS


def test_it_can_be_awaited() -> None:
    async def program() -> ajet.Selection:
        tasks = [{"query": str(i)} for i in range(8)]
        return await ajet.aselect_model(
            models=two(1, errors=3), workflow=agent, tasks=tasks, judge=judge, progress=False
        )

    assert asyncio.run(program()).best in ("better", "worse")


def test_an_engine_samples_with_the_same_seeds_for_each_model(model: Path, tmp_path: Path) -> None:
    """Two folders with the same weights: every sampled answer is the same, so are the figures."""

    async def short(task: ajet.Task) -> str:
        async with httpx2.AsyncClient() as client:
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": task.query}],
                "max_tokens": 6,
            }
            answer = (await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)).json()
        return str(answer["choices"][0]["message"]["content"])

    (tmp_path / "twin").symlink_to(model)
    found = ajet.select_model(
        models={"one": model, "two": "twin"},
        workflow=short,
        judge=lambda task, output: float(sum(map(ord, output.response)) % 97),
        tasks=[{"id": f"t{i}", "query": str(i)} for i in range(4)],
        repeats=2,
        progress=False,
    )
    said = [
        sorted((episode.id, episode.response) for episode in found.run(name).episodes())
        for name in ("one", "two")
    ]
    assert said[0] == said[1] and len({response for _, response in said[0]}) > 4
    assert found.differences["two"].p_value == 1 and not found.is_significant
    one = found.models["one"]
    assert one.episodes == 8 and one.tokens and one.tokens.mean > 10 and one.cost is None
