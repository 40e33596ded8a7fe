"""A workflow of Trinity that runs the agent of an AgentJet job, in an existing Trinity cluster.

    buffer:
      explorer_input:
        default_workflow_type: ajet_trinity.remote.workflow.AgentWorkflow
        taskset: {path: tasks, workflow_args: {job: /path/to/job.yaml}}
    explorer:
      rollout_model: {enable_openai_api: true}

Trinity chooses the tasks, computes the advantages and trains; the agent's LLM calls go to its vLLM, token by token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from trinity.common.experience import EID, Experience
from trinity.common.workflows import Workflow

from ajet import ConfigError, Job
from ajet.rollout.episode import Episode
from ajet.tracker.timelines import Timeline
from ajet_trinity.explorer import Agent, ServedEngine

_agents: dict[tuple[Path, str], Agent] = {}
"""Of this process, by job file and address of the model."""


class AgentWorkflow(Workflow):
    """Runs a group of episodes. Each timeline becomes an experience with its episode's reward; experiences of an episode have one
    ``run`` and different ``step``."""

    is_async = True
    can_repeat = True

    def __init__(self, *, task: Any, model: Any, auxiliary_models: Any = None) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.repeat_times = task.repeat_times or 1
        self.job_file = job_file_of(task)

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Run so many episodes, numbered from ``run_id_base``."""
        self.repeat_times, self.run_id_base = repeat_times, run_id_base

    async def run_async(self) -> list[Experience]:
        """The experiences of the group. Raises AjetError if all episodes failed."""
        await self.model.prepare()  # it learns the address of its server
        agent = self._agent()
        agent.engine.version = await self.model.model_version_async  # type: ignore[attr-defined]
        name = f"{self.task.batch_id}/{self.task.task_id}"
        episodes = await agent.group(self.task.raw_task, name, self.repeat_times, self.run_id_base)
        return [
            _experience(line, episode, self.run_id_base + run, step)
            for run, episode in enumerate(episodes)
            for step, line in enumerate(agent.timelines(episode))
        ]

    def _agent(self) -> Agent:
        key = (self.job_file, self.model.api_address)
        if key not in _agents:
            _agents[key] = Agent.of(self.job_file, self._engine)
        return _agents[key]

    def _engine(self, job: Job) -> ServedEngine:
        from transformers import AutoConfig, AutoTokenizer

        config, model = self.model.config, self.model.model_path
        if config.temperature != job.config.rollout.sampling.temperature:
            raise ConfigError(
                f"{self.job_file}: rollout.sampling.temperature is {job.config.rollout.sampling.temperature:g}, but Trinity computes "
                f"logprobs at model.temperature ({config.temperature:g}); set both to one value."
            )
        return ServedEngine(
            self.model.api_address,
            self.model.api_key,
            model,
            AutoTokenizer.from_pretrained(model, trust_remote_code=False),
            AutoConfig.from_pretrained(model, trust_remote_code=False).model_type,
            config.max_model_len,
        )


def job_file_of(task: Any) -> Path:
    """The job file that a task names. Raises ConfigError."""
    file = task.workflow_args.get("job")
    if not file or not Path(file).is_file():
        raise ConfigError(
            "workflow_args.job",
            f"{file or 'is missing'}; name the job file of the agent, which every node of Trinity must see.",
        )
    return Path(file).resolve()


def _experience(line: Timeline, episode: Episode, run: int, step: int) -> Experience:
    """A timeline up to its last trained token, with the gaps between its calls masked."""
    trained = line.mask.nonzero()[0]
    prompt, end = int(trained[0]), int(trained[-1]) + 1
    mask = torch.from_numpy(line.mask[prompt:end].copy())
    logprobs = torch.from_numpy(line.logprobs[prompt:end].copy())
    metrics = {name: float(value) for name, value in episode.metrics.items()}
    return Experience(
        eid=EID(run=run, step=step),
        tokens=torch.from_numpy(line.token_ids[:end].copy()),
        prompt_length=prompt,
        logprobs=torch.where(mask, logprobs, 0.0),
        action_mask=mask,
        reward=float(episode.reward),
        metrics={"reward": float(episode.reward), **metrics},
    )
