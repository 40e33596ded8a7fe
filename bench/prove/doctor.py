"""What `ajet doctor` finds, and the GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch

from prove.part import Options, main


def run(options: Options) -> dict[str, Any]:
    """The lines of the doctor that are not "ok", and versions. Raises RuntimeError if packages do not work together."""
    done = subprocess.run([sys.executable, "-m", "ajet", "doctor"], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    if done.returncode:
        raise RuntimeError(f"ajet doctor ended with exit code {done.returncode}")
    found: dict[str, Any] = {"torch": torch.__version__, "device": "cpu"}
    if options.reduced:  # vLLM chooses its kernels for bfloat16 by these
        can = torch.cpu.get_capabilities()
        found["cpu"] = [can.get("cpu_name"), *(name for name in ("avx512_bf16", "amx_tile") if can.get(name))]
    else:
        free, total = torch.cuda.mem_get_info()
        found |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        found |= {"memory_gib": round(total / 2**30, 1), "free_gib": round(free / 2**30, 1)}
    return found


if __name__ == "__main__":
    main(run, __doc__)
