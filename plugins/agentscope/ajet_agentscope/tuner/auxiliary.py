"""Auxiliary models: served on this machine while the run lasts, answered but never trained."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import ajet
from ajet import ConfigError
from ajet_agentscope.tuner.config import TunerModelConfig, ours
from ajet_agentscope.tuner.keys import one_engine, refuse, template_reads


@contextmanager
def served(models: Mapping[str, Any]) -> Iterator[dict[str, dict[str, Any]]]:
    """A block in which the models answer: name -> the chat model of a target, as in ``targets.NAME.frozen_model``. A model is a
    TunerModelConfig, or such a mapping, for one that is served elsewhere. Raises AjetError."""
    with ExitStack() as stack:
        yield {name: _served(name, model, stack) for name, model in models.items()}


def _served(name: str, model: Any, stack: ExitStack) -> dict[str, Any]:
    if not re.fullmatch(r"[\w-]+", name) or name == "policy":
        raise ConfigError(
            f"auxiliary_models: {name!r}: use letters, digits, _ and - in the name; 'policy' is the trained model."
        )
    if isinstance(model, Mapping):
        return dict(model)
    config = ours(TunerModelConfig, model)
    refuse(config, {"tinker_config": "an auxiliary model is not trained. Remove it."})
    template_reads(config)
    one_engine(config, "an auxiliary model is served with one engine on one device")
    template = {} if config.enable_thinking is None else {"enable_thinking": config.enable_thinking}
    server = stack.enter_context(
        ajet.serve(
            config.model_path,
            temperature=config.temperature,
            top_p=config.top_p,
            max_tokens=min(config.max_tokens, config.max_model_len),
            context_length=config.max_model_len,
            chat_template=template,
        )
    )
    # The job names the variable, because a copy of the job is kept with the run.
    variable = f"AJET_AUXILIARY_{re.sub(r'[^A-Z0-9]', '_', name.upper())}_KEY"
    os.environ[variable] = server.api_key
    stack.callback(os.environ.pop, variable, None)
    return {"type": "openai", "base_url": server.base_url, "model": server.model, "api_key_env": variable}
