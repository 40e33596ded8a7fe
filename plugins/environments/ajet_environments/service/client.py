"""The workflow's side of an environment service."""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from ajet import Task, passthrough
from ajet.interfaces.events import Attempt
from ajet_environments.service.protocol import EnvironmentFailed, State, state_of

log = logging.getLogger("ajet")

STEP_SECONDS = 120.0
RELEASE_SECONDS = 10.0
_TRIES = 4
_IDLE_SECONDS = 2.0
"""Seconds that an idle connection is kept: less than in servers, because a request is lost if the server closes first."""


def environment(
    task: Task | None = None,
    *,
    url: str | None = None,
    env_type: str | None = None,
    task_id: str | None = None,
    params: Mapping[str, Any] | None = None,
    timeout: float = STEP_SECONDS,
) -> _Opening:
    """An environment of a service, open during a block:

        async with environment(task) as env:  # in a synchronous workflow: with environment(task) as env
            while not env.state.is_terminated:
                ...
                await env.step(answer)

    It is created when the block begins, scored when the block succeeds, and released however the block ends; inside
    an episode also when the episode is cancelled, times out in a thread, or dies during the creation. The
    score is in ``env.score`` and in the metadata of the workflow's output, as ``score``.

    Tasks of the reader `environment` name what to create; keyword arguments name it for other tasks, or override
    it. ``timeout`` is in seconds, for one answer of the service. Raises ValueError if a value is missing.
    """
    given = dict(task.metadata.get("environment") or {}) if task is not None else {}
    named = {"url": url, "env_type": env_type, "task_id": task_id, "params": params}
    given |= {key: value for key, value in named.items() if value is not None}
    missing = [key for key in ("url", "env_type", "task_id") if not given.get(key)]
    if missing:
        raise ValueError(
            f"environment: {', '.join(missing)} is missing. Use tasks of the reader `environment`, or pass it as an argument."
        )
    lease = InstanceLease(
        given["url"], given["env_type"], str(given["task_id"]), given.get("params") or {}, timeout
    )
    return _Opening(lease)


def task_ids(url: str, env_type: str, split: str, params: Mapping[str, Any] | None = None) -> list[str]:
    """The ids of a split's tasks. Raises EnvironmentFailed."""
    body = {"env_type": env_type, "params": {**(params or {}), "split": split}}
    url = url.rstrip("/")
    with _client_sync(STEP_SECONDS) as client:
        ids = _post_sync(client, url, "/get_env_profile", body)
    if isinstance(ids, Mapping):  # split -> ids
        if split not in ids:
            raise EnvironmentFailed(
                f"{url}: {env_type} has no split {split!r}; it has {', '.join(map(repr, ids)) or 'none'}."
            )
        ids = ids[split]
    if not isinstance(ids, list):
        raise EnvironmentFailed(f"{url}/get_env_profile: not a list of task ids: {str(ids)[:200]}")
    return [str(item) for item in ids]


class InstanceLease:
    """One instance at a service, from before its creation until its release."""

    def __init__(
        self, url: str, env_type: str, task_id: str, params: Mapping[str, Any], timeout: float
    ) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.instance = uuid.uuid4().hex
        self.score: float | None = None
        self._about = {"env_type": env_type, "task_id": task_id, "params": dict(params)}
        self._releasing: asyncio.Task[None] | None = None
        self._released = False

    def body(self, **more: Any) -> dict[str, Any]:
        """A request about this instance."""
        return {**self._about, "instance_id": self.instance, **more}

    def created(self, data: Any) -> State:
        """The first state; the service may have given the instance another name."""
        state = state_of(data, f"{self.url}/create")
        self.instance = str(state.info.get("instance_id") or self.instance)
        return state

    async def release(self) -> None:
        """Release the instance, once, even if the caller is cancelled meanwhile. Log a warning if the service cannot
        be reached."""
        if self._released:
            return
        if self._releasing is None or self._releasing.get_loop() is not asyncio.get_running_loop():
            self._releasing = asyncio.ensure_future(self._release())
        await asyncio.shield(self._releasing)

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(RELEASE_SECONDS), _client(RELEASE_SECONDS) as client:
                await _post(client, self.url, "/release", self.body(), tries=_TRIES)
        except (EnvironmentFailed, TimeoutError) as error:
            self._not_released(error)
        self._released = True

    def release_sync(self) -> None:
        """Like `release`, for threads."""
        if self._released:
            return
        try:
            with _client_sync(RELEASE_SECONDS / 2) as client:
                _post_sync(client, self.url, "/release", self.body(), tries=2)
        except EnvironmentFailed as error:
            self._not_released(error)
        self._released = True

    def _not_released(self, error: Exception) -> None:
        log.warning(
            "environment %s was not released: %s",
            self.instance,
            str(error) or f"{self.url} did not answer in time",
        )


class Leases:
    """The instances that an episode opened: none outlives it."""

    def __init__(self) -> None:
        self._all: list[InstanceLease] = []
        self._ended = False

    def add(self, lease: InstanceLease) -> None:
        """Add a lease to the episode. Raises EnvironmentFailed if the episode has ended: a thread may outlive
        it."""
        if self._ended:
            raise EnvironmentFailed("the episode has ended, so no environment can be opened for it")
        self._all.append(lease)

    @property
    def score(self) -> float | None:
        """The mean score of the instances that were scored."""
        scores = [lease.score for lease in self._all if lease.score is not None]
        return sum(scores) / len(scores) if scores else None

    async def release_all(self) -> None:
        """Release all instances that are still open; none can be opened after that."""
        self._ended = True
        await asyncio.gather(*(lease.release() for lease in list(self._all)))


current_leases: ContextVar[Leases | None] = ContextVar("ajet_leases", default=None)


@asynccontextmanager
async def leasing(attempt: Attempt) -> AsyncIterator[None]:
    """A block around an attempt at an episode: what it opens is released after it, and its score is noted."""
    leases = Leases()
    before = current_leases.set(leases)
    try:
        yield
    finally:
        current_leases.reset(before)
        await leases.release_all()
        if leases.score is not None:
            attempt.metadata["score"] = leases.score


class _Opened:
    """An open environment, for workflows of either kind."""

    def __init__(self, lease: InstanceLease, state: State, client: Any) -> None:
        self.state = state
        """The latest state."""
        self._lease = lease
        self._client = client

    @property
    def score(self) -> float | None:
        """The environment's score of the episode, once it was evaluated."""
        return self._lease.score


class Environment(_Opened):
    """An open environment, for asynchronous workflows."""

    async def step(self, message: Mapping[str, Any], **params: Any) -> State:
        """Perform the action in the agent's message; return the new state. Raises EnvironmentFailed."""
        self._lease.score = None  # that of an earlier state
        data = await self._post("/step", messages=[dict(message)], params=params)
        self.state = state_of(data, f"{self._lease.url}/step")
        return self.state

    async def evaluate(self, **params: Any) -> float:
        """The environment's score so far. Raises EnvironmentFailed."""
        self._lease.score = _number(await self._post("/evaluate", params=params), self._lease.url)
        return self._lease.score

    async def info(self, **params: Any) -> Any:
        """Further information of the service about the instance. Raises EnvironmentFailed."""
        return await self._post("/get_info", params=params)

    async def _post(self, path: str, **more: Any) -> Any:
        return await _post(self._client, self._lease.url, path, self._lease.body(**more))


class SyncEnvironment(_Opened):
    """An open environment, for synchronous workflows: `Environment` without ``await``."""

    def step(self, message: Mapping[str, Any], **params: Any) -> State:
        """See `Environment.step`."""
        self._lease.score = None  # that of an earlier state
        data = self._post("/step", messages=[dict(message)], params=params)
        self.state = state_of(data, f"{self._lease.url}/step")
        return self.state

    def evaluate(self, **params: Any) -> float:
        """See `Environment.evaluate`."""
        self._lease.score = _number(self._post("/evaluate", params=params), self._lease.url)
        return self._lease.score

    def info(self, **params: Any) -> Any:
        """See `Environment.info`."""
        return self._post("/get_info", params=params)

    def _post(self, path: str, **more: Any) -> Any:
        return _post_sync(self._client, self._lease.url, path, self._lease.body(**more))


class _Opening:
    """The block around an environment, asynchronous or synchronous."""

    def __init__(self, lease: InstanceLease) -> None:
        self._lease = lease
        self._client: Any = None  # kept for the block, so that requests share a connection
        self._open: Environment | None = None
        self._open_sync: SyncEnvironment | None = None

    async def __aenter__(self) -> Environment:
        self._begin()
        lease, self._client = self._lease, _client(self._lease.timeout)
        try:
            data = await _post(self._client, lease.url, "/create", lease.body(), tries=_TRIES)
            self._open = Environment(lease, lease.created(data), self._client)
        except BaseException:
            await self._end()
            raise
        return self._open

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        assert self._open
        try:
            if kind is None and self._open.score is None:
                await self._open.evaluate()
        finally:
            await self._end()

    async def _end(self) -> None:
        try:
            await self._lease.release()
        finally:
            await self._client.aclose()

    def __enter__(self) -> SyncEnvironment:
        self._begin()
        lease, self._client = self._lease, _client_sync(self._lease.timeout)
        try:
            data = _post_sync(self._client, lease.url, "/create", lease.body(), tries=_TRIES)
            self._open_sync = SyncEnvironment(lease, lease.created(data), self._client)
        except BaseException:
            self._end_sync()
            raise
        return self._open_sync

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        assert self._open_sync
        try:
            if kind is None and self._open_sync.score is None:
                self._open_sync.evaluate()
        finally:
            self._end_sync()

    def _end_sync(self) -> None:
        self._lease.release_sync()
        self._client.close()

    def _begin(self) -> None:
        """Register the lease before anything is created, so that everything created is released."""
        leases = current_leases.get()
        if leases is not None:
            leases.add(self._lease)


# --------------------------------------------------------------------------- HTTP


async def _post(client: Any, url: str, path: str, body: Mapping[str, Any], tries: int = 1) -> Any:
    """The service's answer. A request is retried only if it cannot have arrived or may safely run twice."""
    import httpx2

    _check_open(client, url, path)
    again = _again(path)
    for left in reversed(range(tries)):
        try:
            with passthrough():
                return _answer(url, path, await client.post(f"{url}{path}", json=body))
        except again as error:
            if not left:
                raise _unreachable(url, path, error) from None
            await asyncio.sleep(0.1 * 2 ** (tries - left))
        except httpx2.HTTPError as error:
            raise _unreachable(url, path, error) from None
    raise AssertionError


def _post_sync(client: Any, url: str, path: str, body: Mapping[str, Any], tries: int = 1) -> Any:
    """Like `_post`, for threads."""
    import httpx2

    _check_open(client, url, path)
    again = _again(path)
    for left in reversed(range(tries)):
        try:
            with passthrough():
                return _answer(url, path, client.post(f"{url}{path}", json=body))
        except again as error:
            if not left:
                raise _unreachable(url, path, error) from None
            time.sleep(0.1 * 2 ** (tries - left))
        except httpx2.HTTPError as error:
            raise _unreachable(url, path, error) from None
    raise AssertionError


def _check_open(client: Any, url: str, path: str) -> None:
    if client.is_closed:
        raise EnvironmentFailed(f"{url}{path}: the environment was released because its block has ended")


def _again(path: str) -> tuple[type[Exception], ...]:
    import httpx2

    if path == "/release":
        return (httpx2.HTTPError,)
    return (httpx2.ConnectError, httpx2.ConnectTimeout)


def _answer(url: str, path: str, response: Any) -> Any:
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code != 200 or not isinstance(body, Mapping) or body.get("success") is False:
        said = body.get("error") or body.get("detail") if isinstance(body, Mapping) else response.text
        raise EnvironmentFailed(f"{url}{path}: HTTP {response.status_code}: {str(said)[:300]}")
    return body.get("data")


def _unreachable(url: str, path: str, error: Exception) -> EnvironmentFailed:
    return EnvironmentFailed(f"{url}{path}: {type(error).__name__}: {error}. Is the service running?")


def _number(value: Any, url: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EnvironmentFailed(f"{url}/evaluate: not a score: {str(value)[:200]}")
    return float(value)


def _client(seconds: float) -> Any:
    import httpx2

    return httpx2.AsyncClient(
        verify=_tls(), timeout=seconds, limits=httpx2.Limits(keepalive_expiry=_IDLE_SECONDS)
    )


def _client_sync(seconds: float) -> Any:
    import httpx2

    return httpx2.Client(verify=_tls(), timeout=seconds, limits=httpx2.Limits(keepalive_expiry=_IDLE_SECONDS))


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made only once, because it costs more than a request."""
    return ssl.create_default_context()
