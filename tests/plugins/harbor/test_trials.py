"""Harbor's agents in sandboxes of Podman, through `ajet check` with scripted answers in place of a model."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from harbor.utils.trajectory_validator import TrajectoryValidator

from ajet import load_run
from ajet.cli import run_program
from ajet_atif import calls_of
from tests.patience import PATIENCE
from tests.plugins.harbor.conftest import Left
from tests.ports import free_port

pytestmark = pytest.mark.models("starter")

MINI = {"agent": {"kwargs": {"skip_install": True}}}  # the image has it
FINISHED = {"call": {"name": "bash", "arguments": {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}}}


class Job:
    """Jobs over the three tasks, with their answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, workflow: dict[str, Any], answers: list[Any], task: str, **sections: Any) -> list[str]:
        """The arguments of `ajet check`."""
        job = {
            "task": {"reader": {"type": "harbor", "path": f"tasks/{task}"}},
            "workflow": {"type": "harbor", "environment": "podman", **workflow},
            "judge": "harbor",
            "model": "starter",
            "rollout": {
                "group_size": 1,
                "concurrency": 2,
                "retries": 0,
                "timeout": 4 * PATIENCE,
                "stall_warning": "30m",
            },
        }
        for name, section in sections.items():
            job[name] = (
                {**job[name], **section} if isinstance(section, dict) and name == "rollout" else section
            )
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))
        (self.folder / "answers.yaml").write_text(yaml.safe_dump(answers))
        return ["check", "job.yaml", "--answers", "answers.yaml", "--first", "3", "--group-size", "1"]

    def run(self, *given: Any, **sections: Any) -> list[Any]:
        """The episodes of a check, in the order of their tasks."""
        run_program(self.file(*given, **sections))
        (run,) = self.folder.glob("runs/*-check")
        return sorted(load_run(run).episodes(), key=lambda episode: episode.task)


@pytest.fixture
def job(tasks: Path, monkeypatch: pytest.MonkeyPatch, left: Left) -> Job:
    monkeypatch.chdir(tasks.parent)
    return Job(tasks.parent)


def verified(episode: Any) -> dict[str, float]:
    """What the verifier wrote into the folder of an episode's trial."""
    folder = Path(episode.response["trial"]) / "verifier"
    if (folder / "reward.json").exists():
        return json.loads((folder / "reward.json").read_text())
    return {"reward": float((folder / "reward.txt").read_text())}


def own_calls(episode: Any) -> list[Any]:
    """The calls in the agent's own trajectory, which Harbor's model of the format accepts."""
    validator, file = TrajectoryValidator(), Path(episode.response["trajectory"])
    assert validator.validate(file), validator.errors
    return list(calls_of(json.loads(file.read_text())))


def test_the_oracle_gets_every_tasks_full_reward_without_a_model(job: Job) -> None:
    episodes = job.run({"agent": "oracle"}, [{"say": "never asked"}], "")
    assert [episode.task for episode in episodes] == ["ajet/greeting", "ajet/total", "ajet/words"]
    *single, words = episodes
    assert [episode.reward for episode in single] == [1.0, 1.0]
    assert [episode.response["rewards"] for episode in episodes] == [
        verified(episode) for episode in episodes
    ]
    # Which of its two rewards counts, the job has to say.
    assert words.failure == "workflow:no_reward" and "complete" in words.error


def test_mini_swe_agent_is_rewarded_by_the_tasks_verifier(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    close = {"turn": 0, "call": {"name": "bash", "arguments": {"command": "echo 95 > /app/total.txt"}}}
    (episode,) = job.run({"agent": "mini-swe-agent", "trial": MINI}, [close, FINISHED], "total")
    assert episode.reward == 0.5 and verified(episode) == {"reward": 0.5}
    assert episode.calls == 2 and len(episode.timelines) == 1
    (run,) = job.folder.glob("runs/*")
    run_program(["show", str(run), episode.id])
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"/ajet-trials-\w+/ajet-ajet-total-", shown) and "seconds_agent_execution" in shown
    assert f"the agent's own trajectory: {episode.response['trajectory']}" in shown
    assert len(own_calls(episode)) == 2


def test_claude_code_is_rewarded_by_the_tasks_verifier(job: Job) -> None:
    unordered = {
        "command": "printf 'pear\\napple\\nfig\\n' > /app/words.txt",
        "description": "Write the words",
    }
    answers = [{"turn": 0, "call": {"name": "Bash", "arguments": unordered}}, {"say": "Done."}]
    weights = {"complete": 0.25, "ordered": 0.75}
    workflow = {
        "agent": "claude-code",
        "trial": {"agent": {"kwargs": {"disallowed_tools": "WebSearch,WebFetch"}}},
    }
    (episode,) = job.run(workflow, answers, "words", judge={"type": "harbor", "weights": weights})
    assert episode.reward == 0.25 and verified(episode) == {"complete": 1.0, "ordered": 0.0}
    assert episode.calls == 2 and len(episode.timelines) == 1
    first, last = own_calls(episode)
    assert first.answer["tool_calls"][0]["function"]["name"] == "Bash" and last.answer["content"] == "Done."


@pytest.mark.whole
def test_terminus_is_rewarded_by_the_tasks_verifier(job: Job) -> None:
    """Harbor's own agent, which runs in this process and types into the sandbox."""
    typed = {"keystrokes": "echo 95 > /app/total.txt\n", "duration": 0.5}
    done = {"analysis": "", "plan": "", "commands": [], "task_complete": True}
    told = ({**done, "commands": [typed], "task_complete": False}, done)
    close, finished = ({"say": json.dumps(answer)} for answer in told)
    unrecorded = {"agent": {"kwargs": {"record_terminal_session": False}}}  # a recording needs asciinema
    workflow = {"agent": "terminus-2", "trial": unrecorded}
    (episode,) = job.run(workflow, [{"turn": 0, **close}, finished], "total")
    assert episode.reward == 0.5 and verified(episode) == {"reward": 0.5}
    assert episode.calls == 3 and len(episode.timelines) == 1  # it asks whether all is done
    assert len(own_calls(episode)) == 3


def test_an_agent_whose_time_is_over_is_judged_by_what_it_has_done(job: Job) -> None:
    slow = {"call": {"name": "bash", "arguments": {"command": "echo 100 > /app/total.txt; sleep 3000"}}}
    trial = {"agent": {"kwargs": {"skip_install": True}, "override_timeout_sec": 60}}
    (episode,) = job.run({"agent": "mini-swe-agent", "trial": trial}, [slow], "total")
    assert episode.reward == 1.0 and episode.response["ended"] == "AgentTimeoutError"


def test_a_trial_without_a_valid_reward_has_failed_and_does_not_count_as_zero(job: Job) -> None:
    (job.folder / "tasks/total/tests/test.sh").write_text("#!/bin/bash\nexit 1\n")
    (episode,) = job.run({"agent": "oracle"}, [{"say": ""}], "total")
    assert episode.failure == "workflow:RewardFileNotFoundError" and "/ajet-ajet-total-" in episode.error


def test_a_network_that_cannot_reach_the_gateway_is_refused_before_anything_starts(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_program(job.file({"agent": "mini-swe-agent", "network": "own"}, [FINISHED], "total")) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said and "rollout.gateway_address" in said and "cannot reach their model" in said


@pytest.mark.skipif(not shutil.which("iptables"), reason="Podman makes networks with iptables")
def test_a_sandbox_that_cannot_connect_to_the_address_fails_before_its_agent_starts(job: Job) -> None:
    port = free_port()
    gateway = {"port": port, "url": f"http://127.0.0.1:{port}"}
    workflow = {"agent": "mini-swe-agent", "network": "own", "trial": MINI}
    started = time.monotonic()
    (episode,) = job.run(workflow, [FINISHED], "total", rollout={"gateway_address": gateway})
    assert episode.failure == "workflow:GatewayUnreachable" and f"127.0.0.1:{port}" in episode.error
    assert time.monotonic() - started < PATIENCE and not episode.calls


def test_the_job_tells_of_tasks_that_it_would_cut_short(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    with (job.folder / "tasks/total/task.toml").open("a") as file:
        file.write(f"\n[agent]\ntimeout_sec = {8 * PATIENCE}\n")
    (episode,) = job.run({"agent": "oracle"}, [{"say": ""}], "total")
    assert episode.reward == 1.0
    said = " ".join(capsys.readouterr().err.split())
    assert "1 of 1 tasks, such as ajet/total, let their agents work for up to 2400 s" in said
    assert "rollout.timeout ends an episode after 1200 s" in said


def test_an_environment_that_is_not_there_is_said_in_one_line(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = job.file({"agent": "oracle", "environment": "docker"}, [FINISHED], "total")
    with monkeypatch.context() as here:
        here.setenv("PATH", "/nowhere")
        assert run_program(arguments) == 2
    assert "workflow: environment docker: Docker is not installed" in capsys.readouterr().err
