"""Chats about generated tools: requests, calls, results, answers. Each draw invents its tools' names, parameters and values."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet_local.smollm2 import tool_words as words
from ajet_local.starter.transcripts import Transcript

NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
SIGNS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
SAME = {"start": "place", "goal": "place", "goal_day": "day", "meter2": "meter", "coin2": "coin"}
"""Kinds of parameters with the values of others."""
ENUMS = ("size", "degree", "hue", "seating", "speed", "meal")
INTEGERS = {"count": (1, 12), "people": (2, 12), "span": (1, 9), "top": (2, 50), "share": (1, 60)}
FLAGS = ("flag", "extra")
QUOTED = ("phrase", "work", "word", "topic", "item")
"""Kinds of texts that requests may quote."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lesson(Transcript):
    """A chat with its tools. ``learned`` are the indices of the assistant's messages that are trained."""

    learned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InventedTool:
    """An invented tool for an action: what its parameters are called, by kind."""

    action: words.Action
    name: str
    parameters: Mapping[str, str]
    required: tuple[str, ...]
    schema: Message = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One use of a tool: the request, the arguments, the result as fields, the answer."""

    tool: InventedTool
    ask: str
    arguments: Mapping[str, Any]
    result: str
    answer: str

    def call(self) -> Message:
        return called(self.tool.name, self.arguments)


def called(name: str, arguments: Mapping[str, Any]) -> Message:
    """The assistant's message with one call."""
    call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def group(rng: random.Random, size: int) -> list[Lesson]:
    """Chats that share their system message and tools, and so most of their tokens. Every other one ends with its first call."""
    actions = drawn(rng, rng.choices((1, 2, 3, 4), (1, 3, 4, 3))[0])
    tools = [invent(rng, action) for action in actions]
    start = opening(rng)
    chats = []
    for index in range(size):
        make = rng.choices((plain, talk, two, again, failed), (82, 10, 3, 3, 2))[0]
        chat = make(rng, tools, start)
        chats.append(begun(chat) if index % 2 else chat)
    return chats


def finding_group(rng: random.Random, size: int) -> list[Lesson]:
    """Chats in which a first call finds the code that the second one needs."""
    name, thing, ask = rng.choice(words.CHAINS)
    action = next(a for a in words.ACTIONS if a.names.startswith(name))
    about = f"Finds the code of the {thing} of a person"
    finding = words.Action(" ".join(words.ALSO["finder"]), about, "person", (ask,), "code=code")
    first, second = invent(rng, finding), invent(rng, action)
    tools = rng.sample((first, second), 2)
    start = opening(rng)
    chats = []
    for _ in range(size):
        lookup = use(rng, first, generic=0.0)
        code = value_of(rng, "code")
        result = rng.choice((code[0], json.dumps({"code": code[0]})))
        used = use(rng, second, {"code": code})
        asked = {"role": "user", "content": lookup.ask}
        messages = [
            *start,
            asked,
            lookup.call(),
            told(result),
            used.call(),
            told(used.result),
            said(used.answer),
        ]
        chats.append(learning(messages, tools))
    return chats


def drawn(rng: random.Random, count: int) -> list[words.Action]:
    """Different actions; one with twice the parameters is drawn twice as often, as most that can be wrong is in these."""
    keys = {action.names: rng.random() ** (1 / len(action.takes.split())) for action in words.ACTIONS}
    return sorted(words.ACTIONS, key=lambda action: keys[action.names])[-count:]


def opening(rng: random.Random) -> list[Message]:
    """A system message, or none."""
    system = rng.choice(words.SYSTEMS)
    return [{"role": "system", "content": system}] if system else []


def begun(chat: Lesson) -> Lesson:
    """A chat up to its first learned answer."""
    first = chat.learned[0]
    return Lesson(chat.messages[: first + 1], chat.tools, learned=(first,))


def learning(messages: Sequence[Message], tools: Sequence[InventedTool], but: Sequence[int] = ()) -> Lesson:
    learned = tuple(i for i, m in enumerate(messages) if m["role"] == "assistant" and i not in but)
    return Lesson(list(messages), tuple(tool.schema for tool in tools), learned=learned)


def told(result: str) -> Message:
    return {"role": "tool", "tool_call_id": "call_0", "content": result}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def plain(rng: random.Random, tools: Sequence[InventedTool], start: Sequence[Message]) -> Lesson:
    """Request, call, result, answer."""
    one = use(rng, rng.choice(tools))
    asked = {"role": "user", "content": around(rng, one.ask)}
    return learning([*start, asked, one.call(), told(one.result), said(one.answer)], tools)


def talk(rng: random.Random, tools: Sequence[InventedTool], start: Sequence[Message]) -> Lesson:
    """A message that needs no tool."""
    ask, answer = rng.choice(words.TALK)
    return learning([*start, {"role": "user", "content": ask}, said(answer)], tools)


def two(rng: random.Random, tools: Sequence[InventedTool], start: Sequence[Message]) -> Lesson:
    """Two requests at once, with one call after the other."""
    one, other = use(rng, rng.choice(tools)), use(rng, rng.choice(tools))
    joint = rng.choice((" And ", " Then: ", " ", " Also: "))
    asked = {"role": "user", "content": one.ask + joint + other.ask}
    messages = [*start, asked, one.call(), told(one.result), other.call(), told(other.result)]
    return learning([*messages, said(f"{one.answer}, {other.answer}")], tools)


def again(rng: random.Random, tools: Sequence[InventedTool], start: Sequence[Message]) -> Lesson:
    """An error, and the right call after it. A wrong call before the error is not learned."""
    one = use(rng, rng.choice(tools))
    wrong, error = one.call(), "error: no connection, try again"
    but: tuple[int, ...] = ()
    if one.tool.required and rng.random() < 0.6:
        name = one.tool.parameters[rng.choice(one.tool.required)]
        wrong = called(one.tool.name, {n: v for n, v in one.arguments.items() if n != name})
        error, but = f"error: {name} is missing", (len(start) + 1,)
    asked = {"role": "user", "content": around(rng, one.ask)}
    messages = [*start, asked, wrong, told(error), one.call(), told(one.result), said(one.answer)]
    return learning(messages, tools, but)


def failed(rng: random.Random, tools: Sequence[InventedTool], start: Sequence[Message]) -> Lesson:
    """An error that stays."""
    one = use(rng, rng.choice(tools))
    error = rng.choice(("not found", "no permission", "unknown code", "closed today", "the limit is reached"))
    asked = {"role": "user", "content": around(rng, one.ask)}
    return learning(
        [*start, asked, one.call(), told(f"error: {error}"), said(f"Sorry, that failed: {error}.")], tools
    )


def around(rng: random.Random, ask: str) -> str:
    """A request with small talk around it."""
    return rng.choice(words.OPENERS) + ask + (rng.choice(words.CLOSERS) if ask[-1] in ".!?" else "")


def invent(rng: random.Random, action: words.Action) -> InventedTool:
    """A tool for an action."""
    style = rng.choice((snake, snake, snake, camel, str))
    name = rng.choice(action.names.split())
    name = style(f"{rng.choice(words.ALSO['verb'])}_{name}" if rng.random() < 0.25 else name)
    described = rng.random() < 0.3
    parameters: dict[str, str] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    taken: set[str] = set()
    for kind in action.takes.split():
        kind, must = kind.removesuffix("?"), not kind.endswith("?")
        names = [n for n in words.PARAMETERS[kind] if n not in taken]
        taken.add(word := rng.choice(names))
        parameters[kind] = parameter = style(word)
        properties[parameter] = {"type": type_of(kind)}
        if kind in ENUMS:
            properties[parameter]["enum"] = list(words.VALUES[kind])
        if described and kind in words.DESCRIPTIONS:
            properties[parameter]["description"] = ", ".join(words.DESCRIPTIONS[kind])
        if must:
            required.append(kind)
    function: Message = {"name": name, "description": action.about + rng.choice(("", "."))}
    function["parameters"] = {
        "type": "object",
        "properties": properties,
        "required": [parameters[k] for k in required],
    }
    return InventedTool(action, name, parameters, tuple(required), {"type": "function", "function": function})


def snake(name: str) -> str:
    return re.sub("[A-Z]", lambda match: "_" + match[0].lower(), name)


def camel(name: str) -> str:
    return re.sub("_(.)", lambda match: match[1].upper(), name)


def type_of(kind: str) -> str:
    """The JSON type of a kind of parameter."""
    if kind in INTEGERS:
        return "integer"
    if kind in ("number", "other", "money"):
        return "number"
    return "boolean" if kind == "on" or kind in FLAGS else "string"


def use(
    rng: random.Random,
    tool: InventedTool,
    given: Mapping[str, tuple[Any, str]] | None = None,
    generic: float = 0.25,
) -> ToolUse:
    """A use of a tool with random values, or with the given ones, by kind, and how a request says them. A share of the requests is
    ``generic``: it says them one after the other."""
    kinds = {
        kind: (given or {}).get(kind) or value_of(rng, kind)
        for kind in tool.parameters
        if kind in tool.required or rng.random() < 0.5
    }
    pattern = rng.choice(tool.action.asks)
    if rng.random() < generic:
        pattern = listing(rng, tool, kinds)
    mentioned = set(re.findall(r"{(\w+)}", pattern))
    kinds = {k: v for k, v in kinds.items() if k in tool.required or k in mentioned}
    pattern = re.sub(r"\[(.*?{(\w+)}.*?)\]", lambda part: part[1] if part[2] in kinds else "", pattern)
    spoken = {kind: "" if kind in FLAGS else text for kind, (_, text) in kinds.items()}
    gives = re.findall(r"(\w+)=(.*?)(?= \w+=|$)", tool.action.gives)
    fields = {name: outcome(rng, how, spoken) for name, how in gives}
    quoted = {
        k: quotes(rng, v) if k in QUOTED and f'"{{{k}}}"' not in pattern else v for k, v in spoken.items()
    }
    return ToolUse(
        tool,
        pattern.format(**quoted),
        {tool.parameters[kind]: value for kind, (value, _) in kinds.items()},
        *results(rng, fields),
    )


def listing(rng: random.Random, tool: InventedTool, kinds: Mapping[str, Any]) -> str:
    """A pattern with what the tool is about, and the values."""
    about = tool.action.about if rng.random() < 0.6 else snake(tool.name).replace("_", " ")
    values = [kind for kind in kinds if type_of(kind) != "boolean"]
    if rng.random() < 0.5:
        return f"{about}: " + ", ".join(
            f"{snake(tool.parameters[k]).replace('_', ' ')} {{{k}}}" for k in values
        )
    opened = rng.choice(("I need this: {}", "{}", "Can you do this? {}", "Please do: {}")).format(about)
    return opened + rng.choice((", ", " with ", " for ", " - ")) + ", ".join(f"{{{k}}}" for k in values)


def quotes(rng: random.Random, text: str) -> str:
    """A text as a request may quote it."""
    return rng.choice(("{}", "{}", "'{}'", '"{}"')).format(text)


def results(rng: random.Random, fields: Mapping[str, Any]) -> tuple[str, str]:
    """A tool's result as JSON or as text, and the answer: it repeats the result and adds nothing, as at a temperature of 1 a model of
    this size goes astray in free sentences."""
    told = ", ".join(f"{name}: {value}" for name, value in fields.items())
    if rng.random() < 0.5:
        return json.dumps(fields), told
    if len(fields) > 1:
        return told, told
    (value,) = map(str, fields.values())
    return (json.dumps(value.split(", ")) if ", " in value and rng.random() < 0.5 else value), value


def outcome(rng: random.Random, how: str, spoken: Mapping[str, str]) -> Any:
    """A field of a result."""
    if bounds := re.fullmatch(r"(-?\d+)\.\.(\d+)", how):
        return rng.randint(int(bounds[1]), int(bounds[2]))
    if how == "decimal":
        return round(rng.uniform(1, 900), rng.choice((1, 2)))
    if how == "upper":
        return spoken["phrase"].upper()
    if how in ("hour", "number", "code", "place", "person"):
        return value_of(rng, how)[0]
    return rng.choice(how.split("|"))


def value_of(rng: random.Random, kind: str) -> tuple[Any, str]:
    """A random value, and how a request says it."""
    if kind in INTEGERS:
        number = rng.randint(*INTEGERS[kind])
        return number, NUMBERS.split()[number] if number <= 12 and rng.random() < 0.3 else str(number)
    if kind in ("number", "other"):
        exact = rng.choice((rng.randint(2, 99), rng.randint(100, 9999), round(rng.uniform(1, 200), 1)))
        return exact, str(exact)
    if kind == "money":
        price = rng.choice((rng.randint(2, 900), round(rng.uniform(1, 300), 2)))
        return price, str(price)
    if kind == "on":
        on = rng.random() < 0.5
        return on, "on" if on else "off"
    if kind in FLAGS:
        return True, ""
    if kind == "formula":
        return formula(rng)
    value = text_of(rng, kind)
    return value, value


def text_of(rng: random.Random, kind: str) -> str:
    """A random text of a kind of parameter."""
    if kind == "hour":
        return f"{rng.randint(0, 23)}:{rng.choice(('00', '15', '30', '45', '20', '05'))}"
    if kind == "code":
        letters = "".join(rng.choices("ABCDEFGHKLMNPRSTUVWXZ", k=rng.randint(1, 4)))
        return letters + rng.choice(("", "-")) + str(rng.randint(2, 99999))
    if kind == "file":
        folder = rng.choice(("", "", f"{rng.choice(words.VALUES['folder'])}/"))
        return folder + rng.choice(words.VALUES["file"]) + rng.choice(words.VALUES["ending"])
    if kind == "statement":
        table, column, other = (rng.choice(words.VALUES[k]) for k in ("table", "column", "column"))
        selected = rng.choice(("COUNT(*)", f"MAX({column})", column))
        return f"SELECT {selected} FROM {table}" + rng.choice(("", f" WHERE {other} > {rng.randint(1, 90)}"))
    kind = SAME.get(kind, kind)
    value = rng.choice(words.VALUES[kind])
    if rng.random() < 0.3:
        if kind == "day":
            return f"20{rng.randint(18, 31)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        if kind == "person":
            return f"{value.split()[-1].lower()}@{rng.choice(words.VALUES['word'])}.{rng.choice(('net', 'org', 'de'))}"
        if kind == "topic":
            return f"{value} {rng.choice(('in', 'near'))} {rng.choice(words.VALUES['place'])}"
        if kind in ("phrase", "item"):
            return f"{value} and {rng.choice(words.VALUES[kind])}"
    return value


def formula(rng: random.Random) -> tuple[str, str]:
    """A sum, and how a request says it: with signs or with words."""
    term = said = str(rng.randint(2, 99))
    spelled = rng.random() < 0.5
    for _ in range(rng.choice((1, 1, 2))):
        sign, number = rng.choice(list(SIGNS)), str(rng.randint(2, 99))
        term += f" {sign} {number}"
        said += f" {SIGNS[sign] if spelled else sign} {number}"
    return term, said
