"""Answers that must have a form: a tool call, one tool call, JSON that fits a schema.

Nothing here constrains what is sampled. A whole answer is checked, and one that does not fit is an error.
"""

from __future__ import annotations

import json
from typing import Any

from ajet.capture.wires import Answer, ChatRequest, Refused


def check_wanted(request: ChatRequest) -> None:
    """Refuse a form that no answer can have."""
    names = [_name(tool) for tool in request.tools]
    if request.must_call is not None and (request.must_call not in names if request.must_call else not names):
        wanted = f"of {request.must_call!r}" if request.must_call else "of a tool"
        raise Refused(
            f"tool_choice demands a call {wanted}, but it is not among the tools", code="invalid_request"
        )
    if request.json_schema:
        _validator(request)


def check_answer(request: ChatRequest, answer: Answer) -> None:
    """Refuse an answer that does not have the form asked for. One that was cut at its length passes: its
    finish reason tells."""
    if answer.finish_reason == "length":
        return
    calls = answer.message.get("tool_calls") or []
    if request.must_call is not None:
        if not calls:
            raise _misfit("the answer has to call a tool, but is text")
        others = [_name(c) for c in calls if request.must_call and _name(c) != request.must_call]
        if others:
            raise _misfit(f"the answer has to call {request.must_call!r}, but calls {others[0]!r}")
    if request.one_call and len(calls) > 1:
        raise _misfit(f"the answer may call one tool, but calls {len(calls)} (parallel_tool_calls: false)")
    if request.json_schema is not None and not calls:
        _check_json(request, answer.message.get("content") or "")


def _check_json(request: ChatRequest, content: str) -> None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _misfit(f"the answer has to be JSON, but is not: {error}") from None
    if not request.json_schema:
        if not isinstance(value, dict):
            raise _misfit(f"the answer has to be a JSON object, but is of type {type(value).__name__}")
        return
    try:
        fault = next(_validator(request).iter_errors(value), None)
    except Exception as error:  # a reference that leads nowhere or in circles, a pattern that is none
        raise Refused(f"the JSON schema cannot be applied: {_line(error)}", code="invalid_request") from None
    if fault is not None:
        raise _misfit(f"the answer does not fit the JSON schema at {fault.json_path}: {_line(fault.message)}")


def _validator(request: ChatRequest) -> Any:
    try:
        from jsonschema import Draft202012Validator, SchemaError
        from referencing import Registry
    except ImportError as error:
        raise Refused(
            f"checking answers against a JSON schema needs jsonschema ({error}): pip install 'ajet[chat]'",
            code="not_installed",
        ) from None
    try:
        Draft202012Validator.check_schema(request.json_schema)
    except (SchemaError, RecursionError) as error:
        raise Refused(f"the JSON schema is none: {_line(error)}", code="invalid_request") from None
    registry: Registry[Any] = Registry()  # an empty one: references lead nowhere but into the schema
    return Draft202012Validator(request.json_schema, registry=registry)


def _name(named: Any) -> Any:
    function = named.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _line(error: object) -> str:
    return " ".join(str(getattr(error, "message", error)).split())[:200] or type(error).__name__


def _misfit(reason: str) -> Refused:
    return Refused(
        f"{reason}. Nothing constrains the sampling here: ask for the form in the prompt, or have it learnt",
        code="invalid_structured_output",
        status=422,
    )
