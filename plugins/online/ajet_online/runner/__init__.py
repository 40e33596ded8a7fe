"""Shadow runs: a service repeats some of its requests with the model in training.

`Runner` wraps the service's agent. It answers each request with the production model, lets a strategy select requests, and
repeats these in threads of its own with the explorer as the model. Their rewards are sent to the explorer as feedback.
A failure in here is counted and logged, and never reaches the service. Only httpx and the standard library are needed.
"""

from __future__ import annotations

from ajet_online.runner.counts import Counts
from ajet_online.runner.marks import mark
from ajet_online.runner.model import Model
from ajet_online.runner.runner import Runner
from ajet_online.runner.selection import ExplicitMarking, Request, SamplingRate, Selection
from ajet_online.runner.shadow import in_shadow_run
from ajet_online.runner.shadow_run import ShadowRun
from ajet_online.runner.tools import guard_tools, read_only

__all__ = [
    "Runner",
    "Model",
    "ShadowRun",
    "Selection",
    "Request",
    "SamplingRate",
    "ExplicitMarking",
    "mark",
    "read_only",
    "guard_tools",
    "in_shadow_run",
    "Counts",
]
