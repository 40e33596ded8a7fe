"""The program itself: help that is quick, exit codes, plugins that misbehave."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from ajet import ConfigError, cli
from tests.patience import PATIENCE

from .conftest import Folder

HEAVY = ("torch", "ray", "transformers", "openai", "vllm", "verl", "renderers", "rich")
LIGHT = [["--help"], ["plugins"], ["config", "explain"], ["run", "--help"]]


def in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.whole
def test_light_commands_import_nothing_heavy() -> None:
    code = "import sys; from ajet.cli import run_program\n"
    code += f"for words in {LIGHT}:\n    run_program(words)\n"
    code += f"    print('heavy:', words, [m for m in {HEAVY} if m in sys.modules])"
    told = [line for line in in_new_process(code).splitlines() if line.startswith("heavy: ")]
    assert told == [f"heavy: {words} []" for words in LIGHT]


@pytest.mark.whole
def test_help_imports_nothing_that_only_a_run_needs() -> None:
    """What makes it quick, on a machine of any speed; `test_help_is_quick_with_all_plugins` measures the time."""
    later = ("pydantic", "numpy", "httpx", "httpx2", "httptools", "uvicorn", "filelock", "jinja2")
    code = "import sys; from ajet.cli import run_program; run_program(['--help'])\n"
    code += f"print('later:', [m for m in {later} if m in sys.modules])"
    assert in_new_process(code).splitlines()[-1] == "later: []"


@pytest.mark.slow
def test_help_is_quick_with_all_plugins() -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "ajet", "--help"], check=True, capture_output=True, timeout=PATIENCE
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The processor's time, of the fastest: other work on the machine has less of a say in it, but it has one.
    # Half a second is the target on an idle machine of the usual speed; twice that catches a heavy import on any.
    assert any(seconds() <= 1.0 for _ in range(30))


def test_help_lists_the_commands(folder: Folder) -> None:
    outcome = folder.ajet("--help")
    assert outcome.code == 0
    assert all(
        f"\n  {name} " in outcome.out for name in ("run", "eval", "sft", "plugins", "config", "doctor")
    )


@pytest.mark.parametrize("command", [(), ("plugins",), ("config",)])
def test_lists_of_commands_say_whole_sentences(folder: Folder, command: tuple[str, ...]) -> None:
    listed = folder.ajet(*command, "--help").out.partition("Commands:")[2]
    assert listed and "..." not in listed


@pytest.mark.parametrize(
    ("switch", "said"),
    [
        ("--with-ray", "--with ray"),
        ("--with-logview", "--with logview"),
        ("--with-appworld", "--with appworld"),
    ],
)
def test_after_run_switches_of_the_earlier_agentjet_run_the_command_that_they_mean(
    folder: Folder, switch: str, said: str
) -> None:
    outcome = folder.ajet("run", "x.yaml", switch, "--steps", "3")
    command, fault = outcome.err.splitlines()
    assert command == f"ajet {switch} is of the earlier AgentJet. This runs: ajet run x.yaml --steps 3 {said}"
    assert outcome.code == 2 and fault == "error: x.yaml: no such job file."


def test_a_client_without_a_key_is_told_that_any_will_do(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("keyless.py", "import openai\nclient = openai.OpenAI()\ndef run(task):\n    pass\n")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    outcome = folder.ajet("check", "job.yaml", "--workflow", "keyless.py:run")
    assert outcome.code == 2 and "any key will do: OPENAI_API_KEY=unset" in outcome.err


def test_a_command_that_is_interrupted_early_says_so(folder: Folder) -> None:
    folder.write("stopped.py", "raise KeyboardInterrupt\n")
    assert folder.ajet("run", "job.yaml", "--workflow", "stopped.py:run").err.endswith("interrupted\n")


def test_version(folder: Folder) -> None:
    assert folder.ajet("--version").out.startswith("ajet ")


@pytest.mark.whole
@pytest.mark.parametrize("closed", ["2>&-", ">&-"])
def test_a_closed_stream_is_no_error(closed: str) -> None:
    command = f'exec "{sys.executable}" -m ajet --version {closed}'
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("ajet ") == (closed == "2>&-")


@pytest.mark.whole
def test_an_interrupted_command_ends_although_a_thread_hangs_and_nobody_reads_its_output() -> None:
    code = (
        "import threading, time\n"
        "from ajet import cli\n"
        "def command(arguments):\n"
        "    threading.Thread(target=time.sleep, args=(3600,)).start()\n"
        "    print('text that is not flushed yet')\n"
        "    return cli.INTERRUPTED\n"
        "cli.run_program, cli.SECONDS_TO_END = command, 0.1\n"
        "cli.main()"
    )
    command = [sys.executable, "-E", "-c", code]  # whatever PYTHONUNBUFFERED says
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    try:
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()


@pytest.mark.whole
def test_a_finished_command_does_not_wait_for_ever_for_what_an_agent_has_left(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import multiprocessing, threading, time\n"
        "def hangs(): time.sleep(3600)\n"
        "def run():\n"
        "    threading.Thread(target=hangs, name='worker').start()\n"
        "    child = multiprocessing.get_context('fork').Process(target=hangs, name='child')\n"
        "    child.start()\n"
        "    print(child.pid)\n"
    )
    code = (
        "import agent\n"
        "from ajet import cli\n"
        "cli.run_program, cli.SECONDS_TO_END = lambda arguments: agent.run() or 3, 0.5\n"
        "cli.main()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    child = int(done.stdout)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line == (
        f"ended without waiting longer for what the agent left: thread worker at {agent}:2; process {child} (child)"
    )
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_unknown_option_is_exit_code_2(folder: Folder) -> None:
    outcome = folder.ajet("run", "--stepz", "3")
    assert outcome.code == 2 and "--stepz" in outcome.err


def test_a_command_of_ours_that_is_not_installed_says_what_to_install(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet.own_plugins.EXTRAS", {"hangar": {"command": "fly"}})
    outcome = folder.ajet("fly", "--high")
    assert outcome.code == 2
    assert (
        outcome.err
        == "error: the command `ajet fly` is not installed. It comes with pip install 'ajet[hangar]'.\n"
    )


def test_what_a_plugin_that_is_not_installed_would_read_says_what_to_install(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangar = {
        "command": "config.from-glider",
        "module": "gliders",
        "name": "Glider",
        "option": "--glide",
        "section": "wings",
    }
    monkeypatch.setattr("ajet.own_plugins.EXTRAS", {"hangar": hangar})
    folder.write("wings.yaml", "wings: {span: 15}\n")
    for words in (["config", "from-glider", "wings.yaml"], ["--glide", "far"], ["run", "wings.yaml"]):
        outcome = folder.ajet(*words)
        assert outcome.code == 2 and outcome.err.count("\n") == 1
        assert outcome.err.endswith("It comes with pip install 'ajet[hangar]'.\n")
    for line in ("from ajet.plugin_names import Glider", "from ajet.gliders.big import Glider"):
        with pytest.raises(
            ConfigError, match=r"is not installed\. It comes with pip install 'ajet\[hangar\]'"
        ):
            exec(line, {})


def test_a_bug_is_shown_with_its_traceback_and_exit_code_1(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("ajet.runs.jobs.prepare", broken)
    outcome = folder.ajet("run", "job.yaml")
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: RuntimeError: two lines. This is a bug")


def greet(name: str = "you") -> None:
    """Say hello."""
    print(f"hello {name}")


group = typer.Typer(help="Commands about cats.")


@group.callback()
def cats() -> None:
    """Commands about cats."""


@group.command()
def count() -> None:
    """Count them."""
    print("9 lives")


def with_command(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Let an installed plugin have the entry point ``extra = value`` in the group of commands."""
    entry = importlib.metadata.EntryPoint("extra", value, "ajet.commands")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    monkeypatch.setattr(cli, "_commands", cli._commands.__wrapped__)  # which other tests have cached


@pytest.mark.parametrize(
    ("value", "words", "printed"),
    [("greet", ["--name", "Mia"], "hello Mia\n"), ("group", ["count"], "9 lives\n")],
)
def test_a_plugin_adds_a_command_or_a_group_of_commands(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, value: str, words: list[str], printed: str
) -> None:
    with_command(monkeypatch, f"{__name__}:{value}")
    assert folder.ajet("extra", *words).out == printed


def test_a_plugin_that_cannot_add_its_command_breaks_no_other(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_command(monkeypatch, f"{__name__}:missing")
    outcome = folder.ajet("--version")
    assert outcome.code == 0
    assert f"warning: the command extra ({__name__}:missing) is missing: AttributeError" in outcome.err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "error: out of memory. Free some"),
        (RuntimeError("can't start new thread"), "error: out of memory (can't start new thread)"),
        (
            OSError(28, "No space left on device", "/disk/x"),
            "error: /disk/x: No space left on device. Free some",
        ),
        (OSError(24, "Too many open files"), "error: Too many open files. Raise the limit on open files"),
    ],
)
def test_a_limit_of_the_machine_is_one_line_with_its_remedy_and_no_bug(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("ajet.runs.jobs.prepare", fails)
    outcome = folder.ajet("run", "job.yaml")
    assert outcome.code == 1
    assert outcome.err.startswith(said) and len(outcome.err.splitlines()) == 1 and "bug" not in outcome.err


def test_a_terminal_without_a_character_shows_a_question_mark() -> None:
    code = "from ajet.cli import _open_streams; _open_streams(); print('a · b')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "a ? b\n", done.stderr
