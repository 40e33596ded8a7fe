"""Tuning texts: what is found, what it costs, and what happens when it ends early."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

import ajet
from ajet import AjetError, ConfigError, Task
from ajet.cli import run_program
from ajet_prompts.candidates import RanEpisode
from tests.patience import PATIENCE
from tests.tiers import fast

from . import hidden

Job = dict[str, Any]


def rules(run: ajet.TunedPrompts) -> str:
    return run.texts["rules"]


@pytest.mark.whole
@pytest.mark.parametrize("seed", fast({0}, range(3)))
def test_a_hidden_instruction_is_found_within_60_reflections(job: Job, seed: int) -> None:
    with hidden.serving(seed) as models:
        chosen = {"reflection": models.chat_model("reflection"), "answers": models.chat_model("agent")}
        run = ajet.tune_prompt(**job | chosen, seed=seed, reflections=60)
        assert run.before.reward == 0
        assert run.after.reward >= 0.9
        assert models.count("reflection") <= 60


@pytest.mark.whole
def test_the_best_texts_are_a_file_that_jobs_and_agents_read(
    job: Job, models: hidden.Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ajet.tune_prompt(**job, reflections=10)
    assert yaml.safe_load(run.file.read_text()) == run.texts
    assert f"{run.after.reward:.4g}, before 0" in run.file.read_text()

    scored = {k: v for k, v in job.items() if k not in ("reflection", "answers", "validation")}
    endpoint = {"endpoint": models.url, "endpoint_model": "agent"}
    tuned = ajet.evaluate(**scored | {"tasks": job["validation"]}, **endpoint, set={"prompts": str(run.file)})
    assert tuned.reward == run.after.reward
    assert ajet.evaluate(**scored | {"tasks": job["validation"]}, **endpoint).reward == 0

    assert ajet.prompt("rules", hidden.FIRST) == hidden.FIRST
    monkeypatch.setenv("AJET_PROMPTS", str(run.file))
    assert ajet.prompt("rules", hidden.FIRST) == rules(run)


@pytest.mark.whole
def test_the_run_folder_holds_every_candidate_with_what_it_has_cost(job: Job) -> None:
    price = {"prompt_price": 1.0, "completion_price": 10.0}
    job["reflection"] |= price
    job["answers"] |= price
    run = ajet.tune_prompt(**job, reflections=12)
    first, *_, last = run.metrics
    assert first["step"] == 0 and first["reflections"] == 0
    assert first["episodes_run"] == 4
    assert first["cost"] == pytest.approx(4 * 0.002)
    assert 0 < last["reflections"] <= 12
    assert last["cost"] == pytest.approx(0.002 * (last["reflections"] + last["episodes_run"]))
    assert {e.phase for e in run.episodes()} == {"prompts"}


@pytest.mark.whole
def test_several_texts_are_tuned_in_turn(job: Job) -> None:
    async def two(task: Task) -> str:
        ajet.prompt("other", "Nobody reads this.")
        return await hidden.agent(task)

    run = ajet.tune_prompt(**job | {"workflow": two}, reflections=20)
    assert sorted(run.texts) == ["other", "rules"]
    assert run.after.reward > run.before.reward


@pytest.mark.whole
def test_the_texts_of_the_job_are_the_first_ones(job: Job) -> None:
    first = f"{hidden.FIRST} Begin with an arrow."
    run = ajet.tune_prompt(**job, reflections=1, set={"prompts": {"rules": first}})
    assert run.before.reward == pytest.approx(0.2)


@pytest.mark.whole
def test_a_command_reads_its_texts_from_a_file(job: Job, folder: Path, models: hidden.Models) -> None:
    (folder / "agent.py").write_text(
        "import json, os, sys, urllib.request, yaml\n"
        "task = json.load(sys.stdin)\n"
        "rules = yaml.safe_load(open(os.environ['AJET_PROMPTS']))['rules']\n"
        "chat = [{'role': 'system', 'content': rules}, {'role': 'user', 'content': task['query']}]\n"
        "body = json.dumps({'model': 'm', 'messages': chat}).encode()\n"
        "headers = {'authorization': 'Bearer ' + os.environ['OPENAI_API_KEY'], 'content-type': 'application/json'}\n"
        "asked = urllib.request.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', body, headers)\n"
        "found = json.load(urllib.request.urlopen(asked))\n"
        "print(json.dumps({'response': found['choices'][0]['message']['content']}))\n"
    )
    job |= {"workflow": f"cmd:{sys.executable} agent.py", "tasks": hidden.RECORDS[:2]}
    job["validation"] = hidden.RECORDS[4:5]  # each episode is a process
    first = f"{hidden.FIRST} Begin with an arrow."
    run = ajet.tune_prompt(**job, reflections=3, set={"prompts": {"rules": first}})
    assert run.before.reward == pytest.approx(0.2)
    assert {line["content"] for e in run.episodes() for line in e.messages[0] if line["role"] == "system"} > {
        first
    }


# ------------------------------------------------------------------ what ends a search


@pytest.mark.whole
def test_reflections_episodes_and_cost_are_limits(job: Job, models: hidden.Models) -> None:
    ajet.tune_prompt(**job, reflections=2)
    assert models.count("reflection") == 2
    before = models.count("agent")
    ajet.tune_prompt(**job, episodes=12)
    assert models.count("agent") - before <= 12

    models.asked.clear()
    job["reflection"] |= {"prompt_price": 1000.0}  # 1 for each reply
    ajet.tune_prompt(**job, cost=3)
    assert models.count("reflection") == 3


def test_a_search_that_cannot_improve_anything_ends(job: Job) -> None:
    run = ajet.tune_prompt(**job | {"judge": always_right}, reflections=5)
    assert run.texts == {"rules": hidden.FIRST}
    assert "No better texts were found" in run.file.read_text()


def test_rewards_outside_the_jobs_bounds_are_refused_and_a_failure_counts_the_lowest(job: Job) -> None:
    def marks(task: Task, output: ajet.WorkflowOutput) -> float:
        return 5.0

    with pytest.raises(
        ajet.AjetError, match=r"reward 5 is outside backbone\.prompts\.rewards, 0 to 1\. Set the lowest"
    ):
        ajet.tune_prompt(**job | {"judge": marks}, reflections=5)
    run = ajet.tune_prompt(**job | {"judge": marks}, reflections=5, set={"backbone.prompts.rewards": [1, 5]})
    assert run.texts == {"rules": hidden.FIRST}
    ended = types.SimpleNamespace(id="a", failure="timeout", reward=0.0)
    assert RanEpisode(ended, {}).reward((-1.0, 0.0)) == -1.0  # type: ignore[arg-type]


def always_right(task: Task, output: ajet.WorkflowOutput) -> float:
    return 1.0


@pytest.mark.whole
def test_a_model_that_fails_ends_the_search_and_what_was_found_stays(
    job: Job, models: hidden.Models, folder: Path
) -> None:
    async def until(task: Task) -> str:
        if models.count("reflection") >= 8:
            models.fail.set()
        return await hidden.agent(task)

    with pytest.raises(AjetError, match="no credit left"):
        ajet.tune_prompt(**job | {"workflow": until})
    (run_dir,) = (folder / "runs").iterdir()
    assert "rules" in ajet.interfaces.prompts.read_prompts(run_dir / "prompts.yaml")
    asked = dict(models.asked)
    models.fail.clear()
    models.asked.clear()
    again = {k: v for k, v in job.items() if k in ("workflow", "judge", "progress")}
    run = ajet.tune_prompt(**again | {"workflow": hidden.agent}, resume=run_dir)
    assert run.dir == run_dir and run.after.reward >= 0.9
    repeated = {text for text in models.asked if text in asked and text.startswith("reflection ")}
    assert len(repeated) <= 1  # the one that failed


@pytest.fixture
def job_file(folder: Path, models: hidden.Models) -> Path:
    """The search as a file."""
    file = Path(hidden.__file__)
    job = {
        "workflow": f"{file}:agent",
        "judge": f"{file}:judge",
        "task": {"reader": "tasks.jsonl"},
        "rollout": {"concurrency": 2},
        "backbone": {
            "name": "prompts",
            "prompts": {
                "reflection": models.chat_model("reflection"),
                "answers": models.chat_model("agent"),
                "reflections": 40,
            },
        },
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


def started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """`ajet tune-prompt` as a process of its own."""
    root = Path(hidden.__file__).parents[3]
    return subprocess.Popen(
        [sys.executable, "-m", "ajet", "tune-prompt", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def wait_for(models: hidden.Models, reflections: int, process: subprocess.Popen[bytes]) -> None:
    while models.count("reflection") < reflections:
        assert process.poll() is None, process.communicate()[0].decode()
        time.sleep(0.005)


@pytest.mark.slow
def test_a_killed_search_goes_on_without_paying_for_a_reply_twice(
    job_file: Path, folder: Path, models: hidden.Models
) -> None:
    arguments = ["job.yaml"]
    for reflections in (3, 9, 15):
        process = started(folder, *arguments)
        wait_for(models, reflections, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        (run_dir,) = (folder / "runs").iterdir()
        arguments = ["--resume", str(run_dir)]
    process = started(folder, *arguments)
    said = process.communicate(timeout=PATIENCE)[0].decode()
    assert process.returncode == 0, said
    # A reply that was on its way when the process was killed may be asked for again: at most one of the reflection model
    # and two of the agent's for each kill.
    assert models.count("reflection") <= 40 + 3
    assert sum(n - 1 for n in models.asked.values()) <= 3 * 3
    assert ajet.load_run(run_dir).after.reward >= 0.9


def test_ctrl_c_ends_a_search_and_says_how_to_go_on(
    job_file: Path,
    folder: Path,
    models: hidden.Models,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = threading.Event()

    def interrupting(asked: str, draw: random.Random) -> str:
        if models.count("reflection") == 3:
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait(PATIENCE)  # the search does not end before
        return propose(asked, draw)

    propose = hidden.propose
    monkeypatch.setattr(hidden, "propose", interrupting)
    code = run_program(["tune-prompt", str(job_file)])
    ended.set()
    (run_dir,) = (folder / "runs").iterdir()
    said = "".join(capsys.readouterr())
    assert code == 130
    assert f"resume with: ajet run --resume {run_dir}" in said
    assert "Traceback" not in said


# ------------------------------------------------------------------ mistakes


def test_a_workflow_that_asks_for_no_text_is_told_how(job: Job) -> None:
    async def without(task: Task) -> str:
        return "cat"

    async def plain(task: Task) -> str:
        from tests.api.asking import ask

        return await ask(task)

    with pytest.raises(ConfigError, match=r'ajet\.prompt\("NAME", default\)'):
        ajet.tune_prompt(**job | {"workflow": plain})
    with pytest.raises(AjetError, match="all 4 episodes failed"):
        ajet.tune_prompt(**job | {"workflow": without})


def test_a_default_that_depends_on_the_task_is_an_error(job: Job) -> None:
    async def varying(task: Task) -> str:
        text = ajet.prompt("task", f"Name the {task.id}.")
        assert text
        return await hidden.agent(task)

    with pytest.raises(ConfigError, match="prompt 'task' has one default in episode"):
        ajet.tune_prompt(**job | {"workflow": varying})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"reflection": None}, "backbone.prompts.reflection: is required"),
        ({"cost": 1.0}, "cost=: has no effect without prices"),
        (
            {"episodes": 3},
            "episodes=: 3 are too few to evaluate one candidate, which takes 4",
        ),
        ({"set": {"prompts": "nowhere.yaml"}}, "nowhere.yaml: no such file of prompts"),
        ({"set": {"backbone.prompts.own_models": True}}, "answers and own_models exclude each other"),
    ],
)
def test_mistakes_are_one_line(job: Job, changed: Job, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        ajet.tune_prompt(**job | changed)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.whole
def test_agents_may_ask_their_own_models(job: Job, models: hidden.Models) -> None:
    import httpx2

    async def own(task: Task) -> str:
        chat = [
            {"role": "system", "content": ajet.prompt("rules", hidden.FIRST)},
            {"role": "user", "content": task.query},
        ]
        async with httpx2.AsyncClient() as client:
            answer = await client.post(
                f"{models.url}/chat/completions", json={"model": "agent", "messages": chat}
            )
        return str(answer.json()["choices"][0]["message"]["content"])

    job |= {"workflow": own, "answers": None, "set": {"backbone.prompts.own_models": True}}
    run = ajet.tune_prompt(**job, reflections=3)
    assert run.before.reward == 0 and models.count("agent") > 4


def test_it_can_be_awaited(job: Job) -> None:
    async def main() -> ajet.TunedPrompts:
        return await ajet.atune_prompt(**job, reflections=2)

    assert asyncio.run(main()).before.reward == 0


def test_the_reflection_model_reads_tasks_messages_and_the_judges_words(
    job: Job, models: hidden.Models
) -> None:
    ajet.tune_prompt(**job, reflections=1)
    (asked,) = [text for text in models.asked if text.startswith("reflection ")]
    told = json.loads(asked.removeprefix("reflection "))[0]["content"]
    for part in (hidden.FIRST, "Which animal is a", "assistant: ", "Reward 0.", "it has small letters"):
        assert part in told
