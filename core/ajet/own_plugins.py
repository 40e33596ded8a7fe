"""Which extra of the distribution `ajet` brings which plugin of ours, so that an error can name what to install. A test
compares this with the plugins themselves."""

from __future__ import annotations

from collections.abc import Mapping

EXTRAS: Mapping[str, Mapping[str, str]] = {
    "advice": {
        "command": "forecast model plan",
        "name": "Forecast Selection aforecast aselect_model forecast select_model",
    },
    "agentscope": {"logger": "agentscope_layout agentscope_studio"},
    "audit": {"command": "audit"},
    "commands": {"workflow": "command"},
    "environments": {"name": "environments", "reader": "library", "workflow": "chat library"},
    "harbor": {"judge": "harbor", "reader": "harbor", "workflow": "harbor"},
    "judges": {
        "command": "judge",
        "judge": "code combine contains environment exact listwise llm math math_llm openai_grader pairwise rubric",
    },
    "local": {
        "backbone": "local",
        "command": "export",
        "engine": "local",
        "recipe": "calculator gguf smollm2 smollm2-tools starter starter-vision",
    },
    "loggers": {"command": "fetch", "logger": "atif mlflow otel store swanlab tensorboard trackio wandb"},
    "migrate": {
        "command": "config.from-earlier config.from-openai config.from-trinity",
        "module": "backbone context_tracker copilot data_generator launcher schema task_judge task_reader task_rollout task_runner "
        "tuner tuner_lib workflow utils.cleaner utils.compute_madness utils.config_utils utils.core_env_vars utils.dynamic_import "
        "utils.env_service_client utils.launch_utils utils.pty utils.robust_dashscope utils.sington utils.smart_daemon "
        "utils.testing_utils utils.thread_executors utils.tokenizer utils.vsdb",
        "name": "AgentJetJob AjetTuner BaseJudge Workflow WorkflowTask bp",
        "option": "--conf --backbone --exp-dir --debug --db --kill --prefix --with-appworld --with-deepfinance --with-webshop "
        "--with-bfcl --with-crafters --with-ray --with-ray-cluster --with-logview --reboot --skip-check-avail-gpu --autokill",
        "section": "ajet astune astuner buffer cluster explorer synchronizer",
        "service": "appworld bfcl crafters deepfinance logview webshop",
    },
    "online": {"algorithm": "kto reinforce", "command": "online", "reader": "store"},
    "projects": {"command": "new plugin skill"},
    "prompts": {
        "backbone": "prompts",
        "command": "tune-prompt",
        "name": "TunedPrompts atune_prompt tune_prompt",
    },
    "readers": {
        "command": "data",
        "name": "atif",
        "reader": "environment generated gymnasium huggingface jsonl random reasoning_gym traces",
    },
    "rejudge": {"command": "bisect rejudge", "name": "Bisected Rejudged abisect arejudge bisect rejudge"},
    "studio": {"command": "studio"},
    "tinker": {"backbone": "tinker", "engine": "tinker"},
    "trinity": {"backbone": "trinity"},
    "verl": {"backbone": "verl", "service": "ray"},
    "vllm": {"engine": "vllm"},
}
"""Extra -> kind -> names. A ``module`` is below `ajet`, an ``option`` the first word after ``ajet``, and a ``section`` one of
files that other programs read."""


def remedy(kind: str, name: str) -> str:
    """`` It comes with pip install 'ajet[readers]'.`` for a plugin of ours; else nothing."""
    extra = extra_of(kind, name)
    if extra == "loggers" and name not in ("tensorboard", "atif"):  # each needs a package of its own, too
        return f" It comes with pip install 'ajet-plugin-loggers[{name}]'."
    return f" It comes with pip install 'ajet[{extra}]'." if extra else ""


def extra_of(kind: str, name: str) -> str | None:
    """The extra that brings a plugin of ours; None for other names."""
    return next((extra for extra, kinds in EXTRAS.items() if name in kinds.get(kind, "").split()), None)
