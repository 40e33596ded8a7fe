"""`python` graders: their source runs in the sandbox of the judge `code`, with what they print kept apart from their result."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ajet import ContractBroken
from ajet_judges.openai.graders import Python
from ajet_judges.sandbox import Isolation, Limits, run_python

RUNNER = Path(__file__).with_name("python_runner.py")


class GraderFailed(Exception):
    """The grader gave no finite number."""


async def python_score(
    grader: Python, values: Mapping[str, Any], limits: Limits, isolation: Isolation
) -> float:
    """What ``grade(sample, item)`` returns. Raises GraderFailed, and ContractBroken if a package that it imports is missing."""
    token = secrets.token_hex(16)
    sources = {"main.py": RUNNER.read_text("utf-8"), "grader.py": grader.source}
    ran = await run_python(
        sources,
        input=json.dumps({"token": token, **values}),
        limits=limits,
        isolation=isolation,
        packages=True,
    )
    for line in ran.stdout.split("\n"):
        if line.startswith(token):
            with suppress(ValueError, RecursionError):
                kind, value = json.loads(line[len(token) :])
                if kind == "missing":
                    raise ContractBroken(
                        f"the python grader {grader.name!r}: {value}. Install it beside AgentJet."
                    )
                if kind == "score" and math.isfinite(value):
                    return float(value)
                raise GraderFailed(value if kind == "failed" else f"grade returned {value}")
    raise GraderFailed(ran.describe())
