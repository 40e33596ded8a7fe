"""`TunerModelConfig.tool_call_parser` and `reasoning_parser`. AgentJet reads answers as the model's own chat template writes
them, so these fields choose nothing; if they are set, they are checked."""

from __future__ import annotations

from collections.abc import Mapping

from ajet.chat.answers import Parsed
from ajet.job.models import check_model
from ajet.plugins import load_plugins, validated
from ajet.runs.runtime import make_chat, own_engine
from ajet.types import ConfigError
from ajet.utils.suggest import nearest
from ajet_agentscope.tuner.config import TunerModelConfig

_AS_JSON = '<tool_call>\n{"name": "probe", "arguments": {"n": 1}}\n</tool_call>'
_AS_TAGS = "<tool_call>\n<function=probe>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"
CALLS: Mapping[str, str] = {
    "hermes": _AS_JSON,
    "qwen3_coder": _AS_TAGS,
    "qwen3_xml": _AS_TAGS,
    "llama3_json": '{"name": "probe", "parameters": {"n": 1}}',
}
"""A tool call as each parser of vLLM expects it."""
_TOOL = {"type": "function", "function": {"name": "probe"}}
_THOUGHT = "<think>\nwhy\n</think>\n\nyes"
THOUGHTS: Mapping[str, str] = {"deepseek_r1": _THOUGHT, "qwen3": _THOUGHT}
"""An answer with reasoning as each reasoning parser of vLLM expects it."""


def check_parsers(config: TunerModelConfig, seed: int = 0) -> None:
    """Raise ConfigError if a field is set to a format that the model does not write."""
    fields = {"tool_call_parser": CALLS, "reasoning_parser": THOUGHTS}
    asked = {name: known for name, known in fields.items() if name in config.model_fields_set}
    if not asked:
        return
    for field, known in asked.items():
        name = getattr(config, field)
        if name not in known:
            raise ConfigError(
                f"TunerModelConfig.{field}: {name!r} is not known{nearest(name, known)}. Known: {', '.join(known)}. Or remove it: "
                "AgentJet reads answers as the model's chat template writes them."
            )
    check_model(config.model_path, "TunerModelConfig.model_path")
    engine = own_engine(load_plugins(), "")
    tokenizer, model_type = validated(engine, {}, "TunerModelConfig").tokenizer(config.model_path, seed)
    chat = make_chat(tokenizer, model_type)
    for field, known in asked.items():
        name = getattr(config, field)
        read = chat.parse(tokenizer.encode(known[name], add_special_tokens=False), [], [_TOOL])
        if not _reads(field, read):
            raise ConfigError(
                f"TunerModelConfig.{field}: the chat template of {config.model_path} does not write what {name!r} reads. Remove the "
                "field: AgentJet reads answers as the template writes them."
            )


def _reads(field: str, read: Parsed) -> bool:
    if field == "reasoning_parser":
        return ((read.reasoning or "").strip(), read.content.strip()) == ("why", "yes")
    return [name for name, _ in read.tool_calls] == ["probe"]
