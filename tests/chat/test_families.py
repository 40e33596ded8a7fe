"""Every family of models through the whole programme, and the table of tests/chat/families.md."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.chat import programme, table
from tests.chat.families import FAMILIES
from tests.chat.family import trl, trl_names
from tests.chat.formats import KIMI
from tests.tiers import fast

NAMES = list(FAMILIES)
SAMPLE = ("Qwen3", "Llama-3.1", "GLM-4.5 (TRL glm4moe)", "Kimi-K2 (moonshotai)", "Gemma-4-31B", "LFM2")
"""What `make test` runs: one family of each kind of call, and one whose template writes none."""


@pytest.fixture
def is_recording(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--record", default=False))


@pytest.mark.whole
@pytest.mark.parametrize("name", fast([NAMES.index(name) for name in SAMPLE], NAMES))
def test_a_family_is_as_the_page_says_and_loses_no_call(
    name: str, is_recording: bool, record_property: Callable[[str, object], None]
) -> None:
    result = programme.run(FAMILIES[name])
    row = table.row(result)
    record_property("family", name)
    record_property("row", row)
    assert not result.lost, result.why
    if not is_recording:
        assert row == table.committed().get(name), (
            "tests/chat/families.md says otherwise; make test-templates ARGS=--record"
        )


def test_nine_of_ten_rows_of_the_page_are_complete_and_none_loses_a_call() -> None:
    rows = table.committed()
    assert list(rows) == NAMES
    assert sum(map(table.is_complete, rows.values())) >= table.SHARE * len(rows), table.summary(rows.values())
    assert not [name for name, row in rows.items() if table.loses_calls(row)]
    assert table.page(rows) == table.PAGE.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_page_calls_only_published_templates_complete(name: str) -> None:
    row = table.committed()[name]
    assert FAMILIES[name].is_published or "| yes |" not in row


def test_every_template_of_trl_that_shows_tools_is_in_the_programme() -> None:
    used = {family.template for family in FAMILIES.values()}
    assert {name for name in trl_names() if "tools" in trl(name)} <= {u.removeprefix("TRL: ") for u in used}


def test_a_call_of_kimi_k2_is_a_call_and_not_text() -> None:
    family = FAMILIES["Kimi-K2 (moonshotai)"]
    sampled = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    assert sampled == KIMI.text([("ping", {})])
    with programme.stage(family, programme.make_chat(family)) as stage, stage.agent("kimi") as agent:
        reply = agent.ask([programme.QUESTION], sampled + family.end)
    ((_, name, arguments),) = reply.calls
    assert (name, json.loads(arguments)) == ("ping", {})
    assert (reply.content, reply.reason) == ("", "tool_calls")
