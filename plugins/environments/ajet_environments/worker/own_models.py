"""Notices an environment that asks a model of its own, whose answers would be neither recorded nor those of the job's model."""

from __future__ import annotations

import functools
import http.client
import importlib
import re
import weakref
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

HOSTS = (
    "api.anthropic.com",
    "api.deepseek.com",
    "api.groq.com",
    "api.mistral.ai",
    "api.openai.com",
    "api.pinference.ai",
    "api.together.xyz",
    "api.x.ai",
    "generativelanguage.googleapis.com",
    "integrate.api.nvidia.com",
    "openrouter.ai",
    "router.huggingface.co",
)
"""Hosts of models, to which no client may connect."""
_ASKS = re.compile(
    r"(/chat/completions|/v1/(completions|responses|messages)|:(stream)?generatecontent)/?$", re.IGNORECASE
)
"""Ends of the paths at which models are asked, at any host."""
_CLIENTS = (
    ("httpx", "Client", "send"),
    ("httpx", "AsyncClient", "send"),
    ("httpx2", "Client", "send"),
    ("httpx2", "AsyncClient", "send"),
    ("aiohttp", "BaseConnector", "connect"),
)
"""Methods whose first argument is a request."""


class OwnModel(Exception):
    """The environment asks a model of its own."""


class Watch:
    """Refuses such requests, and tells of it: libraries try again for minutes, or make exceptions rewards of 0. An audit hook."""

    def __init__(self) -> None:
        self.refused = ""
        self.tell: Callable[[], object] = lambda: None
        self._episode: set[str] = set()
        self._bound: weakref.WeakSet[Any] = weakref.WeakSet()

    def begin(self, base_urls: Iterable[str]) -> None:
        """An episode begins, whose models are at these addresses."""
        self.refused = ""
        self._episode = {urlsplit(url).netloc for url in base_urls}

    def watch_clients(self) -> None:
        """Watch the HTTP clients that are installed."""
        for package, name, method in _CLIENTS:
            try:
                client = getattr(importlib.import_module(package), name)
            except ImportError:
                continue
            setattr(client, method, self._watched(getattr(client, method)))
        http.client.HTTPConnection.putrequest = self._watched_connection(  # type: ignore[method-assign]
            http.client.HTTPConnection.putrequest  # of urllib and requests
        )

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """See `sys.addaudithook`."""
        if event == "socket.getaddrinfo":
            host = arguments[0]
            if (host := host.decode(errors="replace") if isinstance(host, bytes) else host) in HOSTS:
                self._refuse(host)
        elif event == "socket.bind":
            self._bound.add(arguments[0])

    def _watched(self, method: Any) -> Any:
        @functools.wraps(method)
        def watched(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if request.method == "POST":
                self._check(str(request.url), urlsplit(str(request.url)).path)
            return method(client, request, *args, **kwargs)

        return watched

    def _watched_connection(self, putrequest: Any) -> Any:
        @functools.wraps(putrequest)
        def watched(connection: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            if method == "POST":
                port = "" if connection.port in (80, 443) else f":{connection.port}"
                self._check(f"http://{connection.host}{port}", urlsplit(url).path)
            return putrequest(connection, method, url, *args, **kwargs)

        return watched

    def _check(self, url: str, path: str) -> None:
        where = urlsplit(url)
        if not _ASKS.search(path) or where.netloc in self._episode:
            return
        if where.hostname in ("127.0.0.1", "localhost", "::1") and where.port in self._own_ports():
            return  # a server of the library, which asks the episode's model
        self._refuse(where.netloc)

    def _own_ports(self) -> set[int]:
        names = [bound.getsockname() for bound in list(self._bound) if bound.fileno() >= 0]
        return {name[1] for name in names if isinstance(name, tuple)}

    def _refuse(self, where: str) -> None:
        self.refused = (
            f"the environment asks a model at {where} itself, which is neither trained nor recorded; "
            "name the frozen target that is to answer it in workflow.judge, and give the environment no address of its own"
        )
        self.tell()
        raise OwnModel(self.refused)
