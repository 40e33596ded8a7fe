"""Logprobs and entropies of tokens without the logits of all of them.

A token of a vocabulary of 152,000 has 0.6 MB of logits in float32, and autograd keeps several copies. So the output layer is
computed for as many tokens at a time as `LOGITS` bytes have room for, and again in the backward pass, which adds the chunk's
gradients to those before: memory does not grow with the tokens. The values are those of the model's own logits.

Kernels of libraries are not used: those that give the logprob and the entropy of each token (Liger's
``LigerFusedLinearScaledCrossEntropyFunction``, verl's ``FusedLinearForPPO``) know one temperature, no cap on logits and no bias,
and compute chunks with torch, too, except on one generation of GPUs; cut-cross-entropy has no entropy. None knows a support.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.nn.functional import linear

from ajet_trees.cost import LOGITS

log = logging.getLogger("ajet")

SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
"""The names of what models multiply logits by, or divide them by, in their configurations."""
CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""The names of the bound c with which models replace logits x by c · tanh(x / c)."""
EXCLUDED = -1e30
"""A logit whose probability is exactly 0. Infinite ones would make the entropy 0 · ∞."""
ROWS = 8192
"""Rows of the output layer whose gradient is computed at once."""
TRIED, WIDEST = 8, 60.0
"""How many tokens a model's logits are tried with, and the largest of them: a cap changes large ones alone."""


@dataclass(frozen=True, slots=True)
class Head:
    """A model's output layer, and what its forward pass does with the logits: times ``scale``, then within ±``cap``."""

    layer: torch.nn.Linear
    scale: float = 1.0
    cap: float | None = None
    excluded: torch.Tensor | None = None
    """int64[K]: the ids that `exclude` was given."""

    def adjusted(self, logits: torch.Tensor) -> torch.Tensor:
        """The model's logits, from those of the output layer, which are overwritten."""
        if self.scale != 1:
            logits *= self.scale
        if self.cap is not None:
            logits.div_(self.cap).tanh_().mul_(self.cap)
        return logits


@dataclass(frozen=True, slots=True)
class Support:
    """The tokens that have a probability at N positions; the others have none. Tensors are on the device of the model."""

    offsets: np.ndarray
    """int64[N + 1]: where those of each position begin in ``rows`` and ``tokens``."""
    rows: torch.Tensor
    """int64[M]: the position of each."""
    tokens: torch.Tensor
    """int64[M]."""
    free: torch.Tensor
    """bool[N]: the positions where all tokens have a probability, of which none is listed."""

    @classmethod
    def of(cls, counts: np.ndarray, tokens: np.ndarray, device: torch.device) -> Support:
        """From the number of tokens at each position, 0 for all, and the tokens of one position after the other."""
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        rows = torch.as_tensor(np.repeat(np.arange(len(counts)), counts), device=device)
        listed = torch.as_tensor(tokens, dtype=torch.long, device=device)
        return cls(offsets, rows, listed, torch.as_tensor(counts == 0, device=device))

    def __getitem__(self, part: slice) -> Support:
        """That of a range of positions."""
        start, stop, _ = part.indices(len(self.free))
        of_part = slice(self.offsets[start], self.offsets[stop])
        rows, tokens = self.rows[of_part] - start, self.tokens[of_part]
        return Support(self.offsets[start : stop + 1] - self.offsets[start], rows, tokens, self.free[part])

    def within(self, logits: torch.Tensor) -> torch.Tensor:
        """``logits`` [N, V] with `EXCLUDED` for the tokens outside."""
        index = self.rows, self.tokens
        inside = torch.full_like(logits, EXCLUDED).index_put(index, logits[index])
        return torch.where(self.free[:, None], logits, inside)


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a model says of the next token at some positions."""

    states: torch.Tensor
    """float[…, H]: what its output layer receives."""
    head: Head | None
    logits: torch.Tensor | None = None
    """float[…, V], if ``head`` is None."""

    def __getitem__(self, index: Any) -> Predictions:
        """Those at some of the positions."""
        logits = None if self.logits is None else self.logits[index]
        return replace(self, states=self.states[index], logits=logits)

    def logprobs(
        self,
        tokens: torch.Tensor,
        temperatures: torch.Tensor,
        support: Support | None = None,
        *,
        entropy: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The logprobs of ``tokens`` (int64[N]) at N positions, and if asked for, the entropies in nats of the distributions: those of
        ``softmax(logits / temperatures)``, within ``support`` if one is given, in float32 or in the type of the logits if that is
        more precise. ``temperatures`` is [N]."""
        if self.head is None:
            logprobs = self.whole(temperatures, support)
            of_tokens = logprobs.gather(1, tokens[:, None])[:, 0]
            return of_tokens, -(logprobs.exp() * logprobs).sum(-1) if entropy else None
        layer = self.head.layer
        of_tokens, entropies = _Logprobs.apply(
            self.states, layer.weight, layer.bias, tokens, temperatures, self.head, support, entropy
        )
        return of_tokens, entropies if entropy else None

    def whole(self, temperatures: torch.Tensor, support: Support | None = None) -> torch.Tensor:
        """The logprobs of the whole vocabulary at N positions, [N, V]: for losses that compare distributions."""
        logits = self.logits
        if logits is None:
            assert self.head is not None
            logits = self.head.layer(self.states)
            if self.head.scale != 1:
                logits = logits * self.head.scale
            if self.head.cap is not None:
                logits = (logits / self.head.cap).tanh() * self.head.cap
            logits = _without(logits, self.head.excluded)
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperatures[:, None]
        return torch.log_softmax(exact if support is None else support.within(exact), dim=-1)


def predict(model: Any, **inputs: Any) -> Predictions:
    """A pass of ``model``, with gradients: its predictions [B, K] at the positions for which ``inputs`` ask for logits."""
    head = head_of(model)
    states: list[torch.Tensor] = []

    def taken(layer: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        states.append(given[0])
        return None if head is None else (given[0][:, :0],)  # no logits

    with _before(model.get_output_embeddings(), taken):
        logits = model(**inputs).logits
    return Predictions(states[0], head, logits if head is None else None)


def exclude(model: Any, ids: Sequence[int]) -> None:
    """Give the token ids ``ids`` the probability 0, in the model's own logits and in `predict`: a model may have more rows than its
    tokenizer has tokens, and what cannot be decoded is neither sampled nor part of what training normalises over."""
    model.register_buffer("ajet_excluded", torch.tensor(ids, device=model.device), persistent=False)
    model.register_forward_hook(_exclude_from)


def _exclude_from(model: Any, given: Any, output: Any) -> Any:
    output.logits = _without(output.logits, model.ajet_excluded)
    return output


def _without(logits: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    if ids is None:
        return logits
    return logits.index_fill(-1, ids, max(EXCLUDED, torch.finfo(logits.dtype).min))


# --------------------------------------------------------------------------- which models

_heads: WeakKeyDictionary[Any, tuple[Any, Head | None]] = WeakKeyDictionary()


def head_of(model: Any) -> Head | None:
    """The model's head, found once; None if its logits are computed otherwise, which is reported. Then all logits exist at once."""
    layer = model.get_output_embeddings()
    known = _heads.get(model)
    if known is None or known[0] is not layer:  # an adapter has replaced the layer
        head = _found(model)
        if isinstance(head, str):
            log.warning("all logits of a micro-batch are kept in memory: %s.", head)
        _heads[model] = known = (layer, None if isinstance(head, str) else head)
    return known[1]


@torch.no_grad()
def _found(model: Any) -> Head | str:
    """The head whose logits are those of the model, for states whose logits are large; or why there is none."""
    layer = model.get_output_embeddings()
    if type(layer) is not torch.nn.Linear:
        return f"its output layer is of the class {type(layer).__name__}"
    raw: list[torch.Tensor] = []

    def widened(layer: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        states = layer.weight[:TRIED]
        largest = linear(states, layer.weight, layer.bias).abs().max()
        return ((states * (WIDEST / largest)).to(given[0].dtype)[None],)

    with (
        _before(layer, widened),
        _after(layer, lambda layer, given, logits: raw.append(logits[0].clone())),
    ):
        ids = torch.arange(TRIED, device=model.device)[None]
        logits = model(input_ids=ids, use_cache=False).logits[0]
    if len(raw) != 1 or raw[0].shape != logits.shape:
        return "its logits are not those of one output layer"
    excluded = getattr(model, "ajet_excluded", None)
    if excluded is not None:
        raw, logits = [raw[0].index_fill(-1, excluded, 0.0)], logits.index_fill(-1, excluded, 0.0)
    tolerance = 4 * torch.finfo(raw[0].dtype).eps * logits.abs().max()
    for head in _candidates(model.config.get_text_config(), layer):
        if (head.adjusted(raw[0].clone()) - logits).abs().max() <= tolerance:
            return replace(head, excluded=excluded)
    return "its forward pass changes the logits of the output layer in another way than by a scale and a cap"


def _candidates(config: Any, layer: torch.nn.Linear) -> Iterator[Head]:
    """Heads with the numbers of a configuration, those that use most of them first."""

    def numbers(names: tuple[str, ...]) -> list[float]:
        values = [getattr(config, name, None) for name in names]
        return [float(n) for n in values if isinstance(n, int | float) and n > 0]

    scales = [s for n in numbers(SCALES) for s in (n, 1 / n)]
    for cap, scale in product([*numbers(CAPS), None], [*scales, 1.0]):
        yield Head(layer, scale, cap)


@contextmanager
def _before(layer: Any, hook: Any) -> Iterator[None]:
    handle = layer.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _after(layer: Any, hook: Any) -> Iterator[None]:
    handle = layer.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


# --------------------------------------------------------------------------- chunks


class _Logprobs(torch.autograd.Function):
    """`Predictions.logprobs`, chunk by chunk. With p the probabilities and H the entropy of a position, the gradients for its
    logits are onehot(token) - p of the logprob, and -p · (log p + H) of the entropy."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        tokens: torch.Tensor,
        temperatures: torch.Tensor,
        head: Head,
        support: Support | None,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        kind = states.device.type
        ctx.dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        ctx.head, ctx.support = head, support
        exact = torch.promote_types(ctx.dtype, torch.float32)
        of_tokens = torch.empty(len(states), dtype=exact, device=states.device)
        entropies = torch.empty_like(of_tokens) if entropy else None
        ctx.size = max(1, LOGITS // (weight.shape[0] * exact.itemsize))
        layer = _Layer(weight, bias, ctx.dtype)
        kept = None
        for part in _parts(len(states), ctx.size):
            logprobs, _ = layer.logprobs(states[part], temperatures[part], head, support and support[part])
            of_tokens[part] = logprobs.gather(1, tokens[part, None])[:, 0]
            if entropies is not None:
                entropies[part] = -(logprobs.exp().mul_(logprobs)).sum(-1)
            if len(states) <= ctx.size and head.cap is None and any(ctx.needs_input_grad):
                kept = logprobs  # there is room for one chunk, so it is not computed again
        ctx.save_for_backward(states, weight, bias, tokens, temperatures, entropies, kept)
        ctx.set_materialize_grads(False)
        return of_tokens, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_found: torch.Tensor | None, of_entropies: torch.Tensor | None) -> Any:
        states, weight, bias, tokens, temperatures, entropies, kept = ctx.saved_tensors
        head, support, needed = ctx.head, ctx.support, ctx.needs_input_grad
        layer = _Layer(weight, bias, ctx.dtype)
        exact = torch.promote_types(ctx.dtype, torch.float32)
        rates = head.scale / temperatures.to(exact)
        of_found = torch.zeros_like(rates) if of_found is None else of_found * rates
        of_states = torch.empty_like(states) if needed[0] else None
        of_weight = of_bias = None
        for part in _parts(len(states), ctx.size):
            capped = None
            logprobs = kept
            if kept is None:
                within = support and support[part]
                logprobs, capped = layer.logprobs(states[part], temperatures[part], head, within)
            gradient = logprobs.exp()
            if of_entropies is None:
                gradient.mul_(-of_found[part, None])
            else:
                of_entropy = (of_entropies[part] * rates[part])[:, None]
                factors = (logprobs + entropies[part, None]).mul_(of_entropy).add_(of_found[part, None])
                gradient.mul_(factors.neg_())
                del factors
            del logprobs
            gradient.scatter_add_(1, tokens[part, None], of_found[part, None])
            if capped is not None:
                gradient.mul_(capped.div_(head.cap).square_().neg_().add_(1))
            if needed[2]:
                of_bias = gradient.sum(0) if of_bias is None else of_bias.add_(gradient.sum(0))
            gradient = gradient.to(ctx.dtype)
            if of_states is not None:
                of_states[part] = gradient @ layer.weight
            if needed[1]:
                own = states[part].to(ctx.dtype)
                if of_weight is None:
                    of_weight = torch.zeros_like(weight, dtype=exact)
                for rows in _parts(len(weight), ROWS):  # without a second gradient of all, in ctx.dtype
                    of_weight[rows] += gradient[:, rows].T @ own
        return (
            of_states,
            None if of_weight is None else of_weight.to(weight.dtype),
            None if of_bias is None else of_bias.to(bias.dtype),
            *[None] * 5,
        )


class _Layer:
    """An output layer in the type of the computations."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        self.weight = weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)

    def logprobs(
        self, states: torch.Tensor, temperatures: torch.Tensor, head: Head, support: Support | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The logprobs [n, V] at n positions, and with a cap the logits before the temperature."""
        logits = head.adjusted(linear(states.to(self.weight.dtype), self.weight, self.bias))
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        capped = None
        if head.cap is not None:
            capped = exact.clone()
        exact = _without(exact.div_(temperatures[:, None]), head.excluded)
        return torch.log_softmax(exact if support is None else support.within(exact), dim=-1), capped


def _parts(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, start + size)
