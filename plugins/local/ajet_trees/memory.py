"""What training and sampling keep in a device's memory, in bytes.

The formulas follow what autograd saves for transformers' decoder layers of the Llama kind, tensor by tensor, as if every
token of a micro-batch were trained. tests/estimate compares them with measured peaks and with published ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from ajet.estimate.shape import FLOAT32, QUANTIZED, ModelShape

EIGHT_BITS = 1 + FLOAT32 / 256
"""Bytes of a moment in 8 bits, which shares a scale with its block of 256 (Dettmers et al., arXiv:2110.02861)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the weights of a model are trained by AdamW. Trained weights, gradients and, without ``eight_bits``, moments are
    float32."""

    shape: ModelShape
    number: int
    """Bytes of one number in the model's computations."""
    stream: int | None = None
    """Bytes of a number between the layers; None: of those that the embedding has (float32 if all weights are trained)."""
    adapters: int | None = None
    """Number of weights of all adapters together; None: the model's own weights are trained."""
    trained: int = 0
    """Number of weights of the trained adapters."""
    quantized: bool = False
    """Whether the linear layers below adapters have 4 bits a weight."""
    eight_bits: bool = False
    """Whether AdamW's moments have 8 bits."""
    checkpointing: bool = False
    """Whether only each layer's input is kept, and the rest computed again."""
    entropy: bool = False
    """Whether the loss needs the entropy of each token."""
    exact_logits: bool = True
    """Whether logprobs are computed in float32; False: by a kernel that works in place."""
    chunk: int | None = None
    """Most bytes of one copy of the logits in float32, which are computed chunk by chunk; None: those of all tokens exist at once."""
    fused_chunk: int = 0
    """Most bytes of the logits of a fused head, in the type of the computations; 0: it is not fused."""

    @property
    def whole(self) -> bool:
        """Whether the model's own weights are trained."""
        return self.adapters is None

    @property
    def updated(self) -> int:
        """Number of trained weights."""
        return self.shape.parameters if self.whole else self.trained

    @property
    def weights(self) -> int:
        """Bytes of the model's own weights."""
        if self.whole:
            return self.shape.parameters * FLOAT32
        if not self.quantized:
            return self.shape.parameters * self.number
        linear = self.shape.linear_parameters
        return int(linear * QUANTIZED) + (self.shape.parameters - linear) * self.number

    @property
    def gradients(self) -> int:
        """Bytes of the gradients, which exist while a mini-batch is divided into micro-batches."""
        return self.updated * FLOAT32

    @property
    def moments(self) -> int:
        """Bytes of AdamW's two moments."""
        return int(2 * self.updated * (EIGHT_BITS if self.eight_bits else FLOAT32))

    @property
    def converted(self) -> int:
        """Bytes of weights in the type of the computations, beside those that `weights` counts. Without checkpointing autograd
        keeps all of them; with it, they are freed layer by layer, and the head is the largest."""
        if self.quantized:
            return max(i * o for i, o in self.shape.linear.values()) * self.number
        if not self.whole or self.number == FLOAT32:
            return 0
        return (self.shape.embedding if self.checkpointing else self.shape.multiplied) * self.number

    def activations(self, tokens: int) -> int:
        """Peak bytes of a micro-batch: what autograd saves until the backward pass, and the larger of what the logits and one
        layer's gradients take."""
        layer, backward = self.layer, self._backward
        kept = self.shape.layers * (self._stream * self.shape.hidden if self.checkpointing else layer)
        again = layer if self.checkpointing else 0
        return tokens * kept + max(self._logits(tokens), tokens * (again + backward))

    @property
    def layer(self) -> int:
        """Bytes that a layer saves of each token."""
        s, c, stream = self.shape, self.number, self._stream
        if s.saved is not None:
            return s.saved[max(c, stream) == FLOAT32] // s.layers
        # A norm saves its input in float32; if its weight is trained, also what this is multiplied with.
        norms = 2 * s.hidden * (FLOAT32 + (stream if self.whole else 0))
        if s.head_norms:
            norms += (s.queries + s.keys) * (FLOAT32 + (c if self.whole else 0))
        attention = 4 * s.queries * c  # queries, repeated keys and values, outputs
        inner = 3 * s.inner * c  # gate, its activation, up
        return norms + attention + inner + self._inputs

    @property
    def _inputs(self) -> int:
        """Bytes of the inputs of linear layers, of each token. A conversion makes a copy for each layer that reads an input."""
        s, c = self.shape, self.number
        if self.whole:
            copies = 2 if c == self._stream else 5
            return copies * s.hidden * c + s.inner * c
        if c == FLOAT32:  # the attention's output is kept already
            return (2 * s.hidden + s.inner) * FLOAT32
        return (5 * s.hidden + s.queries + s.inner) * FLOAT32  # adapters convert what they read to float32

    @property
    def _stream(self) -> int:
        if self.stream is not None:
            return self.stream
        return FLOAT32 if self.whole else self.number

    @property
    def _backward(self) -> int:
        """Bytes of the gradients that exist at once in a layer's backward pass, of each token."""
        return 3 * self.shape.inner * self.number + self.shape.hidden * FLOAT32

    def _logits(self, tokens: int) -> int:
        """Bytes of the logits of so many tokens. All at once: as logprobs, their gradient, and that before; the entropy needs two
        more. A chunk: as logprobs and their gradient, with the entropy once more, else in the type of the computations if that is
        another; and the gradient of a trained head beside that of the tokens before. A fused chunk: once, if that is more. In place: as
        computed, divided by the temperature, and the gradient."""
        numbers = tokens * self.shape.vocabulary
        if not self.exact_logits:
            return numbers * self.number * (5 if self.entropy else 3)
        if self.chunk is None:
            return numbers * FLOAT32 * (5 if self.entropy else 3)
        converted = self.number / FLOAT32 if self.number < FLOAT32 else 0
        head = self.shape.embedding * FLOAT32 if self.whole else 0
        chunk = int(min(numbers * FLOAT32, self.chunk) * (3 if self.entropy else 2 + converted))
        return head + max(chunk, min(numbers * self.number, self.fused_chunk))
