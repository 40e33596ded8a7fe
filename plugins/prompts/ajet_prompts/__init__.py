"""Prompt tuning: better texts for an agent, found with the tasks and the judge that would train its model."""

from __future__ import annotations

from ajet import Plugin, hookimpl
from ajet_prompts.backbone import PromptSearch

__all__ = ["PromptSearch"]


@hookimpl
def ajet_plugins() -> list[type[Plugin]]:
    return [PromptSearch]
