"""Shared by the wires: reading a request's fields, naming what is not supported, events."""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ajet.capture.wires import Refused, TooLong

MOST_CONTAINERS = 100_000
"""Maximum objects and lists of a body: its opening brackets are counted, including those in texts."""
MOST_VALUES = 1_000_000
"""Maximum values of a body: its commas are counted likewise."""
MOST_MEMBERS = 100_000
"""Maximum keys of all objects of a body, which take much longer to read than numbers of a list: texts before a colon are counted."""
_MEMBER = re.compile(rb'"\s*:')
MOST_STOPS = 64
"""Maximum stop texts: each is searched in every piece of an answer."""
MOST_VARIABLES = 20
"""Maximum variables of the chat template that a request may set."""
_LONGEST_VALUE = 1_000
"""Maximum characters of the text of such a variable."""
_LONGEST = 60
"""Maximum characters of a client's value in an error, which is one line."""
_MOST_NAMED = 10
"""Maximum faults of a request that an error names."""
_OFF = {
    *("background", "bad_words", "continuous_usage_stats", "defer_loading", "documents", "echo", "functions"),
    *("frequency_penalty", "ignore_eos", "include_stop_str_in_output", "input_examples", "logit_bias"),
    *("logprobs", "mcp_servers", "min_p", "min_tokens", "presence_penalty", "return_token_ids"),
    *("return_tokens_as_token_ids", "stop_token_ids", "suffix", "top_k", "top_logprobs", "use_beam_search"),
}
"""Fields that ask for nothing where they are false, 0 or empty, because that is their default."""


class Faults:
    """Collects what a request asks for and is not supported, so that one error names all of it."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._hosted: dict[str, Any] = {}
        """Tools that the API's own host would run: their types, by their places."""
        self._left_out: dict[str, None] = {}

    @property
    def left_out(self) -> tuple[str, ...]:
        """See `ChatRequest.left_out`."""
        return tuple(self._left_out)

    def leave_out(self, what: str) -> None:
        """Note something that the prompt does without."""
        self._left_out[what] = None

    def hosted(self, where: str, kind: str) -> None:
        """Leave out a tool that the API's own host would run: a model may always do without a tool."""
        self._hosted[where] = kind
        self.leave_out(kind)

    def forced(self, name: str | None, tools: Sequence[Mapping[str, Any]]) -> None:
        """Refuse the tools that were left out if only they could be called: ``name`` must be, any tool if it is empty."""
        names = [tool["function"]["name"] for tool in tools]
        if name is not None and (name not in names if name else not names):
            for where, kind in self._hosted.items():
                self.parameter(where, kind)

    def parameter(self, name: str, value: Any = ...) -> None:
        """Add a parameter, or one value of it."""
        self._found.setdefault(name if value is ... else f"{name}={brief(value)}", "unsupported_parameter")

    def parameters(self, data: Mapping[str, Any], known: Collection[str], where: str = "") -> None:
        """Add all unknown parameters that ask for something. Who sends ``enable_thinking: false`` does not get it."""
        for name in sorted(data.keys() - known):
            if data[name] or (data[name] is not None and name not in _OFF):
                is_plain = len(name) <= _LONGEST and name.isidentifier()
                self.parameter(where + (name if is_plain else brief(name)))

    def content(self, where: str, kind: Any) -> None:
        """Add a part of a message that is not text."""
        self._found.setdefault(f"{where}={brief(kind)}", "unsupported_content")

    def refuse(self, supported: str) -> None:
        """Raises Refused if there is any; ``supported`` tells the user what this wire can do."""
        if self._found:
            codes = set(self._found.values())
            code = codes.pop() if len(codes) == 1 else "unsupported_parameter"
            names = ", ".join(itertools.islice(self._found, _MOST_NAMED))
            if (more := len(self._found) - _MOST_NAMED) > 0:
                names += f", … and {more:,} more"
            raise Refused(f"cannot honour {names} of this request; remove it ({supported})", code=code)


def invalid(reason: str) -> Refused:
    """A request that breaks the rules of its API."""
    return Refused(reason, code="invalid_request")


def brief(value: Any) -> str:
    """A client's value for an error: JSON, ASCII, one short line."""
    text = ""
    try:
        for part in json.JSONEncoder().iterencode(value):
            text += part
            if len(text) > _LONGEST:
                return f"{text[:_LONGEST]}…"
    except RecursionError:
        return "…"
    return text


def read_object(body: bytes) -> dict[str, Any]:
    """A request's JSON object without its null fields. Raises Refused, also for a body that would take long to
    read."""
    for what, most, marks in (("objects and lists", MOST_CONTAINERS, b"{["), ("values", MOST_VALUES, b",")):
        if len(body) > most and (found := sum(body.count(mark) for mark in marks)) > most:
            raise Refused(
                f"the request's body has {found:,} {what}; at most {most:,} are read",
                code="request_too_large",
                status=413,
            )
    if body.count(b":") > MOST_MEMBERS and any(itertools.islice(_MEMBER.finditer(body), MOST_MEMBERS, None)):
        raise Refused(
            f"the request's objects have more than {MOST_MEMBERS:,} keys; no more are read",
            code="request_too_large",
            status=413,
        )
    try:
        data = json.loads(body.decode())  # skips guessing the encoding
    except (ValueError, RecursionError) as error:
        raise Refused(f"the request body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid("the request body must be a JSON object")
    return {k: v for k, v in data.items() if v is not None}


def number(
    data: Mapping[str, Any], name: str, kind: type, low: float | None = None, high: float | None = None
) -> Any:
    """A number of ``kind`` in its bounds (whole ones fit in 64 bits), or None."""
    value = data.get(name)
    if value is None:
        return None
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    ok = ok and (math.isfinite(value) if kind is float else value == int(value))
    if not ok or (low is not None and value < low) or (high is not None and value > high):
        raise invalid(f"{name} is {brief(value)}; expected {kind.__name__} in [{low}, {high}]")
    return kind(value)


def flag(data: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """True or false."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid(f"{name} is {brief(value)}; expected true or false")
    return value


def text(data: Mapping[str, Any], name: str, where: str = "") -> str:
    """A required text."""
    value = data.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}{name} must be text, not {brief(value)}")
    return value


def mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object, empty if it is missing."""
    value = data.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid(f"{name} must be an object, not {brief(value)}")
    return value or {}


def objects(value: Any, name: str) -> list[Mapping[str, Any]]:
    """A list of objects, as it is."""
    if not isinstance(value, list) or [v for v in value if not isinstance(v, dict)]:
        raise invalid(f"{name} must be a list of objects")
    return value


def stops(value: Any, name: str = "stop") -> tuple[str, ...]:
    """The stop texts of a request: one, several or none."""
    found = [value] if isinstance(value, str) else (value or [])
    if not isinstance(found, list) or not all(isinstance(s, str) and s for s in found):
        raise invalid(f"{name} must be text or a list of texts")
    if len(found) > MOST_STOPS:
        raise invalid(f"{name} has {len(found)} texts; at most {MOST_STOPS} are allowed")
    return tuple(found)


VARIABLES = {"chat_template_kwargs", "enable_thinking"}
"""Fields for variables of the chat template: vLLM's for any of them, and one of Qwen and GLM."""


def template_variables(data: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the chat template that a request sets: a few plain values."""
    found = {k: v for k, v in mapping(data, "chat_template_kwargs").items() if v is not None}
    if "enable_thinking" in data:
        thinking = flag(data, "enable_thinking")
        if found.setdefault("enable_thinking", thinking) != thinking:
            raise invalid("enable_thinking and chat_template_kwargs.enable_thinking differ")
    for name, value in found.items():
        is_plain = isinstance(value, str | int | float) and len(str(value)) <= _LONGEST_VALUE
        if not (is_plain and name.isidentifier() and len(name) <= _LONGEST):
            raise invalid(
                f"chat_template_kwargs: {brief(name)} is not a name with a number, a flag or a short text"
            )
    if len(found) > MOST_VARIABLES:
        raise invalid(
            f"chat_template_kwargs has {len(found)} variables; at most {MOST_VARIABLES} are allowed"
        )
    return found


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


def sse(data: Mapping[str, Any], event: str | None = None) -> bytes:
    """A server-sent event. ASCII, so that no text can break it."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


_TOO_LONG = "This model's maximum context length is {most} tokens. However, your messages resulted in {tokens} tokens."


def openai_error(error: Refused, too_long: str = _TOO_LONG) -> dict[str, Any]:
    """OpenAI's error object. ``too_long`` are an API's words for a prompt of too many ``tokens`` (of ``most``)."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    said = f"ajet: {in_words(error, too_long)}"
    return {"error": {"message": said, "type": kind, "code": error.code, "param": None}}


def in_words(error: Refused, too_long: str) -> str:
    """The text of an error; where the prompt is too long, after the words that an API's clients look for."""
    if not isinstance(error, TooLong):
        return str(error)
    return f"{too_long.format(tokens=error.tokens, most=error.most, longest=error.most - 1)} ({error})"
