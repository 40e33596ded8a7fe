"""Batches from rollouts: dynamic sampling, over-sampling, stale episodes; what is counted and journaled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from ajet.job.config import Layers
from ajet.job.prepare import prepare
from ajet.learning.algorithms import GRPO
from ajet.learning.batch import RolloutBatch
from ajet.learning.rollouts import RolloutSource, plan_groups, plan_step
from ajet.learning.settings import TrainSettings
from ajet.learning.task_selector import Shuffled
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.journal import episode_from_json
from ajet.rollout.recorder import JOURNAL, RunRecorder, live_lines
from ajet.testing import ScriptedEngine
from ajet.types import AjetError, ConfigError, JudgeOutput, Task

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
TASKS = [Task(str(i), f"question {i}") for i in range(12)]


async def agent(task: Task) -> str:
    answer = await CLIENT.chat.completions.create(
        model="m", messages=[{"role": "user", "content": task.query}]
    )
    return answer.choices[0].message.content or ""


class Judge:
    """Members of a group get 0 and 1 in turn; those of the tasks in ``equal`` all get 1."""

    def __init__(self, equal: Sequence[str] = ()) -> None:
        self.equal = set(equal)
        self.seen: Counter[str] = Counter()

    def __call__(self, task: Task, output: Any) -> float:
        self.seen[task.id] += 1
        return 1.0 if task.id in self.equal else float(self.seen[task.id] % 2)


@pytest.fixture
def make(bench: Any, tokenizer: Any, tmp_path: Path) -> Callable[..., RolloutSource]:
    engine = ScriptedEngine(tokenizer, lambda request, prompt: "an answer")
    running = bench(engine)

    def make_source(
        judge: Any,
        *,
        workflow: Any = agent,
        rollout: Any = None,
        version: int = 0,
        reusable: dict[str, Episode] | None = None,
        deterministic: bool = False,
        folder: str = "run",
        **settings: Any,
    ) -> RolloutSource:
        engine.version = version
        engine.requests.clear()
        keys = {"group_size": 2, **(rollout or {})}
        whole = running.rollout(workflow, judge, deterministic=deterministic, **keys)
        train = TrainSettings(**{"batch_size": 3, **settings})
        recorder = RunRecorder(tmp_path / folder)
        return RolloutSource(
            rollout=whole,
            selector=Shuffled(TASKS, train.batch_size, 0),
            algorithm=GRPO(),
            settings=train,
            seed=0,
            recorder=recorder,
            on_episode=lambda *_: None,
            reusable=reusable or {},
        )

    return make_source


def run(source: RolloutSource, step: int = 1, version: int = 0) -> RolloutBatch:
    return asyncio.run(source.batch(step, version))


def trained(batch: RolloutBatch) -> list[str]:
    """Episode ids, as often as they are trained."""
    return [s.episode for s in batch.batch.samples]


def live(source: RolloutSource) -> set[str]:
    return {line["id"] for line in live_lines(source.recorder.dir / JOURNAL)}


def first_tasks(count: int) -> list[str]:
    return [task.id for task in islice(Shuffled(TASKS, 3, 0).order(1), count)]


def with_further(step: int, groups: int) -> list[Plan]:
    """The episodes of a step with so many groups."""
    return plan_groups(islice(Shuffled(TASKS, 3, 0).order(step), groups), step, 2, 0)


def test_further_groups_leave_the_steps_own_as_they_are_and_are_new_tasks_first() -> None:
    own = plan_step(TASKS, 2, batch_size=3, group_size=2, seed=0)
    more = with_further(2, 30)
    assert more[:6] == own
    assert len({p.task.id for p in more[:24]}) == 12, "every task once before any comes again"
    assert len({p.id for p in more}) == 60 and len({p.seed_key for p in more}) == 60


def test_by_default_every_group_is_trained_whatever_its_rewards(make: Any) -> None:
    source = make(Judge(equal=first_tasks(3)))
    batch = run(source)
    assert len(trained(batch)) == 6 and set(trained(batch)) == live(source)
    assert batch.metrics["groups_zero_advantage"] == 1
    assert not {"groups_started", "groups_skipped", "groups_unused"} & set(batch.metrics)


def test_dynamic_sampling_replaces_groups_without_advantage_until_the_batch_is_full(make: Any) -> None:
    equal = [first_tasks(6)[i] for i in (0, 2, 3)]
    source = make(Judge(equal), dynamic_sampling=4)
    batch = run(source)
    groups = {e.split("/")[0] for e in trained(batch)}
    # Groups 0 and 2 teach nothing; of their replacements 3 and 4 the first does not either; 5 fills the batch.
    assert groups == {"1.1", "1.4", "1.5"}
    assert max(Counter(trained(batch)).values()) == 1 and len(trained(batch)) == 6
    assert batch.metrics["groups_started"] == 6 and batch.metrics["groups_skipped"] == 3
    assert batch.metrics["groups"] == 3 and batch.metrics["groups_zero_advantage"] == 0
    assert batch.metrics["tokens_skipped"] == batch.sampled_tokens
    assert batch.metrics["episodes"] == 12, "the reward is that of all, not of the chosen ones"


def test_the_journals_live_episodes_are_those_that_were_trained(make: Any) -> None:
    source = make(Judge(first_tasks(2)), dynamic_sampling=4)
    batch = run(source)
    assert live(source) == set(trained(batch))
    again = run(source, step=2)
    assert live(source) == set(trained(batch)) | set(trained(again))


def test_dynamic_sampling_ends_at_its_bound_and_trains_what_there_is(make: Any) -> None:
    everything = [task.id for task in TASKS]
    batch = run(make(Judge(set(everything) - {first_tasks(1)[0]}), dynamic_sampling=2))
    assert {e.split("/")[0] for e in trained(batch)} == {"1.0"}
    assert batch.metrics["groups_started"] == 6 and batch.metrics["groups_skipped"] == 5
    none = run(make(Judge(everything), dynamic_sampling=2, folder="other"))
    assert len(trained(none)) == 12 and none.metrics["groups_skipped"] == 6, "a batch of no advantage at all"


def test_dynamic_sampling_is_the_same_again_when_deterministic(make: Any) -> None:
    equal = first_tasks(6)[:4]
    found = [
        trained(run(make(Judge(equal), dynamic_sampling=3, deterministic=True, folder=name))) for name in "ab"
    ]
    assert found[0] == found[1] and len(found[0]) == 6


def test_reused_episodes_do_not_count_in_the_tokens_per_second_of_a_resumed_step(make: Any) -> None:
    before = make(Judge(), folder="before")
    batch = run(before)
    by_id = {plan.id: plan for plan in plan_step(TASKS, 1, batch_size=3, group_size=2, seed=0)}
    lines = live_lines(before.recorder.dir / JOURNAL)
    finished = {line["id"]: episode_from_json(line, by_id[line["id"]]) for line in lines}
    again = run(make(Judge(), folder="all", reusable=finished))
    assert again.metrics["tokens_sampled"] == batch.metrics["tokens_sampled"] > 0
    assert batch.metrics["tokens_per_second"] > 0 and again.metrics["tokens_per_second"] == 0
    finished.popitem()
    assert run(make(Judge(), folder="rest", reusable=finished)).metrics["tokens_per_second"] > 0


def test_finished_episodes_of_further_groups_are_reused(make: Any) -> None:
    equal = first_tasks(2)
    before = make(Judge(equal), dynamic_sampling=3, folder="before")
    batch = run(before)
    by_id = {plan.id: plan for plan in with_further(1, 9)}
    lines = live_lines(before.recorder.dir / JOURNAL)
    reusable = {line["id"]: episode_from_json(line, by_id[line["id"]]) for line in lines}
    resumed = make(Judge(equal), dynamic_sampling=3, folder="after", reusable=reusable)
    again = run(resumed)
    assert trained(again) == trained(batch)
    assert again.metrics["episodes_reused"] == 6
    requests: Any = resumed.rollout.runner.answerer.engine
    assert {r.key[0].split("/")[0] for r in requests.requests} == {"1.0", "1.1"}, (
        "only skipped groups ran again"
    )


def test_over_sampling_takes_the_groups_that_are_complete_first(make: Any) -> None:
    slow = first_tasks(5)[1]

    async def dawdling(task: Task) -> str:
        text = await agent(task)
        await asyncio.sleep(120 if task.id == slow else 0)
        return text

    started = time.monotonic()
    source = make(Judge(), workflow=dawdling, rollout={"oversample": 1.5})
    batch = run(source)
    assert time.monotonic() - started < 60
    groups = {e.split("/")[0] for e in trained(batch)}
    assert len(groups) == 3 and "1.1" not in groups and len(trained(batch)) == 6
    assert live(source) == set(trained(batch))
    assert batch.metrics["groups_started"] == 5 and batch.metrics["groups_unused"] == 2
    assert 2 <= batch.metrics["episodes_cancelled"] <= 4


def test_cancelled_episodes_are_those_that_had_not_ended_forks_or_not(make: Any) -> None:
    slow = first_tasks(4)[1]

    async def dawdling(task: Task) -> str:
        for _ in range(3):
            text = await agent(task)
        await asyncio.sleep(120 if task.id == slow else 0)
        return text

    batch = run(make(Judge(), workflow=dawdling, rollout={"oversample": 1.3, "fork": {}, "group_size": 4}))
    assert batch.metrics["forks"] > 0 and batch.metrics["groups_started"] == 4
    assert batch.metrics["episodes_cancelled"] == 2, "the independent ones of the slow group"


def by_agent(task: Task, output: Any, episode: Any) -> JudgeOutput:
    """Rewards of the team differ, those of its only agent do not."""
    return JudgeOutput(reward=float(episode.id.rpartition("/")[2]), rewards={"agent": 1.0})


def test_a_group_teaches_nothing_if_what_it_trains_has_equal_rewards_whatever_others_get(make: Any) -> None:
    batch = run(make(by_agent, dynamic_sampling=2))
    assert not any(sample.advantages.any() for sample in batch.batch.samples)
    assert batch.metrics["groups_zero_advantage"] == batch.metrics["episodes_zero_advantage"] == 1
    assert batch.metrics["groups_started"] == batch.metrics["groups_skipped"] == 6


def test_with_a_discount_equal_rewards_after_more_calls_are_worth_less(make: Any) -> None:
    tries: Counter[str] = Counter()

    async def dawdling(task: Task) -> str:
        tries[task.id] += 1
        for _ in range(tries[task.id]):
            text = await agent(task)
        return text

    everything = [task.id for task in TASKS]
    batch = run(make(Judge(everything), workflow=dawdling, dynamic_sampling=2, call_discount=0.5))
    assert batch.metrics["groups_skipped"] == 0 and batch.metrics["groups_zero_advantage"] == 0


def test_over_sampling_looks_at_no_reward(make: Any) -> None:
    slow = first_tasks(5)[4]
    order = [*sorted(set(first_tasks(5)) - {slow}, key=int), slow]

    async def dawdling(task: Task) -> str:
        """One task after the other: when both members of those before it are in the journal."""
        text = await agent(task)
        before = set(order[: order.index(task.id)])
        while not Counter([*before] * 2) <= Counter(e.split("/")[1] for e in live(source)):
            await asyncio.sleep(0.02)
        if task.id == min(set(first_tasks(5)) - {slow}, key=int):
            raise ValueError("failed, but ended")
        return text

    source = make(Judge(first_tasks(5)), workflow=dawdling, rollout={"oversample": 1.5, "retries": 0})
    batch = run(source)
    fastest = sorted(set(first_tasks(5)) - {slow}, key=int)[:3]
    taken = {e.split("/")[1] for e in live(source)}
    assert taken == set(fastest), "in the order of their ends, with equal rewards and failures among them"
    assert batch.metrics["episodes_failed"] == 2


def test_over_sampling_and_dynamic_sampling_work_together_within_one_bound(make: Any) -> None:
    source = make(Judge(first_tasks(9)[:6]), dynamic_sampling=2, rollout={"oversample": 1.5})
    batch = run(source)
    assert batch.metrics["groups_started"] <= 9
    assert live(source) == set(trained(batch)) and max(Counter(trained(batch)).values()) == 1


def test_stale_episodes_are_dropped_and_counted_and_none_left_is_an_error(make: Any) -> None:
    assert len(trained(run(make(Judge(), version=3, folder="a"), version=5))) == 6, "no bound by default"
    kept = run(make(Judge(), version=3, max_staleness=2, folder="b"), version=5)
    assert kept.metrics["staleness"] == 2 and kept.metrics["episodes_stale"] == 0
    with pytest.raises(
        AjetError, match=r"all 6 episodes were sampled more than train\.max_staleness versions"
    ):
        run(make(Judge(), version=3, max_staleness=1, folder="c"), version=5)


def test_a_stale_part_is_left_out_of_statistics_and_of_the_journal(make: Any) -> None:
    class Moving(ScriptedEngine):
        async def generate(self, request: Any) -> Any:
            done = await super().generate(request)
            version = 1 if request.key[0].endswith("/1") else 4
            return replace(done, weight_versions=np.full(len(done.token_ids), version, np.int32))

    source = make(Judge(), max_staleness=1)
    engine: Any = source.rollout.runner.answerer.engine
    engine.__class__ = Moving
    batch = run(source, version=4)
    assert {e.rpartition("/")[2] for e in trained(batch)} == {"0"}
    assert batch.metrics["episodes_stale"] == 3 and batch.metrics["tokens_stale"] == batch.sampled_tokens
    assert live(source) == set(trained(batch))


def test_each_batch_carries_the_learning_rate_of_its_step(make: Any) -> None:
    source = make(Judge(), steps=4, learning_rate=1.0, schedule="linear", final_share=0.1)
    assert [run(source, step=step).batch.learning_rate for step in (1, 2, 4)] == pytest.approx(
        [1.0, 0.7, 0.1]
    )


def test_epochs_repeat_the_mini_batches(make: Any) -> None:
    batch = run(make(Judge(), epochs=3, mini_batches=2))
    assert batch.epochs == 3 and len(batch.batch.mini_batches) == 6
    assert list(batch.batch.mini_batches[:2]) * 3 == list(batch.batch.mini_batches)


# --------------------------------------------------------------------------- the job


def job(tmp_path: Path, **settings: Any) -> Any:
    (tmp_path / "agent.py").write_text("async def run(task): return ''\n")
    (tmp_path / "tasks.jsonl").write_text('{"query": "1+1?"}\n')
    layers = Layers()
    given = {"task.reader": "tasks.jsonl", "workflow": "agent.py:run", "model": "org/m"}
    for key, value in {**given, **settings}.items():
        layers.set(key, value, "--set", tmp_path)
    return prepare(layers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run.deterministic": True, "rollout.oversample": 2}, r"rollout\.oversample: .* clock"),
        ({"train.algorithm": "distillation"}, r"train\.reference: .*'distillation' needs a teacher"),
        ({"train.reference": "m"}, r"train\.reference: .*'grpo' does not use it"),
        ({"train.kl": -1}, r"train\.kl"),
        ({"train.correction": "on"}, r"train\.correction"),
        ({"train.algorithm.type": "gspo", "train.algorithm.clip": 1}, r"train\.algorithm\.clip: .*clip_"),
        ({"train.algorithm": "reinforce+"}, r"'reinforce\+'.*did you mean 'reinforce\+\+'"),
        ({"train.dynamic_sampling": 0.5}, r"train\.dynamic_sampling"),
        ({"train.credit": "tree"}, r"train\.credit: tree has no effect without forks; set rollout\.fork"),
        ({"train.credit": "branch"}, r"train\.credit"),
        *(
            (
                {"rollout.fork": {}, "train.credit": "tree", "train.algorithm": name},
                rf"train\.credit: .*'{name}'",
            )
            for name in ("ppo", "dpo", "sft", "rejection_sampling")
        ),
        ({"train.call_discount": 0.9, "train.algorithm": "dpo"}, r"train\.call_discount: .*'dpo' has no"),
        ({"train.call_discount": 1.5}, r"train\.call_discount"),
        ({"rollout.fork": {}, "train.algorithm": "ppo"}, r"rollout\.fork: the algorithm 'ppo' cannot learn"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job(tmp_path, **settings)


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
def test_a_backbone_that_does_not_know_the_kept_tokens_refuses_truncated_sampling(
    tmp_path: Path, cut: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`allow_truncated` accepts wrong ratios, but no parameter that the engine does not have."""
    from ajet.interfaces.backbone import OPTIONAL_KEYS, Capabilities
    from ajet_local import Local

    ((name, value),) = cut.items()
    keys = {f"rollout.sampling.{name}": value}
    assert job(tmp_path, **keys)
    monkeypatch.setattr(Local, "capabilities", Capabilities(deterministic=True, keys=OPTIONAL_KEYS))
    said = rf"rollout\.sampling: {name}={value}: the backbone 'local' does not"
    with pytest.raises(ConfigError, match=said):
        job(tmp_path, **keys)
    allowed = {**keys, "rollout.sampling.allow_truncated": True}
    if name != "min_p":
        assert job(tmp_path, **allowed)
    else:
        with pytest.raises(ConfigError, match="min_p"):
            job(tmp_path, **allowed)


@pytest.mark.parametrize(
    "settings",
    [
        {"train.kl": 0.1},
        {"train.entropy": 0.1},
        {"train.correction": "truncated"},
        {"train.epochs": 2},
        {"train.max_staleness": 1},
        {"train.dynamic_sampling": 2},
        {"train.schedule": "cosine"},
        {"rollout.oversample": 2},
    ],
)
def test_a_backbone_that_cannot_honour_a_key_refuses_it_by_name(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ajet.interfaces.backbone import Capabilities
    from ajet_local import Local

    assert job(tmp_path, **settings)
    monkeypatch.setattr(Local, "capabilities", Capabilities())
    (key,) = settings
    with pytest.raises(ConfigError, match=rf"{key}: the backbone 'local' cannot honour it"):
        job(tmp_path, **settings)


def test_a_reference_model_is_relative_to_the_job(tmp_path: Path) -> None:
    (tmp_path / "teacher").mkdir()
    made = job(tmp_path, **{"train.algorithm": "distillation", "train.reference": "teacher"})
    assert made.config.train.reference == str(tmp_path / "teacher")
