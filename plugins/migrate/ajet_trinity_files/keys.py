"""What becomes of each key of a Trinity-RFT configuration (0.6) in a job: the one table of `ajet_trinity_files.files`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ajet.interfaces.helpers import nearest

SAME: Mapping[str, str] = {
    "multi_step_grpo": "grpo",
    "reinforceplusplus": "reinforce++",
    "raft": "rejection_sampling",
    "on_policy_distill": "distillation",
    "grpo_verl": "grpo",
}
"""Algorithms of Trinity that AgentJet has under other names."""
EQUAL = frozenset({"ppo", "grpo", "dapo", "rloo", "gspo", "cispo", "dpo"})
"""Algorithms with the same name in both."""
NEAREST: Mapping[str, str] = {
    "opmd": "grpo",
    "asymre": "cispo",
    "topr": "cispo",
    "sapo": "gspo",
    "rec": "grpo",
    "sppo": "grpo",
    "mix": "grpo",
    "mix_chord": "grpo",
    "gigpo": "grpo",
    "jsd": "on_policy_distill",
    "sft": "raft",
    "cpt": "raft",
}
"""Algorithms that AgentJet does not have, and the nearest one that it has, both as Trinity calls them."""
PENALIZED = frozenset(
    {"ppo", "grpo", "grpo_verl", "multi_step_grpo", "reinforceplusplus", "rloo", "gspo", "cispo"}
)
"""Algorithms that Trinity trains with a KL penalty, unless the file says otherwise."""
KL = 0.001
"""Its weight there, by default."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a key: it sets ``keys``, or has no effect because of ``why``, or is read where the job is made."""

    keys: tuple[str, ...] = ()
    """Keys of the job."""
    convert: Callable[[Any], Any] = lambda value: value
    """The value for the job, None for none. Raises ValueError, which says why the value is refused and what to do."""
    why: str = ""
    usual: tuple[Any, ...] = ()
    """Values of a key without effect that need no word."""
    only: str = ""
    """``verl`` or ``online``: elsewhere the key has no effect."""


def to(
    *keys: str, convert: Callable[[Any], Any] = lambda value: value, only: str = "", why: str = ""
) -> Rule:
    """The key sets keys of the job."""
    return Rule(keys, convert, why, only=only)


def unused(why: str, *usual: Any) -> Rule:
    """The key has no effect here, which is said unless its value is one of the usual."""
    return Rule(why=why, usual=usual)


def refused(remedy: str, *unless: Any) -> Rule:
    """The key is an error, unless its value means nothing: it is empty, or one of these."""

    def convert(value: Any) -> None:
        if value and value not in unless:
            raise ValueError(remedy)

    return Rule(convert=convert)


def number(value: Any) -> float:
    """A number. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"expected a number, found {value!r}")


def _algorithm(value: Any) -> str:
    if value in EQUAL or value in SAME:
        return SAME.get(value, value)
    if value in NEAREST:
        raise ValueError(f"{value!r} is not in AgentJet. The nearest algorithm is {NEAREST[value]!r}")
    raise ValueError(f"{value!r} is not an algorithm of Trinity-RFT{nearest(str(value), {*SAME, *EQUAL})}")


def _schedule(value: Any) -> str | None:
    if value not in (None, "constant", "linear", "cosine"):
        raise ValueError(f"{value!r} is not a schedule of AgentJet. Choose constant, linear or cosine")
    return str(value) if value else None


def _oversample(ratio: Any) -> float:
    if not 0 <= (skipped := number(ratio)) < 1:
        raise ValueError(f"expected a number from 0 to below 1, found {ratio!r}")
    return round(1 / (1 - skipped), 4)


def _correction(bypass: Any) -> str:
    return "off" if bypass else "truncated"


def _positive(value: Any) -> Any:
    """A number above 0; Trinity's 0 and -1 mean none."""
    return value if number(value) > 0 else None


def _checkpoints(most: Any) -> int:
    return math.floor(number(most)) or 1_000_000  # 0 keeps all


def _text(value: Any) -> str | None:
    return str(value) or None


def _folder(name: Any) -> str:
    if str(name) == ".." or str(name) != Path(str(name)).name:
        raise ValueError(f"{name!r} becomes the name of a folder; leave out slashes")
    return str(name)


def _mapping(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping, found {value!r}")
    return value


def _fields(value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError(f"expected a list of fields, found {value!r}")
    return value


def _modules(value: Any) -> Any:
    if value == "all-linear":  # AgentJet's default
        return None
    return [value] if isinstance(value, str) else value


def _optimizer(value: Any) -> None:
    if value not in ("adam", "adamw"):
        raise ValueError(f"{value!r} is not in AgentJet, which trains with AdamW. Remove the key")


def _betas(value: Any) -> None:
    if list(value) != [0.9, 0.999]:
        raise ValueError("AgentJet's AdamW has the betas 0.9 and 0.999. Remove the key")


def _operators(operators: Any) -> None:
    names = [one.get("name") if isinstance(one, Mapping) else one for one in operators]
    if foreign := [name for name in names if name != "pass_rate_calculator"]:
        raise ValueError(
            f"{foreign[0]!r} is not in AgentJet, which has train.filters, judges and train.dynamic_sampling. Remove it"
        )


def _rows(prefix: str, names: str, rule: Rule) -> dict[str, Rule]:
    return {f"{prefix}{name}": rule for name in names.split()}


READ = Rule()
"""The key says something together with others (`ajet_trinity_files.files`)."""
_AUTOMATIC = refused("Trinity sets it itself. Remove the key")
_ENGINE = "the backbone chooses its engines, and how they run; with `verl`, keys below backbone.verl say it"
_PROCESS = "the backbone plans memory and processes itself"
_SERVED = "AgentJet answers, records and parses every call, as the model's chat template writes it"
_RUNNERS = "episodes run in one process, at most rollout.concurrency at once"
_SYNC = "the engine gets the weights after every step; train.asynchronous samples during updates"
_FUNCTIONS = "workflow and judge are those of the job, or the arguments of tune()"
_STORE = "AgentJet keeps episodes itself: in the run folder, and online in the store"
_TABLE_OF_LOSS = "each algorithm of AgentJet has its own form of the loss (`ajet docs algorithms`)"
_FINER = f"{_TABLE_OF_LOSS}; remove the key"
_PROMPTS = "prompts are never cut; rollout.context_length bounds prompt and answer together"
_VERL = "backbone.verl"
_ROLLOUT = f"{_VERL}.actor_rollout_ref.rollout"
_ACTOR = f"{_VERL}.actor_rollout_ref.actor"


ENGINES = unused(_ENGINE)


def _verl(key: str, why: str = _ENGINE) -> Rule:
    return to(key, only="verl", why=why)


SAMPLING: Mapping[str, Rule] = {
    "temperature": to("temperature"),
    "top_p": to("top_p"),
    "top_k": to("top_k", convert=_positive),
    "max_tokens": to("max_tokens"),
    "logprobs": unused("the logprob of each sampled token is always recorded"),
    "n": refused("set algorithm.repeat_times, or repeat_times of the task set", 1),
}
"""Keys of ``rollout_args``; they become keys of rollout.sampling or eval.sampling."""

FORMAT: Mapping[str, Rule] = {
    "prompt_key": to("query"),
    "response_key": to("answer"),
    "messages_key": to("messages"),
    **_rows(
        "",
        "prompt_type system_prompt_key system_prompt reply_prefix tools_key image_key video_key workflow_key reward_fn_key",
        unused("the workflow makes the prompt from the fields of the record"),
    ),
    **_rows(
        "",
        "chosen_key rejected_key enable_concatenated_multi_turn chat_template enable_thinking",
        unused("it is for transcripts, which `ajet sft` and `ajet dpo` read"),
    ),
}
"""Keys of ``format``; they become fields of the reader."""

_SELECTOR = {
    "selector_type": READ,
    "seed": to("run.seed"),
    "feature_keys": Rule(convert=_fields),
    "kwargs": Rule(convert=_mapping),
}

TASKSET: Mapping[str, Rule] = {
    "path": READ,
    "split": READ,
    "subset_name": READ,
    "workflow_args": Rule(convert=_mapping),
    "repeat_times": READ,
    "storage_type": refused(
        "a task set is read from files or the hub. Export the tasks to a file, and name it in `path`",
        "file",
        "FILE",
    ),
    **{f"rollout_args.{name}": rule for name, rule in SAMPLING.items()},
    **{f"format.{name}": rule for name, rule in FORMAT.items()},
    **{
        f"{name}.{key}": rule
        for name in ("data_selector", "task_selector")
        for key, rule in _SELECTOR.items()
    },
    **_rows("", "default_workflow_type default_reward_fn_type reward_fn_args", unused(_FUNCTIONS)),
    **_rows(
        "",
        "name enable_progress_bar max_retry_times max_retry_interval",
        unused("the reader needs none of it"),
    ),
    **_rows("", "index is_eval batch_size total_epochs total_steps ray_namespace", _AUTOMATIC),
}
"""Keys of a task set."""

ADAPTER: Mapping[str, Rule] = {
    "lora_rank": to("targets.policy.lora.rank"),
    "lora_alpha": to("targets.policy.lora.alpha"),
    "target_modules": to("targets.policy.lora.modules", convert=_modules),
    "path": refused("AgentJet trains a new adapter. Remove the key"),
    "exclude_modules": refused("name the layers that have an adapter in target_modules"),
    **_rows("", "name base_model_name lora_dtype", unused("the adapter is that of the trained model")),
    "is_dummy": _AUTOMATIC,
}
"""Keys of an entry of ``model.lora_configs``."""

_AUTOMATIC_OF_MODELS = (
    "gpu_per_engine bundle_indices engine_id ray_namespace ray_actor_name sync_method checkpoint_job_dir cuda_visible_devices "
    "enable_lora enable_runtime_lora_updating lora_modules lora_kwargs nnodes node_rank"
)
_MODEL: Mapping[str, Rule] = {
    **_rows(
        "",
        "engine_type engine_num data_parallel_size pipeline_parallel_size enable_expert_parallel extra_engine_args use_v1 "
        "enable_prefix_caching enable_chunked_prefill dtype seed weight_sync_buffer_size enable_return_routed_experts",
        unused(_ENGINE),
    ),
    **_rows(
        "",
        "enable_history enable_openai_api enable_log_requests base_port api_key enable_auto_tool_choice tool_call_parser "
        "reasoning_parser enable_multimodal logprobs",
        unused(_SERVED),
    ),
    **_rows("", "max_prompt_tokens enable_prompt_truncation", unused(_PROMPTS)),
    **_rows("", _AUTOMATIC_OF_MODELS, _AUTOMATIC),
    "trust_remote_code": refused("Python code in a model's folder does not run. Remove the key"),
    "min_response_tokens": refused("AgentJet does not lengthen answers. Remove the key"),
    "ignore_eos": refused("AgentJet does not lengthen answers. Remove the key"),
    "repetition_penalty": refused(
        "it would change the probabilities that training learns from. Remove the key", 1, 1.0
    ),
    "chat_template": refused("put the template into the model's folder, as chat_template.jinja"),
    "rope_scaling": refused("put it into the model's config.json"),
    "rope_theta": refused("put it into the model's config.json"),
    **_rows(
        "external_model_config.",
        "enable base_url_env api_key_env model_name",
        refused("give the model as a target's frozen_model, or as a mapping in auxiliary_models of tune()"),
    ),
}

_MODEL_TOO = (
    "trust_remote_code min_response_tokens repetition_penalty rope_scaling rope_theta logprobs max_prompt_tokens "
    "enable_prompt_truncation"
)

AUXILIARY: Mapping[str, Rule] = {
    **_MODEL,
    **_rows(
        "",
        "name model_path max_model_len max_response_tokens temperature top_p enable_thinking tensor_parallel_size engine_num",
        READ,
    ),
    "top_k": refused("auxiliary models sample among all tokens. Remove the key", -1),
    "gpu_memory_utilization": unused(_ENGINE),
    "enforce_eager": unused(_ENGINE),
}
"""Keys of an auxiliary model."""

_ROLLOUT_MODEL: Mapping[str, Rule] = {
    **_MODEL,
    "engine_num": READ,
    "tensor_parallel_size": _verl(f"{_ROLLOUT}.tensor_model_parallel_size"),
    "gpu_memory_utilization": _verl(f"{_ROLLOUT}.gpu_memory_utilization"),
    "enforce_eager": _verl(f"{_ROLLOUT}.enforce_eager"),
    "name": unused("the trained model is the target `policy`"),
    "model_path": _AUTOMATIC,
    "max_model_len": to("rollout.context_length"),
    "temperature": to("rollout.sampling.temperature", "eval.sampling.temperature"),
    "top_p": to("rollout.sampling.top_p", "eval.sampling.top_p"),
    "top_k": to("rollout.sampling.top_k", "eval.sampling.top_k", convert=_positive),
    "max_response_tokens": to("rollout.sampling.max_tokens", "eval.sampling.max_tokens"),
    "enable_thinking": to("rollout.chat_template.enable_thinking"),
}
"""Those that have a key of a job are of ``model``, too, and stronger here."""

_OF_LOSSES = (
    "clip_ratio_c loss_agg_mode advantage_threshold clip_mode enable_phi_function epsilon epsilon_high epsilon_high_prime epsilon_low "
    "epsilon_low_prime grpo_loss_agg_mode mu mu_decay_steps mu_peak mu_valley mu_warmup_steps regularizer regularizer_coef "
    "sft_loss_agg_mode tau tau_neg tau_pos temp weight"
)
_BUFFER = (
    "capacity max_read_timeout max_retry_times max_retry_interval replay_buffer split subset_name format "
    "enable_progress_bar data_selector schema_type index batch_size tokenizer_path total_epochs total_steps ray_namespace"
)

TABLE: Mapping[str, Rule] = {
    **_rows("", "mode checkpoint_root_dir continue_from_checkpoint", READ),
    **_rows("", "project group name", Rule(convert=_folder)),
    "checkpoint_job_dir": _AUTOMATIC,
    **_rows("", "ray_namespace ignore_validator_suggestions", unused(_PROCESS)),
    "stages": refused("write a file for each stage, and train the next one from the checkpoint of the last"),
    # algorithm
    "algorithm.algorithm_type": to("train.algorithm", convert=_algorithm),
    "algorithm.repeat_times": to("rollout.group_size"),
    "algorithm.optimizer.lr": to("train.learning_rate"),
    "algorithm.optimizer.lr_warmup_steps": to("train.warmup_steps", convert=_positive),
    "algorithm.optimizer.lr_warmup_steps_ratio": refused(
        "set algorithm.optimizer.lr_warmup_steps, a number of steps"
    ),
    "algorithm.optimizer.lr_scheduler_type": to("train.schedule", convert=_schedule),
    "algorithm.optimizer.warmup_style": to("train.schedule", convert=_schedule),
    "algorithm.optimizer.min_lr_ratio": READ,
    "algorithm.optimizer.weight_decay": to("train.weight_decay"),
    "algorithm.optimizer.clip_grad": to("train.max_grad_norm"),
    "algorithm.optimizer.optimizer_type": Rule(convert=_optimizer),
    "algorithm.optimizer.betas": Rule(convert=_betas),
    "algorithm.advantage_fn": refused(
        "an algorithm of AgentJet has its own advantages. Remove the key, or choose another algorithm.algorithm_type",
        *("ppo", "grpo", "grpo_verl", "step_wise_grpo", "reinforceplusplus", "rloo", "on_policy_distill"),
    ),
    "algorithm.advantage_fn_args.gamma": to("train.algorithm.gamma"),
    "algorithm.advantage_fn_args.lam": to("train.algorithm.lam"),
    "algorithm.advantage_fn_args.epsilon": unused(_TABLE_OF_LOSS),
    "algorithm.advantage_fn_args.enable_step_norm": unused(
        "an episode counts once, however many calls it has"
    ),
    "algorithm.advantage_fn_args.step_norm": unused("an episode counts once, however many calls it has"),
    "algorithm.advantage_fn_args.std_threshold": unused("groups of equal rewards are not learned from"),
    "algorithm.advantage_fn_args.std_cal_level": unused(
        "AgentJet normalizes over the group; the algorithm reinforceplusplus normalizes over the batch",
        "group",
    ),
    **_rows(
        "algorithm.advantage_fn_args.", "duplicate_experiences rank_penalty kl_coef", refused(_FINER, 1, 1.0)
    ),
    "algorithm.kl_penalty_fn": refused(
        "AgentJet's KL penalty is a term of the loss. Set algorithm.kl_loss_fn", "none"
    ),
    "algorithm.kl_penalty_fn_args": unused("AgentJet's KL penalty is a term of the loss"),
    "algorithm.kl_loss_fn": READ,
    "algorithm.kl_loss_fn_args.kl_coef": READ,
    **_rows(
        "algorithm.kl_loss_fn_args.",
        "adaptive target_kl horizon",
        refused("AgentJet's train.kl is constant. Remove the key"),
    ),
    "algorithm.policy_loss_fn": unused(_TABLE_OF_LOSS, *("ppo", "gspo", "cispo", "dpo", "sft")),
    "algorithm.policy_loss_fn_args.clip_range": to("train.algorithm.clip_low", "train.algorithm.clip_high"),
    "algorithm.policy_loss_fn_args.clip_range_low": to("train.algorithm.clip_low"),
    "algorithm.policy_loss_fn_args.clip_range_high": to("train.algorithm.clip_high"),
    "algorithm.policy_loss_fn_args.beta": to("train.algorithm.beta"),
    "algorithm.policy_loss_fn_args.label_smoothing": to("train.algorithm.label_smoothing"),
    **_rows("algorithm.policy_loss_fn_args.", _OF_LOSSES, unused(_TABLE_OF_LOSS)),
    **_rows(
        "algorithm.policy_loss_fn_args.",
        "enable_sequence_masking delta_sequence_masking fallback_to_policy_gradient enable_mask_clip mask_clip_range_low "
        "mask_clip_range_high",
        refused(_FINER),
    ),
    "algorithm.entropy_loss_fn": READ,
    "algorithm.entropy_loss_fn_args.entropy_coef": READ,
    "algorithm.loss_agg_mode": unused(_TABLE_OF_LOSS),
    "algorithm.enable_router_replay": refused("AgentJet replays no routes of experts. Remove the key"),
    "algorithm.bypass_old_logprobs": to("train.correction", convert=_correction),
    "algorithm.rollout_correction": refused("set train.correction in the job"),
    "algorithm.sample_strategy": refused(
        "a step trains on its own episodes. Remove the key", "default", "warmup"
    ),
    "algorithm.sample_strategy_args": refused("a step trains on its own episodes. Remove the key"),
    # model
    "model.model_path": to("model", convert=_text),
    "model.max_model_len": to("rollout.context_length"),
    "model.temperature": to("rollout.sampling.temperature", "eval.sampling.temperature"),
    "model.top_p": to("rollout.sampling.top_p", "eval.sampling.top_p"),
    "model.top_k": to("rollout.sampling.top_k", "eval.sampling.top_k", convert=_positive),
    "model.max_response_tokens": to("rollout.sampling.max_tokens", "eval.sampling.max_tokens"),
    "model.enable_thinking": to("rollout.chat_template.enable_thinking"),
    "model.lora_configs": READ,
    **{f"model.{name}": _MODEL[name] for name in _MODEL_TOO.split()},
    **_rows("model.", "custom_chat_template chat_template_path", _MODEL["chat_template"]),
    "model.critic_model_path": refused("the critic of `ppo` is a head on the trained model. Remove the key"),
    **_rows("model.", "fully_sharded_loras max_cpu_loras", unused(_ENGINE)),
    "model.tinker.enable": to("backbone.name", convert=lambda on: "tinker" if on else None),
    **{
        f"model.tinker.{name}": to(f"backbone.tinker.{name}")
        for name in ("rank", "train_mlp", "train_attn", "train_unembed", "base_url")
    },
    "model.tinker.seed": to("run.seed"),
    **_rows(
        "model.external_model.",
        "enable base_url_env api_key_env model_name",
        refused("a model that is served elsewhere cannot be trained; `ajet eval` measures it"),
    ),
    # cluster
    "cluster.ray_address": unused("with the backbone `verl`, RAY_ADDRESS names a cluster"),
    "cluster.node_num": _verl(f"{_VERL}.trainer.nnodes"),
    "cluster.gpu_per_node": _verl(f"{_VERL}.trainer.n_gpus_per_node"),
    **_rows(
        "cluster.",
        "total_gpu_num rollout_gpu_num auxiliary_model_gpu_num explorer_gpu_num trainer_gpu_num trainer_node_num "
        "trainer_gpu_num_per_node",
        _AUTOMATIC,
    ),
    # buffer
    "buffer.batch_size": to("train.batch_size"),
    "buffer.train_batch_size": to(
        "train.batch_size",
        only="online",
        why="a step trains on all of its episodes; set train.mini_batches to divide it",
    ),
    "buffer.total_epochs": READ,
    "buffer.total_steps": to("train.steps", convert=_positive),
    **{f"buffer.explorer_input.{name}": READ for name in ("taskset", "tasksets", "eval_tasksets")},
    **_rows(
        "buffer.explorer_input.",
        "default_workflow_type default_eval_workflow_type default_reward_fn_type",
        unused(_FUNCTIONS),
    ),
    "buffer.trainer_input.experience_buffer.path": to("plugins.online.store", only="online", why=_STORE),
    "buffer.trainer_input.experience_buffer.storage_type": unused(_STORE),
    # It names the store of online training.
    "buffer.trainer_input.experience_buffer.name": READ,
    **_rows("buffer.trainer_input.experience_buffer.", _BUFFER, unused(_STORE)),
    "buffer.trainer_input.auxiliary_buffers": refused("a step trains on its own episodes. Remove the key"),
    **_rows("buffer.", "explorer_output tokenizer_path cache_dir", _AUTOMATIC),
    # explorer
    "explorer.runner_per_model": READ,
    "explorer.max_timeout": to("rollout.timeout"),
    "explorer.max_retry_times": to("rollout.retries"),
    "explorer.env_vars": refused("set these variables where you start the run"),
    "explorer.runner_num": refused("it is deprecated in Trinity. Set explorer.runner_per_model"),
    **_rows(
        "explorer.",
        "name runner_prepare_concurrency runner_prepare_max_retries concurrent_mode max_repeat_times_per_runner "
        "runner_state_report_interval max_inflight_batches",
        unused(_RUNNERS),
    ),
    **{f"explorer.rollout_model.{name}": rule for name, rule in _ROLLOUT_MODEL.items()},
    "explorer.auxiliary_models": READ,
    "explorer.eval_interval": to("eval.every"),
    "explorer.eval_on_startup": unused("validation tasks are always run before training, too"),
    "explorer.bench_on_latest_checkpoint": unused("`ajet eval` takes the checkpoint that you name"),
    "explorer.proxy_port": to("plugins.online.port", only="online", why=_SERVED),
    "explorer.listen_address": to("plugins.online.host", only="online", why=_SERVED),
    "explorer.service_status_check_interval": to("plugins.online.poll", only="online", why=_SERVED),
    "explorer.min_running_model_num": unused(
        "calls in progress end on their weights, new calls get the new ones"
    ),
    "explorer.db_url": unused(_STORE),
    "explorer.over_rollout.ratio": to("rollout.oversample", convert=_oversample),
    **_rows(
        "explorer.over_rollout.",
        "wait_after_min return_partial_tasks",
        unused("a step ends as soon as it has enough whole groups"),
    ),
    **_rows(
        "explorer.dynamic_timeout.",
        "enable warmup_min_steps ratio",
        unused("rollout.timeout is constant; rollout.oversample waits for no stragglers"),
    ),
    # trainer
    "trainer.save_interval": READ,
    "trainer.total_steps": to("train.steps", convert=_positive),
    "trainer.max_checkpoints_to_keep": to("train.keep_last", convert=_checkpoints),
    "trainer.grad_clip": to("train.max_grad_norm"),
    "trainer.save_hf_checkpoint": unused("every checkpoint is a folder in Hugging Face layout"),
    "trainer.critic_warmup": refused(
        "the critic of `ppo` learns from the first step, with the policy. Remove the key"
    ),
    "trainer.trainer_config": unused(f"{_PROCESS}; with `verl`, its own keys stand below backbone.verl"),
    "trainer.trainer_config_path": refused(
        "it is deprecated in Trinity. Set keys of verl below backbone.verl"
    ),
    "trainer.ulysses_sequence_parallel_size": _verl(f"{_ACTOR}.ulysses_sequence_parallel_size", _PROCESS),
    "trainer.max_token_len_per_gpu": _verl(f"{_ACTOR}.ppo_max_token_len_per_gpu", _PROCESS),
    "trainer.param_offload": _verl(f"{_ACTOR}.fsdp_config.param_offload", _PROCESS),
    "trainer.optimizer_offload": _verl(f"{_ACTOR}.fsdp_config.optimizer_offload", _PROCESS),
    **_rows(
        "trainer.",
        "name trainer_type trainer_strategy enable_preview use_dynamic_bsz use_remove_padding balance_batch "
        "fix_actor_microbatch_loss_scale grad_offload offload_policy save_strategy megatron",
        unused(_PROCESS),
    ),
    "trainer.trust_remote_code": _AUTOMATIC,
    # the rest
    **_rows(
        "synchronizer.",
        "sync_method sync_style sync_interval explorer_sync_interval trainer_sync_interval sync_timeout group_name "
        "wait_for_checkpoint",
        unused(_SYNC),
    ),
    "synchronizer.sync_offset": to("train.asynchronous", convert=lambda steps: number(steps) > 0 or None),
    **_rows("synchronizer.", "explorer_world_size ray_namespace", _AUTOMATIC),
    "monitor.monitor_type": READ,
    "monitor.monitor_args": refused(
        "set the variables of the tool, such as WANDB_API_KEY, or run.loggers in the job"
    ),
    **_rows("monitor.", "detailed_stats enable_ray_timeline", unused("metrics.jsonl has all figures")),
    "monitor.cache_dir": _AUTOMATIC,
    "data_processor.task_pipeline": refused(
        "AgentJet does not prepare tasks in a run. Use `ajet data`, and train on its file"
    ),
    # AgentJet's task selector calculates pass rates itself.
    "data_processor.experience_pipeline.operators": Rule(convert=_operators),
    **_rows("data_processor.experience_pipeline.", "save_input input_save_path", unused(_STORE)),
    **_rows(
        "data_processor.experience_pipeline.",
        "inputs output",
        refused("a step trains on its own episodes. Remove the key"),
    ),
    "service.data_juicer": refused("AgentJet starts no Data-Juicer. Use `ajet data`, and train on its file"),
    **_rows("log.", "level group_by_node", unused("`ajet run` prints the run's own log")),
    "log.save_dir": _AUTOMATIC,
}
"""Every key of a file, but those inside task sets (`TASKSET`), adapters (`ADAPTER`) and auxiliary models (`AUXILIARY`)."""

SECTIONS = frozenset(key.partition(".")[0] for key in TABLE if "." in key)
_ONLY_TRINITYS = frozenset({"buffer", "cluster", "explorer", "synchronizer"})
"""Sections that no job file and no file of verl's has, not even by a slip."""


def is_trinity(values: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether these are the values of a file of Trinity-RFT, not of a job file, nor of verl's configuration."""
    if not isinstance(values, Mapping) or "actor_rollout_ref" in values:
        return False
    sections = {name for name in SECTIONS - {"log", "service"} if isinstance(values.get(name), Mapping)}
    return (
        len(sections) > 1
        or bool(sections & _ONLY_TRINITYS)
        or (sections == {"model"} and "model_path" in values["model"])
    )


def with_rules(
    tree: Mapping[str, Any], table: Mapping[str, Rule], place: str = ""
) -> Iterator[tuple[str, Rule, Any]]:
    """(key, its rule, its value) of a section of a file. Raises ValueError for a key that Trinity does not have."""
    for name, value in tree.items():
        key = f"{place}{name}"
        if key in table:
            if value is not None:
                yield key, table[key], value
        elif any(known.startswith(f"{key}.") for known in table):
            if isinstance(value, Mapping):
                yield from with_rules(value, table, f"{key}.")
            elif value is not None:
                raise ValueError(f"{key}: expected a section of keys, found {value!r}.")
        else:
            raise ValueError(
                f"{key}: Trinity-RFT has no such key{nearest(key, table)}. Correct or remove it."
            )
