"""Do vLLM and verl keep AgentJet's promises on this GPU? At most 18 minutes on a card of 80 GB.

bench/prove_h100.py, which `make prove-gpu` runs before, shows what needs neither.

    make prove-gpu                       # all parts
    make prove-gpu ARGS="engines sleep"  # the parts whose names begin with these words

Without a GPU, `make prove-gpu` adds ``--reduced``: small models on the CPU, which show that the program itself works.

Each part runs in processes of its own, with a deadline. One that fails, or that lacks a package, does not stop the others. The
output of every part is in the folder of `--out`; of a part that fails, its end is printed too. The last line is one JSON object. Exit
code 1: a part has failed.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.utils.process_group import signal_group

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Part:
    """A program of `bench/prove`."""

    name: str
    program: str
    seconds: int
    """Its deadline."""
    extra: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Modules without which it is skipped. Parts that need verl run in its environment."""


PARTS = (
    Part("doctor", "doctor", 60),
    Part("models", "models", 60),
    Part("engines/local", "conformance", 60, ("local",)),
    Part("engines/vllm", "conformance", 150, ("vllm",), ("vllm",)),
    Part("logprobs/local", "logprobs", 60, ("local",)),
    Part("logprobs/vllm", "logprobs", 120, ("vllm",), ("vllm",)),
    Part("sleep/vllm", "sleep", 150, (), ("vllm",)),
    Part(
        "train/local-vllm",
        "training",
        180,
        ("local", "vllm"),
        ("vllm",),
    ),
    Part("train/verl", "training", 240, ("verl",), ("vllm", "verl")),
)
ALWAYS = ("doctor", "models")
"""The other parts and the report need them."""
PATIENT = 4
"""So many times the deadlines apply without a GPU, where other programs may use the same cores."""
ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
"""The beginning of a traceback's last line."""
END = 250
"""Lines of a failed part's output. Below the error of a worker, vLLM prints the tracebacks of three processes."""


def main() -> None:
    """Run the parts and print what they found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reduced", action="store_true", help="small models on the CPU")
    parser.add_argument(
        "--verl-python", default=sys.executable, metavar="PYTHON", help="the Python beside verl"
    )
    parser.add_argument("--out", type=Path, help="folder for the parts' output; default: a new temporary one")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(part.name for part in PARTS)}; default: all")
    options = parser.parse_args()
    if not options.reduced and not _has_cuda():
        sys.exit("bench/prove_gpu.py: torch finds no CUDA device. --reduced tries the program on this CPU.")
    out = options.out or Path(tempfile.mkdtemp(prefix="prove-gpu-"))
    out.mkdir(parents=True, exist_ok=True)
    found = {
        part.name: run(part, out.resolve(), _python(part, options.verl_python), reduced=options.reduced)
        for part in PARTS
        if not options.parts or part.name in ALWAYS or part.name.startswith(tuple(options.parts))
    }
    print(json.dumps({"reduced": options.reduced, "out": str(out), "parts": found}))
    if any("failed" in figures for figures in found.values()):
        sys.exit(1)


def _python(part: Part, verl_python: str) -> str:
    return str(Path(verl_python).absolute()) if "verl" in part.needs else sys.executable


def run(part: Part, out: Path, python: str, *, reduced: bool) -> dict[str, Any]:
    """The figures of a part, with ``seconds``; ``failed`` or ``skipped`` with the reason instead of others."""
    if missing := [name for name in part.needs if not _is_installed(name, python)]:
        figures = {"skipped": f"{', '.join(missing)} not installed beside {python}"}
    else:
        started = time.monotonic()
        figures = _ran(part, out, python, reduced=reduced)
        figures["seconds"] = round(time.monotonic() - started, 1)
    print(f"{part.name:18}{json.dumps(figures)}", flush=True)
    return figures


def _is_installed(module: str, python: str) -> bool:
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", look]).returncode == 0


def _ran(part: Part, out: Path, python: str, *, reduced: bool) -> dict[str, Any]:
    log = out / f"{part.name.replace('/', '-')}.log"
    command = [python, "-m", f"prove.{part.program}", "--folder", str(out), *part.extra]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*command, *(["--reduced"] if reduced else [])],
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, which ends as a whole
        )
        seconds = part.seconds * (PATIENT if reduced else 1)
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(seconds)
        finally:
            signal_group(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    # What the part started can print more after the figures.
    found: dict[str, Any] = next((json.loads(line) for line in reversed(lines) if line.startswith('{"')), {})
    if code == 0 and found:
        return found
    why = f"not done after {seconds} s" if code is None else f"exit code {code}"
    error = next((line for line in reversed(lines) if ERROR.match(line)), (lines or ["no output"])[-1])
    print(f"The end of {log}:", *(f"    {line}" for line in lines[-END:]), sep="\n")
    return {"failed": str(found.get("failed", f"{why}: {error}"))[:500], "log": str(log)}


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    main()
