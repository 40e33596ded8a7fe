"""Workflows that are commands: real subprocesses that speak HTTP to the gateway, and nothing left of them."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.capture.process.install import install
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target
from ajet.interfaces.workflow import WorkflowFailed
from ajet.plugins import load_plugins
from ajet.rollout.episode import Episode, EpisodeRunner, Plan
from ajet.testing import ScriptedEngine
from ajet.types import ConfigError, Task, WorkflowOutput
from ajet_commands.process import MOST_ANSWER
from ajet_commands.workflow import read_answer
from tests.patience import PATIENCE
from tests.plugins.commands.episodes import ASK, run_command, short, whole
from tests.tiers import fast

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")

Run = Callable[..., Episode]


@pytest.fixture
def run(bench: Any, tokenizer: Any, tmp_path: Path) -> Run:
    """One episode of a Python program that `ask` is at hand to."""
    made: list[Any] = []

    def go(
        code: str,
        *,
        timeout: float = PATIENCE,
        seconds: float = 0.0,
        task: Task | None = None,
        spec: str = "",
    ) -> Episode:
        (tmp_path / "agent.py").write_text(ASK + code)
        hook = load_plugins().manager.hook
        workflow = short(spec or f"{shlex.quote(sys.executable)} agent.py", tmp_path)
        made.append(made[0] if made else bench(ScriptedEngine(tokenizer, lambda r, p: "ok", seconds=seconds)))
        b = made[0]
        plan = Plan("1.0/t/0", "0/0", task or Task("t", "what?"), 0, 0)

        async def episode() -> Episode:
            with install(b.capture) as around:
                handles = {"as_base_url": around.gateway.as_base_url}
                answerer = b.answerer(SamplingPolicy(training=True), (Target("policy"),))
                runner = EpisodeRunner(
                    workflow=workflow,
                    answerer=answerer,
                    capture=b.capture,
                    handles=handles,
                    timeout=timeout,
                    board=b.board,
                    hook=hook,
                    excused=until_begun,
                    missed=around.missed,
                )
                return await runner.run(plan, 0)

        started, waited = time.monotonic(), 0.0

        def until_begun(episode: str) -> float:
            """A program that has a family is given its time from when it has told so."""
            nonlocal waited
            if FAMILY in code and not (tmp_path / "pids").exists():
                waited = time.monotonic() - started
            return waited

        return asyncio.run(episode())

    return go


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie counts as one that does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pid: int, seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_alive(pid)


# ------------------------------------------------------------------ tasks in, answers out


def test_a_command_is_an_agent_like_any_other(run: Run) -> None:
    episode = run("print('thinking'); print(ask(json.load(sys.stdin)['query']))")
    assert (episode.failure, episode.output) == (None, WorkflowOutput(response="ok"))
    (call,) = episode.record.calls
    assert call.trained and not episode.missed


def test_the_task_is_on_stdin_and_in_the_environment(run: Run) -> None:
    task = Task("t", "naïve \ud800?", ({"role": "user", "content": "x"},), {"answer": 42})
    episode = run(
        "told = json.load(sys.stdin); assert told == json.loads(os.environ['AJET_TASK'])\n"
        "ask('x'); print(json.dumps({'response': told}))",
        task=task,
    )
    assert episode.failure is None, episode.error
    assert episode.output.response == {
        "id": "t",
        "query": "naïve \ud800?",
        "messages": [{"role": "user", "content": "x"}],
        "metadata": {"answer": 42},
    }


def test_a_large_task_is_on_stdin_only(run: Run) -> None:
    episode = run(
        "print(ask('x'), len(json.load(sys.stdin)['query']), 'AJET_TASK' in os.environ)",
        task=Task("t", "q" * 1_000_000),
    )
    assert episode.output.response == "ok 1000000 False"


def test_a_task_that_is_not_read_holds_nothing_up(run: Run) -> None:
    assert run("sys.stdin.close(); print(ask('x'))", task=Task("t", "q" * 1_000_000)).output.response == "ok"


def test_the_last_line_may_be_a_whole_output(run: Run) -> None:
    told = {"reward": 0.5, "response": [1], "is_success": True, "metrics": {"m": 2}, "metadata": {"k": "v"}}
    episode = run(f"ask('x'); print({json.dumps(told)!r}); print()")
    assert episode.output == WorkflowOutput(0.5, [1], True, {"k": "v"}, {"m": 2})


@pytest.mark.parametrize("line", ["text", "42", "[1]", '{"answer": 42}', "", "{", "[" * 100_000])
def test_any_other_last_line_is_the_response(line: str) -> None:
    assert read_answer(line) == WorkflowOutput(response=line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"reward": 1, "answer": 2}', "unknown field 'answer'"),
        ('{"reward": "high"}', "the reward 'high'; expected a number"),
        ('{"reward": true}', "the reward True"),
        ('{"is_success": 1}', "is_success 1; expected true or false"),
        ('{"metrics": {"m": "x"}}', "metrics that are not an object of numbers"),
        ('{"metadata": [1]}', "metadata that is not an object"),
    ],
)
def test_an_output_with_faults_names_them(line: str, said: str) -> None:
    with pytest.raises(WorkflowFailed, match=said):
        read_answer(line)


@pytest.mark.whole
def test_endless_output_is_cut_and_only_its_last_line_counts(run: Run) -> None:
    episode = run("ask('x')\nfor _ in range(3000): print('x' * 10_000)\nprint('the end')")
    assert episode.output.response == "the end"
    episode = run(f"ask('x'); print('x' * {MOST_ANSWER + 100_000})")
    assert episode.failure == "workflow:answer" and "longer than" in episode.error


def test_it_runs_in_its_folder_with_arguments_and_without_a_shell(run: Run, tmp_path: Path) -> None:
    spec = f"{shlex.quote(sys.executable)} agent.py 'two words' $HOME ; touch x"
    episode = run("ask('x'); print(json.dumps({'response': [os.getcwd(), *sys.argv[1:]]}))", spec=spec)
    assert episode.output.response == [str(tmp_path.resolve()), "two words", "$HOME", ";", "touch", "x"]


def test_its_key_is_in_the_environment_and_not_on_the_command_line(run: Run) -> None:
    episode = run(
        "line = open('/proc/self/cmdline').read() if os.path.exists('/proc') else ''\n"
        "ask('x'); print(os.environ['AJET_API_KEY'] not in line, os.environ['AJET_API_KEY'] == os.environ['ANTHROPIC_API_KEY'])"
    )
    assert episode.output.response == "True True"


@pytest.mark.whole
@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_a_command_of_another_language(run: Run, tmp_path: Path) -> None:
    (tmp_path / "agent.mjs").write_text(
        "const ask = {model: 'm', messages: [{role: 'user', content: JSON.parse(process.env.AJET_TASK).query}]};\n"
        "const r = await fetch(process.env.OPENAI_BASE_URL + '/chat/completions', {method: 'POST', body: JSON.stringify(ask),\n"
        "  headers: {authorization: 'Bearer ' + process.env.OPENAI_API_KEY}});\n"
        "console.log(JSON.stringify({response: (await r.json()).choices[0].message.content, reward: 1}));\n"
    )
    episode = run("", spec="node agent.mjs")
    assert (episode.failure, episode.output) == (None, WorkflowOutput(1.0, "ok"))


# ------------------------------------------------------------------ failures


def test_without_stderr_the_end_of_stdout_is_shown(run: Run) -> None:
    episode = run("ask('x'); print('the answer was too long'); sys.exit(1)")
    assert "stdout ends: 'the answer was too long'" in episode.error


def test_an_exit_code_is_the_cause_with_the_end_of_stderr(run: Run) -> None:
    episode = run("ask('x'); print('x' * 100_000, file=sys.stderr); sys.exit('no such tool')")
    assert episode.failure == "workflow:exit 1"
    assert "no such tool" in episode.error and len(episode.error) < 2000 and "\n" not in episode.error


def test_the_error_of_a_long_stack_is_shown_not_its_frames(run: Run) -> None:
    said = "AuthError: no such key" + "\\n    at call (file:///work/node_modules/client.mjs:397:26)" * 40
    episode = run(f"ask('x'); sys.exit('{said}')")
    assert "AuthError: no such key" in episode.error and "client.mjs" not in episode.error


def test_a_command_that_fails_before_it_asks_is_told_what_it_is_given(run: Run) -> None:
    asked, silent = run("ask('x'); sys.exit('broken')"), run("sys.exit('broken')")
    assert asked.failure == silent.failure == "workflow:exit 1"
    assert "OPENAI_BASE_URL" in silent.error and "OPENAI_BASE_URL" not in asked.error
    assert asked.failed is not None and asked.failed.remedy.startswith("Fix the program")


def test_a_file_that_is_only_in_the_jobs_folder_is_named(
    run: Run, tmp_path: Path, bench: Any, tokenizer: Any
) -> None:
    (tmp_path / "agent.py").write_text("print(1)")
    workflow = whole(command=["python", "agent.py", "x" * 9999], workdir=tmp_path)
    episode = run_command(bench(ScriptedEngine(tokenizer, lambda r, p: "ok")), workflow)
    assert f"agent.py is in {tmp_path}, " in episode.error and "name {workdir}/agent.py" in episode.error


def test_a_signal_is_the_cause(run: Run) -> None:
    assert run("ask('x'); os.kill(os.getpid(), 9)").failure == "workflow:signal 9"


def test_a_command_that_asks_nothing_is_told_so(run: Run) -> None:
    episode = run("print('done')")
    assert (
        episode.failure == "nothing_captured" and "from OPENAI_BASE_URL and OPENAI_API_KEY" in episode.error
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("cmd:", "workflow.command: name a program, as in cmd:python agent.py"),
        ("cmd:no-such-program-here x", "'no-such-program-here' is not a program that can be run"),
        ("cmd:./absent.sh", "'./absent.sh' is not a program that can be run"),
        ("cmd:./text.sh", "'./text.sh' is not a program that can be run from .*: chmod .x .*text.sh"),
        ("cmd:text.sh", "'text.sh' is not a program that can be run from .*: name it ./text.sh"),
        ("cmd:python 'agent.py", "o closing quotation; quote arguments as in a shell"),
    ],
)
def test_a_command_that_cannot_run_is_refused_at_start(tmp_path: Path, spec: str, said: str) -> None:
    (tmp_path / "text.sh").touch()
    with pytest.raises(ConfigError, match=said):
        short(spec.removeprefix("cmd:"), tmp_path)


# ------------------------------------------------------------------ nothing stays behind


FAMILY = """
import subprocess, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
grandchild = subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
open("pids.part", "w").write(f"{os.getpid()} {child.pid} {grandchild.pid}")
os.rename("pids.part", "pids")
"""


def pids(folder: Path, seconds: float = PATIENCE) -> list[int]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (folder / "pids").exists():
            return [int(p) for p in (folder / "pids").read_text().split()]
        time.sleep(0.01)
    raise AssertionError("the command wrote no pids")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("end", "failure"),
    fast(
        {0, 3},
        [
            ("print('done')", None),
            ("sys.exit(3)", "workflow:exit 3"),
            ("time.sleep(600)", "timeout"),
            ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass", "timeout"),
        ],
    ),
    ids=["done", "fails", "hangs", "will not go"],
)
def test_its_children_end_with_it(run: Run, tmp_path: Path, end: str, failure: str | None) -> None:
    episode = run(f"ask('x')\n{FAMILY}\n{end}", timeout=1.5 if failure == "timeout" else 120.0)
    assert episode.failure == failure
    assert episode.seconds < 60
    assert all(gone(pid) for pid in pids(tmp_path))


@pytest.mark.whole
def test_a_command_that_is_killed_leaves_no_call_and_no_child(run: Run, tmp_path: Path) -> None:
    import threading

    def kill() -> None:
        os.kill(pids(tmp_path)[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    episode = run(f"{FAMILY}\nask('x')", seconds=600.0)
    killer.join()
    assert episode.failure == "workflow:signal 9" and not episode.record.exchanges
    assert all(gone(pid) for pid in pids(tmp_path))


@pytest.mark.whole
def test_a_cancelled_rollout_leaves_no_child(run: Run, tmp_path: Path, bench: Any, tokenizer: Any) -> None:
    (tmp_path / "agent.py").write_text(f"{ASK}\n{FAMILY}\ntime.sleep(600)")
    hook = load_plugins().manager.hook
    workflow = short(f"{shlex.quote(sys.executable)} agent.py", tmp_path)
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))

    async def cancelled() -> None:
        with install(b.capture) as around:
            handles = {"as_base_url": around.gateway.as_base_url}
            runner = EpisodeRunner(
                workflow=workflow,
                answerer=b.answerer(),
                capture=b.capture,
                handles=handles,
                timeout=600.0,
                board=b.board,
                hook=hook,
            )
            task = asyncio.ensure_future(runner.run(Plan("e", "0", Task("t"), 0, 0), 0))
            await asyncio.to_thread(pids, tmp_path)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    assert all(gone(pid) for pid in pids(tmp_path))


@pytest.mark.whole
def test_a_daemon_that_leaves_its_session_does_not_hold_the_episode_up(run: Run, tmp_path: Path) -> None:
    episode = run(
        "ask('x')\nimport subprocess\n"
        "daemon = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True)\n"
        "print(daemon.pid)"
    )
    daemon = int(episode.output.response)
    assert is_alive(daemon)
    os.kill(daemon, signal.SIGKILL)
