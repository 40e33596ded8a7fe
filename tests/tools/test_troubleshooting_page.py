"""docs/troubleshooting.md, and the site's page of error messages: what they quote and name is in the code."""

from __future__ import annotations

import re

import pytest

from ajet.cli.config import plugin_keys
from ajet.job.config import all_keys
from tests.pages import ROOT, page, tool

PAGE = page("docs/troubleshooting.md")
errors = tool("errors")
SOURCE = re.sub(
    r'"\n\s*f?"',
    "",
    "".join(p.read_text(encoding="utf-8") for p in ROOT.glob("core/ajet/**/*.py")),
)


def test_every_key_that_it_names_is_one_of_the_jobs() -> None:
    keys = {key.key for key in [*all_keys(), *plugin_keys(None)]}
    named = set(re.findall(r"`((?:task|rollout|train|eval|run|backbone)\.[a-z_.]+)(?:: [^`]*)?`", PAGE))
    assert len(named) > 8
    assert named <= keys


@pytest.mark.parametrize(
    "message",
    [
        "an LLM call outside any episode was refused (strict mode)",
        "the trainer's logprobs of sampled tokens differ from the engine's",
        "This is a bug in AgentJet",
        "connections were not captured",
        "zero-adv groups",
        "the reward has collapsed",
        "nothing_captured",
    ],
)
def test_the_messages_that_it_quotes_are_in_the_code(message: str) -> None:
    assert message in PAGE and message in SOURCE


@pytest.mark.whole
def test_the_page_of_errors_has_the_messages_of_the_core_and_of_plugins() -> None:
    found = {(m.folder, m.text) for m in errors.messages(ROOT)}
    assert ("job", "…: unknown key…. `ajet config explain` lists all keys.") in found
    assert any(folder == "local" and "--target" in text for folder, text in found)
    assert len(found) > 400


def test_an_anchor_is_made_of_the_words_of_a_message() -> None:
    assert errors.Message("backbone.…: unknown key….", "job").anchor == "backbone-unknown-key"
