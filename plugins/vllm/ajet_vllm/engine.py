"""`ajet.interfaces.engine.Engine` over vLLM's AsyncLLM, which runs the model in separate processes.

vLLM gets token ids and returns token ids with the logprobs of `worker`; it decodes text only to find stop strings.
New weights are loaded between calls: `load_weights` waits for the calls in progress and delays new ones, so each call
is sampled with one weight version. Beside a trainer on the same GPU, the engine sleeps from before the update until it has the
new weights.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from vllm import SamplingParams, exceptions
from vllm.inputs import TokensPrompt, tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from ajet import AjetError
from ajet.interfaces.engine import (
    Float32,
    GenerateRequest,
    Generation,
    GenerationDelta,
    Image,
    Int32,
    room_for,
)
from ajet.interfaces.helpers import open_image
from ajet.interfaces.vision import Vision
from ajet_vllm import checkpoint

if TYPE_CHECKING:
    from ajet_vllm.transfer import Sender

log = logging.getLogger("ajet")

BUFFERS, LEAST_BUFFER = 4, 1 << 28
"""What a transfer takes of the GPU, at most, in sizes of its buffer: the buffer, vLLM's copy of it, and a tensor of either side; and
bytes of the buffer, unless a tensor is larger."""
FIRST_GPU = torch.device("cuda", 0)
"""vLLM's, of those that this process sees."""
LOWEST_TEMPERATURE = 0.01
"""vLLM raises temperatures between 0 and this to this."""
SHUTDOWN_SECONDS = 20.0
"""After this time vLLM's processes are killed; they usually end within 5 seconds."""
REFUSED: type[Exception] = getattr(exceptions, "VLLMClientError", ValueError)
"""What vLLM raises for arguments that it refuses; a ValueError before 0.27."""


class VLLMEngine:
    """See the module. ``config`` is vLLM's `VllmConfig`; ``version`` is the weight version of new tokens; ``vision`` is how the
    model sees images, None if it reads only text; ``adapters`` are those that `load_adapters` gives it."""

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        model_type: str,
        vision: Vision | None = None,
        adapters: Sequence[str] = (),
    ) -> None:
        self.config = config
        self.vision = vision
        self.tokenizer = tokenizer
        self.model_type = model_type
        self.context_length: int = config.model_config.max_model_len
        self.version = 0
        self.adapters = tuple(adapters)
        self._vocabulary: int = config.model_config.get_vocab_size()
        self._llm: AsyncLLM | None = None
        self._starting: Future[AsyncLLM] | None = None
        self._shapes: checkpoint.Shapes = {}
        self._sender: Sender | None = None
        self._under_way = 0
        self._idle = asyncio.Event()
        self._loading = asyncio.Lock()
        self._loaded = asyncio.Event()
        self._broken: str | None = None
        self._frees = bool(config.model_config.enable_sleep_mode)
        self._asleep = False
        self._idle.set()
        self._loaded.set()

    def begin(self) -> Callable[[], None]:
        """See `ajet.interfaces.engine.SharedEngine.begin`."""
        if self._starting is None:
            self._starting = _launched(self.config)
        return self._abandon

    def _abandon(self) -> None:
        starting, self._starting = self._starting, None
        if starting and self._llm is None:
            starting.add_done_callback(_shut_down)

    async def start(self) -> None:
        """Start vLLM's processes and make them compute our logprobs. Raises `AjetError` if vLLM does not start or if its
        logprobs cannot be changed, RuntimeError if the engine is already started."""
        if self._llm is not None:
            raise RuntimeError("the engine is already started")
        self.begin()
        assert self._starting
        try:
            llm = await asyncio.wrap_future(self._starting)
        except Exception as error:
            self._starting = None
            raise AjetError(
                f"engine vllm: {self.config.model_config.model} did not start: {error}. "
                "See vLLM's own messages above."
            ) from error
        self._llm = llm
        try:
            folder = await asyncio.to_thread(checkpoint.folder_of, self.config.model_config.model)
            self._shapes = await asyncio.to_thread(checkpoint.shapes, folder)
            await self._apply_logprob_rule(llm)
            if self._frees and not self.adapters:
                way = (
                    "stay in the GPU's memory"
                    if self.takes_gpu
                    else "pass through a file in the CPU's memory"
                )
                log.info("engine vllm: new weights %s", way)
        except BaseException:
            await self.close()
            raise

    async def _apply_logprob_rule(self, llm: AsyncLLM) -> None:
        """Install the rule of `worker`, and check with one call that it computes the logprobs: a newer vLLM might compute
        them elsewhere. The call also triggers vLLM's compilation."""
        try:
            without = set(range(self._vocabulary)).difference(self.tokenizer.get_vocab().values())
            await llm.collective_rpc("ajet_apply_logprob_rule", args=(sorted(without),))
            await self.score(np.zeros(4, dtype=np.int32))
            computed = await llm.collective_rpc("ajet_computed")
        except Exception as error:
            raise AjetError(f"engine vllm: cannot compute logprobs at a temperature: {error}") from error
        if not all(any(of_worker[path] for of_worker in computed) for path in ("sampled", "prompt")):
            raise AjetError(
                "engine vllm: this version of vLLM does not compute logprobs where the plugin expects it. "
                "Install a version that the plugin's README names."
            )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion (see `ajet.interfaces.engine.Engine.generate`). Cancel the awaiting task to stop it."""
        async with aclosing(self._sample(request, RequestOutputKind.FINAL_ONLY)) as deltas:
            async for delta in deltas:
                if delta.finish_reason:
                    return Generation(
                        delta.token_ids, delta.logprobs, delta.weight_versions, delta.finish_reason
                    )
        raise RuntimeError("vLLM ended a request without its result")

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """Like `generate`, but yields what vLLM has sampled since the last delta. Closing the iterator stops it."""
        deltas: asyncio.Queue[GenerationDelta | None] = asyncio.Queue()

        async def sample() -> None:
            async with aclosing(self._sample(request, RequestOutputKind.DELTA)) as sampled:
                async for delta in sampled:
                    deltas.put_nowait(delta)

        # In a separate task, so that new weights wait for sampling, but not for a slow reader.
        sampling = asyncio.create_task(sample())
        sampling.add_done_callback(lambda _: deltas.put_nowait(None))
        try:
            while delta := await deltas.get():
                yield delta
            await sampling  # raises its exception, if any
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)

    async def _sample(
        self, request: GenerateRequest, kind: RequestOutputKind
    ) -> AsyncGenerator[GenerationDelta, None]:
        sampling = request.sampling
        lora = self._lora(request.adapter)
        limit = room_for(request, self.context_length, self._vocabulary)
        stop = [text for text in sampling.stop if text]
        params = dict(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            max_tokens=limit,
            stop=stop,
            # vLLM refuses ids that it cannot sample; a tokenizer may have more ids than its model.
            stop_token_ids=[token for token in sampling.stop_token_ids if 0 <= token < self._vocabulary],
            detokenize=bool(stop),
            skip_special_tokens=False,
            output_kind=kind,
        )
        async with self._call() as llm:
            version = self.version
            async with aclosing(
                self._outputs(llm, request.prompt_ids, params, request.key, request.images, lora)
            ) as outputs:
                async for output in outputs:
                    answer = output.outputs[0]
                    token_ids = np.array(answer.token_ids, dtype=np.int32)
                    yield GenerationDelta(
                        token_ids,
                        np.array(answer.logprobs.logprobs, dtype=np.float32),
                        np.full(len(token_ids), version, dtype=np.int32),
                        _finish_reason(answer.finish_reason),
                    )

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """``log_softmax(logits / temperature)`` of the tokens ``ids`` (int32[T]), float32[T]; the first is NaN.

        Temperature 0 means 1, as for greedy calls. Raises ValueError if ``ids`` is empty, longer than the context or
        outside the vocabulary.
        """
        ids = np.asarray(ids, dtype=np.int32)
        if not 0 < len(ids) <= self.context_length:
            raise ValueError(f"cannot score {len(ids)} tokens: the engine accepts 1 to {self.context_length}")
        if int(ids.min()) < 0 or int(ids.max()) >= self._vocabulary:
            raise ValueError(f"there are token ids outside 0..{self._vocabulary - 1}")
        if len(ids) == 1:
            return np.array([np.nan], dtype=np.float32)
        # vLLM must sample at least one token, so the prompt lacks the last id, and only that is allowed.
        params = dict(
            temperature=temperature or 1.0,
            max_tokens=1,
            prompt_logprobs=0,
            allowed_token_ids=[int(ids[-1])],
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async with (
            self._call() as llm,
            aclosing(self._outputs(llm, ids[:-1], params, ("score", 0))) as outputs,
        ):
            async for output in outputs:
                logprobs = [*output.prompt_logprobs.logprobs, *output.outputs[0].logprobs.logprobs]
                return np.array([np.nan, *logprobs], dtype=np.float32)
        raise RuntimeError("vLLM ended a request without its result")

    async def _outputs(
        self,
        llm: AsyncLLM,
        prompt_ids: Int32,
        params: dict[str, Any],
        key: tuple[str, int],
        images: Sequence[Image] = (),
        lora: LoRARequest | None = None,
    ) -> AsyncGenerator[Any, None]:
        """vLLM's outputs for a prompt. Raises ValueError for parameters that vLLM refuses, AjetError if it expands ``images`` to
        other tokens than those of the prompt."""
        if 0 < params["temperature"] < LOWEST_TEMPERATURE:
            raise ValueError(
                f"temperature {params['temperature']}: vLLM samples at {LOWEST_TEMPERATURE} or above, or greedily at 0"
            )
        prompt: Any = tokens_input(prompt_ids.tolist())
        expanded: list[int] | None = None
        if images:
            assert self.vision
            ids, order = self.vision.unexpanded(prompt_ids.tolist(), images)
            pictures = [open_image(image) for image in order]
            prompt = TokensPrompt(prompt_token_ids=ids, multi_modal_data={"image": pictures})
            expanded = self.vision.plain(prompt_ids.tolist())
        try:
            sampling = SamplingParams(**params, logprobs=0, flat_logprobs=True, ignore_eos=True)
            generating = llm.generate(prompt, sampling, f"{key[0]}/{key[1]}", lora_request=lora)
            async with aclosing(generating) as outputs:
                async for output in outputs:
                    if expanded and output.prompt_token_ids and output.prompt_token_ids != expanded:
                        raise AjetError(
                            "engine vllm: vLLM expands the prompt's images to other tokens than expected; use the local engine"
                        )
                    yield output
        except REFUSED as error:
            raise ValueError(str(error)) from error
        except EngineGenerateError as error:
            raise RuntimeError(str(error.__cause__)) from error
        except EngineDeadError as error:
            raise RuntimeError("vLLM's processes have ended; see their own messages above") from error

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[AsyncLLM]:
        """A block that uses the weights; `load_weights` waits until it ends."""
        while not self._loaded.is_set():
            await self._loaded.wait()
        llm = self._running()
        if self._broken:
            raise RuntimeError(self._broken)
        self._under_way += 1
        self._idle.clear()
        try:
            yield llm
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    def _running(self) -> AsyncLLM:
        if self._llm is None:
            raise RuntimeError("the engine is not running: await engine.start() on this loop first")
        return self._llm

    async def load_weights(self, source: str | Path | Mapping[str, Any], version: int | None = None) -> int:
        """Load new weights into the running engine; returns their weight version, by default the next one.

        ``source`` is a folder with safetensors under the names of the model's checkpoint, or torch tensors by these
        names; further tensors are ignored, as in a state dict with tied weights. Calls in progress finish first; new ones
        wait. The KV caches are dropped. Raises `AjetError`, before anything is changed, for weights that do not fit.
        """
        if isinstance(source, Mapping):
            tensors = checkpoint.chosen(source, self._shapes)
            if self.takes_gpu and {tensor.device for tensor in tensors.values()} == {FIRST_GPU}:
                return await self._load(partial(self._send, tensors), "the GPU's memory", version)
            with tempfile.TemporaryDirectory(prefix="ajet-weights-", dir=_place(tensors)) as written:
                await asyncio.to_thread(checkpoint.write, tensors, Path(written))
                return await self._load_folder(Path(written), version)
        folder = Path(source).expanduser().resolve()
        checkpoint.check(await asyncio.to_thread(checkpoint.shapes, folder), self._shapes, str(folder))
        return await self._load_folder(folder, version)

    async def _load_folder(self, folder: Path, version: int | None) -> int:
        async def load(llm: AsyncLLM) -> None:
            if self.adapters:
                for name in self.adapters:
                    await llm.add_lora(self._lora(name, folder))
            else:
                await llm.collective_rpc("ajet_load_weights", args=(str(folder),))

        return await self._load(load, str(folder), version)

    @property
    def takes_gpu(self) -> bool:
        """See `ajet.interfaces.engine.SharedEngine.takes_gpu`. The buffers of a transfer must fit into what the KV cache, which wakes
        later, leaves."""
        if self.config.weight_transfer_config is None:
            return False
        return BUFFERS * self._buffer() <= self.config.cache_config.kv_cache_memory_bytes

    def _buffer(self) -> int:
        largest = max(map(math.prod, self._shapes.values()), default=0)
        return max(LEAST_BUFFER, largest * int(self.config.model_config.dtype.itemsize))

    async def _send(self, tensors: Mapping[str, Any], llm: AsyncLLM) -> None:
        from ajet_vllm.transfer import Sender

        if self._sender is None:
            self._sender = Sender(llm, self.config.model_config.dtype, self._buffer())
        await self._sender.send(tensors)
        await llm.collective_rpc("ajet_return_memory")

    async def _load(
        self, load: Callable[[AsyncLLM], Awaitable[None]], where: str, version: int | None
    ) -> int:
        async with self._loading:
            self._loaded.clear()
            try:
                await self._idle.wait()
                llm = self._running()
                self._broken = f"loading weights from {where} failed halfway. Restart the engine."
                try:
                    if self._asleep:
                        await llm.wake_up(["weights"])
                        await llm.collective_rpc("ajet_restore_constants")
                    await load(llm)
                    if self._asleep:
                        await llm.wake_up(["kv_cache"])
                        self._asleep = False
                except Exception as error:
                    raise AjetError(f"engine vllm: {self._broken} ({error})") from error
                # No call runs, but an aborted one may keep its blocks until vLLM's next step.
                if not await llm.reset_prefix_cache(reset_running_requests=True):
                    raise AjetError(
                        "engine vllm: vLLM did not drop the caches of the old weights. Restart the engine."
                    )
                self._broken = None
                self.version = self.version + 1 if version is None else version
            finally:
                self._loaded.set()
        return self.version

    async def load_adapters(self, folder: Path, version: int) -> int:
        """See `ajet.interfaces.engine.SharedEngine.load_adapters`. Calls in progress finish first; new ones wait. Raises
        `AjetError` for adapters that do not fit."""
        return await self._load_folder(folder, version)

    def _lora(self, name: str | None, folder: Path | None = None) -> LoRARequest | None:
        """How vLLM names an adapter, None for the model without one; with ``folder``, to load it in the place of what it has. Raises
        ValueError for an unknown name."""
        if name is None:
            return None
        if name not in self.adapters:
            raise ValueError(
                f"adapter {name!r}: this engine has only those of a trainer beside it ({', '.join(self.adapters) or 'none'}). "
                "Export a merged model and serve that."
            )
        # vLLM reads the path only to load; a name stands in for it afterwards, as the files are gone.
        path, number = str(folder / name) if folder else name, self.adapters.index(name) + 1
        return LoRARequest(name, number, path, load_inplace=folder is not None)

    async def sleep(self) -> None:
        """See `ajet.interfaces.engine.SharedEngine.sleep`. It frees memory if vLLM was started for that (on CUDA): new weights follow,
        so neither the old ones nor the caches are kept; below adapters, the weights wait in the CPU's memory. Raises AjetError if
        vLLM fails."""
        async with self._loading:
            self._loaded.clear()
            await self._idle.wait()
            if self._frees and not self._asleep:
                llm = self._running()
                try:
                    if not self.adapters:
                        await llm.collective_rpc("ajet_keep_constants")
                    await llm.sleep(level=1 if self.adapters else 2)
                except Exception as error:
                    raise AjetError(
                        f"engine vllm: it did not free its memory for the update: {error}"
                    ) from error
                self._asleep = True

    async def close(self) -> None:
        """Stop vLLM's processes. Open requests fail with RuntimeError. Closing twice is allowed."""
        self._abandon()
        llm, self._llm = self._llm, None
        self._loaded.set()  # calls that wait for weights fail
        if llm is not None:
            llm.output_processor.propagate_error(RuntimeError("the engine was closed"))
            await asyncio.to_thread(llm.shutdown, SHUTDOWN_SECONDS)


def _launched(config: Any) -> Future[AsyncLLM]:
    """vLLM's processes, which start in a thread that the end of this program does not wait for."""
    launched: Future[AsyncLLM] = Future()

    def launch() -> None:
        try:
            with _without_script():
                launched.set_result(AsyncLLM.from_vllm_config(config, disable_log_stats=True))
        except BaseException as error:
            launched.set_exception(error)

    launched.set_running_or_notify_cancel()
    threading.Thread(target=launch, name="ajet-vllm-start", daemon=True).start()
    return launched


def _shut_down(launched: Future[AsyncLLM]) -> None:
    if launched.exception() is None:
        launched.result().shutdown(SHUTDOWN_SECONDS)


@contextmanager
def _without_script() -> Iterator[None]:
    """A block in which processes start without the user's script, which has nothing that vLLM's need: multiprocessing would run a
    script that has no ``if __name__ == "__main__"`` again in each of them."""
    main: Any = sys.modules["__main__"]
    hidden = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    vars(main).pop("__file__", None)
    try:
        yield
    finally:
        vars(main).update(hidden)


def _place(tensors: Mapping[str, Any]) -> str | None:
    """A folder in memory with room for the tensors, if the system has one: then weights are passed on without a disk."""
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        return None
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return str(folder) if shutil.disk_usage(folder).free > 1.1 * size else None


def _finish_reason(reason: str | None) -> Literal["stop", "length"] | None:
    match reason:
        case None | "stop" | "length":
            return reason
    raise RuntimeError(f"vLLM ended a request with {reason!r}")
