"""Measures how long /health and a paying user's chat take while strangers and another customer flood an explorer.

    python bench/online_flood.py                 # a minute

An explorer with a scripted engine, the starter's tokenizer and a store in SQLite runs in a separate process. A neighbour in a second
process, with a key of its own, requests /health over new connections, and chat completions. It does so

- ``usual``: alone;
- ``flood``: while 100 connections without a key have sent half of their bodies, and a customer's key sends feedback with an id of
  30 MB, with a comment of 30 MB and with 10 million lists, all again and again;
- ``pages``: while that key sends the largest pages that are read, over 16 connections.

All traffic is on loopback. Times include the machine's other load, also that of the attackers; ``cpu_ms`` is the CPU time of the
server during the slowest request. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from gateway_attack import BODY_BYTES, ask, cpu_seconds, peak_mb

SECONDS = 15.0
"""Duration of each phase."""
CONTEXT = 4_096
PAYING, CUSTOMER = "paying-key-0123456789", "customer-key-0123456789"
STRANGERS = 100
PAGES = 16
LARGEST = 64 << 10


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve_here(Path(arguments.serve))
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", folder], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout
        try:
            port = int(server.stdout.readline())
            found = {name: measure(name, port, server.pid, arguments.seconds) for name in PHASES}
            peak = peak_mb(server.pid)
        finally:
            server.kill()
            server.wait()
    usual = found["usual"]
    over = {
        name: {what: round(phase[what]["worst_ms"] - usual[what]["p50_ms"], 1) for what in ("health", "chat")}
        for name, phase in found.items()
    }
    print(json.dumps({"online_flood": found, "worst_ms_over_usual": over, "peak_mb": round(peak)}))


def measure(name: str, port: int, server: int, seconds: float) -> dict[str, Any]:
    """What the neighbour sees in a phase."""
    context = multiprocessing.get_context("spawn")
    stopping, answered = context.Event(), context.Queue()
    results, writer = context.Pipe(duplex=False)
    neighbour = context.Process(target=poll, args=(port, server, stopping, writer), daemon=True)
    attacker = context.Process(target=PHASES[name], args=(port, answered), daemon=True)
    attacker.start()
    first = [answered.get() for _ in range(3)]  # the attack goes on
    neighbour.start()
    results.recv()
    time.sleep(seconds)
    stopping.set()
    found: dict[str, Any] = results.recv()
    for process in (attacker, neighbour):
        process.terminate()
        process.join()
    shown = " ".join(
        f"{what} {found[what]['p50_ms']:.1f}/{found[what]['worst_ms']:.1f} ms" for what in ("health", "chat")
    )
    print(
        f"{name:8}{shown}, of {found['health']['count']} and {found['chat']['count']}  {sorted({*first})}",
        flush=True,
    )
    return found


# --------------------------------------------------------------------------- the server


def serve_here(folder: Path) -> None:
    from ajet.capture.answers import Answerer
    from ajet.capture.portal import Portal
    from ajet.capture.sampling import SamplingPolicy
    from ajet.capture.targets import Target
    from ajet.chat.renderer import Chat
    from ajet.testing import ScriptedEngine
    from ajet_local.starter.calculator import Calculator
    from ajet_online.explorer import exploring
    from ajet_online.keys import Key, Keys
    from ajet_online.store import TraceStore

    engine = ScriptedEngine(
        Calculator().tokenizer(0)[0], lambda request, prompt: "ok", context_length=CONTEXT
    )
    portal = Portal()
    portal.submit(engine.start()).result()
    chat = Chat(engine.tokenizer, engine.model_type)
    answerer = Answerer(engine, chat, (Target("policy"),), SamplingPolicy(False))
    keys = Keys(
        [Key("paying", PAYING, ("chat", "feedback")), Key("customer", CUSTOMER, ("chat", "feedback"))]
    )
    store = TraceStore.open(str(folder / "traces.db"))
    where = {"models": ["m"], "host": "127.0.0.1", "port": 0, "most_calls": 256}
    with exploring(portal, answerer, store, keys, **where) as (url, _):
        print(url.rpartition(":")[2], flush=True)
        threading.Event().wait()


# --------------------------------------------------------------------------- the neighbour


def poll(port: int, server: int, stopping: Any, pipe: Any) -> None:
    """Send requests until the phase is over, then report their times."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}).encode()
    requests: dict[str, tuple[str, str, bytes | None]] = {
        "health": ("GET", "/health", None),
        "chat": ("POST", "/v1/chat/completions", body),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in requests}
    """Milliseconds of each request, and of the server's CPU meanwhile."""
    for _ in range(3):
        ask(port, *requests["chat"], PAYING)
    pipe.send("ready")
    while not stopping.is_set():
        for name, request in requests.items():
            used, started = cpu_seconds(server), time.monotonic()
            status, answer = ask(port, *request, PAYING)
            waited = time.monotonic() - started
            assert status == 200, answer
            times[name].append((1e3 * waited, 1e3 * (cpu_seconds(server) - used)))
        time.sleep(0.02)
    pipe.send({name: figures(sorted(of)) for name, of in times.items()})


def figures(times: list[tuple[float, float]]) -> dict[str, float]:
    """Median, 99th percentile and slowest of sorted times, and the server's CPU time during the slowest."""
    return {
        "p50_ms": round(times[len(times) // 2][0], 1),
        "p99_ms": round(times[int(0.99 * len(times))][0], 1),
        "worst_ms": round(times[-1][0], 1),
        "cpu_ms": round(times[-1][1], 1),
        "count": len(times),
    }


# --------------------------------------------------------------------------- the attackers


def nothing(port: int, answered: Any) -> None:
    for _ in range(3):
        answered.put("no attack")


def flood(port: int, answered: Any) -> None:
    """Strangers with half of a body each, and a customer with huge feedback."""
    huge = [
        json.dumps({"msg_ids": ["a" * BODY_BYTES], "reward": 1, "task_id": "t"}).encode(),
        json.dumps({"msg_ids": ["a"], "comment": "a" * BODY_BYTES, "task_id": "t"}).encode(),
        b'{"x":[' + b"[]," * 10_000_000 + b"[]]}",
    ]
    for body in huge:
        threading.Thread(target=repeated, args=(port, body, answered), daemon=True).start()
    paths = ("/feedback", "/commit", "/rollback", "/v1/chat/completions")
    held: list[socket.socket] = []
    while True:
        while len(held) < STRANGERS:
            held.append(half_sent(port, paths[len(held) % len(paths)]))
        held.pop(0).close()
        time.sleep(0.01)


def half_sent(port: int, path: str) -> socket.socket:
    """A connection without a key that has sent what the server takes of half of a body."""
    connection = socket.create_connection(("127.0.0.1", port))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {BODY_BYTES}\r\n\r\n"
    connection.setblocking(False)
    with suppress(OSError):
        connection.send(head.encode() + b" " * (BODY_BYTES // 2))
    return connection


def pages(port: int, answered: Any) -> None:
    """A customer whose pages are as large as those that are read."""
    ids = json.dumps([f"{number:024x}" for number in range(2_300)])
    largest = [
        f'{{"msg_ids": {ids}, "reward": 1, "task_id": "t"}}',
        json.dumps({"msg_ids": ["a"], "comment": "\ud83e" * 10_000, "task_id": "t"}),
        '{"x":[' + "[]," * 21_000 + "[]]}",
        "[" * LARGEST,
    ]
    assert all(len(body) <= LARGEST for body in largest)
    for number in range(PAGES):
        body = largest[number % len(largest)].encode()
        threading.Thread(target=repeated, args=(port, body, answered), daemon=True).start()
    threading.Event().wait()


def repeated(port: int, body: bytes, answered: Any) -> None:
    """Send feedback with the customer's key again and again."""
    while True:
        try:
            status, answer = ask(port, "POST", "/feedback", body, CUSTOMER)
            answered.put(f"{status} {answer[answer.find('ajet: ') + 6 :][:40]}")
        except (OSError, HTTPException) as error:  # the server does not read on
            answered.put(type(error).__name__)
        time.sleep(0.01)


PHASES = {"usual": nothing, "flood": flood, "pages": pages}

if __name__ == "__main__":
    main()
