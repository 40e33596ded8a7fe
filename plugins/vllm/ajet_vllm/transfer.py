"""New weights from the trainer's GPU memory to that of a vLLM on the same GPU: vLLM's weight transfer over CUDA IPC.

vLLM's sender copies the tensors, one after the other, into a buffer that both programs map, and vLLM copies them from there. So no file
is written, and both need little memory beside their weights. Importing this module raises ImportError with a vLLM (0.26) whose sender
needs Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import torch
from vllm.distributed.weight_transfer import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine
from vllm.v1.engine.async_llm import AsyncLLM


class Sender:
    """Sends weights in ``dtype`` to ``llm`` through a buffer of ``size`` bytes, which the largest tensor fits into."""

    def __init__(self, llm: AsyncLLM, dtype: torch.dtype, size: int) -> None:
        self._llm = llm
        self._source = _Source(dtype)
        self._info = IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=size)
        self._engine: Any = None

    async def send(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load tensors of the GPU, by the names of the model's checkpoint, into vLLM's weights. Raises what vLLM raises."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._send, tensors, loop)

    def _send(self, tensors: Mapping[str, torch.Tensor], loop: asyncio.AbstractEventLoop) -> None:
        self._source.tensors = tensors
        try:
            if self._engine is None:
                self._engine = IPCTrainerWeightTransferEngine.trainer_init(
                    self._info, client=_Client(self._llm, loop), source=self._source
                )
            self._engine.send_weights()
        finally:
            self._source.tensors = {}
            torch.cuda.empty_cache()  # the buffer is vLLM's cache now


class _Source(WeightSource):
    """The tensors, each converted when its turn comes."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.tensors: Mapping[str, torch.Tensor] = {}
        self._dtype = dtype

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, self._dtype, tuple(tensor.shape)) for name, tensor in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.tensors.items():
            yield name, tensor.detach().to(self._dtype)


class _Client:
    """vLLM's `VLLMWeightSyncClient` over an `AsyncLLM`, for a thread beside its loop."""

    def __init__(self, llm: AsyncLLM, loop: asyncio.AbstractEventLoop) -> None:
        self._llm = llm
        self._loop = loop

    def _run(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._run(self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info)))

    def start_weight_update(self) -> None:
        self._run(self._llm.start_weight_update())

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._run(self._llm.update_weights(WeightTransferUpdateRequest(update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._run(self._llm.finish_weight_update())
