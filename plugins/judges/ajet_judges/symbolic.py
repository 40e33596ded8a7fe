"""Expressions compared by math-verify in a process of its own, under a deadline."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import suppress
from pathlib import Path

WORKER = Path(__file__).with_name("symbolic_worker.py")
LONGEST = 20_000
"""Characters of a response that are looked at, from its end."""
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")
_MATHEMATICAL = re.compile(r"[\\^_=+*/(){}\[\]0-9√π∞]")


class Symbolic:
    """The process, started by the first question and again after each that took too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: asyncio.subprocess.Process | None = None
        self._one = asyncio.Lock()

    async def equal(self, gold: str, answer: str) -> bool | None:
        """Whether two texts state the same; None if that was not found out in time. Raises ValueError if
        ``gold`` is no expression, RuntimeError if math-verify does not run."""
        line = json.dumps({"gold": _as_latex(gold), "answer": answer[-LONGEST:]}) + "\n"
        async with self._one:
            try:
                process = self._process or await self._start()
                said = await asyncio.wait_for(_asked(process, line.encode()), self._seconds)
            except BaseException as error:  # what is on its way must not be the next question's answer
                await self.close()
                if isinstance(error, TimeoutError):
                    return None
                raise
        found = json.loads(said)
        if not found["gold"]:
            raise ValueError("is no number and no expression")
        return bool(found["equal"])

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", str(WORKER), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        try:  # sympy alone takes a second to import, on a busy machine many
            await asyncio.wait_for(self._process.stdout.readline(), 60)
        except TimeoutError:
            raise RuntimeError("the process of math-verify did not start within 60 s") from None
        return self._process


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
