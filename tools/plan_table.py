"""Writes the table of plugins/advice/QWEN3.md: which Qwen3 models train how on which GPUs. A test compares the page with it.

python tools/plan_table.py plugins/advice/QWEN3.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import tables

from ajet.job.config import Layers
from ajet.types import ConfigError
from ajet_advice.known import parse_gpus
from ajet_advice.plan import METHODS, JobPlan, PlanQuestion, gibibytes, plan

MODELS = ("0.6B", "1.7B", "4B", "8B", "14B", "32B")
GPUS = (("RTX4090", "local"), ("H100", "local"), ("8xH100", "verl"))
OF_A_MICRO_BATCH = ("activations", "converted weights", "gathered weights")


def table() -> Iterator[str]:
    """The lines of the table."""
    heads = [f"{gpus}, `{backbone}`" for gpus, backbone in GPUS]
    yield f"| Qwen3 | trained | {' | '.join(heads)} |"
    yield f"|---|---|{'---|' * len(heads)}"
    for model in MODELS:
        for method in METHODS:
            cells = [cell(model, method, *where) for where in GPUS]
            yield f"| {model} | {method} | {' | '.join(cells)} |"


def cell(model: str, method: str, gpus: str, backbone: str) -> str:
    """What a plan says in a few words."""
    layers = Layers()
    for key, value in {
        "model": f"Qwen/Qwen3-{model}",
        "backbone": backbone,
        "rollout.context_length": 4096,
    }.items():
        layers.set(key, value, "tools/plan_table.py", Path.cwd())
    try:
        found = plan(layers, PlanQuestion(gpus=parse_gpus(gpus), method=method))
    except ConfigError:
        return "no estimate"
    if not found.layout.fits:
        tightest = found.layout.tightest
        return f"no: {gibibytes(tightest.total)} of {gibibytes(tightest.limit)} GiB"
    lasting, passing, cache = map(gibibytes, kinds(found))
    return f"{lasting} + {passing} + {cache} GiB, {found.speed.tokens} tokens/s"


def kinds(found: JobPlan) -> tuple[int, int, int]:
    """Bytes on a GPU of what lasts, of what exists during a micro-batch, and of the cache."""
    parts = found.layout.phases[-1].parts
    passing = sum(size for name, size in parts.items() if name.startswith(OF_A_MICRO_BATCH))
    cache = found.layout.cache // found.layout.engine_gpus
    lasting = sum(parts.values()) - passing - parts.get("the engine's cache", 0)
    return lasting, passing, cache


def with_table(page: str) -> str:
    """A page with the table between its marks."""
    return tables.with_table(page, "plan_table.py", table())


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
