"""Memory and speed that others have measured on GPUs and published, with what the formulas say.

QwenLM/Qwen, README.md at commit 03cd81f, "Profiling of Memory and Speed": one A100-SXM4-80G, batch size 1, 8 batches for a step,
Flash-Attention 2; its finetune.py has LoRA of rank 64 on c_attn, c_proj, w1 and w2, and gradient checkpointing. "Inference
Performance": generating 2048 tokens with transformers.

pytorch/torchtune, README.md at commit 0031bfb, "Memory and training speed": two sequences of 2048 tokens; the configurations of
recipes/configs/llama3_1 have gradient checkpointing, a loss over eight chunks, and LoRA of rank 16 (attention) or 8 (all layers).

https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on: vLLM, Llama 3.1 8B in bfloat16, an A100 of 40 GB, one request of
1024 + 128 tokens.

These programs keep a few hundred MiB besides (CUDA's context, buffers), so estimates tend to be lower than what they report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ajet.estimate.layout import JobSizes, Layout, StepPhase
from ajet.estimate.shape import BFLOAT16, FLOAT32, ModelShape
from ajet_advice.known import DEVICES, read_shape
from ajet_advice.shapes import shape_of_config
from ajet_advice.speed import Range, sampling_rate, speed
from ajet_local.backbone import PASS_SECONDS
from ajet_trees.memory import Training

GB, GIB = 1e9, 1 << 30
EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Memory:
    """A published peak, in GB or GiB as its source has it."""

    name: str
    published: float
    estimated: float
    unit: str


@dataclass(frozen=True)
class Rate:
    """A published speed in tokens a second."""

    name: str
    published: float
    estimated: Range


def _qwen(hidden: int, layers: int, heads: int, inner: int, vocabulary: int = 151936) -> ModelShape:
    """A model of the first Qwen series. Its config.json states twice ``inner``, and it has biases as Qwen2 does."""
    config = {
        "model_type": "qwen2",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
    }
    return shape_of_config(config, "Qwen")


QWEN = {
    "1.8B": _qwen(2048, 24, 16, 5504),
    "7B": _qwen(4096, 32, 32, 11008),
    "14B": _qwen(5120, 40, 40, 13696, 152064),
    "72B": _qwen(8192, 80, 64, 24576, 152064),
}
LLAMA = read_shape("meta-llama/Llama-3.1-8B")


def adapters(
    shape: ModelShape, rank: int, modules: tuple[str, ...] = EVERY, *, quantized: bool = False
) -> Training:
    """The training of an adapter with gradient checkpointing."""
    size = shape.adapter_parameters(rank, modules)
    return Training(
        shape=shape, number=BFLOAT16, adapters=size, trained=size, quantized=quantized, checkpointing=True
    )


def total(training: Training, tokens: int) -> int:
    """Bytes of everything that fine-tuning keeps, which has no engine and no cache."""
    lasting = training.weights + (training.adapters or 0) * FLOAT32 + training.gradients + training.moments
    return lasting + training.converted + training.activations(tokens)


def _of_qwen(size: str, tokens: int, published: float, *, quantized: bool = False) -> Memory:
    found = total(adapters(QWEN[size], 64, quantized=quantized), tokens)
    kind = "QLoRA" if quantized else "LoRA"
    return Memory(f"Qwen {size}, {kind}, {tokens} tokens, A100", published, found / GB, "GB")


def _whole_qwen(tokens: int, published: float) -> Memory:
    """With ZeRO 3, so each GPU has half of the weights in float32, of their gradients and their moments, and activations of its
    own; beside them it gathers the embedding, the head and two layers in bfloat16."""
    shape = QWEN["7B"]
    training = Training(shape=shape, number=BFLOAT16, stream=BFLOAT16, checkpointing=True)
    gathered = BFLOAT16 * (2 * shape.embedding + 2 * shape.linear_parameters // shape.layers)
    lasting = training.weights + training.gradients + training.moments
    found = lasting + 2 * (gathered + training.activations(tokens))
    return Memory(f"Qwen 7B, all weights, {tokens} tokens, 2 × A100", published, found / GB, "GB")


def _of_llama(kind: str, training: Training, published: float) -> Memory:
    tokens = 2 * 2048
    logits = tokens // 8 * training.shape.vocabulary * FLOAT32
    found = total(replace(training, chunk=logits), tokens)
    return Memory(f"Llama 3.1 8B, {kind}, {tokens} tokens, torchtune", published, found / GIB, "GiB")


LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
_ADAPTERS = {
    ("1.8B", False): (6.7, 7.4, 8.4, 11.0, 16.2, 21.8),
    ("1.8B", True): (5.8, 6.0, 6.6, 7.8, 10.2, 15.8),
    ("7B", False): (20.1, 20.4, 21.5, 23.8, 29.7, 36.6),
    ("7B", True): (11.5, 11.5, 12.3, 13.9, 16.9, 23.5),
    ("14B", False): (34.6, 35.1, 35.3, 37.4, 42.5, 55.2),
    ("14B", True): (18.7, 18.4, 18.9, 19.9, 23.0, 27.9),
    ("72B", True): (61.4, 61.4, 62.9, 64.1, 68.0, 75.6),
}
ALL_ADAPTERS = [
    _of_qwen(size, tokens, published, quantized=quantized)
    for (size, quantized), peaks in _ADAPTERS.items()
    for tokens, published in zip(LENGTHS, peaks, strict=True)
]
"""All runs of the README with adapters on one GPU that do not also train the embedding."""
SMALLEST = ALL_ADAPTERS[6:9]
"""Of these, runs whose peak, about 6 GB, is mostly what a program keeps besides: their estimates are up to 42 % lower."""
MEMORY = [
    *(figure for figure in ALL_ADAPTERS if ", 2048 tokens" in figure.name or ", 8192 tokens" in figure.name),
    _whole_qwen(256, 139.2),
    _whole_qwen(512, 148.0),
    _whole_qwen(1024, 162.0),
    _of_llama("LoRA", adapters(LLAMA, 16, ("q_proj", "v_proj", "o_proj")), 16.2),
    _of_llama("QLoRA", adapters(LLAMA, 8, quantized=True), 7.4),
]
"""Published peaks of fine-tuning, as docs/plan.md lists them."""


def _workload(shape: ModelShape, prompt: int, answer: int, *, adapted: bool = False) -> JobSizes:
    return JobSizes(
        shape=shape,
        adapters={"policy": shape.adapter_parameters(64)} if adapted else {},
        trained=("policy",),
        episodes=8,
        concurrency=1,
        context=8192,
        prompt=prompt,
        answer=answer,
    )


def _layout(pass_seconds: tuple[float, float] = (0.0, 0.0)) -> Layout:
    return Layout(
        gpus=1,
        phases=(StepPhase("all", {}, 1),),
        running=1,
        cache=8 << 30,
        batch=1,
        pass_seconds=pass_seconds,
        checkpointing=True,
    )


def _training(size: str, tokens: int, seconds: float) -> Rate:
    """Eight sequences in a step of so many seconds."""
    sizes = _workload(QWEN[size], 1, tokens - 1, adapted=True)
    found = speed(sizes, _layout(), DEVICES["A100-80"]).trained
    return Rate(f"Qwen {size}, LoRA, training on sequences of {tokens} tokens", 8 * tokens / seconds, found)


def _sampling(name: str, sizes: JobSizes, device: str, layout: Layout, published: float) -> Rate:
    low, high = (sampling_rate(sizes, layout, DEVICES[device], 1, bound) for bound in (0, 1))
    return Rate(name, published, Range(low, high))


def _transformers(size: str, published: float) -> Rate:
    sizes = _workload(QWEN[size], 1, 2048)
    return _sampling(
        f"Qwen {size}, sampling with transformers", sizes, "A100-80", _layout(PASS_SECONDS), published
    )


SPEEDS = [
    _training("7B", 2048, 5.2),
    _training("14B", 2048, 8.4),
    _transformers("1.8B", 54.09),
    _transformers("7B", 40.93),
    _transformers("14B", 32.22),
    _sampling(
        "Llama 3.1 8B, sampling one request with vLLM",
        _workload(LLAMA, 1024, 128),
        "A100-40",
        _layout(),
        75,
    ),
]
"""Published speeds."""
