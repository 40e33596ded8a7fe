"""Jobs whose workflow is ``{type: command, …}``, run as programs run them."""

from __future__ import annotations

import json
import os
import sys

import pytest
import yaml

from ajet.plugins import load_plugins
from tests.cli.conftest import JOB, Folder
from tests.plugins.commands.episodes import ASK

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")

AGENT = ASK + "\nimport time; answer = ask(sys.argv[1]); time.sleep(float(sys.argv[2])); print(answer)\n"


def job(folder: Folder, seconds: float = 0, **settings: object) -> None:
    """A job of a command; its program is in a folder beside the job."""
    folder.write("tools/program.py", AGENT)
    command = [sys.executable, "{workdir}/tools/program.py", "{query}", str(seconds)]
    spec = json.dumps({"type": "command", "command": command, **settings})
    folder.write("job.yaml", JOB.replace("workflow: agent.py:run", f"workflow: {spec}"))


def test_a_job_with_a_command_names_this_plugin_where_it_is_missing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(load_plugins().classes, ("workflow", "command"))
    done = folder.ajet("run", "job.yaml", "--workflow", "cmd:python agent.py")
    assert done.code == 2
    assert "unknown workflow 'command'" in done.err and "pip install 'ajet[commands]'" in done.err


@pytest.mark.whole
def test_a_job_s_paths_are_relative_to_its_file(folder: Folder) -> None:
    job(folder, workspace="repo", home="settings")
    folder.write("repo/a.txt", "")
    folder.write("settings/b.txt", "")
    folder.write("elsewhere/x", "")
    os.chdir(folder.path / "elsewhere")
    done = folder.ajet("run", "../job.yaml", "--set", f"run.dir={json.dumps(str(folder.path / 'runs'))}")
    assert done.code == 0, done.err
    (run,) = (folder.path / "runs").iterdir()
    kept = yaml.safe_load((run / "job.yaml").read_text())["workflow"]
    assert kept["workspace"] == str(folder.path / "repo") and kept["home"] == str(folder.path / "settings")
    assert kept["workdir"] == str(folder.path)


@pytest.mark.whole
def test_check_tells_the_memory_of_the_programs_and_warns_if_there_is_not_so_much(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet.runs.check.total_memory", lambda: 100 << 20)
    job(folder, seconds=1)
    check = ("check", "job.yaml", "--answers", "script.yaml", "--first", "1", "--group-size", "1")
    done = folder.ajet(*check)
    assert "memory of programs" in done.out and "MiB an episode" in done.out, done.out + done.err
    assert "64 at once take" in done.out and "Set rollout.concurrency to" in done.out
    assert "64 at once take" not in folder.ajet(*check, "--set", "rollout.concurrency=1").out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"timeout": "20m"}, "rollout.timeout: 300s is not longer than the 1200s"),
        ({"calls": 0}, "workflow.calls"),
        ({"wokspace": "x"}, "workflow.wokspace: unknown key; did you mean 'workspace'"),
        ({"type": "comand"}, "workflow.type: unknown workflow 'comand'; did you mean 'command'"),
    ],
)
def test_what_a_job_says_wrongly_of_its_command_is_named(folder: Folder, settings: object, said: str) -> None:
    job(folder, **settings)  # type: ignore[arg-type]
    done = folder.ajet("run", "job.yaml")
    assert done.code != 0 and said in done.err


def test_a_command_that_is_judged_by_itself_gets_no_hidden_field(folder: Folder) -> None:
    job(folder, stdin="task")
    folder.write("tools/program.py", ASK + "ask('x'); print(sorted(json.load(sys.stdin)['metadata']))")
    folder.write("tasks.jsonl", '{"query": "2+2?", "answer": "4", "tests": "t", "level": 1}\n')
    done = folder.ajet("run", "job.yaml", "--set", "task.hidden=[answer, tests]")
    assert "['level']" in done.err, done.err
