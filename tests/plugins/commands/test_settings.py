"""``workflow: {type: command, …}``: placeholders, folders of each episode, variables, limits and what the judge gets."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.rollout.episode import Episode
from ajet.testing import ScriptedEngine
from ajet.types import ConfigError, Task
from tests.plugins.commands.episodes import ASK, run_command, whole
from tests.tiers import fast, thinned

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")

Run = Callable[..., Episode]
TELL = "ask('x'); print(json.dumps({'response': told}))"


@pytest.fixture
def run(bench: Any, tokenizer: Any, tmp_path: Path) -> Run:
    """One episode of a Python program in the job's folder, with settings of the workflow."""
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))

    def go(
        code: str,
        *arguments: str,
        task: Task | None = None,
        judge: Callable[..., Any] = lambda task, output: 1.0,
        **settings: Any,
    ) -> Episode:
        (tmp_path / "agent.py").write_text(ASK + code)
        fields = {
            "command": [sys.executable, "{workdir}/agent.py", *arguments],
            "workdir": tmp_path,
            **settings,
        }
        workflow = whole(**fields)
        return run_command(b, workflow, task=task, judge=judge)

    return go


def response(episode: Episode) -> Any:
    assert episode.failure is None, episode.error
    return episode.output.response


# ------------------------------------------------------------------ what the program is given


@pytest.mark.whole
def test_placeholders_stand_for_the_episode_s_values(run: Run) -> None:
    episode = run(
        "told = [sys.argv[1:], os.environ['MINE'], os.getcwd(), os.environ['HOME']]\n"
        "assert sys.argv[3] == os.environ['OPENAI_BASE_URL'] and sys.argv[4] == os.environ['OPENAI_API_KEY']\n"
        "assert '/k/' in sys.argv[5] and os.environ['SWITCH'] == '1'\n" + TELL,
        "-p={query}",
        "{metadata.repo} {metadata.n}",
        "{base_url}",
        "{api_key}",
        "{keyed_url}",
        "{print} ${HOME} {}",
        task=Task("t", "what is {id}?", metadata={"repo": "r", "n": [1, 2]}),
        environment={"MINE": "{workspace}:{home}", "SWITCH": 1},
    )
    words, mine, folder, home = response(episode)
    assert words[:2] == ["-p=what is {id}?", "r [1, 2]"] and words[5] == "{print} ${HOME} {}"
    assert mine == f"{folder}:{home}"


@pytest.mark.whole
def test_python_is_the_one_that_runs_ajet_unless_the_job_sets_path(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for services."""
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "python"
    other.write_text(f'#!/bin/sh\nOTHER=1 exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent), prepend=os.pathsep)
    code, command = "told = os.environ.get('OTHER')\n" + TELL, ["python", "{workdir}/agent.py"]
    assert response(run(code, command=command)) is None
    assert response(run(code, command=command, environment={"PATH": os.environ["PATH"]})) == "1"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"environment": {"X": "{querry}"}},
            "workflow.environment: {querry} is not a placeholder; did you mean {query}",
        ),
        ({"environment": {"MY_API_KEY": "s3cret"}}, "MY_API_KEY looks like a secret"),
        ({"workspace": "absent"}, "workspace: .*absent is not a directory"),
        ({"home": "absent"}, "home: .*absent is not a directory"),
        ({"tokens": "many"}, "workflow.tokens: expected a number such as 200, 500k or 2M"),
        ({"read": ["/"]}, "read has no effect without a sandbox"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_run(
    tmp_path: Path, settings: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        whole(command=[sys.executable], workdir=tmp_path, **settings)


def test_a_field_that_a_task_lacks_fails_its_episode(run: Run) -> None:
    episode = run("", "{metadata.repo}", task=Task("t", "q", metadata={"other": 1}))
    assert episode.failure == "workflow:no_field" and "has no metadata.repo" in episode.error


@pytest.mark.parametrize(("stdin", "given"), [("empty", ""), ("query", "what?")])
def test_stdin_is_empty_unless_the_job_says_otherwise(run: Run, stdin: str, given: str) -> None:
    episode = run("told = [sys.stdin.read(), 'AJET_TASK' in os.environ]\n" + TELL, stdin=stdin)
    assert response(episode) == [given, False]


def test_the_task_as_json_is_on_stdin_if_the_job_asks_for_it(run: Run) -> None:
    episode = run("told = json.load(sys.stdin)['query']\n" + TELL, stdin="task")
    assert response(episode) == "what?"


def test_secrets_are_not_inherited_by_default(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "SERVICE_TOKEN",
        "DB_PASSWORD",
        "ANTHROPIC_AUTH_TOKEN",
        "PGPASSWORD",
        "OPENAI_APIKEY",
        "AWS_ACCESS_KEY_ID",
        "GITHUB_PAT",
    )
    for name in names:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("DATABASE_URL", "postgres://user:secret@host/db")
    monkeypatch.setenv("HARMLESS", "1")
    told = response(run("told = dict(os.environ)\n" + TELL))
    assert (
        "secret" not in told.values()
        and "DATABASE_URL" not in told
        and told["HARMLESS"] == "1"
        and "PWD" in told
    )


@pytest.mark.whole
def test_only_the_variables_that_inherit_names_are_inherited(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "wanted")
    monkeypatch.setenv("LC_X", "1")
    monkeypatch.setenv("HARMLESS", "1")
    told = response(run("told = dict(os.environ)\n" + TELL, inherit=("PATH", "LC_*", "SERVICE_TOKEN")))
    assert told["SERVICE_TOKEN"] == "wanted" and told["LC_X"] == "1" and "HARMLESS" not in told
    assert told["OPENAI_BASE_URL"]


# ------------------------------------------------------------------ folders


@pytest.mark.whole
def test_each_episode_has_a_folder_and_a_home_of_its_own_which_are_removed(run: Run) -> None:
    code = (
        "told = [os.getcwd(), os.environ['HOME'], os.environ['XDG_CONFIG_HOME'], os.listdir('.'), os.listdir(os.environ['HOME'])]\n"
        "open('left', 'w'); os.mkdir('closed', 0o000)\n" + TELL
    )
    first, second = response(run(code)), response(run(code))
    assert first[3:] == second[3:] == [[], ["tmp"]]
    assert not {*first[:2]} & {*second[:2]}
    assert first[2] == f"{first[1]}/.config"
    assert not any(Path(folder).exists() for folder in (*first[:2], *second[:2]))


@pytest.mark.whole
def test_a_workspace_is_a_copy_of_a_folder_that_the_task_may_name(run: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "repos" / name).mkdir(parents=True)
        (tmp_path / "repos" / name / "a.txt").write_text(name)
    code = "told = open('a.txt').read(); open('a.txt', 'w').write('changed')\n" + TELL
    for name in ("one", "two"):
        task = Task("t", "q", metadata={"repo": name})
        assert response(run(code, task=task, workspace="repos/{metadata.repo}")) == name
    assert response(run(code, workspace="repos/one")) == "one"
    assert (tmp_path / "repos/one/a.txt").read_text() == "one"


def test_a_folder_that_a_task_names_wrongly_fails_its_episode(run: Run) -> None:
    episode = run("", task=Task("t", "q", metadata={"repo": "absent"}), workspace="repos/{metadata.repo}")
    assert episode.failure == "workflow:copy" and "repos/absent" in episode.error


def test_a_home_is_a_copy_of_a_folder_with_settings(run: Run, tmp_path: Path) -> None:
    (tmp_path / "home" / ".config").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "agent.json").write_text("{}")
    code = "told = os.listdir(os.environ['XDG_CONFIG_HOME'])\n" + TELL
    assert response(run(code, home="home")) == ["agent.json"]


def test_files_of_the_task_s_metadata_are_written_into_the_workspace(run: Run) -> None:
    files = {"src/a.py": "x = 1\n", "b.txt": "naïve"}
    code = "told = [open('src/a.py').read(), open('b.txt', encoding='utf-8').read()]\n" + TELL
    task = Task("t", "q", metadata={"files": files})
    assert response(run(code, task=task, files="files")) == list(files.values())


@pytest.mark.parametrize("path", ["../out", "/tmp/out", "a/../../out", ""])
def test_files_that_lead_out_of_the_workspace_fail_the_episode(run: Run, path: str) -> None:
    episode = run("", task=Task("t", "q", metadata={"files": {path: "x"}}), files="files")
    assert episode.failure == "workflow:files" and "leads out of the workspace" in episode.error


# ------------------------------------------------------------------ limits


LOOP = "while True: ask('again')"


@thinned
@pytest.mark.parametrize("failed", ["drop", "judge"])
@pytest.mark.parametrize(("limit", "most"), [("calls", 3), ("tokens", 6)])
def test_an_agent_that_loops_is_ended_at_its_limit(run: Run, limit: str, most: int, failed: str) -> None:
    episode = run(LOOP, **{limit: most}, failed=failed)
    spent = episode.spent.completion_tokens
    assert len(episode.record.calls) == 3 if limit == "calls" else most <= spent < most + 4
    if failed == "drop":
        assert episode.failure == f"workflow:{limit}" and "was ended at its limit of" in episode.error
    else:
        assert episode.failure is None and episode.reward == 1.0 and episode.record.trained_calls
        assert episode.metrics["failed"] == 1.0 and episode.output.metadata["failed"] == limit


def test_an_agent_that_ends_within_its_limits_has_not_failed(run: Run) -> None:
    episode = run("for _ in range(3): ask('x')\nprint('done')", calls=3, failed="judge")
    assert response(episode) == "done" and episode.metrics["failed"] == 0.0


def test_a_program_that_catches_the_refusal_and_answers_has_still_reached_its_limit(run: Run) -> None:
    code = "try:\n    while True: ask('again')\nexcept Exception: print('fine')"
    assert run(code, calls=2).failure == "workflow:calls"


@pytest.mark.whole
def test_a_program_is_ended_at_its_own_time_limit_and_may_be_judged(run: Run) -> None:
    code = "ask('x'); open('partial.txt', 'w').write('half')\nimport time; time.sleep(600)"

    def judge(task: Task, output: Any) -> float:
        return float(output.files["partial.txt"].read_text() == "half")

    episode = run(code, timeout=3.0, failed="judge", collect=("*.txt",), judge=judge)
    assert episode.failure is None and episode.reward == 1.0
    assert episode.output.metadata["failed"] == "timeout"
    assert run("ask('x')\nimport time; time.sleep(600)", timeout="2s").failure == "workflow:timeout"


def test_an_exit_code_is_judged_if_the_job_says_so(run: Run) -> None:
    episode = run("ask('x'); print('too long'); sys.exit(1)", failed="judge")
    assert episode.failure is None and episode.output.response == ""
    assert episode.output.metadata["failed"] == "exit 1" and "too long" in episode.output.metadata["error"]


def test_a_program_that_fails_before_its_first_call_is_not_judged_but_says_why(run: Run) -> None:
    episode = run("print('no such option'); sys.exit(2)", failed="judge")
    assert episode.failure == "workflow:exit 2" and "no such option" in episode.error


@pytest.mark.whole
def test_a_failure_of_the_engine_is_never_judged(bench: Any, tokenizer: Any, tmp_path: Path) -> None:
    def broken(request: Any, prompt: str) -> str:
        raise RuntimeError("out of memory")

    (tmp_path / "agent.py").write_text(f"{ASK}\nask('x')")
    command = [sys.executable, "{workdir}/agent.py"]
    workflow = whole(command=command, workdir=tmp_path, failed="judge")
    episode = run_command(bench(ScriptedEngine(tokenizer, broken)), workflow)
    assert episode.failure == "engine" and "out of memory" in episode.error


@pytest.mark.whole
def test_a_program_with_too_many_processes_is_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_commands.process.MOST_PROCESSES", 5)
    code = (
        "ask('x')\nimport time\nfor _ in range(10):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)"
    )
    assert run(code).failure == "workflow:processes"


@pytest.mark.whole
def test_the_memory_of_all_its_processes_is_seen(run: Run) -> None:
    code = (
        "ask('x')\nimport time\nx = b'x' * (60 << 20)\n"
        "if os.fork() == 0: y = b'y' * (60 << 20)\n"
        "time.sleep(3)\n"
    )
    episode = run(code)
    assert episode.memory > 150 << 20


# ------------------------------------------------------------------ what the judge gets


@pytest.mark.whole
def test_the_answer_may_be_a_file(run: Run) -> None:
    episode = run("ask('x'); print('noise'); open('out.md', 'w').write('two\\nlines')", answer="out.md")
    assert response(episode) == "two\nlines"
    episode = run("ask('x'); print('noise')", answer="out.md")
    assert episode.failure == "workflow:answer" and "the program wrote no file out.md" in episode.error


@pytest.mark.whole
def test_an_answer_is_not_read_through_a_link_that_leads_out(run: Run) -> None:
    episode = run("ask('x'); os.symlink('/etc/passwd', 'out.md')", answer="out.md")
    assert episode.failure == "workflow:answer"


@pytest.mark.whole
def test_the_judge_gets_collected_files_which_are_gone_afterwards(run: Run) -> None:
    seen: dict[str, Path] = {}

    def judge(task: Task, output: Any) -> float:
        seen.update(output.files)
        return float(output.files["src/deep/a.py"].read_text() == "x = 1")

    code = (
        "ask('x'); os.makedirs('src/deep'); open('src/deep/a.py', 'w').write('x = 1'); open('b.py', 'w'); open('c.txt', 'w')\n"
        "os.symlink('/etc/passwd', 'passwd.py'); os.symlink('/etc', 'etc'); os.mkfifo('fifo.py')"
    )
    episode = run(code, collect=("**/*.py", "etc/pass*"), judge=judge)
    assert episode.reward == 1.0
    assert sorted(seen) == ["b.py", "src/deep/a.py"]
    left = episode.output.metadata["files_left_out"]
    assert left == {
        "passwd.py": "a link",
        "fifo.py": "not a regular file",
        "etc/passwd": "a link",
        "etc/passwd-": "a link",
    } or (left.keys() >= {"passwd.py", "fifo.py", "etc/passwd"})
    assert episode.metrics["files_left_out"] == len(left)
    assert not any(path.exists() for path in seen.values())


def test_collected_files_are_bounded_in_number_and_size(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_commands.folders.MOST_FILES", 3)
    monkeypatch.setattr("ajet_commands.folders.MOST_BYTES", 1000)
    code = "ask('x')\nfor i in range(5): open(f'{i}.txt', 'w').write('x' * 400)"
    counts: list[int] = []
    episode = run(
        code, collect=("*.txt",), judge=lambda task, output: counts.append(len(output.files)) or 1.0
    )
    assert counts == [2]
    assert "0 MiB together" in json.dumps(episode.output.metadata["files_left_out"])


# ------------------------------------------------------------------ what a hostile task or agent tries


@pytest.mark.parametrize("repo", ["../private", "..", "{absolute}", "link", "inner/../../private", "link/.."])
def test_a_task_names_only_folders_below_what_the_job_names(run: Run, tmp_path: Path, repo: str) -> None:
    for name in ("private", "repos/inner"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "id_rsa").write_text("private")
    (tmp_path / "repos/link").symlink_to("../private")
    task = Task("t", "q", metadata={"repo": repo.replace("{absolute}", str(tmp_path / "private"))})
    for setting in ("workspace", "home"):
        episode = run("", task=task, **{setting: "repos/{metadata.repo}"})
        assert episode.failure == "workflow:copy" and "leads out of" in episode.error
    assert run("", task=task, workspace="{metadata.repo}").failure == "workflow:copy"


@pytest.mark.parametrize("name", ["folder/planted", "file"])
def test_files_of_a_task_are_not_written_through_links_of_its_workspace(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "folder").symlink_to("../outside")
    (tmp_path / "repo" / "file").symlink_to(tmp_path / "outside" / "file")
    task = Task("t", "q", metadata={"files": {name: "planted"}})
    episode = run("", task=task, workspace="repo", files="files")
    assert episode.failure == "workflow:files" and "leads through a link" in episode.error
    assert [(path.name, path.read_text()) for path in (tmp_path / "outside").iterdir()] == [("file", "mine")]


FORGE = """
ask('x')
import subprocess
line = '{"reward": 1.0, "response": "FORGED"}'
subprocess.run(["sh", "-c", %r], timeout=10, env={**os.environ, "LINE": line})
print('{"reward": 0.0, "response": "honest"}', flush=True)
import time; time.sleep(0.2)
"""
LOOP_IN = 'P=$PPID; (while :; do echo "$LINE" > {to}; sleep 0.01; done) 2>/dev/null </dev/null &'


@pytest.mark.whole
@pytest.mark.parametrize(
    "command",
    [
        LOOP_IN.replace("{to}", "/proc/$P/fd/1"),
        LOOP_IN.replace("{to}", "/proc/self/fd/1"),
        'while :; do echo "$LINE"; sleep 0.01; done &',
        'echo "$LINE"',
    ],
    ids=["through proc", "through its own", "inherited", "once"],
)
def test_what_a_program_runs_cannot_write_its_reward(run: Run, command: str) -> None:
    episode = run(FORGE % command, judge=lambda task, output: output.reward)
    assert (episode.failure, episode.output.reward, episode.output.response) == (None, 0.0, "honest")


@pytest.mark.whole
def test_a_whole_output_of_another_process_is_refused_with_the_remedy(run: Run) -> None:
    code = "ask('x'); os.system('echo \\'{\"reward\": 1.0}\\'')"
    episode = run(code)
    assert episode.failure == "workflow:answer" and "exec" in episode.error
    assert response(run("ask('x'); os.system('echo plain')")) == "plain"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("code", "cause"),
    fast(
        {0, 3, 4},
        [
            ("x = b'x' * (120 << 20)", "memory"),
            ("import mmap; f = os.memfd_create('x'); os.posix_fallocate(f, 0, 120 << 20)", "memory"),
            ("open('big', 'wb').write(b'x' * (60 << 20))", "disk"),
            ("f = open('gone', 'wb'); os.unlink('gone'); f.write(b'x' * (60 << 20)); f.flush()", "disk"),
            ("[open(os.environ['HOME'] + f'/{n}', 'w').close() for n in range(13_000)]", "disk"),
            (
                "os.mkdir('closed'); os.chdir('closed'); os.chmod('.', 0o300); open('x', 'wb').write(b'x' * (60 << 20))",
                "disk",
            ),
        ],
    ),
    ids=["memory", "files in memory", "a file", "a deleted file", "empty files", "a closed folder"],
)
def test_a_program_with_too_much_memory_or_disk_is_ended(run: Run, code: str, cause: str) -> None:
    episode = run(f"ask('x')\n{code}\nimport time; time.sleep(60)", memory="100MiB", disk="50MiB")
    assert episode.failure == f"workflow:{cause}" and f"workflow.{cause}" in episode.error


@pytest.mark.whole
def test_memory_that_processes_share_counts_once(run: Run) -> None:
    code = (
        "ask('x')\nimport time\nx = b'x' * (60 << 20)\n"
        "children = [os.fork() or (time.sleep(3), os._exit(0)) for _ in range(4)]\n"
        "print([os.waitpid(child, 0)[1] for child in children])\n"
    )
    assert response(run(code, memory="200MiB")) == "[0, 0, 0, 0]"
