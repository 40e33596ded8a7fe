"""The keys of verl's configuration, and checks of those that the user sets."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ajet.types import ConfigError
from ajet.utils.suggest import nearest
from ajet_verl.versions import REQUIREMENTS

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

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
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
    f"{_ACTOR}.clip_ratio": _LOSS,
    f"{_ACTOR}.clip_ratio_low": _LOSS,
    f"{_ACTOR}.clip_ratio_high": _LOSS,
    f"{_ACTOR}.clip_ratio_c": _LOSS,
    f"{_ACTOR}.tau_pos": _LOSS,
    f"{_ACTOR}.tau_neg": _LOSS,
    f"{_ACTOR}.policy_loss": _LOSS,
    f"{_ACTOR}.loss_agg_mode": "weights of tokens are those of train.algorithm; choose one whose mean is the one you need",
    f"{_ACTOR}.loss_scale_factor": "weights of tokens are those of train.algorithm; set train.learning_rate",
    f"{_ACTOR}.kl_loss_type": "the penalty is AgentJet's estimate; set train.kl",
    f"{_ACTOR}.calculate_entropy": "computed where the loss needs it; set train.entropy",
    f"{_ACTOR}.calculate_sum_pi_squared": "only verl's own estimators need it; remove the key",
    f"{_ACTOR}.use_prefix_grouper": "verl's prefix grouping does not know rows of several calls; remove the key",
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
    f"{_ROLLOUT}.multi_turn": _CHAT,
    f"{_ROLLOUT}.agent.num_workers": "episodes run in AgentJet's runners; set backbone.verl.runners",
    f"{_ROLLOUT}.agent.default_agent_loop": "the agent is the job's workflow; set workflow",
    f"{_ROLLOUT}.agent.agent_loop_config_path": "the agent is the job's workflow; set workflow",
    f"{_ROLLOUT}.top_p": _SAMPLING,
    f"{_ROLLOUT}.top_k": _SAMPLING,
    f"{_ROLLOUT}.do_sample": _SAMPLING,
    f"{_ROLLOUT}.ignore_eos": _SAMPLING,
    f"{_ROLLOUT}.over_sample_rate": "set rollout.oversample",
    f"{_ROLLOUT}.val_kwargs": _VALIDATION,
    "trainer.critic_warmup": "verl would not update the model for so many steps; set train.warmup_steps",
    "trainer.log_val_generations": _JOURNAL,
    "trainer.validation_data_dir": _JOURNAL,
}
"""Keys of verl, or prefixes of keys, that have no effect with AgentJet, or a harmful one: why, and the remedy. Setting one
of them is an error."""


def unknown(name: str, known: Iterable[str]) -> str:
    """An error text for an unknown name, with the nearest known one or all of them."""
    names = [n for n in known if n != "_target_"]
    near = nearest(name, names)
    return f"unknown key {name!r}{near or '. Known: ' + ', '.join(names)}"


def without_plus(key: str) -> str:
    """The key without the ``+`` before its parts."""
    return ".".join(part.removeprefix("+") for part in key.split("."))


def check_known(explicit: Mapping[str, Any], config: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ConfigError for a key that verl's configuration does not list. Allowed are keys with a ``+``, as on verl's
    command line, and any keys below an empty mapping."""
    for key, value in explicit.items():
        if key.startswith("+"):
            continue
        if key not in config:
            raise ConfigError(
                f"backbone.verl.{prefix}{key}: {unknown(key, config)}. To add a key that verl does not list, write +{key}."
            )
        inner = config[key]
        if isinstance(value, Mapping) and isinstance(inner, Mapping) and inner:
            check_known(value, inner, f"{prefix}{key}.")


def folder() -> Path:
    """The folder of verl's configuration files, found without importing verl. Raises ConfigError if verl is not installed."""
    found = importlib.util.find_spec("verl")
    if found is None or found.origin is None or not found.submodule_search_locations:
        raise ConfigError(f"backbone verl: {REQUIREMENTS.missing()}")
    return Path(found.submodule_search_locations[0]) / "trainer" / "config"
