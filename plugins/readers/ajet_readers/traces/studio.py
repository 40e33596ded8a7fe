"""AgentScope Studio's database: spans of AgentScope 1 and 2, runs, and messages.

AgentScope 1 registers its runs and sends messages and spans; with another tracing address, Studio gets the messages only.
AgentScope 2 sends spans. A run is joined to its spans by their conversation id.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet_readers.traces.feedback import Scale
from ajet_readers.traces.spans import TraceSpan, add_span, flat, seconds, status_failed
from ajet_readers.traces.trace import UNKNOWN, Message, Program, TraceContents, TracedCall

_CONVERSATION = "gen_ai.conversation.id"
_TABLES = {
    "span_table": "SELECT traceId, spanId, name, startTimeUnixNano, attributes, events, status FROM span_table "
    "ORDER BY startTimeUnixNano, spanId",
    "run_table": "SELECT id, project, name FROM run_table",
    "message_table": "SELECT m.id, m.msg, m.run_id, m.replyId, r.replyRole FROM message_table m "
    "JOIN reply_table r USING (replyId)",
}


def read_studio(file: Path, contents: TraceContents, scale: Scale) -> None:
    """Add the calls of all spans; for a run without any, the calls that its messages tell of. Raises ConfigError that
    names the file, and the span or message that cannot be read."""
    rows = _rows(file)
    programs = {str(run["id"]): Program(str(run["project"]), str(run["name"])) for run in rows["run_table"]}
    for row in rows["span_table"]:
        try:
            add_span(contents, _span(row, programs), scale)
        except (ValueError, AttributeError, TypeError) as error:
            raise ConfigError(f"{file}: span {row['spanId']}: cannot be read ({error}).") from None
    traced = {name for call in contents.calls for name in call.names}  # conversation ids among them
    told = [_said(file, row) for row in rows["message_table"] if row["run_id"] not in traced]
    told.sort(key=lambda said: (said["run"], said["at"]))
    for run, said in groupby(told, lambda said: str(said["run"])):
        contents.calls.extend(_calls(run, list(said), programs.get(run, UNKNOWN)))


def _rows(file: Path) -> dict[str, list[sqlite3.Row]]:
    """The rows of each table; none where a database lacks it. Raises ConfigError if it has no spans."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            there = {row["name"] for row in database.execute("SELECT name FROM sqlite_master")}
            return {
                table: database.execute(query).fetchall() if table in there or table == "span_table" else []
                for table, query in _TABLES.items()
            }
    except sqlite3.Error as error:
        raise ConfigError(f"{file}: not a database of AgentScope Studio ({error}).") from None


def _span(row: sqlite3.Row, programs: Mapping[str, Program]) -> TraceSpan:
    attributes, events, status = (
        json.loads(row[name] or "null") for name in ("attributes", "events", "status")
    )
    flattened = dict(flat(attributes or {}))
    return TraceSpan(
        str(row["traceId"]),
        str(row["spanId"]),
        str(row["name"]),
        seconds(row["startTimeUnixNano"]),
        flattened,
        status_failed(status),
        tuple((str(e.get("name")), dict(flat(e.get("attributes") or {}))) for e in events or ()),
        programs.get(str(flattened.get(_CONVERSATION)), UNKNOWN),
    )


# --------------------------------------------------------------------------- messages without spans


def _said(file: Path, row: sqlite3.Row) -> dict[str, Any]:
    """A message as AgentScope 1 sends it, with its run, its reply and its time."""
    try:
        message = json.loads(row["msg"])
        return {
            "id": str(row["id"]),
            "run": str(row["run_id"]),
            "reply": str(row["replyId"]),
            "at": seconds(message["timestamp"]),
            "is_user": row["replyRole"] == "user",
            "messages": list(_messages(message, row["replyRole"])),
        }
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{file}: message {row['id']}: cannot be read ({error}).") from None


def _calls(run: str, said: Sequence[Mapping[str, Any]], program: Program) -> Iterator[TracedCall]:
    """A call for each answer of an agent; the calls between two questions of the user are a trace."""
    chat: list[Message] = []
    trace = ""
    for one in said:
        if one["is_user"]:
            trace = one["reply"]
        for message in one["messages"]:
            if trace and message["role"] == "assistant":
                names = frozenset({run, one["reply"]})
                yield TracedCall(
                    trace, one["id"], one["at"], tuple(chat), message, names=names, program=program
                )
            chat.append(message)


def _messages(message: Mapping[str, Any], reply_role: str) -> Iterator[Message]:
    """A message of AgentScope as messages of chat completions: text, tool calls, and each tool result by itself."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    if text or calls:
        said = {"role": "user" if reply_role == "user" else "assistant", "content": text or None}
        yield {**said, "tool_calls": calls} if calls else said
    for block in blocks:
        if block["type"] == "tool_result":
            yield {"role": "tool", "tool_call_id": block["id"], "content": _text(block["output"])}


def _text(output: Any) -> str:
    if isinstance(output, str):
        return output
    return "\n".join(str(block.get("text", "")) for block in output if block.get("type") == "text")
