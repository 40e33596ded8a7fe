"""Shadow runs: a service repeats some of its requests with the model in training.

A started `Runner` watches the calls of the program's agents, which stay as they are. It lets a strategy select some of those that
were answered, and repeats them in threads of its own: with a copy of the agent's state as it was before the call, with tools that
only read, and with LLM calls that go to the explorer. Their rewards are sent to the explorer as feedback. A failure in here is
counted and logged, and never reaches the service.
"""

from __future__ import annotations

from ajet_online.runner.runner import Runner
from ajet_online.runner.selection import ExplicitMarking, Request, SamplingRate, Selection, mark, marked
from ajet_online.runner.shadow import guard_tools, in_shadow_run, read_only
from ajet_online.runner.shadow_run import Counts, ShadowRun

__all__ = [
    "Runner",
    "ShadowRun",
    "Selection",
    "Request",
    "SamplingRate",
    "ExplicitMarking",
    "mark",
    "marked",
    "read_only",
    "guard_tools",
    "in_shadow_run",
    "Counts",
]
