"""What the parts share: their arguments, the models, and a watch over the device's memory."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ajet_local.memory import resident
from ajet_local.starter.calculator import Calculator


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of a part."""

    folder: Path
    reduced: bool
    extra: Sequence[str] = ()

    @property
    def device(self) -> torch.device:
        """The device of the measurements."""
        return torch.device("cpu" if self.reduced else "cuda")

    @property
    def large(self) -> Path:
        """A model of the shape of Qwen3-0.6B with random weights in bfloat16, reduced: of two layers in float32. Most of its ids
        are of no text, as in real vocabularies, but the tokenizer knows them all: weights that are random sample any."""
        return self.folder / "large"

    @property
    def small(self) -> Path:
        """A model of two layers with broad distributions, in float32."""
        return self.folder / "small"


def main(run: Callable[[Options], Mapping[str, Any]], about: str | None) -> None:
    """Run a part with the arguments of the command line, and print its figures; if it fails, ``failed`` with the error instead, and
    the exit code is 1."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument("extra", nargs="*")
    given = parser.parse_args()
    try:
        figures = run(Options(given.folder, given.reduced, given.extra))
    except Exception as error:
        traceback.print_exc()
        figures = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(figures), flush=True)
    sys.exit("failed" in figures)


def make_models(options: Options) -> None:
    """Write the two models and their tokenizer, whose texts are those of the starter."""
    tiny = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    tiny |= {
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
    }
    write_model(options, options.small, tiny, all_ids=False)
    large = {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    }
    write_model(options, options.large, tiny if options.reduced else large)


def write_model(options: Options, folder: Path, shape: Mapping[str, Any], *, all_ids: bool = True) -> None:
    """Write a model of Qwen3's kind with random weights, and the tokenizer. With ``all_ids`` it has Qwen3's 151,936 ids (reduced:
    four times those of the tokenizer) and the type of a GPU."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    tokenizer = Calculator().tokenizer(0)[0]
    ids = 4 * len(tokenizer) if options.reduced else 151_936
    config = Qwen3Config(
        **{
            "vocab_size": ids if all_ids else len(tokenizer),
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": None,
            "tie_word_embeddings": True,
            **shape,
        }
    )
    torch.manual_seed(0)
    with options.device:
        small = options.reduced or not all_ids
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if small else torch.bfloat16)
    model.save_pretrained(folder)
    del model
    if options.device.type == "cuda":
        torch.cuda.empty_cache()  # `Peak` counts what the device holds
    tokenizer.save_pretrained(folder)
    if all_ids:
        _fill(folder / "tokenizer.json", ids)


def _fill(file: Path, size: int) -> None:
    """Give a tokenizer ``size`` tokens; no text is encoded as one of the new ones."""
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    known = {token["id"] for token in content["added_tokens"]} | set(vocabulary.values())
    vocabulary.update({f"unused{n}": n for n in range(size) if n not in known})
    file.write_text(json.dumps(content), encoding="utf-8")


class Peak:
    """The most memory that the device holds in a block beyond what it held before, in bytes; on a CPU that of this process.

    It counts every process on the device, as an engine may run in its own, and how much of that torch holds in this one. It looks
    every 20 ms.
    """

    def __init__(self, device: torch.device) -> None:
        self._used = used_on(device)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._device = device
        self.bytes = 0
        self.own = 0
        """Of these, what torch's allocator holds in this process; 0 on a CPU."""

    def __enter__(self) -> Peak:
        self._before = self._used()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            used = self._used() - self._before
            if used > self.bytes:
                own = torch.cuda.memory_reserved(self._device) if self._device.type == "cuda" else 0
                self.bytes, self.own = used, own
            time.sleep(0.02)


def used_on(device: torch.device) -> Callable[[], int]:
    """What returns the bytes in use on a device, by all processes; on a CPU by this one."""
    if device.type != "cuda":
        return resident

    def used() -> int:
        free, total = torch.cuda.mem_get_info(device)
        return total - free

    return used
