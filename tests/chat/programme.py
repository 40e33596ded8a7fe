"""What every family is asked: prompts, calls, tool loops, thoughts, stops and streams, as a user's agent sees them.

The agent is the OpenAI SDK, unchanged, which capture answers in this process. The engine samples what it is told to and stops
where a real one would: at the first stop token of the request. Where there is none, it goes on with words of another turn.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import openai

from ajet.capture.answers import Answerer
from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Session, current_session
from ajet.capture.targets import Target
from ajet.chat.renderer import Chat
from ajet.testing import ScriptedEngine
from ajet.types import GenerateRequest
from tests.chat.family import Family, tokenizer
from tests.chat.formats import HARMONY, Call
from tests.patience import PATIENCE

CLOSED = "http://127.0.0.1:9/v1"  # the discard port: a request that gets out fails at once
CONTEXT = 1 << 17
GOES_ON = " and so it goes on, turn after turn"
THOUGHT = "Let me see: one and one."
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "What is in the file?"}
REMEDIES = ("call_example", "tool_calls: text")
"""One of these stands in the refusal of a request whose calls could not be read."""


def _tool(name: str, **parameters: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"description": f"the {key}", **value} for key, value in parameters.items()},
        "required": [],
    }
    return {
        "type": "function",
        "function": {"name": name, "description": f"It is called {name}.", "parameters": schema},
    }


TOOLS = [
    _tool(
        "write",
        text={"type": "string"},
        n={"type": "integer"},
        x={"type": "number"},
        on={"type": "boolean"},
        items={"type": "array", "items": {}},
        options={"type": "object", "additionalProperties": True},
        maybe={"type": ["integer", "null"]},
    ),
    _tool("get-weather", city={"type": "string"}, days={"type": "integer"}),
    _tool("ping"),
]
NESTED = {"options": {"a": [1, {"b": ["c", None, False]}], "d": {"e": 1.5}}, "items": ["x", 2]}


@dataclass(frozen=True)
class Case:
    """One answer of the battery."""

    calls: Sequence[Call]
    text: str = ""
    thought: str = ""


def _writes(text: str) -> Case:
    return Case([("write", {"text": text, "n": 2})])


CASES: dict[str, Case] = {
    "plain": Case([("write", {"text": "Bern", "n": 2, "on": True})]),
    "nested": Case([("write", NESTED)]),
    "numbers": Case([("write", {"n": -3, "x": 2.5})]),
    "digits": _writes("8001"),
    "a boolean as text": _writes("true"),
    "null as text": _writes("null"),
    "JSON as text": _writes('{"a": 1}'),
    "quoted": _writes('"x"'),
    "quotes": _writes('He said "hi", it\'s \\ fine'),
    "lines": _writes("def f():\n    return 1\n\nf()"),
    "leading space": _writes("  \n  x"),
    "trailing space": _writes("x  \n"),
    "unicode": _writes("Zürich 日本 🙂 <b>&amp;"),
    "null": Case([("write", {"maybe": None, "n": 1})]),
    "empty": _writes(""),
    "no arguments": Case([("ping", {})]),
    "two": Case([("write", {"text": "1"}), ("ping", {})]),
    "dash": Case([("get-weather", {"city": "Bern", "days": 2})]),
    "text before": Case([("write", {"text": "a"})], text="Let us see."),
    "thought before": Case([("write", {"text": "a"})], thought=THOUGHT),
}


@dataclass
class Result:
    """What was found of a family."""

    family: Family
    shows_tools: bool = False
    refusal: str = ""
    """The refusal of a request with tools that names a remedy; empty if there was none."""
    template_refuses: str = ""
    """The error of the template itself, for a chat that transformers cannot render either."""
    by_example: bool | None = None
    """Whether calls are read once the user gives an example; None if it was not needed."""
    lost: dict[str, list[str]] = field(default_factory=dict)
    """By the text that was sampled: cases whose call became text without being counted."""
    faults: list[str] = field(default_factory=list)
    loop: int | None = None
    """Timelines of a tool loop of four calls; None if there was none."""
    plain: tuple[int, int] = (0, 0)
    """Timelines of four turns whose thoughts the client drops, and returns."""
    stops: Sequence[str] = ()
    described: str = ""
    """How calls are read, in the words of the product."""

    @property
    def is_complete(self) -> bool:
        """Whether everything is right without an example from the user."""
        return not (self.faults or self.lost or self.refusal or self.template_refuses)

    @property
    def why(self) -> str:
        """Why it is not complete, in one line."""
        found = [f"calls lost in the {source}: {_named(cases)}" for source, cases in self.lost.items()]
        if self.template_refuses:
            found.append(f"the template raises an error: {self.template_refuses}")
        if self.refusal:
            known = {None: "", True: "; read with an example", False: "; not read with an example either"}
            found.append(f"refused{known[self.by_example]}")
        return "; ".join([*found, *self.faults])


def _named(cases: Sequence[str]) -> str:
    return ", ".join(cases) if len(cases) < 8 else f"{len(cases)} cases"


# ------------------------------------------------------------------ the agent


@dataclass
class Reply:
    """What the agent was given."""

    content: str
    reasoning: str
    calls: list[tuple[str, str, str]]
    """Id, name and arguments as JSON text."""
    reason: str

    @property
    def said(self) -> tuple[str, str, list[tuple[str, str]], str]:
        """Everything but the calls' ids, which are other ones in each session."""
        return self.content, self.reasoning, [call[1:] for call in self.calls], self.reason

    def message(self, reasoning: bool = False) -> dict[str, Any]:
        """The message that an agent sends back."""
        made: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.calls:
            made["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
                for i, name, arguments in self.calls
            ]
        else:
            made["content"] = self.content
        return made | ({"reasoning_content": self.reasoning} if reasoning and self.reasoning else {})


class Refusal(Exception):
    """The answer 400."""


@dataclass
class Agent:
    """A user's agent in a session of its own; its model samples what it is told to."""

    session: Session
    engine: ScriptedEngine
    answers: list[str]

    def ask(
        self, messages: Sequence[Any], sampled: str, *, tools: bool = True, stream: bool = False
    ) -> Reply:
        """One request. Raises Refusal."""
        self.answers[:] = [sampled]
        asked: dict[str, Any] = {"model": "m", "messages": list(messages), "stream": stream}
        if tools:
            asked["tools"] = TOOLS
        token = current_session.set(self.session)
        try:
            reply = _SDK.chat.completions.create(**asked)
            return _streamed(reply) if stream else _whole(reply)
        except openai.APIStatusError as error:
            raise Refusal(str(error)) from None
        except openai.APIError as error:
            raise Refusal(str(error)) from None
        finally:
            current_session.reset(token)

    @property
    def malformed(self) -> int:
        """How many calls were counted as unreadable."""
        return self.session.counters["malformed_tool_calls"]

    def prompt(self, call: int = -1) -> list[int]:
        """The ids of a prompt that the engine was given."""
        return list(self.engine.requests[call].prompt_ids.tolist())

    def sampled(self, call: int) -> list[int]:
        """The ids that it sampled."""
        return list(self.session.record.calls[call].generation.token_ids.tolist())


_SDK = openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=0)


def _whole(reply: Any) -> Reply:
    (choice,) = reply.choices
    said = choice.message
    calls = [(c.id, c.function.name, c.function.arguments) for c in said.tool_calls or ()]
    reasoning = getattr(said, "reasoning_content", None) or ""
    return Reply(said.content or "", reasoning, calls, choice.finish_reason)


def _streamed(chunks: Any) -> Reply:
    content, reasoning, reason = "", "", ""
    calls: dict[int, list[str]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            reason = choice.finish_reason or reason
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(piece.index, ["", "", ""])
                parts = (piece.id, piece.function.name, piece.function.arguments)
                for place, part in enumerate(parts):
                    call[place] += part or ""
    return Reply(content, reasoning, [(c[0], c[1], c[2]) for c in calls.values()], reason)


@dataclass
class Stage:
    """A family's model behind capture."""

    family: Family
    capture: Capture
    portal: Portal
    chat: Chat
    tokenizer: Any

    @contextmanager
    def agent(self, name: str) -> Iterator[Agent]:
        """An agent in a session of its own."""
        answers: list[str] = []

        def script(request: GenerateRequest, prompt: str) -> list[int]:
            ids: list[int] = self.tokenizer.encode(answers.pop() + GOES_ON, add_special_tokens=False)
            ends = [place for place, i in enumerate(ids) if i in request.sampling.stop_token_ids]
            return ids[: ends[0] + 1] if ends else ids

        engine = ScriptedEngine(
            self.tokenizer, script, context_length=CONTEXT, model_type=self.family.model_type
        )
        self.portal.submit(engine.start()).result(PATIENCE)
        policy = SamplingPolicy(training=True)
        session = Session(name, name, Answerer(engine, self.chat, (Target("policy"),), policy))
        self.capture.open(session)
        try:
            yield Agent(session, engine, answers)
        finally:
            asyncio.run(self.capture.end(session))


def make_chat(family: Family, example: str = "") -> Chat:
    """The family's chat format, with what a user sets."""
    named = tokenizer(family)
    wanted: dict[str, Any] = {
        "variables": family.variables,
        "stops": [i for i in map(named.convert_tokens_to_ids, family.ends) if i is not None],
        "call_example": example,
    }
    taken = inspect.signature(Chat).parameters
    return Chat(named, family.model_type, **{k: v for k, v in wanted.items() if k in taken})


@contextmanager
def stage(family: Family, chat: Chat) -> Iterator[Stage]:
    """Capture, installed while a family is asked."""
    portal = Portal()
    capture = Capture(portal)
    try:
        with capture:
            yield Stage(family, capture, portal, chat, tokenizer(family))
    finally:
        portal.close()


# ------------------------------------------------------------------ what the template writes


def render(family: Family, messages: Sequence[Any], tools: bool, generate: bool = True) -> str:
    """The template's text, as transformers gives it."""
    text: str = tokenizer(family).apply_chat_template(
        list(messages),
        tools=TOOLS if tools else None,
        tokenize=False,
        add_generation_prompt=generate,
        **family.variables,
    )
    return text


def _forms(messages: Sequence[Mapping[str, Any]], in_parts: bool) -> Iterator[list[dict[str, Any]]]:
    """The forms in which a chat may be given to a template: arguments as objects or text, no text as "" or null, thoughts
    with or without; ``in_parts``: texts in parts."""
    seen: list[Any] = []
    for as_text, empty, thoughts in product((False, True), ("", None), (True, False)):
        form = [_form(m, in_parts, as_text, empty, thoughts) for m in messages]
        if form not in seen:
            seen.append(form)
            yield form


def _form(
    message: Mapping[str, Any], in_parts: bool, as_text: bool, empty: str | None, thoughts: bool
) -> dict[str, Any]:
    made = {**message}
    reasoning = made.pop("reasoning_content", None)
    if reasoning and thoughts:
        made |= {"reasoning_content": reasoning, "reasoning": reasoning, "thinking": reasoning}
    if made.get("tool_calls"):
        made["content"] = made["content"] or empty
        made["tool_calls"] = [
            {**c, "function": {**c["function"], "arguments": _arguments(c, as_text)}}
            for c in made["tool_calls"]
        ]
    if in_parts and isinstance(made["content"], str):
        made["content"] = [{"type": "text", "text": made["content"]}]
    return made


def _arguments(call: Mapping[str, Any], as_text: bool) -> Any:
    arguments = call["function"]["arguments"]
    if as_text:
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def texts_of(
    family: Family,
    messages: Sequence[Any],
    tools: bool,
    generate: bool = True,
    errors: list[str] | None = None,
) -> Iterator[str]:
    """The template's texts of a chat in all forms that it takes, the usual one first. What it raises is added to ``errors``."""
    for form in _forms(messages, family.in_parts):
        try:
            yield render(family, form, tools, generate)
        except Exception as error:
            if errors is not None:
                errors.append(f"{type(error).__name__}: {error}")


def _beginnings(family: Family, prompt: str) -> list[tuple[str, str]]:
    """A prompt, and the same without the thought that it opens or closes; and what the model has to sample first."""
    found = [(prompt, "")]
    if family.thought:
        begin, end = family.thought
        found.append((_without(prompt, begin), end))
    for marks in ("<think>\n\n</think>\n\n", "<think></think>", "</think>", "<|channel>thought\n<channel|>"):
        found.append((_without(prompt, marks), ""))
    return [(text, first) for text, first in found if text]


def _without(text: str, end: str) -> str:
    bare, mark = text.rstrip(), end.strip()
    return bare[: -len(mark)] if mark and bare.endswith(mark) else ""


def by_template(family: Family, prompt: str, messages: Sequence[Any], case: Case) -> str | None:
    """What the template itself writes for an answer, as a model would sample it; None if it does not write all of it."""
    # Some templates write ids in the place of names.
    for form in ("c4ll{index:05}", "functions.{name}:{index}"):
        ids = [form.format(name=name, index=i) for i, (name, _) in enumerate(case.calls)]
        calls = [
            {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in zip(ids, case.calls, strict=True)
        ]
        answer = {"role": "assistant", "content": case.text, "tool_calls": calls}
        if case.thought or (family.thought and opens(prompt, family.thought[0])):
            answer["reasoning_content"] = case.thought or THOUGHT
        results = [{"role": "tool", "tool_call_id": i, "content": "zqdone"} for i in ids]
        for after in ([], results):
            for text in texts_of(family, [*messages, answer, *after], True, False):
                for begin, first in _beginnings(family, prompt):
                    tail = text[len(begin) :].partition("zqdone")[0]
                    if text.startswith(begin) and _shows(family, tail, case):
                        return tail if first.strip() and tail.startswith(first.strip()) else first + tail
    return None


def _shows(family: Family, text: str, case: Case) -> bool:
    assert family.calls
    python = "{'" in text and not family.calls.is_lossy
    calls = all(name in text and all(key in text for key in args) for name, args in case.calls)
    return calls and case.text in text and case.thought in text and not python


# ------------------------------------------------------------------ what the model samples


def opens(prompt: str, begin: str) -> bool:
    """Whether a prompt ends with what begins a thought, or an answer's text."""
    return bool(begin.strip()) and prompt.rstrip().endswith(begin.strip())


def own(family: Family, prompt: str, case: Case, index: int = 0, end: str | None = None) -> str:
    """What the family's model samples after a prompt; ``index`` is the number of earlier calls."""
    out = ""
    if family.thought:
        begin, after = family.thought
        if opens(prompt, begin):
            out += (case.thought or "") + after
        elif case.thought:
            out += begin + case.thought + after
    if not case.calls:
        begin, after = family.said
        begin = "" if opens(prompt, begin) and not out else begin
        return out + begin + case.text + after + (family.end if end is None else end)
    assert family.calls
    begin, after = family.said_with_calls or ("", "")
    always = family.said_with_calls == family.said != ("", "")
    if case.text or always:
        out += begin + case.text + after + (family.after_text if case.text else "")
    return out + family.calls.text(case.calls, index) + (family.calls_end or family.end)


def marks(family: Family) -> str:
    """The markers of the family's calls as words in a sentence; those that end an answer or quote values are left out."""
    assert family.calls
    text = family.calls.text([("write", {"text": "x"})])
    found = dict.fromkeys(re.findall(r"<[^<>\n]*>|\[/?[A-Z_]+\]|functools|Action:", text))
    usable = [m for m in found if m not in (*family.ends, '<|"|>', "<escape>")]
    return " and ".join([*usable[::-1], "so on"])


# ------------------------------------------------------------------ cut answers

WORDS = "\nNow the other one.\n"


def faults_of_cuts(
    chat: Chat, tail: list[int], text: str, first: int, wanted: Sequence[Call]
) -> Iterator[str]:
    """What is wrong where an answer is cut after any of its tokens, and where it is not cut. ``first``: where the first
    call is complete at the latest; ``wanted``: the calls of the whole answer. What follows them is malformed."""
    ids = chat.tokenizer.encode(text, add_special_tokens=False)
    reader, said = chat.reader(tail, TOOLS), ""
    assert reader
    for n in range(len(ids) + 1):
        cut = chat.tokenizer.decode(ids[:n])
        parsed = chat.parse(ids[:n], tail, TOOLS)
        called = [(name, json.loads(arguments)) for name, arguments in parsed.tool_calls]
        if called != [*wanted][: len(called)]:
            yield f"calls {called} after {cut[-30:]!r}"
        begun = sum(
            name in cut and next(iter(arguments)) in cut.partition(name)[2] for name, arguments in wanted
        )
        if len(called) + sum(parsed.counts.values()) < begun:
            yield f"a call is lost after {cut[-30:]!r}"
        if len(cut) >= first and not called:
            yield f"a complete call is none after {cut[-30:]!r}"
        if not parsed.content.startswith(said):
            yield f"the stream has given {said!r}, not {parsed.content!r}"
        said += "".join(t for kind, t in reader.read(ids[n]) if kind == "content") if n < len(ids) else ""
    whole = chat.parse([*ids, chat.stop_token_ids[0]], tail, TOOLS)
    called = [(name, json.loads(arguments)) for name, arguments in whole.tool_calls]
    if called != [*wanted] or (len(called) < text.count(WORDS) + 1) > sum(whole.counts.values()):
        yield f"calls {called}, counts {dict(whole.counts)}"
    if not whole.content.startswith(said):
        yield f"the stream has given {said!r}, not {whole.content!r}"
    words = WORDS.strip() in text
    if words != (WORDS.strip() in whole.content):
        yield f"the content is {whole.content!r}"


def common_end(one: str, two: str) -> str:
    """What two texts end with."""
    same = next((n for n, (a, b) in enumerate(zip(one[::-1], two[::-1], strict=False)) if a != b), len(two))
    return one[len(one) - same :]


# ------------------------------------------------------------------ the programme


def run(family: Family) -> Result:
    """Ask a family everything."""
    result = Result(family)
    chat = make_chat(family)
    result.described = str(chat.found)
    with stage(family, chat) as made:
        Programme(made, result).run()
    if result.refusal and family.calls and "call_example" in inspect.signature(Chat).parameters:
        example = family.calls.text([("NAME", {"KEY": "VALUE"})])
        again = Result(family)
        with stage(family, make_chat(family, example)) as made:
            Programme(made, again).run()
        result.by_example = again.is_complete
        result.faults += [f"with an example: {again.why}"] if not again.is_complete else []
    return result


@dataclass
class Programme:
    """The steps, on one chat format."""

    stage: Stage
    result: Result

    @property
    def family(self) -> Family:
        """The family that is asked."""
        return self.stage.family

    @property
    def chat(self) -> list[Any]:
        """The chat that the steps begin with."""
        return [SYSTEM, QUESTION] if self.family.system else [QUESTION]

    def fault(self, text: str) -> None:
        """Note what is wrong."""
        if text not in self.result.faults:
            self.result.faults.append(text)

    def run(self) -> None:
        """All steps."""
        plain, error = self._prompt(tools=False)
        with_tools = None
        if self.family.calls:
            with_tools, tools_error = self._prompt(tools=True)
            if with_tools is None:
                self.result.template_refuses = tools_error
        elif plain is None:
            self.result.template_refuses = error
        if plain is not None:
            self._first_prompt(tools=False)
            self._plain_chat(returned=False)
            self._plain_chat(returned=True)
            self._stops(plain)
            self._streams(plain, tools=False)
        if with_tools is not None:
            self.result.shows_tools = "get-weather" in with_tools
            if not self._first_prompt(tools=True):
                return
            self._battery(with_tools)
            self._calls_at_every_cut(with_tools)
            self._not_offered(plain, with_tools)
            self._loop()
            self._streams(with_tools, tools=True)

    def _prompt(self, tools: bool) -> tuple[str | None, str]:
        return self._text(self.chat, tools)

    def _text(self, chat: Sequence[Any], tools: bool) -> tuple[str | None, str]:
        """The template's text of a chat, or why there is none."""
        errors: list[str] = []
        for text in texts_of(self.family, chat, tools, errors=errors):
            return text, ""
        return None, errors[0]

    def _first_prompt(self, tools: bool) -> bool:
        """The first prompt is what the tokenizer's template gives. False if the request was refused."""
        hello = own(self.family, self._prompt(tools)[0] or "", Case([], "Hello."))
        with self.stage.agent(f"first {tools}") as agent:
            try:
                agent.ask(self.chat, hello, tools=tools)
            except Refusal as refusal:
                self._refused(str(refusal), tools)
                return False
            wanted = [
                self.stage.tokenizer.encode(text, add_special_tokens=False)
                for text in texts_of(self.family, self.chat, tools)
            ]
            if agent.prompt() not in wanted:
                self.fault(f"the first prompt{' with tools' if tools else ''} differs from the template's")
            named = self.stage.tokenizer.convert_ids_to_tokens
            self.result.stops = named(list(agent.engine.requests[-1].sampling.stop_token_ids))
        return True

    def _refused(self, message: str, tools: bool) -> None:
        if tools and any(remedy in message for remedy in REMEDIES):
            self.result.refusal = message
        else:
            self.fault(f"refused: {message[:160]}")

    # -------------------------------------------------------------- calls

    def _battery(self, prompt: str) -> None:
        assert self.family.calls
        cases = {**CASES, "markers": _writes(marks(self.family))}
        wrong: dict[str, list[str]] = {"own text": [], "template's text": []}
        with self.stage.agent("battery") as agent:
            for name, case in cases.items():
                if self._is_possible(case, prompt):
                    for source in wrong:
                        self._read(agent, source, name, case, prompt, wrong[source])
            for name, (sampled, wanted) in self.family.also.items():
                self._judge(agent, "own text", name, Case(wanted), sampled, wrong["own text"])
        for source, names in wrong.items():
            if names:
                self.fault(f"wrong calls in the {source}: {_named(names)}")

    def _is_possible(self, case: Case, prompt: str) -> bool:
        """Whether the family's model can answer so, in this prompt."""
        thinks = self.family.thought is not None or not case.thought
        speaks = self.family.said_with_calls is not None or not case.text
        return thinks and speaks and (self.family.parallel or len(case.calls) < 2)

    def _read(self, agent: Agent, source: str, name: str, case: Case, prompt: str, wrong: list[str]) -> None:
        family = self.family
        assert family.calls
        if source == "own text":
            sampled: str | None = own(family, prompt, case)
        elif family.unwritten or family.calls.is_lossy:
            return
        else:
            written = by_template(family, prompt, self.chat, case)
            sampled = written and written + (family.calls_end or family.end)
        if sampled is None:  # of answers with text or thoughts, some templates write only parts
            if name == "plain":
                self.fault("the template writes no calls, which the table does not say")
            return
        self._judge(agent, source, name, case, sampled, wrong)

    def _judge(
        self, agent: Agent, source: str, name: str, case: Case, sampled: str, wrong: list[str]
    ) -> None:
        counted = agent.malformed
        try:
            reply = agent.ask(self.chat, sampled)
        except Refusal as refusal:
            self._refused(str(refusal), True)
            return
        if not reply.calls:
            if self.result.shows_tools and agent.malformed == counted:
                self.result.lost.setdefault(source, []).append(name)
            elif self.result.shows_tools:
                wrong.append(f"{name} (counted)")
            return
        if not self._is_right(reply, case):
            wrong.append(name)

    def _is_right(self, reply: Reply, case: Case) -> bool:
        read = [(name, _typed(json.loads(arguments))) for _, name, arguments in reply.calls]
        wanted = [(name, _typed(arguments)) for name, arguments in case.calls]
        return (
            read == wanted
            and reply.reason == "tool_calls"
            and reply.content.strip() == case.text
            and (not case.thought or reply.reasoning.strip() == case.thought)
        )

    def _calls_at_every_cut(self, prompt: str) -> None:
        """Wherever an answer is cut: what is complete is called as in the whole answer, and nothing else; what has begun
        is counted, and the stream has given the beginning of the content."""
        calls, chat = self.family.calls, self.stage.chat
        if chat.calls_fault or not self.result.shows_tools or not calls:
            return
        first: Call = ("write", {"text": "a <b> c", "n": 2})
        second: Call = ("get-weather", {"city": "Bern", "days": 2})
        ending = self.family.calls_end or self.family.end
        begun = own(self.family, prompt, Case([first])).removesuffix(ending)
        other = calls.text([second], 1)
        broken = other[: other.index("Bern")] + common_end(other, calls.text([("ping", {})], 1))
        answers = {"words between calls": (begun + WORDS + other, [first, second])}
        if not calls.as_text:
            answers["a malformed second call"] = (begun + WORDS + broken, [first])
        if self.family.parallel:
            listed = own(self.family, prompt, Case([first, second]))
            answers["two calls"] = (listed.removesuffix(ending), [first, second])
        if self.family.thought:
            thinking = own(self.family, prompt, Case([second], thought=calls.text([first])))
            answers["a call within a thought"] = (thinking.removesuffix(ending), [second])
        if calls is HARMONY:  # its messages are calls or text
            begun += ending
            answers = {"a call": (begun, [first])}
        tail = chat.render(self.chat, TOOLS)[-64:]
        for name, (text, wanted) in answers.items():
            complete = len(begun) if wanted[0] == first else len(text)
            for fault in faults_of_cuts(chat, tail, text, complete, wanted):
                self.fault(f"{name}: {fault}")

    def _not_offered(self, plain: str | None, with_tools: str) -> None:
        """Without tools there are no calls, and none of other tools than those of the request."""
        for prompt, name, tools in ((plain, "ping", False), (with_tools, "erase", True)):
            if prompt is not None:
                with self.stage.agent(f"not offered {tools}") as agent:
                    try:
                        reply = agent.ask(
                            self.chat, own(self.family, prompt, Case([(name, {})])), tools=tools
                        )
                    except Refusal as refusal:
                        self._refused(str(refusal), tools)
                        continue
                    if reply.calls:
                        self.fault("a tool is called that the request does not offer")

    def _loop(self) -> None:
        """Three rounds of tools and an answer. Each break has to be the template's."""
        rounds = [
            Case([("write", NESTED)], "I look." if self.family.said_with_calls is not None else "", THOUGHT),
            Case([("write", {"text": "1"}), ("get-weather", {"city": "Bern", "days": 2})], thought=THOUGHT),
            Case([("ping", {})], thought=THOUGHT),
            Case([], "It is done.", THOUGHT),
        ]
        chat, index = list(self.chat), 0
        complete = list(self.chat)
        with self.stage.agent("loop") as agent:
            for case in rounds:
                calls = case.calls if self.family.parallel else case.calls[:1]
                case = Case(calls, case.text, case.thought)
                prompt, error = self._text(complete, True)
                if prompt is None:
                    self.result.template_refuses = error
                    return
                try:
                    reply = agent.ask(chat, own(self.family, prompt, case, index))
                except Refusal as refusal:
                    self._refused(str(refusal), True)
                    return
                if case.calls and not reply.calls:
                    return  # the battery has said so
                index += len(case.calls)
                results = [
                    {"role": "tool", "tool_call_id": i, "content": f"result {place}"}
                    for place, (i, _, _) in enumerate(reply.calls)
                ]
                chat += [reply.message(), *results]
                complete += [reply.message(reasoning=True), *results]
            self.result.loop = self._timelines(agent, complete, True, "the tool loop")

    def _timelines(self, agent: Agent, chat: Sequence[Any], tools: bool, where: str) -> int:
        """How many timelines an agent's calls are. A break that is not the template's is a fault, and so is a prompt that
        goes on otherwise than the template does."""
        answers = [place for place, m in enumerate(chat) if m["role"] == "assistant"]
        decode = self.stage.tokenizer.decode
        lines = 1
        for call in range(1, len(agent.engine.requests)):
            texts = list(texts_of(self.family, chat[: answers[call]], tools))
            before, now = [*agent.prompt(call - 1), *agent.sampled(call - 1)], agent.prompt(call)
            if now[: len(before)] == before:
                new = "".join(decode(now[len(before) :]).split())
                if texts and not any("".join(text.split()).endswith(new) for text in texts):
                    self.fault(f"{where} goes on otherwise than the template")
                continue
            lines += 1
            if any(text.startswith(decode(before)) for text in texts):
                self.fault(f"{where} breaks where the template does not")
            if now not in [self.stage.tokenizer.encode(text, add_special_tokens=False) for text in texts]:
                self.fault(f"after a break in {where} the prompt differs from the template's")
        return lines

    # -------------------------------------------------------------- chats, thoughts, stops, streams

    def _plain_chat(self, returned: bool) -> None:
        """Four turns. Thoughts are not part of the content, and each break has to be the template's."""
        chat, complete = list(self.chat), list(self.chat)
        with self.stage.agent(f"plain {returned}") as agent:
            for turn in range(4):
                text, error = self._text(complete, False)
                if text is None:
                    self.result.template_refuses = error
                    return
                case = Case([], f"The answer is {turn}.", THOUGHT if self.family.thought else "")
                try:
                    reply = agent.ask(chat, own(self.family, text, case), tools=False)
                except Refusal as refusal:
                    self._refused(str(refusal), False)
                    return
                if (reply.content.strip(), reply.reasoning.strip()) != (case.text, case.thought):
                    self.fault("thoughts are not read" if case.thought else "the content is not the answer's")
                more = {"role": "user", "content": f"And {turn}?"}
                chat += [reply.message(reasoning=returned), more]
                complete += [reply.message(reasoning=True), more]
            lines = self._timelines(agent, complete, False, "a chat")
        dropped, sent = self.result.plain
        self.result.plain = (dropped, lines) if returned else (lines, sent)

    def _stops(self, prompt: str) -> None:
        """Every expected stop is one, and its text is never part of the content."""
        missing = [stop for stop in self.family.ends if not self._ends_with(stop, prompt)]
        if missing:
            self.fault(f"missing stops: {' '.join(missing)}")

    def _ends_with(self, stop: str, prompt: str) -> bool:
        with self.stage.agent(f"stop {stop}") as agent:
            reply = agent.ask(self.chat, own(self.family, prompt, Case([], "Hello."), end=stop), tools=False)
            token = self._last(stop)
            if reply.content.strip() != "Hello.":
                self.fault(f"content after the stop {stop}: {reply.content[:60]!r}")
            return token in agent.engine.requests[-1].sampling.stop_token_ids

    def _last(self, text: str) -> int:
        """The token that a turn's end ends with."""
        ids: list[int] = self.stage.tokenizer.encode(text, add_special_tokens=False)
        return ids[-1]

    def _streams(self, prompt: str, tools: bool) -> None:
        """A stream, token by token, gives what the whole answer gives."""
        thought = THOUGHT if self.family.thought else ""
        cases = [Case([], "It is done: 日本.", thought)]
        if tools:
            text = "Let us see." if self.family.said_with_calls is not None else ""
            cases += [Case([("write", NESTED)], text, thought)]
            cases += [CASES["two"]] if self.family.parallel else []
        for place, case in enumerate(cases):
            sampled = own(self.family, prompt, case)
            replies = []
            for stream in (False, True):
                with self.stage.agent(f"stream {tools} {place}") as agent:
                    try:
                        replies.append(agent.ask(self.chat, sampled, tools=tools, stream=stream).said)
                    except Refusal as refusal:
                        self._refused(str(refusal), tools)
                        return
            if replies[0] != replies[1]:
                self.fault(f"a stream differs from the whole answer: {replies[1]!r}, not {replies[0]!r}")


def _typed(value: Any) -> str:
    """A value as text in which 1, 1.0, true and "1" differ."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
