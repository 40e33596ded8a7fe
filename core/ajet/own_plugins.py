"""Which extra of the distribution `ajet` brings which plugin of ours, so that an error can name what to install. A test
compares this with the plugins themselves."""

from __future__ import annotations

from collections.abc import Mapping

EXTRAS: Mapping[str, Mapping[str, str]] = {
    "advice": {"command": "forecast plan", "name": "Forecast aforecast forecast"},
    "agentscope": {"logger": "agentscope_layout agentscope_studio"},
    "audit": {"command": "audit"},
    "environments": {"name": "environments", "reader": "library", "workflow": "chat library"},
    "harbor": {"judge": "harbor", "reader": "harbor", "workflow": "harbor"},
    "judges": {
        "command": "judge",
        "judge": "code combine contains environment exact listwise llm math math_llm openai_grader pairwise rubric",
    },
    "local": {
        "backbone": "local",
        "engine": "local",
        "recipe": "calculator gguf smollm2 smollm2-tools starter starter-vision",
    },
    "loggers": {"command": "fetch", "logger": "mlflow otel store swanlab tensorboard trackio wandb"},
    "migrate": {"command": "config.from-openai"},
    "online": {"algorithm": "kto reinforce", "command": "online", "reader": "store"},
    "prompts": {"backbone": "prompts", "command": "tune-prompt"},
    "readers": {"reader": "environment generated gymnasium huggingface jsonl random reasoning_gym traces"},
    "studio": {"command": "studio"},
    "tinker": {"backbone": "tinker", "engine": "tinker"},
    "trinity": {"backbone": "trinity"},
    "verl": {"backbone": "verl", "service": "ray"},
    "vllm": {"engine": "vllm"},
}
"""Extra -> kind -> names."""


def remedy(kind: str, name: str) -> str:
    """`` It comes with pip install 'ajet[readers]'.`` for a plugin of ours; else nothing."""
    for extra, kinds in EXTRAS.items():
        if name in kinds.get(kind, "").split():
            if extra == "loggers" and name != "tensorboard":  # each needs a package of its own, too
                return f" It comes with pip install 'ajet-plugin-loggers[{name}]'."
            return f" It comes with pip install 'ajet[{extra}]'."
    return ""
