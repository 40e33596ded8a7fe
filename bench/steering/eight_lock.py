"""The lock of `lock.py` with eight dials: one guess in 256 is right."""

from __future__ import annotations

import lock

lock.CODE = [*lock.CODE, "right", "left"]
lock.DIALS = len(lock.CODE)
Locks, run = lock.Locks, lock.run


class EightBurglar(lock.Burglar):
    """A burglar who knows one of eight dials from another, and turns them at random."""

    name = "eight_burglar"
