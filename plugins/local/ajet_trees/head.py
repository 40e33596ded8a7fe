"""Logprobs and entropies of tokens without the logits of all of them.

A token of a vocabulary of 152,000 has 0.6 MB of logits in float32, and autograd keeps several copies. So the output layer is
computed for as many tokens at a time as `LOGITS` bytes have room for, and again in the backward pass, which adds the chunk's
gradients to those before: memory does not grow with the tokens. The values are those of the model's own logits.

Kernels of libraries are not used: those that give the logprob and the entropy of each token (Liger's
``LigerFusedLinearScaledCrossEntropyFunction``, verl's ``FusedLinearForPPO``) know one temperature, no cap on logits and no bias,
and compute chunks with torch, too, except on one generation of GPUs; cut-cross-entropy has no entropy, and
torch's ``linear_cross_entropy`` no temperature either. None knows a support.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.nn.functional import linear, pad

from ajet_trees.cost import FUSED_LOGITS, LOGITS

log = logging.getLogger("ajet")

SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
"""The names of what models multiply logits by, or divide them by, in their configurations."""
CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""The names of the bound c with which models replace logits x by c · tanh(x / c)."""
EXCLUDED = -1e30
"""A logit whose probability is exactly 0. Infinite ones would make the entropy 0 · ∞."""
BLOCK = 1024
"""Logits of a position that are summed at once in compiled kernels."""
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
    kernels: tuple[Callable[..., Any], ...] | None = None
    """`_normalised` and `_overwritten`, compiled; None: the head is computed by operations of torch."""

    def at_once(self, dtype: torch.dtype) -> int:
        """How many tokens have their logits at once, if these are computed in ``dtype``."""
        if self.kernels is None:
            dtype, most = torch.promote_types(dtype, torch.float32), LOGITS
        else:
            most = FUSED_LOGITS
        return max(1, most // (self.layer.weight.shape[0] * dtype.itemsize))

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
    """int64[N + 1]: where those of each position begin in ``rows`` and ``tokens``. Where none is listed, all have a probability."""
    rows: torch.Tensor
    """int64[M]: the position of each."""
    tokens: torch.Tensor
    """int64[M]."""

    @classmethod
    def of(cls, counts: np.ndarray, tokens: np.ndarray, device: torch.device) -> Support:
        """From the number of tokens at each position, 0 for all, and the tokens of one position after the other."""
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        rows = torch.as_tensor(np.repeat(np.arange(len(counts)), counts), device=device)
        return cls(offsets, rows, torch.as_tensor(tokens, dtype=torch.long, device=device))

    def __getitem__(self, part: slice) -> Support:
        """That of a range of positions."""
        start, stop, _ = part.indices(len(self.offsets) - 1)
        of_part = slice(self.offsets[start], self.offsets[stop])
        rows, tokens = self.rows[of_part] - start, self.tokens[of_part]
        return Support(self.offsets[start : stop + 1] - self.offsets[start], rows, tokens)

    def within(self, logits: torch.Tensor) -> torch.Tensor:
        """``logits`` [N, V], which are overwritten with `EXCLUDED` for the tokens outside."""
        index = self.rows, self.tokens
        inside = logits[index]
        limited = torch.as_tensor(np.flatnonzero(np.diff(self.offsets)), device=logits.device)
        return logits.index_fill_(0, limited, _excluded(logits.dtype)).index_put_(index, inside)


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
    return logits.index_fill(-1, ids, _excluded(logits.dtype))


def _excluded(dtype: torch.dtype) -> float:
    return max(EXCLUDED, torch.finfo(dtype).min)


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


def fuse_head(model: Any, compiled: Callable[[Any], Any] | None) -> None:
    """Compute the model's head, if it has one, with kernels that ``compiled`` makes of functions; None: with operations of torch."""
    head = head_of(model)
    if head is not None:
        kernels = compiled and (compiled(_normalised), compiled(_overwritten))
        _heads[model] = (head.layer, replace(head, kernels=kernels))


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
        found = [torch.empty(len(states), dtype=exact, device=states.device) for _ in range(3)]
        ctx.size = head.at_once(ctx.dtype)
        layer = _Layer(head, weight, bias, ctx.dtype)
        kept = None
        for part in _parts(len(states), ctx.size):
            asked = states[part], tokens[part], temperatures[part], support and support[part]
            *values, chunk = layer.values(*asked, entropy)
            for numbers, of_part in zip(found, values, strict=False):
                numbers[part] = of_part
            if len(states) <= ctx.size and any(ctx.needs_input_grad):
                kept = chunk  # there is room for one chunk, so it is not computed again
            del values, chunk
        of_tokens, entropies, sums = found
        ctx.save_for_backward(states, weight, bias, tokens, temperatures, entropies, sums, kept)
        ctx.set_materialize_grads(False)
        return of_tokens, entropies if entropy else None

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_found: torch.Tensor | None, of_entropies: torch.Tensor | None) -> Any:
        states, weight, bias, tokens, temperatures, entropies, sums, kept = ctx.saved_tensors
        head, support, needed = ctx.head, ctx.support, ctx.needs_input_grad
        layer = _Layer(head, weight, bias, ctx.dtype)
        exact = torch.promote_types(ctx.dtype, torch.float32)
        rates = head.scale / temperatures.to(exact)
        of_found = torch.zeros_like(rates) if of_found is None else of_found * rates
        of_entropies = None if of_entropies is None else of_entropies * rates
        of_states = torch.empty_like(states) if needed[0] else None
        of_weight = of_bias = None
        for part in _parts(len(states), ctx.size):
            asked = states[part], tokens[part], temperatures[part], support and support[part]
            wanted = of_found[part], None if of_entropies is None else of_entropies[part]
            gradient = layer.gradient(*asked, *wanted, entropies[part], sums[part], kept)
            if needed[2]:
                of_part = gradient.sum(0, dtype=exact)
                of_bias = of_part if of_bias is None else of_bias.add_(of_part)
            gradient = gradient.to(ctx.dtype)
            if of_states is not None:
                of_states[part] = gradient @ layer.weight
            if needed[1]:
                own = states[part].to(ctx.dtype)
                if of_weight is None:
                    of_weight = torch.zeros_like(weight, dtype=exact)
                for rows in _parts(len(weight), ROWS):  # without a second gradient of all, in ctx.dtype
                    of_weight[rows] += gradient[:, rows].T @ own
            del gradient
        return (
            of_states,
            None if of_weight is None else of_weight.to(weight.dtype),
            None if of_bias is None else of_bias.to(bias.dtype),
            *[None] * 5,
        )


class _Layer:
    """An output layer in the type of the computations, and what its logits [n, V] at n positions say of tokens there. With compiled
    kernels the logits exist once, in that type, and their gradient in the same place."""

    def __init__(
        self, head: Head, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        self.head = head
        self.weight = weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)

    def values(
        self,
        states: torch.Tensor,
        tokens: torch.Tensor,
        temperatures: torch.Tensor,
        support: Support | None,
        entropy: bool,
    ) -> tuple[torch.Tensor | None, ...]:
        """The logprobs of the tokens, entropies if asked for, and at the end what saves `gradient` from computing the logits again."""
        if self.head.kernels is not None:
            logits = self._limited(states, support)
            chosen = logits.gather(1, tokens[:, None])  # a compiler may read all logits for it
            rates, bend = self._adjusting(temperatures)
            return *self.head.kernels[0](logits, chosen, rates * math.log2(math.e), bend), logits
        logprobs, _ = self._logprobs(states, temperatures, support)
        of_tokens = logprobs.gather(1, tokens[:, None])[:, 0]
        kept = logprobs if self.head.cap is None else None
        if not entropy:
            return of_tokens, kept
        return of_tokens, -(logprobs.exp().mul_(logprobs)).sum(-1), kept

    def gradient(
        self,
        states: torch.Tensor,
        tokens: torch.Tensor,
        temperatures: torch.Tensor,
        support: Support | None,
        of_found: torch.Tensor,
        of_entropies: torch.Tensor | None,
        entropies: torch.Tensor,
        sums: torch.Tensor,
        kept: torch.Tensor | None,
    ) -> torch.Tensor:
        """The gradient for the layer's output, from those for the logprobs and the entropies, which include the derivatives of scale
        and temperature."""
        if self.head.kernels is not None:
            logits = self._limited(states, support) if kept is None else kept
            of_entropies = torch.zeros_like(of_found) if of_entropies is None else of_entropies
            wanted = of_found, of_entropies, entropies, sums
            self.head.kernels[1](logits, tokens, *wanted, *self._adjusting(temperatures))
            return logits
        logprobs, capped = kept, None
        if logprobs is None:
            logprobs, capped = self._logprobs(states, temperatures, support)
        gradient = logprobs.exp()
        if of_entropies is None:
            gradient.mul_(-of_found[:, None])
        else:
            factors = (logprobs + entropies[:, None]).mul_(of_entropies[:, None]).add_(of_found[:, None])
            gradient.mul_(factors.neg_())
            del factors
        del logprobs
        gradient.scatter_add_(1, tokens[:, None], of_found[:, None])
        if capped is not None:
            gradient.mul_(capped.div_(self.head.cap).square_().neg_().add_(1))
        return gradient

    def _logprobs(
        self, states: torch.Tensor, temperatures: torch.Tensor, support: Support | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The logprobs [n, V], and with a cap the logits before the temperature."""
        logits = self.head.adjusted(self._output(states))
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        capped = None
        if self.head.cap is not None:
            capped = exact.clone()
        exact = _without(exact.div_(temperatures[:, None]), self.head.excluded)
        return torch.log_softmax(exact if support is None else support.within(exact), dim=-1), capped

    def _limited(self, states: torch.Tensor, support: Support | None) -> torch.Tensor:
        """What compiled kernels take: the layer's output, with `EXCLUDED` for tokens without a probability."""
        logits = self._output(states)
        if self.head.excluded is not None:
            logits.index_fill_(1, self.head.excluded, _excluded(logits.dtype))
        return logits if support is None else support.within(logits)

    def _adjusting(self, temperatures: torch.Tensor) -> tuple[torch.Tensor, float | None]:
        """The last arguments of `_adjusted`. As few as can be: the compiler computes once and stores what reads many."""
        temperatures = temperatures.to(torch.promote_types(self.weight.dtype, torch.float32))
        if self.head.cap is None:
            return self.head.scale / temperatures, None
        return self.head.cap / temperatures, self.head.scale / self.head.cap

    def _output(self, states: torch.Tensor) -> torch.Tensor:
        return linear(states.to(self.weight.dtype), self.weight, self.bias)


def _normalised(
    logits: torch.Tensor, chosen: torch.Tensor, rates: torch.Tensor, bend: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logprobs, entropies and logarithms of sums of exponentials, each float32[n], of ``logits`` [n, V]; ``chosen`` are those of the
    tokens, [n, 1]. `_adjusted` makes them exponents of 2. `BLOCK` of them fit into registers, so they are read once for their maximum
    and sums, which are then combined as in online softmax (Milakov and Gimelshein, arXiv:1805.02867)."""
    exact = _adjusted(logits, rates, bend)[0]
    blocks = pad(exact, (0, -exact.shape[1] % BLOCK), value=EXCLUDED).unflatten(1, (-1, BLOCK))
    largest = blocks.amax(-1)
    below = blocks - largest[..., None]
    shares = below.exp2()
    sums, weighted = shares.sum(-1), (shares * below).sum(-1)
    top = largest.amax(1, keepdim=True)
    below = largest - top
    shares = below.exp2()
    total = (shares * sums).sum(1)
    mean = (shares * (weighted + below * sums)).sum(1) / total
    whole = top[:, 0] + total.log2()
    found = _adjusted(chosen, rates, bend)[0][:, 0] - whole, total.log2() - mean, whole
    return found[0] * math.log(2), found[1] * math.log(2), found[2] * math.log(2)


def _overwritten(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    of_found: torch.Tensor,
    of_entropies: torch.Tensor,
    entropies: torch.Tensor,
    sums: torch.Tensor,
    rates: torch.Tensor,
    bend: float | None,
) -> None:
    """Put `_Layer.gradient` in the place of ``logits`` [n, V]; ``sums`` are the logarithms that `_normalised` gives."""
    exact, bent = _adjusted(logits, rates, bend)
    logprobs = exact - sums[:, None]
    factors = of_found[:, None] + of_entropies[:, None] * (logprobs + entropies[:, None])
    here = torch.arange(logits.shape[1], device=logits.device) == tokens[:, None]
    gradient = torch.where(here, of_found[:, None], 0.0) - logprobs.exp() * factors
    logits.copy_(gradient if bent is None else gradient * (1 - bent.square()))


def _adjusted(
    logits: torch.Tensor, rates: torch.Tensor, bend: float | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``rates`` [n] times the logits, in the type of the rates; with a cap, times tanh(bend · logits), and that tanh."""
    exact = logits.to(rates.dtype)
    if bend is None:
        return exact * rates[:, None], None
    bent = (exact * bend).tanh()
    return torch.where(exact > _excluded(logits.dtype) / 2, bent * rates[:, None], EXCLUDED), bent


def _parts(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, start + size)
