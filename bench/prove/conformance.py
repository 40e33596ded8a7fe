"""The contract of engines (`ajet.testing.conformance`), checked against the engine that is named, on the device."""

from __future__ import annotations

import asyncio
from typing import Any

from ajet.testing.conformance import ENGINE_CHECKS, Subject
from prove.engines import opened
from prove.part import Options, main


def run(options: Options) -> dict[str, Any]:
    """How many checks passed, and the first line of each failure. Raises RuntimeError if one failed."""
    return asyncio.run(_checked(options))


async def _checked(options: Options) -> dict[str, Any]:
    failures: dict[str, str] = {}
    async with opened(options.extra[0], options.small, options, "float32") as engine:
        for check in ENGINE_CHECKS:
            try:
                await check(Subject(engine, tolerance=1e-4 if options.reduced else 1e-3))
            except Exception as error:
                failures[check.__name__] = (str(error).strip().splitlines() or [repr(error)])[0]
                print(check.__name__, repr(error))
    if failures:
        raise RuntimeError("; ".join(f"{name}: {why}" for name, why in failures.items()))
    return {"checks_passed": len(ENGINE_CHECKS)}


if __name__ == "__main__":
    main(run, __doc__)
