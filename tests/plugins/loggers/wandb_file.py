"""Reads what wandb writes offline: a log in LevelDB's format whose records are protobuf messages of wandb."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(run_dir: Path, starts: int = 1) -> list[Any]:
    """The records that wandb has written in a run folder, in their order, when all ``starts`` of the run have ended: wandb's
    service writes its files shortly after the run has ended."""
    deadline = time.monotonic() + PATIENCE
    while True:
        files = sorted((run_dir / "wandb").glob("offline-run-*/*.wandb"))
        found = [record for file in files for record in _parsed(file)]
        if sum(record.HasField("exit") for record in found) == starts:
            return found
        assert time.monotonic() < deadline, f"{len(files)} files, {len(found)} records"
        time.sleep(0.05)


def _parsed(file: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    for data in messages(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        yield record


def messages(log: bytes) -> Iterator[bytes]:
    """The messages in a log."""
    at, parts = HEADER, []  # the file begins with a header of wandb
    while at + HEADER <= len(log):
        if BLOCK - at % BLOCK < HEADER:  # the rest of a block that is too short for a record
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", log[at : at + HEADER])
        assert kind in (FULL, FIRST, MIDDLE, LAST)
        parts.append(log[at + HEADER : at + HEADER + length])
        at += HEADER + length
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []
