"""Google's generateContent: the URL names the model and says whether to stream; contents are parts, also tool results."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from ajet.capture.wires.fields import (
    VARIABLES,
    file_part,
    image_part,
    json_text,
    template_variables,
    with_images,
)
from ajet.interfaces.wire import (
    Answer,
    ChatRequest,
    Events,
    Faults,
    Piece,
    Refused,
    Wire,
    brief,
    flag,
    in_words,
    invalid,
    mapping,
    number,
    objects,
    read_object,
    sse,
    stops,
    text,
)

# Without influence on the tokens: accepted and left alone.
_HARMLESS = {"model", "safetySettings", "labels", "serviceTier", "store"}
_KNOWN = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig"} | _HARMLESS | VARIABLES
_PENALTIES = {"presencePenalty", "frequencyPenalty"}
_CONFIG = {
    *("temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "candidateCount", "seed"),
    *("responseMimeType", "responseSchema", "responseJsonSchema", "responseLogprobs", "logprobs"),
    *("thinkingConfig", "responseModalities", *_PENALTIES),
}
# What a function returns is not told to models by their chat templates; only live sessions call without waiting.
_FUNCTION = {
    "name",
    "description",
    "parameters",
    "parametersJsonSchema",
    "response",
    "responseJsonSchema",
    "behavior",
}
# About how to show or check a part, not about what it says. Signatures are never checked.
_PART = {"thought", "thoughtSignature", "partMetadata", "videoMetadata", "mediaResolution", "mediaProcessing"}
_CALLING = {"mode", "allowedFunctionNames"}
_SIZES = {f"{bound}{what}" for bound in ("min", "max") for what in ("Items", "Length", "Properties")}
_SPELLED = {
    re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name): name
    for name in (
        *(_KNOWN - VARIABLES | _CONFIG - _PENALTIES | _FUNCTION | _PART | _CALLING | _SIZES),
        *("generateContentRequest", "functionDeclarations", "functionCallingConfig", "includeThoughts"),
        *("functionCall", "functionResponse", "propertyOrdering"),
        *("inlineData", "fileData", "mimeType", "fileUri", "anyOf", "prefixItems"),
    )
}
"""Names as Protocol Buffers have them, which the API takes too."""
_ANY_JSON = {"$comment": "any JSON value"}
_STATUS = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_TOO_LONG = "The input token count ({tokens}) exceeds the maximum number of tokens allowed ({longest})."
_SUPPORTED = "contents with text, images, thoughts and functions, JSON and stopSequences are supported"


@dataclass(slots=True)
class _GoogleRequest(ChatRequest):
    thoughts: bool = False
    """Whether the client asked for thoughts. If not, it expects none."""


class GenerateContent:
    """``POST …/models/NAME:generateContent``."""

    verb = "generateContent"
    streams = False

    def __init__(self, model: str = "") -> None:
        self._model = model
        self.path = f"/models/{quote(model, safe='')}:{self.verb}" if model else f":{self.verb}"

    def at(self, path: str) -> Wire:
        """See `PathWire.at`."""
        return type(self)(unquote(path.removesuffix(f":{self.verb}").rpartition("/")[2]))

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`."""
        return self._parse(_fields(read_object(body)))

    def _parse(self, data: Mapping[str, Any]) -> ChatRequest:
        faults = Faults()
        faults.parameters(data, _KNOWN)
        config = _fields(mapping(data, "generationConfig"))
        _check(config, faults)
        messages = _messages(data, faults)
        tools = _tools(data, faults)
        calling = _fields(mapping(data, "toolConfig"))
        faults.parameters(calling, ("functionCallingConfig",), "toolConfig.")
        calling = _fields(mapping(calling, "functionCallingConfig"))
        must_call = _must_call(calling, tools, faults)
        faults.forced(must_call, tools)
        json_schema = _json_schema(config, faults)
        faults.refuse(_SUPPORTED)
        return _GoogleRequest(
            model=self._model,
            messages=messages,
            tools=tools,
            n=number(config, "candidateCount", int, 1, 128) or 1,
            temperature=number(config, "temperature", float, 0, 2),
            top_p=number(config, "topP", float, 0, 1),
            top_k=number(config, "topK", int, 0),
            max_tokens=number(config, "maxOutputTokens", int, 1),
            seed=number(config, "seed", int),
            stop=stops(config.get("stopSequences"), "stopSequences"),
            stream=self.streams,
            logprobs=flag(config, "responseLogprobs"),
            template=template_variables(data),
            may_call=calling.get("mode") != "NONE",
            must_call=must_call,
            json_schema=json_schema,
            left_out=faults.left_out,
            thoughts=flag(_fields(mapping(config, "thinkingConfig")), "includeThoughts"),
        )

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The GenerateContentResponse."""
        candidates = [
            _candidate(i, [*_said(request, a), *_calls(a)], _ending(a)) for i, a in enumerate(answers)
        ]
        return _response(request, reply_id, candidates, answers)

    def events(self, request: ChatRequest, reply_id: str) -> Events:
        """See `Events`."""
        return _GoogleEvents(request, reply_id)

    def error(self, error: Refused) -> dict[str, Any]:
        """Google's error object."""
        status = _STATUS.get(error.status, "INVALID_ARGUMENT" if error.status < 500 else "INTERNAL")
        told = f"ajet: {in_words(error, _TOO_LONG)}"
        return {"error": {"code": error.status, "message": told, "status": status}}


class StreamGenerateContent(GenerateContent):
    """``POST …/models/NAME:streamGenerateContent``. Answers are server-sent events, as with ``alt=sse``."""

    verb = "streamGenerateContent"
    streams = True


class GoogleTokenCount(GenerateContent):
    """``POST …/models/NAME:countTokens``: the tokens of the prompt that the same call would have."""

    verb = "countTokens"

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`. The call is the body, or one of its fields."""
        data = _fields(read_object(body))
        request = self._parse(_fields(mapping(data, "generateContentRequest")) or data)
        request.only_count = True
        return request

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The CountTokensResponse."""
        return {"totalTokens": answers[0].prompt_tokens}


# --------------------------------------------------------------------------- parameters


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """An object's fields that are not null; a known one may also have its name in Protocol Buffers: ``top_k``."""
    return {_SPELLED.get(name, name): value for name, value in given.items() if value is not None}


def _check(config: Mapping[str, Any], faults: Faults) -> None:
    """Add the settings of a generation that cannot be honoured."""
    faults.parameters(config, _CONFIG, "generationConfig.")
    for name in (*sorted(_PENALTIES), "logprobs"):  # only the chosen tokens' logprobs exist
        if number(config, name, float):
            faults.parameter(f"generationConfig.{name}", config[name])
    if config.get("responseModalities", ["TEXT"]) not in ([], ["TEXT"]):
        faults.parameter("generationConfig.responseModalities", config["responseModalities"])


def _tools(data: Mapping[str, Any], faults: Faults) -> list[Mapping[str, Any]]:
    """The functions in the chat form; tools that Google runs are left out."""
    tools: list[Mapping[str, Any]] = []
    for index, tool in enumerate(map(_fields, objects(data.get("tools", []), "tools"))):
        for name in sorted(tool.keys() - {"functionDeclarations"}):
            faults.hosted(f"tools[{index}]", name)
        declared = objects(tool.get("functionDeclarations", []), f"tools[{index}].functionDeclarations")
        for function in map(_fields, declared):
            where = f"tools[{index}].functionDeclarations."
            faults.parameters(function, _FUNCTION, where)
            told = {"name": text(function, "name", where)}
            told |= {name: function[name] for name in ("description",) if name in function}
            if "parametersJsonSchema" in function:
                told["parameters"] = _as_json_schema(function["parametersJsonSchema"])
            elif "parameters" in function:
                told["parameters"] = _as_json_schema(function["parameters"])
            tools.append({"type": "function", "function": told})
    return tools


def _must_call(calling: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], faults: Faults) -> str | None:
    where = "toolConfig.functionCallingConfig."
    faults.parameters(calling, _CALLING, where)
    mode, allowed = calling.get("mode") or "AUTO", calling.get("allowedFunctionNames") or []
    if mode not in ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"):
        faults.parameter(f"{where}mode", mode)
    if mode == "ANY" and isinstance(allowed, list) and len(allowed) == 1:
        return str(allowed[0])
    names = [tool["function"]["name"] for tool in tools]
    if allowed and not (isinstance(allowed, list) and all(name in allowed for name in names)):
        faults.parameter(f"{where}allowedFunctionNames", allowed)
    return "" if mode == "ANY" else None


def _json_schema(config: Mapping[str, Any], faults: Faults) -> Mapping[str, Any] | None:
    kind = config.get("responseMimeType", "text/plain")
    if kind == "text/plain":
        for name in {"responseJsonSchema", "responseSchema"} & config.keys():  # the API refuses it, too
            faults.parameter(
                f"generationConfig.{name} without responseMimeType: application/json", config[name]
            )
        return None
    if kind != "application/json":
        faults.parameter("generationConfig.responseMimeType", kind)
    if "responseJsonSchema" in config:
        return _as_json_schema(mapping(config, "responseJsonSchema")) or _ANY_JSON
    schema: Mapping[str, Any] = _as_json_schema(mapping(config, "responseSchema"))
    return schema or _ANY_JSON


def _as_json_schema(schema: Any) -> Any:
    try:
        return _converted(schema)
    except RecursionError:
        raise invalid("a schema is nested too deeply") from None


def _converted(schema: Any) -> Any:
    """Google's own form of a schema, that of OpenAPI, as JSON Schema: types in lower case, null as one of them, bounds
    as numbers, though Protocol Buffers write them as texts. JSON Schema stays as it is; clients mix both."""
    if isinstance(schema, list):
        return [_converted(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    given = _fields(schema) | {name: None for name in ("const", "default") if schema.get(name, "") is None}
    converted: dict[str, Any] = {}
    for name, value in given.items():
        if name in ("properties", "$defs") and isinstance(value, dict):
            converted[name] = {key: _converted(inner) for key, inner in value.items()}
        elif name in ("items", "anyOf", "oneOf", "allOf", "prefixItems", "additionalProperties"):
            converted[name] = _converted(value)
        elif name == "type" and isinstance(value, str):
            converted[name] = value.lower()
        elif name in _SIZES and re.fullmatch(r"\d{1,18}", str(value)):
            converted[name] = int(value)
        elif name not in ("nullable", "propertyOrdering", "example"):
            converted[name] = value
    if converted.get("type") == "type_unspecified":
        del converted["type"]
    return {"anyOf": [converted, {"type": "null"}]} if given.get("nullable") is True else converted


# --------------------------------------------------------------------------- contents in


def _messages(data: Mapping[str, Any], faults: Faults) -> list[Mapping[str, Any]]:
    chat = _GoogleChat(faults)
    if data.get("systemInstruction"):
        chat.instruct(mapping(data, "systemInstruction"))
    contents = objects(data.get("contents"), "contents")
    if not contents:
        raise invalid("contents must hold at least one content")
    for index, content in enumerate(contents):
        chat.add(_fields(content), f"contents[{index}]")
    return chat.messages


class _GoogleChat:
    """Contents as messages. A response may lack the id of its call: then it answers the first open one of its name."""

    def __init__(self, faults: Faults) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self._faults = faults
        self._open: list[tuple[str, str]] = []
        """Name and id of the calls without a response so far."""
        self._numbers = itertools.count()

    def instruct(self, instruction: Mapping[str, Any]) -> None:
        """Begin with the system's message."""
        parts = _fields(instruction).get("parts", [])
        self.messages.append({"role": "system", "content": self._text(parts, "systemInstruction")})

    def add(self, content: Mapping[str, Any], where: str) -> None:
        role = content.get("role") or "user"
        parts = content.get("parts", [])
        if role == "model":
            self.messages.append(self._model(parts, where))
        elif role in ("user", "function", "tool"):
            self.messages += self._user(parts, where)
        else:
            raise invalid(f"{where}.role must be user or model, not {brief(role)}")

    def _user(self, parts: Any, where: str) -> Iterator[Mapping[str, Any]]:
        """Function responses as tool messages, then the user's other content."""
        said: list[Mapping[str, Any]] = []
        responds = False
        for at, part in _parts(parts, where):
            if "functionResponse" in part:
                responds = True
                yield self._response(_fields(mapping(part, "functionResponse")), f"{at}.functionResponse")
            else:
                said += self._shown(part, at)
        if said or not responds:
            yield {"role": "user", "content": with_images(said)}

    def _model(self, parts: Any, where: str) -> Mapping[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for at, part in _parts(parts, where):
            if "functionCall" in part:
                call = self._call(_fields(mapping(part, "functionCall")), f"{at}.functionCall")
                message.setdefault("tool_calls", []).append(call)
            elif part.get("thought") is True:
                message["reasoning_content"] = message.get("reasoning_content", "") + self._text([part], at)
            else:
                message["content"] += self._text([part], at)
        return message

    def _call(self, call: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        name = text(call, "name", f"{where}.")
        call_id = _id(call, name) or f"call{next(self._numbers)}"
        self._open.append((name, call_id))
        arguments = json_text(mapping(call, "args"), f"{where}.args")
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _response(self, response: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        name = text(response, "name", f"{where}.")
        call_id = _id(response, name)
        for opened in self._open:
            if opened[1] == call_id if call_id else opened[0] == name:
                self._open.remove(opened)
                call_id = opened[1]
                break
        given = mapping(response, "response")
        # "If the keys output and error are missing, the whole response is the function's output."
        output = given["output"] if given.keys() == {"output"} else given
        content = output if isinstance(output, str) else json_text(output, f"{where}.response")
        images = [
            shown for at, part in _parts(response.get("parts", []), where) for shown in self._shown(part, at)
        ]
        parts = [{"type": "text", "text": content}, *images]
        return {"role": "tool", "tool_call_id": call_id or name, "content": with_images(parts)}

    def _text(self, parts: Any, where: str) -> str:
        """Parts without images."""
        shown = [one for at, part in _parts(parts, where) for one in self._shown(part, at)]
        if any(one["type"] != "text" for one in shown):
            self._faults.content(where, "image")
        return "".join(one["text"] for one in shown if one["type"] == "text")

    def _shown(self, part: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
        """A part in the chat form."""
        kinds = sorted(part.keys() - _PART)
        if kinds in ([], ["text"]):
            return [{"type": "text", "text": text(part, "text", f"{where}.")}] if kinds else []
        if kinds not in (["inlineData"], ["fileData"]):
            self._faults.content(where, kinds[0])
            return []
        blob = _fields(mapping(part, kinds[0]))
        kind = str(blob.get("mimeType") or "")
        if not kind.startswith("image/"):
            return [file_part(kind)]
        if "fileUri" in blob:
            return [image_part(text(blob, "fileUri", f"{where}.fileData."))]
        return [image_part(f"data:{kind};base64,{text(blob, 'data', f'{where}.inlineData.')}")]


def _parts(parts: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Parts with their places, for errors."""
    for index, part in enumerate(objects(parts, f"{where}.parts")):
        yield f"{where}.parts[{index}]", _fields(part)


def _id(given: Mapping[str, Any], name: str) -> str:
    """The id of a call. Gemini CLI writes the function's name before it."""
    return text(given, "id").removeprefix(f"{name}__") if given.get("id") else ""


# --------------------------------------------------------------------------- responses out


def _response(
    request: ChatRequest, reply_id: str, candidates: Sequence[Any], answers: Sequence[Answer] = ()
) -> dict[str, Any]:
    """A response, or one of a stream; the last one is given the answers."""
    response: dict[str, Any] = {
        "candidates": candidates,
        "modelVersion": request.model,
        "responseId": reply_id,
    }
    if answers:
        reasoning = [answer.reasoning_tokens for answer in answers]
        thoughts = sum(count or 0 for count in reasoning)
        prompt, sampled = answers[0].prompt_tokens, sum(answer.completion_tokens for answer in answers)
        response["usageMetadata"] = {
            "promptTokenCount": prompt,
            "candidatesTokenCount": sampled - thoughts,
            **({} if None in reasoning else {"thoughtsTokenCount": thoughts}),
            "totalTokenCount": prompt + sampled,
        }
    return response


def _candidate(index: int, parts: Sequence[Any], ending: Mapping[str, Any] | None = None) -> dict[str, Any]:
    content = {"role": "model", "parts": list(parts) or [{"text": ""}]}
    return {"content": content, "index": index, **(ending or {})}


def _said(request: ChatRequest, answer: Answer) -> Iterator[dict[str, Any]]:
    reasoning = answer.message.get("reasoning_content")
    if reasoning and isinstance(request, _GoogleRequest) and request.thoughts:
        yield {"text": reasoning, "thought": True}
    if answer.message.get("content"):
        yield {"text": answer.message["content"]}


def _calls(answer: Answer) -> list[dict[str, Any]]:
    """The calls; none if one of them is malformed."""
    if _malformed(answer):
        return []
    return [
        {"functionCall": {"id": call["id"], "name": call["function"]["name"], "args": _arguments(call)}}
        for call in answer.message.get("tool_calls") or ()
    ]


def _arguments(call: Mapping[str, Any]) -> Any:
    """A call's arguments; None if they are not an object, which Google's API cannot express."""
    try:
        arguments = json.loads(call["function"]["arguments"] or "{}")
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _malformed(answer: Answer) -> Mapping[str, Any] | None:
    """The first call whose arguments are not an object."""
    calls = answer.message.get("tool_calls") or ()
    return next((call["function"] for call in calls if _arguments(call) is None), None)


def _ending(answer: Answer) -> dict[str, Any]:
    """Why the answer ended, and the logprobs if they were asked for."""
    ending: dict[str, Any] = {"finishReason": "MAX_TOKENS" if answer.finish_reason == "length" else "STOP"}
    if function := _malformed(answer):
        told = f"Malformed function call: {function['name']}({function['arguments']})"
        ending = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": told}
    if answer.logprobs is not None:
        chosen = [{"token": token, "logProbability": logprob} for token, logprob in answer.logprobs]
        ending["logprobsResult"] = {"chosenCandidates": chosen}
        ending["avgLogprobs"] = sum(logprob for _, logprob in answer.logprobs) / max(len(chosen), 1)
    return ending


class _GoogleEvents:
    """A response for each piece; the last one has the calls, what ended the answers, and the tokens."""

    def __init__(self, request: ChatRequest, reply_id: str) -> None:
        self._request = request
        self._reply_id = reply_id

    def begin(self) -> bytes:
        return b""

    def piece(self, piece: Piece) -> bytes:
        part: dict[str, Any] = {"text": piece.text}
        if piece.kind == "reasoning":
            if not (isinstance(self._request, _GoogleRequest) and self._request.thoughts):
                return b""
            part["thought"] = True
        return sse(_response(self._request, self._reply_id, [_candidate(piece.choice, [part])]))

    def end(self, answers: Sequence[Answer]) -> bytes:
        candidates = [_candidate(i, _calls(answer), _ending(answer)) for i, answer in enumerate(answers)]
        return sse(_response(self._request, self._reply_id, candidates, answers))

    def fail(self, error: Refused) -> bytes:
        return sse(GenerateContent().error(error))
