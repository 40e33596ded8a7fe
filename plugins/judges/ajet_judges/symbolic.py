"""Compares expressions by math-verify, in separate processes and with a time limit."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

WORKER = Path(__file__).with_name("symbolic_worker.py")
PROCESSES = 4
"""Maximum processes at once."""
START = 60
"""Seconds that a process may take to start."""
PATIENCE = 12
"""Seconds by the clock for each second of processor time: on a busy machine, a short comparison takes long."""
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")
_E_NOTATION = re.compile(r"(?<![\w.])([0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,3})(?![\w.])")
_NAMED = re.compile(r"(?<![A-Za-z\\])(pi|sin|cos|tan|log|ln)(?![A-Za-z])")
_MATHEMATICAL = re.compile(r"[\\^_=+*/(){}\[\]0-9√π∞]")


class Symbolic:
    """A pool of processes. A comparison starts a process if none is idle; a comparison that takes too long ends its
    process. There are several, so that a slow comparison does not delay the others."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._idle: list[asyncio.subprocess.Process] = []
        self._slots = asyncio.Semaphore(PROCESSES)

    async def equal(
        self, gold: str, answer: str, *, exact: bool = False, tolerance: float = 0.0
    ) -> bool | None:
        """Whether two texts have the same value, up to ``tolerance``; None if time ran out. ``exact``: ``gold`` is a number, so the
        answer must be that number, not a decimal near it. Raises ValueError if ``gold`` is not an expression, RuntimeError if
        math-verify does not run."""
        asked = {"gold": _as_latex(gold), "answer": answer, "exact": exact, "tolerance": tolerance}
        line = json.dumps({**asked, "seconds": min(self._seconds, 1e8)}) + "\n"
        async with self._slots:
            process = self._idle.pop() if self._idle else await _started()
            try:
                answer_line = await asyncio.wait_for(
                    _request(process, line.encode()), PATIENCE * self._seconds
                )
            except BaseException as error:  # a late answer must not be read as the next comparison's
                await _end(process)
                ended = isinstance(error, RuntimeError) and process.returncode == -signal.SIGPROF
                if ended or isinstance(error, TimeoutError):
                    return None
                raise
            self._idle.append(process)
        reply = json.loads(answer_line)
        if not reply["gold"]:
            raise ValueError("is neither a number nor an expression")
        return bool(reply["equal"])

    async def close(self) -> None:
        """Stop all idle processes. A busy process stops when its comparison is cancelled or times out."""
        while self._idle:
            await _end(self._idle.pop())


async def _started() -> asyncio.subprocess.Process:
    """Start a process and wait until it is ready."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(WORKER), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:  # importing sympy takes a second, and many on a busy machine
        await asyncio.wait_for(process.stdout.readline(), START)
    except BaseException as error:
        await _end(process)
        if isinstance(error, TimeoutError):
            raise RuntimeError(f"the math-verify process did not start within {START} s") from None
        raise
    return process


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def _request(process: asyncio.subprocess.Process, line: bytes) -> bytes:
    """Send a line and return the line that answers it. Raises RuntimeError if the process has ended."""
    assert process.stdin is not None and process.stdout is not None
    answer = b""
    with suppress(ConnectionError):
        process.stdin.write(line)
        await process.stdin.drain()
        answer = await process.stdout.readline()
    if not answer:
        await process.wait()  # before anything asks for its exit code: asyncio would not know it
        raise RuntimeError("the math-verify process ended; is it installed? pip install math-verify")
    return answer


def _as_latex(text: str) -> str:
    """A reference answer in dollar signs: data sets contain bare formulas, which math-verify would read as text; in a formula,
    the e of 6.02e23 would be Euler's number, and pi a product."""
    text = _NAMED.sub(r"\\\1 ", _E_NOTATION.sub(r"\1 \\times 10^{\2}", text))
    if _DECIMAL_COMMA.fullmatch(text.strip()):
        return text  # in a formula, a comma separates a pair
    if "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text or not _MATHEMATICAL.search(text):
        return text
    return f"${text}$"
