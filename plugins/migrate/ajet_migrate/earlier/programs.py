"""Classes of the earlier AgentJet, over today's tasks and tuner.

A subclass of `Workflow` gets a `WorkflowTask` and an `AjetTuner`, one of `BaseJudge` a `WorkflowTask`. What today's AgentJet does not
have is refused when a program asks for it, with the form of today: by ContractBroken, which ends the run.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from ajet import ConfigError, ContractBroken, JudgeOutput, Task, WorkflowOutput
from ajet.interfaces.judge import FunctionJudge
from ajet.interfaces.workflow import LoadedWorkflow, make_workflow
from ajet_migrate.earlier.job_file import KEYS


class Workflow(BaseModel):
    """Base of a workflow in the form of the earlier AgentJet: ``async def execute(self, workflow_task, tuner)``. A new workflow
    needs no base."""

    model_config = ConfigDict(extra="allow")
    name: str = "default_workflow"
    trainable_targets: list[str] | None = None
    """The ``target_tag`` of the agents that are trained; None or empty: all. The others have a frozen target of the job."""


class WorkflowTask:
    """A task, also by its earlier names. ``metadata`` has the content of a field ``metadata`` beside the other fields, and
    `init_messages` is a list."""

    def __init__(self, task: Task) -> None:
        nested = task.metadata.get("metadata")
        self.task = self
        self.task_id = task.id
        self.main_query = task.query
        self.init_messages = [dict(message) for message in task.messages]
        self.metadata = {**task.metadata, **(nested if isinstance(nested, dict) else {})}
        self._task = task

    @property
    def gym_env(self) -> NoReturn:
        """Refused."""
        raise ContractBroken(
            "workflow_task.gym_env: the workflow opens its environment itself: `async with environment(workflow_task) as env:`, then "
            "`await env.step(message)`, with `from ajet.environments import environment` (`ajet docs readers`)."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._task, name)


class AjetTuner:
    """Today's tuner, also with its earlier methods."""

    def __init__(self, tuner: Any, trainable_targets: list[str] | None) -> None:
        self.config = _Config("tuner.config")
        self.trainable_targets = trainable_targets
        self._tuner = tuner

    stream = False

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """At first the tuner was itself a chat model of AgentScope."""
        return self.as_agentscope_model()(*arguments, **keywords)

    def as_agentscope_model(
        self,
        agent_name: str | None = None,
        target_tag: str | None = None,
        debug_model: Any = None,
        **options: Any,
    ) -> Any:
        """A chat model of AgentScope. As before, it does not stream."""
        labels = self._labels(agent_name, target_tag, debug_model)
        return self._tuner.as_agentscope_model(**{"stream": False, **labels, **options})

    def as_raw_openai_sdk_client(
        self, agent_name: str | None = None, target_tag: str | None = None, debug_model: str | None = "gpt-4o"
    ) -> Any:
        """An asynchronous client of the OpenAI SDK whose ``chat.completions.create(messages)`` needs no ``model``."""
        client = self._tuner.as_openai_client(**self._labels(agent_name, target_tag, debug_model))
        completions = client.chat.completions
        create = completions.create

        def create_of_policy(messages: Any, *, model: str = "policy", **rest: Any) -> Any:
            return create(messages=messages, model=model, **rest)

        completions.create = create_of_policy
        return client

    as_oai_sdk_model = as_raw_openai_sdk_client

    def as_oai_baseurl_apikey(self, agent_name: str | None = None, target_tag: str | None = None) -> Any:
        """The address and the key of the episode: ``base_url`` and ``api_key``."""
        return self._tuner.as_base_url(**self._labels(agent_name, target_tag, None))

    def get_context_tracker(self) -> NoReturn:
        """Refused."""
        raise ContractBroken(
            "tuner.get_context_tracker(): a call that does not fit the model's context raises the client's own error; catch it where "
            "the workflow looked at context_overflow (openai.BadRequestError with the code context_length_exceeded)."
        )

    def update_judge_input_dictionary(self, **given: Any) -> NoReturn:
        """Refused."""
        fields = ", ".join(f'"{name}": {name}' for name in given)
        raise ContractBroken(
            f"update_judge_input_dictionary: return the values instead: WorkflowOutput(metadata={{{fields}}}); judges read "
            "output.metadata."
        )

    def _labels(self, agent: str | None, tag: str | None, debug_model: Any) -> dict[str, str]:
        """The agent's name, and the frozen target of an agent that is not trained."""
        labels = {"agent": agent} if agent else {}
        if debug_model is None or not self.trainable_targets or tag in self.trainable_targets:
            return labels
        frozen = self._tuner.auxiliary
        if tag not in frozen and len(frozen) != 1:
            raise ContractBroken(
                f"target_tag {tag!r} is not in trainable_targets: the model of such agents is named in the job, not as debug_model. "
                f"Write there: targets: {{policy: {{}}, others: {{frozen_model: {_chat_model(debug_model)}}}}}"
            )
        return {**labels, "target": tag if tag and tag in frozen else frozen[0]}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._tuner, name)


class BaseJudge:
    """Base of a judge in the form of the earlier AgentJet: ``compute_reward(workflow_task, workflow_output)`` returns a reward and
    whether the episode succeeded. It is not asked if the workflow returned a reward."""

    def __init__(self, config: Any) -> None:
        self.config = config


class AgentJetJob:
    """The earlier builder of jobs: collects its values, and `tune` refuses them with the call of `ajet.run` that has them."""

    def __init__(
        self,
        backbone: str = "trinity",
        model: str = "Qwen/Qwen2.5-7B-Instruct",
        n_gpu: int = 8,
        algorithm: str = "grpo",
        n_gpu_for_infer: int | None = None,
    ) -> None:
        trained_on = n_gpu - (n_gpu_for_infer or 0)
        gpus = {"trinity": "backbone.trinity.gpus", "verl": "backbone.verl.trainer.n_gpus_per_node"}.get(
            backbone
        )
        keys = {"train.algorithm": algorithm, **({gpus: trained_on} if gpus else {})}
        self._given = {"model": repr(model), "backbone": repr(backbone), "set": json.dumps(keys)}

    def set_workflow(self, workflow: Any, ensure_reward_in_workflow: bool = False) -> AgentJetJob:
        """Note the workflow."""
        name = getattr(workflow, "__name__", None)
        self._given["workflow"] = name or repr(str(workflow).replace("->", ":"))
        return self

    def set_data(
        self, type: str, dataset_path: str, training_split: str = "train", validation_split: str = "test"
    ) -> AgentJetJob:
        """Note the data set."""
        for argument, split in {"tasks": training_split, "validation": validation_split}.items():
            reader = {"type": "huggingface", "path": dataset_path, "split": split, "query": "question"}
            self._given[argument] = json.dumps(reader)
        return self

    def tune(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        call = ", ".join(f"{name}={value}" for name, value in self._given.items())
        raise ConfigError(f"AgentJetJob is of the earlier AgentJet. Write: ajet.run({call})")


@dataclass(frozen=True, slots=True)
class EarlierWorkflow(LoadedWorkflow):
    """A subclass of `Workflow`, or `execute` of an object of one. It gets an earlier task and tuner."""

    def fresh(self) -> Callable[[Task, Any], Any]:
        """The callable for one episode."""
        call: Any = self.target
        if inspect.isclass(call):
            flow: Any = call()
            call = flow.execute
        targets = call.__self__.trainable_targets
        run = LoadedWorkflow(self.spec, call, self.is_async, self.arguments).fresh()
        # Their arguments are of classes of their own.
        return lambda task, tuner: run(WorkflowTask(task), AjetTuner(tuner, targets))  # type: ignore[arg-type]


def workflow_of(given: Any) -> LoadedWorkflow | None:
    """The workflow of a subclass of `Workflow` or an object of one, None for what is neither. Raises ConfigError for what was written
    for `Workflow` and has lost it."""
    if isinstance(getattr(given, "__self__", given), Workflow) or _is_subclass(given, Workflow):
        workflow = make_workflow(given, getattr(given, "__qualname__", type(given).__qualname__))
        return EarlierWorkflow(workflow.spec, workflow.target, workflow.is_async, workflow.arguments)
    if inspect.isclass(given) and (name := _field_without_model(given)) is not None:
        raise ConfigError(
            f"workflow {given.__qualname__}",
            f"{name} is a pydantic Field, but the class is not a pydantic model. Write the value itself, "
            f"{name} = …, or derive the class from ajet.Workflow.",
        )
    return None


def judge_of(given: Any) -> FunctionJudge | None:
    """The judge of a subclass of `BaseJudge`, None for what is none."""
    if not _is_subclass(given, BaseJudge):
        return None
    judge: Any = given(_Config("config"))

    def earlier_judge(task: Task, output: WorkflowOutput) -> Any:
        if output.reward is not None:
            return JudgeOutput(output.reward, output.is_success, output.metrics)
        return judge.compute_reward(WorkflowTask(task), output)

    return FunctionJudge(function=earlier_judge)


def _is_subclass(given: Any, base: type) -> bool:
    return inspect.isclass(given) and issubclass(given, base)


def _field_without_model(cls: type) -> str | None:
    """The name of an attribute that holds pydantic's ``Field(…)`` in place of its default, because the class is not a pydantic
    model."""
    if hasattr(cls, "__pydantic_fields__"):
        return None
    names = (
        name for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, FieldInfo)
    )
    return next(names, None)


class _Config:
    """The earlier job as a program saw it. Its sections can be passed on, its values are refused."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        path = f"{self._path}.{name}"
        inside = path.partition("config.")[2]
        if inside == "ajet" or any(key.startswith(f"{inside}.") for key in KEYS):
            return _Config(path)
        raise ContractBroken(
            f"{path}: programs do not see the job. Write the value where it is used, or read it from an environment variable or from "
            "the task's metadata."
        )


def _chat_model(debug_model: Any) -> str:
    """The spec of a debug model, as far as its object tells."""
    name = debug_model if isinstance(debug_model, str) else getattr(debug_model, "model_name", None)
    url = getattr(getattr(debug_model, "client", None), "base_url", None)
    return f"{{type: openai, base_url: {str(url).rstrip('/') if url else 'URL'}, model: {name or 'NAME'}}}"
