"""Reports each step of the learner to the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trinity.utils.monitor import Monitor

from ajet_trinity.spool import Spool, write


class Reporter(Monitor):
    """Trinity calls it after a step's weights are on their way to the disk."""

    def __init__(self, project: str, group: str, name: str, role: str, config: Any = None, **_: Any) -> None:
        super().__init__(project, name, role, config)
        self.spool = Spool(Path(config.monitor.monitor_args["folder"]))

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        """Write the metrics of a step. Raises OSError."""
        numbers = {name: float(value) for name, value in data.items() if name.startswith(("actor/", "time/"))}
        write(self.spool.report(step), json.dumps(numbers).encode())

    def close(self) -> None:
        """Nothing is open."""
