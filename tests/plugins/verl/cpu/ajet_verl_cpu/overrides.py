"""Values of verl's configuration on a CPU; each line says what happens without it."""

from __future__ import annotations

from typing import Any

ACTOR, REF, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout"))

OVERRIDES: dict[str, Any] = {
    "trainer.device": "cpu",  # tensors are put on cuda
    "trainer.n_gpus_per_node": 1,  # 8 ranks
    "ray_kwargs.ray_init.num_gpus": 1,  # Ray finds none
    "ray_kwargs.ray_init.num_cpus": 32,  # actors wait for cores that they hardly use
    "ray_kwargs.ray_init.object_store_memory": 300_000_000,  # a third of the memory
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,  # 8 processes of 0.3 GiB
    "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",  # flash attention, of CUDA
    "actor_rollout_ref.model.use_remove_padding": False,  # rests on flash attention
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,  # time for memory that small models do not need
    f"{ACTOR}.use_torch_compile": False,  # minutes of compiling
    f"{ACTOR}.fsdp_config.use_torch_compile": False,  # the same
    f"{REF}.fsdp_config.use_torch_compile": False,  # the same
    # FSDP computes in bf16, slow and coarse here.
    f"{ACTOR}.fsdp_config.mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32"},
    f"{REF}.fsdp_config.mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32"},
    f"{ROLLOUT}.dtype": "float32",  # vLLM samples from other probabilities than are trained
    f"{ROLLOUT}.enforce_eager": True,  # minutes of compiling
    f"{ROLLOUT}.free_cache_engine": False,  # the sleep mode is made of CUDA's memory pools
    f"{ROLLOUT}.enable_sleep_mode": False,  # the same
    f"{ROLLOUT}.max_num_seqs": 64,  # buffers for 256
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 16,  # 2 GiB of shared memory
}
