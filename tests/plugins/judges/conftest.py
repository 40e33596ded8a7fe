"""What the tests of judges share."""

from __future__ import annotations

import pytest

from tests import ports


@pytest.fixture
def free_port() -> int:
    """A port where nobody listens."""
    return ports.free_port()
