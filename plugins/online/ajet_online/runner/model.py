"""The model that an agent calls."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Model:
    """An OpenAI-compatible endpoint: in production the service's own, in a shadow run the explorer."""

    base_url: str
    """With ``/v1`` if the endpoint has it, as OpenAI clients expect it."""
    api_key: str = field(repr=False)
    """In a shadow run it also names the run: the explorer stores the run with each reply."""
    name: str
