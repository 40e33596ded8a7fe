"""Ids are 24 hex digits, and no two are the same: in no thread, and in no forked process."""

from __future__ import annotations

import os
import re
import threading

from ajet.capture.respond import new_id


def test_no_two_ids_of_several_threads_are_the_same() -> None:
    found: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda own=own: own.extend(new_id() for _ in range(2000))) for own in found
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [id for own in found for id in own]
    assert len(set(ids)) == 8000
    assert all(re.fullmatch("[0-9a-f]{24}", id) for id in ids)


def test_a_forked_process_draws_its_own() -> None:
    new_id()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 24).decode() not in [new_id() for _ in range(256)]
