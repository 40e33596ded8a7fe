"""Calls verl's inference servers: cancels calls in them, and takes dead servers out of verl's load balancer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from ajet.types import AjetError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

ENGINE_DEAD = "EngineDeadError"
"""vLLM's error of all calls after its engine process has ended, while its server still answers."""
NONE_LEFT = "No available servers"
"""verl's load balancer raises a RuntimeError with this text if it has no servers."""


class Servers:
    """verl's client of its servers, for the processes that run episodes.

    verl's own `LLMServerClient.generate` leaves a cancelled call running. It keeps a dead server as well, which even
    attracts calls, because its calls fail at once and it looks idle.
    """

    def __init__(self, client: Any, say: Callable[[str], None], fail: Callable[[str], None]) -> None:
        self._client = client
        self._say = say
        self._fail = fail
        """Ends the run with an error."""
        self._dead: dict[str, str] = {}
        """Servers that have died, and why."""

    async def generate(
        self,
        episode: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        adapter: str | None = None,
        pictures: Sequence[Picture] = (),
    ) -> Any:
        """The output of one call, by the base model or an adapter. ``pictures`` are those of the prompt, in the order of their
        placeholders. An episode's calls go to one server while it lives, then to
        another. If the awaiting task is cancelled, the server stops the call. Raises AjetError if no server is left."""
        while True:
            name, server = await self._acquire(
                episode, prompt_ids=prompt_ids, sampling_params=sampling_params
            )
            try:
                return await self._call(server, episode, prompt_ids, sampling_params, adapter, pictures)
            except RayActorError as error:
                await self._evict(name, str(error))
            except RayTaskError as error:
                if type(error.cause).__name__ != ENGINE_DEAD:
                    raise
                await self._evict(name, f"{ENGINE_DEAD}: {error.cause}")
            finally:
                self._client._release_server(name, request_id=episode)

    async def _call(
        self,
        server: Any,
        episode: str,
        prompt_ids: list[int],
        sampling: dict[str, Any],
        adapter: str | None,
        pictures: Sequence[Picture],
    ) -> Any:
        # verl's `abort_request` would need the request's id inside vLLM, which vLLM makes unique itself.
        call = server.generate.remote(
            request_id=self._client._vllm_request_id(episode),
            prompt_ids=prompt_ids,
            sampling_params=sampling,
            **({"image_data": list(pictures)} if pictures else {}),
            **({"adapter": adapter} if adapter else {}),  # only of `AdapterServer`
        )
        try:
            return await call
        except asyncio.CancelledError:
            ray.cancel(call)  # vLLM aborts the request of a cancelled coroutine
            raise

    async def _acquire(self, episode: str, **fields: Any) -> tuple[str, Any]:
        """A server of the load balancer, which counts it as busy until it is released. Raises AjetError if none is left."""
        acquiring = asyncio.ensure_future(self._client._acquire_server(episode, **fields))
        try:
            server: tuple[str, Any] = await asyncio.shield(acquiring)
            return server
        except asyncio.CancelledError:
            acquiring.add_done_callback(lambda done: self._give_back(done, episode))
            raise
        except RuntimeError as error:
            if NONE_LEFT not in str(error):
                raise
            why = "; ".join(f"{name}: {cause}" for name, cause in self._dead.items())
            text = f"no inference server is left. {why or 'They died before this process called one'}"
            self._fail(text)
            raise AjetError(text) from error

    def _give_back(self, acquired: asyncio.Future[tuple[str, Any]], episode: str) -> None:
        """Release a server that arrives after its call was cancelled."""
        with contextlib.suppress(Exception, asyncio.CancelledError):
            self._client._release_server(acquired.result()[0], request_id=episode)

    async def _evict(self, name: str, why: str) -> None:
        """Remove a dead server from the load balancer. Then its episodes go to the others."""
        line = next((line.strip() for line in why.splitlines() if line.strip()), "it has ended")
        if name not in self._dead:
            self._say(f"inference server {name} is dead; its calls go to the others: {line}")
        self._dead[name] = line
        await self._client._load_balancer.remove_servers.remote([name])
