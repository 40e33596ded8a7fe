"""OpenAI Responses: one turn of the model is several items here, and one message in the chat form."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet.capture.wires.fields import (
    TURN,
    VARIABLES,
    continues,
    file_part,
    image_part,
    openai_error,
    sealed,
    template_variables,
    unsealed,
    with_images,
)
from ajet.capture.wires.responses_tools import (
    CALLS,
    OUTPUTS,
    Own,
    ResponsesTools,
    call_of,
    chat_name,
    item_of,
    output_id,
)
from ajet.interfaces.wire import (
    Answer,
    ChatRequest,
    Events,
    Faults,
    Piece,
    Refused,
    TooLong,
    flag,
    invalid,
    mapping,
    number,
    objects,
    read_object,
    sse,
    text,
)

# Without influence on the tokens, or on built-in tools alone: accepted and left alone.
_HARMLESS = {
    *("metadata", "user", "store", "service_tier", "safety_identifier", "max_tool_calls", "stream_options"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "client_metadata"),
    # How much a hosted model should think and say. Frameworks send it by default; for your own model its
    # chat template and training decide.
    "reasoning",
}
_HONOURED = {
    *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "stream"),
    *("max_output_tokens", "temperature", "top_p", "previous_response_id", "include", "top_logprobs"),
    "truncation",
}
_KNOWN = _HONOURED | _HARMLESS | TURN | VARIABLES
_LOGPROBS = "message.output_text.logprobs"
_SEALED = "reasoning.encrypted_content"
# The others concern built-in tools.
_INCLUDABLE = {
    *(_LOGPROBS, _SEALED, "file_search_call.results", "web_search_call.results"),
    *("web_search_call.action.sources", "message.input_image.image_url"),
    *("computer_call_output.output.image_url", "code_interpreter_call.outputs"),
}
_ECHOED = (
    *("instructions", "metadata", "parallel_tool_calls", "temperature", "top_p", "max_output_tokens"),
    *("previous_response_id", "reasoning", "text", "tool_choice", "tools", "user", "store"),
)
_OUR_ID = re.compile(r"[a-z]+_([0-9a-f]+)_\d+")
_SUPPORTED = "responses with text, images, functions, tools of the client, structured text and previous_response_id are supported"
_TOO_LONG = "Your input exceeds the context window of this model. Please adjust your input and try again."
_SUMMARISE = (
    "Summarise the conversation so far, so that the work can go on with the summary in its place: what was asked for, what was "
    "done and found, what is decided, and what is left to do. Answer with the summary alone."
)
_SUMMARY = "Summary of the conversation so far:\n\n"


@dataclass(slots=True)
class _ResponsesRequest(ChatRequest):
    echo: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request that the reply repeats."""
    own: Mapping[str, Own] = field(default_factory=dict)
    """The tools as the client knows them, by their names in the chat."""
    seals: bool = False
    """Whether the client keeps thoughts for us, and leaves out their text."""
    compacts: bool = False
    """Whether the answer is a summary that takes the place of the chat."""
    kept: Sequence[Mapping[str, Any]] = ()
    """Items that stand before the summary."""


class Responses:
    """``POST …/responses``."""

    path = "/responses"

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`."""
        return self._request(read_object(body))

    def _request(self, data: Mapping[str, Any]) -> _ResponsesRequest:
        faults = Faults()
        faults.parameters(data, _KNOWN)
        tools = ResponsesTools()
        tools.offer(data.get("tools", []), "tools", faults)
        chat = _ResponsesChat(data, tools, faults)
        include = _include(data, faults)
        json_schema = _json_schema(data, faults)
        must_call = _must_call(data.get("tool_choice", "auto"), faults)
        faults.forced(must_call, [*tools.offered, *tools.told])
        if data.get("truncation", "disabled") != "disabled":
            faults.parameter("truncation", data["truncation"])
        if number(data, "top_logprobs", int, 0, 20):
            faults.parameter("top_logprobs", data["top_logprobs"])
        faults.refuse(_SUPPORTED)
        return _ResponsesRequest(
            model=str(data.get("model", "")),
            messages=chat.messages,
            tools=tools.offered,
            told=tools.told,
            temperature=number(data, "temperature", float, 0, 2),
            top_p=number(data, "top_p", float, 0, 1),
            max_tokens=number(data, "max_output_tokens", int, 1),
            stream=flag(data, "stream"),
            logprobs=_LOGPROBS in include,
            template=template_variables(data),
            may_call=data.get("tool_choice") != "none" and not chat.compacts,
            must_call=must_call,
            one_call=not flag(data, "parallel_tool_calls", True),
            json_schema=json_schema,
            continues=continues(data, _last_item(data)),
            after=_after(data),
            instructed=bool(data.get("instructions")),
            left_out=faults.left_out,
            echo={k: data[k] for k in _ECHOED if k in data},
            own=tools.own,
            seals=_SEALED in include,
            compacts=chat.compacts,
        )

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The response object."""
        answer = answers[0]
        return _closed(request, reply_id, int(time.time()), answer, list(_output(request, answer, reply_id)))

    def events(self, request: ChatRequest, reply_id: str) -> Events:
        """See `Events`."""
        return _ResponsesEvents(request, reply_id)

    def error(self, error: Refused) -> dict[str, Any]:
        """OpenAI's error object."""
        return openai_error(error, _TOO_LONG)


# --------------------------------------------------------------------------- parameters


def _must_call(choice: Any, faults: Faults) -> str | None:
    if choice in ("auto", "none"):
        return None
    if choice == "required":
        return ""
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        return chat_name(choice.get("namespace"), text(choice, "name", "tool_choice."))
    faults.parameter("tool_choice", choice)
    return None


def _include(data: Mapping[str, Any], faults: Faults) -> list[Any]:
    include = data.get("include", [])
    if not isinstance(include, list):
        raise invalid("include must be a list of texts")
    for name in include:
        if not isinstance(name, str) or name not in _INCLUDABLE:
            faults.parameter("include", name)
    return include


def _json_schema(data: Mapping[str, Any], faults: Faults) -> Mapping[str, Any] | None:
    config = mapping(data, "text")
    faults.parameters(config, ("format", "verbosity"), "text.")  # verbosity: as with reasoning
    wanted = mapping(config, "format")
    kind = wanted.get("type", "text")
    if kind == "json_object":
        return {}
    if kind == "json_schema":
        if not isinstance(wanted.get("schema"), dict):
            raise invalid("text.format.schema must be an object")
        return mapping(wanted, "schema")
    if kind != "text":
        faults.parameter("text.format.type", kind)
    return None


def _after(data: Mapping[str, Any]) -> str | None:
    if data.get("previous_response_id") is None:
        return None
    return text(data, "previous_response_id").removeprefix("resp_")


# --------------------------------------------------------------------------- items in


def _last_item(data: Mapping[str, Any]) -> Mapping[str, Any]:
    items = data.get("input")
    return items[-1] if isinstance(items, list) and items else {}


class _ResponsesChat:
    """Combines items into messages.

    A turn of the model comes back as a sequence of reasoning, one message and calls, which become one
    assistant message. The ids that our replies gave the items separate two consecutive turns; without
    ids, that order does.
    """

    def __init__(self, data: Mapping[str, Any], tools: ResponsesTools, faults: Faults) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.compacts = False
        """Whether the last item asks for a summary of the chat."""
        self._tools = tools
        self._faults = faults
        self._turn: dict[str, Any] | None = None
        self._reply: str | None = None
        """Id of the reply that the turn's items belong to, if known."""
        self._answered = False
        """Whether a turn of the model has come."""
        if data.get("instructions"):
            self._say({"role": "system", "content": text(data, "instructions")})
        given = data.get("input")
        if isinstance(given, str):
            self._say({"role": "user", "content": given})
        else:
            for index, item in enumerate(objects(given, "input")):
                self._add(item, f"input[{index}]")
        if not given and not data.get("previous_response_id"):
            raise invalid("input must hold at least one item")

    def _add(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if self.compacts:
            raise invalid(f"{where} follows a compaction_trigger, which must be the last item")
        if kind == "message" and item.get("role") in ("user", "system", "developer"):
            self._say({"role": item["role"], "content": self._content(item.get("content"), where)})
        elif kind == "agent_message":  # what another agent, a call of the model, says to this one
            self._say({"role": "user", "content": self._content(item.get("content"), where)})
        elif kind == "message" and item.get("role") == "assistant":
            turn = self._continue(item, splits=True)
            turn["content"] = (turn["content"] or "") + self._text(item.get("content"), where)
        elif kind == "message":
            raise invalid(f"{where}.role must be user, assistant, system or developer")
        elif kind == "reasoning":
            turn = self._continue(item, splits=True)
            turn["reasoning_content"] = turn.get("reasoning_content", "") + self._reasoning(item, where)
        elif kind in CALLS:
            self._continue(item, splits=False).setdefault("tool_calls", []).append(call_of(item, where))
        elif kind in OUTPUTS:
            is_search = kind == "tool_search_output"
            content = (
                self._tools.tell(item.get("tools"), f"{where}.tools", self._faults)
                if is_search
                else self._content(item.get("output"), f"{where}.output")
            )
            self._say({"role": "tool", "tool_call_id": output_id(item, where), "content": content})
        elif kind == "additional_tools" and not self._answered:
            self._tools.offer(item.get("tools"), f"{where}.tools", self._faults)
        elif kind == "additional_tools":
            said = self._tools.tell(item.get("tools"), f"{where}.tools", self._faults)
            self._say({"role": "developer", "content": f"Further tools:\n{said}"})
        elif kind == "configuration_update":
            # How much a hosted model should think. The form of answers is a field of the request here.
            self._faults.parameters(item, ("type", "id", "reasoning"), f"{where}.")
        elif kind == "compaction" and (summary := unsealed(item.get("encrypted_content"))) is not None:
            self._say({"role": "user", "content": _SUMMARY + summary})
        elif kind == "compaction_trigger":
            self.compacts = True
            self._say({"role": "user", "content": _SUMMARISE})
        else:
            self._faults.parameter(f"{where}.type", kind)

    def _say(self, message: Mapping[str, Any]) -> None:
        self.messages.append(message)
        self._turn = None

    def _continue(self, item: Mapping[str, Any], splits: bool) -> dict[str, Any]:
        """The turn that the item belongs to; it begins a new one if it ``splits`` a turn that has its message."""
        self._answered = True
        turn, reply = self._turn, _reply_of(item.get("id"))
        other_reply = reply is not None and self._reply is not None and reply != self._reply
        same_reply = reply is not None and reply == self._reply
        # Calls wait for their outputs: everything before the outputs is still the same turn.
        complete = turn is not None and turn["content"] is not None and not turn.get("tool_calls")
        if turn is None or other_reply or (splits and complete and not same_reply):
            turn = self._turn = {"role": "assistant", "content": None}
            self.messages.append(turn)
            self._reply = None
        self._reply = reply or self._reply
        return turn

    def _content(self, content: Any, where: str) -> str | list[Mapping[str, Any]]:
        """A content in the chat form: text, or a list of parts if it has images."""
        if isinstance(content, str):
            return content
        parts: list[Mapping[str, Any]] = []
        for part in objects([] if content is None else content, f"{where} content"):
            if part.get("type") in ("input_text", "output_text", "text"):
                parts.append({"type": "text", "text": text(part, "text", f"{where} content.")})
            elif (kind := part.get("type")) in ("refusal", "encrypted_content"):
                # The latter is an argument of a call: nothing encrypts it here.
                parts.append({"type": "text", "text": text(part, kind, f"{where} content.")})
            elif part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
                parts.append(image_part(part["image_url"]))
            elif part.get("type") == "input_image":
                self._faults.content(f"{where} content", "an image without image_url")
            elif part.get("type") == "input_file":
                parts.append(file_part(part.get("filename") or "file"))
            else:
                self._faults.content(f"{where} content.type", part.get("type"))
        return with_images(parts)

    def _text(self, content: Any, where: str) -> str:
        plain = self._content(content, where)
        if not isinstance(plain, str):
            self._faults.content(f"{where} content.type", "input_image or input_file")
            return ""
        return plain

    def _reasoning(self, item: Mapping[str, Any], where: str) -> str:
        """The reasoning text, else what we sealed, else its summary."""
        said = "".join(
            text(part, "text", f"{where}.{key}.")
            for key in ("content", "summary")
            for part in objects(item.get(key) or [], f"{where}.{key}")
            if key == "content" or not item.get("content")
        )
        hidden = item.get("encrypted_content")
        if hidden and not item.get("content"):
            ours = unsealed(hidden)
            if ours is None and not said:
                self._faults.leave_out("encrypted thoughts")
            return said if ours is None else ours
        return said


def _reply_of(item_id: Any) -> str | None:
    match = _OUR_ID.fullmatch(item_id) if isinstance(item_id, str) else None
    return match.group(1) if match else None


# --------------------------------------------------------------------------- items out


def _reasoning_part(said: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": said}


def _text_part(said: str, answer: Answer | None = None) -> dict[str, Any]:
    return {"type": "output_text", "text": said, "annotations": [], "logprobs": _logprobs(answer)}


def _logprobs(answer: Answer | None) -> list[dict[str, Any]]:
    return [
        {
            "token": token,
            "logprob": logprob,
            # Part of a character is not text, and its bytes are not known here.
            "bytes": [] if "\ufffd" in token else list(token.encode(errors="replace")),
            "top_logprobs": [],
        }
        for token, logprob in (answer.logprobs if answer else None) or ()
    ]


def _reasoning_item(reply_id: str, index: int, status: str, *content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"rs_{reply_id}_{index}",
        "type": "reasoning",
        "summary": [],
        "content": list(content),
        "status": status,
    }


def _thoughts(request: ChatRequest, reply_id: str, index: int, said: str) -> dict[str, Any]:
    """The complete item of some reasoning."""
    item = _reasoning_item(reply_id, index, "completed", _reasoning_part(said))
    return item | {"encrypted_content": sealed(said)} if _asked(request).seals else item


def _message_item(reply_id: str, index: int, status: str, *content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{reply_id}_{index}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": list(content),
    }


def _compaction_item(reply_id: str, summary: str) -> dict[str, Any]:
    return {"id": f"cmp_{reply_id}_0", "type": "compaction", "encrypted_content": sealed(summary)}


def _output(request: ChatRequest, answer: Answer, reply_id: str) -> Iterator[dict[str, Any]]:
    """An answer's items: its reasoning, its text unless there are only calls, its calls. A summary is one item."""
    message, asked = answer.message, _asked(request)
    if asked.compacts:
        yield _compaction_item(reply_id, message.get("content") or "")
        return
    calls = message.get("tool_calls") or []
    index = 0
    if message.get("reasoning_content"):
        yield _thoughts(request, reply_id, index, message["reasoning_content"])
        index += 1
    if message.get("content") or not calls:
        part = _text_part(message.get("content") or "", answer)
        yield _message_item(reply_id, index, _status(answer), part)
        index += 1
    for call in calls:
        yield item_of(call, asked.own, reply_id, index) | {"status": _status(answer)}
        index += 1


def _asked(request: ChatRequest) -> _ResponsesRequest:
    assert isinstance(request, _ResponsesRequest)
    return request


def _status(answer: Answer) -> str:
    return "incomplete" if answer.finish_reason == "length" else "completed"


def _response(request: ChatRequest, reply_id: str, created: int, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{reply_id}",
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        **_asked(request).echo,
    }


def _closed(
    request: ChatRequest, reply_id: str, created: int, answer: Answer, output: list[dict[str, Any]]
) -> dict[str, Any]:
    """The response object of an answer."""
    cut = answer.finish_reason == "length"
    return _response(request, reply_id, created, _status(answer)) | {
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.completion_tokens,
            # SDKs always read it. Without a count of reasoning, no tokens were counted at all.
            "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens or 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        },
    }


class _ResponsesEvents:
    """One item after the other: reasoning and text as they are sampled, complete calls at the end."""

    def __init__(self, request: ChatRequest, reply_id: str) -> None:
        self._request = request
        self._reply_id = reply_id
        self._created = int(time.time())
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        """Items that are done."""
        self._open: str | None = None
        """Kind of the piece whose item is open, with its text."""
        self._said = ""
        self._item_id = ""

    def begin(self) -> bytes:
        response = _response(self._request, self._reply_id, self._created, "in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def piece(self, piece: Piece) -> bytes:
        if _asked(self._request).compacts:
            return b""
        opening = b"" if self._open == piece.kind else self._close("completed") + self._start(piece.kind)
        self._said += piece.text
        if piece.kind == "reasoning":
            return opening + self._part_event("response.reasoning_text.delta", delta=piece.text)
        return opening + self._part_event("response.output_text.delta", delta=piece.text, logprobs=[])

    def end(self, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        if _asked(self._request).compacts:
            return self._summary(answer)
        calls = answer.message.get("tool_calls") or []
        out = b""
        if not answer.message.get("content") and not calls:  # as in `_output`: there is a message
            out += self._close("completed") + self._start("content")
        out += self._close(_status(answer), answer)
        for call in calls:
            out += self._call(call, _status(answer))
        response = _closed(self._request, self._reply_id, self._created, answer, self._output)
        return out + self._event(f"response.{response['status']}", response=response)

    def fail(self, error: Refused) -> bytes:
        nested = openai_error(error, _TOO_LONG)["error"]  # what SDKs raise from
        told = {key: nested[key] for key in ("code", "message", "param")}
        code = error.code if isinstance(error, TooLong) else "server_error"
        response = _response(self._request, self._reply_id, self._created, "failed") | {
            "output": self._output,
            "error": {"code": code, "message": told["message"]},
        }
        return self._event("error", **told, error=nested) + self._event("response.failed", response=response)

    def _start(self, kind: str) -> bytes:
        make, part = (
            (_reasoning_item, _reasoning_part("")) if kind == "reasoning" else (_message_item, _text_part(""))
        )
        self._open, self._said = kind, ""
        item = make(self._reply_id, len(self._output), "in_progress")
        self._item_id = item["id"]
        return self._item_event("response.output_item.added", item) + self._part_event(
            "response.content_part.added", part=part
        )

    def _close(self, status: str, answer: Answer | None = None) -> bytes:
        """End the open item. ``answer`` is given with the last one."""
        if self._open is None:
            return b""
        if self._open == "reasoning":
            part = _reasoning_part(self._said)
            done = self._part_event("response.reasoning_text.done", text=self._said)
            item = _thoughts(self._request, self._reply_id, len(self._output), self._said)
        else:
            part = _text_part(self._said, answer)
            done = self._part_event("response.output_text.done", text=self._said, logprobs=part["logprobs"])
            item = _message_item(self._reply_id, len(self._output), status, part)
        done += self._part_event("response.content_part.done", part=part)
        done += self._item_event("response.output_item.done", item)
        self._open = None
        self._output.append(item)
        return done

    def _summary(self, answer: Answer) -> bytes:
        """The events of an answer that takes the place of the chat."""
        item = _compaction_item(self._reply_id, answer.message.get("content") or "")
        out = self._item_event("response.output_item.added", item)
        out += self._item_event("response.output_item.done", item)
        response = _closed(self._request, self._reply_id, self._created, answer, [item])
        return out + self._event(f"response.{response['status']}", response=response)

    def _call(self, call: Mapping[str, Any], status: str) -> bytes:
        item = item_of(call, _asked(self._request).own, self._reply_id, len(self._output))
        position = {"item_id": item["id"], "output_index": len(self._output)}
        key = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"], "")
        begun = item | {"status": "in_progress", **({key: ""} if key else {})}
        out = self._item_event("response.output_item.added", begun)
        if key:
            kind = f"response.{item['type']}_{key}"
            named = {"name": item["name"]} if key == "arguments" else {}
            out += self._event(f"{kind}.delta", **position, delta=item[key])
            out += self._event(f"{kind}.done", **position, **{key: item[key]}, **named)
        done = item | {"status": status}
        out += self._item_event("response.output_item.done", done)
        self._output.append(done)
        return out

    def _item_event(self, kind: str, item: Mapping[str, Any]) -> bytes:
        return self._event(kind, output_index=len(self._output), item=item)

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(
            kind, item_id=self._item_id, output_index=len(self._output), content_index=0, **fields
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = sse({"type": kind, "sequence_number": self._sequence, **fields}, kind)
        self._sequence += 1
        return event


class ResponsesTokenCount(Responses):
    """``POST …/responses/input_tokens``: the tokens of the prompt that the same call would have."""

    path = "/responses/input_tokens"

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`."""
        request = super().parse(body)
        request.only_count = True
        return request

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The count."""
        return {"object": "response.input_tokens", "input_tokens": answers[0].prompt_tokens}


class Compaction(Responses):
    """``POST …/responses/compact``: a chat that goes on with the user's messages and a summary, which the model writes."""

    path = "/responses/compact"

    def parse(self, body: bytes) -> ChatRequest:
        """See `Wire.parse`."""
        data = read_object(body)
        given = data.get("input", [])
        items = [{"role": "user", "content": given}] if isinstance(given, str) else objects(given, "input")
        data["input"] = [*items, {"type": "compaction_trigger"}]
        request = self._request(data)
        if request.stream:
            raise invalid("a compaction is not streamed; leave stream out")
        request.kept = [item for item in items if item.get("role") == "user"]
        return request

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The items with which the chat goes on."""
        whole = super().reply(request, answers, reply_id)
        return {
            "id": whole["id"],
            "object": "response.compaction",
            "created_at": whole["created_at"],
            "output": [*_asked(request).kept, *whole["output"]],
            "usage": whole["usage"],
        }
