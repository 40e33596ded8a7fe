"""`tune_prompt` of AgentScope's tuner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ajet.types import ConfigError
from ajet_agentscope.tuner import DatasetConfig, JudgeOutput, PromptTuneConfig, WorkflowOutput, tune_prompt

from . import hidden


@pytest.fixture
def data(folder: Path, models: hidden.Models, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments for `tune_prompt`: the hidden instruction again, with records of other columns."""
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("OPENAI_BASE_URL", models.url)
    lines = [json.dumps({"question": record["query"], "animal": record["id"]}) for record in hidden.RECORDS]
    (folder / "train.jsonl").write_text("\n".join(lines[:5]))
    (folder / "eval.jsonl").write_text("\n".join(lines[5:]))

    async def workflow(task: dict[str, Any], system_prompt: str) -> WorkflowOutput:
        chat = [
            {"role": "system", "content": system_prompt},
            {"role": "user", "content": task["question"]},
        ]
        async with httpx2.AsyncClient() as client:
            answer = await client.post(
                f"{models.url}/chat/completions", json={"model": "agent", "messages": chat}
            )
        return WorkflowOutput(response=answer.json()["choices"][0]["message"]["content"])

    async def judge(task: dict[str, Any], response: Any) -> JudgeOutput:
        fulfilled = {fault: float(fulfils(response)) for fault, fulfils in hidden.WISHES.values()}
        faults = {fault: 1.0 for fault, value in fulfilled.items() if not value}
        return JudgeOutput(reward=sum(fulfilled.values()) / len(fulfilled), metrics=faults)

    return {
        "workflow": workflow,
        "init_system_prompt": hidden.FIRST,
        "judge_func": judge,
        "train_dataset": DatasetConfig(path="train.jsonl"),
        "eval_dataset": DatasetConfig(path="eval.jsonl"),
        "config": PromptTuneConfig(
            lm_model_name="openai/reflection", optimization_level="medium", eval_display_progress=False
        ),
    }


@pytest.mark.whole
def test_it_returns_the_best_prompt_and_metrics(
    data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    prompt, metrics = tune_prompt(**data)
    assert sum(wish in prompt for wish in hidden.WISHES) >= 4
    assert (
        metrics["eval_reward_after"] >= 0.8 > metrics["eval_reward_before"] == metrics["reward_before"] == 0
    )
    assert metrics["valset_improvement"] == 0  # of nothing
    assert capsys.readouterr().out.count("reward ") == 3  # as many rows as there are


@pytest.mark.whole
def test_every_field_of_the_configuration_matters(
    data: dict[str, Any], models: hidden.Models, capsys: pytest.CaptureFixture[str]
) -> None:
    light = data["config"].model_copy(
        update={
            "optimization_level": "light",
            "compare_performance": False,
            "eval_display_table": 1,
            "eval_display_progress": True,
            "eval_num_threads": 1,
        }
    )
    running, most = 0, 0

    async def counted(task: dict[str, Any], system_prompt: str) -> WorkflowOutput:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            output: WorkflowOutput = await data["workflow"](task, system_prompt)
        finally:
            running -= 1
        return output

    _, metrics = tune_prompt(**data | {"config": light, "workflow": counted})
    assert most == 1
    assert 0 < models.count("reflection") <= 20
    assert sorted(metrics) == ["eval_reward_after", "reward_after", "reward_before"]
    printed = capsys.readouterr()
    assert printed.out.count("reward ") - printed.out.count("reward 0.") <= 1
    assert "of 20 reflections" in printed.err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"workflow": lambda task, prompt: None}, "workflow: takes (task, prompt); it must take exactly"),
        (
            {"judge_func": lambda task: None},
            "judge_func: takes (task); it must take exactly (task, response)",
        ),
        ({"config": PromptTuneConfig(lm_model_name="opnai/x")}, "did you mean 'openai'"),
        ({"config": PromptTuneConfig(lm_model_name="deepseek/x")}, "DEEPSEEK_API_KEY is not set"),
        (
            {"config": PromptTuneConfig(lm_model_name="ollama/x", optimization_level=None)},
            "choose light, medium or heavy",
        ),
        ({"train_dataset": DatasetConfig(path="./nowhere.jsonl")}, "nowhere.jsonl: no such file"),
    ],
)
def test_mistakes_are_one_line(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], said: str
) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    with pytest.raises(ConfigError) as error:
        tune_prompt(**data | changed)
    assert said in str(error.value) and "\n" not in str(error.value)
