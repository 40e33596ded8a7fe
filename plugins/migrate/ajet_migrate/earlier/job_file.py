"""Job files of the earlier AgentJet, whose keys stand below ``ajet:``, before it had this name below ``astuner:`` or ``astune:``: the
table of their keys, and the new job file.

A key that the file leaves out had a default. Where today's default is another one, the new file has the earlier default.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ajet import ConfigError
from ajet.interfaces.helpers import read_yaml
from ajet.interfaces.workflow import todays_name
from ajet.utils.keys import under
from ajet_trinity_files.keys import TABLE, with_rules

SECTIONS = ("ajet", "astuner", "astune")
"""Names of the section with the keys."""
_NONE = object()
"""No default that the new file needs."""
_VERL, _ROLLOUT = "backbone.verl", "backbone.verl.actor_rollout_ref.rollout"
RENAMED: Mapping[str, tuple[str, Any]] = {
    "model.path": ("model", _NONE),
    "data.train_batch_size": ("train.batch_size", 32),
    "rollout.num_repeat": ("rollout.group_size", 4),
    "rollout.max_env_worker": ("rollout.concurrency", _NONE),
    "rollout.max_model_len": ("rollout.context_length", 18000),
    "rollout.max_response_length_in_one_turn": ("rollout.sampling.max_tokens", 4096),
    "rollout.temperature": ("rollout.sampling.temperature", 0.9),
    "rollout.multi_turn.max_sample_per_task": ("train.max_timelines", 30),
    "rollout.val_kwargs.temperature": ("eval.sampling.temperature", 0.0),
    "rollout.val_kwargs.top_p": ("eval.sampling.top_p", _NONE),
    "rollout.tensor_model_parallel_size": (f"{_ROLLOUT}.tensor_model_parallel_size", _NONE),
    "rollout.max_num_seqs": (f"{_ROLLOUT}.max_num_seqs", _NONE),
    "context_tracker.timeline_merging_policy.timeline_compare_level": ("rollout.merge", _NONE),
    "debug.debug_first_n_tasks": ("backbone.debug.tasks", _NONE),
    "debug.debug_max_parallel": ("backbone.debug.concurrency", _NONE),
    "trainer_common.total_training_steps": ("train.steps", _NONE),
    "trainer_common.save_freq": ("train.save_every", 20),
    "trainer_common.test_freq": ("eval.every", 20),
    "trainer_common.val_pass_n": ("eval.repeats", 4),
    "trainer_common.mini_batch_num": ("train.mini_batches", _NONE),
    "trainer_common.optim.lr": ("train.learning_rate", 1e-6),
    "trainer_common.nnodes": (f"{_VERL}.trainer.nnodes", _NONE),
    "trainer_common.n_gpus_per_node": (f"{_VERL}.trainer.n_gpus_per_node", 8),
    "trainer_common.ulysses_sequence_parallel_size": (
        f"{_VERL}.actor_rollout_ref.actor.ulysses_sequence_parallel_size",
        _NONE,
    ),
    "trainer_common.fsdp_config.param_offload": (
        f"{_VERL}.actor_rollout_ref.actor.fsdp_config.param_offload",
        _NONE,
    ),
    "trainer_common.fsdp_config.optimizer_offload": (
        f"{_VERL}.actor_rollout_ref.actor.fsdp_config.optimizer_offload",
        _NONE,
    ),
}
"""Earlier key -> today's key, and the earlier default."""
GONE: Mapping[str, str] = {
    "project_name": "",
    "experiment_name": "",
    "experiment_dir": "run.dir is the folder of run folders",
    "backbone": "",
    "data.max_prompt_length": "rollout.context_length limits prompt and answer together",
    "data.max_response_length": "rollout.context_length limits prompt and answer together",
    "rollout.gamma": "rewards are not discounted by step",
    "rollout.compute_madness_checklist": "train.filters: [repetition] leaves out answers that repeat themselves",
    "rollout.agent_madness_termination": "train.filters: [repetition] leaves out answers that repeat themselves",
    "rollout.agent_madness_reward": "train.filters: [repetition] leaves out answers that repeat themselves",
    "rollout.multi_turn.max_steps": "the workflow limits its steps itself",
    "rollout.multi_turn.expected_steps": "batches are counted in tasks",
    "rollout.n_vllm_engine": "backbone.trinity.gpus are the GPUs that train; vLLM has the others",
    "rollout.name": "vLLM samples",
    "rollout.use_agentscope_protocol": "",
    "rollout.mode": "the engine is always asynchronous",
    "rollout.val_kwargs.do_sample": "eval.sampling.temperature: 0 is greedy",
    "rollout.val_kwargs.top_k": "eval.sampling.top_k, where 0 means all",
    "rollout.val_kwargs.num_repeat": "eval.repeats",
    "rollout.enable_oversample": "rollout.oversample, for example 1.25",
    "task_judge.alien_llm_model": "a judge has its own `endpoint`: ajet plugins show math_llm",
    "task_judge.alien_llm_response_length": "a judge has its own `endpoint`: ajet plugins show math_llm",
    "context_tracker": "every sampled token keeps its id, so nothing has to be set",
    "debug.debug_vllm_port": "eval.engine names the engine of the backbone debug",
    "debug.debug_vllm_seed": "run.seed",
    "debug.debug_tensor_parallel_size": "eval.engine names the engine of the backbone debug",
    "trainer_common.val_before_train": "with eval.every, AgentJet validates before and after training",
    "trainer_common.total_epochs": "train.steps = epochs x tasks / train.batch_size",
    "trainer_common.algorithm.use_kl_in_reward": "the KL penalty is part of the loss: train.kl",
    "trainer_common.kl_loss_type": "train.kl is the penalty k3, the earlier low_var_kl",
    "trainer_common.checkpoint_base_dir": "checkpoints are in the run folder, below run.dir",
    "trainer_common.save_trajectory_as_json_file": "the run folder has every episode: ajet show",
    "enable_experimental_interchange_server": "a server starts when a workflow asks for its address",
    "interchange_server": "a server starts when a workflow asks for its address",
    "task_runner": "workflows run in one event loop; rollout.timeout limits them",
    "execute_test": "",
    "execute_testing_lambda": "",
}
"""Earlier keys and sections without a counterpart, each with what has taken its place, or nothing."""
KEYS = tuple(f"ajet.{key}" for key in (*RENAMED, *GONE))
_READERS = (
    "task_reader",
    "task_judge",
    "rollout.user_workflow",
    "rollout.top_p",
    "rollout.force_disable_toolcalls",
)
_TRAINER = tuple(
    f"trainer_common.{key}" for key in ("logger", "algorithm.adv_estimator", "use_kl_loss", "kl_loss_coef")
)
_BY_CODE = (*_READERS, *_TRAINER)
"""Keys that code below translates."""
_EARLIEST = {
    "rollout.agentscope_learn_protocol": "rollout.user_workflow",
    "rollout.agentscope_workflow": "rollout.user_workflow",
    "rollout.agentscope_disable_toolcalls": "rollout.force_disable_toolcalls",
}
"""Keys that had another name at first."""
_ALGORITHMS = {"gae": "ppo", "reinforce_plus_plus": "reinforce++", "grpo": "grpo", "rloo": "rloo"}
_LOGGERS = ("tensorboard", "wandb", "mlflow", "swanlab", "trackio")
_DASHSCOPE = {
    "base_url": "https://dashscope.aliyuncs.com/compatible-mode/v1",
    "api_key_env": "DASHSCOPE_API_KEY",
}
_OF_TRINITY = "`ajet config from-trinity` translates files of Trinity-RFT as a whole"
_NUMBERS = 'import json; [print(json.dumps({"query": f"[dummy task @ {i}]", "random_number": i})) for i in range(1000)]'


def section_of(values: Any) -> str | None:
    """The section with the keys of a job file of the earlier AgentJet; None for other files."""
    mapping = values if isinstance(values, Mapping) else {}
    return next((name for name in SECTIONS if isinstance(mapping.get(name), Mapping)), None)


def new_job_file(path: Path) -> str:
    """The new job file for an earlier one; its comments say what has no counterpart. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such job file.")
    values = read_yaml(path)
    if not (section := section_of(values)):
        raise ConfigError(f"{path}: is not a job file of the earlier AgentJet: it has no section `ajet`.")
    new = Translation(values, section)
    notes = (
        ["# To check, and what has no counterpart:", *(f"#   {note}" for note in new.notes)]
        if new.notes
        else []
    )
    return (
        f"# From {path}, a job file of the earlier AgentJet. Paths and modules are as they stood there; today, paths are\n"
        "# relative to the folder of the job file, and modules to the working directory.\n"
        f"{yaml.safe_dump(new.job, sort_keys=False, allow_unicode=True, width=120)}"
        + "".join(f"{line}\n" for line in notes)
    )


@dataclass
class Translation:
    """An earlier job and what becomes of it."""

    earlier: Mapping[str, Any]
    section: str
    job: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """``ajet.rollout.gamma: 1.0: why``, one for each key without a counterpart."""
    epochs: int = 0
    """Passes over the tasks, if the file names them."""

    def __post_init__(self) -> None:
        self._own = {_EARLIEST.get(key, key): value for key, value in _leaves(self.earlier[self.section])}
        self.epochs = int(self._own.get("trainer_common.total_epochs") or 0)
        self._tasks()
        self._set("workflow", todays_name(str(self._own.get("rollout.user_workflow") or "")) or None)
        self._judge()
        self._set("backbone.name", "verl")
        for key, (new, default) in RENAMED.items():
            if key in self._own or default is not _NONE:
                self._set(new, _number(self._own.get(key, default)))
        self._rest_of_training()
        self._trinity()
        self._leave_out()

    def _set(self, key: str, value: Any) -> None:
        """Set a dotted key of the new job, unless there is nothing to set."""
        *parents, last = key.split(".")
        node = self.job
        if value is not None:
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value

    def _tasks(self) -> None:
        kind = str(self._own.get("task_reader.type", "huggingface_dat_repo"))
        section = f"task_reader.{ {'tracing': 'feedback_tracing'}.get(kind, kind) }"
        fields = {
            key.removeprefix(f"{section}."): v
            for key, v in self._own.items()
            if key.startswith(f"{section}.")
        }
        for slot, part in (("reader", "training"), ("validation", "validation")):
            reader, why = _reader(kind, fields, part)
            self._set(f"task.{slot}", reader)
            if why and slot == "reader":
                self.notes.append(f"{self.section}.task_reader.type: {kind}: {why}")

    def _judge(self) -> None:
        protocol = self._own.get("task_judge.judge_protocol")
        if self._own.get("task_judge.judge_type") == "rubrics_auto_grader":
            asked = {
                **_DASHSCOPE,
                "model": self._own.get("task_judge.rubrics_auto_grader.model_name", "qwen-max"),
            }
            self._set("judge", {"type": "rubric", "path": "rubric.yaml", "endpoint": asked})
            self.notes.append(
                f"{self.section}.task_judge.rubrics_auto_grader: `ajet judge learn` writes rubric.yaml from labels"
            )
        elif protocol and str(protocol).endswith("->EnvServiceJudge"):
            self._set("judge", {"type": "environment"})
            self.notes.append(
                f"{self.section}.task_judge.judge_protocol: rewards are the environment's score, not 1 more on success"
            )
        else:
            self._set("judge", todays_name(str(protocol or "")) or None)

    def _rest_of_training(self) -> None:
        own = self._own
        if own.get("trainer_common.use_kl_loss", True):
            self._set("train.kl", _number(own.get("trainer_common.kl_loss_coef", 0.002)))
        estimator = str(own.get("trainer_common.algorithm.adv_estimator", "grpo"))
        self._set("train.algorithm", _ALGORITHMS.get(estimator))
        if estimator not in _ALGORITHMS:
            self.notes.append(
                f"{self.section}.trainer_common.algorithm.adv_estimator: {estimator}: ajet plugins lists algorithms"
            )
        if float(own.get("rollout.top_p", 1.0)) < 1:
            self._set("rollout.sampling.top_p", own["rollout.top_p"])
            self._set("rollout.sampling.allow_truncated", True)
        if own.get("rollout.force_disable_toolcalls"):
            self._set("rollout.tool_calls", "text")
        named = own.get("trainer_common.logger") or []
        for name in [named] if isinstance(named, str) else named:
            if name in _LOGGERS:
                self.job.setdefault("run", {}).setdefault("loggers", []).append(name)
            elif name != "console":
                self.notes.append(
                    f"{self.section}.trainer_common.logger: {name}: run.loggers has {', '.join(_LOGGERS)}"
                )

    def _trinity(self) -> None:
        """Trinity's own keys, as far as they have a counterpart; they are stronger than those of AgentJet."""
        section = self.earlier.get("trinity")
        try:
            entries = list(with_rules(section, TABLE)) if isinstance(section, Mapping) else []
        except ValueError as error:
            self.notes.append(f"trinity.{error}")
            return
        for key, rule, value in entries:
            try:
                converted = rule.convert(value)
            except (ValueError, TypeError) as error:
                self.notes.append(f"trinity.{key}: {value}: {error}")
                continue
            if rule.keys and not rule.only:
                for target in rule.keys if converted is not None else ():
                    self._set(target, converted)
            else:
                self.notes.append(f"trinity.{key}: {value}: {rule.why or _OF_TRINITY}")

    def _leave_out(self) -> None:
        """Note what the new job does not have."""
        for key, value in self._own.items():
            if key in RENAMED or any(under(key, known) for known in _BY_CODE):
                continue
            why = next(
                (text for known, text in GONE.items() if under(key, known)), "no key of today means it"
            )
            if why:
                self.notes.append(f"{self.section}.{key}: {value}: {why}")
        for section in self.earlier:
            if section in ("trainer", "actor_rollout_ref", "algorithm", "data", "critic", "reward_model"):
                self.notes.append(f"{section}: verl's own keys stand below backbone.verl (`ajet docs verl`)")
            elif section not in (*SECTIONS, "trinity", "hydra", "defaults"):
                self.notes.append(f"{section}: the workflow's own; write its values into the program")


def _reader(kind: str, fields: Mapping[str, Any], part: str) -> tuple[dict[str, Any] | None, str]:
    """The reader of the training or validation tasks, and what to know about it."""
    if kind in ("jsonl_dataset_file", "dataset_file"):
        path = fields.get(f"{part}.file_path")
        why = "`query`, `messages` and `id` name fields that every record has; remove those that yours lack"
        names = {"query": "main_query", "messages": "init_messages", "id": "task_id"}
        return ({"type": "jsonl", "path": path, **names} if path else None), why
    if kind == "huggingface_dat_repo":
        path, split = fields.get("dataset_path"), fields.get(f"{part}_split")
        reader = {"type": "huggingface", "path": path, "split": split, "query": "question"}
        return (
            reader if path and split else None
        ), "`query: question` names the field with the question; null: none"
    if kind == "env_service":
        named = {
            "url": fields.get("env_url"),
            "env_type": fields.get("env_type"),
            "split": fields.get(f"{part}_split"),
        }
        return ({"type": "environment", **named} if named["split"] else None), ""
    if kind == "random_dummy":
        written = shlex.join(["python", "-c", _NUMBERS])
        return {"type": "jsonl", "path": "numbers.jsonl"}, f"this writes its tasks: {written} > numbers.jsonl"
    if part == "validation":
        return None, ""
    if kind == "data_generation":
        documents = fields.get("document_reader.document_path") or ["documents"]
        model = {**_DASHSCOPE, "model": fields.get("llm_model", "qwen-long")}
        reader = {"type": "generated", "documents": documents[0], "model": model}
        return reader, "`documents` is a document or a folder of them (`ajet docs readers#generated`)"
    if kind == "tracing":
        return {"type": "traces", "path": fields.get("base_url")}, "its filters: `ajet docs readers#traces`"
    return None, "write a reader: class of ajet.Reader (`ajet docs plugins`)"


def _number(value: Any) -> Any:
    """A number that YAML reads as text, such as 1e-6."""
    try:
        return float(value) if isinstance(value, str) and "e" in value else value
    except ValueError:
        return value


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value); a list is a value."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
