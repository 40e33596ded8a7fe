"""The service's side: write an environment as a class, and serve it.

Every instance has its own thread for synchronous methods, so a hanging instance does not block others. It is released
by its client, when the service ends, or when it gets no request for a while.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import queue
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ClassVar

from ajet.capture.gateway.bodies import Bodies, Gone
from ajet.capture.gateway.listening import QUEUED, foreign, listen, url_of
from ajet.capture.gateway.stopping import stopped
from ajet.capture.limits import LARGE_BODY
from ajet.capture.off_loop import off_loop
from ajet.interfaces.wire import Refused, read_object
from ajet_environments.service.protocol import PATHS, State

log = logging.getLogger("ajet")

IDLE_SECONDS = 600.0
MOST_INSTANCES = 512
"""Maximum open instances, including those whose thread does not end."""
_CLOSE_SECONDS = 2.5
_MOST_REMEMBERED = 10_000
"""Number of released instances whose late creation is still refused."""
_LONGEST_NAME = 200
_MOST_WAITING = 64
"""Maximum waiting calls of one instance."""

Said = State | str | Sequence[Mapping[str, Any]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class ServedEnvironment(ABC):
    """Base class of served environments: one object per episode.

    Methods may be synchronous or asynchronous; those of one object never run at the same time. An
    exception reaches the client as an `EnvironmentFailed`.
    """

    env_type: ClassVar[str]
    """The name that clients use."""

    def __init__(self, task_id: str, params: Mapping[str, Any]) -> None:
        self.task_id = task_id
        self.params = params

    @classmethod
    def task_ids(cls, split: str, params: Mapping[str, Any]) -> Any:
        """The ids of a split's tasks. Raise LookupError for an unknown split."""
        raise LookupError(f"{cls.env_type} lists no tasks")

    @abstractmethod
    def start(self) -> Any:
        """Begin; return a `State`, messages, or the text of the first user message."""

    @abstractmethod
    def step(self, message: Mapping[str, Any]) -> Any:
        """Perform the action in the agent's message; return the new state, in the same forms as `start`."""

    @abstractmethod
    def evaluate(self) -> Any:
        """The score so far, a number."""

    def info(self, params: Mapping[str, Any]) -> Any:
        """Further information about the environment."""
        return {}

    def close(self) -> Any:
        """Release all resources. Called once, also after errors."""
        return None


def serve(
    *environments: type[ServedEnvironment],
    host: str = "127.0.0.1",
    port: int = 8080,
    idle_seconds: float = IDLE_SECONDS,
    most_instances: int = MOST_INSTANCES,
) -> None:
    """Serve until Ctrl-C or SIGTERM, which end the process within seconds. Port 0 selects a free one; the address is
    printed. An instance that gets no request for ``idle_seconds`` is released; more than ``most_instances`` at
    once are refused. Raises AjetError if the address cannot be bound."""
    listening = listen(host, port, "the service")
    app = EnvironmentServer(environments, idle_seconds, most_instances, host)
    with stopped() as stop, _running(app, listening) as url:
        print(f"serving {', '.join(e.env_type for e in environments)} at {url}", flush=True)
        stop.wait()


@contextmanager
def serving(
    *environments: type[ServedEnvironment],
    idle_seconds: float = IDLE_SECONDS,
    most_instances: int = MOST_INSTANCES,
) -> Iterator[str]:
    """A block in which a thread of this process serves; its value is the URL."""
    listening = listen("127.0.0.1", 0, "the service")
    with _running(EnvironmentServer(environments, idle_seconds, most_instances), listening) as url:
        yield url


@contextmanager
def _running(app: EnvironmentServer, listening: socket.socket) -> Iterator[str]:
    """A block in which a thread serves on a socket; its value is the URL."""
    import uvicorn

    server = uvicorn.Server(_config(app))
    thread = threading.Thread(target=server.run, args=([listening],), name="ajet-environments", daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.005)
    listening.listen(QUEUED)  # asyncio has shortened the queue to its own backlog
    try:
        yield url_of(*listening.getsockname()[:2])
    finally:
        server.should_exit = True
        thread.join()


class EnvironmentServer:
    """The ASGI application. ``GET /health`` returns how many instances were created, released and are open."""

    def __init__(
        self,
        environments: Sequence[type[ServedEnvironment]],
        idle_seconds: float,
        most_instances: int = MOST_INSTANCES,
        host: str = "127.0.0.1",
    ) -> None:
        self._classes = {environment.env_type: environment for environment in environments}
        self._idle_seconds = idle_seconds
        self._most_instances = most_instances
        self._host = host
        self._bodies = Bodies()
        self._living: set[_Instance] = set()
        """Instances that may have a thread: the open ones, and those that are still closing."""
        self._open: dict[str, _Instance] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self.counts: Counter[str] = Counter()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """One request, or the life of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            status, content = await self._reply(scope, receive)
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content})

    async def _reply(self, scope: Mapping[str, Any], receive: Receive) -> tuple[int, bytes]:
        """Status and body of the answer."""
        method, path = scope["method"], scope["path"].rstrip("/")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            if reason := foreign(headers, self._host):
                raise _Refused(403, reason)
            if path == "/health" and method == "GET":
                return 200, _json(self._health())
            if path not in PATHS or method != "POST":
                raise _Refused(404, f"no such path: {method} {path}; there are POST {', '.join(PATHS)}")
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise _Refused(415, "the content type must be application/json")
            return 200, _json({"success": True, "data": await self._answer(path, headers, receive)})
        except (_Refused, Refused) as refusal:
            return refusal.status, _failed(str(refusal))
        except Gone:
            return 400, _failed("the client disconnected")
        except Exception as error:
            log.warning("environment service: %s: %s: %s", path, type(error).__name__, error)
            return 500, _failed(f"{type(error).__name__}: {error}")

    def _health(self) -> dict[str, Any]:
        counts = {name: self.counts[name] for name in ("created", "released", "expired")}
        return {"status": "ok", "open": len(self._open), **counts, "env_types": [*self._classes]}

    async def _answer(self, path: str, headers: Mapping[str, str], receive: Receive) -> Any:
        async with self._bodies.read("", headers, receive) as content:  # clients have no keys
            is_large = len(content) > LARGE_BODY
            body = await off_loop(read_object, content) if is_large else read_object(content)
            return await self._handle(path, body)

    async def _handle(self, path: str, body: Mapping[str, Any]) -> Any:
        params = body.get("params") or {}
        if not isinstance(params, Mapping):
            raise _Refused(400, "`params` must be an object")
        if path == "/get_env_profile":
            try:
                return list(
                    await _await(self._class(body).task_ids(str(params.get("split", "train")), params))
                )
            except LookupError as error:
                raise _Refused(404, str(error.args[0] if error.args else error)) from None
        if path == "/create":
            return await self._create(body, params)
        if path == "/release":
            return await self._release(_name(body), "released")
        instance = self._instance(body)
        if path == "/step":
            messages = body.get("messages") or []
            messages = [messages] if isinstance(messages, Mapping) else messages
            if not messages or not isinstance(messages[-1], Mapping):
                raise _Refused(400, "`messages` must hold the agent's message")
            return _state(await instance.call("step", messages[-1])).as_json()
        if path == "/evaluate":
            return float(await instance.call("evaluate"))
        return await instance.call("info", params)

    async def _create(self, body: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        cls, name = self._class(body), _name(body) or uuid.uuid4().hex
        task_id = body.get("task_id")
        if task_id is None:
            raise _Refused(400, "`task_id` is missing")
        if name in self._gone:
            raise _Refused(409, f"instance {name} is already released")
        if name in self._open:
            raise _Refused(409, f"instance {name} already exists")
        if len(self._living) >= self._most_instances:
            raise _Refused(
                429,
                f"{len(self._living)} instances are open or still closing, and at most {self._most_instances} are allowed "
                "(serve(…, most_instances=N)): release some, or run fewer episodes at once",
            )
        instance = self._open[name] = _Instance(lambda: cls(str(task_id), params), self._living)
        self.counts["created"] += 1
        try:
            state = _state(await instance.call("start"))
        except BaseException:
            await self._release(name, "released")
            raise
        info = {**state.info, "instance_id": name, "task_id": task_id}
        return {**state.as_json(), "info": info}

    async def _release(self, name: str, why: str) -> bool:
        """Release an instance; False if there is none. A later creation under its name is refused."""
        self._gone[name] = None
        if len(self._gone) > _MOST_REMEMBERED:
            self._gone.popitem(last=False)
        instance = self._open.pop(name, None)
        if instance is None:
            return False
        self.counts["released"] += 1
        self.counts["expired"] += why == "expired"
        await instance.close()
        return True

    def _class(self, body: Mapping[str, Any]) -> type[ServedEnvironment]:
        cls = self._classes.get(str(body.get("env_type")))
        if cls is None:
            raise _Refused(
                404, f"no env_type {str(body.get('env_type'))[:100]!r}; there are {', '.join(self._classes)}"
            )
        return cls

    def _instance(self, body: Mapping[str, Any]) -> _Instance:
        name = _name(body)
        if name not in self._open:
            raise _Refused(404, f"no instance {name!r}: it was never created, or it is released")
        return self._open[name]

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        reaper = asyncio.ensure_future(self._reap())
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
        reaper.cancel()
        await asyncio.gather(*(self._release(name, "shutdown") for name in list(self._open)))
        await send({"type": "lifespan.shutdown.complete"})

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle_seconds / 4, 10.0))
            for name in [n for n, i in self._open.items() if i.idle_seconds > self._idle_seconds]:
                log.warning("environment service: instance %s was not used for a while: released", name)
                await self._release(name, "expired")


class _Instance:
    """An environment and its thread. It is in ``living`` until it has closed."""

    def __init__(self, make: Callable[[], ServedEnvironment], living: set[_Instance]) -> None:
        living.add(self)
        self._living = living
        self._calls = 0
        """Calls that are running or waiting."""
        self._used = time.monotonic()
        self._make = make
        self._environment: ServedEnvironment | None = None
        self._turn = asyncio.Lock()
        self._thread = _FunctionThread()
        self._closing = False

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last request. While a call is running, time counts only a tenth."""
        idle = time.monotonic() - self._used
        return idle / 10 if self._turn.locked() else idle

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and return its result; calls run one after the other. A caller that disconnects does not stop
        the call."""
        if self._calls > _MOST_WAITING:
            raise _Refused(429, f"{_MOST_WAITING} calls of the instance are waiting already")
        self._calls += 1
        return await asyncio.shield(asyncio.ensure_future(self._call(method, arguments)))

    async def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            async with self._turn:
                if self._closing:
                    raise _Refused(404, "the instance is released")
                self._used = time.monotonic()
                try:
                    if self._environment is None:
                        self._environment = await self._thread.run(self._make)
                    return await self._run(getattr(self._environment, method), *arguments)
                finally:
                    self._used = time.monotonic()
        finally:
            self._calls -= 1

    async def close(self) -> None:
        """Close the environment after its running calls; wait only a few seconds, because a step may hang."""
        self._closing = True
        closing = asyncio.ensure_future(self._close())
        await asyncio.wait({closing}, timeout=_CLOSE_SECONDS)

    async def _close(self) -> None:
        async with self._turn:
            try:
                if self._environment is not None:
                    await self._run(self._environment.close)
            except Exception as error:
                log.warning("environment service: close: %s: %s", type(error).__name__, error)
            finally:
                self._thread.end()
                self._living.discard(self)

    async def _run(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if inspect.iscoroutinefunction(method):
            return await method(*arguments)
        return await self._thread.run(method, *arguments)


class _FunctionThread:
    """One thread that calls functions, one after the other. Unlike a pool's thread it does not keep the process alive,
    because an environment may hang."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the thread and return its result."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ajet-environment", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the service has ended meanwhile
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # including SystemExit: the caller must get it
                future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

        self._work.put(call)
        return await asyncio.wrap_future(future)

    def end(self) -> None:
        """End the thread after its current work."""
        self._work.put(None)

    def _run(self) -> None:
        while call := self._work.get():
            call()


class _Refused(Exception):
    """An invalid request, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _state(said: Said) -> State:
    if isinstance(said, State):
        return said
    if isinstance(said, str):
        return State(({"role": "user", "content": said},))
    return State(tuple(said))


async def _await(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _name(body: Mapping[str, Any]) -> str:
    name = str(body.get("instance_id") or "")
    if len(name) > _LONGEST_NAME:
        raise _Refused(400, f"`instance_id` has {len(name)} characters; at most {_LONGEST_NAME} are allowed")
    return name


def _json(value: Any) -> bytes:
    return json.dumps(value, default=str).encode()


def _failed(error: str) -> bytes:
    return _json({"success": False, "error": error})


def _config(app: EnvironmentServer) -> Any:
    import uvicorn

    from ajet.capture.gateway.http_server import BACKLOG, make_protocol

    return uvicorn.Config(
        app,
        http=make_protocol(),
        backlog=BACKLOG,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
