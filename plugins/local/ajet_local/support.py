"""What the local backbone does with a model: tried on a small random model of its architecture, which has the same kinds of layers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ajet import AjetError
from ajet.interfaces.backbone import Sample
from ajet.learning.settings import LoraSettings
from ajet_local.engine import LocalEngine
from ajet_local.memory import shape_of_model
from ajet_local.modeling import first_line, model_class
from ajet_local.one_pass import check_rows
from ajet_local.row_scheduler import RowScheduler
from ajet_local.rows import trained_tokens
from ajet_local.trees import enable_trees
from ajet_lora.adapters import Adapters

VOCABULARY, MOST_LAYERS = 128, 8
SMALL: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "sliding_window": 8,
    "initializer_range": 0.2,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts"), 2),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32
    ),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size"), 16),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "n_group", "topk_group", "first_k_dense_replace"), 1),
    "mamba_d_ssm": 128,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 16,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 16),
}
"""Sizes of the small model, for those of these names that a configuration has."""


def support_of(config: Any) -> dict[str, str]:
    """What works with a model of this configuration, in a few words for each part; "no: " and the reason for what does not. Raises
    AjetError if no small model of its architecture can be made."""
    log = logging.getLogger("ajet")
    level = log.level
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries
        torch.manual_seed(0)
        model = _small_model(config)
        log.setLevel(logging.ERROR)  # what would be logged is what is asked
        try:
            return {part: _tried(how, model) for part, how in PARTS.items()}
        finally:
            log.setLevel(level)


def _small_model(config: Any) -> Any:
    """A random model in float32 with layers of each kind that ``config`` has."""
    text = config.get_text_config()
    given = text.to_dict()
    kinds = given.get("layer_types")
    layers = min(text.num_hidden_layers, MOST_LAYERS if kinds is None else _covering(kinds))
    changed = {name: value for name, value in SMALL.items() if given.get(name) is not None}
    changed |= {"num_hidden_layers": layers, **({"layer_types": kinds[:layers]} if kinds else {})}
    if (
        given.get("num_key_value_heads") == given.get("num_attention_heads")
        and "num_key_value_heads" in changed
    ):
        changed["num_key_value_heads"] = changed["num_attention_heads"]
    changed |= {name: None for name in given if name.endswith("_token_id") or name == "per_layer_config"}
    try:
        small = type(text)(**{**given, **changed})
        return model_class(small).from_config(small, dtype=torch.float32).eval()
    except Exception as error:  # a configuration may need any other sizes
        raise AjetError(
            f"model type {text.model_type!r}: no small model of its kind can be made to try it ({first_line(error)})."
        ) from error


def _covering(kinds: list[str]) -> int:
    """The first layers that have one of each kind, at least two."""
    return max(2, *(kinds.index(kind) + 1 for kind in set(kinds)))


def _tried(what: Callable[[Any], str], model: Any) -> str:
    try:
        return what(model)
    except Exception as error:  # an architecture may raise anything
        told = first_line(error)
        for introduction in (" as one plain pass does: ", "[PEFT:PeftType.LORA] "):
            told = told.rpartition(introduction)[2]
        return f"no: {told.partition('. ')[0]}"


def _engine(model: Any) -> str:
    engine = LocalEngine(model, None, cache_mib=16)
    return "a row for each context" if isinstance(engine.scheduler, RowScheduler) else "yes"


def _trainer(model: Any) -> str:
    check_rows(model)
    _backward(model)
    return "yes"


def _trees(model: Any) -> str:
    reason = enable_trees(model)
    return f"no: {reason.rstrip('.')}" if reason else "yes"


def _memory(model: Any) -> str:
    shape_of_model(model)
    return "estimated"


def _adapters(model: Any) -> str:
    experts = any(".experts." in name for name, _ in model.named_parameters())
    adapters = Adapters(model)
    adapters.add("tried", LoraSettings(rank=4), seed=0)
    adapters.train(["tried"])
    adapters.activate("tried")
    _backward(model)
    adapted = any(".experts." in name for name, p in model.named_parameters() if p.requires_grad)
    return f"yes, {'with' if adapted else 'without'} the experts" if experts else "yes"


def _backward(model: Any) -> None:
    """Raises FloatingPointError if no weight gets a gradient, or one that is not finite."""
    ids = np.arange(1, 13, dtype=np.int32)
    ones = np.ones(len(ids), np.float32)
    sample = Sample(ids, np.arange(len(ids)) >= 4, np.full_like(ones, np.nan), ones, ones)
    trained_tokens(model, [sample]).new.sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    if not gradients or not all(bool(g.isfinite().all()) for g in gradients):
        raise FloatingPointError("its gradients are not finite")


PARTS: Mapping[str, Callable[[Any], str]] = {
    "memory": _memory,
    "engine": _engine,
    "trainer": _trainer,
    "trees": _trees,
    "adapters": _adapters,
}
"""What is tried, in this order: adapters change the model."""
