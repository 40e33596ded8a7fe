"""`ajet.interfaces.engine.Engine` over verl's client of its inference servers: cancels calls in them, and takes dead servers out of
verl's load balancer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError

from ajet import AjetError
from ajet.interfaces.engine import Float32, GenerateRequest, Generation, GenerationDelta, Int32, room_for
from ajet.interfaces.helpers import open_image
from ajet.types import Int16
from ajet_verl.images import unexpanded, vision_of
from ajet_verl.keys import WORKERS
from ajet_verl.lora import of

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from ajet.interfaces.vision import Vision

RESUME_SECONDS = 0.2
"""Wait before continuing a request that a server has aborted to load new weights or to train."""
ABORTED = ("aborted", "abort")
"""How verl's servers say that they have stopped a call, to load new weights or to train."""
STOP_TOKENS = 64
"""Maximum tokens of a stop string."""
ENGINE_DEAD = "EngineDeadError"
"""vLLM's error of all calls after its engine process has ended, while its server still answers."""
DRAWS = 16
"""How often a token is drawn until it is one that the tokenizer has."""
NONE_LEFT = "No available servers"
"""verl's load balancer raises a RuntimeError with this text if it has no servers."""


class Servers:
    """verl's client of its servers, for the processes that run episodes.

    verl's own `LLMServerClient.generate` leaves a cancelled call running. It keeps a dead server as well, which even
    attracts calls, because its calls fail at once and it looks idle. And it asks the load balancer, one process, twice for each
    call, where this asks twice for each episode.
    """

    def __init__(self, client: Any, say: Callable[[str], None], fail: Callable[[str], None]) -> None:
        self._client = client
        self._say = say
        self._fail = fail
        """Ends the run with an error."""
        self._dead: dict[str, str] = {}
        """Servers that have died, and why."""
        self._of: dict[str, asyncio.Future[tuple[str, Any]]] = {}
        """The server of each episode that has made a call and goes on."""

    async def generate(
        self,
        episode: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        adapter: str | None = None,
        pictures: Sequence[Picture] = (),
    ) -> Any:
        """The output of one call, by the base model or an adapter. ``pictures`` are those of the prompt, in the order of their
        placeholders. An episode's calls go to one server while it lives and is not aborted, then to
        another, until `let_go`. If the awaiting task is cancelled, the server stops the call. Raises AjetError if no server is
        left."""
        while True:
            name, server = await self._acquire(
                episode, prompt_ids=prompt_ids, sampling_params=sampling_params
            )
            try:
                output = await self._call(server, episode, prompt_ids, sampling_params, adapter, pictures)
            except RayActorError as error:
                self.let_go(episode)
                await self._evict(name, str(error))
            except RayTaskError as error:
                if type(error.cause).__name__ != ENGINE_DEAD:
                    raise
                self.let_go(episode)
                await self._evict(name, f"{ENGINE_DEAD}: {error.cause}")
            else:
                if output.stop_reason in ABORTED:  # its GPUs may train for a while
                    self.let_go(episode)
                return output

    def let_go(self, episode: str) -> None:
        """Release the server of an episode; does nothing if it has none."""
        if acquiring := self._of.pop(episode, None):
            acquiring.add_done_callback(lambda done: self._give_back(done, episode))

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
        """The episode's server. At its first call that is one of the load balancer, which counts it as busy until it is released.
        Raises AjetError if none is left."""
        if episode not in self._of:
            self._of[episode] = asyncio.ensure_future(self._client._acquire_server(episode, **fields))
        acquiring = self._of[episode]
        try:
            return await asyncio.shield(acquiring)
        except Exception as error:
            if self._of.get(episode) is acquiring:
                del self._of[episode]
            if NONE_LEFT not in str(error):
                raise
            why = "; ".join(f"{name}: {cause}" for name, cause in self._dead.items())
            text = f"no inference server is left. {why or 'They died before this process called one'}"
            self._fail(text)
            raise AjetError(text) from error

    def _give_back(self, acquired: asyncio.Future[tuple[str, Any]], episode: str) -> None:
        """Release a server."""
        with contextlib.suppress(Exception, asyncio.CancelledError):
            self._client._release_server(acquired.result()[0], request_id=episode)

    async def _evict(self, name: str, why: str) -> None:
        """Remove a dead server from the load balancer. Then its episodes go to the others."""
        line = next((line.strip() for line in why.splitlines() if line.strip()), "it has ended")
        if name not in self._dead:
            self._say(f"inference server {name} is dead; its calls go to the others: {line}")
        self._dead[name] = line
        await self._client._load_balancer.remove_servers.remote([name])


class VerlEngine:
    """Samples on verl's servers. verl balances the load; all calls of an episode go to one server, for its prefix cache.

    A call that a server aborts continues after its last token, perhaps with newer weights; each token keeps the weight
    version that sampled it. A call that sampled an id without a token continues before it, so in sampling such ids have the
    probability 0. A call asks for the routed experts of those tokens alone that no earlier call of its episode has read, so
    tokens keep those of the call that first read them. ``seeded`` says whether a call's seed is passed on. With seeds, vLLM
    draws the tokens of each call separately, which is slow, and a continued call would repeat the same random numbers.
    ``vision`` is how the model sees images, None if it reads only text.
    """

    def __init__(
        self,
        servers: Servers,
        tokenizer: Any,
        model_type: str,
        context_length: int,
        *,
        seeded: bool = False,
        adapters: tuple[str, ...] = (),
        vision: Vision | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.model_type = model_type
        self.context_length = context_length
        self.adapters = adapters
        self._servers = servers
        self._seeded = seeded
        self._vocabulary = len(tokenizer)
        self._tokens = frozenset(tokenizer.get_vocab().values())
        self.vision = vision
        self._expansion_is_known = False
        """Whether the servers were seen to expand images to the prompt's own tokens."""
        self._routed: dict[str, list[tuple[Int32, Int16]]] = {}
        """Of each episode that goes on: the T tokens of each answered call that no later one continues, and the routed experts of all
        but the last."""

    @classmethod
    def of(cls, config: Any, servers: Servers) -> VerlEngine:
        """The engine for verl's configuration and servers."""
        from omegaconf import OmegaConf
        from verl.utils.config import omega_conf_to_dataclass

        model = config.actor_rollout_ref.model
        # verl would import it here too: seconds and 100 MB of a runner.
        if WORKERS in (model.external_lib or ()):
            needed = [name for name in model.external_lib if name != WORKERS]
            model = OmegaConf.merge(model, {"external_lib": needed})
        model = omega_conf_to_dataclass(model)
        rollout = config.actor_rollout_ref.rollout
        length = rollout.max_model_len
        seeded = passes_seeds(config)
        kind, adapters = model.hf_config.model_type, tuple(of(model))
        return cls(
            servers,
            model.tokenizer,
            kind,
            length,
            seeded=seeded,
            adapters=adapters,
            vision=vision_of(model),
        )

    async def start(self) -> None:
        """Nothing to do: verl has started its servers."""

    async def close(self) -> None:
        """Nothing to do: verl stops its servers."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `ajet.interfaces.engine.Engine.generate`. Raises RuntimeError if verl's server leaves out logprobs or routed
        experts, AjetError if no server is left, or if one expands images to other tokens than those of the prompt."""
        limit = room_for(request, self.context_length, self._vocabulary)
        sampling = request.sampling
        prompt: list[int] = request.prompt_ids.tolist()
        pictures: list[Picture] = []
        if self.vision:
            prompt, pictures = await asyncio.to_thread(self._unexpanded, self.vision, request)
        params: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "stop": [text for text in sampling.stop if text],
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,
            "skip_special_tokens": False,
            "detokenize": any(sampling.stop),
            "logprobs": True,
            "flat_logprobs": True,  # vLLM then makes no object for each token
            **({"seed": sampling.seed} if self._seeded and sampling.seed is not None else {}),
        }
        tokens: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        routed = self._known(request)
        drawn = 0
        while True:
            compared = bool(pictures) and not self._expansion_is_known and not tokens
            output = await self._servers.generate(
                request.key[0],
                prompt + tokens,
                {
                    **params,
                    "max_tokens": limit - len(tokens),
                    **({"prompt_logprobs": 0} if compared else {}),  # verl then returns the prompt's ids, too
                    **({} if routed is None else {"routed_experts_prompt_start": len(routed)}),
                },
                request.adapter,
                pictures,
            )
            if compared and output.token_ids:
                self._compare(request, output.extra_fields["prompt_ids"])
            new = list(output.token_ids)
            known = next((i for i, token in enumerate(new) if token not in self._tokens), len(new))
            drawn = 1 if known else drawn + 1
            again = known < len(new) and drawn < DRAWS
            new = new[:known] if again else new
            tokens += new
            logprobs += list(output.log_probs or ())[: len(new)]
            versions += [output.extra_fields["global_steps"]] * len(new)
            if new and output.routed_experts is not None:
                further = np.asarray(output.routed_experts, np.int16)
                routed = further if routed is None else np.concatenate([routed, further])
            if again:
                routed = None if routed is None else routed[: len(request.prompt_ids) + len(tokens) - 1]
                if "seed" in params:
                    params["seed"] += 1  # otherwise it would draw the same id
                continue
            if output.stop_reason not in ABORTED:
                break
            if len(tokens) >= limit:
                break
            await asyncio.sleep(RESUME_SECONDS)
        if len(logprobs) != len(tokens):
            raise RuntimeError(f"verl's server returned {len(tokens)} tokens, but {len(logprobs)} logprobs")
        if routed is not None and len(routed) != len(request.prompt_ids) + len(tokens) - 1:
            raise RuntimeError(
                f"verl's server returned {len(tokens)} tokens after {len(request.prompt_ids)}, but {len(routed)} routed experts"
            )
        ids = np.array(tokens, np.int32)
        if routed is not None:
            whole = np.concatenate([request.prompt_ids, ids])
            others = [
                (known, experts)
                for known, experts in self._routed.get(request.key[0], ())
                if not np.array_equal(known, whole[: len(known)])
            ]
            self._routed[request.key[0]] = [*others, (whole, routed)]
        return Generation(
            ids,
            np.array(logprobs, np.float32),
            np.array(versions, np.int32),
            self._finish_reason(request, tokens, limit),
            routed,
        )

    def let_go(self, episode: str) -> None:
        """Forget an episode, and release its server; does nothing if it made no call."""
        self._routed.pop(episode, None)
        self._servers.let_go(episode)

    def _known(self, request: GenerateRequest) -> Int16 | None:
        """The routed experts of as many of the prompt's first tokens as an earlier call of the episode has read; not of its last one,
        as vLLM has to return some."""
        found: list[Int16] = []
        for ids, routed in self._routed.get(request.key[0], ()):
            size = min(len(ids), len(request.prompt_ids)) - 1
            same = np.append(ids[:size] == request.prompt_ids[:size], False)
            found.append(routed[: same.argmin()])
        return max(found, key=len, default=None)

    @staticmethod
    def _unexpanded(vision: Vision, request: GenerateRequest) -> tuple[list[int], list[Picture]]:
        """A prompt as verl's servers take it: one placeholder for each image, and the images in this order."""
        prompt, order = unexpanded(vision, request.prompt_ids.tolist(), request.images)
        return prompt, [open_image(image) for image in order]

    def _compare(self, request: GenerateRequest, seen: list[list[int]]) -> None:
        """Compare a prompt with the ids that a server has ``seen``, one in each list: from the second one on, then a filler."""
        assert self.vision
        if [i for (i,) in seen[:-1]] != self.vision.plain(request.prompt_ids.tolist())[1:]:
            raise AjetError(
                "verl's server expands the prompt's images to other tokens than the model's processor here; install the same "
                "transformers and torchvision on all nodes"
            )
        self._expansion_is_known = True

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerationDelta]:
        """Like `generate`, as a single delta, because verl's servers do not stream."""
        whole = await self.generate(request)
        yield GenerationDelta(whole.token_ids, whole.logprobs, whole.weight_versions, whole.finish_reason)

    async def score(self, ids: Int32, temperature: float = 1.0) -> Float32:
        """Raises NotImplementedError: verl's servers do not score."""
        raise NotImplementedError("verl's servers do not score given tokens")

    def _finish_reason(
        self, request: GenerateRequest, tokens: list[int], limit: int
    ) -> Literal["stop", "length"]:
        """Why the answer ended; verl reports ``completed`` for both reasons."""
        if len(tokens) < limit or tokens[-1] in request.sampling.stop_token_ids:
            return "stop"
        end = self.tokenizer.decode(tokens[-STOP_TOKENS:]) if request.sampling.stop else ""
        return "stop" if any(text and text in end for text in request.sampling.stop) else "length"


def passes_seeds(config: Any) -> bool:
    """Whether calls keep their seeds: only if the user has set verl's ``full_determinism``, and only in the mode whose
    calls are not aborted."""
    whole, sync = config.actor_rollout_ref.rollout.full_determinism, config.trainer.v1.trainer_mode == "sync"
    return bool(whole and sync)
