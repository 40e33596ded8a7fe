"""Values of Trinity's configuration on a CPU; each line says what happens without it."""

from __future__ import annotations

from typing import Any

FLOAT32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
WORKERS = "trainer.trainer_config"

OVERRIDES: dict[str, Any] = {
    "trainer.use_remove_padding": False,  # rests on flash attention
    f"{WORKERS}.model.override_config.attn_implementation": "sdpa",  # flash attention, of CUDA
    f"{WORKERS}.model.enable_gradient_checkpointing": False,  # time for memory that small models do not need
    f"{WORKERS}.actor.use_torch_compile": False,  # minutes of compiling
    f"{WORKERS}.actor.fsdp_config.use_torch_compile": False,  # the same
    f"{WORKERS}.ref.use_torch_compile": False,  # the same
    f"{WORKERS}.ref.fsdp_config.use_torch_compile": False,  # the same
    # FSDP computes in bf16, slow and coarse here.
    f"{WORKERS}.actor.fsdp_config.mixed_precision": FLOAT32,
    f"{WORKERS}.ref.fsdp_config.mixed_precision": FLOAT32,
}
