"""A model of a few thousand weights, for tests that train."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save_tiny_model(folder: Path, tokenizer: Any, context: int = 256) -> Path:
    """A random Qwen3 of two layers with this tokenizer, for chats of ``context`` tokens; returns the folder."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
