"""A small service with the protocol of Tinker's client 0.38, over a real model: LoRA by peft, AdamW, sampling with a cache.

It has the calls that the backbone `tinker` uses. Requests that compute answer with the id of a future, which the client
asks for until it is done; requests of one training run are executed in the order of their ``seq_id``.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import queue
import threading
import traceback
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch
import uvicorn
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tinker.proto import tinker_public_pb2 as pb
from transformers import DynamicCache

from tests.patience import PATIENCE

LAYERS = {
    "train_attn": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "train_mlp": ["gate_proj", "up_proj", "down_proj"],
    "train_unembed": ["lm_head"],
}
PROTO = "application/x-protobuf"


class Refused(Exception):
    """The request cannot be served, whatever is tried."""


@dataclass
class Run:
    """A LoRA in training; ``waiting`` are requests whose turn has not come."""

    model: torch.nn.Module
    lora: dict
    optimizer: torch.optim.AdamW
    turn: int = 1
    waiting: dict[int, tuple[str, Future, object]] = field(default_factory=dict)


class LocalService:
    """The service on a port of this machine; use it as a context manager. ``calls`` counts requests by kind.

    ``fail[kind, n]`` is the error (text, category) of the n-th request of a kind; kinds in ``silent`` are never answered.
    ``other`` names what it does as other services do: "averaged" gradients over the weights of each sequence, samples with "no
    logprobs", cross-entropy as the "one loss".
    """

    def __init__(self, base, name: str, key: str, context_length: int) -> None:
        self.base, self.name, self.key, self.context_length = base, name, key, context_length
        self.calls: Counter[str] = Counter()
        self.fail: dict[tuple[str, int], tuple[str, str]] = {}
        self._executed: Counter[str] = Counter()
        self.silent: set[str] = set()
        self.other: set[str] = set()
        self.steps: list[dict] = []
        self.lora_configs: list[dict] = []
        self.ttls: list[int | None] = []
        self.finished: list[str] = []
        self.states: dict[str, tuple[dict, dict, dict]] = {}
        self.sampler_weights: dict[str, torch.nn.Module] = {}
        self.samplers: dict[str, torch.nn.Module] = {}
        self.runs: dict[str, Run] = {}
        self.under_way = 0
        self._futures: dict[str, Future] = {}
        self.cancelled: set[str] = set()
        self._numbers = itertools.count()
        self._work: queue.Queue = queue.Queue()
        self._lock = threading.Lock()

    def __enter__(self) -> LocalService:
        config = uvicorn.Config(self._app(), port=0, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._threads = [
            threading.Thread(target=self._server.run, daemon=True),
            threading.Thread(target=self._compute, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        while not self._server.started:
            self._threads[0].join(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._work.put(None)
        for thread in self._threads:
            thread.join(PATIENCE)

    # ------------------------------------------------------------------ HTTP

    def _app(self) -> Starlette:
        def post(path, function):
            async def answer(request):
                if request.headers.get("x-api-key") != self.key:
                    return JSONResponse({"detail": "invalid API key"}, 401)
                is_json = "json" in request.headers.get("content-type", "")
                return await function(await request.json() if is_json else await request.body())

            return Route(f"/api/v1/{path}", answer, methods=["POST"])

        async def models(request):
            model = {
                "model_name": self.name,
                "max_context_length": self.context_length,
                "trainable": True,
                "sampleable": True,
            }
            return JSONResponse({"supported_models": [model]})

        async def healthz(request):
            return JSONResponse({"status": "ok"})

        async def sampler(request):
            return JSONResponse({"sampler_id": request.path_params["id"], "base_model": self.name})

        async def finish(request):
            self.finished.append((await request.json())["reason"]["type"])
            return Response(status_code=204)

        async def telemetry(body):
            return JSONResponse({"status": "accepted"})

        return Starlette(
            routes=[
                post("client/config", self._plain({})),
                post("client/dynamic_config", self._plain({"sample_cancel_enabled": True})),
                post("create_session", self._create_session),
                post("session_heartbeat", self._plain({"type": "session_heartbeat"})),
                post("telemetry", telemetry),
                post("create_model", self._create_model),
                post("load_weights", self._load_weights),
                post("get_info", self._get_info),
                post("forward_backward", self._forward_backward),
                post("optim_step", self._in_turn("optim_step", self._optim_step)),
                post("save_weights", self._in_turn("save_weights", self._save_weights)),
                post("save_weights_for_sampler", self._in_turn("save_for_sampler", self._save_for_sampler)),
                post("create_sampling_session", self._create_sampling_session),
                post("asample", self._sample),
                post("retrieve_future", self._retrieve),
                post("cancel_future", self._cancel),
                Route("/api/v1/healthz", healthz),
                Route("/api/v1/get_server_capabilities", models),
                Route("/api/v1/samplers/{id}", sampler),
                Route("/api/v1/sessions/{id}/finish", finish, methods=["POST"]),
            ]
        )

    @staticmethod
    def _plain(value):
        async def answer(body):
            return JSONResponse(value)

        return answer

    async def _create_session(self, body):
        return JSONResponse({"type": "create_session", "session_id": f"session-{next(self._numbers)}"})

    async def _get_info(self, body):
        lora = self.runs[body["model_id"]].lora
        data = {"arch": self.base.config.model_type, "model_name": self.name}
        info = {
            "type": "get_info",
            "model_id": body["model_id"],
            "model_data": data,
            "is_lora": True,
            "lora_rank": lora["rank"],
            "model_name": self.name,
        }
        return JSONResponse(info)

    async def _create_model(self, body):
        def create():
            if body["base_model"] != self.name:
                raise Refused(f"unknown model {body['base_model']}")
            self.lora_configs.append(body["lora_config"])
            model_id = f"{body['session_id']}:train:{body['model_seq_id']}"
            self.runs[model_id] = self._new_run(body["lora_config"])
            return {"type": "create_model", "model_id": model_id}

        return self._promise("create_model", create)

    async def _load_weights(self, body):
        def load():
            if body["path"] not in self.states:
                raise Refused(f"checkpoint {body['path']} not found")
            lora, weights, moments = self.states[body["path"]]
            run = self._new_run(lora)
            set_peft_model_state_dict(run.model, weights)
            if body["optimizer"]:
                run.optimizer.load_state_dict(copy.deepcopy(moments))
            model_id = f"{body['session_id']}:train:{body['model_seq_id']}"
            self.runs[model_id] = run
            return {"type": "load_weights", "path": body["path"], "model_id": model_id}

        return self._promise("load_weights", load)

    async def _forward_backward(self, body):
        request = pb.ForwardBackwardRequest.FromString(body)
        kind = "forward" if request.forward_only else "forward_backward"
        return self._queue(kind, request.model_id, request.seq_id, lambda run: self._losses(run, request))

    def _in_turn(self, kind, function):
        async def answer(body):
            return self._queue(kind, body["model_id"], body["seq_id"], lambda run: function(run, body))

        return answer

    async def _create_sampling_session(self, body):
        path = body.get("model_path")
        if path is not None and path not in self.sampler_weights:
            return JSONResponse({"detail": f"checkpoint {path} not found"}, 404)
        model = self.sampler_weights[path] if path else self.base
        return JSONResponse(
            {"type": "create_sampling_session", "sampling_session_id": self._new_sampler(model)}
        )

    async def _sample(self, body):
        number = f"future-{next(self._numbers)}"
        model = self.samplers[body["sampling_session_id"]]
        return self._promise(
            "sample",
            lambda: self._completion(model, body, number),
            number,
            sample_sequence_ids=[f"{number}:0"],
        )

    async def _retrieve(self, body):
        future = asyncio.wrap_future(self._futures[body["request_id"]])
        done, _ = await asyncio.wait([future], timeout=1)
        if not done:
            return JSONResponse({"type": "try_again", "queue_state": "active"}, 408)
        result = future.result()
        return Response(result, media_type=PROTO) if isinstance(result, bytes) else JSONResponse(result)

    async def _cancel(self, body):
        self.cancelled.add(body["request_id"])
        return Response(status_code=204)

    # ------------------------------------------------------------------ order

    def _promise(self, kind, function, number=None, **more):
        """Compute a function when the earlier requests are done; the answer names its future."""
        number = number or f"future-{next(self._numbers)}"
        future = self._futures[number] = Future()
        self._put(kind, future, function)
        return JSONResponse({"request_id": number, **more})

    def _queue(self, kind, model_id, seq_id, function):
        """Like `_promise`, in the order of a run's ``seq_id``."""
        number = f"future-{next(self._numbers)}"
        future = self._futures[number] = Future()
        run = self.runs[model_id]
        with self._lock:
            run.waiting[seq_id] = (kind, future, lambda: function(run))
            while run.turn in run.waiting:
                self._put(*run.waiting.pop(run.turn))
                run.turn += 1
        return JSONResponse({"request_id": number, "model_id": model_id})

    def _put(self, kind, future, function):
        self.calls[kind] += 1
        if kind == "sample":
            self.under_way += 1
        self._work.put((kind, future, function))

    def _compute(self) -> None:
        torch.set_num_threads(1)
        while (work := self._work.get()) is not None:
            kind, future, function = work
            if kind in self.silent:
                continue
            self._executed[kind] += 1
            try:
                if (kind, self._executed[kind]) in self.fail:
                    text, category = self.fail[kind, self._executed[kind]]
                    future.set_result({"error": text, "category": category})
                else:
                    future.set_result(function())
            except Refused as error:
                future.set_result({"error": str(error), "category": "user"})
            except Exception as error:
                traceback.print_exc()
                future.set_result({"error": repr(error), "category": "server"})
            finally:
                if kind == "sample":
                    self.under_way -= 1

    # ------------------------------------------------------------------ computation

    def _new_run(self, lora: dict) -> Run:
        modules = [name for key, names in LAYERS.items() if lora[key] for name in names]
        with torch.random.fork_rng():
            torch.manual_seed(lora.get("seed", 0))
            config = LoraConfig(r=lora["rank"], lora_alpha=32, target_modules=modules)
            model = get_peft_model(copy.deepcopy(self.base), config)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
        return Run(model, lora, optimizer)

    def _new_sampler(self, model) -> str:
        name = f"sampler-{next(self._numbers)}"
        self.samplers[name] = model
        return name

    def _losses(self, run: Run, request) -> bytes:
        """``Σ -logprob · weight`` of the targets, its gradient, and the logprobs."""
        record, total = pb.ArrayRecord(num_datums=len(request.data)), 0.0
        data, offsets = b"", [0]
        for datum in request.data:
            ids = np.concatenate([np.frombuffer(c.encoded_text.tokens, np.int32) for c in datum.model_input])
            targets = np.frombuffer(datum.loss_fn_inputs["target_tokens"].dense, np.int64)
            given = {
                name: torch.from_numpy(np.frombuffer(tensor.dense, np.float32).copy())
                for name, tensor in datum.loss_fn_inputs.items()
                if name != "target_tokens"
            }
            weights = given.get("weights", torch.ones(len(ids)))
            with torch.set_grad_enabled(not request.forward_only):
                found = _logprobs(run.model, ids, targets)
                gain = found * weights
                if request.loss_fn == "importance_sampling":
                    if "one loss" in self.other:
                        raise Refused("unknown loss importance_sampling")
                    gain = (found - given["logprobs"]).exp() * given["advantages"]
                loss = -gain.sum()
                if "averaged" in self.other:
                    loss = loss / weights.sum().clamp(min=1e-9)
            if not request.forward_only:
                loss.backward()
            total += loss.item()
            data += found.detach().numpy().tobytes()
            offsets.append(len(data))
        tensor = record.fields["logprobs"]
        tensor.dtype, tensor.data, tensor.offsets = (
            pb.DTYPE_FLOAT32,
            data,
            np.array(offsets, np.int64).tobytes(),
        )
        return pb.ForwardBackwardOutput(
            loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record], metrics={"loss:sum": total}
        ).SerializeToString()

    def _optim_step(self, run: Run, body: dict) -> dict:
        adam = body["adam_params"]
        self.steps.append(adam)
        for group in run.optimizer.param_groups:
            group |= {
                "lr": adam["learning_rate"],
                "betas": (adam["beta1"], adam["beta2"]),
                "eps": adam["eps"],
                "weight_decay": adam["weight_decay"],
            }
        if adam["grad_clip_norm"] > 0:
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), adam["grad_clip_norm"])
        run.optimizer.step()
        run.optimizer.zero_grad()
        return {"metrics": {}}

    def _save_weights(self, run: Run, body: dict) -> dict:
        path = f"tinker://{body['model_id']}/weights/{body['path']}"
        if path in self.states:
            raise Refused(f"{path} exists")
        weights = {name: value.clone() for name, value in get_peft_model_state_dict(run.model).items()}
        self.states[path] = (run.lora, weights, copy.deepcopy(run.optimizer.state_dict()))
        self.ttls.append(body.get("ttl_seconds"))
        return {"type": "save_weights", "path": path}

    def _save_for_sampler(self, run: Run, body: dict) -> dict:
        model = copy.deepcopy(run.model).merge_and_unload()
        if "path" not in body:
            return {"type": "save_weights_for_sampler", "sampling_session_id": self._new_sampler(model)}
        path = f"tinker://{body['model_id']}/sampler_weights/{body['path']}"
        self.sampler_weights[path] = model
        return {"type": "save_weights_for_sampler", "path": path}

    @torch.no_grad()
    def _completion(self, model, body: dict, number: str) -> bytes:
        prompt = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        how = body["sampling_params"]
        if len(prompt) + how["max_tokens"] > self.context_length:
            raise Refused(f"{len(prompt)} + {how['max_tokens']} tokens are more than {self.context_length}")
        generator = torch.Generator().manual_seed(how["seed"]) if "seed" in how else None
        ids, logprobs, reason, cache = [], [], pb.STOP_REASON_LENGTH, DynamicCache(config=model.config)
        given = torch.tensor([prompt])
        while len(ids) < how["max_tokens"] and number not in self.cancelled:
            logits = (
                model(given, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].float()
            )
            token = _draw(logits, how, generator)
            ids.append(token)
            logprobs.append(torch.log_softmax(logits, -1)[token].item())
            if token in how["stop"] if "stop" in how else token == model.config.eos_token_id:
                reason = pb.STOP_REASON_STOP
                break
            given = torch.tensor([[token]])
        if "fixed logprobs" in self.other:
            logprobs = [-0.3] * len(ids)
        answer = pb.SampleResponse()
        answer.sequences.add(
            stop_reason=reason,
            tokens=np.array(ids, np.int32).tobytes(),
            logprobs=b"" if "no logprobs" in self.other else np.array(logprobs, np.float32).tobytes(),
        )
        if body.get("prompt_logprobs"):
            found = _logprobs(model, prompt[:-1], prompt[1:]).numpy() if len(prompt) > 1 else []
            answer.prompt_logprobs = np.array([np.nan, *found], np.float32).tobytes()
        return answer.SerializeToString()


def _logprobs(model, ids, targets) -> torch.Tensor:
    """float32[T]: log p(targets[t] | ids[: t + 1])."""
    logits = model(torch.tensor([list(map(int, ids))])).logits[0].float()
    return torch.log_softmax(logits, -1).gather(1, torch.tensor([*map(int, targets)])[:, None])[:, 0]


def _draw(logits: torch.Tensor, how: dict, generator: torch.Generator | None) -> int:
    """A token: greedy at temperature 0, else from top-k and top-p of the distribution at the temperature."""
    if how["temperature"] == 0:
        return int(logits.argmax())
    probabilities, order = torch.softmax(logits / how["temperature"], -1).sort(descending=True)
    if how["top_k"] > 0:
        probabilities[how["top_k"] :] = 0
    before = probabilities.cumsum(-1) - probabilities
    probabilities[before >= how["top_p"]] = 0
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])
