"""AgentScope's chat model for an OpenAI-compatible address, in 1.x and 2.x."""

from __future__ import annotations

import functools
import importlib.util
import ssl
from collections.abc import Mapping
from typing import Any


def chat_model(base_url: str, api_key: str, model: str, headers: Mapping[str, str], **options: Any) -> Any:
    """An ``agentscope.model.OpenAIChatModel``; ``options`` are its own in the installed AgentScope."""
    import openai
    from agentscope.model import OpenAIChatModel

    sent = {
        "default_headers": dict(headers),
        "http_client": openai.DefaultAsyncHttpxClient(verify=_tls()),
    }
    if importlib.util.find_spec("agentscope.credential") is None:  # 1.x
        address = {"base_url": base_url, **sent}
        return OpenAIChatModel(api_key=api_key, client_kwargs=address, **{"model_name": model, **options})
    from agentscope.credential import OpenAICredential

    credential = OpenAICredential(api_key=api_key, base_url=base_url)
    return OpenAIChatModel(credential=credential, client_kwargs=sent, **{"model": model, **options})


@functools.cache
def _tls() -> ssl.SSLContext:
    """One context for all models: reading the certificates takes longer than an episode's other work."""
    return ssl.create_default_context()
