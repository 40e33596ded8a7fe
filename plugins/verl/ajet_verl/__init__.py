"""The verl backbone: jobs trained by verl on one machine or many (Ray, vLLM, FSDP, Megatron).

Importing this package imports none of these; its modules import them when a job runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from ajet import Finding, Plugin, hookimpl
from ajet_verl.cluster import Ray
from ajet_verl.plugin import Verl
from ajet_verl.versions import findings, missing_on_gpus


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    return [Verl, Ray]


@hookimpl
def ajet_doctor() -> Iterable[Finding]:
    """Whether verl is installed, the versions of what it needs, and what makes it faster on GPUs."""
    return [*findings(), *missing_on_gpus()]
