"""How one of Harbor's agents reaches the model: what its name, its key and its address are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.interfaces.workflow import EpisodeEndpoint
from ajet_harbor.versions import harbor

WITHOUT_MODEL = frozenset({"oracle", "nop"})
"""Agents that call no model."""
_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}
"""The providers whose APIs the gateway speaks, and the variable from which Harbor takes the key of each."""
_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Many agents use LiteLLM, which otherwise fetches prices whenever it starts."""
_OF_AGENT = {
    "claude-code": {
        # Its system prompt would otherwise begin with a line that differs in each call, so that no call continued another.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    }
}


def default_model(agent: str) -> str:
    """The name of the model for an agent that the job gives none. Raises ValueError for an agent that Harbor does not have."""
    spec = _agent_class(agent).MODEL_CONNECTION
    own = spec.default_provider if spec else None
    return f"{own if own in _KEYS else 'openai'}/policy"


def check(agent: str, model: str) -> None:
    """Raise ValueError for an agent that Harbor does not have, and for a model of a provider whose API the gateway does not speak."""
    _agent_class(agent)
    if model.partition("/")[0] not in _KEYS:
        raise ValueError(f"model {model!r} must begin with one of {', '.join(f'{name}/' for name in _KEYS)}")


def agent_settings(agent: str, model: str, endpoint: EpisodeEndpoint) -> dict[str, Any]:
    """The fields of Harbor's agent configuration that connect an agent with an episode's model."""
    if agent in WITHOUT_MODEL:
        return {}
    cls = _agent_class(agent)
    spec, provider = cls.MODEL_CONNECTION, model.partition("/")[0]
    shared = {**_OFFLINE, **_OF_AGENT.get(agent, {})}
    if spec is None or not cls.capabilities.base_url:  # one that reads variables, perhaps
        return {"model_name": model, "env": {**endpoint.environment(), **shared}}
    # Clients differ in whether they add /v1: as the address does that Harbor gives this one otherwise.
    usual = spec.default_base_url(provider) or ""
    url = endpoint.base_url if usual.endswith("/v1") else endpoint.base_url.removesuffix("/v1")
    return {"model_name": model, "base_url": url, "env": {_KEYS[provider]: endpoint.api_key, **shared}}


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings; where both have a value, ``theirs``."""
    both = {
        key: merged(ours[key], value)
        for key, value in theirs.items()
        if isinstance(value, Mapping) and isinstance(ours.get(key), Mapping)
    }
    return {**ours, **theirs, **both}


def _agent_class(agent: str) -> Any:
    """Raises ValueError."""
    config = harbor().TrialAgentConfig(name=agent)
    from harbor.agents.factory import AgentFactory

    try:
        return AgentFactory.get_agent_class_from_config(config)
    except ValueError:
        names = ", ".join(AgentFactory.registered_names())
        raise ValueError(
            f"agent {agent!r} is none of Harbor's, nor module:Class of your own; Harbor has {names}"
        ) from None
