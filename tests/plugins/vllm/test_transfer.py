"""New weights from the trainer's GPU memory: in which order vLLM is asked for what. Only a GPU can show the transfer itself."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ajet.types import AjetError, GenerateRequest, Sampling

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm")

WEIGHTS = {"embed": torch.ones(8, 4), "norm": torch.zeros(4), "head": torch.ones(8, 4)}
SHAPES = {"embed": (8, 4), "norm": (4,)}
"""The head is tied, so checkpoints have none."""
ASLEEP = ["ajet_keep_constants", ("sleep", 2), ("wake", ["weights"]), "ajet_restore_constants"]
SENT = [
    "start",
    ("update", "embed", torch.bfloat16),
    ("update", "norm", torch.bfloat16),
    "finish",
    "ajet_return_memory",
]
AWAKE = [("wake", ["kv_cache"]), "reset"]


class Asked:
    """An `AsyncLLM` that only writes down what it is asked for; the update of ``fails`` fails."""

    def __init__(self, fails=None):
        self.calls = []
        self.fails = fails

    async def sleep(self, level):
        self.calls.append(("sleep", level))

    async def wake_up(self, tags):
        self.calls.append(("wake", tags))

    async def init_weight_transfer_engine(self, request):
        self.calls.append(("init", request.init_info))

    async def start_weight_update(self):
        self.calls.append("start")

    async def update_weights(self, request):
        if request.update_info["name"] == self.fails:
            raise RuntimeError("out of memory")
        self.calls.append(("update", *request.update_info.values()))

    async def finish_weight_update(self):
        self.calls.append("finish")

    async def collective_rpc(self, name, args=()):
        self.calls.append(name)

    async def reset_prefix_cache(self, reset_running_requests):
        self.calls.append("reset")
        return True


class InParts:
    """vLLM's sender without CUDA: each tensor is a part."""

    @classmethod
    def trainer_init(cls, info, *, client, source):
        client.init_weight_transfer_engine({"packed": info.packed})
        sender = cls()
        sender.client, sender.source = client, source
        return sender

    def send_weights(self):
        assert [meta.name for meta in self.source.metadata()] == [name for name, _ in self.source]
        self.client.start_weight_update()
        for name, tensor in self.source:
            self.client.update_weights({"name": name, "dtype": tensor.dtype})
        self.client.finish_weight_update()


@pytest.fixture
def engine(monkeypatch):
    from ajet_vllm import engine, transfer

    monkeypatch.setattr(transfer, "IPCTrainerWeightTransferEngine", InParts)
    monkeypatch.setattr(engine, "FIRST_GPU", torch.device("cpu"))

    def made(llm, cache=1 << 30):
        model = SimpleNamespace(
            max_model_len=64, enable_sleep_mode=True, dtype=torch.bfloat16, get_vocab_size=lambda: 8
        )
        config = SimpleNamespace(
            model_config=model,
            weight_transfer_config=SimpleNamespace(backend="ipc"),
            cache_config=SimpleNamespace(kv_cache_memory_bytes=cache),
        )
        found = engine.VLLMEngine(config, None, "qwen3")
        found._llm, found._shapes = llm, SHAPES
        return found

    return made


def test_weights_are_sent_after_their_memory_is_back_and_before_the_caches_is(engine):
    async def scenario():
        llm = Asked()
        sampler = engine(llm)
        assert sampler.takes_gpu
        for version in (1, 2):
            await sampler.sleep()
            assert await sampler.load_weights(WEIGHTS, version) == version
        first = [*ASLEEP, ("init", {"packed": True}), *SENT, *AWAKE]
        assert llm.calls == [*first, *ASLEEP, *SENT, *AWAKE]

    asyncio.run(scenario())


def test_a_transfer_that_fails_halfway_breaks_the_engine(engine):
    async def scenario():
        sampler = engine(Asked(fails="norm"))
        await sampler.sleep()
        broken = r"weights from the GPU's memory failed halfway\. Restart the engine\."
        with pytest.raises(AjetError, match=rf"{broken} \(out of memory\)"):
            await sampler.load_weights(WEIGHTS, 1)
        with pytest.raises(Exception, match=broken):
            await sampler.generate(GenerateRequest(np.array([1], dtype=np.int32), Sampling(max_tokens=1)))

    asyncio.run(scenario())


def test_without_room_for_the_buffers_weights_pass_through_a_file(engine):
    async def scenario():
        llm = Asked()
        sampler = engine(llm, cache=(1 << 30) - 1)
        assert not sampler.takes_gpu
        await sampler.sleep()
        await sampler.load_weights(WEIGHTS, 1)
        assert llm.calls == [*ASLEEP, "ajet_load_weights", *AWAKE]

    asyncio.run(scenario())


def test_what_of_a_model_is_neither_weight_nor_buffer_outlives_a_sleep():
    """vLLM 0.26 to 0.28 have the scales of Gemma 3n as plain tensors, which a sleep zeroes."""
    from ajet_vllm.worker import WorkerExtension

    layer = torch.nn.Linear(4, 4)
    layer.embed_scale, layer.kv_cache, layer.name = torch.tensor([3.0]), torch.ones(8), "layer"
    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(get_model=lambda: torch.nn.Sequential(layer))
    worker.ajet_keep_constants()
    with torch.no_grad():
        for tensor in (layer.weight, layer.embed_scale, layer.kv_cache):
            tensor.zero_()
    worker.ajet_restore_constants()
    assert layer.embed_scale.item() == 3.0 and not layer.kv_cache.any() and not layer.weight.any()


def test_vllm_carries_the_handles_of_gpu_memory(monkeypatch):
    from vllm.distributed.weight_transfer import VLLMWeightSyncClient
    from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from ajet_vllm.transfer import _Client

    assert isinstance(_Client(Asked(), asyncio.new_event_loop()), VLLMWeightSyncClient)
    assert IPCWeightTransferEngine.init_info_cls(packed=True).packed
    # What torch's reduce_tensor gives for a tensor on a GPU.
    handle = [
        torch.Tensor,
        [2],
        [1],
        0,
        torch.storage.UntypedStorage,
        torch.uint8,
        0,
        b"h",
        2,
        0,
        False,
        b"r",
        0,
        b"e",
        True,
    ]
    sent = {"ipc_handles": {"GPU-1": tuple(handle)}}
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    assert MsgpackDecoder().decode(MsgpackEncoder().encode(sent)) == {"ipc_handles": {"GPU-1": handle}}
