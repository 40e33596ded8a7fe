"""Services beside a job: reused, started, watched, stopped by the last that uses them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.services.supervisor import ServiceFailed, exit_code, with_services
from ajet.types import AjetError, ConfigError
from tests.patience import PATIENCE
from tests.program import Program
from tests.tiers import fast

from .conftest import Home, ended, lives, until


def test_a_service_is_started_and_its_whole_process_group_is_stopped(home: Home) -> None:
    with with_services(home.layers(), ["thing"], home.say):
        assert home.healthy()
        server, child = home.pids()
        assert lives(server) and lives(child)
    assert not home.healthy() and ended(server, child)
    assert [line.split(": ")[1].split()[0] for line in home.said] == ["starting", "healthy", "stopped"]


def test_it_is_stopped_when_the_job_fails(home: Home) -> None:
    with pytest.raises(KeyError), with_services(home.layers(), ["thing"]):
        raise KeyError("lost")
    assert not home.healthy()


def test_a_service_that_we_did_not_start_is_used_and_survives(home: Home) -> None:
    process = home.serve()
    with with_services(home.layers("refuse"), ["thing"], home.say):
        pass
    assert process.poll() is None and home.healthy()
    assert "left alone" in home.said[0] and len(home.said) == 1


def test_a_second_job_reuses_it_and_the_last_one_stops_it(home: Home) -> None:
    second = with_services(home.layers(), ["thing"], home.say)
    with with_services(home.layers(), ["thing"]):
        second.__enter__()
        pids = home.pids()
        assert len(pids) == 2, "started once"
    assert home.healthy(), "the second still uses it"
    second.__exit__(None, None, None)
    assert not home.healthy() and ended(*pids)
    assert "another run's" in home.said[0] and "stopped" in home.said[-1]


@pytest.mark.whole
def test_jobs_that_start_at_once_share_one_service(home: Home) -> None:
    home.job(workflow="agent.py:run", run={"services": ["thing"]})
    jobs = [home.ajet("run", "job.yaml", "--set", f"run.dir=runs{i}") for i in range(2)]
    for job in jobs:
        output, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0, output
    until(lambda: not home.healthy())
    assert ended(*home.pids())


@pytest.mark.kept
def test_after_a_killed_run_the_next_one_uses_and_stops_it(home: Home) -> None:
    home.job(workflow="agent.py:waits", run={"services": ["thing"]})
    killed = home.ajet("run", "job.yaml")
    until(home.healthy)
    until(lambda: (home.path / "runs").exists())
    killed.kill()
    killed.wait(PATIENCE)
    assert home.healthy()
    with with_services(home.layers(), ["thing"], home.say):
        assert "another run's" in home.said[0]
    assert not home.healthy() and ended(*home.pids())


@pytest.mark.whole
def test_what_a_killed_run_left_half_started_makes_way(home: Home) -> None:
    home.job("sleep", workflow="agent.py:waits", run={"services": ["thing"]})
    killed = home.ajet("run", "job.yaml")
    line = killed.stdout.readline()  # type: ignore[union-attr]
    pid = int(line.partition("process ")[2].split(",")[0])
    killed.kill()
    killed.wait()
    assert lives(pid)
    with with_services(home.layers(), ["thing"]):
        assert home.healthy() and ended(pid)
    assert not home.healthy()


# ------------------------------------------------------------------ what goes wrong


@pytest.mark.whole
@pytest.mark.parametrize(
    ("workflow", "background"),
    fast({3}, [("waits", False), ("waits", True), ("hangs", False), ("hangs", True)]),
)
def test_a_dying_service_fails_the_run_with_the_end_of_its_log(
    home: Home, workflow: str, background: bool
) -> None:
    home.job(workflow=f"agent.py:{workflow}", service={"secrets": ["MY_TOKEN"]})
    # Jobs that a shell starts with & ignore Ctrl-C.
    ignore = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if background else None
    run = home.start("-m", "ajet", "run", "job.yaml", "--with", "thing", preexec_fn=ignore)
    until((home.path / "began").exists)
    (home.path / "die").touch()
    naps = 0  # of 10 ms: five seconds, longer where the machine is busy
    while run.poll() is None and naps < 500:
        time.sleep(0.01)
        naps += 1
    output, _ = run.communicate(timeout=0 if naps == 500 else PATIENCE)
    assert run.returncode == 1, output
    assert "error: service thing ended with exit 3 while the job ran: out of memory ***" in output
    assert "    serving with *** in" in output and "s3cret" not in output
    assert ended(*home.pids())


@pytest.mark.whole
def test_a_service_of_somebody_else_that_goes_fails_the_run_too(home: Home) -> None:
    process = home.serve()
    with (
        pytest.raises(ServiceFailed, match=r"is gone from http://127.*no job started it"),
        with_services(home.layers(), ["thing"]),
    ):
        process.kill()
        process.wait()
        time.sleep(120)


def test_the_service_is_named_where_its_death_ended_the_job_first(home: Home) -> None:
    with (
        pytest.raises(ServiceFailed, match="ended with signal 9 while the job ran"),
        with_services(home.layers(), ["thing"]),
    ):
        os.kill(home.pids()[0], signal.SIGKILL)
        until(lambda: not lives(home.pids()[0]))
        raise AjetError("all episodes failed")


ZOMBIE = """
import ctypes, os, threading, time
def last():
    time.sleep(0.3)
    os._exit(7)
threading.Thread(target=last).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # exit: of the first thread alone
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="zombies are told by /proc")
def test_a_process_whose_last_threads_are_still_ending_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ZOMBIE])
    until(lambda: not lives(process.pid))  # as any look at it says, though it cannot be waited for yet
    assert exit_code(process) == 7
    assert exit_code(process) == 7


def test_one_that_ends_before_it_is_healthy_is_an_error_with_its_log(home: Home) -> None:
    fault = "ended with exit 1 before it was healthy: error: no licence"
    with pytest.raises(ServiceFailed, match=fault), with_services(home.layers("refuse"), ["thing"]):
        raise AssertionError


@pytest.mark.whole
def test_one_that_is_not_healthy_in_time_is_stopped(home: Home) -> None:
    command = ["sh", "-c", "echo serving; exec sleep 600"]
    layers = home.layers(service={"command": command, "start_timeout": "3s"})
    fault = r"was not healthy at http.* within 3 s: serving"
    with pytest.raises(ServiceFailed, match=fault), with_services(layers, ["thing"], home.say):
        raise AssertionError
    pid = int(next(line for line in home.said if "process" in line).partition("process ")[2].split(",")[0])
    assert ended(pid)


@pytest.mark.whole
def test_one_that_does_not_heed_its_end_is_killed(home: Home) -> None:
    stubborn = "import signal, runpy, sys; signal.signal(15, signal.SIG_IGN); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    command = ["python", "-c", stubborn, "server.py", home.port]
    layers = home.layers(service={"command": command, "stop_timeout": "300ms"})
    with with_services(layers, ["thing"]):
        pids = home.pids()
    assert ended(*pids)


@pytest.mark.parametrize(
    ("service", "fault"),
    [
        ({"command": "python server.py"}, r"services.thing.command: write a list"),
        ({"comand": ["x"]}, r"services.thing.comand: unknown key; did you mean 'command'"),
        ({"health": "127.0.0.1:80"}, r"services.thing.health: expected http://HOST"),
        ({"health": "http://me:word@host/"}, r"services.thing.health: .* without a password"),
        ({"type": "comand"}, r"services.thing.type: unknown service 'comand'"),
        ({"environment": {"API_KEY": "abc"}}, r"services.thing.environment: API_KEY looks like a secret"),
        ({"secrets": ["NOT_SET"]}, r"services.thing.secrets: the environment variable NOT_SET is not set"),
        ({"command": ["no-such-program"]}, r"services.thing.command: cannot be started .*No such file"),
        (
            {"command": ["python", "--token=s3cret-value"], "secrets": ["MY_TOKEN"]},
            r"services.thing.command: contains the value of MY_TOKEN",
        ),
    ],
)
def test_faults_are_named_with_their_place(home: Home, service: Any, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault), with_services(home.layers(service=service), ["thing"]):
        raise AssertionError


def test_a_service_that_nobody_declares_is_an_error_that_lists_the_declared(home: Home) -> None:
    with (
        pytest.raises(
            ConfigError, match=r"services.thin: no such service; did you mean 'thing'.*Known: .*thing"
        ),
        with_services(home.layers(), ["thin"]),
    ):
        raise AssertionError


# ------------------------------------------------------------------ secrets


@pytest.mark.whole
def test_secrets_are_inherited_and_stand_on_no_command_line_nor_in_the_run_folder(home: Home) -> None:
    home.job(workflow="agent.py:waits", run={"services": ["thing"]}, service={"secrets": ["MY_TOKEN"]})
    run = home.ajet("run", "job.yaml")
    until(home.healthy)
    until(lambda: bool(list(home.path.glob("runs/*/job.yaml"))))
    server = home.pids()[0]
    assert b"MY_TOKEN=s3cret-value" in Path(f"/proc/{server}/environ").read_bytes()
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "s3cret" not in commands
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130 and "s3cret" not in output
    assert ended(*home.pids())
    for file in home.path.glob("runs/**/*"):
        assert file.is_dir() or b"s3cret" not in file.read_bytes()


@pytest.mark.whole
def test_its_log_can_be_read_by_its_user_alone(home: Home) -> None:
    with with_services(home.layers(), ["thing"], home.say):
        log = Path(home.said[0].rpartition("log ")[2].rstrip(")"))
        assert log.stat().st_mode & 0o077 == 0 and log.parent.stat().st_mode & 0o077 == 0


# ------------------------------------------------------------------ the commands


Command = Callable[..., str]


@pytest.fixture
def command(home: Home, ajet: Program) -> Command:
    """Run `ajet` in this process; what it prints."""

    def run(*arguments: str) -> str:
        outcome = ajet(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out + outcome.err

    return run


@pytest.mark.parametrize(
    "words",
    [
        ("run", "job.yaml"),
        pytest.param(("run", "job.yaml", "--dry-run"), marks=pytest.mark.slow),
        pytest.param(("check", "job.yaml", "--answers", "script.yaml"), marks=pytest.mark.slow),
        pytest.param(
            ("eval", "job.yaml", "--endpoint", "{service}", "--endpoint-model", "m"), marks=pytest.mark.slow
        ),
    ],
)
def test_every_command_that_runs_a_job_has_services(
    home: Home, command: Command, words: tuple[str, ...]
) -> None:
    home.job()
    words = tuple(word.replace("{service}", home.url) for word in words)
    said = command(*words, "--with", "thing")
    assert "service thing: healthy after" in said and "service thing: stopped" in said
    home.job(run={"services": ["thing"]})
    assert "service thing: healthy after" in command(*words)
    assert len(home.pids()) == 4 and ended(*home.pids())


@pytest.mark.slow
def test_a_resumed_job_starts_its_services_where_the_job_named_them(
    home: Home, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.job()
    command("run", "job.yaml", "--with", "thing")
    (job,) = home.path.glob("runs/*/job.yaml")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    said = command("run", str(job), "--set", "run.dir=again")
    assert "service thing: healthy after" in said and len(home.pids()) == 4
