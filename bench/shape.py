"""The shape of the models in benchmarks of the local backbone: the starter's, with 1.4 million parameters."""

from __future__ import annotations

from typing import Any

SHAPE: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 432,
    "num_hidden_layers": 4,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "head_dim": 32,
    "tie_word_embeddings": True,
}
