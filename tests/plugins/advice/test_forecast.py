"""`ajet forecast`: the first cause that keeps a job from learning, its figures, and that its gradient changes nothing."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ajet.interfaces.progress import Silent
from ajet_advice.forecast.causes import _learning_rate, learning_rates
from ajet_advice.forecast.noise import noise_of
from ajet_advice.forecast.steps import (
    GROWTH,
    GROWTH_FACTOR,
    LATER,
    LATER_FACTOR,
    NINE_OF_TEN,
    Probe,
    Rate,
    logit,
    steps_to,
)
from tests.cli.conftest import Folder
from tests.tiny import save_tiny_model
from tests.tokenizers import thinker

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
JOB = """
task: {reader: tasks.jsonl}
workflow: agent.py:run
judge: judges.py:exact
rollout: {group_size: 4, sampling: {max_tokens: 32}}
train: {batch_size: 4, steps: 20, learning_rate: 1.0e-4}
"""
JUDGES = """
import hashlib, random

def exact(task, output):
    return output.response == task.metadata["answer"]

def tossed(task, output, episode):
    return hashlib.sha256(episode.id.encode()).digest()[0] < 128

def constant(task, output):
    return 0.8

judged = []

def fades(task, output, episode):
    judged.append(episode.id)
    return len(judged) < 48 and tossed(task, output, episode)

def mostly(task, output, episode):
    return hashlib.sha256(episode.id.encode()).digest()[0] < 240

def noisy(task, output):
    return float(random.random() < 0.5)

seen = set()

def with_files(task, output, episode):
    first = episode.id not in seen
    seen.add(episode.id)
    return first and tossed(task, output, episode)

def marks(task, output):
    return 1.0 + (task.id == "t3")

def penalties(task, output):
    return -0.1 * (task.id == "t3")

def contains(task, output):
    return float(task.metadata["answer"] in (output.response or ""))

def fails(task, output):
    raise KeyError("score")
"""
AGENT = """
import httpx2

async def ask(task, **more):
    async with httpx2.AsyncClient() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": task.query}], **more}
        answer = await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]

async def run(task):
    return await ask(task)

async def cut(task):
    return await ask(task, max_tokens=1)
"""


@pytest.fixture
def folder(folder: Folder) -> Folder:
    folder.write("agent.py", AGENT)
    folder.write("judges.py", JUDGES)
    folder.write("job.yaml", JOB)
    folder.write("answers.yaml", '- {say: "I say 4"}\n')
    tasks = [{"id": f"t{n}", "query": f"{n} + {n}?", "answer": str(2 * n)} for n in range(3, 15)]
    folder.write("tasks.jsonl", "".join(f"{json.dumps(task)}\n" for task in tasks))
    return folder


def forecast(folder: Folder, *options: str, episodes: int = 32) -> dict[str, Any]:
    shown = folder.ajet(
        "forecast", "job.yaml", "--answers", "answers.yaml", "--episodes", str(episodes), "--json", *options
    )
    found: dict[str, Any] = json.loads(shown.out.splitlines()[-1])
    assert shown.code == bool(found["causes"]), shown.err
    return found


@pytest.mark.whole
@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (("--judge", "judges.py:tossed"), None),
        (("--judge", "judges.py:mostly"), "saturated"),
        (("--judge", "judges.py:exact"), "too hard"),
        (("--judge", "judges.py:marks"), "no signal"),
        (("--judge", "judges.py:penalties"), "no signal"),
        (("--judge", "judges.py:noisy"), "noisy judge"),
        (("--judge", "judges.py:constant"), "constant judge"),
        (("--judge", "judges.py:fails"), "failed episodes"),
        (("--workflow", "agent.py:cut"), "cut answers"),
        (("--judge", "judges.py:tossed", "--set", "train.learning_rate=1.0"), "learning rate"),
        (("--judge", "judges.py:tossed", "--set", "train.learning_rate=1.0e-9"), "learning rate"),
    ],
)
def test_the_first_cause_is_what_keeps_the_job_from_learning(
    folder: Folder, options: tuple[str, ...], cause: str | None
) -> None:
    causes = forecast(folder, *options)["causes"]
    assert [c["name"] for c in causes][:1] == ([cause] if cause else []), causes
    assert all(c["what"] and c["remedy"] for c in causes)


@pytest.mark.whole
def test_what_a_forecast_does_not_know_it_does_not_say(folder: Folder) -> None:
    page = folder.ajet("forecast", "job.yaml", "--answers", "answers.yaml", "--judge", "judges.py:marks").out
    assert "always solved" not in page and re.search(r"the run +\d+ steps here, without updates: ", page)


def test_a_job_that_cannot_run_is_refused_as_by_ajet_run(folder: Folder) -> None:
    refused = folder.ajet("forecast", "job.yaml", "--set", "rollout.group_size=1")
    assert refused.code == 2 and "learns nothing from a group of 1" in refused.err


@pytest.mark.whole
def test_tasks_that_are_always_solved_teach_nothing(folder: Folder) -> None:
    folder.write("tasks.jsonl", '{"id": "a", "query": "2 + 2?", "answer": "4"}\n')
    folder.write("answers.yaml", '- {say: "4"}\n')
    (cause,) = forecast(folder)["causes"]
    assert cause["name"] == "saturated" and "harder tasks" in cause["remedy"]


@pytest.mark.whole
def test_figures_have_intervals_and_hold_for_what_the_episodes_come_from(folder: Folder) -> None:
    found = forecast(folder, "--judge", "judges.py:tossed", episodes=48)
    for name, truth in (("signal", {"2": 0.5, "4": 1 - 2 / 16}), ("pass_at", {"1": 0.5, "4": 15 / 16})):
        for size, value in truth.items():
            estimate, low, high = found[name][size]
            assert low <= estimate <= high and low <= value <= high
    middle, low, high = found["steps"]
    start = found["pass_at"]["1"][0]
    assert middle == pytest.approx((math.log(4) - math.log(start / (1 - start))) / GROWTH, rel=0.01)
    assert (low, high) == pytest.approx((middle / GROWTH_FACTOR, middle * GROWTH_FACTOR), rel=0.01) and found[
        "gradient"
    ] is None
    assert found["step_tokens"] > 0 and found["judge"]["changed"] == 0


@pytest.mark.parametrize("rise", [0.04, 0.08, 0.24])
def test_steps_that_were_trained_tell_how_fast_the_odds_rise(rise: float) -> None:
    def share(step: int) -> float:
        return 1 / (1 + math.exp(-(rise * step - 1)))

    start = Rate(0, share(0), 8)
    truth = (math.log(4) + 1) / rise
    blind = steps_to(0.8, [start])
    assert blind[0] == pytest.approx((math.log(4) + 1) / GROWTH, rel=0.01)
    seen = steps_to(0.8, [start, *(Rate(step, share(step), 2000) for step in range(8))])
    assert seen[0] == pytest.approx(truth, rel=0.05) and seen[1] < truth < seen[2]
    assert seen[2] / seen[1] < blind[2] / blind[1], "and their interval is narrower"


def test_the_same_tasks_before_and_after_outweigh_batches_that_differ() -> None:
    batches = [Rate(step, share, 8) for step, share in enumerate([0.1, 0.3, 0.2, 0.2])]  # seem to rise by 0.2
    alone = steps_to(0.8, batches)[0]
    before = Rate(0, 0.3, 64)  # of easier tasks, which leave the level as it is
    after = Rate(4, 1 / (1 + math.exp(-(logit(0.3) + 4 * 0.4))), 64)
    assert steps_to(0.8, batches, [before, after])[0] < alone / 2


def test_how_fast_models_learn_at_first_and_later_is_that_of_the_recorded_runs() -> None:
    rises, later = [], []
    for path in sorted(EXAMPLES.glob("*/learned.json")):
        (steps,) = re.findall(r"^  steps: (\d+)", (path.parent / "job.yaml").read_text(), re.MULTILINE)
        for found in json.loads(path.read_text()).values():
            shares = np.clip(found["curve"], 0.02, 0.98)
            at = (np.arange(len(shares)) + 0.5) * int(steps) / len(shares)
            odds, weights = np.array([logit(share) for share in shares]), np.sqrt(shares * (1 - shares))
            lines = [np.polyfit(at[:count], odds[:count], 1, w=weights[:count]) for count in (6, len(shares))]
            if lines[1][0] <= 0:
                continue  # it did not learn
            rises.append(lines[1][0])
            first, taken = ((logit(shares[-3:].mean()) - line[1]) / line[0] for line in lines)
            later.append(taken / first)
    for found, mean, factor in ((rises, GROWTH, GROWTH_FACTOR), (later, LATER, LATER_FACTOR)):
        logs = np.log(found)
        assert math.exp(logs.mean()) == pytest.approx(mean, rel=0.1)
        assert math.exp(NINE_OF_TEN * logs.std(ddof=1)) == pytest.approx(factor, rel=0.1)


@pytest.mark.whole
def test_a_probe_trains_and_is_thrown_away(folder: Folder) -> None:
    save_tiny_model(folder.path / "tiny", thinker())
    options = ("--model", "tiny", "--judge", "judges.py:tossed", "--episodes", "8", "--probe", "2", "--json")
    shown = folder.ajet("forecast", "job.yaml", *options)
    found = json.loads(shown.out.splitlines()[-1])
    assert [rate["step"] for rate in found["probe"]["compared"]] == [0, 2]
    assert len(found["probe"]["rates"]) == 2 and found["step_seconds"] == found["probe"]["seconds"] > 0
    assert [run.name.rpartition("-")[2] for run in (folder.path / "runs").iterdir()] == ["forecast"]
    refused = folder.ajet("forecast", "job.yaml", "--answers", "answers.yaml", "--probe", "2")
    assert refused.code == 2 and "--probe and --answers: exclude each other" in refused.err


@pytest.mark.whole
@pytest.mark.models("starter")
def test_the_page_names_the_learning_rate_and_says_what_the_whole_run_costs(folder: Folder) -> None:
    command = ["forecast", "job.yaml", "--answers", "answers.yaml", "--judge", "judges.py:tossed"]
    out = folder.ajet(*command, "--price", "3600", "--set", "train.steps=10").out
    assert re.search(r"^steps .* with train\.learning_rate \S+ if that suits the model, ", out, re.MULTILINE)
    (seconds,) = re.findall(r"about (\d+) s here", out)
    (cost,) = re.findall(
        r"^the run +10 steps here, without updates: \S+ minutes, (\S+) at 3600 a GPU hour$", out, re.MULTILINE
    )
    assert float(cost.replace(",", "")) == pytest.approx(10 * float(seconds), rel=0.1, abs=10)


def test_the_noise_of_a_gradient_by_hand() -> None:
    # Groups with the gradients (3, 1) and (1, 1): mean squared norm (10 + 2) / 2; together (2, 1), whose square is 5.
    found = noise_of(6.0, 5.0, groups=2, batch_size=8)
    assert found and found.noise_scale == pytest.approx(2 / 4), (
        "noise (6 - 5) / (1 - 1/2), signal (2 · 5 - 6) / (2 - 1)"
    )
    assert found.signal_to_noise == pytest.approx(4)
    opposed = noise_of(2.0, 1.0, groups=2, batch_size=8)  # (1, 1) and (1, -1)
    assert opposed and opposed.noise_scale == math.inf and opposed.signal_to_noise == 0
    assert noise_of(0.0, 0.0, groups=2, batch_size=8) is None
    hidden = noise_of(8.0, 2.0000008, groups=4, batch_size=8)
    assert hidden and hidden.noise_scale == math.inf, "only millions of groups would show a direction"


def test_the_range_of_learning_rates_by_hand(folder: Folder) -> None:
    save_tiny_model(folder.path / "tiny", thinker())  # 32 wide
    job = SimpleNamespace(
        model=str(folder.path / "tiny"),
        config=SimpleNamespace(run=SimpleNamespace(seed=0), train=SimpleNamespace(adam_epsilon=1e-8)),
        progress=Silent(),
        targets=[SimpleNamespace(trained=True, lora=None)],
    )
    centre = 5e-5 * 62.5**0.775
    assert learning_rates(job) == pytest.approx((centre / 100, centre * 2))  # type: ignore[arg-type]
    job.targets[0].lora = object()
    assert learning_rates(job) == pytest.approx((centre / 10, centre * 20))  # type: ignore[arg-type]
    job.config.train.adam_epsilon = 1e-4
    assert learning_rates(job) == pytest.approx((centre / 10, centre * 50))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rate", "ruined", "named"),
    [(3e-3, "", True), (1e-3, "", False), (1e-3, "the entropy has risen from 0.5 to 4 nats a token", True)],
)
def test_a_learning_rate_that_ruins_is_named(folder: Folder, rate: float, ruined: str, named: bool) -> None:
    save_tiny_model(folder.path / "tiny", thinker())
    job = SimpleNamespace(
        model=str(folder.path / "tiny"),
        config=SimpleNamespace(
            run=SimpleNamespace(seed=0), train=SimpleNamespace(adam_epsilon=1e-8, learning_rate=rate)
        ),
        progress=Silent(),
        targets=[SimpleNamespace(trained=True, lora=None)],
    )
    found = _learning_rate(job, Probe([0.1] * 8, 4, (), 1.0, ruined))  # type: ignore[arg-type]
    assert bool(found) == named and (not found or (ruined in found[0] and f"{rate:g}" in found[0]))


@pytest.mark.whole
def test_a_judge_whose_files_are_gone_by_now_is_not_noisy(folder: Folder) -> None:
    found = forecast(folder, "--judge", "judges.py:with_files")
    assert found["causes"] == [] and found["judge"]["judged"] and found["judge"]["changed"] == 0


@pytest.mark.whole
def test_a_workflow_that_gives_its_own_reward_has_no_judge_to_attack(folder: Folder) -> None:
    folder.write(
        "own.py",
        AGENT
        + """
import ajet, random

async def rewarded(task):
    await ask(task)
    return ajet.WorkflowOutput(reward=float(random.random() < 0.5))
""",
    )
    folder.write("job.yaml", JOB.replace("judge: judges.py:exact\n", ""))
    found = forecast(folder, "--workflow", "own.py:rewarded", "--attack")
    assert found["holes"] is None and found["causes"] == []


@pytest.mark.whole
def test_a_judge_that_can_be_fooled_is_attacked_only_on_demand(folder: Folder) -> None:
    options = ("--judge", "judges.py:contains")
    assert forecast(folder, *options)["holes"] is None
    found = forecast(folder, *options, "--attack")
    assert "all options at once" in {hole["attack"] for hole in found["holes"]}
    assert "exploitable judge" in {cause["name"] for cause in found["causes"]}


@pytest.mark.whole
def test_the_gradient_of_a_local_model_is_measured_and_its_page_says_what_it_means(folder: Folder) -> None:
    save_tiny_model(folder.path / "tiny", thinker())
    page = folder.ajet(
        "forecast", "job.yaml", "--model", "tiny", "--judge", "judges.py:tossed", "--episodes", "8"
    )
    assert page.code == 0, page.err
    assert "gradient" in page.out and "pass@1" in page.out and "signal, groups of 4" in page.out
    assert "Nothing was found that would keep this job from learning." in page.out


@pytest.mark.whole
def test_a_probe_that_ruins_the_model_is_a_cause_and_no_error(folder: Folder) -> None:
    save_tiny_model(folder.path / "tiny", thinker())
    options = ("--model", "tiny", "--judge", "judges.py:fades", "--episodes", "8", "--probe", "6", "--json")
    shown = folder.ajet(
        "forecast",
        "job.yaml",
        *options,
        "--set",
        "run.stop_on=[collapse]",
        "--set",
        "rollout.sampling.max_tokens=4",
    )
    causes = {cause["name"]: cause["what"] for cause in json.loads(shown.out.splitlines()[-1])["causes"]}
    assert shown.code == 1 and causes["learning rate"].startswith(
        "with train.learning_rate 0.0001, 6 steps have ruined the model: the reward has collapsed"
    )
