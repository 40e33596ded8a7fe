"""TLS that trusts one certificate, as no test leaves this machine.

Each new `httpx.Client` reads every certificate of the system, which takes longer than most tests.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

ONE = str(Path(__file__).with_name("ca.pem"))
_load = ssl.SSLContext.load_verify_locations


def trust_one() -> None:
    """In this process, from now on."""

    def load_one(context: ssl.SSLContext, *files: Any, **more: Any) -> None:
        _load(context, ONE)

    ssl.SSLContext.load_verify_locations = load_one  # type: ignore[method-assign,assignment]
    ssl.SSLContext.load_default_certs = load_one  # type: ignore[method-assign,assignment]
