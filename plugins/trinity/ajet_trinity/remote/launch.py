"""The learner's first process: starts Ray and Trinity's trainer, and ends when the run ends.

    python -m ajet_trinity.remote.launch CONFIG

Its standard input is a pipe from the run, so its end tells that the run has ended, however that happened.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from types import FrameType

EARLY = 3
"""Exit status if Trinity ends by itself: the run ends it, so Trinity has failed, although it reports success."""


def main() -> None:
    """Run Trinity's trainer until the run ends."""
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_run, daemon=True).start()
    try:
        _train()
    finally:
        shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)  # a killed run cannot
    sys.exit(EARLY)


def _train() -> None:
    import ray
    from trinity.cli.launcher import run_stage
    from trinity.common.config import load_config

    config = load_config(sys.argv[1])
    address = os.environ.get("RAY_ADDRESS")
    if address:
        ray.init(address=address, namespace=config.ray_namespace)
    else:
        ray.init(
            address="local",
            namespace=config.ray_namespace,
            include_dashboard=False,
            _temp_dir=os.environ["RAY_TMPDIR"],
        )
    config.check_and_update()
    run_stage(config)


def _end_with_run() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)  # Ray then ends its processes


if __name__ == "__main__":
    main()
