"""Which errors restart a run with `run.restarts`, what is checked on each node, and which variables nodes get."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, NodeDiedError, OwnerDiedError, RayTaskError

from ajet.interfaces.backbone import MachineFailed
from ajet.interfaces.progress import Silent
from ajet.learning.loop import NotFinite
from ajet.learning.rollouts import ValidationFailed
from ajet.types import AjetError, ConfigError, ContractBroken
from ajet_verl import cluster, launch
from ajet_verl.cluster import DISTRIBUTIONS, ClusterNode, Facts, forwarded, inspection, problems, refuse
from ajet_verl.failures import cause_of, is_machine_failure, why
from tests.plugins.verl.test_alignment import received
from tests.plugins.verl.test_patience import recorder_in, run_of, verl_ends  # noqa: F401


class EngineDeadError(Exception):
    """vLLM's, by its name."""


def raised(cause: BaseException) -> BaseException:
    """An error as `ray.get` raises it when a task has raised it."""
    text = "".join(traceback.format_exception(cause))
    sent = RayTaskError("run", text, cause, "ray::run", 1, "10.0.0.1")
    error: BaseException = sent.as_instanceof_cause()
    return error


def died() -> ActorDiedError:
    return ActorDiedError(
        ActorDiedErrorContext(
            class_name="Worker", actor_id=b"0" * 16, node_ip_address="10.0.0.2", error_message="gone"
        )
    )


def died_in_init() -> ActorDiedError:
    return ActorDiedError(RayTaskError("__init__", "Traceback", ValueError("bad"), "ray::W", 1, "10.0.0.1"))


def test_a_broken_contract_is_found_in_what_ray_has_wrapped_around_it() -> None:
    broken = cause_of(raised(ContractBroken("the judge is wrong in every episode")), ContractBroken)
    assert isinstance(broken, ContractBroken) and cause_of(raised(ValueError("no")), ContractBroken) is None


LOST: dict[str, Callable[[], BaseException]] = {
    "an actor": died,
    "an actor of a worker": lambda: raised(raised(died())),
    "a node": lambda: raised(NodeDiedError("node 10.0.0.2 died")),
    "an object's owner": lambda: raised(OwnerDiedError("0" * 56, None, "")),
    "vLLM's engine": lambda: raised(raised(EngineDeadError("EngineCore encountered an issue."))),
}
WRONG: dict[str, Callable[[], BaseException]] = {
    "a key": lambda: raised(ConfigError("train.steps: wrong")),
    "all episodes failed": lambda: raised(raised(AjetError("nothing to train on: all episodes failed"))),
    "memory of a GPU": lambda: raised(RuntimeError("CUDA out of memory")),
    "an actor's own error": died_in_init,
    "that of a worker": lambda: raised(died_in_init()),
}


@pytest.mark.parametrize("name", LOST)
def test_a_lost_node_server_or_process_is_a_failure_of_the_machine(name: str) -> None:
    assert is_machine_failure(LOST[name]())


def test_the_line_names_what_was_lost_or_the_error_itself() -> None:
    actor = "ActorDiedError: The actor died unexpectedly before finishing this task., class_name: Worker, ip: 10.0.0.2, gone"
    assert why(died()) == why(raised(died())) == why(raised(raised(died()))) == actor
    assert why(LOST["vLLM's engine"]()) == "EngineDeadError: EngineCore encountered an issue."
    assert why(WRONG["a key"]()) == "ConfigError: train.steps: wrong"


@pytest.mark.parametrize("name", WRONG)
def test_an_error_of_the_user_is_none(name: str) -> None:
    assert not is_machine_failure(WRONG[name]())


@pytest.mark.parametrize(
    ("errors", "kind"), [(LOST, MachineFailed), (WRONG, AjetError)], ids=["lost", "wrong"]
)
def test_verls_error_becomes_one_that_restarts_or_one_that_does_not(
    errors: dict[str, Callable[[], BaseException]],
    kind: type[AjetError],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for make in errors.values():
        error = make()

        def fails(config: Any, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(launch, "run_verl", fails)
        with pytest.raises(AjetError, match=r"The traceback is in .*error\.txt") as found:
            run_of(tmp_path, recorder_in(tmp_path), lambda: None).execute()
        assert type(found.value) is kind
        assert not isinstance(found.value, MachineFailed) or found.value.run_dir == tmp_path


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            FloatingPointError("step 3: the loss is nan"),
            NotFinite,
            "the loss is nan.*lower train.learning_rate",
        ),
        (ValidationFailed("all 3 episodes failed"), ValidationFailed, "all 3 episodes failed"),
    ],
)
def test_a_ruined_model_ends_the_run_as_on_the_backbone_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[AjetError], text: str
) -> None:
    def fails(config: Any) -> None:
        raise raised(raised(error))

    monkeypatch.setattr(launch, "run_verl", fails)
    with pytest.raises(kind, match=text):
        run_of(tmp_path, recorder_in(tmp_path), lambda: None).execute()


def test_a_collapsed_reward_is_a_warning_and_no_success(tmp_path: Path, verl_ends: threading.Event) -> None:  # noqa: F811
    recorder, said = recorder_in(tmp_path), list[str]()

    def polled() -> None:
        if verl_ends.is_set():  # a busy machine looks once more before verl's thread has ended
            return
        for step, (reward, share) in enumerate([(0.2, 0.3), (0.2, 0.3), (0.0, 1.0), (0.0, 1.0)], 1):
            metrics = {"reward": reward, "groups": 8.0, "groups_zero_advantage": share}
            recorder.metrics("train", step, metrics)
        recorder.metrics("validation", 4, {"episodes": 3.0, "episodes_failed": 3.0})
        verl_ends.set()

    run = run_of(tmp_path, recorder, polled)
    run._job.progress.say = said.append
    run.listeners.log = lambda *_: None
    run.execute()
    assert any(line.startswith("warning: step 3: the reward has collapsed") for line in said)
    assert "lower train.learning_rate" in run.ruined(SimpleNamespace(after={"reward": 0.0}))
    assert not run.ruined(SimpleNamespace(after={"reward": 0.1}))


def test_dead_servers_and_a_run_without_progress_restart(
    tmp_path: Path,
    verl_ends: threading.Event,  # noqa: F811
) -> None:
    recorder = recorder_in(tmp_path)
    dead = run_of(tmp_path, recorder, lambda: recorder.fail("no inference server is left. a: died"))
    with pytest.raises(MachineFailed, match="no inference server is left") as found:
        dead.execute()
    assert found.value.run_dir == tmp_path
    with pytest.raises(MachineFailed, match=r"no progress for 2 s \(backbone\.verl\.patience\)"):
        run_of(tmp_path, recorder_in(tmp_path), lambda: None).execute()


def test_dead_servers_are_the_cause_even_if_verl_fails_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recorder_in(tmp_path)

    def fails(config: Any) -> None:
        time.sleep(0.3)  # until the first look begins, which then ends with verl
        raise raised(AjetError("nothing to train on: 17 groups in turn had no rows"))

    monkeypatch.setattr(launch, "run_verl", fails)
    monkeypatch.setattr(launch, "POLL_SECONDS", 30.0)  # verl's thread has ended at the first look
    after_the_first_look = lambda: recorder.fail("no inference server is left. a: died")  # noqa: E731
    with pytest.raises(MachineFailed, match="no inference server is left"):
        run_of(tmp_path, recorder, after_the_first_look).execute()


# --------------------------------------------------------------------------- nodes

NODE = ClusterNode("gpu-2 (10.0.0.2)", has_gpus=True)
RUN = Path("/runs/one")
OWN = Facts("content", True, {"verl": "0.9.1", "torch": "2.11.0+cu130", "vllm": "0.24.0"})


def test_a_node_like_the_drivers_has_no_problem() -> None:
    assert not list(problems(NODE, OWN, OWN, RUN))
    other_build = replace(OWN, versions={**OWN.versions, "torch": "2.11.0+cpu", "vllm": None})
    assert not list(problems(replace(NODE, has_gpus=False), other_build, OWN, RUN)), "it needs no vLLM"


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            replace(OWN, content=None),
            "node gpu-2 (10.0.0.2) does not see the run folder /runs/one of the node of `ajet run`: set run.dir to a folder "
            "on a disk that all nodes share.",
        ),
        (
            replace(OWN, is_writable=False),
            "node gpu-2 (10.0.0.2) cannot write into the run folder /runs/one: give the user of its Ray processes the "
            "permission.",
        ),
        (
            replace(OWN, versions={**OWN.versions, "verl": "0.9.0"}),
            "node gpu-2 (10.0.0.2) has verl 0.9.0, but the node of `ajet run` has 0.9.1: install the same environment on all "
            "nodes, and restart Ray there.",
        ),
        (
            replace(OWN, versions={**OWN.versions, "vllm": None}),
            "node gpu-2 (10.0.0.2) does not have vllm, but the node of `ajet run` has 0.24.0: install the same environment on "
            "all nodes, and restart Ray there.",
        ),
    ],
    ids=["folder", "permission", "version", "missing"],
)
def test_a_problem_is_one_line_with_the_node_and_the_remedy(facts: Facts, line: str) -> None:
    assert list(problems(NODE, facts, OWN, RUN)) == [line]


def test_one_problem_is_the_error_and_several_are_printed_before_it() -> None:
    class Said(Silent):
        def __init__(self) -> None:
            self.lines: list[str] = []

        def say(self, text: str) -> None:
            self.lines.append(text)

    said = Said()
    refuse([], said)
    with pytest.raises(ConfigError, match=r"^backbone verl: node a has no disk$"):
        refuse(["node a has no disk"], said)
    assert not said.lines
    with pytest.raises(ConfigError, match="the nodes of the cluster have the 2 problems above"):
        refuse(["one", "two"], said)
    assert said.lines == ["one", "two"]


def test_a_node_without_this_package_can_be_inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = cloudpickle.dumps(inspection())
    for name in ("ajet", "ajet_verl", "ajet_verl.cluster"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it is an error
    (tmp_path / "shared").write_text("content")
    inspect = cloudpickle.loads(sent)
    facts = Facts(**inspect(str(tmp_path / "shared"), DISTRIBUTIONS))
    assert facts.content == "content" and facts.is_writable
    assert facts.versions["verl"] == "0.9.1" and facts.versions["vllm"]
    assert inspect(str(tmp_path / "missing"), (("no-such-package",),)) == {
        "content": None,
        "is_writable": True,
        "versions": {"no-such-package": None},
    }


# --------------------------------------------------------------------------- variables

VARIABLES = {
    "OPENAI_API_KEY": "k",
    "HF_TOKEN": "t",
    "NCCL_DEBUG": "INFO",
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "VLLM_HOST_IP": "10.0.0.1",
    "HF_HOME": "/scratch",
    "TORCH_HOME": "/scratch",
    "PATH": "/bin",
    "RAY_ADDRESS": "head:6379",
    "RAY_AUTH_TOKEN": "secret",
    "DATABASE_URL": "db",
    "MY_ONE": "1",
}


def test_keys_and_settings_are_forwarded_and_what_belongs_to_a_node_is_not() -> None:
    known = {
        name: VARIABLES[name] for name in ("OPENAI_API_KEY", "HF_TOKEN", "NCCL_DEBUG", "VLLM_LOGGING_LEVEL")
    }
    assert forwarded(VARIABLES, ()) == known
    assert forwarded(VARIABLES, ("DATABASE_URL", "MY_*", "HF_HOME")) == {
        **known,
        "DATABASE_URL": "db",
        "MY_ONE": "1",
        "HF_HOME": "/scratch",
    }
    with pytest.raises(
        ConfigError, match=r"^backbone\.verl\.environment: DATABASE_URI is not set where `ajet run`"
    ):
        forwarded(VARIABLES, ("DATABASE_URI",))


def test_the_users_variables_are_added_to_verls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # verl leaves out what is set here, as if every process inherited it.
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    config = received(tmp_path)
    given = {"env_vars": {"MINE": 1, "HF_TOKEN": "other"}, "working_dir": None}
    got = cluster._runtime_env(config, given, {"NCCL_DEBUG": "INFO", "HF_TOKEN": "t"})
    variables = got["env_vars"]
    assert variables["MINE"] == "1" and variables["HF_TOKEN"] == "other"
    assert variables["NCCL_DEBUG"] == "INFO" and variables["TRANSFER_QUEUE_ENABLE"] == "1"
    assert "VLLM_DISABLE_COMPILE_CACHE" in variables and "VERL_FULL_DETERMINISM" in variables
