"""The lock of `lock.py` with ten dials, of which one guess in 1024 is right."""

from __future__ import annotations

import lock

lock.CODE = ["left", "right", "right", "left", "right", "left", "left", "right", "left", "right"]
Locks, run = lock.Locks, lock.run


class LongBurglar(lock.Burglar):
    """A burglar who turns ten dials at random."""

    name = "long_burglar"
