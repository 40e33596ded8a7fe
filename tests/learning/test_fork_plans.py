"""Forks of a step: where they begin, what they cost, and that a step with them is repeated, resumed and audited like any other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from ajet.job.config import Layers
from ajet.job.prepare import prepare
from ajet.learning.algorithms import GRPO
from ajet.learning.batch import RolloutBatch
from ajet.learning.fork_plans import MOST, plan_forks
from ajet.learning.rollouts import RolloutSource, plan_step
from ajet.learning.settings import TrainSettings
from ajet.learning.task_selector import Shuffled
from ajet.rollout.episode import Episode, Fork, Plan
from ajet.rollout.failures import Failure, FailureKind
from ajet.rollout.journal import episode_from_json
from ajet.rollout.recorder import JOURNAL, RunRecorder, live_lines
from ajet.rollout.settings import RolloutSettings
from ajet.testing import ScriptedEngine
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.types import ConfigError, Generation, Task, WorkflowOutput

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
TASKS = [Task(str(i), f"question {i}") for i in range(6)]
TURNS = 4


def episode(
    member: int,
    tokens: Sequence[int] = (10, 10, 10, 10),
    reward: float = 0.0,
    *,
    surprise: Sequence[float] = (),
    fork: Fork | None = None,
    trained: Sequence[bool] = (),
) -> Episode:
    """An episode whose calls sampled so many tokens."""
    record = EpisodeRecord()
    node, first = record.tree("k").root, fork.calls if fork else 0
    for number, count in enumerate(tokens):
        prompt = record.tree("k").extend(node, as_ids([1]))
        logprobs = np.full(count, -(surprise[number] if surprise else 1.0), np.float32)
        generation = Generation(as_ids([2 + member] * count), logprobs, as_ids([0] * count), "stop")
        node = record.tree("k").extend(prompt, generation.token_ids)
        own = number >= first
        record.add(
            Call(
                number,
                "a",
                "policy",
                "k",
                prompt=prompt,
                end=node,
                generation=generation,
                temperature=1.0,
                trained=own and (trained[number] if trained else True),
                replayed=not own,
            )
        )
    record.close()
    plan = Plan(f"1.0/t/{member}", f"0/1.0/t/{member}", Task("t"), member, 0, fork)
    return Episode(plan, 0, WorkflowOutput(), record, reward=reward)


def forks(
    group: Sequence[Episode], number: int = 0, *, group_size: int = 4, **fork: Any
) -> list[tuple[str, int]]:
    """Where a round of forks begins: (member, calls) of the parent."""
    settings = RolloutSettings(group_size=group_size, fork={"roots": 2, **fork})
    plans = plan_forks(group, settings, number, 0)
    members = [e.plan.member for e in group]
    assert [p.member for p in plans] == [*range(max(members) + 1, max(members) + 1 + len(plans))]
    return [(p.fork.parent.rpartition("/")[2], p.fork.calls) for p in plans if p.fork]


def cost(points: Sequence[tuple[str, int]], group: Sequence[Episode]) -> int:
    counts = {str(e.plan.member): [len(c.generation.token_ids) for c in e.record.calls] for e in group}
    return sum(sum(counts[member][calls:]) for member, calls in points)


@pytest.mark.parametrize("where", ["uniform", "entropy", "value"])
def test_forks_are_expected_to_sample_what_the_missing_episodes_would(where: str) -> None:
    group = [episode(0, [5, 20, 3, 12], 1.0), episode(1, [30, 2, 2, 6], 0.0)]
    points = forks(group, where=where, group_size=8)
    mean = 40
    assert 6 * mean - 40 < cost(points, group) <= 6 * mean
    assert all(0 < calls < 4 for _, calls in points)
    assert points == forks(group[::-1], where=where, group_size=8), "in whatever order its members ended"


def test_forks_that_cost_little_are_not_made_without_end() -> None:
    assert len(forks([episode(0, [100, 1]), episode(1, [100, 1])], group_size=8)) == MOST * 8


def test_uniform_takes_other_calls_for_other_groups() -> None:
    settings = RolloutSettings(group_size=4, fork={"roots": 2})
    group = [episode(0), episode(1)]
    found = {
        tuple((p.fork.parent, p.fork.calls) for p in plan_forks(group, settings, 0, s) if p.fork)
        for s in range(30)
    }
    assert len(found) > 10
    assert {calls for one in found for _, calls in one} == {1, 2, 3}


def test_entropy_takes_the_calls_with_the_lowest_mean_logprob() -> None:
    group = [episode(0, surprise=[9, 1, 3, 2]), episode(1, surprise=[9, 5, 1, 4])]
    assert forks(group, where="entropy") == [("1", 1), ("1", 3), ("0", 2), ("0", 3), ("1", 3)]


def test_value_halves_the_part_of_a_path_along_which_rewards_change_most() -> None:
    group = [episode(0, [10] * 8, 1.0), episode(1, [10] * 8, 0.0), episode(2, [10] * 8, 0.0)]
    first = forks(group, where="value", group_size=4, roots=3, depth=2)
    assert first == [("0", 4)], "of the episode that differs most from the others, in the middle"
    bad = episode(3, [10] * 8, 0.0, fork=Fork(group[0].id, 4))
    assert forks([*group, bad], 1, where="value", group_size=5, roots=3, depth=2)[0] == ("0", 6), (
        "what decided came after the fork that failed"
    )
    good = episode(3, [10] * 8, 1.0, fork=Fork(group[0].id, 4))
    assert forks([*group, good], 1, where="value", group_size=5, roots=3, depth=2)[0] == ("0", 2), (
        "or before it"
    )


def test_value_counts_a_root_that_no_engine_answered_with_its_reward() -> None:
    """Frozen models may solve an episode alone."""
    alone, low, high = episode(0, [], 1.0), episode(1, reward=0.0), episode(2, reward=1.0)
    assert forks([alone, low], where="value")[0][0] == "1" and forks([alone, low, high], where="value")
    assert forks([episode(0, []), episode(1, [])], where="value") == []


def test_a_fork_is_forked_only_from_its_own_calls() -> None:
    root = episode(0)
    child = episode(1, fork=Fork(root.id, 2))
    own = {calls for member, calls in forks([root, child], group_size=30, roots=1, depth=3) if member == "1"}
    assert own == {3}


def test_no_fork_begins_before_a_call_that_is_not_trained_or_in_an_episode_that_failed() -> None:
    failed = episode(1)
    failed.failed = Failure(FailureKind.TIMEOUT)
    group = [episode(0, trained=[True, True, False, True]), failed]
    assert {*forks(group, group_size=8)} == {("0", 1), ("0", 3)}


# ---------------------------------------------------------------- whole steps


async def agent(task: Task) -> str:
    chat: list[Any] = [{"role": "user", "content": task.query}]
    for turn in range(TURNS):
        answer = await CLIENT.chat.completions.create(model="m", messages=chat)
        said = answer.choices[0].message.content
        chat += [{"role": "assistant", "content": said}, {"role": "user", "content": f"turn {turn}"}]
    return str(chat[-2]["content"])


def says(request: Any, prompt: str) -> str:
    return f"{request.key[0]} {request.key[1]} {request.sampling.seed % 7}"


def judge(task: Task, output: Any) -> float:
    return float(str(output.response)[-1]) % 2


@pytest.fixture
def make(bench: Any, tokenizer: Any, tmp_path: Path) -> Callable[..., RolloutSource]:
    running = bench(ScriptedEngine(tokenizer, says))

    def source(
        folder: str = "run",
        *,
        workflow: Any = agent,
        depth: int = 2,
        reusable: Any = None,
        deterministic: bool = False,
        oversample: float = 1.0,
        **settings: Any,
    ) -> RolloutSource:
        running.engine.requests.clear()
        train = TrainSettings(**{"batch_size": 2, "credit": "tree", **settings})
        return RolloutSource(
            rollout=running.rollout(
                workflow,
                judge,
                group_size=4,
                fork={"depth": depth} if depth else None,
                deterministic=deterministic,
                oversample=oversample,
            ),
            selector=Shuffled(TASKS, train.batch_size, 0),
            algorithm=GRPO(),
            settings=train,
            seed=0,
            recorder=RunRecorder(tmp_path / folder),
            on_episode=lambda *_: None,
            reusable=reusable or {},
        )

    return source


def run(source: RolloutSource) -> RolloutBatch:
    return asyncio.run(source.batch(1, 0))


def lines(source: RolloutSource) -> list[dict[str, Any]]:
    return live_lines(source.recorder.dir / JOURNAL)


@pytest.mark.whole
def test_every_token_of_a_step_with_forks_of_forks_is_trained_once(make: Any) -> None:
    source = make()
    batch = run(source)
    read = [
        episode_from_json(line, Plan(line["id"], "", Task("t"), line["member"], 0)) for line in lines(source)
    ]
    assert batch.metrics["forks"] > 4 and batch.metrics["forks_diverged"] == 0
    parents = {e.id: e for e in read}
    assert any(parents[e.plan.fork.parent].plan.fork for e in read if e.plan.fork)
    sampled = sum(e.record.sampled_tokens for e in read)
    requests = source.rollout.runner.answerer.engine.requests
    assert sampled == batch.sampled_tokens == batch.metrics["tokens_sampled"]
    assert len(requests) == sum(len(e.record.trained_calls) for e in read), "no answer was sampled twice"
    trained: Counter[tuple[str, int]] = Counter()
    for sample in batch.batch.samples:
        assert sample.episode
        trained.update((sample.episode, span.call) for span in sample.spans)
    assert trained == Counter((e.id, c.number) for e in read for c in e.record.trained_calls)
    assert int(sum(s.mask.sum() for s in batch.batch.samples)) == sampled


@pytest.mark.whole
def test_a_group_with_forks_costs_as_much_as_one_without(make: Any) -> None:
    plain, forked = run(make("plain", depth=0)), run(make("forked"))
    assert 0.7 < forked.metrics["tokens_sampled"] / plain.metrics["tokens_sampled"] <= 1.1
    assert forked.metrics["episodes"] > plain.metrics["episodes"] == 8


@pytest.mark.whole
def test_a_deterministic_step_with_forks_is_the_same_again(make: Any) -> None:
    one, other = (run(make(name, deterministic=True)) for name in "ab")
    assert [s.episode for s in one.batch.samples] == [s.episode for s in other.batch.samples]
    for a, b in zip(one.batch.samples, other.batch.samples, strict=True):
        assert np.array_equal(a.token_ids, b.token_ids) and np.array_equal(a.advantages, b.advantages)
        assert np.array_equal(a.weights, b.weights)


@pytest.mark.whole
def test_a_resumed_step_reuses_its_roots_and_forks_them_again(make: Any) -> None:
    before = make("before")
    batch = run(before)
    roots = {p.id: p for p in plan_step(TASKS, 1, batch_size=2, group_size=2, seed=0)}
    finished = {
        line["id"]: episode_from_json(line, roots[line["id"]])
        for line in lines(before)
        if line["id"] in roots
    }
    after = make("after", reusable=finished)
    again = run(after)
    assert [s.episode for s in again.batch.samples] == [s.episode for s in batch.batch.samples]
    for a, b in zip(again.batch.samples, batch.batch.samples, strict=True):
        assert np.array_equal(a.token_ids, b.token_ids) and np.array_equal(a.advantages, b.advantages)
    assert not {r.key[0] for r in after.rollout.runner.answerer.engine.requests} & roots.keys()


@pytest.mark.whole
def test_forks_go_with_over_sampling_and_dynamic_sampling(make: Any) -> None:
    source = make(oversample=1.5, dynamic_sampling=2)
    batch = run(source)
    assert {s.episode for s in batch.batch.samples} <= {line["id"] for line in lines(source)}
    assert batch.metrics["forks"] > 0


def test_a_step_whose_forks_all_diverge_learns_from_its_roots_and_says_so(make: Any) -> None:
    clock = iter(range(10**6))

    async def with_a_clock(task: Task) -> str:
        return await agent(Task(task.id, f"{task.query} at {next(clock)}"))

    source = make(workflow=with_a_clock)
    batch = run(source)
    metrics = batch.metrics
    assert metrics["forks"] == metrics["forks_diverged"] > 0 and metrics["episodes_failed"] == 0
    diverged = [line for line in lines(source) if line["failure"] == "diverged"]
    assert len(diverged) == metrics["forks"]
    assert not {s.episode for s in batch.batch.samples} & {line["id"] for line in diverged}


@pytest.mark.whole
def test_what_a_selector_and_the_reward_learn_of_a_task_is_its_independent_episodes(make: Any) -> None:
    source = make()
    metrics = run(source).metrics
    roots = [line["reward"] for line in lines(source) if "fork" not in line]
    assert len(roots) == 4 and metrics["reward"] == pytest.approx(sum(roots) / 4)


AGENT = """
from ajet.interfaces.judge import GroupJudge

async def run(task):
    return "x"

def judge(task, output):
    return 1.0

class Ranks(GroupJudge):
    name = "ranks"

    async def score_group(self, task, episodes):
        return [None for _ in episodes]
"""


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rollout.fork.where": "value"}, r"rollout\.fork\.where: value decides .* Set train\.credit: tree"),
        ({"rollout.fork.where": "entropy"}, r"rollout\.fork\.where: entropy decides"),
        (
            {"rollout.fork.roots": 8},
            r"rollout: fork\.roots: 8 independent episodes leave nothing of a group of 8",
        ),
        ({"rollout.fork.roots": 2, "judge": "agent.py:Ranks"}, r"rollout\.fork: the judge 'ranks' compares"),
    ],
)
def test_forks_that_would_mislead_are_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "query": "q"}\n')
    layers = Layers()
    layers.add(
        {
            "task": {"reader": "tasks.jsonl"},
            "workflow": "agent.py:run",
            "judge": "agent.py:judge",
            "model": "starter",
        },
        "job.yaml",
        tmp_path,
    )
    for key, value in keys.items():
        layers.set(key, value, "test", tmp_path)
    with pytest.raises(ConfigError, match=said):
        prepare(layers)
