"""The Python API on a model: train, resume, evaluate, check, serve, fine-tune."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import ajet
from ajet import ConfigError, Task
from ajet.cli import run_program
from tests.tiers import fast

Arguments = dict[str, Any]
Agent = Callable[[Task], Any]
TASKS = [{"id": f"q{i}", "query": f"say {i}"} for i in range(4)]
SET = {"rollout.group_size": 2, "train.batch_size": 2, "train.save_every": 1, "backbone.local.threads": 1}


@pytest.fixture
def training(folder: Path, model: Path) -> Arguments:
    """Arguments of a short run on the backbone local."""
    return {"tasks": TASKS, "model": model, "steps": 2, "set": SET, "progress": False}


def long(task: Task, output: Any) -> bool:
    return len(str(output.response)) > 8


@pytest.mark.kept
def test_it_trains_and_the_result_tells_metrics_episodes_tokens_and_checkpoint(
    training: Arguments, agent: Agent
) -> None:
    run = ajet.run(workflow=agent, judge=long, validation=TASKS[:1], **training)
    assert [m["step"] for m in run.metrics] == [1, 2]
    assert run.checkpoint is not None and (run.checkpoint / "config.json").is_file()
    assert 0 <= run.before.accuracy <= 1 and run.after["episodes"] == 1
    assert run.metrics[-1]["validation/accuracy"] == run.after.accuracy
    episodes = run.episodes(step=2)
    assert len(episodes) == 4 and {e.phase for e in episodes} == {"train"}
    (line,) = episodes[0].timelines
    assert len(line.token_ids) == len(line.mask) == len(line.logprobs) and line.mask.any()
    assert np.isfinite(line.logprobs[line.mask]).all()
    query = next(t["query"] for t in TASKS if t["id"] == episodes[0].task)
    assert query in line.text and str(episodes[0].response) in line.text
    same = ajet.load_run(run.dir.parent)
    assert (same.dir, same.metrics, same.checkpoint) == (run.dir, run.metrics, run.checkpoint)
    assert "&lt;svg" in run._repr_html_() and repr(run) == f"<Run {run.dir}, 2 steps>"


@pytest.mark.whole
def test_a_run_of_objects_is_resumed_with_them_and_the_error_without_says_so(
    training: Arguments, agent: Agent
) -> None:
    first = ajet.run(workflow=agent, judge=lambda task, output: 0.1, **(training | {"steps": 1}))
    with pytest.raises(
        ConfigError,
        match=r"job\.yaml: workflow: the job was started from Python with agent.<locals>.local, .*ajet.run\(resume=…, workflow=…\)",
    ):
        ajet.run(resume=first.dir, steps=2, progress=False)
    with pytest.raises(ConfigError, match=r"job\.yaml: judge: .*<lambda>.*judge=…"):
        ajet.run(resume=first.dir, steps=2, workflow=agent, progress=False)
    again = ajet.run(resume=first.dir, steps=2, workflow=agent, judge=long, progress=False)
    assert again.dir == first.dir and [m["step"] for m in again.metrics] == [1, 2]
    assert {e.task for e in again.episodes(step=2)} <= {task["id"] for task in TASKS}
    third = ajet.run(resume=first.dir, steps=3, workflow=agent, judge=long, tasks=TASKS[:2], progress=False)
    assert {e.task for e in third.episodes(step=3)} == {"q0", "q1"}
    with pytest.raises(ConfigError, match=r"^resume=: uses the job in .*; remove .*job.yaml"):
        ajet.run("job.yaml", resume=first.dir)


@pytest.mark.whole
def test_evaluate_and_check_run_without_training(training: Arguments, agent: Agent, folder: Path) -> None:
    del training["steps"]
    scores = ajet.evaluate(workflow=agent, judge=long, episodes=3, greedy=True, **training)
    assert scores["episodes"] == 3 and 0 <= scores.accuracy <= 1
    assert len(scores.episodes()) == 3 and scores.dir.is_dir()
    (folder / "answers.yaml").write_text("- {say: '7'}\n")
    found = ajet.check(workflow=agent, judge=long, first=2, group_size=2, answers="answers.yaml", **training)
    assert found.ok and len(found.report.episodes) == 4 and found.report.merging.calls == 4
    assert any("have equal rewards" in what for what, _ in found.warnings)
    assert (
        str(found).startswith("ajet check · agent.<locals>.local") and "equal rewards" in found._repr_html_()
    )
    assert all(e.timelines[0].text.rstrip().endswith("7<|im_end|>") for e in found.episodes()), [
        e.timelines[0].text for e in found.episodes()
    ]


def test_a_forecast_says_what_keeps_a_job_from_learning(
    training: Arguments, agent: Agent, folder: Path
) -> None:
    del training["steps"]
    (folder / "answers.yaml").write_text("- {say: '7'}\n")
    found = ajet.forecast(workflow=agent, judge=long, episodes=8, answers="answers.yaml", **training)
    assert not found.ok and found.figures.signal[4][0] == 0
    assert "too hard" in [name for name, what, remedy in found.causes if what and remedy]
    assert str(found).startswith("ajet forecast · agent.<locals>.local") and "too hard" in repr(found)
    assert len(found.episodes()) == 8


@pytest.mark.whole
def test_an_evaluation_names_its_model_by_argument_or_by_job(
    training: Arguments, agent: Agent, folder: Path
) -> None:
    del training["steps"]
    model = training.pop("model")
    training["set"] = SET | {"eval.episodes": 1}
    with pytest.raises(ConfigError, match=r"^model= or endpoint=: is missing: name the checkpoint"):
        ajet.evaluate(workflow=agent, judge=long, **training)
    assert run_program(["eval", "--workflow", "a.py:run", "--tasks", "t.jsonl"]) == 2
    assert not (folder / "runs").exists()
    (folder / "job.yaml").write_text(f"model: {model}\n")
    for given in ({"job": "job.yaml"}, {"set": training["set"] | {"model": str(model)}}):
        scores = ajet.evaluate(workflow=agent, judge=long, **(training | given))
        assert ajet.load_run(scores.dir).job["model"] == str(model)


@pytest.mark.slow
def test_the_awaitable_versions_give_the_same(training: Arguments, agent: Agent) -> None:
    del training["steps"]
    training["set"] = SET | {"run.deterministic": True}

    async def both() -> tuple[Any, Any]:
        scores = await ajet.aevaluate(workflow=agent, judge=long, **training)
        found = await ajet.acheck(workflow=agent, judge=long, first=1, group_size=1, **training)
        return scores, found

    scores, found = asyncio.run(both())
    assert scores.reward == ajet.evaluate(workflow=agent, judge=long, **training).reward
    assert len(found.report.episodes) == 1


def test_wrong_pairs_of_arguments_are_errors_that_name_them(training: Arguments, agent: Agent) -> None:
    del training["steps"]
    with pytest.raises(ConfigError, match=r"^endpoint= and endpoint_model=: go together"):
        ajet.evaluate(workflow=agent, judge=long, endpoint="http://127.0.0.1:9/v1", **training)
    with pytest.raises(ConfigError, match=r"^model= and endpoint=: exclude each other"):
        ajet.evaluate(workflow=agent, judge=long, endpoint="http://x/v1", endpoint_model="m", **training)
    with pytest.raises(ConfigError, match=r"^context_length= applies only with answers="):
        ajet.check(workflow=agent, judge=long, context_length=5, **training)


@pytest.mark.whole
def test_a_served_model_is_told_how_its_calls_are_read(model: Path) -> None:
    wrong = ajet.serve(model, engine="local", call_example="no call")
    with pytest.raises(ConfigError, match=r"^rollout.call_example: "), wrong:
        pass
    shown = ajet.serve(model, engine="local", tool_prompt="hermes")
    with pytest.raises(ConfigError, match=r"^rollout.tool_prompt: "), shown:
        pass
    with ajet.serve(model, engine="local", tool_calls="text") as server:
        assert server.model


@pytest.mark.parametrize("beside_a_loop", fast({1}, [False, True]))
def test_a_checkpoint_is_served_for_the_length_of_a_block(model: Path, beside_a_loop: bool) -> None:
    def block() -> str:
        with ajet.serve(model, engine="local", set={"threads": 1}, max_tokens=4) as server:
            client = openai.OpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0)
            ask: Any = [{"role": "user", "content": "hi"}]
            answer = client.chat.completions.create(model=server.model, messages=ask)
            assert answer.usage and answer.usage.completion_tokens <= 4
            old = client.chat.completions.create(model="ft:gpt-4o-mini:acme::7p4lURel", messages=ask)
            assert old.model == "ft:gpt-4o-mini:acme::7p4lURel", "a program keeps the name of its old model"
            assert server.api_key not in repr(server)
            refused = httpx.post(f"{server.base_url}/chat/completions", json={"messages": ask})
            assert refused.status_code == 401
            return server.base_url

    async def cell() -> str:
        return block()

    url = asyncio.run(cell()) if beside_a_loop else block()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_sft_learns_transcripts_and_gives_the_run(folder: Path, model: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "7"}]}
    (folder / "chats.jsonl").write_text(f"{json.dumps(chat)}\n" * 4)
    given: Arguments = {"model": model, "transcripts": "chats.jsonl", "output": "out", "progress": False}
    run = ajet.sft(**given, epochs=2, batch_size=2, set={"backbone.local.threads": 1})
    assert run.checkpoint and run.checkpoint.is_relative_to(folder / "out") and len(run.metrics) == 4
    with pytest.raises(ConfigError, match=r"^output= .*out: already exists; name a new folder"):
        ajet.sft(**given)


def test_transcripts_are_written_with_the_tool_prompt_of_the_job(folder: Path, model: Path) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    call = {"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    tools = [{"type": "function", "function": function}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": messages, "tools": tools}))
    chat_only = folder / "chat-only"
    shutil.copytree(model, chat_only)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (chat_only / "chat_template.jinja").write_text(template)
    given: Arguments = {"model": chat_only, "transcripts": "chats.jsonl", "progress": False}
    with pytest.raises(ajet.AjetError, match=r"chats\.jsonl"):
        ajet.sft(**given, output="without")
    run = ajet.sft(**given, output="with", set={"rollout.tool_prompt": "hermes"})
    assert run.metrics[0]["tokens_trained"] > 10  # the call as text


@pytest.mark.whole
def test_dpo_learns_pairs_and_gives_the_run(folder: Path, model: Path) -> None:
    pair = {"prompt": "hi", "chosen": "7", "rejected": "8 9"}
    (folder / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n" * 4)
    given: Arguments = {"model": model, "pairs": "pairs.jsonl", "output": "out", "progress": False}
    run = ajet.dpo(**given, epochs=4, batch_size=2, learning_rate=1e-3, set={"backbone.local.threads": 1})
    assert run.checkpoint and run.checkpoint.is_relative_to(folder / "out") and len(run.metrics) == 8
    first, last = run.metrics[0], run.metrics[-1]
    assert first["preference_margin"] == pytest.approx(0, abs=1e-4) and first["pairs"] == 2
    assert last["preference_margin"] > 0.01 and last["preference_accuracy"] == pytest.approx(1)
    with pytest.raises(ConfigError, match=r"^output= .*out: already exists; name a new folder"):
        ajet.dpo(**given)


@pytest.mark.whole
def test_a_run_that_ruined_its_model_is_no_success_and_names_the_checkpoint_to_go_on_from(
    training: Arguments, agent: Agent, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def collapses(task: Task, output: Any, episode: Any) -> float:
        return float(episode.id.startswith("1.") and episode.member % 2)

    training |= {"steps": 3, "set": SET | {"rollout.group_size": 4, "train.batch_size": 4}}
    with pytest.raises(
        ajet.AjetError, match=r"^the run did not succeed: the reward has collapsed: .* step 2"
    ) as found:
        ajet.run(workflow=agent, judge=collapses, **training)
    assert "step_000001), with a lower train.learning_rate" in str(found.value)
    (warned,) = [line for line in caplog.messages if "collapsed" in line]
    assert warned.startswith("step 3: ")


@pytest.mark.whole
def test_an_alarm_ends_a_run_that_asks_for_it_and_the_verdict_has_it(
    training: Arguments, agent: Agent, folder: Path
) -> None:
    def fails(task: Task, output: Any, episode: Any) -> bool:
        if episode.member == 0:
            raise ValueError("no score")
        return bool(episode.member % 2)

    training |= {
        "steps": 6,
        "set": SET | {"rollout.group_size": 4, "run.stop_on": ["failed_episodes"], "train.save_every": 100},
    }
    with pytest.raises(
        ajet.AjetError,
        match=r"^run.stop_on has ended the run at step 4: 25% of the episodes fail, most by judge:V",
    ):
        ajet.run(workflow=agent, judge=fails, **training)
    run = ajet.load_run(folder / "runs")
    assert run.metrics[-1]["alarm/failed_episodes"] == 1 and "alarm/failed_episodes" not in run.metrics[0]
    assert run.checkpoint is not None and run.checkpoint.name == "step_000004"
    assert run.verdict and [alarm.name for alarm in run.verdict.alarms] == ["failed_episodes"]


@pytest.mark.whole
def test_a_second_judge_judges_a_share_of_the_episodes_and_trains_nothing(
    training: Arguments, agent: Agent
) -> None:
    (Path.cwd() / "second.py").write_text(
        "def strict(task, output):\n    return 0.25\n\n\ndef broken(task, output):\n    raise KeyError('score')\n"
    )
    shared = SET | {"rollout.judge_check_share": 0.5}
    given = {**training, "set": shared | {"judge_check": {"type": "second.py:strict"}}}
    run = ajet.run(workflow=agent, judge=lambda task, output: 1.0, **given)
    checked = [m for m in run.metrics if m["judge/checked"]]
    assert checked and all(m["judge/check_reward"] == 0.25 and m["judge/check_gap"] == 0.75 for m in checked)
    assert all(0 <= m["judge/checked"] <= 1 and m["reward"] == 1 for m in run.metrics)
    broken = ajet.run(
        workflow=agent,
        judge=lambda task, output: 1.0,
        **{**given, "set": shared | {"judge_check": {"type": "second.py:broken"}}},
    )
    assert all(m["episodes_failed"] == 0 for m in broken.metrics)
    assert any(m.get("calls/judge_check_failed") for m in broken.metrics)


def test_an_unknown_alarm_is_refused_with_the_nearest(training: Arguments, agent: Agent) -> None:
    with pytest.raises(ConfigError, match=r"unknown alarm 'colapse'.*collapse"):
        ajet.run(workflow=agent, judge=long, **{**training, "set": SET | {"run.stop_on": ["colapse"]}})
