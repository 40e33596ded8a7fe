"""What a machine with one GPU shows in calls of nine minutes each: the first needs no more than torch, transformers, peft and this
repository's packages, the second vLLM, the third verl.

    python bench/prove_h100.py --call 1              # on a CUDA device
    python bench/prove_h100.py --call 2 --reduced    # the same program on this CPU, with small models

The most valuable check comes first, and each prints a JSON object when it ends: what did not run for want of time is missing at the
end. The last line is one JSON object with all of them. Exit code 1: a check has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ajet.utils.process_group import signal_group

HERE = Path(__file__).resolve().parent
COMPILED = 1.0
"""A call of attention that takes more seconds than this has compiled a kernel."""
ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
"""The beginning of a traceback's last line."""
END = 250
"""Lines of a failed program's output. Below the error of a worker, vLLM prints the tracebacks of three processes."""
HEADS, GROUPS, SIZE = 16, 8, 128
"""Query heads, key heads, and their size: those of Qwen3-0.6B."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the checks run."""

    reduced: bool
    folder: Path

    @property
    def device(self) -> torch.device:
        """The device of the measurements."""
        return torch.device("cpu" if self.reduced else "cuda")


class OutOfTimeError(Exception):
    """The program has had its time."""


def main() -> None:
    """Run the checks of a call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--call", type=int, choices=sorted(CALLS), required=True)
    parser.add_argument("--reduced", action="store_true", help="small models on the CPU")
    parser.add_argument(
        "--out", type=Path, help="folder for models, logs and the result; default: a new temporary one"
    )
    parser.add_argument(
        "--limit",
        type=int,
        help="end after so many seconds with what there is; default: 540, with --reduced 2000, as its cores may be busy",
    )
    options = parser.parse_args()
    if not options.reduced and not torch.cuda.is_available():
        sys.exit("bench/prove_h100.py: torch finds no CUDA device. --reduced tries the program on this CPU.")
    out = (options.out or Path(tempfile.mkdtemp(prefix="prove-h100-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    place = Place(options.reduced, out)
    done: list[dict[str, Any]] = []
    signal.signal(signal.SIGALRM, _stop)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what it has started ends, too
    limit = options.limit or (2000 if place.reduced else 540)
    signal.alarm(limit)
    try:
        for check in CALLS[options.call]:
            done.append(_ran(check, place))
            print(json.dumps(done[-1]), flush=True)
    except OutOfTimeError:
        print(f"stopped after {limit} s", flush=True)
    signal.alarm(0)
    result = {"call": options.call, "reduced": place.reduced, "device": _device_name(place), "checks": done}
    (out / f"call-{options.call}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result))
    if not all(check["passed"] for check in done):
        sys.exit(1)


def _stop(*_: object) -> None:
    raise OutOfTimeError


def _ran(check: Callable[[Place], dict[str, Any]], place: Place) -> dict[str, Any]:
    started = time.perf_counter()
    figures: dict[str, Any]
    try:
        figures = check(place)
        passed = True
    except OutOfTimeError:
        raise
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [type(error).__name__]
        passed, figures = False, {"failed": f"{type(error).__name__}: {lines[-1][:300]}"}
    if place.device.type == "cuda":
        torch.cuda.empty_cache()
    seconds = round(time.perf_counter() - started, 1)
    return {"name": check.__name__, "passed": passed, "seconds": seconds, "figures": figures}


def _device_name(place: Place) -> str:
    return "cpu" if place.reduced else torch.cuda.get_device_name()


def environment(place: Place) -> dict[str, Any]:
    """Versions, and the speed of a large matrix product."""
    import gpu
    import transformers

    found: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    if not place.reduced:
        free, total = torch.cuda.mem_get_info()
        found |= {"cuda": torch.version.cuda, "total_gib": _gib(total), "free_gib": _gib(free)}
    speed = gpu.matmul_flops(place.device, 256 if place.reduced else 8192)
    return found | {"tflops": round(speed / 1e12, 1), "cores": os.cpu_count()}


# --------------------------------------------------------------------------- attention over trees


def forest(tokens: int, seed: int = 0) -> np.ndarray:
    """The parents, int32[N], of a tree whose first quarter is shared by branches of uneven length, some of which fork again."""
    rng = np.random.default_rng(seed)
    parents = np.arange(-1, tokens - 1, dtype=np.int32)
    trunk = max(1, tokens // 4)
    start = trunk
    while start < tokens:
        parents[start] = rng.integers(trunk // 2, trunk)
        length = int(rng.integers(1, max(2, tokens // 8)))
        fork = start + length // 2
        # The last quarter of the branch is another end of its first half.
        if length > 3 and start + length < tokens:
            parents[start + 3 * length // 4] = fork - 1
        start += length
    order = _preorder(parents)
    return np.asarray(order, np.int32)


def _preorder(parents: np.ndarray) -> list[int]:
    """The same tree in preorder, the longest branch first, as trees of samples are."""
    children: dict[int, list[int]] = {}
    below = np.ones(len(parents), np.int64)
    for token in reversed(range(len(parents))):
        children.setdefault(int(parents[token]), []).append(token)
        if parents[token] >= 0:
            below[parents[token]] += below[token]
    found: list[int] = []
    stack = [(root, -1) for root in sorted(children[-1], key=lambda t: below[t])]
    while stack:
        token, parent = stack.pop()
        found.append(parent)
        place = len(found) - 1
        stack += [(child, place) for child in sorted(children.get(token, ()), key=lambda t: below[t])]
    return found


def attention(place: Place) -> dict[str, Any]:
    """Outputs and gradients of attention over trees beside exact ones, in both types, from one token to 32,768."""
    from ajet_trees.attention import TreeLayout, tree_attention

    figures: dict[str, Any] = {}
    sizes = (1, 100, 129, 400) if place.reduced else (1, 100, 129, 1024, 8192, 32768)
    for dtype in (torch.bfloat16, torch.float32):
        for count in sizes:
            layout = TreeLayout(forest(count))
            inputs = _inputs(count, place.device, dtype)
            seconds = []
            for _ in range(1 if place.reduced else 4):
                _reset(place.device)
                started = time.perf_counter()
                out = tree_attention(None, *inputs, None, tree=layout)[0]
                got = torch.autograd.grad(out, inputs, _direction(out))
                _synchronize(place.device)
                seconds.append(time.perf_counter() - started)
            peak = _peak(place.device)
            name = f"{str(dtype).removeprefix('torch.')}/{count}"
            figures[name] = {
                "first": round(seconds[0], 3),
                "ms": round(1e3 * min(seconds), 2),
                "peak_gib": peak,
            }
            if count > 16384:
                continue  # the exact scores would need 64 GiB
            query, key, value = (x.detach().float().requires_grad_() for x in inputs)
            exact = _exact(query, key, value, layout).transpose(1, 2)
            wanted = torch.autograd.grad(exact, (query, key, value), _direction(exact))
            errors = [_error([out], [exact]), _error(got, wanted)]
            figures[name]["error"] = float(f"{max(errors):.2g}")
            if not max(errors) <= (2e-2 if dtype == torch.bfloat16 else 1e-3):
                raise RuntimeError(f"attention over a tree is wrong: {figures}")
            del exact, wanted
    return figures


def _inputs(
    count: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(count)
    query, key, value = (
        torch.randn(1, heads, count, SIZE, device=device, generator=generator).to(dtype).requires_grad_()
        for heads in (HEADS, GROUPS, GROUPS)
    )
    return query, key, value


def _direction(out: torch.Tensor) -> torch.Tensor:
    """A gradient of the output, [1, N, H, D]."""
    return torch.sin(torch.arange(out.numel(), device=out.device)).reshape(out.shape).to(out.dtype)


def _exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Any) -> torch.Tensor:
    """Attention in float32, head by head, with all scores."""
    unseen = ~layout.mask.to(query.device)
    outs = []
    for head in range(query.shape[1]):
        of = head // (query.shape[1] // key.shape[1])
        scores = query[0, head] @ key[0, of].T * SIZE**-0.5
        outs.append(scores.masked_fill(unseen, -torch.inf).softmax(-1) @ value[0, of])
    return torch.stack(outs)[None]


def _error(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The norm of the error, relative to that of the exact values."""
    one, other = (torch.cat([x.detach().flatten().float() for x in values]) for values in (found, exact))
    return float((one - other).norm() / other.norm())


def variants(place: Place) -> dict[str, Any]:
    """Trees of many sizes, with and without gradients: torch compiles attention once for each, not once a size."""
    from ajet_trees.attention import TreeLayout, tree_attention

    compiled, slowest = [], 0.0
    sizes = [*range(1, 40, 13), *range(90, 1500, 101), 2048, 4096]
    for count in sizes[:4] if place.reduced else sizes:
        for gradients in (True, False):
            inputs = _inputs(count, place.device, torch.bfloat16)
            layout = TreeLayout(forest(count, seed=count))
            started = time.perf_counter()
            with torch.set_grad_enabled(gradients):
                out = tree_attention(None, *inputs, None, tree=layout)[0]
                if gradients:
                    out.sum().backward()
            _synchronize(place.device)
            seconds = time.perf_counter() - started
            if seconds > COMPILED:
                compiled.append((count, gradients, round(seconds, 1)))
            else:
                slowest = max(slowest, seconds)
    if len(compiled) > 2:
        raise RuntimeError(f"attention compiles again and again: {compiled}")
    return {"compiled": compiled, "slowest_other": round(slowest, 3)}


def masks(place: Place) -> dict[str, Any]:
    """Seconds and memory of block masks."""
    from ajet_trees.attention import TreeLayout

    figures = {}
    for count in (4096,) if place.reduced else (4096, 32768, 131072):
        layout = TreeLayout(forest(count))
        _reset(place.device)
        started = time.perf_counter()
        mask = layout.block_mask(place.device)
        _synchronize(place.device)
        seconds = round(time.perf_counter() - started, 3)
        figures[str(count)] = {
            "seconds": seconds,
            "peak_gib": _peak(place.device),
            "sparsity": round(mask.sparsity(), 1),
        }
    return figures


# --------------------------------------------------------------------------- a model of the shape of Qwen3-0.6B


def _shape(place: Place) -> tuple[Any, Any]:
    """The model's configuration, and how much is computed. Reduced, its heads keep their size and their groups; a processor without
    instructions for bfloat16 takes minutes with the widths of Qwen3-0.6B."""
    import gpu

    config = gpu.qwen3_06b()
    if not place.reduced:
        return config, gpu.Sizes()
    config.hidden_size, config.intermediate_size, config.vocab_size = 256, 512, 1000
    config.num_attention_heads, config.num_key_value_heads = 4, 2
    config.num_hidden_layers, config.layer_types = 2, ["full_attention"] * 2
    return config, gpu.Sizes(2, 3, 64, 16, 1, 4)


def trees(place: Place) -> dict[str, Any]:
    """The check that each model passes before it computes trees; then training on trees beside rows."""
    import gpu
    from transformers import AutoModelForCausalLM

    from ajet_trees import attention as module
    from ajet_trees.models import difference

    config, sizes = _shape(place)
    torch.manual_seed(0)
    with place.device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.set_attn_implementation(module.NAME)
    figures: dict[str, Any] = {}
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        with torch.autocast(place.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            started = time.perf_counter()
            reason = difference(model, config.num_hidden_layers, place.device)
            figures[f"proof_{name}_seconds"] = round(time.perf_counter() - started, 1)
            if reason:
                raise RuntimeError(f"{name}: {reason}")
            with _without_forks():
                if not difference(model, config.num_hidden_layers, place.device):
                    raise RuntimeError(f"{name}: a mask without forks is not noticed")
    found = gpu.training(model, sizes, gpu.matmul_flops(place.device, 256 if place.reduced else 8192))
    return figures | {key: round(value, 4) for key, value in found.items()}


@contextmanager
def _without_forks() -> Iterator[None]:
    """A block in which attention over trees lets every token see all before it."""
    from transformers import AttentionInterface

    from ajet_trees.attention import NAME, TreeLayout, tree_attention

    def straight(*arguments: Any, tree: Any = None, **options: Any) -> Any:
        if tree is not None:
            tree.uses += 1
            tree = TreeLayout(np.arange(-1, len(tree.parents) - 1, dtype=np.int32))
        return tree_attention(*arguments, tree=tree, **options)

    AttentionInterface.register(NAME, straight)
    try:
        yield
    finally:
        AttentionInterface.register(NAME, tree_attention)


def marked_tests(place: Place) -> dict[str, Any]:
    """The tests that are marked gpu; reduced, their neighbours that need no device."""
    command = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/plugins/local/test_gpu.py"]
    # Without a device, every test that needs none, also those that `make test` leaves out: pytest fails if no test is left.
    output = _run(
        [*command, "-m", "not slow and not gpu" if place.reduced else "gpu"], place, "tests", HERE.parent
    )
    return {"summary": [line for line in output.splitlines() if " passed" in line][-1]}


def steps(place: Place) -> dict[str, Any]:
    """Five steps of the backbone local, and the plan's memory and seconds."""
    return _part("training", place, "local", "local", "5")


def doctor(place: Place) -> dict[str, Any]:
    """What `ajet doctor` finds."""
    return {"lines": len(_run(["-m", "ajet", "doctor"], place, "doctor").splitlines())}


def colocated(place: Place) -> dict[str, Any]:
    """One vLLM beside a trainer on one GPU."""
    return _part("colocated", place)


def steps_vllm(place: Place) -> dict[str, Any]:
    """As `steps`, sampled by vLLM."""
    return _part("training", place, "local", "vllm", "5")


def steps_verl(place: Place) -> dict[str, Any]:
    """As `steps`, on the backbone verl."""
    return _part("training", place, "verl", "", "5")


def _part(program: str, place: Place, *extra: str) -> dict[str, Any]:
    """The figures of a program of `bench/prove`, over the models that they share."""
    arguments = ["--folder", str(place.folder), *(["--reduced"] if place.reduced else [])]
    if not (place.folder / "large").exists():
        _run(["-m", "prove.models", *arguments], place, "models")
    lines = _run(["-m", f"prove.{program}", *arguments, *extra], place, "-".join((program, *extra[:2])))
    # What the program started can print more after its figures.
    found: dict[str, Any] = next(
        json.loads(line) for line in reversed(lines.splitlines()) if line.startswith('{"')
    )
    return found


def memory(place: Place) -> dict[str, Any]:
    """Peaks of jobs beside the plan: all weights, with AdamW of 8 bits too where bitsandbytes is installed; an adapter, over weights of
    4 bits too."""
    jobs: tuple[tuple[str, ...], ...] = (("1.7B",), ("4B", "lora"))
    if not place.reduced:
        jobs = (("1.7B",), ("8B", "lora"), ("4B",))
        if find_spec("bitsandbytes"):
            jobs = (("1.7B", "adamw_8bit"), ("8B", "lora", "4bit"), *jobs)
    figures = {}
    for job in jobs:
        figures[" ".join(job)] = _part("memory", place, *job)
    return figures


def generation(place: Place) -> dict[str, Any]:
    """Tokens per second of the local engine."""
    import asyncio

    import gpu
    from transformers import AutoModelForCausalLM

    config, sizes = _shape(place)
    with place.device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    return {key: round(value, 1) for key, value in asyncio.run(gpu.generation(model, sizes)).items()}


def _run(arguments: Sequence[str], place: Place, name: str, folder: Path = HERE) -> str:
    """The output of a Python program in a process group of its own, which ends as a whole. Raises RuntimeError with its error if
    it fails."""
    log = place.folder / f"{name}.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait()
        finally:
            signal_group(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text(encoding="utf-8", errors="replace")
    if code:
        lines = text.strip().splitlines() or ["no output"]
        print(f"The end of {log}:", *lines[-END:], sep="\n")
        raise RuntimeError(next((line for line in reversed(lines) if ERROR.match(line)), lines[-1]))
    return text


def _gib(size: float) -> float:
    return round(size / 2**30, 3)


def _reset(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _peak(device: torch.device) -> float:
    return _gib(torch.cuda.max_memory_allocated()) if device.type == "cuda" else 0.0


CALLS: dict[int, tuple[Callable[[Place], dict[str, Any]], ...]] = {
    1: (environment, attention, variants, masks, trees, steps, marked_tests, memory, generation),
    2: (environment, doctor, colocated, steps_vllm),
    3: (environment, doctor, steps_verl),
}

if __name__ == "__main__":
    main()
