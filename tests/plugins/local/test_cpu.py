"""On a CPU, a model computes in the type that the processor multiplies fastest, and waiting threads leave the cores to others."""

import asyncio
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ajet.interfaces.progress import Silent  # noqa: E402
from ajet.learning.algorithms import SFT  # noqa: E402
from ajet.learning.settings import TrainSettings  # noqa: E402
from ajet.types import Batch, ConfigError, Sample, Span  # noqa: E402
from ajet_advice.known import read_shape  # noqa: E402
from ajet_local import Local, LocalEnginePlugin, cpu  # noqa: E402
from tests.patience import PATIENCE  # noqa: E402
from tests.tiers import fast  # noqa: E402

QWEN = read_shape("Qwen/Qwen3-0.6B")


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.fixture
def on(monkeypatch):
    """Make this CPU one with these instructions, that multiplies so many times as fast with them."""

    def processor(instructions, gain=2.0):
        monkeypatch.setattr(cpu, "native_bfloat16", lambda: instructions)
        monkeypatch.setattr(cpu, "_gain", lambda hidden, inner: gain)
        monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: True)

    return processor


@pytest.mark.parametrize(
    ("cpuinfo", "instructions"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_tile amx_bf16\n", "amx_bf16"),
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16\n", "avx512_bf16"),
        ("processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n", "bf16"),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f\nbugs\t\t: bf16\n", ""),
        (None, ""),
    ],
)
def test_a_processor_names_its_instructions_for_bfloat16(tmp_path, cpuinfo, instructions):
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert cpu.native_bfloat16(tmp_path / "cpuinfo") == instructions


@pytest.mark.parametrize(
    ("instructions", "gain", "measured", "dtype"),
    [
        ("avx512_bf16", 2.4, True, torch.bfloat16),
        ("avx512_bf16", 0.8, True, torch.float32),
        ("avx512_bf16", 0.8, False, torch.bfloat16),
        ("", 2.4, True, torch.float32),
    ],
)
def test_a_model_computes_in_bfloat16_where_it_is_native_and_faster(on, instructions, gain, measured, dtype):
    on(instructions, gain)
    said = Said()
    assert Local(device="cpu").computed_in(QWEN, said, measured=measured) == dtype
    (line,) = said.lines
    assert line.startswith(f"computing in {str(dtype).removeprefix('torch.')}: this CPU has ")


def test_what_the_job_says_of_the_type_holds(on):
    on("avx512_bf16")
    said = Said()
    assert Local(device="cpu", dtype="float32").computed_in(QWEN, said) == torch.float32
    on("")
    assert Local(device="cpu", dtype="bfloat16").computed_in(QWEN, said) == torch.bfloat16
    assert not said.lines


def test_the_measurement_takes_a_moment_and_finds_what_is_faster():
    gain = cpu._gain(256, 512)
    assert gain == cpu._gain(256, 512) > 0


def saved(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def made(folder, *, deterministic):
    settings = TrainSettings(adam_epsilon=1e-8)
    return Local(device="cpu", cache_mib=16, micro_batch_tokens=512).trainer(
        folder, settings, seed=0, deterministic=deterministic, progress=Silent()
    )


@pytest.fixture
def determinism():
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.whole
def test_a_small_model_stays_in_float32_and_says_nothing(on, model, tokenizer, tmp_path):
    on("avx512_bf16")
    trainer = made(saved(model, tokenizer, tmp_path), deterministic=False)
    assert trainer.autocast is None and trainer.engine.model is trainer.model
    engine = LocalEnginePlugin(device="cpu").build(str(tmp_path), 0, Silent())
    assert engine.model.dtype == torch.float32


@pytest.mark.whole
def test_a_deterministic_run_and_an_engine_alone_do_not_depend_on_a_measurement(
    on, model, tokenizer, tmp_path, monkeypatch, determinism
):
    monkeypatch.setattr("ajet_local.settings.SMALL", 0)
    folder = saved(model, tokenizer, tmp_path)
    types = {}
    for gain in (0.5, 2.0):
        on("avx512_bf16", gain)
        types[gain] = [
            made(folder, deterministic=True).engine.model.dtype,
            LocalEnginePlugin(device="cpu").build(folder, 0, Silent()).model.dtype,
            made(folder, deterministic=False).engine.model.dtype,
        ]
    same, other = torch.bfloat16, torch.float32
    assert types == {0.5: [same, same, other], 2.0: [same, same, same]}


@pytest.mark.whole
def test_a_model_in_bfloat16_trains_the_weights_that_it_samples_with_also_with_small_steps(
    on, model, tokenizer, tmp_path, monkeypatch
):
    on("avx512_bf16")
    monkeypatch.setattr("ajet_local.settings.SMALL", 0)
    trainer = made(saved(model, tokenizer, tmp_path), deterministic=False)
    assert trainer.model.dtype == torch.float32 and trainer.engine.model.dtype == torch.bfloat16
    ids = np.arange(5, 37, dtype=np.int32)
    old = asyncio.run(trainer.engine.score(ids))
    ones = np.ones(len(ids), np.float32)
    ones[0] = 0
    sample = Sample(ids, ones > 0, old, ones, ones / len(ids), (Span(1, len(ids), 0, "agent", "policy"),))
    before = torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])
    metrics = trainer.update(Batch([sample], SFT().loss, [range(1)], 1e-5))
    asyncio.run(trainer.publish())
    after = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    sampled = torch.cat([p.detach().flatten() for p in trainer.engine.model.parameters()])
    assert 0 < metrics["logprob_diff_mean"] < 0.05
    assert not torch.equal(before.bfloat16(), sampled)
    assert torch.equal(sampled, after.bfloat16())


ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in cpu.WAITING}
STARTED = """
import importlib.util, pathlib, subprocess, sys
from ajet.plugins import load_plugins
load_plugins()
assert "torch" not in sys.modules
folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib"
library = next(map(str, folder.glob("libgomp*")), None)  # torch's threads wait in it; the rest of torch takes seconds
load = f"import ctypes; ctypes.CDLL({library!r})" if library else "import torch"
exec(load)
subprocess.run([sys.executable, "-c", load], check=True)
"""


@pytest.mark.whole
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libgomp shows what it has read")
@pytest.mark.parametrize("given", fast({0}, [None, "ACTIVE"]))
def test_threads_that_wait_sleep_in_this_process_and_those_that_it_starts_unless_the_user_says_otherwise(
    given,
):
    environment = {**ENVIRONMENT, "OMP_DISPLAY_ENV": "TRUE"} | ({"OMP_WAIT_POLICY": given} if given else {})
    done = subprocess.run(
        [sys.executable, "-c", STARTED], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stderr.splitlines() if "OMP_WAIT_POLICY" in line]
    assert len(shown) == 2 and all(f"'{given or 'PASSIVE'}'" in line for line in shown)


@pytest.mark.parametrize("name", cpu.WAITING)
def test_a_user_may_say_how_threads_wait_in_any_of_three_ways(monkeypatch, name):
    for each in cpu.WAITING:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "100")
    cpu.sleep_while_waiting()
    assert [each for each in cpu.WAITING if each in os.environ] == [name]


@pytest.mark.whole
def test_shapes_that_are_ever_new_do_not_fill_the_memory():
    """In bfloat16, oneDNN keeps a kernel for each shape."""
    code = """
import ajet_local
from ajet_local import memory
import torch

def resident_after(lengths):
    for length in lengths:
        torch.nn.functional.linear(torch.ones(length, 576, dtype=torch.bfloat16), weight)
    return memory.resident()

torch.set_num_threads(1)
weight = torch.ones(576, 576, dtype=torch.bfloat16)
first = resident_after(range(1, 300))
print(resident_after(range(300, 900)) - first < 150 << 20)
"""
    unset = {name: value for name, value in os.environ.items() if name not in cpu.KERNELS}
    done = subprocess.run(
        [sys.executable, "-c", code], env=unset, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "True\n", done.stderr


def test_the_user_says_how_many_kernels_are_kept(monkeypatch):
    monkeypatch.delenv(cpu.KERNELS[0], raising=False)
    monkeypatch.setenv(cpu.KERNELS[1], "7")
    cpu.keep_few_kernels()
    assert [os.environ[name] for name in cpu.KERNELS] == ["256", "7"]


def test_what_computes_now_is_counted():
    assert cpu.running() >= 1  # this program


@pytest.mark.parametrize(
    ("load", "running", "line"), [(15.2, 3, "15 on 2 cores"), (15.2, 2, ""), (2.4, 3, ""), (0.1, 1, "")]
)
def test_a_load_above_the_cores_that_goes_on_is_told(
    monkeypatch, load, running, line, model, tokenizer, tmp_path
):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(cpu, "running", lambda: running)
    monkeypatch.setattr(cpu, "available_cores", lambda: 2)
    assert cpu.crowded() == line
    said = Said()
    folder = saved(model, tokenizer, tmp_path)
    Local(device="cpu").trainer(folder, TrainSettings(), seed=0, deterministic=False, progress=said)
    told = [text for text in said.lines if text.startswith("load ")]
    assert told == ([f"load {line}: other programs compute, so this run takes longer"] if line else [])


@pytest.mark.parametrize("plugin", [Local, LocalEnginePlugin])
def test_a_device_that_is_not_there_is_named_before_a_model_is_built(plugin, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"backbone\.local\.device: cuda, but PyTorch .* no such device"):
        plugin(device="cuda").source("nowhere/none", 0, Silent())
