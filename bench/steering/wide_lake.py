"""The frozen lake of `examples/frozenlake` on maps of six by six fields, whose goal is ten steps away."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "frozenlake"))
import lake

lake.SIZE, lake.MAX_STEPS = 6, 16
# The agent and the recipe read both when they are imported.
from agent import run as run  # noqa: E402
from lake import Lakes as Lakes  # noqa: E402
from recipe import Walker  # noqa: E402


class WideWalker(Walker):
    """A walker that heads for the goal of a larger lake and ignores holes."""

    name = "wide_walker"
    context_length = 1024
