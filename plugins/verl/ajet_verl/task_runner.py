"""verl's task runner, the process in which its trainer drives a job, with our trainer and a clean end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.trainer.main_ppo import TaskRunnerV1

from ajet_verl.alignment import received
from ajet_verl.trainer import registered

RECEIVED = "verl.yaml"
"""The file in the run folder that says what verl received."""

_VerlsOwn: Any = TaskRunnerV1.__ray_metadata__.modified_class  # an actor class cannot be subclassed itself


class TaskRunner(_VerlsOwn):
    """Made a Ray actor by `launch`, on the driver's node, and handed to verl's `run_ppo`."""

    def run(self, config: Any) -> None:
        """Run the job. Raises what verl raises."""
        Path(config.ajet.run_dir, RECEIVED).write_text(received(config), encoding="utf-8")
        registered(config.trainer.v1.trainer_mode)
        try:
            super().run(config)
        finally:
            if self.agent_loop_manager is not None:
                self.agent_loop_manager.close()
