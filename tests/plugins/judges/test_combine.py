"""The `combine` judge: weighted sums and gates, over judges of episodes and of groups; `environment`."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from ajet import ConfigError, EpisodeView, GroupJudge, Judge, JudgeOutput, Task, WorkflowOutput
from ajet.job.config import Layers
from ajet.job.parts import JobParts, build_plugin
from ajet.rollout.episode import Plan
from ajet.testing import ScriptedEngine
from ajet_judges import Combine, Contains, Environment, Exact
from ajet_judges.combine import CombinedJudge
from tests.patience import PATIENCE

TASK = Task("t", "q", metadata={"answer": "5", "word": "so"})


class Length(Judge):
    """Reward by length; remembers what it was asked, and whether it was open."""

    name = "length"
    asked: list[str] = []  # noqa: RUF012 - pydantic copies it
    opened: list[str] = []  # noqa: RUF012

    @asynccontextmanager
    async def open(self) -> Any:
        self.opened.append("open")
        yield self
        self.opened.append("closed")

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        self.asked.append(str(output.response))
        if output.response == "boom":
            raise LookupError("no such length")
        return JudgeOutput(len(str(output.response)) / 10, metrics={"characters": len(str(output.response))})


class Rank(GroupJudge):
    name = "rank"

    async def score_group(self, task: Task, episodes: Sequence[EpisodeView]) -> Any:
        live = sorted(str(e.output.response) for e in episodes if not e.failure)
        return [
            None if e.failure else JudgeOutput(float(live.index(str(e.output.response)))) for e in episodes
        ]


def judged(judge: Judge, response: Any) -> JudgeOutput:
    view = EpisodeView("e", "t", 0, 0)
    return asyncio.run(judge.judge(TASK, WorkflowOutput(response=response), view))


def test_sums_that_differ_only_by_how_floats_are_added_are_one_reward() -> None:
    weights = {"a": 0.1, "b": 0.2, "c": 0.3}
    judge = Combine(parts={k: CombinedJudge(judge=Contains(answer=k), weight=w) for k, w in weights.items()})
    task, view = Task("t", metadata={"a": "x", "b": "y", "c": "z"}), EpisodeView("e", "t", 0, 0)
    got = [asyncio.run(judge.judge(task, WorkflowOutput(response=r), view)).reward for r in ("x y", "z", "")]
    assert got == [0.3, 0.3, 0.0]


def test_the_reward_is_the_weighted_sum_and_each_part_is_told() -> None:
    judge = Combine(
        parts={"right": CombinedJudge(judge=Contains()), "length": CombinedJudge(judge=Length(), weight=-0.5)}
    )
    verdict = judged(judge, "it is 5")
    assert verdict.reward == pytest.approx(1.0 - 0.35)
    assert verdict.is_success is True, "every part that says so agrees"
    assert verdict.metrics == {"right": 1.0, "length": 0.7, "length/characters": 7.0}


class Roles(Judge):
    """Rewards of their own for the agents that the response names."""

    name = "roles"
    each: float = 1.0

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        names = str(output.response).split()
        return JudgeOutput(0.5, rewards={name: self.each + i for i, name in enumerate(names)})


def test_rewards_by_name_are_summed_by_name() -> None:
    parts = {
        "length": CombinedJudge(judge=Length()),
        "roles": CombinedJudge(judge=Roles(), weight=2.0),
        "more": CombinedJudge(judge=Roles(each=10.0), weight=0.1),
        "right": CombinedJudge(judge=Exact(), weight=3.0),
    }
    verdict = judged(Combine(parts=parts), "solver critic")
    assert verdict.reward == pytest.approx(1.3 + 2 * 0.5 + 0.1 * 0.5)
    assert verdict.rewards == pytest.approx(
        {"solver": 1.3 + 2 * 1.0 + 0.1 * 10.0, "critic": 1.3 + 2 * 2.0 + 0.1 * 11.0}
    )
    assert judged(Combine(parts={"length": CombinedJudge(judge=Length())}), "solver").rewards == {}


def test_a_closed_gate_closes_the_rewards_of_all_names() -> None:
    parts = {"roles": CombinedJudge(judge=Roles()), "right": CombinedJudge(judge=Exact(), gate=1.0)}
    assert judged(Combine(parts=parts), "solver critic").rewards == {}


def test_a_closed_gate_ends_it_and_what_comes_after_is_not_asked() -> None:
    length = Length()
    judge = Combine(
        parts={
            "right": CombinedJudge(judge=Exact(), gate=1.0, weight=0),
            "length": CombinedJudge(judge=length),
        },
        closed=-1.0,
    )
    assert judged(judge, "55555") == JudgeOutput(-1.0, False, {"right": 0.0})
    assert length.asked == []
    assert judged(judge, "5").reward == 0.1


def test_a_parts_exception_is_the_judges() -> None:
    with pytest.raises(LookupError, match="no such length"):
        judged(Combine(parts={"length": CombinedJudge(judge=Length())}), "boom")


def test_a_reward_that_is_not_finite_names_its_part() -> None:
    class Nan(Length):
        async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
            return JudgeOutput(float("nan"))

    with pytest.raises(ValueError, match="length: the reward is nan"):
        judged(Combine(parts={"length": CombinedJudge(judge=Nan())}), "5")


def test_a_gate_that_no_reward_is_below_is_refused() -> None:
    with pytest.raises(ValueError, match="gate"):
        CombinedJudge(judge=Length(), gate=float("nan"))


def test_a_list_of_parts_is_refused_with_the_form_that_names_them() -> None:
    with pytest.raises(ValueError, match="each part needs a name"):
        Combine(parts=[{"judge": Length()}])  # type: ignore[arg-type]


def test_parts_are_open_while_it_is() -> None:
    length = Length()

    async def run() -> None:
        async with Combine(parts={"length": CombinedJudge(judge=length)}).open() as live:
            assert length.opened == ["open"] and not isinstance(live, GroupJudge)
            await live.judge(TASK, WorkflowOutput(response="a"), EpisodeView("e", "t", 0, 0))

    asyncio.run(run())
    assert length.opened == ["open", "closed"]


def views(*responses: str | None) -> list[EpisodeView]:
    return [
        EpisodeView("e", "t", i, 0, output=WorkflowOutput(response=r), failure=None if r else "timeout")
        for i, r in enumerate(responses)
    ]


def test_with_a_judge_of_groups_it_judges_groups() -> None:
    judge = Combine(
        parts={
            "length": CombinedJudge(judge=Length()),
            "right": CombinedJudge(judge=Contains(), gate=1.0, weight=0),
            "rank": CombinedJudge(judge=Rank()),
        }
    )

    async def run() -> Any:
        async with judge.open() as live:
            assert isinstance(live, GroupJudge)
            return await live.score_group(TASK, views("5", None, "nothing", "boom", "55"))

    first, failed, gated, broken, last = asyncio.run(run())
    assert failed is None and isinstance(broken, LookupError)
    assert gated.reward == 0.0 and gated.metrics["right"] == 0.0
    assert (first.reward, last.reward) == (0.1 + 0, 0.2 + 1), "ranked among those that are still there"


def test_a_judge_of_episodes_is_asked_about_all_members_at_once() -> None:
    there = asyncio.Barrier(3)

    class Together(Judge):
        name = "together"

        async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
            await there.wait()
            return JudgeOutput(1.0)

    async def verdicts() -> Any:
        judge = Combine(
            parts={"rank": CombinedJudge(judge=Rank()), "together": CombinedJudge(judge=Together())}
        )
        views = [EpisodeView(str(i), "t", i, 0, output=WorkflowOutput(response=str(i))) for i in range(3)]
        async with asyncio.timeout(PATIENCE), judge.open() as live:
            assert isinstance(live, GroupJudge)
            return await live.score_group(TASK, views)

    assert [v.reward for v in asyncio.run(verdicts())] == [1.0, 2.0, 3.0]


def test_it_runs_over_whole_groups_in_a_real_rollout(bench: Any, tokenizer: Any) -> None:
    client: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)

    async def agent(task: Any) -> Any:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        said = answer.choices[0].message.content
        if said == "2":
            raise KeyError(said)
        return said

    judge = Combine(
        parts={"length": CombinedJudge(judge=Length(), weight=0), "rank": CombinedJudge(judge=Rank())}
    )
    made = bench(ScriptedEngine(tokenizer, lambda request, prompt: request.key[0].rsplit("/", 1)[1]))

    plans = [Plan(f"{g}/t{g}/{m}", f"{g}/{m}", Task(f"t{g}", "q"), m, g) for g in range(2) for m in range(4)]

    async def run() -> Any:
        async with judge.open() as live:
            return await made.rollout(agent, live, group_size=4).run(plans, lambda episode: None)

    episodes = asyncio.run(run())
    assert [e.failure for e in episodes] == [None, None, "workflow:KeyError", None] * 2
    assert [e.reward for e in episodes if not e.failure] == [0.0, 1.0, 2.0] * 2


# ------------------------------------------------------------------ as a job names it


def built(spec: Any, base: Path) -> Any:
    layers = Layers()
    layers.add({"judge": spec}, "job.yaml", base)
    return build_plugin(layers, Judge, layers.values["judge"], "judge"), layers


def test_parts_are_named_as_a_jobs_own_judge_is(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def short(task, output):\n    return len(output.response) < 3\n")
    (tmp_path / "rubric.yaml").write_text("criteria: [{name: a, text: b}]\n")
    endpoint = {"base_url": "http://h/v1", "model": "m", "cache": "kept"}
    parts = {
        "right": {"judge": "exact", "gate": 1},
        "short": {"judge": "own.py:short", "weight": 0.5},
        "form": {"judge": {"type": "rubric", "path": "rubric.yaml", "endpoint": endpoint}},
    }
    judge, layers = built({"type": "combine", "parts": parts}, tmp_path)
    assert isinstance(judge, Combine) and isinstance(judge.parts["right"].judge, Exact)
    assert judge.parts["form"].judge.endpoint.cache == tmp_path / "kept", "paths are the job file's"  # type: ignore[attr-defined]
    resolved = JobParts(layers).job()
    assert (
        resolved.judge and resolved.judge["parts"]["short"]["judge"]["type"] == f"{tmp_path / 'own.py'}:short"
    )
    kept = pickle.loads(pickle.dumps(resolved)).model_dump(mode="json")
    assert kept["judge"]["parts"]["right"] == {"judge": {"type": "exact"}, "gate": 1}, (
        "a job holds specs, not judges"
    )
    exact_and_short = Combine(parts={k: v for k, v in judge.parts.items() if k != "form"})
    assert judged(exact_and_short, "5").reward == 1.5


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"parts": {"a": {"judge": "exacct"}}}, r"judge.parts.a.judge.type: unknown judge 'exacct'.*exact"),
        (
            {"parts": {"a": {"judge": {"type": "exact", "ignorecase": 1}}}},
            r"judge.parts.a.judge.ignorecase: unknown key",
        ),
        ({"parts": {"a": {"judge": "exact", "weigt": 1}}}, r"judge.parts.a.weigt: unknown key"),
        ({"parts": {}}, r"judge.parts: "),
        ({}, r"judge.parts: is required"),
        ({"parts": {"a": {}}}, r"judge.parts.a.judge: is required"),
    ],
)
def test_faults_in_parts_are_named_with_their_place(tmp_path: Path, spec: Any, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        built({"type": "combine", **spec}, tmp_path)


# ------------------------------------------------------------------ environment


def test_the_environments_score_is_the_reward() -> None:
    view = EpisodeView("e", "t", 0, 0)

    def of(**metadata: Any) -> JudgeOutput:
        return asyncio.run(Environment().judge(TASK, WorkflowOutput(metadata=metadata), view))

    assert of(score=0.5) == JudgeOutput(0.5, False)
    assert of(score=1) == JudgeOutput(1.0, True)
    for bad in ({}, {"score": "1"}):
        with pytest.raises(ValueError, match=r"metadata\['score'\].*return WorkflowOutput"):
            of(**bad)
