"""Lengths in tokens: derived from the model's configuration and verl's engines, and checked against each other.

context   most tokens of a prompt and its answer together, on vLLM
answer    most tokens of an answer
row       most tokens of a row that verl's workers compute: a rank's tokens, times the ranks that share a row
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ajet import ConfigError
from ajet.estimate.shape import BFLOAT16
from ajet_verl import lora
from ajet_verl.keys import ACTOR, ENGINES, REF

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.job.config import JobConfig
    from ajet_verl.settings import VerlSettings

ROLLOUT = "actor_rollout_ref.rollout"
CONTEXT = f"{ROLLOUT}.max_model_len"
PROMPT, ANSWER = "data.max_prompt_length", "data.max_response_length"
PROMPT_KEYS, ANSWER_KEYS = (PROMPT, f"{ROLLOUT}.prompt_length"), (ANSWER, f"{ROLLOUT}.response_length")
MICRO_BATCH = f"{ACTOR}.ppo_max_token_len_per_gpu"
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Architecture:
    """What lengths and memory depend on in a model."""

    context: int
    """Maximum number of positions."""
    cache_heads: int | None
    """Key and value heads; None if the cache of this model does not grow by a fixed amount for each token."""
    cache_width: int
    """Numbers that a token adds to the cache for each of these heads, over all layers."""
    parameters: int
    """Number of weights."""


@dataclass(frozen=True, slots=True)
class DerivedLength:
    """A derived or checked length."""

    name: str
    value: int
    why: str
    key: str = ""
    """The key of verl that it sets, if it sets one."""


USUAL = 16384
"""verl's default of `MICRO_BATCH`."""
TRUST = "backbone.verl.actor_rollout_ref.model.trust_remote_code"


@cache
def architecture(model: str, trust_remote_code: bool = False) -> Architecture:
    """The architecture of a model's folder or Hugging Face id, from its config.json and, with ``trust_remote_code``, its own Python
    code. Raises ConfigError."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        trust = {"trust_remote_code": trust_remote_code}
        config = AutoConfig.from_pretrained(lora.base(model), **trust).get_text_config()
        with torch.device("meta"):  # no memory is used
            made = AutoModelForCausalLM.from_config(config, **trust)
        parameters = sum(p.numel() for p in made.parameters())
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise ConfigError(
                "model", f"{model}: contains Python code. If you trust it, set {TRUST}: true."
            ) from error
        line = str(error).strip().splitlines()[0].rstrip(".")
        raise ConfigError("model", f"{model}: {line}. Check the path or the Hub id.") from error
    context = getattr(config, "max_position_embeddings", None)
    if not context:
        raise ConfigError(
            "model", f"{model}: config.json has no max_position_embeddings, which verl needs. Add it there."
        )
    heads = getattr(config, "num_attention_heads", 1)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    full = {*(getattr(config, "layer_types", None) or ["full_attention"])} == {"full_attention"}
    regular = full and not hasattr(config, "kv_lora_rank")
    return Architecture(
        context=int(context),
        cache_heads=(getattr(config, "num_key_value_heads", None) or heads) if regular else None,
        cache_width=2 * config.num_hidden_layers * head_dim,
        parameters=parameters,
    )


def sharing(config: DictConfig, engine: str, part: str = ACTOR) -> int:
    """How many ranks share a row in the actor or the reference model."""
    from omegaconf import OmegaConf

    keys = ENGINES[engine]
    ranks = OmegaConf.select(config, f"{part}.{keys.section}.{keys.sharing}") or 1
    if engine == "dp":  # verl's older key, which it copies into the section if it is above 1
        older = OmegaConf.select(config, f"{part}.{keys.sharing}") or 1
        ranks = older if older > 1 else ranks
    return int(ranks)


def row_limit(config: DictConfig) -> float:
    """Most tokens of a row that verl's workers compute: the update, the logprobs before it, and the reference model's if
    the job needs them."""
    parts = config.actor_rollout_ref
    if not parts.actor.use_dynamic_bsz:
        return math.inf
    engine = config.model_engine
    ranks = sharing(config, engine)
    limits = [
        parts.actor.ppo_max_token_len_per_gpu * ranks,
        parts.rollout.log_prob_max_token_len_per_gpu * ranks,
    ]
    if parts.actor.use_kl_loss:
        limits.append(parts.ref.log_prob_max_token_len_per_gpu * sharing(config, engine, REF))
    return float(min(limits))


def at_once(config: DictConfig, longest: int) -> int | None:
    """Tokens that a rank computes at once in a step whose longest row has ``longest`` tokens: verl's default, unless that row
    needs more. None where the configuration's limit is not the one that leaves room for a row of a whole context."""
    context = config.actor_rollout_ref.rollout.max_model_len
    ranks, limit = sharing(config, config.model_engine), row_limit(config)
    if not context or not max(USUAL * ranks, context - 1) < limit < context + ranks:
        return None
    return max(USUAL, math.ceil(longest / ranks))


def derived(
    config: DictConfig, job: JobConfig, explicit: Collection[str], model: Architecture | None
) -> list[DerivedLength]:
    """The lengths of a composed configuration. Those with a key are to be set in it; ``explicit`` keys of verl are kept.
    Without ``model`` only explicit lengths are known. Raises ConfigError if one is longer than the model's or the context."""
    context = _context(config, explicit, model, job.rollout.context_length)
    if context is None:
        return []
    asked = job.rollout.sampling.max_tokens
    for key, value in (
        ("rollout.sampling.max_tokens", asked),
        ("eval.sampling.max_tokens", job.eval.sampling.max_tokens),
        (f"backbone.verl.{ANSWER}", _given(config, explicit, ANSWER_KEYS)),
    ):
        if value is not None and value > context.value:
            raise ConfigError(
                key, f"{value} tokens are more than the context of {context.value} ({context.why}). Lower it."
            )
    lengths = [context]
    if _given(config, explicit, ANSWER_KEYS) is None:
        why = (
            "rollout.sampling.max_tokens" if asked else "the context: rollout.sampling.max_tokens is not set"
        )
        lengths.append(DerivedLength("answer", asked or context.value, why, ANSWER))
    if _given(config, explicit, PROMPT_KEYS) is None:
        lengths.append(
            DerivedLength("prompt", max(context.value - 1, 1), "the context, less one token", PROMPT)
        )
    if config.actor_rollout_ref.actor.use_dynamic_bsz and MICRO_BATCH not in explicit:
        lengths.append(_micro_batch(config, context.value))
    return lengths


def _context(
    config: DictConfig, explicit: Collection[str], model: Architecture | None, asked: int | None
) -> DerivedLength | None:
    prompt, answer = _given(config, explicit, PROMPT_KEYS), _given(config, explicit, ANSWER_KEYS)
    if CONTEXT in explicit and (given := config.actor_rollout_ref.rollout.max_model_len):
        context = DerivedLength("context", int(given), f"backbone.verl.{CONTEXT}")
    elif prompt is not None and answer is not None:
        context = DerivedLength("context", prompt + answer, f"backbone.verl: {PROMPT} + {ANSWER}", CONTEXT)
    elif asked is not None:
        context = DerivedLength("context", asked, "rollout.context_length", CONTEXT)
    elif model is not None:
        return DerivedLength("context", model.context, "the model's max_position_embeddings", CONTEXT)
    else:
        return None
    if model is not None and context.value > model.context:
        raise ConfigError(
            f"{context.why}: {context.value} tokens are more than the model's {model.context} "
            "(max_position_embeddings). Lower it."
        )
    return context


def _given(config: DictConfig, explicit: Collection[str], names: Sequence[str]) -> int | None:
    """The value of the first of these keys that the user has set."""
    from omegaconf import OmegaConf

    return next((int(OmegaConf.select(config, name)) for name in names if name in explicit), None)


def _micro_batch(config: DictConfig, context: int) -> DerivedLength:
    """A rank's tokens at once: verl's default, or more where a row of a whole context needs it."""
    actor = config.actor_rollout_ref.actor
    ranks = sharing(config, config.model_engine)
    if actor.use_kl_loss:
        ranks = min(ranks, sharing(config, config.model_engine, REF))
    usual, needed = int(actor.ppo_max_token_len_per_gpu), math.ceil(context / ranks)
    if needed <= usual:
        return DerivedLength(
            "micro-batch", usual, "verl's default; a row of a whole context fits", MICRO_BATCH
        )
    shared = f", shared by {ranks} ranks" if ranks > 1 else ""
    return DerivedLength("micro-batch", needed, f"one row of a whole context{shared}", MICRO_BATCH)


def check_rows(config: DictConfig, settings: VerlSettings) -> DerivedLength | None:
    """The longest row. Raises ConfigError if the context allows longer ones, unless ``long_rows`` says to drop them."""
    limit, context = row_limit(config), config.actor_rollout_ref.rollout.max_model_len
    if context is None or limit == math.inf:
        return None
    if limit >= context:
        return DerivedLength("row", context, f"the context; verl's workers compute up to {limit:.0f}")
    if settings.long_rows == "drop":
        return DerivedLength(
            "row", int(limit), "longer ones are dropped and counted (backbone.verl.long_rows: drop)"
        )
    keys = ENGINES[settings.engine]
    raise ConfigError(
        f"backbone.verl.{MICRO_BATCH}",
        f"verl's workers compute rows of up to {limit:.0f} tokens, but the context has "
        f"{context}. Raise this key and {ROLLOUT}.log_prob_max_token_len_per_gpu, or {ACTOR}.{keys.section}.{keys.sharing}; "
        f"or lower {CONTEXT}; or set backbone.verl.long_rows: drop.",
    )


def check_cache(config: DictConfig, model: Architecture | None, memory: int | None) -> DerivedLength | None:
    """The cache of one whole context, in MiB on each GPU. Raises ConfigError if vLLM's share of ``memory`` (bytes of a GPU)
    cannot hold it, even without the weights."""
    rollout = config.actor_rollout_ref.rollout
    if model is None or model.cache_heads is None or not rollout.max_model_len:
        return None
    heads = math.ceil(model.cache_heads / rollout.tensor_model_parallel_size)
    stages = rollout.pipeline_model_parallel_size
    size = BFLOAT16 * heads * model.cache_width * rollout.max_model_len // stages
    share = None if memory is None else memory * rollout.gpu_memory_utilization
    if share is not None and size > share:
        raise ConfigError(
            f"backbone.verl.{CONTEXT}",
            f"the cache of one context of {rollout.max_model_len} tokens takes "
            f"{size / GIB:.1f} GiB on each GPU, but vLLM has {share / GIB:.1f} GiB there. Lower this key, or raise "
            f"{ROLLOUT}.tensor_model_parallel_size or {ROLLOUT}.gpu_memory_utilization.",
        )
    held = "vLLM checks that it fits"
    if share is not None:
        weights = BFLOAT16 * model.parameters / rollout.tensor_model_parallel_size / stages
        held = f"vLLM has {share / GIB:.1f} GiB there, of which the weights take {weights / GIB:.1f}"
    return DerivedLength("cache, MiB", size // 2**20, f"one context on each GPU; {held}")
