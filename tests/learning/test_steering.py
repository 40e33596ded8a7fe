"""Groups that begin with calls of an earlier episode: which, with whose calls and how many, what is trained and counted, and that a
resumed run goes on alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import openai
import pytest

from ajet.interfaces.algorithm import Algorithm
from ajet.job.config import Layers
from ajet.job.prepare import prepare
from ajet.learning.algorithms import DAPO, GRPO, RLOO
from ajet.learning.batch import Learning, RolloutBatch, build_batch
from ajet.learning.demonstrations import demonstrations_of, read_demonstrations
from ajet.learning.rollouts import RolloutSource, plan_groups
from ajet.learning.settings import TrainSettings
from ajet.learning.steering import PastEpisode, Steering
from ajet.learning.task_selector import InOrder
from ajet.rollout.episode import Fork
from ajet.rollout.journal import episode_to_json
from ajet.rollout.recorder import JOURNAL, RunRecorder, live_lines
from ajet.rollout.settings import SteerSettings
from ajet.testing import ScriptedEngine
from ajet.types import AjetError, ConfigError, Task
from tests.learning.test_fork_plans import episode as forked_episode

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
CALLS = 10


def past(
    member: int,
    reward: float = 0.0,
    *,
    group: int = 0,
    step: int = 1,
    task: str = "t",
    fork: Fork | None = None,
    failure: str | None = None,
    calls: int = CALLS,
) -> PastEpisode:
    return PastEpisode(
        id=f"{step}.{group}/{task}/{member}",
        task=task,
        group=group,
        member=member,
        failure=failure,
        reward=reward,
        is_success=None,
        fork=fork,
        calls=calls,
        places=list(range(1, calls)),
    )


def group(rewards: Sequence[float], **more: Any) -> list[PastEpisode]:
    return [past(member, reward, **more) for member, reward in enumerate(rewards)]


class Planned:
    """A steering of one task, whose groups are never whole by lot."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        given = SteerSettings(**{"whole": 1e-9, **settings})
        self.steering = Steering(given, RunRecorder(tmp_path / "run"), batch_size=1, group_size=8, seed=0)
        self.step = 0

    def start(self, task: str = "t") -> Fork | None:
        """Where the task's next group begins."""
        self.step += 1
        plans = plan_groups([Task(task)], self.step, 4, 0)
        forks = [plan.fork for plan in self.steering.steered(self.step, plans)]
        assert len(set(forks)) == 1, "a group has one start"
        return forks[0]

    def ended(self, rewards: Sequence[float], **more: Any) -> None:
        self.steering.observe(group(rewards, step=self.step, **more))


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., Planned]:
    return lambda **settings: Planned(tmp_path, **settings)


def test_a_task_that_fails_begins_with_calls_of_its_success_and_one_that_succeeds_with_those_of_its_failure(
    planned: Any,
) -> None:
    for rewards, parent in {
        (0.0, 0.0, 1.0, *[0.0] * 29): "1.0/t/2",
        (1.0, 1.0, 1.0, 0.0, *[1.0] * 28): "1.0/t/3",
    }.items():
        runs = planned()
        assert runs.start() is None, "its pass rate is not known yet"
        runs.ended(rewards)
        start = runs.start()
        assert start and start.steered and start.parent == parent and 1 <= start.calls < CALLS


def test_a_task_within_the_band_is_left_alone(planned: Any) -> None:
    runs = planned()
    runs.start()
    runs.ended([0.0, 1.0, 0.0, 1.0])
    assert runs.start() is None


def test_a_task_without_a_success_begins_with_its_best_failure_unless_all_are_alike(planned: Any) -> None:
    runs = planned(keep=1)
    runs.start()
    runs.ended([0.0] * 16)
    assert runs.start() is None
    runs.ended([0.0, 0.2, 0.1] + [0.0] * 13)
    start = runs.start()
    assert start and start.parent == "2.0/t/1"
    runs.ended([0.3] + [0.0] * 15, fork=start)
    start = runs.start()
    assert start and start.parent == "3.0/t/0", "what got further is the next start"


@pytest.mark.parametrize(("band", "expected"), [((0.125, 0.9), 3.0), ((0.5, 0.9), 1.0)])
def test_so_many_calls_are_left_to_the_model_that_its_pass_rate_is_that_of_the_bands_edge(
    planned: Any, band: tuple[float, float], expected: float
) -> None:
    """Each call of ten succeeds with a half."""
    rng, runs = Random(0), planned(band=band)
    runs.start()
    runs.ended([1.0] + [0.0] * 31)
    left = []
    for _ in range(60):
        start = runs.start()
        assert start
        left.append(CALLS - start.calls)
        runs.ended([float(rng.random() < 0.5 ** left[-1]) for _ in range(8)], fork=start)
    assert np.mean(left[10:]) == pytest.approx(expected, abs=0.7)


def test_a_steered_episode_can_be_left_where_it_was_replayed_too() -> None:
    steered = forked_episode(0, fork=Fork("1.0/t/3", 2, steered=True))
    known = PastEpisode.of(steered)
    assert known.places == [1, 2, 3] and known.calls == 4
    line = episode_to_json(steered, phase="train", step=2)
    assert PastEpisode.read(json.loads(json.dumps(line))) == known


@pytest.mark.parametrize("algorithm", [GRPO(), DAPO(), RLOO()])
def test_a_token_weighs_as_much_behind_a_start_as_in_a_whole_episode(algorithm: Algorithm) -> None:
    weights = []
    for fork in (None, Fork("0.0/t/3", 3, steered=True)):
        episodes = [forked_episode(member, reward=member, fork=fork) for member in range(2)]
        batch = build_batch(episodes, Learning(algorithm), mini_batches=1, learning_rate=1.0, seed="s")
        assert batch
        weights.append({float(w) for sample in batch.batch.samples for w in sample.weights[sample.mask]})
    assert len(weights[0]) == 1 and weights[0] == weights[1]


def test_a_task_that_can_do_without_is_whole_again_and_its_rate_is_found_out_anew(planned: Any) -> None:
    runs = planned()
    runs.start()
    runs.ended([1.0] + [0.0] * 31)
    for _ in range(8):
        if (start := runs.start()) is None:
            break
        runs.ended([1.0] * 8, fork=start)
    else:
        pytest.fail("it is still steered")
    runs.ended([0.0, 1.0] * 4)
    assert runs.start() is None


@pytest.mark.parametrize("behind", [0.25, 1.0])
def test_where_groups_behind_a_start_tell_less_than_whole_ones_they_are_only_tried_from_time_to_time(
    planned: Any, behind: float
) -> None:
    """Ten tasks of two calls, in which one episode of 16 succeeds; of those that begin after the first call, the share ``behind``."""
    rng, runs = Random(0), planned(whole=0.25)
    steered = []
    for step in range(400):
        task = f"t{step % 10}"
        start = runs.start(task)
        steered.append(start is not None)
        rewards = [float(rng.random() < (behind if start else 1 / 16)) for _ in range(8)]
        runs.ended(rewards, fork=start, calls=2, task=task)
    share = np.mean(steered[200:])
    assert 0 < share < 0.15 if behind == 1.0 else share > 0.6


def test_a_task_whose_groups_diverge_is_no_longer_steered(planned: Any) -> None:
    runs = planned()
    runs.start()
    runs.ended([1.0] + [0.0] * 31)
    start = runs.start()
    assert start
    runs.ended([0.0, 0.0, 0.0], fork=start, failure="diverged")
    assert runs.start() is None


def test_a_reward_that_is_no_pass_rate_is_refused_with_the_remedy(planned: Any) -> None:
    with pytest.raises(AjetError, match=r"rollout\.steer: the reward 7 of 0\.0/t/0 is not a pass rate"):
        planned().ended([7.0])


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_the_share_of_whole_groups_is_the_jobs_and_each_place_has_its_turn(
    tmp_path: Path, batch_size: int
) -> None:
    steering = Steering(
        SteerSettings(), RunRecorder(tmp_path / "run"), batch_size=batch_size, group_size=8, seed=1
    )
    whole = np.array(
        [[steering._is_whole(step, place) for place in range(2 * batch_size)] for step in range(600)]
    )
    assert whole.mean(axis=0) == pytest.approx([0.25] * 2 * batch_size, abs=0.07)
    in_batch = whole[:, :batch_size].sum(axis=1)
    assert set(in_batch) <= {int(batch_size / 4), -(-batch_size // 4)}


# ---------------------------------------------------------------------------- steps

TASKS = [Task(str(i), f"question {i}") for i in range(3)]
TURNS = 3


def says(request: Any, prompt: str) -> str:
    """Right in every other call, by its seed."""
    return "right" if request.sampling.seed % 2 else "wrong"


async def agent(task: Task) -> str:
    return await talk([{"role": "user", "content": task.query}], TURNS)


async def talk(chat: list[Any], turns: int) -> str:
    for turn in range(turns):
        answer = await CLIENT.chat.completions.create(model="m", messages=chat)
        said = answer.choices[0].message.content
        chat += [{"role": "assistant", "content": said}, {"role": "user", "content": f"turn {turn}"}]
    return " ".join(m["content"] for m in chat if m["role"] == "assistant")


def judge(task: Task, output: Any) -> bool:
    return output.response.count("wrong") < len(output.response.split()) / 4


@pytest.fixture
def make(bench: Any, tokenizer: Any, tmp_path: Path) -> Callable[..., RolloutSource]:
    told: list[Any] = []
    running = bench(ScriptedEngine(tokenizer, lambda request, prompt: told[-1](request, prompt)))

    def make_source(
        folder: str = "run",
        *,
        workflow: Any = agent,
        judge: Any = judge,
        answers: Any = says,
        done: int = 0,
        rollout: Any = None,
        **train: Any,
    ) -> RolloutSource:
        told.append(answers)
        keys = {"group_size": 4, "steer": {"whole": 0.34, "band": [0.3, 0.7]}, **(rollout or {})}
        whole = running.rollout(workflow, judge, deterministic="oversample" not in keys, **keys)
        settings, recorder = TrainSettings(batch_size=3, **train), RunRecorder(tmp_path / folder)
        steering = None
        if whole.settings.steer:
            steering = Steering(
                whole.settings.steer, recorder, batch_size=3, group_size=whole.settings.roots, seed=0
            )
            steering.read(done)
        return RolloutSource(
            rollout=whole,
            selector=InOrder(TASKS, 3),
            algorithm=GRPO(),
            settings=settings,
            seed=0,
            recorder=recorder,
            on_episode=lambda *_: None,
            steering=steering,
        )

    return make_source


def run(source: RolloutSource, steps: Sequence[int]) -> list[RolloutBatch]:
    async def batches() -> list[RolloutBatch]:
        return [await source.batch(step, 0) for step in steps]

    return asyncio.run(batches())


def lines(source: RolloutSource) -> list[Any]:
    return live_lines(source.recorder.dir / JOURNAL)


def same(one: RolloutBatch, other: RolloutBatch) -> bool:
    return [s.episode for s in one.batch.samples] == [s.episode for s in other.batch.samples] and all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for a, b in zip(one.batch.samples, other.batch.samples, strict=True)
        for name in ("token_ids", "mask", "advantages", "weights")
    )


@pytest.mark.whole
def test_a_steered_group_replays_one_earlier_episode_and_trains_only_what_it_sampled(make: Any) -> None:
    source = make()
    batches = run(source, range(1, 7))
    by_id = {line["id"]: line for line in lines(source)}
    steered = [line for line in by_id.values() if "fork" in line]
    assert steered and all(line["fork"]["steered"] for line in steered)
    for line in steered:
        fork, parent = line["fork"], by_id[line["fork"]["parent"]]
        assert parent["step"] < line["step"] and parent["task"] == line["task"]
        assert [c["tokens"].get("replayed", False) for c in line["calls"]] == [
            n < fork["calls"] for n in range(TURNS)
        ]
        assert not any(c["tokens"]["trained"] for c in line["calls"][: fork["calls"]])
        same_group = [
            x["fork"] for x in steered if x["id"].rpartition("/")[0] == line["id"].rpartition("/")[0]
        ]
        assert same_group == [fork] * 4
    for batch in batches:
        trained = sum(int(sample.mask.sum()) for sample in batch.batch.samples)
        assert trained == batch.sampled_tokens == batch.metrics["tokens_sampled"]
        for sample in batch.batch.samples:
            fork = by_id[sample.episode].get("fork")
            assert {span.call for span in sample.spans} == set(range(fork["calls"] if fork else 0, TURNS))


@pytest.mark.whole
def test_figures_are_those_of_whole_episodes_and_steered_ones_have_their_own(make: Any) -> None:
    source = make()
    for step, batch in enumerate(run(source, range(1, 7)), 1):
        mine = [line for line in lines(source) if line["step"] == step]
        whole = [line["reward"] for line in mine if "fork" not in line]
        steered = [line for line in mine if "fork" in line]
        metrics = batch.metrics
        assert metrics["reward"] == pytest.approx(np.mean(whole)), "a share of each step's groups is whole"
        assert metrics.get("steered", 0) == len(steered) == 4 * metrics.get("groups_steered", 0)
        assert "forks" not in metrics
        if steered:
            assert metrics["steered_reward"] == pytest.approx(np.mean([x["reward"] for x in steered]))
            assert metrics["steered_calls"] == pytest.approx(np.mean([x["fork"]["calls"] for x in steered]))
            assert metrics["steered_diverged"] == 0


@pytest.mark.whole
@pytest.mark.parametrize("dynamic", [1.0, 2.0])
def test_a_resumed_run_plans_the_same_starts_from_the_journal_alone(
    make: Any, tmp_path: Path, dynamic: float
) -> None:
    whole = make("whole", dynamic_sampling=dynamic)
    expected = run(whole, range(1, 7))
    part = make("part", dynamic_sampling=dynamic)
    run(part, range(1, 5))
    part.recorder.supersede(4, {})  # as after a kill in step 4, whose episodes are done again
    part.recorder.close()
    resumed = make("part", dynamic_sampling=dynamic, done=3)
    again = run(resumed, range(4, 7))
    assert any(batch.metrics.get("steered") for batch in again)
    assert all(same(one, other) for one, other in zip(again, expected[3:], strict=True))


def test_a_group_that_ended_whole_but_too_late_is_known_as_well_as_from_the_journal(make: Any) -> None:
    source = make(rollout={"oversample": 2.0})
    batches = run(source, range(1, 3))
    assert all(batch.metrics["groups_unused"] == 3 for batch in batches)
    assert sum(len(batch.account.episodes["oversampled"]) for batch in batches) >= 4
    again = make(rollout={"oversample": 2.0}, done=2).steering
    assert (again._tasks, again._told) == (source.steering._tasks, source.steering._told)


@pytest.mark.whole
def test_without_the_key_nothing_is_steered(make: Any) -> None:
    source = make(rollout={"steer": None})
    batches = run(source, range(1, 4))
    assert not any("fork" in line for line in lines(source))
    assert not any(name.startswith("steered") for batch in batches for name in batch.metrics)


@pytest.mark.whole
def test_an_agent_that_does_not_repeat_itself_diverges_is_counted_and_trains_nothing(make: Any) -> None:
    clock = iter(range(10**6))

    async def with_a_clock(task: Task) -> str:
        return await agent(Task(task.id, f"{task.query} at {next(clock)}"))

    source = make(workflow=with_a_clock)
    batches = run(source, range(1, 6))
    metrics = [batch.metrics for batch in batches if batch.metrics.get("steered")]
    assert metrics and all(
        m["steered_diverged"] == m["steered"] and not m["episodes_failed"] for m in metrics
    )
    steered = {line["id"] for line in lines(source) if "fork" in line}
    assert not steered & {s.episode for batch in batches for s in batch.batch.samples}
    tasks = [line["task"] for line in lines(source) if "fork" in line]
    assert all(tasks.count(task) == 4 for task in tasks), "each task was tried once"


@pytest.mark.whole
def test_steered_groups_can_be_forked(make: Any) -> None:
    async def longer(task: Task) -> str:
        return await talk([{"role": "user", "content": task.query}], 6)

    rollout = {"group_size": 4, "fork": {"roots": 2, "depth": 2}}
    source = make(rollout=rollout, credit="tree", workflow=longer)
    batches = run(source, range(1, 6))
    by_id = {line["id"]: line for line in lines(source)}
    forks = [line for line in by_id.values() if "fork" in line and "steered" not in line["fork"]]
    of_steered = [f for f in forks if by_id[f["fork"]["parent"]].get("fork", {}).get("steered")]
    assert of_steered
    for fork in of_steered:
        assert fork["fork"]["calls"] > by_id[fork["fork"]["parent"]]["fork"]["calls"]
    for batch in batches:
        assert batch.metrics["tokens_sampled"] == sum(int(s.mask.sum()) for s in batch.batch.samples)
        assert batch.metrics.get("forks", 0) + batch.metrics.get("steered", 0) <= batch.metrics["episodes"]


# ---------------------------------------------------------------------------- demonstrations


def demonstrated(task: Task, *, system: bool = False, told: str = "turn") -> dict[str, Any]:
    """A transcript in which somebody does everything right."""
    chat: list[Any] = [{"role": "system", "content": "be brief"}] if system else []
    chat.append({"role": "user", "content": task.query})
    for turn in range(TURNS):
        chat += [
            {"role": "assistant", "content": "right"},
            {"role": "user", "content": f"{told} {turn}"},
        ]
    return {"task": task.id, "messages": chat[:-1]}


def demonstrating(make: Any, tmp_path: Path, transcripts: Sequence[Any], **more: Any) -> RolloutSource:
    file = tmp_path / "demos.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in transcripts))
    source: RolloutSource = make(
        rollout={"steer": {"whole": 0.34, "band": [0.49, 0.51]}},
        judge=lambda task, output: output.response.count("right") >= TURNS - 1,
        **more,
    )
    assert source.rollout.settings.steer
    steering = Steering(
        source.rollout.settings.steer,
        source.recorder,
        batch_size=3,
        group_size=4,
        seed=0,
        demonstrations=read_demonstrations(file),
    )
    return replace(source, steering=steering)


@pytest.mark.whole
def test_a_task_without_a_success_begins_as_somebody_else_did(make: Any, tmp_path: Path) -> None:
    """The model is never right; with two demonstrated answers of three an episode succeeds."""
    never = {"answers": lambda request, prompt: "wrong"}
    source = demonstrating(make, tmp_path, [demonstrated(TASKS[0]), demonstrated(TASKS[1])], **never)
    batches = run(source, range(1, 4))
    steered = [line for line in lines(source) if "fork" in line]
    assert {line["task"] for line in steered} == {"0", "1"} and not any(x["failure"] for x in steered)
    first = next(line for line in steered if line["task"] == "1")
    assert first["fork"] == {"parent": "demos.jsonl:2", "calls": 2, "steered": True} and first["reward"] == 1
    for call in first["calls"][:2]:
        assert call["tokens"]["replayed"] and not call["tokens"]["trained"]
    spans = {s.episode: {span.call for span in s.spans} for b in batches for s in b.batch.samples}
    assert spans[first["id"]] == {2}


@pytest.mark.whole
def test_a_transcript_without_the_agents_system_message_will_do_and_other_messages_diverge(
    make: Any, tmp_path: Path
) -> None:
    async def with_system(task: Task) -> str:
        chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": task.query}]
        return await talk(chat, TURNS)

    never = {"answers": lambda request, prompt: "wrong", "workflow": with_system}
    transcripts = [
        demonstrated(TASKS[0]),
        demonstrated(TASKS[1], system=True),
        demonstrated(TASKS[2], told="round"),
    ]
    source = demonstrating(make, tmp_path, transcripts, **never)
    run(source, range(1, 4))
    steered = {line["task"]: line for line in lines(source) if "fork" in line}
    assert steered.keys() == {"0", "1", "2"}
    assert not steered["0"]["failure"] and not steered["1"]["failure"]
    assert steered["2"]["failure"] == "diverged"
    assert 'message 3 (user) is now "turn 0", and was "round 0"' in steered["2"]["error"]


def test_successful_episodes_of_a_recording_are_demonstrations(tmp_path: Path) -> None:
    def episode(number: int, **more: Any) -> dict[str, Any]:
        calls = [
            {
                "request": {"messages": [{"role": "user", "content": "q"}] * (2 * n + 1)},
                "reply": {"message": {"role": "assistant", "content": str(n)}},
            }
            for n in range(2)
        ]
        task = {"id": f"t{number}"}
        return {"id": f"e{number}", "group": "g", "task": task, "calls": calls, **more}

    verdicts = [{"reward": 1.0}, {"reward": 0.2}, {"reward": 0.2, "is_success": True}]
    episodes = [episode(i, verdict=verdict) for i, verdict in enumerate(verdicts)]
    file = tmp_path / "demos.json"
    file.write_text(json.dumps({"recording": 1, "episodes": [*episodes, episode(3, failure="timeout")]}))
    assert [(d.id, d.task) for d in read_demonstrations(file)] == [
        ("demos.json:e0", "t0"),
        ("demos.json:e2", "t2"),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": []}', r"demos\.jsonl:1: needs `task`"),
        ('{"task": "a", "messages": "x"}', r"demos\.jsonl:1: needs `messages`"),
        ("{", r"demos\.jsonl:1: not JSON"),
        (
            '{"task": "a", "messages": [{"role": "user"}, {"role": "assistant", "content": "x"}]}',
            r"none of its 1 demonstrations has two answers",
        ),
    ],
)
def test_a_file_that_demonstrates_nothing_is_refused(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "demos.jsonl").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=said):
        read_demonstrations(tmp_path / "demos.jsonl")


def test_demonstrations_of_other_tasks_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "demos.jsonl"
    file.write_text("".join(f"{json.dumps(demonstrated(task))}\n" for task in TASKS))
    assert [d.task for d in demonstrations_of([Task("1"), Task("9")], file)] == ["1"]
    assert demonstrations_of(TASKS, None) == []
    with pytest.raises(ConfigError, match=r"none of its 3 demonstrations is of a task .* of '0'; .* 'x'"):
        demonstrations_of([Task("x")], file)


# ---------------------------------------------------------------------------- refusals

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
        ({"judge": "agent.py:Ranks"}, r"rollout\.steer: the judge 'ranks' compares"),
        (
            {"train.algorithm": {"type": "reinforce++", "group_baseline": False}},
            r"rollout\.steer: the algorithm 'reinforce\+\+' compares all episodes of a batch",
        ),
        ({"rollout.steer.band": [0.8, 0.2]}, r"steer: band must be two numbers"),
        ({"backbone": "verl"}, r"rollout\.steer: the backbone 'verl' cannot honour it"),
    ],
)
def test_what_would_mislead_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "query": "q"}\n')
    layers = Layers()
    layers.add(
        {
            "task": {"reader": "tasks.jsonl"},
            "workflow": "agent.py:run",
            "judge": "agent.py:judge",
            "model": "starter",
            "rollout": {"steer": {}},
        },
        "job.yaml",
        tmp_path,
    )
    for key, value in keys.items():
        layers.set(key, value, "test", tmp_path)
    with pytest.raises(ConfigError, match=said):
        prepare(layers)
