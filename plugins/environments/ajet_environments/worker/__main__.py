"""The program that runs a library's environments, with the Python of an environment in which the library is installed.

    python worker LIBRARY OPTIONS

It needs the standard library and that library only. Requests are lines of JSON on stdin, answers lines of JSON on stdout, one for
each request, in their order and with its id:

    {"id": "a1", "do": "tasks", "count": 100}           {"id": "a1", "tasks": [{"id": …, "query": …, "metadata": {…}}]}
    {"id": "b2", "do": "run", "index": 3, …}            {"id": "b2", "ok": true, "reward": 1.0, "metrics": {…}, "response": …, …}

What the library starts has neither of the two, and cannot look into this program unless it is root. An answer without ``ok`` is an
episode that has failed. The program ends with its stdin, and at SIGTERM, in both cases after the episode that runs has been
cancelled, so that the library releases what it has opened.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any

from own_models import Watch  # type: ignore[import-not-found]  # beside this program


class Serving:
    """Answers requests, one after the other."""

    def __init__(self, library: Any, requests: Iterable[bytes], write: Any, watch: Watch) -> None:
        self._library = library
        self._requests = requests
        self._write = write
        self._watch = watch
        self._episode: asyncio.Future[Any] | None = None

    async def run(self) -> None:
        """Answer until stdin ends."""
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        task = asyncio.current_task()
        assert task
        loop.add_signal_handler(signal.SIGTERM, task.cancel)

        def over() -> None:
            lines.put_nowait(b"")
            if self._episode:
                self._episode.cancel()

        def read() -> None:
            for line in self._requests:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(over)

        threading.Thread(target=read, daemon=True).start()
        while line := await lines.get():
            await self._answer(json.loads(line))

    async def _answer(self, request: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        asked = [request.get("model"), request.get("judge")]
        self._watch.begin(each["base_url"] for each in asked if each)
        doing = asyncio.ensure_future(self._do(request))
        self._episode = doing if request["do"] == "run" else None
        self._watch.tell = lambda: loop.call_soon_threadsafe(doing.cancel)
        try:
            answer = await doing
        except asyncio.CancelledError:
            if not self._watch.refused:
                raise
        except Exception as error:  # of the environment: the next episode may well succeed
            answer = failed(error)
        if self._watch.refused:
            answer = {"ok": False, "error": self._watch.refused}
        tell(self._write, request, answer)

    async def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "tasks":
            return {"tasks": self._library.tasks(request["count"])}
        os.environ.update(request["variables"])
        outcome: dict[str, Any] = await self._library.run(
            request["index"], request["model"], request["judge"]
        )
        return outcome


def tell(write: Any, request: dict[str, Any], answer: dict[str, Any]) -> None:
    """Write the answer to a request."""
    write.write(json.dumps({**answer, "id": request["id"]}, default=str).encode() + b"\n")
    write.flush()


def failed(error: BaseException) -> dict[str, Any]:
    """The answer for an exception."""
    return {"ok": False, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}"}


def hide() -> None:
    """Keep other processes of this user from the memory and the descriptors of this one. A forked child is open again: what ends
    leftovers looks at its variables."""
    if sys.platform == "linux":
        call, dumpable = ctypes.CDLL(None).prctl, 4
        call(dumpable, 0, 0, 0, 0)
        os.register_at_fork(after_in_child=lambda: call(dumpable, 1, 0, 0, 0))


def main() -> None:
    """The command line."""
    requests, write = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the library prints
    hide()
    watch = Watch()
    sys.addaudithook(watch)
    name, options = sys.argv[1], json.loads(sys.argv[2])
    try:
        watch.watch_clients()
        library = importlib.import_module(f"of_{name}").Library(**options)
    except Exception as error:  # of the options, or of imports of the library
        for line in requests:
            tell(write, json.loads(line), failed(error))
        return
    try:
        asyncio.run(Serving(library, requests, write, watch).run())
    except asyncio.CancelledError:
        pass
    finally:
        write.flush()
        os._exit(0)  # a library's threads would keep the program alive


if __name__ == "__main__":
    main()
