"""Measures how long other clients wait while one client attacks the gateway, and the gateway's peak memory.

    python bench/gateway_attack.py                  # all attacks: three minutes
    python bench/gateway_attack.py header messages  # some

For each attack, `ajet serve` runs in a separate process, with a scripted engine and the starter's tokenizer. A neighbour
in a second process requests /health over new connections, and chat completions; an attacker in a third repeats the attack
for some seconds. The server then gets SIGTERM during the attack. All traffic is on loopback.

Wall-clock times include the machine's other load. `worst_health_cpu_ms` is the CPU time of the server during its slowest
/health, so it shows the part that the attack causes. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

SECONDS = 6.0
"""Duration of each attack before SIGTERM."""
CONTEXT = 32_768
KEY = "ajet-bench"
CATCH = "a" * 28 + "!"
"""A text that a backtracking regular expression engine needs 2^28 steps to reject for `^(a+)+$`."""
HEADER_BYTES = 192 << 20
HALF_OPEN = 2_000
BODY_BYTES = 30 << 20
LONGEST_WAIT = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ATTACKS))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve_here()
    names = arguments.names or list(ATTACKS)
    if unknown := set(names) - set(ATTACKS):
        parser.error(f"no attack {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    print(
        f"{'':22}{'health ms':>10}{'cpu ms':>8}{'chat ms':>9}{'polls':>7}{'attacks':>9}{'peak MB':>9}{'stop s':>8}"
    )
    found = {}
    for name in ("nothing", *names):
        found[name] = f = measure(name, arguments.seconds)
        print(
            f"{name:22}{f.health:10.1f}{f.cpu:8.1f}{f.chat:9.1f}{f.polls:7}{f.attacks:9}{f.peak_mb:9.0f}{f.stop:8.2f}"
            f"  {f.last_answer}",
            flush=True,
        )
    result = {
        "worst_health_ms": {name: round(f.health, 1) for name, f in found.items()},
        "worst_health_cpu_ms": {name: round(f.cpu, 1) for name, f in found.items()},
        "worst_chat_ms": {name: round(f.chat, 1) for name, f in found.items()},
        "peak_mb": round(max(f.peak_mb for f in found.values())),
        "worst_stop_s": round(max(f.stop for f in found.values()), 2),
    }
    print(json.dumps(result))


@dataclass(frozen=True)
class Figures:
    """``health``, ``cpu`` and ``chat`` are milliseconds of the slowest request; ``stop`` is in seconds."""

    health: float
    cpu: float
    chat: float
    polls: int
    attacks: int
    last_answer: str
    """The last answer to the attacker."""
    peak_mb: float
    stop: float


def measure(name: str, seconds: float) -> Figures:
    """Run one attack on a new server."""
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout
    port = int(server.stdout.readline())
    context = multiprocessing.get_context("spawn")
    stopping, attacks = context.Event(), context.Value("i", 0)
    poll_results, poll_writer = context.Pipe(duplex=False)
    answers, answer_writer = context.Pipe(duplex=False)
    neighbour = context.Process(target=poll, args=(port, server.pid, stopping, poll_writer), daemon=True)
    attacker = context.Process(target=attack, args=(name, port, attacks, answer_writer), daemon=True)
    try:
        neighbour.start()
        poll_results.recv()  # it has made its first requests
        attacker.start()
        answers.recv()  # it is ready
        time.sleep(seconds)
        deadline = time.monotonic() + LONGEST_WAIT
        while not attacks.value and time.monotonic() < deadline:
            time.sleep(0.05)
        repeated = attacks.value
        stopping.set()
        health, cpu, chat, count = poll_results.recv()
        last_answer = "no answer yet"
        while answers.poll():
            last_answer = answers.recv()
        peak = peak_mb(server.pid)
        started = time.monotonic()
        server.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(LONGEST_WAIT)
        stop = time.monotonic() - started
    finally:
        server.kill()
        server.wait()
        for process in (attacker, neighbour):
            process.terminate()
            process.join()
    return Figures(health, cpu, chat, count, repeated, last_answer, peak, stop)


def peak_mb(pid: int) -> float:
    """The peak memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def cpu_seconds(pid: int) -> float:
    """CPU seconds of all threads of a process."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9


# --------------------------------------------------------------------------- the server


def serve_here() -> None:
    from ajet.capture.sampling import SamplingPolicy
    from ajet.runs.serve import serve
    from ajet.testing import ScriptedEngine
    from ajet_local.starter.calculator import Calculator

    def answer(request: Any, prompt: str) -> str:
        text = CATCH if "catch" in prompt else "ab" * 5_000 if "long" in prompt else ""
        return json.dumps(text) if text else "ok"

    serve(
        ScriptedEngine(Calculator().tokenizer(0)[0], answer, context_length=CONTEXT),
        models=["m"],
        key=KEY,
        host="127.0.0.1",
        port=0,
        most_calls=256,
        policy=SamplingPolicy(False),
        ready=lambda url: print(url.rpartition(":")[2], flush=True),
    )


# --------------------------------------------------------------------------- the neighbour


def poll(port: int, server: int, stopping: Any, pipe: Any) -> None:
    """Send requests until the attack is over, then report the slowest times."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}).encode()
    health = cpu = chat = 0.0
    count = 0
    for _ in range(3):
        ask(port, "POST", "/v1/chat/completions", body)
    pipe.send("ready")
    while not stopping.is_set():
        used, started = cpu_seconds(server), time.monotonic()
        status, _ = ask(port, "GET", "/health")
        waited, used = time.monotonic() - started, cpu_seconds(server) - used
        assert status == 200, status
        if waited > health:
            health, cpu = waited, used
        if count % 5 == 0:
            started = time.monotonic()
            status, answer = ask(port, "POST", "/v1/chat/completions", body)
            assert status == 200, answer
            chat = max(chat, time.monotonic() - started)
        count += 1
        time.sleep(0.01)
    pipe.send((1e3 * health, 1e3 * cpu, 1e3 * chat, count))


def ask(port: int, method: str, path: str, body: bytes | None = None, key: str = KEY) -> tuple[int, str]:
    """(status, beginning of the body) of a request over a new connection."""
    connection = HTTPConnection("127.0.0.1", port, timeout=2 * LONGEST_WAIT)
    try:
        connection.request(method, path, body, {"authorization": f"Bearer {key}"})
        response = connection.getresponse()
        return response.status, response.read()[:300].decode(errors="replace")
    finally:
        connection.close()


# --------------------------------------------------------------------------- attacks


def attack(name: str, port: int, attacks: Any, pipe: Any) -> None:
    """Repeat an attack forever, and report the answers. An attack may end in a broken connection."""
    once = ATTACKS[name]()
    pipe.send("ready")
    while True:
        try:
            answer = once(port)
        except ConnectionRefusedError:
            return  # the server has ended
        except (OSError, HTTPException) as error:
            answer = f"{type(error).__name__}"
        attacks.value += 1
        if attacks.value < 1_000:
            pipe.send(answer)


Once = Callable[[int], str]


def chat_of(**body: Any) -> Callable[[], Once]:
    """A chat completion with a valid key."""

    def make() -> Once:
        made = {name: value() if callable(value) else value for name, value in body.items()}
        sent = json.dumps(
            {"messages": [{"role": "user", "content": "hi"}], **made}, separators=(",", ":")
        ).encode()

        def once(port: int) -> str:
            status, answer = ask(port, "POST", "/v1/chat/completions", sent)
            return f"{status} {answer[answer.find('ajet: ') + 6 :][:70] if status != 200 else ''}"

        return once

    return make


def user_message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def schema(found: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": found}}


def doubling(levels: int, by: str = "allOf", last: str = "string", **beside: Any) -> dict[str, Any]:
    """A schema whose references double at every level."""
    names = [f"a{n}" for n in range(levels)]
    below = {a: {by: [{"$ref": f"#/$defs/{b}"}] * 2} for a, b in itertools.pairwise(names)}
    return {"$ref": "#/$defs/a0", "$defs": {**below, names[-1]: {"type": last}}, **beside}


def invalid(nodes: int = 38_000) -> dict[str, Any]:
    """A large schema with an error below alternatives."""
    found: dict[str, Any] = {"type": "no type", "enum": list(range(nodes))}
    for _ in range(60):
        found = {"dependencies": {"a": found}}
    return found


def tools(count: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"t{n}"}} for n in range(count)]


def header() -> Once:
    """One endless header, without a key."""
    part = b"a" * (1 << 20)

    def once(port: int) -> str:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nx: ")
            sent = 0
            with suppress(OSError):
                for _ in range(HEADER_BYTES // len(part)):
                    sent += connection.send(part)
            answer = b""
            with suppress(OSError):
                answer = connection.recv(100)
            return f"{answer[9:45].decode()!r} after {sent / 1e6:.1f} MB"

    return once


def keyless(sent: bytes) -> Callable[[], Once]:
    """A request without a key whose parts are as small as HTTP allows, over a new connection each time."""

    def once(port: int) -> str:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            with suppress(OSError):
                connection.sendall(sent)
            answer = b""
            with suppress(OSError):
                answer = connection.recv(100)
            return repr(answer[9:45].decode())

    return lambda: once


def half_open() -> Once:
    """Connections whose request head never ends: many at once, then new ones all the time."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    held: list[socket.socket] = []

    def once(port: int) -> str:
        while len(held) < HALF_OPEN:
            held.append(begin(port))
        held.pop(0).close()
        held.append(begin(port))
        time.sleep(0.001)
        return f"{len(held)} held"

    def begin(port: int) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port))
        with suppress(OSError):
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: ")
        return connection

    return once


def half_sent() -> Once:
    """Bodies with a key that never end: 40 at once."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-length: {BODY_BYTES + 1}\r\n\r\n"
    body = b" " * BODY_BYTES
    held: list[socket.socket] = []

    def once(port: int) -> str:
        connection = socket.create_connection(("127.0.0.1", port))
        held.append(connection)
        with suppress(OSError):
            connection.sendall(head.encode() + body)
        answer = "waits"
        with suppress(OSError):
            connection.settimeout(0.01)
            answer = repr(connection.recv(100)[9:45].decode())
        if len(held) > 40:
            held.pop(0).close()
        return answer

    return once


def nothing() -> Once:
    def once(port: int) -> str:
        time.sleep(0.1)
        return ""

    return once


WORDS = "The quick brown fox jumps over the lazy dog. "

ATTACKS: dict[str, Callable[[], Once]] = {
    "regular_expression": chat_of(
        messages=user_message("catch"), response_format=schema({"type": "string", "pattern": "^(a+)+$"})
    ),
    "messages": chat_of(messages=lambda: user_message("a") * 1_000_000),
    "text": chat_of(messages=lambda: user_message(WORDS * (30_000_000 // len(WORDS)))),
    "tools": chat_of(tools=lambda: tools(200_000)),
    "header": header,
    "headers": keyless(b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"a:\r\n" * 30_000 + b"\r\n"),
    "chunks": keyless(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"1\r\na\r\n" * 400_000
    ),
    "half_open": half_open,
    "half_sent": half_sent,
    # The largest requests that pass the limits, and other expensive ones.
    "schema_references": chat_of(messages=user_message("catch"), response_format=schema(doubling(40))),
    "schema_alternatives": chat_of(
        messages=user_message("catch"), response_format=schema(doubling(16, "anyOf", "integer"))
    ),
    "schema_unevaluated": chat_of(response_format=schema(doubling(24, unevaluatedProperties=False))),
    "schema_size": chat_of(response_format=schema(invalid())),
    "schema_patterns": chat_of(
        response_format=schema(
            {
                "patternProperties": {f"(a{{500}}){{{n}}}b{n}": {} for n in range(20, 40)}
                | {f"(a{{50}}){{{n}}}": {} for n in range(30, 2_000)}
            }
        )
    ),
    "schema_slow_pattern": chat_of(
        messages=user_message("long"), response_format=schema({"pattern": "(a|b)*a(a|b){3000}c"})
    ),
    "most_messages": chat_of(messages=lambda: user_message("a") * (CONTEXT // 4)),
    "most_text": chat_of(messages=lambda: user_message(WORDS * (CONTEXT * 4 // len(WORDS)))),
    "most_tools": chat_of(tools=lambda: tools(512)),
    "nothing": nothing,
}


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
