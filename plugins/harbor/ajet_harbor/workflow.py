"""One of Harbor's agents in one of its sandboxes, one trial an episode."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, model_validator

from ajet import ConfigError, Task, Tuner, WorkflowOutput, WorkflowPlugin
from ajet.interfaces.workflow import EpisodeEndpoint, WorkflowFailed
from ajet_harbor import trials
from ajet_harbor.connection import WITHOUT_MODEL, agent_settings, check, default_model, merged
from ajet_harbor.judge import KEY, weighed
from ajet_harbor.versions import harbor

OURS = (
    "task",
    "trial_name",
    "trials_dir",
    "agent.name",
    "agent.model_name",
    "agent.base_url",
    "environment.type",
)
"""Fields of Harbor's trial that this workflow sets."""
OVERLAYS = Path(__file__).parent / "compose"
_SECONDS_TO_CONNECT = 20
_PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")


class HarborWorkflow(WorkflowPlugin):
    """Runs a trial of Harbor for each episode: an agent, unchanged, in a sandbox, then the task's verifier.

    Its tasks come from the reader `harbor`. The reward is the verifier's; the judge `harbor` weighs several.
    """

    name = "harbor"

    agent: str = Field(
        description="One of Harbor's agents, such as mini-swe-agent, or module:Class of your own."
    )
    environment: str = Field("docker", description="One of Harbor's environments: docker, podman, daytona, …")
    model: str = Field(
        "",
        description="What the agent calls its model: openai/NAME, anthropic/NAME or gemini/NAME, after the API that it is to speak; "
        "default: the agent's own provider of these, else openai/policy.",
    )
    network: Literal["host", "own"] = Field(
        "host",
        description="The network of a container: this machine's, or the one that Harbor makes for it, from which the agent reaches "
        "only a gateway with an address of its own (rollout.gateway_address).",
    )
    trial: dict[str, Any] = Field(
        {},
        description="Further settings of Harbor's trial, in its own words: {agent: {kwargs: {…}, env: {…}, override_timeout_sec: 600}, "
        "environment: {…}, verifier: {…}}.",
    )
    trials_dir: Path | None = Field(
        None,
        description="Folder that keeps the trials; default: `trials` in the run folder; without a run, a temporary folder.",
    )
    _trials: trials.Trials | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _is_known_to_harbor(self) -> Self:
        if taken := [key for key in OURS if _has(self.trial, key)]:
            raise ValueError(f"trial.{taken[0]} is set by the workflow: use its own fields, and the reader's")
        known = [kind.value for kind in harbor().EnvironmentType]
        if self.environment not in known:
            raise ValueError(f"environment {self.environment!r} is none of Harbor's: {', '.join(known)}")
        check(self.agent, self.model or default_model(self.agent))
        self._any_trial()
        return self

    @property
    def is_remote(self) -> bool:
        """See `WorkflowPlugin.is_remote`."""
        return self.calls_model and not self._shares_network

    @property
    def calls_model(self) -> bool:
        """See `WorkflowPlugin.calls_model`."""
        return self.agent not in WITHOUT_MODEL

    @property
    def seconds(self) -> float | None:
        """See `WorkflowPlugin.seconds`."""
        limit = merged({"agent": {"override_timeout_sec": None}}, self.trial)["agent"]["override_timeout_sec"]
        return None if limit is None else float(limit)

    def seconds_of(self, task: Task) -> float | None:
        """See `WorkflowPlugin.seconds_of`. As Harbor computes it."""
        trial = self._any_trial()
        limit = trial.agent.override_timeout_sec or task.metadata.get("agent_seconds")
        if limit is None:
            return None
        longest = trial.agent.max_timeout_sec or limit
        multiplier = trial.agent_timeout_multiplier
        return float(min(limit, longest) * (trial.timeout_multiplier if multiplier is None else multiplier))

    @property
    def _shares_network(self) -> bool:
        return self.environment in trials.ENGINES and self.network == "host"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Removes what killed processes have left, and at the end what this job has. Raises ConfigError if the environment cannot be
        used on this machine."""
        live = self.model_copy()
        await asyncio.to_thread(self._check_environment)
        live._trials = opened = await asyncio.to_thread(trials.Trials, self.environment)
        try:
            yield live
        finally:
            await asyncio.to_thread(opened.end)

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        """See `WorkflowPlugin.execute`. Raises WorkflowFailed for a trial whose reward says nothing about the agent."""
        assert self._trials, "it runs in a block `async with workflow.open()`"
        folder = task.metadata.get("path")
        if not isinstance(folder, str) or not Path(folder, "task.toml").is_file():
            raise WorkflowFailed(
                "no_task",
                f"task {task.id} names no folder with a task.toml; read tasks with the reader harbor",
            )
        if self._shares_network:
            check_network(task, harbor().Task(folder).config)
        endpoint = tuner.as_base_url()
        config = self._config(Path(folder), self._trials.new_name(task.id), endpoint)

        async def connects(trial: Any) -> None:
            if self.calls_model:
                await check_connection(trial.agent_environment, endpoint)

        result, kept = await self._trials.run(config, connects)
        return output_of(result, kept)

    def _any_trial(self) -> Any:
        """Harbor's configuration without a task. Raises ValueError where ``trial`` does not fit."""
        return self._config(Path(), "check", EpisodeEndpoint("http://127.0.0.1:1/v1", "check"))

    def _config(self, folder: Path, name: str, endpoint: EpisodeEndpoint) -> Any:
        """Harbor's configuration of a trial. Raises ValueError where ``trial`` does not fit."""
        environment: dict[str, Any] = {"type": self.environment}
        if self.environment in trials.ENGINES:
            environment["extra_docker_compose"] = [OVERLAYS / f"{self.network}.yaml"]
        if self.environment == "podman":  # podman-compose would remove images that others use
            environment["delete"] = False
        model = self.model or default_model(self.agent)
        ours = {
            "task": {"path": folder},
            "trial_name": name,
            "trials_dir": self.trials_dir or (self._trials.folder() if self._trials else Path()),
            "agent": {"name": self.agent, **agent_settings(self.agent, model, endpoint)},
            "environment": environment,
            # The agent has not even started.
            "override_error_policy": {
                "GatewayUnreachable": {"should_grade": False, "has_valid_reward": False}
            },
        }
        return harbor().TrialConfig.model_validate(merged(ours, self.trial))

    def _check_environment(self) -> None:
        settings = self._any_trial().environment
        # After `harbor`, which keeps it off the network.
        from harbor.environments.factory import EnvironmentFactory

        try:
            EnvironmentFactory.run_preflight(settings.type, settings.import_path, settings.kwargs)
        except (SystemExit, ValueError) as error:
            raise ConfigError(
                "workflow", f"environment {self.environment}: {' '.join(str(error).split())}"
            ) from None


class GatewayUnreachable(Exception):
    """The sandbox cannot connect to the gateway, so its agent would wait for minutes and fail."""


async def check_connection(sandbox: Any, endpoint: EpisodeEndpoint) -> None:
    """Raise GatewayUnreachable if a sandbox cannot connect to the gateway. Without bash in its image, nothing is known."""
    url = urlsplit(endpoint.base_url)
    port = url.port or (443 if url.scheme == "https" else 80)
    connect = shlex.quote(f"exec 3<>/dev/tcp/{url.hostname}/{port}")
    done = await sandbox.exec(
        f"command -v bash >/dev/null || exit 0; timeout {_SECONDS_TO_CONNECT} bash -c {connect}"
    )
    if done.return_code:
        said = " ".join((done.stderr or done.stdout or "no answer").split())[-200:]
        raise GatewayUnreachable(
            f"the sandbox cannot reach its model at {url.scheme}://{url.netloc} ({said}); set rollout.gateway_address"
        )


def check_network(task: Task, config: Any) -> None:
    """Raise WorkflowFailed for a task that limits the network of its sandbox, which gets this machine's."""
    for part in (config.environment, config.agent):
        if part.network_mode and part.network_mode.value != "public":
            raise WorkflowFailed(
                "network",
                f"task {task.id} allows its sandbox the network {part.network_mode.value!r}, but `network: host` would give it this "
                "machine's. Set network: own in the job's workflow.",
            )


def output_of(result: Any, kept: Path) -> WorkflowOutput:
    """What a trial means for its episode. Raises WorkflowFailed if its reward says nothing about the agent."""
    raised = result.exception_info
    if not result.reward_valid:
        cause = raised.exception_type if raised else "no_reward"
        said = " ".join(raised.exception_message.split()) if raised else "the verifier gave no reward"
        raise WorkflowFailed(cause, f"{said[-1000:]} (the trial: {kept})")
    rewards = {name: float(value) for name, value in result.verifier_result.rewards.items()}
    response: dict[str, Any] = {"trial": str(kept), "rewards": rewards}
    if (trajectory := kept / "agent" / "trajectory.json").is_file():
        response["trajectory"] = str(trajectory)
    if raised:  # the agent's time was over, say; its work counts
        response["ended"] = raised.exception_type
    try:
        reward = weighed(rewards)
    except WorkflowFailed:  # the judge has to say which
        reward = None
    parts = {name: value for name, value in rewards.items() if name != KEY}
    success = None if reward is None else reward >= 1
    return WorkflowOutput(reward, response, success, {"trial": str(kept)}, {**seconds_of(result), **parts})


def seconds_of(result: Any) -> dict[str, float]:
    """How long each phase of a trial took."""
    seconds = {}
    for phase in _PHASES:
        timing = getattr(result, phase)
        if timing and timing.started_at and timing.finished_at:
            seconds[f"seconds_{phase}"] = (timing.finished_at - timing.started_at).total_seconds()
    return seconds


def _has(settings: Mapping[str, Any], key: str) -> bool:
    value: Any = settings
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True
