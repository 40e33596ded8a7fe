"""Expressions compared by math-verify in processes of their own, under a deadline."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import suppress
from pathlib import Path

WORKER = Path(__file__).with_name("symbolic_worker.py")
PROCESSES = 4
"""How many may run at once."""
START = 60
"""Seconds that a process may take until it is ready."""
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")
_MATHEMATICAL = re.compile(r"[\\^_=+*/(){}\[\]0-9√π∞]")


class Symbolic:
    """The processes: each is started by a question that finds none idle, and ended by one that takes too long. There are
    several, so that a question for which math-verify needs all its time does not hold up the others."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._idle: list[asyncio.subprocess.Process] = []
        self._slots = asyncio.Semaphore(PROCESSES)

    async def equal(self, gold: str, answer: str) -> bool | None:
        """Whether two texts state the same; None if that was not found out in time. Raises ValueError if
        ``gold`` is not an expression, RuntimeError if math-verify does not run."""
        line = json.dumps({"gold": _as_latex(gold), "answer": answer}) + "\n"
        async with self._slots:
            process = self._idle.pop() if self._idle else await _started()
            try:
                said = await asyncio.wait_for(_asked(process, line.encode()), self._seconds)
            except BaseException as error:  # what is on its way must not be the next question's answer
                await _end(process)
                if isinstance(error, TimeoutError):
                    return None
                raise
            self._idle.append(process)
        found = json.loads(said)
        if not found["gold"]:
            raise ValueError("is neither a number nor an expression")
        return bool(found["equal"])

    async def close(self) -> None:
        """Stop all idle processes. A process that is still answering is stopped when its question is cancelled or times
        out."""
        while self._idle:
            await _end(self._idle.pop())


async def _started() -> asyncio.subprocess.Process:
    """A process that is ready for questions."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(WORKER), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:  # sympy alone takes a second to import, on a busy machine many
        await asyncio.wait_for(process.stdout.readline(), START)
    except BaseException as error:
        await _end(process)
        if isinstance(error, TimeoutError):
            raise RuntimeError(f"the process of math-verify did not start within {START} s") from None
        raise
    return process


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def _asked(process: asyncio.subprocess.Process, line: bytes) -> bytes:
    """The line that answers a line. Raises RuntimeError if the process has ended."""
    assert process.stdin is not None and process.stdout is not None
    said = b""
    with suppress(ConnectionError):
        process.stdin.write(line)
        await process.stdin.drain()
        said = await process.stdout.readline()
    if not said:
        raise RuntimeError("the process of math-verify ended; is it installed? pip install math-verify")
    return said


def _as_latex(text: str) -> str:
    """A reference answer marked as the formula that it is, as data sets give it bare."""
    if _DECIMAL_COMMA.fullmatch(text.strip()):
        return text  # as a formula it would be a pair
    if "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text or not _MATHEMATICAL.search(text):
        return text
    return f"${text}$"
