"""The service `ray`: a cluster's first node on this machine, which jobs may share."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

from pydantic import Field

from ajet import Service
from ajet.interfaces.base import Seconds

if TYPE_CHECKING:
    from ajet.job.job import Job

CONNECT_SECONDS = 2.0
"""Timeout of a health check."""


class Ray(Service):
    """Ray's first node on this machine (`ajet run --with ray`): jobs of the verl backbone join it, and the last one
    stops it. Without this service each job starts its own cluster."""

    name = "ray"

    port: int = Field(6379, ge=1, le=65535, description="Port of the cluster.")
    options: tuple[str, ...] = Field((), description="Further arguments of `ray start`.")
    start_timeout: Seconds = Field(120.0, description="Maximum time until it is healthy.")

    @property
    def address(self) -> str:
        """See `Service.address`."""
        return f"127.0.0.1:{self.port}"

    def argv(self) -> list[str]:
        """See `Service.argv`."""
        ray = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            "--disable-usage-stats",
        ]
        return [*ray, "--include-dashboard=false", f"--port={self.port}", *self.options]

    def healthy(self) -> bool:
        """Whether its control store accepts connections. Ray's own check takes a second to import."""
        try:
            socket.create_connection(("127.0.0.1", self.port), CONNECT_SECONDS).close()
        except TimeoutError:
            raise
        except OSError:
            return False
        return True


def ray_address(job: Job) -> str | None:
    """The address of the service `ray` if the job uses it, else None."""
    from ajet.job.prepare import build_service

    return build_service(job.layers, Ray.name).address if Ray.name in job.config.run.services else None
