"""Shared by the built-in wires: what requests and replies of several APIs have in common."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ajet.interfaces.wire import Refused, brief, flag, in_words, invalid, mapping

MOST_VARIABLES = 20
"""Maximum variables of the chat template that a request may set."""
_LONGEST_VALUE = 1_000
"""Maximum characters of the text of such a variable."""
_LONGEST_NAME = 60
"""Maximum characters of its name."""


VARIABLES = {"chat_template_kwargs", "enable_thinking"}
"""Fields for variables of the chat template: vLLM's for any of them, and one of Qwen and GLM."""


def template_variables(data: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the chat template that a request sets: a few plain values."""
    variables = {k: v for k, v in mapping(data, "chat_template_kwargs").items() if v is not None}
    if "enable_thinking" in data:
        thinking = flag(data, "enable_thinking")
        if variables.setdefault("enable_thinking", thinking) != thinking:
            raise invalid("enable_thinking and chat_template_kwargs.enable_thinking differ")
    for name, value in variables.items():
        is_plain = isinstance(value, str | int | float) and len(str(value)) <= _LONGEST_VALUE
        if not (is_plain and name.isidentifier() and len(name) <= _LONGEST_NAME):
            raise invalid(
                f"chat_template_kwargs: {brief(name)} is not a name with a number, a flag or a short text"
            )
    if len(variables) > MOST_VARIABLES:
        raise invalid(
            f"chat_template_kwargs has {len(variables)} variables; at most {MOST_VARIABLES} are allowed"
        )
    return variables


TURN = {"continue_final_message", "add_generation_prompt"}
"""vLLM's fields for where the answer begins."""


def continues(data: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
    """Whether the answer continues the ``last`` message: by vLLM's fields, or by DeepSeek's and Mistral's ``prefix``."""
    wanted = flag(data, "continue_final_message") or flag(last, "prefix")
    if flag(data, "add_generation_prompt", not wanted) == wanted:
        raise invalid(
            "the answer either continues the last message (continue_final_message, or prefix in that message) or is a new turn "
            "(add_generation_prompt); ask for one of both"
        )
    return wanted


def json_text(value: Any, name: str) -> str:
    """A client's value as JSON text."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise invalid(f"{name} is nested too deeply") from None


def with_images(parts: Sequence[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    """Parts of the chat completions form as content: text if there is nothing else."""
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return list(parts)


def file_part(kind: Any) -> dict[str, Any]:
    """A file that no model here reads, in the chat completions form without its bytes. ``kind`` says what it is."""
    return {"type": "file", "file": {"type": brief(kind)}}


def described(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools (chat completions form) as text, for a message from which on they may be called: JSON, one a line."""
    return "\n".join(json_text(tool["function"], "tools") for tool in tools)


def image_part(url: str) -> dict[str, Any]:
    """An image in the chat completions form."""
    return {"type": "image_url", "image_url": {"url": url}}


_SEAL = "ajet:"


def sealed(said: str) -> str:
    """Text that a client keeps for us and does not show, as hosted models let clients keep their encrypted thoughts."""
    return _SEAL + base64.b64encode(said.encode(errors="surrogatepass")).decode()


def unsealed(value: Any) -> str | None:
    """The text that was `sealed`; None for what another API has encrypted."""
    if not isinstance(value, str) or not value.startswith(_SEAL):
        return None
    try:
        return base64.b64decode(value[len(_SEAL) :], validate=True).decode(errors="surrogatepass")
    except ValueError:
        return None


_TOO_LONG = "This model's maximum context length is {most} tokens. However, your messages resulted in {tokens} tokens."


def openai_error(error: Refused, too_long: str = _TOO_LONG) -> dict[str, Any]:
    """OpenAI's error object. ``too_long`` are an API's words for a prompt of too many ``tokens`` (of ``most``)."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    said = f"ajet: {in_words(error, too_long)}"
    return {"error": {"message": said, "type": kind, "code": error.code, "param": None}}
