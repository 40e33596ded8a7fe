"""What a service with Tinker's API does, tried before anything is trained: several speak the API, and each leaves something out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ajet import ConfigError
from ajet_tinker.service import TinkerFailed, TinkerService

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tinker import APIFuture, Datum, TrainingClient

Loss = Callable[[object, list[torch.Tensor]], tuple[torch.Tensor, dict[str, float]]]
RATE = 5e-4
"""Learning rate of a trial's step, whose update is the sign of the gradient: betas are 0."""
SHORT, LONG = 6, 12
"""Trained tokens of the sequences of a trial, and at most of its sampled reply."""
IDS = list(range(1, LONG + 2))
NATS = 0.25
"""Mean distance of a sampled reply's logprobs from the trainer's, which rounding, also in other kernels, stays far below."""
KEPT_SECONDS = 3600
"""After this time, a service that deletes checkpoints may delete those of the trial."""


def gradients(
    service: TinkerService, client: TrainingClient, data: Sequence[Datum], loss: Loss, *, averaged: bool
) -> APIFuture[Any]:
    """Ask for the gradient of a loss of the targets' logprobs, which is computed here.

    The client sends its derivatives as weights of the service's cross-entropy, which is exact where that is their sum. Where
    it is ``averaged`` over the weights of each sequence, as in SkyRL, they are sent as advantages of the loss
    ``importance_sampling``, times the sequence's length, which is what that is averaged over. Blocks then for a pass.
    """
    from tinker import Datum, TensorData

    if not averaged:
        return client.forward_backward_custom(list(data), loss)
    outputs = service.wait(client.forward(list(data), "cross_entropy"), "forward").loss_fn_outputs
    logprobs = [torch.tensor(output["logprobs"].to_numpy()).requires_grad_() for output in outputs]
    total, _ = loss(data, logprobs)
    derivatives = torch.autograd.grad(total, logprobs)
    sent = [
        Datum(
            model_input=one.model_input,
            loss_fn_inputs={
                "target_tokens": one.loss_fn_inputs["target_tokens"],
                "logprobs": TensorData.from_numpy(now.detach().numpy()),
                "advantages": TensorData.from_numpy(-(derivative * len(now)).numpy()),
            },
        )
        for one, now, derivative in zip(data, logprobs, derivatives, strict=True)
    ]
    return client.forward_backward(sent, "importance_sampling")


def averages(service: TinkerService, base_model: str, *, rank: int, **layers: bool) -> bool:
    """Try all that a job asks of a service, with a LoRA of its own, which two to four steps change. Returns `gradients`' argument.
    Raises ConfigError, which names the first thing that the service does not do."""

    @contextmanager
    def named(what: str) -> Iterator[None]:
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise ConfigError("backbone tinker", f"{service.address} {what} ({line}).") from error

    def created() -> TrainingClient:
        with named("creates no LoRA"):
            return service.create(base_model, rank=rank, seed=0, **layers)

    client = created()
    with named("gives no logprobs of trained tokens (forward, cross_entropy)"):
        _logprobs(service, client, IDS[: SHORT + 1])
    with named("gives no logprobs of sampled tokens"):
        apart = _apart(service, client)
        if not apart < NATS:
            raise ValueError(f"those of a reply are {apart:.2g} from its trainer's")
    with named("gives no gradient of a loss that is computed here"):
        averaged = not _exact(service, client, False)
        if averaged:
            client = created()  # the client takes no request after one that failed
            if not _exact(service, client, True):
                raise ValueError("neither cross_entropy nor importance_sampling follows it")
    with named("saves no checkpoint"):
        service.wait(client.save_state("ajet-trial", ttl_seconds=KEPT_SECONDS), "save_state")
        service.wait(
            client.save_weights_for_sampler("ajet-trial", ttl_seconds=KEPT_SECONDS),
            "save_weights_for_sampler",
        )
    return averaged


def _apart(service: TinkerService, client: TrainingClient) -> float:
    """The mean distance of the logprobs of a sampled reply from those of the same weights in a forward pass."""
    from tinker import ModelInput, SamplingParams

    sampler = service.wait(client.save_weights_and_get_sampling_client(), "publishing the weights")
    asked = sampler.sample(ModelInput.from_ints(IDS[:3]), 1, SamplingParams(max_tokens=LONG))
    [sequence] = service.wait(asked, "sampling").sequences
    tokens, logprobs = sequence.tokens_np, sequence.logprobs_np
    if tokens is None or logprobs is None or not len(logprobs) == len(tokens) > 0:
        raise ValueError("a reply came without them")
    trained = _logprobs(service, client, [*IDS[:3], *tokens.tolist()])[-len(tokens) :]
    return float(np.abs(trained - logprobs).mean())


def _exact(service: TinkerService, client: TrainingClient, averaged: bool) -> bool:
    """Whether a token gains where two sequences, which differ in length, pull it up by 1 and down by 0.8. Whatever a service
    divides by, in one of the two orders it is then pulled down."""
    from tinker.types import AdamParams

    def pulled(data: object, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        return 0.8 * logprobs[1][2] - logprobs[0][2], {}

    for lengths in ((LONG, SHORT), (SHORT, LONG)):
        before = _logprobs(service, client, IDS[: SHORT + 1])[2]
        data = [_sequence(IDS[: length + 1]) for length in lengths]
        try:
            service.wait(gradients(service, client, data, pulled, averaged=averaged), "forward_backward")
        except (TinkerFailed, KeyError):  # the client wants a metric that not every service gives
            return False
        step = AdamParams(learning_rate=RATE, beta1=0.0, beta2=0.0, eps=1e-8)
        service.wait(client.optim_step(step), "optim_step")
        if not _logprobs(service, client, IDS[: SHORT + 1])[2] > before:
            return False
    return True


def _sequence(ids: list[int]) -> Datum:
    from tinker import Datum, ModelInput, TensorData

    return Datum(
        model_input=ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": TensorData.from_numpy(np.array(ids[1:])),
            "weights": TensorData.from_numpy(np.zeros(len(ids) - 1, dtype=np.float32)),
        },
    )


def _logprobs(service: TinkerService, client: TrainingClient, ids: list[int]) -> NDArray[np.float32]:
    """Those of all tokens but the first."""
    [output] = service.wait(client.forward([_sequence(ids)], "cross_entropy"), "forward").loss_fn_outputs
    logprobs: NDArray[np.float32] = output["logprobs"].to_numpy()
    if len(logprobs) != len(ids) - 1 or not np.isfinite(logprobs).all():
        raise ValueError(f"{logprobs.tolist()} for {len(ids) - 1} tokens")
    return logprobs
