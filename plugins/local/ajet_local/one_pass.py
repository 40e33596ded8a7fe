"""Checks, when a model is loaded, that it samples and trains with the logprobs that one plain pass gives.

Architectures differ in what their layers keep of a context. Instead of a list of those that are known, a few tokens are
sampled with the engine's own scheduler, from prompts of different lengths, one of them the beginning of another, and in a
second turn; and two rows are computed as the trainer does. A model whose logprobs differ is refused: it would learn
from probabilities that are not its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ajet import AjetError
from ajet.interfaces.backbone import Sample
from ajet.interfaces.engine import GenerateRequest, Int32, Sampling
from ajet_local.completion import Completion
from ajet_local.modeling import first_line
from ajet_local.packed_scheduler import PackedScheduler
from ajet_local.row_cache import keeps_states
from ajet_local.row_scheduler import RowScheduler
from ajet_local.rows import trained_tokens
from ajet_local.scheduler import Scheduler

log = logging.getLogger("ajet")

TOLERATED = 0.1
"""Most that a mean error may be, as a share of what a wrong context changes: rounding depends on the model and its type."""
EXACT = 1e-3
"""Most that a logprob computed in float32 may be off, relative to its size if that is above 1."""
ROUNDING = 1e-5
"""Errors below this are none, even in a model whose tokens hardly depend on their context."""

_kinds: WeakKeyDictionary[Any, type[PackedScheduler] | type[RowScheduler]] = WeakKeyDictionary()


def fitting_scheduler(model: Any, activate: Callable[[str | None], None], **sizes: int) -> Scheduler:
    """A scheduler of the fastest kind that samples with the model's own logprobs, tried out once for each model: 7 passes over a
    few tokens, or 12 in rows. Its arguments are those of both. Raises AjetError if there is none."""
    kind = _kinds.get(model)
    if kind is None:
        activate(None)
        level_limits(model)
        reasons = []
        for kind in (PackedScheduler, RowScheduler) if _packs(model) else (RowScheduler,):
            if not (reason := _difference_of_sampling(partial(kind, model, activate, **sizes), model)):
                break
            reasons.append(reason)
        else:
            raise _refusal(model, "the engine", reasons[-1])
        if reasons:
            log.warning(
                "sampling from %r keeps a row for each context, which is slower: packed, %s.",
                model.config.model_type,
                reasons[0],
            )
        _kinds[model] = kind
    return kind(model, activate, **sizes)


def check_rows(model: Any) -> None:
    """Check that the trainer's rows have the logprobs of plain passes. Raises AjetError if they do not."""
    level_limits(model)
    ids = [_ids(model, 9, 0), _ids(model, 14, 0)]
    ids[1][7:] = _ids(model, 7, 1)
    try:
        with torch.no_grad():
            computed = trained_tokens(model, [_sample(row, 6) for row in ids]).new
        ends = zip(ids, computed.cpu().split([len(row) - 6 for row in ids]), strict=True)
        reason = next(filter(None, (_difference(model, [row], [6], logprobs) for row, logprobs in ends)), "")
    except Exception as error:  # an architecture may raise anything for arguments that it does not know
        reason = first_line(error)
    if reason:
        raise _refusal(model, "the trainer", reason)


def level_limits(model: Any) -> None:
    """Let layers of state spaces limit their time steps as the model's configuration says, in every pass.

    transformers 5.23 computes Nemotron-H with another limit (``time_step_min``, from which weights are initialised) over
    several tokens than over one, so that what is sampled and what is trained would differ. The configuration's
    documented ``time_step_limit`` is that of the published code. Raises AjetError for a limit that single tokens do not have.
    """
    for module in model.modules():
        limit = getattr(module, "time_step_limit", None)
        wanted = getattr(getattr(module, "config", model.config.get_text_config()), "time_step_limit", None)
        if limit is None or wanted is None:
            continue
        if tuple(wanted) != (0.0, float("inf")):
            reason = f"its time steps are limited to {tuple(wanted)} in passes over several tokens, but not in those over one"
            raise _refusal(model, "the engine", reason)
        module.time_step_limit = tuple(wanted)


def _packs(model: Any) -> bool:
    """Whether `PackedScheduler` may compute the model: its packed pass knows only attention to all tokens, or to the last ones."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    return kinds <= {"full_attention", "sliding_attention"} and not keeps_states(model)


def _refusal(model: Any, part: str, reason: str) -> AjetError:
    return AjetError(
        f"model type {model.config.model_type!r}: {part} of the local backbone cannot compute it as one plain pass does: {reason}. "
        "Use another model, or a backbone that runs it, such as verl."
    )


@torch.no_grad()
def _difference_of_sampling(make: Callable[[], Scheduler], model: Any) -> str:
    """How the logprobs of sampled tokens differ from those of a pass; "" if they do not."""
    prompts = [_ids(model, 9, 0), _ids(model, 9, 0)[:5], _ids(model, 3, 1)]
    try:
        scheduler = make()
        completions = _sampled(scheduler, [prompts[0], *prompts, prompts[0]], 3)
        completions += _sampled(scheduler, [np.append(c.context(), prompts[2]) for c in completions[1:3]], 2)
        rows = [c.context() for c in completions]
        logprobs = torch.tensor([lp for c in completions for lp in c.logprobs])
        return _difference(model, rows, [len(c.request.prompt_ids) for c in completions], logprobs)
    except Exception as error:
        return first_line(error)


def _sampled(scheduler: Scheduler, prompts: Sequence[Int32], count: int) -> list[Completion]:
    completions = []
    for seed, ids in enumerate(prompts):
        request = GenerateRequest(ids, Sampling(max_tokens=count, seed=seed))
        completions.append(Completion(request, None, count, cast(Any, Future())))
    scheduler.waiting.extend(completions)
    while scheduler.busy:
        scheduler.step(0)
    return completions


def _difference(model: Any, rows: Sequence[Int32], begins: Sequence[int], actual: torch.Tensor) -> str:
    """How the logprobs ``actual`` of the tokens of rows, from ``begins`` on, differ from those of a plain pass; "" if they do not."""
    plain = zip(_plain(model, rows), begins, strict=True)
    right = torch.cat([logprobs[begin - 1 :] for logprobs, begin in plain])
    forgotten = _plain(model, [rows[0][begins[0] - 1 :]])[0]
    off = (actual.to(right) - right).abs()
    scale = (forgotten - right[: len(forgotten)]).abs().mean()
    exact = torch.finfo(model.dtype).eps < 1e-6 and not torch.is_autocast_enabled(model.device.type)
    if exact and not (off / right.abs().clamp(min=1)).max() <= EXACT:
        return f"logprobs differ by up to {off.max().item():.2g}"
    if not off.mean() <= max(ROUNDING, TOLERATED * scale):
        return f"logprobs differ by {off.mean().item():.2g} on average, those without their context by {scale.item():.2g}"
    return ""


@torch.no_grad()
def _plain(model: Any, rows: Sequence[Int32]) -> list[torch.Tensor]:
    """For each row float[T - 1]: the logprobs of the tokens after the first, from one pass without any cache."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = torch.as_tensor(tokens)  # what follows on the right affects no token before it
    ids = ids.to(model.device)
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    logprobs = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
    of_tokens = logprobs.gather(2, ids[:, 1:, None])[..., 0].cpu()
    return [own[: len(tokens) - 1] for own, tokens in zip(of_tokens, rows, strict=True)]


def _ids(model: Any, count: int, seed: int) -> Int32:
    size = min(1000, model.get_input_embeddings().num_embeddings)
    return np.random.default_rng(seed).integers(0, size, count).astype(np.int32)


def _sample(ids: Int32, begin: int) -> Sample:
    """A sample that trains the tokens from ``begin`` on."""
    ones = np.ones(len(ids), np.float32)
    return Sample(ids, np.arange(len(ids)) >= begin, np.full_like(ones, np.nan), ones, ones)
