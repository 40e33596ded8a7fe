"""GPUs and models by name, so that a job can be planned for a GPU that is not here and a model that is not downloaded."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet.estimate.devices import GIB, Device, Gpus
from ajet.estimate.shape import ModelShape
from ajet.interfaces.helpers import nearest
from ajet_advice.shapes import shape_of_config


def _device(name: str, gib: int, gigabytes: float, teraflops: float) -> tuple[str, Device]:
    return name, Device(name, gib * GIB, gigabytes * 1e9, teraflops * 1e12)


# Memory, bandwidth and dense bfloat16 figures of the manufacturers' data sheets, for the fastest variant (SXM, OAM). The operations of
# A100, H100, H200, B200, L40S and MI300X are also those of verl's table (verl/utils/flops_counter.py).
DEVICES: Mapping[str, Device] = dict(
    (
        _device("A10", 24, 600, 125),
        _device("L4", 24, 300, 121),
        _device("L40S", 48, 864, 362),
        _device("RTX3090", 24, 936, 71),
        _device("RTX4090", 24, 1008, 165),
        _device("RTX5090", 32, 1792, 209),
        _device("A100-40", 40, 1555, 312),
        _device("A100-80", 80, 2039, 312),
        _device("H100", 80, 3350, 989),
        _device("H200", 141, 4800, 989),
        _device("B200", 180, 8000, 2250),
        _device("MI300X", 192, 5300, 1307),
    )
)
"""The GPUs that `parse_gpus` knows, by name."""


def parse_gpus(text: str) -> Gpus:
    """GPUs such as ``H100`` or ``8xH100``. Raises ConfigError."""
    match = re.fullmatch(r"\s*(?:(\d+)\s*[x×*]\s*)?([\w-]+)\s*", text, re.IGNORECASE)
    if match is None or match[1] == "0":
        raise ConfigError(
            f"--gpus {text}: write a number and a name, such as 8xH100, or a name, such as H100."
        )
    names = {name.lower(): name for name in DEVICES}
    name = match[2].lower()
    if name not in names:
        raise ConfigError(
            f"--gpus {text}: unknown GPU{nearest(match[2], DEVICES)}. Known: {', '.join(DEVICES)}."
        )
    return Gpus(int(match[1] or 1), DEVICES[names[name]])


def named(reported: str) -> Device | None:
    """The GPU that a driver reports by a name such as ``NVIDIA A100-SXM4-80GB``; None if it is not in `DEVICES`."""
    words = re.findall(r"[a-z0-9]+", reported.lower())
    names = {*words, *(one + other for one, other in itertools.pairwise(words))}  # also RTX 4090
    for name, device in DEVICES.items():
        model, _, size = name.lower().partition("-")
        if model in names and (not size or f"{size}gb" in names):
            return device
    return None


def read_shape(model: str) -> ModelShape:
    """The shape of a model's folder or Hugging Face id. An id that `KNOWN` lacks is looked up in the Hugging Face cache, then
    on the Hub. Raises ConfigError if there is no such model, and UnknownFamily if its family is not in `FAMILIES`."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return shape_of_config(_config(folder / "config.json", model), model)
    name = re.sub(r"(-Base|-Instruct|-Thinking)?(-\d{4})?$", "", model)
    if name in KNOWN:
        return shape_of_config(KNOWN[name], model)
    return shape_of_config(_config(_downloaded(model), model), model)


def _config(path: Path, model: str) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model {model}", f"cannot read {path.name} ({error}). Give a folder that has it."
        ) from error
    # A model of images and text has the sizes of its text part in a section.
    return config.get("text_config", config) if isinstance(config, dict) else {}


def _downloaded(model: str) -> Path:
    unknown = f"model {model}: its sizes are not known here"
    remedy = f"Give a folder with the model's config.json, or one of {', '.join(KNOWN)}."
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ConfigError(f"{unknown}. {remedy}") from None
    try:
        return Path(hf_hub_download(model, "config.json"))
    except Exception as error:  # of the hub's HTTP library, which changes
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ConfigError(f"{unknown} ({cause}). {remedy}") from error


def _known(family: str, tied: bool, *sizes: int) -> Mapping[str, Any]:
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    )
    return {"model_type": family, "tie_word_embeddings": tied, **dict(zip(names, sizes, strict=True))}


KNOWN: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": _known("qwen2", True, 896, 24, 14, 2, 64, 4864, 151936, 32768),
    "Qwen/Qwen2.5-1.5B": _known("qwen2", True, 1536, 28, 12, 2, 128, 8960, 151936, 32768),
    "Qwen/Qwen2.5-3B": _known("qwen2", True, 2048, 36, 16, 2, 128, 11008, 151936, 32768),
    "Qwen/Qwen2.5-7B": _known("qwen2", False, 3584, 28, 28, 4, 128, 18944, 152064, 32768),
    "Qwen/Qwen2.5-14B": _known("qwen2", False, 5120, 48, 40, 8, 128, 13824, 152064, 32768),
    "Qwen/Qwen2.5-32B": _known("qwen2", False, 5120, 64, 40, 8, 128, 27648, 152064, 32768),
    "Qwen/Qwen2.5-72B": _known("qwen2", False, 8192, 80, 64, 8, 128, 29568, 152064, 32768),
    "Qwen/Qwen3-0.6B": _known("qwen3", True, 1024, 28, 16, 8, 128, 3072, 151936, 40960),
    "Qwen/Qwen3-1.7B": _known("qwen3", True, 2048, 28, 16, 8, 128, 6144, 151936, 40960),
    "Qwen/Qwen3-4B": _known("qwen3", True, 2560, 36, 32, 8, 128, 9728, 151936, 40960),
    "Qwen/Qwen3-8B": _known("qwen3", False, 4096, 36, 32, 8, 128, 12288, 151936, 40960),
    "Qwen/Qwen3-14B": _known("qwen3", False, 5120, 40, 40, 8, 128, 17408, 151936, 40960),
    "Qwen/Qwen3-32B": _known("qwen3", False, 5120, 64, 64, 8, 128, 25600, 151936, 40960),
    "meta-llama/Llama-3.2-1B": _known("llama", True, 2048, 16, 32, 8, 64, 8192, 128256, 131072),
    "meta-llama/Llama-3.2-3B": _known("llama", True, 3072, 28, 24, 8, 128, 8192, 128256, 131072),
    "meta-llama/Llama-3.1-8B": _known("llama", False, 4096, 32, 32, 8, 128, 14336, 128256, 131072),
    "meta-llama/Llama-3.1-70B": _known("llama", False, 8192, 80, 64, 8, 128, 28672, 128256, 131072),
}
"""Hugging Face ids, without endings such as -Base and -Instruct, with the sizes in their config.json, so that a model can be
planned without a network."""
