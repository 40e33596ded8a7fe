"""What the page shows of episodes: lists, groups, and one with its messages."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ajet import Task
from ajet.chat.messages import images_of
from ajet.learning.credit import EPISODE
from ajet.reports.episode import break_report
from ajet.reports.group_tree import GroupMember, grown
from ajet.reports.token_text import TokenText
from ajet.reports.view import View
from ajet.tracker.breaks import Break
from ajet.tracker.call import Call, Exchange, MessageNode
from ajet.tracker.timelines import Timeline
from ajet_studio import live
from ajet_studio.answers import missing, number, real, thinned, wrong
from ajet_studio.explanations import explain_counter
from ajet_studio.lines import NotALine, Words, parse_words
from ajet_studio.opened import OpenRun
from ajet_studio.words import matching, texts

MOST_ROWS = 200
MOST_ALIKE = 50
MOST_MEMBERS = 64
"""Episodes of a group's tree, which are all view."""
MOST_STRETCHES = 600
MOST_QUERY = 150
"""Characters of a task's query in a row."""
MOST_LINE = 1 << 20
"""Bytes of a line that is read for the query in a row."""
LONG = 20_000
"""Characters of a text that are sent with an episode; the page asks for the rest."""
SHORT = 500
"""The same once an episode's texts are `MOST_TEXT` together."""
MOST_TEXT = 2_000_000
_SHOWN = (
    "id",
    "phase",
    "step",
    "task",
    "member",
    "attempt",
    "reward",
    "failure",
    "seconds",
    "calls",
    "tokens",
)
_SORTS = {*_SHOWN, "is_success", "trained_tokens", "breaks", "line"}


def episodes(run: OpenRun, query: Mapping[str, str]) -> dict[str, Any]:
    """The rows that a query selects, sorted; at most `MOST_ROWS` from an offset."""
    words = matching(query.get("q", ""))
    if query.get("q", "").strip() and not words:
        raise wrong("q: write at least one word to search for")
    complete = run.index.update(words=bool(words))
    where, values = _where(query)
    if words:
        where.append("line IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(words)
    chosen = " AND ".join(where) or "1"
    sort = query.get("sort") or "line"
    if sort not in _SORTS:
        raise wrong(f"sort: {sort[:40]!r} is not one of {', '.join(sorted(_SORTS))}")
    direction = "DESC" if query.get("descending", "") in ("1", "true") else "ASC"
    offset, limit = _count(query, "offset", 0), min(_count(query, "limit", 50), MOST_ROWS)
    with run.index.reading() as db:
        total = db.execute(f"SELECT count(*) FROM episodes WHERE {chosen}", values).fetchone()[0]
        rows = db.execute(
            f"SELECT * FROM episodes WHERE {chosen} ORDER BY {sort} IS NULL, {sort} {direction}, line {direction} LIMIT ? OFFSET ?",
            (*values, limit, offset),
        ).fetchall()
    done = run.index.words_progress() * run.index.progress() if words else run.index.progress()
    return {"total": total, "rows": rows_of(run, rows), "indexed": 1.0 if complete else done}


def group(run: OpenRun, phase: str, step: int, task: str) -> dict[str, Any]:
    """The episodes of a task in a step, with their advantages, and the groups before and after."""
    seen = live.state(run)
    with run.index.reading() as db:
        rows = _siblings(db, phase, step, task)
        if not rows:
            raise missing(f"{task}: no episodes of this task in {phase} at step {step}")
        tasks = [name for (name,) in db.execute(
            "SELECT task FROM episodes WHERE phase = ? AND step = ? GROUP BY task ORDER BY min(line)", (phase, step)
        )]  # fmt: skip
        place = tasks.index(task)
        previous = _key(phase, step, tasks[place - 1]) if place else _edge(db, phase, step, "<", "DESC")
        following = (
            _key(phase, step, tasks[place + 1])
            if place + 1 < len(tasks)
            else _edge(db, phase, step, ">", "ASC")
        )
    advantages, trained = run.credit().advantages(run.step(phase, step)), run.trained(phase, step)
    of_calls: dict[str, set[float]] = {}
    for (id, _), advantage in (trained or {}).items():
        of_calls.setdefault(id, set()).add(advantage)

    def advantage_of(id: str) -> float | None:
        if trained is None:
            return advantages.get(id, {}).get(EPISODE)
        own = of_calls.get(id, set())
        return next(iter(own)) if len(own) == 1 else None  # the tree has those of calls

    return {
        "seen": seen,
        "task": _task(run, task, task_of(run, rows[0])),
        "rows": [{**row, "advantage": advantage_of(row["id"])} for row in rows_of(run, rows)],
        "previous": previous,
        "next": following,
    }


def group_tree(run: OpenRun, phase: str, step: int, task: str) -> dict[str, Any]:
    """The tree of a group, depth first, with the advantages that were trained; of at most `MOST_MEMBERS` episodes."""
    run.index.update()
    with run.index.reading() as db:
        rows = [dict(row) for row in _siblings(db, phase, step, task)[:MOST_MEMBERS]]
    if not rows:
        raise missing(f"{task}: no episodes of this task in {phase} at step {step}")
    members = [GroupMember.of(run.view(row).episode, row["reward"], row["failure"]) for row in rows]
    tree = grown(members, run.trained(phase, step))
    nodes, left = [], MOST_STRETCHES
    for node in tree.nodes:
        few, left = node.stretches[: max(left, 0)], left - len(node.stretches)
        nodes.append(
            {
                "parent": node.parent,
                "value": node.value,
                "leaves": node.leaves,
                "id": node.episode,
                "failure": node.failure,
                "fork": node.is_fork,
                "stretches": [
                    {
                        "first": s.calls[0],
                        "last": s.calls[-1],
                        "count": len(s.calls),
                        "agent": s.agent[:MOST_QUERY],
                        "words": s.words,
                        "advantage": s.advantage,
                    }
                    for s in few
                ],
            }
        )
    return {
        "value": tree.value,
        "episodes": tree.leaves,
        "forks": tree.has_forks,
        "recorded": tree.is_recorded,
        "nodes": nodes,
        "left_out": max(-left, 0),
    }


def episode(run: OpenRun, id: str, beside: Sequence[OpenRun]) -> dict[str, Any]:
    """One episode. Those of the same task are taken from its run, then from the runs ``beside`` it."""
    row = run.row(id)
    view = run.view(row)
    one = view.episode
    lanes = Lanes(view)
    with run.index.reading() as db:
        ids = [sibling["id"] for sibling in _siblings(db, row["phase"], row["step"], row["task"])]
    place = ids.index(id)
    task = _task(run, row["task"], one.plan.task)
    return {
        **row_of(row),
        "advantages": dict(view.advantages),
        **{name: _shortened(whole) for name, whole in _parts(run, row, view).items()},
        "task": task,
        "query": query_of(run, row),
        "rewards": dict(one.rewards),
        "metrics": dict(one.metrics),
        "counters": {
            name: {"value": n, "explanation": explain_counter(name)} for name, n in one.counters.items() if n
        },
        "prompts": dict(one.prompts),
        "lanes": lanes.described(),
        "calls": lanes.calls(),
        "messages": lanes.messages(),
        "breaks": [_break(found, run.text_of) for found in one.breaks],
        "previous": ids[place - 1] if place else None,
        "next": ids[place + 1] if place + 1 < len(ids) else None,
        "same_task": _same_task(run, row, beside),
        "ratings": run.feedback.ratings(id),
    }


def text(run: OpenRun, id: str, part: str, start: int, count: int) -> dict[str, Any]:
    """More of a text that was shortened: of a part of an episode, or of the content or the reasoning of a message, which
    ``LANE.MESSAGE`` or ``LANE.MESSAGE.reasoning`` names."""
    row = run.row(id)
    view = run.view(row)
    parts = _parts(run, row, view)
    whole = parts[part] if part in parts else _said(Lanes(view), part)
    return {"text": whole[start : start + min(count, 1_000_000)], "from": start, "total": len(whole)}


def _parts(run: OpenRun, row: Mapping[str, Any], view: View) -> dict[str, str]:
    """The texts of an episode beside its messages."""
    one = view.episode
    task = run.tasks().get(row["task"], one.plan.task)
    return {
        "response": _as_text(one.output.response),
        "reference": _as_text(task.metadata.get("answer")),
        "error": view.entry.error,
        "feedback": one.feedback or "",
        "printed": one.printed.text,
    }


def _said(lanes: Lanes, part: str) -> str:
    """The content or reasoning of a message. Raises RefusedView (404)."""
    name = part.removesuffix(".reasoning")
    with suppress(ValueError, LookupError):
        lane, message = map(int, name.split("."))
        if lane >= 0 and message >= 0:
            said = lanes.said(lane, message)
            return content_of(said) if name == part else str(said.get("reasoning_content") or "")
    raise missing(f"{part[:60]}: the episode has no such text")


class Lanes:
    """The calls of an episode by (agent, target, merging key), each with the messages that its calls saw, every message
    once, in the order in which calls first saw them."""

    def __init__(self, view: View) -> None:
        self._view = view
        record = view.episode.record
        self._calls: Mapping[int, Call] = {call.number: call for call in record.calls}
        self._answered = [call for call in record.asked if call.answer or isinstance(call, Call)]
        self._places: dict[tuple[str, str, str], dict[MessageNode, int]] = {}
        """The places of each lane's messages, in their order."""
        self._spans: dict[int, tuple[int | None, int | None]] = {}
        """The first new message and the answer of each call, as positions in its lane."""
        for one in self._answered:
            places = self._places.setdefault(self._key(one), {})
            node = one.answer or one.chat_end
            new = []
            while node is not None and node.parent is not None and node not in places:
                new.append(node)
                node = node.parent
            first = len(places) if new else None
            for message_node in reversed(new):
                places[message_node] = len(places)
            answer = places[one.answer] if one.answer else None
            self._spans[one.number] = (answer if first is None else first, answer)
        self.keys = list(self._places)
        self._timelines = {s.call: i for i, line in enumerate(view.timelines) for s in line.spans}

    def described(self) -> list[dict[str, Any]]:
        """The lanes with their timelines."""
        lanes = []
        for agent, target, key in self.keys:
            calls = {one.number for one in self._answered if self._key(one) == (agent, target, key)}
            lines = [
                self._timeline(index, line)
                for index, line in enumerate(self._view.timelines)
                if calls & {span.call for span in line.spans}
            ]
            trained = any(self._calls[number].trained for number in calls if number in self._calls)
            lanes.append(
                {"agent": agent, "target": target, "key": key, "trained": trained, "timelines": lines}
            )
        return lanes

    def calls(self) -> list[dict[str, Any]]:
        """The calls, in the order of their requests."""
        calls = []
        for one in self._answered:
            call = self._calls.get(one.number)
            first, answer = self._spans[one.number]
            versions = call.generation.weight_versions.tolist() if call else []
            calls.append(
                {
                    "number": one.number,
                    "agent": one.agent,
                    "target": one.target,
                    "lane": self.keys.index(self._key(one)),
                    "timeline": self._timelines.get(one.number),
                    "messages_from": first,
                    "answer": answer,
                    "prompt_tokens": call.prompt.length if call else None,
                    "answer_tokens": len(call.generation.token_ids) if call else None,
                    "weight_version": versions[-1] if versions else None,
                    "finish_reason": call.generation.finish_reason if call else None,
                    "temperature": call.temperature if call else None,
                    "trained": bool(call and call.trained),
                    "cause": call.cause if call else "",
                    "seconds": one.seconds if isinstance(one, Exchange) and one.seconds else None,
                }
            )
        return calls

    def messages(self) -> list[list[dict[str, Any]]]:
        """The messages of each lane; ``parent`` is the place of the message before, -1 for none."""
        left = MOST_TEXT
        lanes = []
        for places in self._places.values():
            lane = []
            for node in places:
                message = _message(node.message, LONG if left > 0 else SHORT)
                left -= len(message["content"]["text"]) + len(message["reasoning"]["text"])
                message["parent"] = places.get(node.parent, -1) if node.parent else -1
                lane.append(message)
            lanes.append(lane)
        return lanes

    def said(self, lane: int, place: int) -> Mapping[str, Any]:
        """A message. Raises LookupError if there is none."""
        return list(self._places[self.keys[lane]])[place].message

    def _timeline(self, index: int, line: Timeline) -> dict[str, Any]:
        trained = index < self._view.trained
        advantages = {self._view.advantage(span) for span in line.spans} if trained else {None}
        return {
            "index": index,
            "tokens": len(line.token_ids),
            "trained_tokens": int(line.mask.sum()) if trained else 0,
            "advantage": advantages.pop()
            if len(advantages) == 1
            else None,  # calls have their own in the tree of the group
            "calls": [span.call for span in line.spans],
        }

    @staticmethod
    def _key(one: Exchange | Call) -> tuple[str, str, str]:
        return one.agent, one.target, one.key


def row_of(row: Mapping[str, Any] | sqlite3.Row) -> dict[str, Any]:
    """An episode as one row."""
    return {
        **{name: row[name] for name in _SHOWN},
        "is_success": None if row["is_success"] is None else bool(row["is_success"]),
        "trained_tokens": row["trained_tokens"],
        "agents": json.loads(row["agents"]),
        "breaks": row["breaks"],
        "labels": json.loads(row["labels"]),
    }


def rows_of(run: OpenRun, rows: Sequence[sqlite3.Row]) -> list[dict[str, Any]]:
    """Episodes as rows that begin with the query of their task."""
    queries: dict[str, str] = {}
    for row in rows:
        if row["task"] not in queries:
            queries[row["task"]] = query_of(run, row)
    return [{**row_of(row), "query": queries[row["task"]]} for row in rows]


def query_of(run: OpenRun, row: Mapping[str, Any] | sqlite3.Row) -> str:
    """The beginning of the query of an episode's task: from the job's file of tasks, else from the journal, else the first message
    of a user in the episode; empty if there is none."""
    task = run.tasks().get(row["task"])
    if task is not None and task.query:
        return task.query[:MOST_QUERY]
    words = _words(run, row)
    said = (text for where, text in texts(words) if where == "user")
    return (_given(row["task"], words.given).query or next(said, ""))[:MOST_QUERY]


def task_of(run: OpenRun, row: Mapping[str, Any] | sqlite3.Row) -> Task:
    """What the journal says of an episode's task."""
    return _given(row["task"], _words(run, row).given)


def _given(id: str, given: Any) -> Task:
    """A task as a line of the journal holds it; parts of other types are left out."""
    fields = given if isinstance(given, dict) else {}
    query, messages, metadata = (fields.get(name) for name in ("query", "messages", "metadata"))
    return Task(
        id,
        query if isinstance(query, str) else "",
        tuple(one for one in messages if isinstance(one, dict)) if isinstance(messages, list) else (),
        metadata if isinstance(metadata, dict) else {},
    )


def _words(run: OpenRun, row: Mapping[str, Any] | sqlite3.Row) -> Words:
    """The text of an episode's line; none if the line is too long or damaged."""
    if row["length"] <= MOST_LINE:
        with suppress(NotALine, OSError):
            return parse_words(run.index.line(row["offset"], row["length"]))
    return Words()


def content_of(message: Mapping[str, Any]) -> str:
    """The content of a message as text: parts that are not text are written as JSON."""
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [
        p["text"] if isinstance(p, dict) and isinstance(p.get("text"), str) else json.dumps(p, default=str)
        for p in parts
        if not (isinstance(p, dict) and p.get("type") == "image")  # shown below the text
    ]
    return "\n".join(texts)


_KNOWN = {"role", "content", "reasoning_content", "tool_calls", "tool_call_id"}


def _message(message: Mapping[str, Any], most: int) -> dict[str, Any]:
    calls = message.get("tool_calls") or []
    reasoning = _shortened(str(message.get("reasoning_content") or ""), most)
    content = _shortened(content_of(message), most)
    return {
        "role": str(message.get("role", "")),
        "content": content,
        "images": images_of(message),
        "reasoning": reasoning,
        "tool_calls": [_bounded(call, most) for call in calls],
        "tool_call_id": message.get("tool_call_id"),
        "extra": {name: _bounded(value, most) for name, value in message.items() if name not in _KNOWN},
    }


def _bounded(value: Any, most: int) -> Any:
    """A value of JSON, or the beginning of its text, with a note, if that is too long."""
    if isinstance(value, int | float | bool) or value is None:
        return value
    written = value if isinstance(value, str) else json.dumps(value, default=str)
    if len(written) <= most:
        return value
    if isinstance(value, dict):
        return {name: _bounded(one, most) for name, one in list(value.items())[:100]}
    return f"{written[:most]} … ({len(written) - most:,} more characters are in the journal)"


def _as_text(value: Any) -> str:
    """A value of JSON as text: a string as it is, everything else indented."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _shortened(text: str, most: int = LONG) -> dict[str, Any]:
    """The beginning of a text, and its length if that is not all; `text` has the rest."""
    return {"text": text[:most], "cut": len(text)} if len(text) > most else {"text": text}


def _break(found: Break, text_of: TokenText) -> dict[str, Any]:
    report = break_report(found, text_of)

    def told(texts: Sequence[str | None], ids: Sequence[int]) -> str:
        return "".join(str(i) + " " if t is None else t for t, i in zip(texts, ids, strict=True))

    return {
        "call": found.call,
        "what": found.cause,
        "remedy": report.remedy,
        "recorded": _bounded(found.before or told(report.recorded, found.recorded), LONG),
        "sent": _bounded(found.now or told(report.sent, found.sent), LONG),
    }


def _where(query: Mapping[str, str]) -> tuple[list[str], list[Any]]:
    where: list[str] = []
    values: list[Any] = []

    def add(condition: str, value: Any) -> None:
        if value not in (None, ""):
            where.append(condition)
            values.append(value)

    add("phase = ?", query.get("phase"))
    add("step = ?", number(query.get("step"), "step"))
    add("task = ?", query.get("task"))
    failure = query.get("failure", "")
    if failure in ("any", "none"):
        where.append("failure IS NOT NULL" if failure == "any" else "failure IS NULL")
    else:
        add("failure = ?", failure)
    for name, column in (("agent", "agents"), ("label", "labels")):
        if query.get(name):
            add(f"instr({column}, ?)", json.dumps(query[name], ensure_ascii=False))
    add("reward >= ?", real(query.get("min_reward"), "min_reward"))
    add("reward <= ?", real(query.get("max_reward"), "max_reward"))
    add("tokens >= ?", number(query.get("min_tokens"), "min_tokens"))
    add("tokens <= ?", number(query.get("max_tokens"), "max_tokens"))
    return where, values


def _count(query: Mapping[str, str], name: str, default: int) -> int:
    return max(0, number(query.get(name), name, default) or 0)


def _same_task(run: OpenRun, row: Mapping[str, Any], beside: Sequence[OpenRun]) -> list[dict[str, Any]]:
    """At most `MOST_ALIKE` episodes of a row's task from outside its group, first those of its run, by step."""
    alike: list[dict[str, Any]] = []
    for one in (run, *beside):
        left = MOST_ALIKE - len(alike)
        if left <= 0:
            break
        group = (row["phase"], row["step"]) if one is run else ("", -1)
        with suppress(sqlite3.Error), one.index.reading() as db:
            rows = db.execute(
                "SELECT id, phase, step, member, reward FROM episodes WHERE task = ? AND NOT (phase = ? AND step = ?) "
                "ORDER BY step, line",
                (row["task"], *group),
            ).fetchall()
            alike += [{"run": one.id, **dict(other)} for other in thinned(rows, left)]
    return alike


def _task(run: OpenRun, id: str, given: Task | None = None) -> dict[str, Any]:
    """The id of a task, and what the job's file of tasks says of it, else what the journal says that the workflow was ``given``."""
    task = run.tasks().get(id, given)
    if task is None or not (task.query or task.messages or task.metadata):
        return {"id": id}
    return {
        "id": id,
        "query": task.query,
        "metadata": _bounded(dict(task.metadata), LONG),
        "answer": task.metadata.get("answer"),
    }


def _siblings(db: sqlite3.Connection, phase: str, step: int, task: str) -> list[sqlite3.Row]:
    rows: list[sqlite3.Row] = db.execute(
        "SELECT * FROM episodes WHERE phase = ? AND step = ? AND task = ? ORDER BY member, line",
        (phase, step, task),
    ).fetchall()
    return rows


def _key(phase: str, step: int, task: str) -> dict[str, Any]:
    return {"phase": phase, "step": step, "task": task}


def _edge(db: sqlite3.Connection, phase: str, step: int, than: str, order: str) -> dict[str, Any] | None:
    """The last group of the step before, or the first one of the step after."""
    row = db.execute(
        f"SELECT step, task FROM episodes WHERE phase = ? AND step {than} ? GROUP BY step, task "
        f"ORDER BY step {order}, min(line) {order} LIMIT 1",
        (phase, step),
    ).fetchone()
    return _key(phase, row["step"], row["task"]) if row else None
