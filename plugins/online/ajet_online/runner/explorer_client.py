"""What a runner sends to the explorer: feedback and commits. `forwarding` sends the agent's calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ajet import ConfigError

if TYPE_CHECKING:
    import httpx

SECONDS = 10.0
"""Timeout of one request; its answers need one transaction."""


class ExplorerClient:
    """Several threads may use it. Its methods raise httpx.HTTPError, or ValueError for an answer that says that nothing was
    rated."""

    def __init__(self, url: str, key: str) -> None:
        import httpx

        self._url = url.rstrip("/").removesuffix("/v1")
        self._key = key
        # Feedback that comes twice counts once, so what could not be sent is sent again.
        self._http: httpx.Client = httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=SECONDS,
            transport=httpx.HTTPTransport(retries=2),
        )

    def address(self, task_id: str, run_id: int) -> tuple[str, str]:
        """Where the calls of a shadow run go: the address without ``/v1``, and a key that names the run."""
        return self._url, f"{self._key}~{run_name(task_id, run_id)}"

    def feedback(self, reward: float, task_id: str, run_id: int) -> None:
        """Rate every reply of a run."""
        run = run_name(task_id, run_id)
        answer = self._post("/feedback", {"run": run, "reward": reward, "task_id": task_id, "run_id": run_id})
        if answer.get("rated") == [] and not answer.get("unchanged"):
            raise ValueError(
                f"the explorer has no replies of run {run}: the agent has made no LLM call over HTTP in this process"
            )

    def commit(self, task_id: str) -> None:
        """Let trainers take the runs of a task."""
        self._post("/commit", {"task_id": task_id})

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._http.post(path, json=body).raise_for_status().json()
        if not isinstance(answer, dict):
            raise ValueError(f"POST {path} was answered by {answer!r} instead of an object")
        return answer


def check_address(url: str, key: str) -> None:
    """Raises ConfigError if these are not a URL and a key."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"explorer={url!r}: expected a URL such as http://127.0.0.1:8000.")
    if not key or not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            "key: expected the explorer's API key, in printable ASCII characters without spaces."
        )


def run_name(task_id: str, run_id: int) -> str:
    """``TASK.RUN``."""
    return f"{task_id}.{run_id}"


class Commits:
    """Counts the runs of each task. A commit in the middle of a task would split the group that its runs are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        self._rated: dict[str, None] = {}
        """Tasks with feedback that is not committed, in order."""

    def begin(self, task_id: str, runs: int) -> None:
        """Note runs that are about to begin."""
        with self._lock:
            self._running[task_id] = self._running.get(task_id, 0) + runs

    def ended(self, task_id: str, *, rated: bool) -> None:
        """Note the end of one run, and whether the explorer has its reward."""
        with self._lock:
            self._running[task_id] -= 1
            if not self._running[task_id]:
                del self._running[task_id]
            if rated:
                self._rated[task_id] = None

    def ready(self) -> list[str]:
        """The tasks to commit now."""
        with self._lock:
            return [task_id for task_id in self._rated if task_id not in self._running]

    def done(self, task_id: str) -> None:
        """Forget a task that is committed."""
        with self._lock:
            self._rated.pop(task_id, None)
