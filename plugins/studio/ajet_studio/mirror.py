"""Episodes of a source beside run folders: a thread writes them into a temporary folder, which the page reads like a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
import threading
from pathlib import Path

from ajet.interfaces.source import EpisodeSource
from ajet.runs.run_dir import RUNNING
from ajet.types import AjetError

PAUSE = 1.0
"""Seconds between two looks at a source that had nothing more."""


class Mirror:
    """A folder with the files of a run, which follows a source until `close`. Raises AjetError if the source cannot be read."""

    def __init__(self, source: EpisodeSource) -> None:
        self.source = source
        self.problem = ""
        """Why the source cannot be read now; empty while it can."""
        self._above = Path(tempfile.mkdtemp(prefix="ajet-studio-"))
        self.folder = self._above / _last_part(source.name)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="ajet-studio-mirror", daemon=True)
        try:
            self.folder.mkdir()
            (self.folder / RUNNING).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
            source.update(self.folder)
        except BaseException:
            shutil.rmtree(self._above)
            raise
        self._thread.start()

    def close(self) -> None:
        """Stop following, close the source and remove the folder."""
        self._closed.set()
        self._thread.join()
        self.source.close()
        shutil.rmtree(self._above)

    def _follow(self) -> None:
        more = True
        while not self._closed.wait(0.0 if more else PAUSE):
            try:
                more, self.problem = self.source.update(self.folder), ""
            except AjetError as error:
                more, self.problem = False, str(error)


def _last_part(name: str) -> str:
    """A folder's name from that of a source, which is a path or URL: its last part."""
    last = re.split(r"[?#]", name)[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.-]+", "-", last).strip("-.")[:80] or "episodes"
