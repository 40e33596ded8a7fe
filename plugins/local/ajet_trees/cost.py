"""What decides the cost of a forward pass, to which the backward pass is proportional; and the memory of its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

BLOCK_FLOPS = 3e6
"""Fixed cost of a block of attention, as the floating-point operations that a core computes in the same time."""
PASS_BLOCKS = 2
"""Extra cost of a forward pass over a tree compared with one over rows, in blocks."""
LOGITS = 1 << 28
"""Most bytes of logits at once: those of 440 tokens of a vocabulary of 152,000, enough for fast matrix products."""
FUSED_LOGITS = 1 << 30
"""The same with compiled kernels, for which logits are in the type of the computations: 3500 tokens in bfloat16. The gradient of
the output layer is added to that in float32 once for each chunk, so there should be few. Indices of them fit into 32 bits."""


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of a model."""

    token: float
    """Of a token, without its attention."""
    pair: float
    """Of a pair of query and key, in all layers."""
    block: float
    """Of a block of attention in all layers, besides its pairs."""

    @classmethod
    def of(cls, model: Any) -> Self:
        """Those of a model, which may be on the device "meta". Of the experts of a layer, only those that a token uses count."""
        config = model.config.get_text_config()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        embedded = model.get_input_embeddings().weight.numel()
        weights = sum(p.numel() for p in model.parameters())
        experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
        if experts:
            of_experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
            weights -= of_experts - of_experts * config.num_experts_per_tok // experts
        return cls(
            token=2 * max(weights - embedded, embedded),
            pair=4 * config.num_hidden_layers * config.num_attention_heads * size,
            block=BLOCK_FLOPS * config.num_hidden_layers,
        )
