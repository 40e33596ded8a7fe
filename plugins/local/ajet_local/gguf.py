"""Models in GGUF, llama.cpp's file format: dequantized and written in the Hugging Face layout, which can be trained."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, FilePath

from ajet import AjetError
from ajet.interfaces.progress import Progress
from ajet_local.pretrained import Pretrained

if TYPE_CHECKING:
    from gguf import GGUFReader

_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf", re.IGNORECASE)


class Gguf(Pretrained):
    """A GGUF file, dequantized: name the file as the model. Training continues in bfloat16 or float32, not in its quantized types."""

    name = "gguf"
    suffix: ClassVar[str] = ".gguf"
    file: FilePath = Field(description="The file.")

    def model(self) -> str:
        """See `Pretrained.model`."""
        return str(self.file)

    def source(self) -> str:
        """The file with its size and its time of change."""
        status = self.file.stat()
        return f"{self.file.resolve()} {status.st_size} {status.st_mtime_ns}"

    def convert(self, folder: Path, progress: Progress) -> None:
        """See `Pretrained.convert`."""
        types = convert(self.file, folder)
        progress.say(f"model {self.file}: dequantized from {types} to bfloat16, once; kept in the cache")


def convert(file: Path, folder: Path) -> str:
    """Write the model and the tokenizer of a GGUF file into a folder, with weights in bfloat16. Returns the types of the weights that
    were dequantized, such as ``Q4_1``. Raises AjetError, which names the file, for what transformers cannot read."""
    import torch
    import transformers
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from ajet_local.modeling import first_line

    disable_progress_bar()
    if _PART.search(file.name):
        raise AjetError(
            f"model {file}", "is one of several parts. Join them with llama.cpp's `llama-gguf-split --merge`."
        )
    # Versions that have no such setting always dequantize.
    has_setting = hasattr(transformers, "GgufConfig")
    dequantizing = {"quantization_config": transformers.GgufConfig(dequantize=True)} if has_setting else {}
    try:
        with redirect_stderr(StringIO()):  # a bar of its own
            content = GGUFReader(file)
            tokenizer = AutoTokenizer.from_pretrained(
                file.parent, gguf_file=file.name, trust_remote_code=False
            )
            read, report = AutoModelForCausalLM.from_pretrained(
                file.parent,
                gguf_file=file.name,
                dtype=torch.bfloat16,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are told below
                **dequantizing,
                trust_remote_code=False,
            )
    except Exception as error:  # of three libraries, on any file
        raise _unreadable(file, first_line(error)) from error
    if unread := sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}):
        raise _unreadable(file, f"{len(unread)} of its weights do not fit, such as {unread[0]}")
    if _scales_positions(content) and _has_plain_positions(read.config):
        raise _unreadable(file, "it leaves out how the file scales positions (rope scaling)")
    model = _plain_copy(read)
    tokenizer.model_max_length = model.config.get_text_config().max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return weight_types(content)


def weight_types(content: GGUFReader) -> str:
    """The types of the matrices in a GGUF file, the most frequent one first: ``Q4_K, Q6_K``."""
    counted = Counter(tensor.tensor_type.name for tensor in content.tensors if len(tensor.shape) > 1)
    return ", ".join(name for name, _ in counted.most_common())


def _scales_positions(content: GGUFReader) -> bool:
    """Whether rotary frequencies are not the plain ones; transformers skips both forms for most architectures."""
    kinds = [
        field.contents() for name, field in content.fields.items() if name.endswith(".rope.scaling.type")
    ]
    return any(tensor.name.startswith("rope_f") for tensor in content.tensors) or not {*kinds} <= {"none"}


def _has_plain_positions(config: Any) -> bool:
    """Whether a configuration scales no rotary frequencies; some, such as Gemma 3's, have parameters for each kind of layer."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [kind for kind in parameters.values() if isinstance(kind, dict)] or [parameters]
    return all(kind.get("rope_type", "default") == "default" for kind in kinds)


def _unreadable(file: Path, why: str) -> AjetError:
    return AjetError(
        f"model {file}",
        f"transformers cannot read it: {why}. Give the model's folder in the Hugging Face layout instead.",
    )


def _plain_copy(read: Any) -> Any:
    """A model of the same class with the same weights, which can be saved: one that was read from GGUF cannot."""
    import torch

    config = type(read.config)(
        **{name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    )
    with torch.device("meta"):
        model = type(read)(config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    return model
