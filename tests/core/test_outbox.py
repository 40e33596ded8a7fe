"""The thread that sends what a run hands it."""

from __future__ import annotations

import threading

from ajet.utils.outbox import Outbox


def failing() -> None:
    raise OSError("no route\nto host")


def test_records_are_sent_in_their_order_after_the_first_call_and_before_the_last() -> None:
    sent: list[str] = []
    said: list[str] = []
    outbox = Outbox("logger x", "there", said.append, first=lambda: sent.append("first"))
    for name in "abc":
        outbox.put(lambda name=name: sent.append(name))
    outbox.close(60, last=lambda: sent.append("last"))
    assert sent == ["first", "a", "b", "c", "last"] and not said


def test_the_first_failure_is_said_and_the_others_are_counted_at_the_end() -> None:
    said: list[str] = []
    outbox = Outbox("logger x", "there", said.append, hint="Is it running?", unit="episodes")
    for send in (failing, lambda: None, failing):
        outbox.put(send)
    outbox.close(60)
    assert said == [
        "logger x: sending to there failed (OSError: no route). Is it running? The run continues.",
        "logger x: 2 of 3 episodes were not sent to there",
    ]


def test_what_does_not_fit_is_left_out_and_the_caller_never_waits() -> None:
    blocked, sent, said = threading.Event(), list[int](), list[str]()
    outbox = Outbox("logger x", "there", said.append, first=lambda: blocked.wait(60), waiting=2)
    for number in range(5):
        outbox.put(lambda number=number: sent.append(number))
    assert not sent
    blocked.set()
    outbox.close(60)
    assert sent == [0, 1] and said == ["logger x: 3 of 5 records were not sent to there"]


def test_closing_waits_only_as_long_as_it_may() -> None:
    blocked, said = threading.Event(), list[str]()
    outbox = Outbox("logger x", "there", said.append, waiting=1)
    try:
        outbox.put(lambda: blocked.wait(60))
        outbox.close(0.01, last=lambda: said.append("last"))
        assert said == ["logger x: 1 of 1 records were not sent to there"]
    finally:
        blocked.set()
