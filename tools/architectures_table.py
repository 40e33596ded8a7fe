"""Writes the table of docs/models.md: what the local backbone does with architectures of transformers, each tried as a small random
model. A test compares the page with it.

python tools/architectures_table.py docs/models.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tables
from transformers import AutoConfig

from ajet_local.support import PARTS, support_of

DELTA = {"layer_types": ["linear_attention", "full_attention"]}
ARCHITECTURES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("Llama 3", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "ministral3": ("Ministral 3", {}),
    "qwen2": ("Qwen2.5", {}),
    "qwen3": ("Qwen3", {}),
    "qwen3_moe": ("Qwen3-MoE", {}),
    "qwen3_next": ("Qwen3-Next", DELTA),
    "qwen3_5_text": ("Qwen3.5", DELTA),
    "qwen3_5_moe_text": ("Qwen3.5-MoE", DELTA),
    "gpt_oss": ("gpt-oss", {}),
    "mixtral": ("Mixtral", {"sliding_window": None}),
    "olmo2": ("OLMo 2", {}),
    "olmo3": ("OLMo 3", {}),
    "olmoe": ("OLMoE", {}),
    "olmo_hybrid": ("OLMo hybrid", DELTA),
    "gemma2": ("Gemma 2", {}),
    "gemma3_text": ("Gemma 3", {}),
    "gemma4_text": ("Gemma 4", {}),
    "phi3": ("Phi-3, Phi-4", {}),
    "smollm3": ("SmolLM3", {}),
    "granite": ("Granite 3", {}),
    "granitemoehybrid": ("Granite 4", {"layer_types": ["mamba", "attention"]}),
    "nemotron_h": ("Nemotron-H, Nemotron 3", {}),
    "lfm2": ("LFM2", {"layer_types": ["conv", "full_attention"]}),
    "falcon_h1": ("Falcon-H1", {}),
    "glm4": ("GLM-4", {}),
    "glm4_moe": ("GLM-4.5", {}),
    "deepseek_v3": ("DeepSeek-V3", {}),
    "cohere2": ("Command A", {}),
    "exaone4": ("EXAONE 4", {}),
    "seed_oss": ("Seed-OSS", {}),
    "apertus": ("Apertus", {}),
}
"""Architectures of transformers, the models that have them, and what in their configuration decides which layers there are."""


def table() -> Iterator[str]:
    """The lines of the table."""
    yield f"| architecture | models | {' | '.join(PARTS)} |"
    yield f"|---|---|{'---|' * len(PARTS)}"
    for name, (models, kinds) in ARCHITECTURES.items():
        if layers := kinds.get("layer_types"):
            kinds = {**kinds, "num_hidden_layers": len(layers)}
        found = support_of(AutoConfig.for_model(name, **kinds))
        yield f"| `{name}` | {models} | {' | '.join(found.values())} |"


def with_table(page: str) -> str:
    """A page with the table between its marks."""
    return tables.with_table(page, "architectures_table.py", table())


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
