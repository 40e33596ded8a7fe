"""Compares the cost of a recorded call through the gateway with a plain upstream and a minimal recording proxy.

    python bench/gateway.py

Calls of 1,000 prompt and 64 completion tokens, 1, 32 and 256 at once, from a client in a separate process. Our engine
answers immediately. Calls exclude rendering (every prompt is prepared, all are different), which is measured separately.
The proxy (aiohttp on uvloop, orjson) forwards to the upstream and keeps ids and logprobs as arrays. The splice does the
same but only forwards bytes between two sockets and finds the ends of HTTP messages: it measures the speed of this
machine, and so how fast the proxy should be. If the machine has other load, trust the CPU figures. Last line: one JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

PROMPT, COMPLETION = 1_000, 64
AT_ONCE = (1, 32, 256)
CALLS = {1: 500, 32: 2_000, 256: 2_000}
ROUNDS = 9
WARM = 300
PROXY_SECONDS, SPLICE_SECONDS = 0.25e-3, 0.11e-3
"""CPU seconds per call through both floors, at 32 calls at once, on the machine of the targets. Only their ratio is
used."""
TOLERANCE = 0.7
"""The output warns if the proxy's speed is below this share of the speed expected from the ratio and this splice."""
TEXT = "The quick brown fox jumps over the lazy dog and runs. " * 80
"""About a thousand tokens with most tokenizers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    sdk, rendering = sdk_cpu(), rendering_cpu()
    with (
        server(upstream) as plain,
        server(splice, plain.port) as bytes_only,
        server(proxy, plain.port) as floor,
        server(gateway) as ours,
    ):
        systems = {
            "plain upstream": plain,
            "byte splice": bytes_only,
            "recording proxy": floor,
            "gateway": ours,
        }
        for s in systems.values():
            drive(s, 1, WARM)
        rounds_at = {n: in_turn(systems, n, rounds, CALLS[n]) for n in AT_ONCE}
        memory = {name: kib_per_call(s) for name, s in systems.items() if s is not plain}
    figures = {n: {name: middle(all_) for name, all_ in found.items()} for n, found in rounds_at.items()}
    report(figures, memory, sdk, rendering)
    one, many = figures[1], rounds_at[32]
    check_floor(ratio(many, "recording proxy", "byte splice", "cpu"))
    added = {name: one[name].p50 - one["plain upstream"].p50 for name in one}
    result = {
        "ratio_to_minimal_proxy_32": round(ratio(many, "gateway", "recording proxy", "rate"), 3),
        "added_p50_ratio_to_proxy": round(added["gateway"] / added["recording proxy"], 3),
        "kib_per_call": round(memory["gateway"], 2),
        "render_ratio_to_sdk": round(rendering / sdk, 3),
    }
    print(json.dumps(result))


# --------------------------------------------------------------------------- figures


@dataclass(frozen=True)
class Figures:
    """Figures of one system at one concurrency: calls per second, latencies in seconds, and the server's CPU seconds per
    call."""

    rate: float
    p50: float
    p99: float
    cpu: float


def in_turn(systems: dict[str, Server], at_once: int, rounds: int, calls: int) -> dict[str, list[Figures]]:
    """The figures of each system's rounds; the systems alternate."""
    found: dict[str, list[Figures]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            found[name].append(drive(system, at_once, calls))
    return found


def middle(rounds: list[Figures]) -> Figures:
    """The median of each figure over the rounds."""
    fields = ("rate", "p50", "p99", "cpu")
    return Figures(*(statistics.median(getattr(f, field) for f in rounds) for field in fields))


def ratio(rounds: dict[str, list[Figures]], of: str, to: str, field: str) -> float:
    """The median over rounds of two systems' ratio in one round, because the machine's other load changes between rounds."""
    pairs = zip(rounds[of], rounds[to], strict=True)
    return statistics.median(getattr(a, field) / getattr(b, field) for a, b in pairs)


def kib_per_call(system: Server, calls: int = 6_000) -> float:
    """Growth of the server's resident memory per call, in KiB."""
    drive(system, 32, 1_000)
    before = system.ask("rss")
    drive(system, 32, calls)
    return (system.ask("rss") - before) / calls / 1024


def report(
    figures: dict[int, dict[str, Figures]], memory: dict[str, float], sdk: float, rendering: float
) -> None:
    print(
        f"{'':18}{'at once':>8}{'calls/s':>9}{'p50 ms':>8}{'p99 ms':>8}{'added p50':>11}{'p99':>7}{'CPU ms':>8}"
    )
    for n, found in figures.items():
        plain = found["plain upstream"]
        for name, f in found.items():
            added = f"{1e3 * (f.p50 - plain.p50):11.2f}{1e3 * (f.p99 - plain.p99):7.2f}"
            print(
                f"{name:18}{n:8}{f.rate:9,.0f}{1e3 * f.p50:8.2f}{1e3 * f.p99:8.2f}"
                f"{added if f is not plain else ' ' * 18}{1e3 * f.cpu:8.3f}"
            )
    for name, kib in memory.items():
        print(f"{name}: {kib:.1f} KiB of memory per recorded call")
    print(
        f"an SDK call costs {1e3 * sdk:.2f} ms of CPU, rendering a continued conversation {1e3 * rendering:.3f} ms"
    )


def check_floor(proxy: float) -> None:
    """Print the proxy's CPU as a multiple of the splice's: a slow proxy would make our ratios look better than they are.
    The cost of system calls relative to Python depends on the machine, so the expected ratio is a hint, not a limit."""
    expected = PROXY_SECONDS / SPLICE_SECONDS
    warning = "; is it slow for a reason other than this machine?" if expected < TOLERANCE * proxy else ""
    print(
        f"the proxy takes {proxy:.2f} times the CPU of the splice, {expected:.2f} where the targets were set{warning}"
    )


# --------------------------------------------------------------------------- servers, one process each


@dataclass
class Server:
    """A server in a separate process. ``key`` is its API key."""

    port: int
    key: str
    _pipe: Any

    def ask(self, what: str) -> float:
        """The process's CPU seconds (``cpu``) or resident bytes (``rss``)."""
        self._pipe.send(what)
        return float(self._pipe.recv())


@contextmanager
def server(serve: Callable[..., None], *arguments: Any) -> Iterator[Server]:
    """Serve in a new process during the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    port, key = ours.recv()
    try:
        yield Server(port, key, ours)
    finally:
        process.terminate()
        process.join(10)


def answer_questions(pipe: Any) -> None:
    """Answer `Server.ask` until this process ends."""
    page = resource.getpagesize()
    while True:
        if pipe.recv() == "cpu":
            pipe.send(time.process_time())
        else:
            with open("/proc/self/statm") as statm:
                pipe.send(int(statm.read().split()[1]) * page)


def in_thread(work: Callable[..., None], *arguments: Any) -> None:
    import threading

    threading.Thread(target=work, args=arguments, daemon=True).start()


def upstream(pipe: Any) -> None:
    """Answers every request with the same ids and logprobs."""
    from aiohttp import web

    prompt, completion = list(range(5, 5 + PROMPT)), list(range(100, 100 + COMPLETION))
    body = json.dumps(
        {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "word " * COMPLETION},
                    "finish_reason": "stop",
                    "logprobs": [-0.5] * COMPLETION,
                    "token_ids": completion,
                }
            ],
            "prompt_token_ids": prompt,
            "usage": {
                "prompt_tokens": PROMPT,
                "completion_tokens": COMPLETION,
                "total_tokens": PROMPT + COMPLETION,
            },
        }
    ).encode()

    async def answer(request: Any) -> Any:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    run_aiohttp(pipe, answer)


def recorded(sent: bytes, body: bytes) -> Any:
    """The arrays of a call that a trainer needs, and the request's bytes."""
    import orjson

    found = orjson.loads(body)
    (choice,) = found["choices"]
    return (
        sent,
        np.array(found["prompt_token_ids"], np.int32),
        np.array(choice["token_ids"], np.int32),
        np.array(choice["logprobs"], np.float32),
    )


def splice(pipe: Any, upstream_port: int) -> None:
    """Forwards bytes between a client's socket and the upstream's, and records whole messages."""
    import uvloop

    records: list[Any] = []

    class Client(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.sent = b""
            self.transport = transport
            self.upstream: Any = None
            self.connecting = asyncio.ensure_future(self.connect())

        async def connect(self) -> None:
            loop = asyncio.get_running_loop()
            self.upstream, _ = await loop.create_connection(
                lambda: Upstream(self), "127.0.0.1", upstream_port
            )
            self.upstream.write(self.sent)

        def data_received(self, data: bytes) -> None:
            self.sent += data
            if self.upstream:
                self.upstream.write(data)

        def connection_lost(self, error: Exception | None) -> None:
            self.upstream.close()

    class Upstream(asyncio.Protocol):
        def __init__(self, client: Client) -> None:
            self.client = client
            self.data = b""

        def data_received(self, data: bytes) -> None:
            self.client.transport.write(data)
            self.data += data
            end = message_end(self.data)
            if 0 < end <= len(self.data):
                sent, self.client.sent = self.client.sent, b""
                records.append(
                    recorded(sent[sent.index(b"\r\n\r\n") + 4 :], self.data.partition(b"\r\n\r\n")[2])
                )
                self.data = b""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(Client, "127.0.0.1", 0, backlog=2048)
        pipe.send((listening.sockets[0].getsockname()[1], ""))
        in_thread(answer_questions, pipe)
        await listening.serve_forever()

    uvloop.run(serve())


def message_end(data: bytes) -> int:
    """Offset of the end of the first HTTP message; 0 if its headers are incomplete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    length = data[:end].lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return end + 4 + int(length)


def proxy(pipe: Any, upstream_port: int) -> None:
    """Forwards and records."""
    import aiohttp
    from aiohttp import web

    records: list[Any] = []
    client: list[Any] = []
    url = f"http://127.0.0.1:{upstream_port}/v1/chat/completions"

    async def answer(request: Any) -> Any:
        if not client:
            connector = aiohttp.TCPConnector(limit=0)
            client.append(aiohttp.ClientSession(connector=connector, auto_decompress=False))
        sent = await request.read()
        async with client[0].post(url, data=sent, headers={"content-type": "application/json"}) as response:
            body = await response.read()
        records.append(recorded(sent, body))
        return web.Response(body=body, content_type="application/json")

    run_aiohttp(pipe, answer)


def run_aiohttp(pipe: Any, answer: Any) -> None:
    import uvloop
    from aiohttp import web

    async def serve() -> None:
        runner = web.ServerRunner(web.Server(answer, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        assert site._server
        pipe.send((site._server.sockets[0].getsockname()[1], ""))
        in_thread(answer_questions, pipe)
        await asyncio.Event().wait()

    uvloop.run(serve())


def gateway(pipe: Any) -> None:
    """Our gateway, with an engine that answers immediately and a chat with prepared prompts."""
    from ajet.capture.answers import Answerer
    from ajet.capture.gateway.server import Gateway
    from ajet.capture.portal import Portal
    from ajet.capture.process.garbage import rare_full_collections
    from ajet.capture.sampling import SamplingPolicy
    from ajet.capture.session import Session
    from ajet.capture.targets import Target
    from ajet.capture.wires.builtin import BUILTIN_WIRES

    chat = prepared_chat()
    portal = Portal()
    answerer = Answerer(AtOnce(chat.tokenizer), chat, (Target("policy"),), SamplingPolicy(training=True))
    session = Session("bench", "bench", answerer)
    server = Gateway(portal, {session.key: session}.get, BUILTIN_WIRES)
    with rare_full_collections():  # like `ajet serve` and `ajet run`
        server.start()
        assert server.socket
        pipe.send((server.socket.getsockname()[1], session.key))
        answer_questions(pipe)


class AtOnce:
    """An engine whose answer of so many tokens is ready; each call gets its own arrays."""

    context_length = 1 << 20
    model_type = "qwen3"
    adapters = ()

    def __init__(self, tokenizer: Any, completion: int = COMPLETION) -> None:
        self.tokenizer = tokenizer
        word = tokenizer.encode(" word", add_special_tokens=False)
        ids = (word * completion)[: completion - 1]
        self.ids = np.array([*ids, tokenizer.eos_token_id], np.int32)

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def generate(self, request: Any) -> Any:
        """See `ajet.Engine.generate`."""
        from ajet.types import Generation

        count = len(self.ids)
        return Generation(
            self.ids.copy(), np.full(count, -0.5, np.float32), np.zeros(count, np.int32), "stop"
        )


def prepared_chat() -> Any:
    """A chat that renders to a prepared prompt, different each time, so that no two calls share stored tokens."""
    from ajet.chat.renderer import Chat
    from ajet_local.starter.calculator import Calculator

    class Prepared(Chat):
        def __init__(self, tokenizer: Any, model_type: str) -> None:
            super().__init__(tokenizer, model_type)
            self._renderings = 0
            messages = [{"role": "system", "content": "You are of use."}, {"role": "user", "content": TEXT}]
            ids, self._written_as = super().begin(messages, [])
            self._prepared = ids[-PROMPT:]
            assert len(self._prepared) == PROMPT

        def begin(self, messages: Any, tools: Any) -> Any:
            self._renderings += 1
            ids = self._prepared.copy()
            ids[:2] = divmod(self._renderings, 500)
            return ids, self._written_as.copied()

    return Prepared(Calculator().tokenizer(0)[0], "qwen3")


# --------------------------------------------------------------------------- the client, a separate process


def drive(system: Server, at_once: int, calls: int) -> Figures:
    """Make ``calls`` calls over ``at_once`` persistent connections."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=client, args=(theirs, system.port, system.key, at_once, calls))
    process.start()
    theirs.close()
    ours.recv()  # it has connected
    cpu = system.ask("cpu")
    ours.send(None)
    seconds, latencies = ours.recv()
    cpu = system.ask("cpu") - cpu
    process.join()
    latencies.sort()
    return Figures(
        calls / seconds, latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)], cpu / calls
    )


def client(pipe: Any, port: int, key: str, at_once: int, calls: int) -> None:
    """Uses plain sockets and does as little work as possible, because it shares the machine with the servers."""
    import uvloop

    uvloop.run(_client(pipe, port, key, at_once, calls))


async def _client(pipe: Any, port: int, key: str, at_once: int, calls: int) -> None:
    loop = asyncio.get_running_loop()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\naccept: application/json\r\ncontent-length: "
    )
    messages = [{"role": "system", "content": "You are of use."}, {"role": "user", "content": ""}]
    before, _, after = json.dumps({"model": "m", "messages": messages}).rpartition('""')
    latencies: list[float] = []
    left = calls
    salt = f"{os.getpid()} {time.time_ns()}"

    class Connection(asyncio.Protocol):
        def __init__(self, number: int) -> None:
            self.number = number
            self.data = b""
            self.made = loop.create_future()
            self.done = loop.create_future()

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            self.made.set_result(None)

        def send(self) -> None:
            nonlocal left
            if not left:
                self.done.set_result(None)
                self.transport.close()
                return
            left -= 1
            body = f'{before}"{salt} {left} {TEXT}"{after}'
            self.started = time.perf_counter()
            self.transport.write(f"{head}{len(body)}\r\n\r\n{body}".encode())

        def data_received(self, data: bytes) -> None:
            self.data += data
            end = message_end(self.data)
            if 0 < end <= len(self.data):
                if not self.data.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(self.data[:500])
                latencies.append(time.perf_counter() - self.started)
                self.data = b""
                self.send()

        def connection_lost(self, error: Exception | None) -> None:
            if not self.done.done():
                self.done.set_exception(error or RuntimeError("the server closed a connection"))

    connections = [Connection(n) for n in range(at_once)]
    for connection in connections:
        await loop.create_connection(lambda c=connection: c, "127.0.0.1", port)  # type: ignore[misc]
        await connection.made
    pipe.send(None)
    pipe.recv()
    started = time.perf_counter()
    for connection in connections:
        connection.send()
    await asyncio.gather(*(c.done for c in connections))
    pipe.send((time.perf_counter() - started, latencies))


# --------------------------------------------------------------------------- the SDK and rendering


def sdk_cpu(calls: int = 400) -> float:
    """CPU seconds of an SDK call over a transport that answers immediately."""
    sdk, _ = direct_sdk()
    messages: Any = [{"role": "system", "content": "You are of use."}, {"role": "user", "content": TEXT}]
    return cpu_of(lambda: sdk.chat.completions.create(model="m", messages=messages), calls)


def completion() -> dict[str, Any]:
    """A chat completion as the SDK receives it."""
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "word " * COMPLETION},
            }
        ],
        "usage": {
            "prompt_tokens": PROMPT,
            "completion_tokens": COMPLETION,
            "total_tokens": PROMPT + COMPLETION,
        },
    }


def direct_sdk() -> tuple[Any, Any]:
    """The SDK's sync and async clients, over a transport that answers immediately."""
    import httpx2
    import openai

    body = json.dumps(completion()).encode()

    class Direct(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
        def handle_request(self, request: Any) -> Any:
            request.read()
            return httpx2.Response(200, headers={"content-type": "application/json"}, content=body)

        async def handle_async_request(self, request: Any) -> Any:
            await request.aread()
            return httpx2.Response(200, headers={"content-type": "application/json"}, content=body)

    options: dict[str, Any] = {"api_key": "k", "base_url": "http://x/v1"}
    return (
        openai.OpenAI(**options, http_client=httpx2.Client(transport=Direct())),
        openai.AsyncOpenAI(**options, http_client=httpx2.AsyncClient(transport=Direct())),
    )


def reading_cpu(calls: int = 1_000) -> float:
    """CPU seconds of parsing an answer of 64 tokens."""
    from ajet.chat.renderer import Chat
    from ajet_local.starter.calculator import Calculator

    chat = Chat(Calculator().tokenizer(0)[0], "qwen3")
    prompt = chat.render([{"role": "user", "content": TEXT[:200]}], [])[-64:]
    answer = AtOnce(chat.tokenizer).ids.tolist()
    return cpu_of(lambda: chat.parse(answer, prompt), calls)


def rendering_cpu(calls: int = 300) -> float:
    """CPU seconds of making the next prompt of a conversation with tools from its stored ids."""
    from ajet.chat.messages import normalise
    from ajet.chat.renderer import Chat
    from ajet.tracker.call import Call
    from ajet.tracker.prompt import make_prompt
    from ajet.tracker.record import EpisodeRecord
    from ajet.types import Generation
    from ajet_local.starter.calculator import Calculator

    chat = Chat(Calculator().tokenizer(0)[0], "qwen3")
    tool = {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    }
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    messages = [
        {"role": "system", "content": "You are of use."},
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3, and this is what it means: " + TEXT[:200]},
    ]
    record = EpisodeRecord()
    root = record.chat("k")
    first = root.add(normalise(messages[0], 0)).add(normalise(messages[1], 1))
    asked = Call(0, "a", "t", "k", chat_end=first, tools=[tool])
    make_prompt(record, chat, asked)
    ids = np.array(
        [*chat.tokenizer.encode(chat.written(messages[2]), add_special_tokens=False), chat.stop_token_ids[0]],
        np.int32,
    )
    generation = Generation(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop")
    end = record.tree("k").extend(asked.prompt, ids)
    answer = normalise(messages[2], 2)
    record.add(Call(0, "a", "t", "k", asked.prompt, end, generation, 1.0, True, chat_end=first), answer)
    following = first.add(answer).add(normalise(messages[3], 3))

    def next_call() -> Call:
        call = Call(1, "a", "t", "k", chat_end=following, tools=[tool])
        make_prompt(record, chat, call)
        return call

    assert next_call().parent == 0, "it does not continue the conversation"
    return cpu_of(next_call, calls)


def cpu_of(work: Callable[[], object], calls: int) -> float:
    """CPU seconds of a function: the median of five batches."""
    for _ in range(calls // 5):
        work()
    batches = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(calls // 5):
            work()
        batches.append((time.process_time() - start) / (calls // 5))
    return statistics.median(batches)


if __name__ == "__main__":
    main()
