"""verl's task runner, the process in which its trainer drives a job, with our trainer and a clean end."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import ray
from verl.trainer.main_ppo import TaskRunnerV1

from ajet_verl.alignment import received
from ajet_verl.trainer import registered

RECEIVED = "verl.yaml"
"""The file in the run folder that says what verl received."""

SERVER = re.compile(r"\w*server_\w+")
"""Names of verl's actors that serve the model."""
CLOSING = 30.0
"""Seconds in which they must have ended."""

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
            with contextlib.suppress(Exception):  # something else may have ended the run
                end_servers()


def end_servers() -> None:
    """Let the inference servers end their engines. Ray kills them with this process, and their shared memory would
    stay."""
    servers = [ray.get_actor(name) for name in filter(SERVER.fullmatch, ray.util.list_named_actors())]
    ended = [server.__ray_call__.remote(_end_engine) for server in servers]
    if ended:
        ray.wait(ended, num_returns=len(ended), timeout=CLOSING)


def _end_engine(server: Any) -> None:
    """In a server's process: end vLLM's own processes, and have what they shared removed."""
    from multiprocessing import resource_tracker

    engine = getattr(server, "engine", None)  # of the first node that a server spans
    if engine is not None:
        engine.shutdown(timeout=CLOSING / 2)
    tracker: Any = resource_tracker._resource_tracker
    tracker._stop()  # Ray would kill it before it has removed anything
