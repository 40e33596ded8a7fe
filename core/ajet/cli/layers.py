"""What commands share around a job: its services, and lines beside what is printed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.job.config import Layers


@contextmanager
def services(layers: Layers, names: Iterable[str] | None) -> Iterator[None]:
    """A block in which the job's services and those of ``--with`` run; their states are reported on stderr."""
    from ajet.services.supervisor import with_services

    with with_services(layers, names or (), tell):
        yield


def tell(text: str) -> None:
    """Print a line for the user on stderr, apart from the command's output."""
    print(text, file=sys.stderr, flush=True)
