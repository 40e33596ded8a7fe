"""How many tokens merging saves, beside one row for each call, on the logs of bench/call_logs.py."""

from __future__ import annotations

import pytest

from ajet.tracker.forest import forest
from ajet.tracker.timelines import timelines
from tests.pages import tool

logs = tool("call_logs", "bench")
TABLE = "\n".join(tool("benchmarks_page").lines("merging"))


@pytest.mark.parametrize(
    ("scenario", "by_timelines", "by_trees"),
    [
        ("tool30", 17.0, 17.0),
        ("drift", 5.4, 16.9),
        ("werewolf", 4.7, 5.3),
        ("retry", 2.4, 12.7),
        ("fanout", 2.9, 22.7),
    ],
)
def test_merging_leaves_a_fraction_of_the_tokens(scenario: str, by_timelines: float, by_trees: float) -> None:
    log = logs.make_log(logs.SCENARIOS[scenario])
    record = logs.recorded(log, logs.generations(log))
    single = sum(len(call.prompt_ids) + len(call.completion_ids) for call in log)
    merged = sum(len(line.token_ids) for line in timelines(record.trained_calls))
    shared = len(forest(record.trained_calls).token_ids)
    assert (single / merged, single / shared) == pytest.approx((by_timelines, by_trees), abs=0.05)
    assert f"| {single:,} | {merged:,} | {by_timelines} | {shared:,} | {by_trees} |" in TABLE
