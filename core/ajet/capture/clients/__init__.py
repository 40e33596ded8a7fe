"""The HTTP clients whose LLM calls are answered, one file each.

httpx and httpx2 are patched where all their requests end (`httpx.py`). A request of any other client is written
as one of httpx2 and sent by it (`translated.py`), so that one place tells calls apart, answers them, times them out
and cancels them; the client's file turns the response into the client's own. A library is patched when the program
imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import ModuleType

from ajet.capture.clients import aiohttp, http_client, lm15, urllib3
from ajet.capture.clients.translated import Matcher
from ajet.utils.patching import when_imported

_ADAPTERS = {
    "http.client": http_client.patched,
    "urllib3.connectionpool": urllib3.patched,
    "aiohttp": aiohttp.patched,
    "lm15.transports": lm15.patched,
    "dspy._vendor.lm15.transports": lm15.patched,
}
"""The clients by the name of the module that they patch."""


def install_translated(matcher: Matcher) -> Callable[[], None]:
    """Answer those requests of clients other than httpx that ``matcher`` matches, until the returned function is
    called or garbage-collected."""
    installed = ExitStack()
    for name, patched in _ADAPTERS.items():
        installed.callback(when_imported(name, _with(patched, matcher)))
    return installed.close


def _with(
    patched: Callable[[ModuleType, Matcher], AbstractContextManager[None]], matcher: Matcher
) -> Callable[[ModuleType], AbstractContextManager[None]]:
    def patch(module: ModuleType) -> AbstractContextManager[None]:
        return patched(module, matcher)

    patch.__doc__ = patched.__doc__  # names what is lost if patching fails
    return patch
