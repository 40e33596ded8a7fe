"""verl's task runner (the process of verl's trainer) with our trainer, which ends its servers properly."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import ray
from verl.trainer.main_ppo import TaskRunnerV1

from ajet_verl import lora
from ajet_verl.alignment import received
from ajet_verl.health import servers
from ajet_verl.trainer import register_trainer

RECEIVED = "verl.yaml"
"""The file of the run folder with the configuration that verl received."""

CLOSING = 30.0
"""Maximum seconds for them to end."""

# Ray's actor classes cannot be subclassed. Of its modified class, `ray.get_actor` would rename subclasses in the driver, which
# then could not create a second one.
_VerlTaskRunner: Any = TaskRunnerV1.__ray_metadata__.modified_class.__ray_actor_class__


class TaskRunner(_VerlTaskRunner):
    """A Ray actor on the node of `ajet run`; `launch` passes it to verl's `run_ppo`."""

    def run(self, config: Any) -> None:
        """Run the job to its end. Raises verl's exceptions."""
        Path(config.ajet.run_dir, RECEIVED).write_text(received(config), encoding="utf-8")
        register_trainer(config.trainer.v1.trainer_mode)
        if lora.of(config.actor_rollout_ref.model):
            from ajet_verl.lora_server import register

            register()
        try:
            super().run(config)
        finally:
            if self.agent_loop_manager is not None:
                self.agent_loop_manager.close()
            with contextlib.suppress(Exception):  # an earlier error may have ended the run
                end_servers()


def end_servers() -> None:
    """Make the inference servers end their engines. Otherwise Ray kills them with this process, and their shared memory
    remains."""
    ended = [server.__ray_call__.remote(_end_engine) for server in servers().values()]
    if ended:
        ray.wait(ended, num_returns=len(ended), timeout=CLOSING)


def _end_engine(server: Any) -> None:
    """In a server's process: end vLLM's processes and remove their shared memory."""
    from multiprocessing import resource_tracker

    engine = getattr(server, "engine", None)  # only on the first node of a server
    try:
        if engine is not None:
            engine.shutdown(timeout=CLOSING / 2)
    finally:
        tracker: Any = resource_tracker._resource_tracker
        tracker._stop()  # otherwise Ray kills it before it has removed anything
