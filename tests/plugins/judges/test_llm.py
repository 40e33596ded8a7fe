"""Judges that ask a model about one response: `llm`, `math_llm`, `rubric`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import ValidationError

from ajet import ConfigError, EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet.rollout.episode import Plan
from ajet.rollout.summary import summarize
from ajet.testing import ScriptedEngine
from ajet_judges import LLM, MathLLM, RubricJudge
from ajet_judges.rubric import Criterion, Rubric, read_rubric, write_rubric

from .judge_model import Asked, serving


def judged(judge: Judge, response: Any, **metadata: Any) -> JudgeOutput:
    task = Task("t1", "What is it?", metadata=metadata)
    view = EpisodeView("e", "t1", 0, 0)
    return asyncio.run(judge.judge(task, WorkflowOutput(response=response), view))


# ------------------------------------------------------------------ llm


def test_the_score_becomes_a_reward_from_0_to_1_with_its_cost() -> None:
    with serving(lambda asked: {"reason": "mostly", "score": 7}) as model:
        verdict = judged(LLM(endpoint=model.endpoint()), "a cat")
    assert (verdict.reward, verdict.is_success) == (0.7, True)
    assert verdict.metrics["llm_calls"] == 1 and verdict.metrics["llm_prompt_tokens"] == 100


def test_the_model_sees_criteria_as_orders_and_the_rest_as_data() -> None:
    with serving(lambda asked: {"reason": "", "score": 0}) as model:
        judged(LLM(endpoint=model.endpoint(), criteria="It is brief."), "a cat", answer="a dog")
        judged(LLM(endpoint=model.endpoint(), reference=None), "a cat", answer="a dog")
    first, second = model.asked
    assert "It is brief." in first.orders and "a cat" not in first.orders
    assert first.data == {"TASK": "What is it?", "REFERENCE": "a dog", "RESPONSE": "a cat"}
    assert "REFERENCE" not in second.data and "REFERENCE" not in second.orders


def test_an_empty_reference_is_none() -> None:
    with serving(lambda asked: {"reason": "", "score": 0}) as model:
        judged(LLM(endpoint=model.endpoint()), "a cat", answer=" ")
    (asked,) = model.asked
    assert asked.data == {"TASK": "What is it?", "RESPONSE": "a cat"} and "REFERENCE" not in asked.orders


def test_in_a_job_its_calls_are_told_with_their_cost_and_are_no_calls_of_the_agent(
    bench: Any, tokenizer: Any
) -> None:
    client: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)

    async def agent(task: Task) -> str:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
        return f"{answer.choices[0].message.content} {task.id}"

    made = bench(ScriptedEngine(tokenizer, lambda request, prompt: "a cat"))
    plans = [Plan(f"{g}/t{g}/{m}", f"{g}/{m}", Task(f"t{g}", "q"), m, g) for g in range(2) for m in range(2)]

    async def run(judge: Judge) -> Any:
        async with judge.open() as live:
            return await made.rollout(agent, live, group_size=2).run(plans, lambda episode: None)

    with serving(lambda asked: {"reason": "", "score": 5}) as model:
        endpoint = model.endpoint(prompt_price=10.0, completion_price=50.0)
        episodes = asyncio.run(run(LLM(endpoint=endpoint)))
        assert len(model.asked) == 2, "equal responses to equal tasks are asked about once"
    told = {name: value for name, value in summarize(episodes, 1.0).items() if name.startswith("judge/")}
    assert told == pytest.approx(
        {
            "judge/llm_calls": 0.5,
            "judge/llm_cached": 0.5,
            "judge/llm_retries": 0,
            "judge/llm_prompt_tokens": 50,
            "judge/llm_completion_tokens": 10,
            "judge/llm_cost": 0.5 * (100 * 10 + 20 * 50) / 1e6,
        }
    )
    assert [len(e.record.exchanges) for e in episodes] == [1] * 4 and {e.missed for e in episodes} == {()}


@pytest.mark.parametrize("score", [11, -1, 7.5, "7", True, None])
def test_a_score_outside_the_scale_is_malformed(score: Any) -> None:
    from ajet_judges.questions import MalformedVerdict

    with (
        serving(lambda asked: {"reason": "", "score": score}) as model,
        pytest.raises(MalformedVerdict, match="score"),
    ):
        judged(LLM(endpoint=model.endpoint()), "a cat")


@pytest.mark.parametrize("response", [None, "", " \n"])
def test_an_empty_response_has_nothing_unasked(response: Any) -> None:
    with serving(lambda asked: {"reason": "", "score": 10}) as model:
        assert judged(LLM(endpoint=model.endpoint()), response) == JudgeOutput(0.0, False)
        assert not model.asked


def test_success_begins_where_the_settings_say() -> None:
    with serving(lambda asked: {"reason": "", "score": 7}) as model:
        assert judged(LLM(endpoint=model.endpoint(), success=0.8), "a cat").is_success is False


def test_an_endpoint_is_required() -> None:
    with pytest.raises(ValidationError, match="endpoint"):
        LLM()


# ------------------------------------------------------------------ math_llm


def equivalent(asked: Asked) -> Any:
    return {"reason": "", "equivalent": "forty-two" in asked.data["RESPONSE"]}


@pytest.mark.parametrize(
    ("response", "reward", "asked"),
    [
        (r"so \boxed{42.0}", 1.0, 0),
        ("it is 42", 1.0, 0),
        (r"so \boxed{41}", 0.0, 0),
        ("", 0.0, 0),
        ("it is forty-two", 1.0, 1),
        ("forty-two, found in 3 steps", 1.0, 1),
        ("I do not know", 0.0, 1),
    ],
)
def test_the_model_is_asked_where_the_rule_is_not_sure(response: str, reward: float, asked: int) -> None:
    with serving(equivalent) as model:
        assert judged(MathLLM(endpoint=model.endpoint()), response, answer="42").reward == reward
        assert len(model.asked) == asked


# ------------------------------------------------------------------ rubric

RUBRIC = """
about: Answers to questions about animals.
criteria:
  - name: names_it
    text: It names the animal.
    weight: 2
  - name: polite
    text: It is polite.
  - name: shouts
    text: It shouts.
    weight: -1
"""


@pytest.fixture
def rubric(tmp_path: Path) -> Path:
    path = tmp_path / "rubric.yaml"
    path.write_text(RUBRIC)
    return path


@pytest.mark.parametrize(
    ("met", "reward"),
    [
        ((True, True, False), 1.0),
        ((True, True, True), 0.75),
        ((True, False, False), 0.75),
        ((False, False, False), 0.25),
        ((False, False, True), 0.0),
    ],
)
def test_the_reward_is_the_weighted_share_of_what_is_met(
    rubric: Path, met: tuple[bool, ...], reward: float
) -> None:
    names = ["names_it", "polite", "shouts"]
    with serving(lambda asked: {"reason": "", **dict(zip(names, met, strict=True))}) as model:
        verdict = judged(RubricJudge(endpoint=model.endpoint(), path=rubric), "a cat")
    assert verdict.reward == reward
    assert verdict.metrics["met/polite"] == float(met[1])
    assert model.asked[0].fields == names
    assert "- names_it: It names the animal." in model.asked[0].orders


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("criteria: [", r"rubric.yaml:\d+: not YAML"),
        ("- a", "is a mapping"),
        ("about: x", "criteria: Field required"),
        ("criteria: []", "criteria: "),
        ("criteria: [{name: a}]", "criteria.0.text: Field required"),
        ("criteria: [{name: A b, text: x}]", "criteria.0.name"),
        ("criteria: [{name: a, text: x, wight: 1}]", "criteria.0.wight"),
        ("criteria: [{name: a, text: x}, {name: a, text: y}]", "two criteria are called a"),
        ("criteria: [{name: reason, text: x}]", "`reason` cannot be the name"),
        ("criteria: [{name: model_dump, text: x}]", "`model_dump` cannot be the name"),
        ("criteria: [{name: a, text: x, weight: 0}]", "every weight is 0"),
    ],
)
def test_a_broken_rubric_is_found_before_anything_runs(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "rubric.yaml"
    path.write_text(text)
    with serving(lambda asked: "") as model, pytest.raises(ConfigError, match=fault):
        RubricJudge(endpoint=model.endpoint(), path=path)


def test_a_missing_rubric_is_an_error_that_says_how_to_get_one(tmp_path: Path) -> None:
    with (
        serving(lambda asked: "") as model,
        pytest.raises(ConfigError, match=r"no such rubric.*ajet judge learn"),
    ):
        RubricJudge(endpoint=model.endpoint(), path=tmp_path / "none.yaml")


def test_a_written_rubric_reads_back_and_looks_as_one_would_write_it(tmp_path: Path) -> None:
    path = tmp_path / "rubric.yaml"
    made = Rubric(
        about="Questions: about 数学",
        criteria=(
            Criterion(name="cites", text='It names: a source, and "quotes" it.'),
            Criterion(name="rambles", text="It repeats itself. " * 12, weight=-0.5),
        ),
        learned={"examples": 20, "held_out": 0.9},
    )
    write_rubric(path, made, ["A rubric.", "Edit it."])
    assert read_rubric(path) == made
    text = path.read_text()
    assert text.startswith("# A rubric.\n# Edit it.\nabout: ") and "\n\n  - name: rambles\n    text: " in text
    assert "数学" in text and max(map(len, text.splitlines())) < 120
