"""Tables of keys: which keys of verl follow from which keys of the job, and which of them the user may set.

verl has other keys for each of its training engines: `ENGINES` says where an engine has those that are named here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.job.config import JobConfig

WORKERS = "ajet_verl.workers"
"""Module that registers our engine instead of verl's, named by ``actor_rollout_ref.model.external_lib``."""
ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True, slots=True)
class EngineKeys:
    """The keys of one engine. Keys of `TABLE` are those of the engine ``dp``."""

    section: str
    """The engine's section of the actor and of the reference model."""
    sharing: str
    """Key of the section: how many ranks share one row, so a row may have as many times a rank's tokens."""
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    """Where the engine has a key of ``dp``; None if it has none."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Our defaults instead of verl's."""

    def key(self, name: str) -> str | None:
        """The engine's key for a key of ``dp``."""
        return self.renamed.get(name, name)


SCHEDULE = f"{ACTOR}.optim.lr_scheduler_type"
FINAL_SHARE = f"{ACTOR}.optim.min_lr_ratio"
EPSILON = f"{ACTOR}.optim.override_optimizer_config"
GRAD_CLIP = f"{ACTOR}.grad_clip"
SEED = f"{ACTOR}.fsdp_config.seed"

ENGINES: Mapping[str, EngineKeys] = {
    "dp": EngineKeys(
        section="fsdp_config",
        sharing="ulysses_sequence_parallel_size",
        defaults={
            f"{ACTOR}.strategy": "fsdp2",
            f"{ACTOR}.fsdp_config.strategy": f"${{{ACTOR}.strategy}}",
        },
    ),
    "megatron": EngineKeys(
        section="megatron",
        sharing="context_parallel_size",
        renamed={
            SCHEDULE: f"{ACTOR}.optim.lr_decay_style",
            FINAL_SHARE: None,
            EPSILON: None,
            GRAD_CLIP: None,
            SEED: f"{ACTOR}.megatron.seed",
        },
    ),
}
"""verl's engines by ``backbone.verl.engine``; its others, which never ran with AgentJet, are refused."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """A key of the job (``ours``), the keys of verl that it sets, and their value: a tuple if their values differ."""

    ours: str
    verl: tuple[str, ...]
    value: Callable[[JobConfig], Any]
    only: bool = False
    """AgentJet reads the job's key too, so a different value in ``backbone.verl`` is an error."""
    in_updates: bool = False
    """The job counts steps, but verl counts calls of its workers, of which separate_async makes ``train.mini_batches``
    a step."""


TABLE = (
    Aligned("train.steps", ("trainer.total_training_steps",), lambda c: c.train.steps, only=True),
    Aligned("train.batch_size", ("data.train_batch_size",), lambda c: c.train.batch_size, only=True),
    Aligned("rollout.group_size", (f"{ROLLOUT}.n",), lambda c: c.rollout.group_size, only=True),
    # Rows are arranged to give this many optimizer steps; in separate_async each step samples its own share.
    Aligned(
        "train.mini_batches",
        (f"{ACTOR}.ppo_mini_batch_size", "trainer.v1.separate_async.parameter_sync_step"),
        lambda c: (max(c.train.batch_size // c.train.mini_batches, 1), c.train.mini_batches),
        only=True,
    ),
    Aligned("train.epochs", (f"{ACTOR}.ppo_epochs",), lambda c: c.train.epochs, only=True),
    Aligned("train.learning_rate", (f"{ACTOR}.optim.lr",), lambda c: c.train.learning_rate),
    # verl's first step has the rate 0, its second step the rate of the local backbone's first.
    Aligned(
        "train.warmup_steps",
        (f"{ACTOR}.optim.lr_warmup_steps",),
        lambda c: c.train.warmup_steps,
        in_updates=True,
    ),
    Aligned("train.schedule", (SCHEDULE,), lambda c: c.train.schedule),
    Aligned(
        "train.final_share",
        (FINAL_SHARE,),
        lambda c: 0.0 if c.train.schedule == "constant" else c.train.last_share,
    ),
    Aligned("train.weight_decay", (f"{ACTOR}.optim.weight_decay",), lambda c: c.train.weight_decay),
    Aligned("train.adam_epsilon", (EPSILON,), lambda c: {"eps": c.train.adam_epsilon}),
    Aligned(
        "train.max_grad_norm",
        (f"{ACTOR}.optim.clip_grad", GRAD_CLIP),
        lambda c: c.train.max_grad_norm,
    ),
    # For verl's records; the penalty is a term of AgentJet's loss.
    Aligned("train.kl", (f"{ACTOR}.kl_loss_coef",), lambda c: c.train.kl, only=True),
    # verl counts the versions that a group spans, including the trained one.
    Aligned(
        "train.max_staleness",
        ("trainer.v1.sampler.max_off_policy_threshold",),
        lambda c: None if c.train.max_staleness is None else c.train.max_staleness + 1,
    ),
    Aligned("train.save_every", ("trainer.save_freq",), lambda c: c.train.save_every),
    Aligned(
        "eval.every",
        ("trainer.test_freq",),
        lambda c: (c.eval.every or max(c.train.steps, 1)) if c.task and c.task.validation else -1,
    ),
    # Raw logprobs are before temperature, processed ones after temperature and truncation.
    Aligned(
        "rollout.sampling.temperature",
        (f"{ROLLOUT}.temperature", f"{ROLLOUT}.logprobs_mode"),
        lambda c: (
            c.rollout.sampling.temperature,
            "raw_logprobs" if c.rollout.sampling.temperature == 1 else "processed_logprobs",
        ),
        only=True,
    ),
    Aligned(
        "run.seed",
        ("data.seed", f"{ACTOR}.data_loader_seed", SEED, f"{ROLLOUT}.seed"),
        lambda c: c.run.seed,
    ),
)
"""Keys that depend neither on the model nor on the run folder; `PLACED` has those that do, and the mode."""

DEFAULTS: Mapping[str, Any] = {
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    f"{ACTOR}.use_dynamic_bsz": True,
    "trainer.logger": [],
    "trainer.project_name": "ajet",
}
"""Our defaults instead of verl's, for every engine; `ENGINES` has those of one. The user's keys override them."""

FIXED: Mapping[str, Any] = {
    f"{ROLLOUT}.agent.agent_loop_manager_class": "ajet_verl.manager.EpisodeManager",
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ACTOR}.shuffle": False,
    f"{ACTOR}.entropy_coeff": 0,
    "algorithm.adv_estimator": "grpo",  # unused; other estimators need a critic
    "algorithm.use_kl_in_reward": False,
    "critic.enable": False,
    "data.custom_cls.path": "pkg://ajet_verl.dataset",
    "data.custom_cls.name": "TaskDataset",
    "data.train_files": "train",
    "data.val_files": "validation",
    "data.dataloader_num_workers": 0,
    "data.shuffle": False,
    "data.validation_shuffle": False,
    "data.ajet": "${ajet}",
    "reward.num_workers": 0,  # judges compute rewards
    "trainer.use_v1": True,
    "trainer.total_epochs": 1,
}
"""What AgentJet requires. Setting one of these keys is an error."""


PLACED: Mapping[str, str] = {
    "actor_rollout_ref.model.path": "model",
    f"{ACTOR}.use_kl_loss": "train.kl and train.algorithm",
    "trainer.v1.trainer_mode": "backbone.verl.mode",
    "trainer.default_local_dir": "run.dir",
    "trainer.val_before_train": "task.validation",
    "trainer.val_only": "train.steps",
    "trainer.resume_mode": "--resume",
    "trainer.resume_from_path": "--resume",
}
"""Keys of verl that depend on the mode, the model, the run folder or the checkpoint to resume from, and what to set instead."""

SECTIONS = (
    "actor_rollout_ref",
    "algorithm",
    "critic",
    "custom_reward_function",
    "data",
    "distillation",
    "global_profiler",
    "ray_kwargs",
    "reward",
    "reward_model",
    "sandbox_fusion",
    "skip",
    "trainer",
    "transfer_queue",
)
"""Top-level keys of verl's configuration, listed so that jobs are checked even where verl is not installed."""

_LOSS = "the loss is that of train.algorithm; set that algorithm's options, such as clip_low and clip_high"
_JUDGE = "rewards come from the job's judge; set judge"
_ADVANTAGES = "advantages are those of train.algorithm; set that"
_READER = "tasks come from the job's reader; set task.reader"
_CHAT = "the agent builds prompts; set this in the workflow"
_SAMPLING = "parameters are sent with every request; set rollout.sampling"
_VALIDATION = "validation samples as eval says; set eval.sampling, eval.greedy or eval.episodes"
_LORA = "each target has its own adapter; set targets.NAME.lora"
_JOURNAL = "the run folder has every episode; read its journal with `ajet show`, and remove the key"

WITHOUT_EFFECT: Mapping[str, str] = {
    f"{ACTOR}.clip_ratio": _LOSS,
    f"{ACTOR}.clip_ratio_low": _LOSS,
    f"{ACTOR}.clip_ratio_high": _LOSS,
    f"{ACTOR}.clip_ratio_c": _LOSS,
    f"{ACTOR}.tau_pos": _LOSS,
    f"{ACTOR}.tau_neg": _LOSS,
    f"{ACTOR}.policy_loss": _LOSS,
    f"{ACTOR}.loss_agg_mode": "weights of tokens are those of train.algorithm; choose one whose mean is the one you need",
    f"{ACTOR}.loss_scale_factor": "weights of tokens are those of train.algorithm; set train.learning_rate",
    f"{ACTOR}.kl_loss_type": "the penalty is AgentJet's estimate; set train.kl",
    f"{ACTOR}.calculate_entropy": "computed where the loss needs it; set train.entropy",
    f"{ACTOR}.calculate_sum_pi_squared": "only verl's own estimators need it; remove the key",
    f"{ACTOR}.use_prefix_grouper": "verl's prefix grouping does not know rows of several calls; remove the key",
    "actor_rollout_ref.model.lora_rank": _LORA,
    "actor_rollout_ref.model.lora_adapter_path": _LORA,
    "actor_rollout_ref.model.lora": _LORA,
    "algorithm.gamma": _ADVANTAGES,
    "algorithm.lam": _ADVANTAGES,
    "algorithm.norm_adv_by_std_in_grpo": _ADVANTAGES,
    "algorithm.use_pf_ppo": _ADVANTAGES,
    "algorithm.pf_ppo": _ADVANTAGES,
    "algorithm.kl_penalty": "the penalty is a term of the loss; set train.kl",
    "algorithm.kl_ctrl": "the penalty is a term of the loss; set train.kl",
    "algorithm.rollout_correction": "importance weights are AgentJet's; set train.correction and train.correction_cap",
    "algorithm.filter_groups": "verl would see rows, not episodes; set train.dynamic_sampling",
    "critic": "the algorithm with a critic, ppo, runs on the backbone local; remove the key",
    "custom_reward_function": _JUDGE,
    "reward": _JUDGE,
    "reward_model": _JUDGE,
    "sandbox_fusion": _JUDGE,
    "distillation": "the teacher is a reference model; set train.algorithm: distillation and train.reference",
    "data.train_max_samples": _READER,
    "data.val_max_samples": "set eval.episodes",
    "data.prompt_key": _READER,
    "data.reward_fn_key": _READER,
    "data.image_key": _READER,
    "data.video_key": _READER,
    "data.audio_key": _READER,
    "data.return_raw_input_ids": _READER,
    "data.return_raw_chat": _READER,
    "data.return_full_prompt": _READER,
    "data.filter_overlong_prompts": "an episode, not a task, has a length; set backbone.verl.actor_rollout_ref.rollout.max_model_len",
    "data.filter_overlong_prompts_workers": _READER,
    "data.truncation": "prompts are never truncated; set backbone.verl.actor_rollout_ref.rollout.max_model_len",
    "data.apply_chat_template_kwargs": _CHAT,
    "data.tool_config_path": _CHAT,
    "data.function_tool_path": _CHAT,
    f"{ROLLOUT}.multi_turn": _CHAT,
    f"{ROLLOUT}.agent.num_workers": "episodes run in AgentJet's runners; set backbone.verl.runners",
    f"{ROLLOUT}.agent.default_agent_loop": "the agent is the job's workflow; set workflow",
    f"{ROLLOUT}.agent.agent_loop_config_path": "the agent is the job's workflow; set workflow",
    f"{ROLLOUT}.top_p": _SAMPLING,
    f"{ROLLOUT}.top_k": _SAMPLING,
    f"{ROLLOUT}.do_sample": _SAMPLING,
    f"{ROLLOUT}.ignore_eos": _SAMPLING,
    f"{ROLLOUT}.over_sample_rate": "set rollout.oversample",
    f"{ROLLOUT}.val_kwargs": _VALIDATION,
    "trainer.critic_warmup": "verl would not update the model for so many steps; set train.warmup_steps",
    "trainer.log_val_generations": _JOURNAL,
    "trainer.validation_data_dir": _JOURNAL,
}
"""Keys of verl, or prefixes of keys, that have no effect with AgentJet, or a harmful one: why, and the remedy. Setting one
of them is an error."""
