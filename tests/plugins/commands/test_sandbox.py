"""``sandbox: bubblewrap``: what a program in it can and cannot do."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.rollout.episode import Episode
from ajet.testing import ScriptedEngine
from ajet.types import ConfigError, Task
from ajet_commands import sandbox
from tests.patience import PATIENCE
from tests.plugins.commands.episodes import ASK, run_command, whole
from tests.tiers import fast

Run = Callable[..., Episode]


@pytest.fixture
def run(bench: Any, tokenizer: Any, tmp_path: Path) -> Run:
    """One episode of a Python program in a sandbox, which sees the program itself."""
    try:
        sandbox.check_sandbox()
    except ValueError as error:
        pytest.skip(str(error))
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))

    def go(code: str, *arguments: str, task: Task | None = None, **settings: Any) -> Episode:
        program = tmp_path / "agent.py"
        program.write_text(f"{ASK}\nimport subprocess, time\n{code}\nprint(json.dumps({{'response': told}}))")
        spec = {
            "command": [sys.executable, str(program), *arguments],
            "read": [program],
            "sandbox": "bubblewrap",
        }
        return run_command(b, whole(workdir=tmp_path, **{**spec, **settings}), task=task)

    return go


def response(episode: Episode) -> Any:
    assert episode.failure is None, episode.error
    return episode.output.response


def test_an_agent_in_a_sandbox_reaches_its_model_and_its_own_folders(run: Run) -> None:
    code = (
        "told = [ask('x') for _ in range(3)]\n"
        "for folder in ('.', os.environ['HOME'], '/tmp'): open(folder + '/written', 'w').write('x')\n"
        "told += [os.getcwd() == sys.argv[1], subprocess.run(['sh', '-c', 'echo shell'], capture_output=True, text=True).stdout]"
    )
    episode = run(code, "{workspace}")
    assert response(episode) == ["ok", "ok", "ok", True, "shell\n"]
    assert len(episode.record.trained_calls) == 3 and not episode.missed


@pytest.mark.whole
@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_a_program_of_node_runs_in_a_sandbox(run: Run, tmp_path: Path) -> None:
    (tmp_path / "agent.mjs").write_text(
        "const ask = {model: 'm', messages: [{role: 'user', content: process.argv[2]}]};\n"
        "const r = await fetch(process.env.OPENAI_BASE_URL + '/chat/completions', {method: 'POST', body: JSON.stringify(ask),\n"
        "  headers: {authorization: 'Bearer ' + process.env.OPENAI_API_KEY}});\n"
        "console.log((await r.json()).choices[0].message.content);\n"
    )
    program = tmp_path / "agent.mjs"
    assert response(run("", command=["node", str(program), "{query}"], read=[program])) == "ok"


@pytest.mark.parametrize(
    "first", ["#!{python}", "#!/usr/bin/env agent-python", "#!/usr/bin/env -S agent-python -B"]
)
def test_the_interpreter_of_a_script_is_in_the_sandbox(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """As of a virtual environment, whose Python is a link to one that is elsewhere."""
    elsewhere, environment = tmp_path / "elsewhere" / "bin", tmp_path / "environment" / "bin"
    for folder in (elsewhere, environment):
        folder.mkdir(parents=True)
    python = Path(os.path.realpath(sys.executable))
    (elsewhere / "python").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (elsewhere / "python").chmod(0o755)
    (environment / "agent-python").symlink_to(elsewhere / "python")
    program = environment / "agent"
    program.write_text(f"{first.format(python=environment / 'agent-python')}\n{ASK}\nprint(ask('x'))")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(environment), prepend=os.pathsep)
    assert response(run("", command=[str(program)], read=[])) == "ok"


@pytest.mark.whole
def test_the_reference_answer_cannot_be_read_in_a_sandbox(run: Run, tmp_path: Path) -> None:
    begun = int(time.time()) - 1  # a search through all of Python's libraries would take seconds
    (tmp_path / "tasks.jsonl").write_text('{"query": "q", "answer": "the-answer-42"}')
    code = (
        "ask('x')\n"
        f"places = [{str(tmp_path / 'tasks.jsonl')!r}, '/proc/{os.getpid()}/environ', '/etc/shadow', {str(Path.home())!r}]\n"
        "told = [place for place in places if os.path.exists(place)]\n"
        "seen = ['grep', '-ls', 'the-answer-' + str(42)]\n"
        f"new = ['find', '/tmp', '/home', '/work', '/var', '-type', 'f', '-newermt', '@{begun}', '-exec', *seen, '{{}}', '+']\n"
        "found = ''.join(subprocess.run(c, capture_output=True, text=True).stdout for c in ([*seen, '/proc/self/environ'], new))\n"
        "told += found.split()\n"
        "told += [entry for entry in os.listdir('/proc') if entry.isdigit() and int(entry) > 50]"
    )
    assert [place for place in response(run(code)) if place != str(Path.home())] == []


def test_other_addresses_cannot_be_reached_from_a_sandbox(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        code = (
            "ask('x'); import socket; told = []\n"
            f"for address in (('127.0.0.1', {other.getsockname()[1]}), ('1.1.1.1', 53), ('example.com', 80)):\n"
            "    try: socket.create_connection(address, timeout=5); told.append(address)\n"
            "    except OSError: pass"
        )
        assert response(run(code)) == []


def test_system_folders_are_read_only_in_a_sandbox(run: Run) -> None:
    code = (
        "ask('x'); told = []\n"
        "for folder in ('/', '/usr', '/etc', sys.argv[1]):\n"
        "    try: open(folder + '/written', 'w'); told.append(folder)\n"
        "    except OSError: pass"
    )
    assert response(run(code, str(Path(sys.executable).parent))) == []


@pytest.mark.whole
def test_what_the_job_names_can_be_read_in_a_sandbox(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "a.txt").write_text("seen")
    code = "ask('x'); told = open(sys.argv[1] + '/shared/a.txt').read()"
    assert response(run(code, "{workdir}", read=[tmp_path / "agent.py", tmp_path / "shared"])) == "seen"


MARK = "ajet-test-left-behind"
DAEMON = (
    "ask('x')\n"
    "daemon = 'import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid(); '\n"
    "daemon += 'open(\\'ready\\', \\'w\\'); time.sleep(600)'\n"
    f"subprocess.Popen([sys.executable, '-c', daemon, {MARK!r} + sys.argv[1]])\n"
    "while not os.path.exists('ready'): time.sleep(0.01)\n"
    "told = 'left'"
)


def living(mark: str) -> list[str]:
    """The processes of this machine that have a word on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(entry.name)
            except OSError:
                continue
    return found


@pytest.mark.whole
@pytest.mark.parametrize(
    ("end", "failure"),
    fast(
        {0, 1}, [("", None), ("; time.sleep(600)", "workflow:timeout"), ("; sys.exit(3)", "workflow:exit 3")]
    ),
    ids=["ends", "hangs", "fails"],
)
def test_processes_that_leave_their_session_die_with_the_sandbox(
    run: Run, end: str, failure: str | None
) -> None:
    mark = f"-{os.getpid()}-{time.monotonic_ns()}"
    episode = run(DAEMON + end, mark, timeout=3.0 if failure == "workflow:timeout" else PATIENCE)
    assert episode.failure == failure
    deadline = time.monotonic() + PATIENCE
    while living(MARK + mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert living(MARK + mark) == []


@pytest.mark.whole
def test_processes_that_multiply_in_a_sandbox_are_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_commands.process.MOST_PROCESSES", 30)
    code = (
        "ask('x'); told = ''\n"
        "for _ in range(60):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: os.setsid(); time.sleep(600)\n"
        "        os._exit(0)\n"
        "time.sleep(600)"
    )
    assert run(code).failure == "workflow:processes"


@pytest.mark.kept
def test_a_sandbox_gets_only_variables_that_cannot_be_secrets(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = (
        "PGPASSWORD",
        "DATABASE_URL",
        "AWS_ACCESS_KEY_ID",
        "OPENAI_APIKEY",
        "GITHUB_PAT",
        "HF_TOKEN",
        "ANY_OTHER",
    )
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LC_NAME", "C")
    told = response(run("ask('x'); told = dict(os.environ)"))
    assert "secret" not in told.values() and told["LC_NAME"] == "C" and told["PATH"] == os.environ["PATH"]
    named = run("ask('x'); told = [os.environ.get(n) for n in ('ANY_OTHER', 'LC_NAME')]", inherit=["ANY_*"])
    assert response(named) == ["secret", None]


@pytest.mark.whole
def test_commands_in_a_sandbox_cannot_write_the_program_s_reward(run: Run) -> None:
    code = (
        "ask('x'); told = 'honest'\n"
        "loop = 'P=$PPID; (while :; do echo {\\\"reward\\\": 1.0} >/proc/$P/fd/1; sleep 0.01; done) 2>/dev/null </dev/null &'\n"
        "subprocess.run(['sh', '-c', loop], timeout=10)\n"
        "print(json.dumps({'reward': 0.0, 'response': told}), flush=True); time.sleep(0.2); sys.exit()"
    )
    episode = run(code)
    assert (response(episode), episode.output.reward) == ("honest", 0.0)


def test_a_program_in_a_sandbox_may_open_its_stderr_by_its_name(run: Run) -> None:
    episode = run("ask('x'); subprocess.run(['sh', '-c', 'echo told >/dev/stderr']); sys.exit(3)")
    assert episode.failure == "workflow:exit 3" and "stderr ends: 'told'" in episode.error


@pytest.mark.whole
@pytest.mark.parametrize(
    ("code", "settings", "cause"),
    [
        ("x = b'x' * (120 << 20)", {"memory": "100MiB"}, "memory"),
        ("open('big', 'wb').write(b'x' * (60 << 20))", {"disk": "50MiB"}, "disk"),
    ],
)
def test_a_sandbox_with_too_much_memory_or_disk_is_ended(
    run: Run, code: str, settings: Any, cause: str
) -> None:
    assert run(f"ask('x')\n{code}\ntime.sleep(60)", **settings).failure == f"workflow:{cause}"


@pytest.mark.whole
def test_a_sandbox_is_bounded_without_a_word_in_the_job(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_commands.workflow.SANDBOX_BYTES", 100 << 20)
    code = "ask('x'); f = open('big', 'wb'); [f.write(bytes(1 << 20)) for _ in range(120)]; time.sleep(60)"
    assert run(code).failure == "workflow:disk"
    code = "ask('x'); told = [os.statvfs(path).f_blocks * os.statvfs(path).f_frsize for path in ('/tmp', '/dev/shm')]"
    assert response(run(code)) == [1 << 30] * 2


def test_a_program_that_the_sandbox_cannot_start_is_named(run: Run) -> None:
    episode = run("", command=["/bin/sh", "-c", "exec /absent"])
    assert episode.failure == "workflow:exit 127" and "/absent" in episode.error


def test_without_bubblewrap_the_job_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox._unusable.cache_clear()
    try:
        with pytest.raises(
            ConfigError, match=r"needs the program bwrap\. Install it .*apt-get install bubblewrap"
        ):
            whole(command=[sys.executable], workdir=tmp_path, sandbox="bubblewrap")
    finally:
        sandbox._unusable.cache_clear()


def test_a_sandbox_does_not_show_the_job_s_folder(run: Run) -> None:
    with pytest.raises(ConfigError, match="workspace: shared is not possible in a sandbox"):
        run("", workspace="shared")
