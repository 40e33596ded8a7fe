"""Tinker's public client with what a run needs of it: a deadline for every wait, and errors of one line."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ajet import AjetError, ConfigError
from ajet.interfaces.helpers import nearest

if TYPE_CHECKING:
    from tinker import APIFuture, SamplingClient, ServiceClient, TrainingClient
    from tinker.types import GetServerCapabilitiesResponse

T = TypeVar("T")
API_KEY = "TINKER_API_KEY"
"""The environment variable of the service's key."""
CONNECT_SECONDS = 60.0
"""The client tries for minutes to reach a service that is not there; a run begins sooner or not at all."""
CLOSE_SECONDS = 10.0
"""Maximum time for telling the service that the session has ended; it also notices by itself."""


class TinkerFailed(AjetError):
    """Tinker did not do what it was asked to. With ``refused``, the request is the reason, so asking again is in vain."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class TinkerService:
    """A session at Tinker, which begins with its first use. ``timeout`` is the maximum number of seconds for one answer,
    including the time that the request waits in the service's queue."""

    def __init__(self, base_url: str | None, timeout: float) -> None:
        """Raises ConfigError without an API key."""
        self._key = os.environ.get(API_KEY, "").strip()
        if not self._key:
            raise ConfigError(
                f"backbone tinker: there is no API key. Create one in Tinker's console and set the environment variable {API_KEY}."
            )
        self.base_url = base_url
        self.timeout = timeout
        self._client: ServiceClient | None = None
        self._pending: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._failed = False

    # ---------------------------------------------------------------------- what is asked

    @property
    def address(self) -> str:
        """The address that the user gave; "" for Tinker's own."""
        return (self.base_url or os.environ.get("TINKER_BASE_URL", "")).rstrip("/")

    def models(self) -> dict[str, int | None]:
        """The models of the service, with the maximum tokens of prompt and reply together, if it says that. Raises AjetError."""
        import tinker

        self._check_address()
        what = "asking for its models"

        def ask() -> Any:
            if _waits_itself():
                return self._service().get_server_capabilities()
            return tinker.RestClient(base_url=self.base_url, api_key=self._key).get_server_capabilities()

        capabilities: GetServerCapabilitiesResponse = self.wait(self._call(ask, what), what)
        models = capabilities.supported_models
        return {model.model_name or "": model.max_context_length for model in models}

    def context_length(self, base_model: str) -> int | None:
        """As in `models`. Raises ConfigError for a model that the service does not have."""
        lengths = self.models()
        if base_model not in lengths:
            raise ConfigError(
                f"backbone tinker: the service has no model {base_model!r}{nearest(base_model, lengths)}. "
                f"It has: {', '.join(sorted(lengths)) or 'none'}."
            )
        return lengths[base_model]

    def _check_address(self) -> None:
        """Raise ServiceFailed if nothing answers at an address that the user gave. The client would try for minutes, and
        meanwhile no other session of this process could begin."""
        import httpx

        address = self.address
        if not address:
            return
        try:
            httpx.get(f"{address}/api/v1/healthz", timeout=min(CONNECT_SECONDS, self.timeout))
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise TinkerFailed(
                f"Tinker: no service answers at {address} ({_line(error)}). Check backbone.tinker.base_url or TINKER_BASE_URL."
            ) from error

    def create(
        self, base_model: str, *, rank: int, seed: int, train_mlp: bool, train_attn: bool, train_unembed: bool
    ) -> TrainingClient:
        """A new LoRA over a model. Blocks. Raises ServiceFailed."""
        what = f"creating a LoRA over {base_model}"
        future = self._call(
            lambda: self._service().create_lora_training_client(
                base_model,
                rank=rank,
                seed=seed,
                train_mlp=train_mlp,
                train_attn=train_attn,
                train_unembed=train_unembed,
            ),
            what,
        )
        return self.wait(future, what)

    def restore(self, path: str, *, optimizer: bool) -> TrainingClient:
        """The LoRA of a ``tinker://`` path, with its optimizer's state or without. Blocks. Raises ServiceFailed."""
        what = f"loading {path}"

        def ask() -> APIFuture[TrainingClient]:
            client = self._service()
            if optimizer:
                return client.create_training_client_from_state_with_optimizer(path)
            return client.create_training_client_from_state(path)

        return self.wait(self._call(ask, what), what)

    def sampler(self, *, path: str | None = None, base_model: str | None = None) -> SamplingClient:
        """What samples from a ``tinker://`` path, or else from a base model. Blocks. Raises ServiceFailed."""
        what = f"opening {path or base_model} for sampling"
        future = self._call(
            lambda: self._service().create_sampling_client(model_path=path, base_model=base_model), what
        )
        return self.wait(future, what)

    # ---------------------------------------------------------------------- how it is waited for

    def wait(self, future: APIFuture[T], what: str) -> T:
        """The result of a request. Blocks, at most ``timeout`` seconds or until `close`. ``what`` is the request in words,
        for the error. Raises ServiceFailed, and the exceptions of a loss that is computed here."""
        return self._wait(_waited(future), what, self.timeout)

    async def result(self, future: APIFuture[T], what: str) -> T:
        """Like `wait`, but awaits. Cancelling the awaiting task cancels the request. Raises RuntimeError after `close`."""
        waited = _waited(future)
        with self._awaited(waited):
            try:
                async with asyncio.timeout(self.timeout):
                    return await asyncio.wrap_future(waited)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._closed and not (task and task.cancelling()):
                    raise RuntimeError("the engine was closed") from None
                raise
            except Exception as error:
                self._explain(error, what, self.timeout)

    def close(self) -> None:
        """End the session and every wait. Blocks for a few seconds at most; closing twice is allowed."""
        with self._lock:
            first, self._closed = not self._closed, True
            pending = list(self._pending)
        for future in pending:
            future.cancel()
        if first and self._client is not None and not _waits_itself():
            closing = self._client.close(
                "errored" if self._failed else "interrupted" if pending else "success"
            ).future()
            with suppress(Exception):  # the service ends sessions that it no longer hears of
                closing.result(CLOSE_SECONDS)

    def _service(self) -> ServiceClient:
        """The client, whose methods begin its session."""
        import tinker

        with self._lock:
            if self._client is None:
                self._client = tinker.ServiceClient(base_url=self.base_url, api_key=self._key)
            return self._client

    def _call(self, function: Callable[[], T], what: str) -> T:
        """The result of a function of the client that may block for minutes while it connects."""
        future: Future[T] = Future()

        def run() -> None:
            with suppress(InvalidStateError):  # the wait has ended
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=run, name="ajet-tinker", daemon=True).start()
        return self._wait(
            future, what, self.timeout if _waits_itself() else min(CONNECT_SECONDS, self.timeout)
        )

    def _wait(self, future: Future[T], what: str, seconds: float) -> T:
        with self._awaited(future):
            try:
                return future.result(seconds)
            except (Exception, CancelledError) as error:
                future.cancel()
                self._explain(error, what, seconds)

    @contextmanager
    def _awaited(self, future: Future[T]) -> Iterator[None]:
        """A block that `close` ends by cancelling the future. Raises RuntimeError after `close`."""
        with self._lock:
            if self._closed:
                future.cancel()
                raise RuntimeError("the engine was closed")
            self._pending.add(future)
        try:
            yield
        finally:
            with self._lock:
                self._pending.discard(future)

    def _explain(self, error: BaseException, what: str, seconds: float) -> NoReturn:
        """Raise an error of the client as one of ours, in one line."""
        import tinker

        self._failed = self._failed or not isinstance(error, CancelledError)
        if isinstance(error, CancelledError):
            raise TinkerFailed(f"Tinker: {what} was given up, because the run ends.") from error
        if isinstance(error, TimeoutError):
            raise TinkerFailed(
                f"Tinker: {what} got no answer within {seconds:g} seconds (backbone.tinker.timeout)."
            ) from error
        if isinstance(error, tinker.RequestFailedError):
            refused = error.category == tinker.types.RequestErrorCategory.User
            reason = str(error).partition(" for self.request_id=")[0].removeprefix("Request failed: ")
            raise TinkerFailed(f"Tinker: {what} failed: {_line(reason)}.", refused=refused) from error
        if isinstance(error, tinker.AuthenticationError):
            raise ConfigError(
                f"Tinker: the service does not accept the key in {API_KEY} ({_line(error)})."
            ) from error
        if isinstance(error, tinker.APIStatusError):
            refused = 400 <= error.status_code < 500
            raise TinkerFailed(f"Tinker: {what} failed: {_line(error)}.", refused=refused) from error
        if isinstance(error, AssertionError):  # how the client says that an answer lacks what it needs
            raise TinkerFailed(
                f"Tinker: {what} got an answer that the client {tinker.__version__} does not read: {_line(error)}.",
                refused=True,
            ) from error
        if isinstance(error, tinker.TinkerError | ValueError):
            raise TinkerFailed(f"Tinker: {what} failed: {_line(error)}.") from error
        raise error


def _line(error: object) -> str:
    """The first line of an error's text, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _waits_itself() -> bool:
    """Whether the client is the one of 0.25, which returns some results where later ones return futures."""
    import tinker

    return not hasattr(tinker.ServiceClient, "close")


def _waited(asked: Any) -> Future[Any]:
    """The future of what the client returned; see `_waits_itself`."""
    if isinstance(asked, Future):
        return asked
    if hasattr(asked, "future"):
        waited: Future[Any] = asked.future()
        return waited
    done: Future[Any] = Future()
    done.set_result(asked)
    return done
