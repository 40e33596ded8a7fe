"""Prompt tuning: better texts for an agent, found with the tasks and the judge that would train its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet import hookimpl

if TYPE_CHECKING:
    from ajet import Plugin


@hookimpl
def ajet_plugins() -> list[type[Plugin]]:
    from ajet_prompts.backbone import PromptSearch

    return [PromptSearch]
