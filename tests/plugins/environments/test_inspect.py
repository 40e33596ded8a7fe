"""Tasks of inspect-evals, which nobody here wrote, as environments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.plugins.environments.libraries import (
    Job,
    assert_own_model_is_refused,
    assert_trained,
    needs_library,
    run,
    scripted,
)

pytestmark = [needs_library, pytest.mark.models("starter")]

MODULE = "inspect_evals.agent_threat_bench"
SCORER = "agent_threat_bench_scorer"
LOOKS_UP = [
    {"turn": 0, "call": {"name": "memory_read", "arguments": {"key": "vacation_policy"}}},
    {"when": "vacation", "say": "All full-time employees have 20 days of paid vacation a year."},
    {"say": "I do not know."},
]
SORTS = [
    {"turn": 0, "call": {"name": "read_inbox", "arguments": {}}},
    {"turn": 1, "call": {"name": "categorize_email", "arguments": {"email_index": 0, "category": "normal"}}},
    {"turn": 2, "call": {"name": "draft_summary", "arguments": {"summary": "One message."}}},
    {"say": "It is done."},
]
TASKS = {"memory_poison": (LOOKS_UP, "utility"), "autonomy_hijack": (SORTS, "security")}


@pytest.mark.parametrize("task", TASKS)
def test_rewards_are_those_of_inspects_own_evaluation(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, (answers, part) = f"agent_threat_bench_{task}", TASKS[task]
    job = Job(tmp_path, "inspect", {"task": f"{MODULE}:{name}", "score": f"{SCORER}.{part}"})
    episodes = job.check(answers, first=4)
    assert [episode.failure for episode in episodes] == [None] * 4
    assert all(episode.calls > 1 for episode in episodes)
    own = evaluated(name, answers, [episode.task for episode in episodes], tmp_path)
    assert {episode.task: episode.reward for episode in episodes} == {
        sample: float(value[part] == "C") for sample, value in own.items()
    }


def evaluated(name: str, answers: list[Any], samples: list[str], folder: Path) -> dict[str, Any]:
    """What `inspect eval` makes of the same answers: the value of the score of each sample."""
    with scripted(answers) as url:
        options = ["--model", "openai-api/own/any", "--sample-id", ",".join(samples), "--log-format", "json"]
        variables = {"OWN_BASE_URL": url, "OWN_API_KEY": "none", "INSPECT_DISPLAY": "none"}
        run(
            "inspect",
            "eval",
            f"inspect_evals/{name}",
            *options,
            "--log-dir",
            "own",
            folder=folder,
            **variables,
        )
    (log,) = (folder / "own").glob("*.json")
    return {str(s["id"]): s["scores"][SCORER]["value"] for s in json.loads(log.read_text())["samples"]}


def test_the_starter_is_trained_for_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"task": f"{MODULE}:agent_threat_bench_memory_poison", "score": f"{SCORER}.security"}
    assert_trained(Job(tmp_path, "inspect", options).train())


def test_a_grader_is_a_frozen_target_and_its_answers_are_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grader.yaml").write_text(
        yaml.safe_dump([{"say": "<judgment>YES</judgment> It is <harmful>YES</harmful>"}])
    )
    frozen = {"type": "script", "path": str(tmp_path / "grader.yaml")}
    targets = {"policy": {}, "grader": {"agents": ["none"], "frozen_model": frozen}}
    options = {
        "task": "inspect_evals.agentic_misalignment:agentic_misalignment",
        "arguments": {"scenario": "leaking", "grader_model": "openai/any"},
        "score": "harmfulness_scorer.classifier_verdict",
    }
    job = Job(tmp_path, "inspect", options)
    (episode,) = job.check(
        [{"say": "I forward it."}], 1, workflow={"type": "library", "judge": "grader"}, targets=targets
    )
    assert episode.failure is None and episode.calls > 1 and len(episode.timelines) == 1
    (timeline,) = episode.timelines
    assert "I forward it." in timeline.text and "judgment" not in timeline.text
    (alone,) = job.check([{"say": "I forward it."}], 1)
    assert alone.failure == "workflow:environment" and "\n" not in alone.error


def test_a_score_that_is_not_named_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (episode,) = Job(tmp_path, "inspect", {"task": f"{MODULE}:agent_threat_bench_memory_poison"}).check(
        [{"say": "No."}], 1
    )
    assert (
        episode.failure == "workflow:environment" and f"{SCORER}.utility, {SCORER}.security" in episode.error
    )


ASKS = """
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, mean, scorer
from judging import judged
@scorer(metrics=[mean()])
def right():
    async def score(state, target):
        return Score(value=judged(state.output.completion))
    return score
@task
def sums():
    return Task(dataset=MemoryDataset([Sample(input="What is 2 + 2?", target="4")]), scorer=right())
"""


def test_a_task_with_a_model_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_own_model_is_refused(tmp_path, "inspect", {"asks.py": ASKS}, {"task": "asks:sums"})
