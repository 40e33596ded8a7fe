"""What switches of the earlier AgentJet start beside a job: ``--with-appworld`` and its like, and ``--with-logview``."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path

from pydantic import Field

from ajet import ConfigError, Service
from ajet.interfaces.base import Seconds


class _OnAPort(Service):
    """A program that works once it listens."""

    port: int = Field(ge=1, le=65535, description="Port on which it listens.")

    @property
    def address(self) -> str:
        """See `Service.address`."""
        return f"127.0.0.1:{self.port}"

    def healthy(self) -> bool:
        """See `Service.healthy`."""
        with socket.socket() as client:
            client.settimeout(5)
            return client.connect_ex(("127.0.0.1", self.port)) == 0


class _Environment(_OnAPort):
    """An environment: the shell command in the variable NAME_SCRIPT, in the folder NAME_PATH."""

    port: int = Field(8080, ge=1, le=65535, description="Port on which the script listens.")
    start_timeout: Seconds = Field(1800.0, description="Maximum time until it listens.")

    def argv(self) -> list[str]:
        """See `Service.argv`. Raises ConfigError if a variable is not set."""
        variables = [f"{self.name.upper()}_{what}" for what in ("PATH", "SCRIPT")]
        folder, script = (os.environ.get(variable) for variable in variables)
        if not folder or not script:
            raise ConfigError(
                f"services.{self.name}",
                f"the variables {' and '.join(variables)} start it, and are not set. Set them, or declare the service in the job "
                "(`ajet docs environments#services`).",
            )
        return ["bash", "-c", f"cd {shlex.quote(folder)} && {script}"]


class AppWorld(_Environment):
    """AppWorld, started by APPWORLD_SCRIPT in the folder APPWORLD_PATH."""

    name = "appworld"


class DeepFinance(_Environment):
    """DeepFinance, started by DEEPFINANCE_SCRIPT in the folder DEEPFINANCE_PATH."""

    name = "deepfinance"


class WebShop(_Environment):
    """WebShop, started by WEBSHOP_SCRIPT in the folder WEBSHOP_PATH."""

    name = "webshop"


class Bfcl(_Environment):
    """BFCL, started by BFCL_SCRIPT in the folder BFCL_PATH."""

    name = "bfcl"


class Crafters(_Environment):
    """Crafters, started by CRAFTERS_SCRIPT in the folder CRAFTERS_PATH."""

    name = "crafters"


class Logview(_OnAPort):
    """`ajet studio` beside the run, in place of the earlier viewer of logs."""

    name = "logview"
    port: int = Field(8300, ge=1, le=65535, description="Port of the studio.")
    folder: str = Field("runs", description="Folder with the runs, relative to the working directory.")

    def argv(self) -> list[str]:
        """See `Service.argv`. Makes the folder, without which the studio does not start."""
        folder = str(Path(self.folder).absolute())
        os.makedirs(folder, exist_ok=True)
        return [sys.executable, "-m", "ajet", "studio", folder, "--no-browser", "--port", str(self.port)]


ENVIRONMENTS = (AppWorld, DeepFinance, WebShop, Bfcl, Crafters)
