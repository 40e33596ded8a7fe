"""Writes tests/plugins/local/architectures.md: what the local backbone does with architectures of transformers, each tried as a small
random model. A test compares the page with it.

python tools/architectures_table.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from ajet_local.support import PARTS, support_of

PAGE = Path(__file__).resolve().parents[1] / "tests" / "plugins" / "local" / "architectures.md"
HEAD = """# Architectures on the local backbone

`python tools/architectures_table.py` writes this page; [its guide](../../../docs/models.md#architectures-on-the-local-backbone)
says what is tried.

- **memory**: a job that needs more than there is is refused before it starts, by an estimate ([Planning](../../../docs/plan.md)),
  which does not count adapters in fused experts.
- **engine**: *a row for each context* is as exact, and slower: nothing that contexts share is read once.
- **trees**: a model without them is trained on rows, where shared tokens are computed again.
- **adapters**: on all linear layers but the head, the default of `targets.NAME.lora`. peft also adapts the fused experts and the
  routers of some architectures, a matrix of the adapter's rank for each expert; in the others, train all weights to train the experts.

"""
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


def page() -> str:
    """The page."""
    return HEAD + "\n".join(table()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
