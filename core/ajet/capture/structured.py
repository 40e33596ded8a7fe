"""Answers with a required form: a tool call, one tool call, JSON that fits a schema.

Nothing here constrains sampling. Complete answers are checked, and one that does not fit is an error.
Schemas come from the client, so they are read and applied off the loop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ajet.capture.json_schema import BadSchema, make_schema
from ajet.capture.off_loop import off_loop
from ajet.interfaces.wire import Answer, ChatRequest, Refused


def check_wanted(request: ChatRequest) -> None:
    """Refuse a tool call that no answer can have."""
    names = [_name(tool) for tool in (*request.tools, *request.told)]
    if request.must_call is not None and (request.must_call not in names if request.must_call else not names):
        wanted = f"of {request.must_call!r}" if request.must_call else "of a tool"
        raise Refused(
            f"tool_choice demands a call {wanted}, but it is not among the tools", code="invalid_request"
        )


def is_free(request: ChatRequest) -> bool:
    """Whether any answer will do."""
    return request.must_call is None and not request.one_call and request.json_schema is None


async def check_schema(request: ChatRequest) -> None:
    """Refuse a JSON schema that cannot be applied, before anything is sampled."""
    if request.json_schema:
        await off_loop(_apply, request.json_schema, None)


async def misfit(request: ChatRequest, answer: Answer) -> Refused | None:
    """Why an answer does not have the requested form; None if it has. An answer that was cut off by its length
    passes: its finish reason says so."""
    calls = answer.message.get("tool_calls") or []
    if answer.finish_reason == "length":
        return None
    if request.must_call is not None:
        if not calls:
            return _misfit("the answer must call a tool, but is text")
        others = [_name(c) for c in calls if request.must_call and _name(c) != request.must_call]
        if others:
            return _misfit(f"the answer must call {request.must_call!r}, but calls {others[0]!r}")
    if request.one_call and len(calls) > 1:
        return _misfit(f"the answer may call one tool, but calls {len(calls)} (parallel_tool_calls: false)")
    if request.json_schema is None or (calls and request.tools and request.may_call):
        return None
    content = answer.message.get("content") or ""
    if not request.json_schema:
        return _object_misfit(content)
    try:
        return await off_loop(_apply, request.json_schema, content)
    except Refused as refused:
        return refused


def _object_misfit(content: str) -> Refused | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        return _no_json(error)
    if not isinstance(value, dict):
        return _misfit(f"the answer must be a JSON object, but is of type {type(value).__name__}")
    return None


def _apply(schema: Mapping[str, Any], content: str | None) -> Refused | None:
    """Why an answer's text does not fit a schema; without a text only the schema is checked. Raises Refused for a
    schema that cannot be applied."""
    try:
        ready = make_schema(schema)
        if content is None:
            return None
        fault = ready.fault(json.loads(content))
    except BadSchema as error:
        raise Refused(str(error), code="invalid_request") from None
    except ImportError as error:
        raise Refused(
            f"checking answers against a JSON schema needs jsonschema-rs ({error}): pip install 'ajet[chat]'",
            code="not_installed",
        ) from None
    except (ValueError, RecursionError) as error:
        return _no_json(error)
    if fault is None:
        return None
    where, reason = fault
    return _misfit(f"the answer does not fit the JSON schema at {where}: {reason}")


def _name(named: Any) -> Any:
    function = named.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _no_json(error: Exception) -> Refused:
    return _misfit(f"the answer must be JSON, but is not: {error}")


def _misfit(reason: str) -> Refused:
    return Refused(
        f"{reason}. Nothing constrains the sampling here: ask for the form in the prompt, or let training teach it",
        code="invalid_structured_output",
        status=422,
    )
