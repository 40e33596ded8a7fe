"""The backbone `verl`: what it can honour, and how it runs a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ajet import Backbone
from ajet.backbone import Capabilities, RunResult

if TYPE_CHECKING:
    from ajet.job import Job


class Verl(Backbone):
    """Trains with verl on a Ray cluster: vLLM samples, FSDP or Megatron learn."""

    name = "verl"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def run(self, job: Job) -> RunResult:
        """Run the job as one of verl."""
        raise NotImplementedError
