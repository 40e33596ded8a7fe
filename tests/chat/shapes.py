"""Chat templates in the shape of those that models are published with, built from their parts.

A shape says how turns begin and end, where tools are shown, how calls, thoughts and results are written, which messages
lose their thoughts, and what raises an error. The words of the instructions are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tests.chat.formats import HERMES, Calls, say

Turn = tuple[str, str]
"""What is written before and after a message."""


@dataclass(frozen=True)
class Thought:
    """How a template writes thoughts."""

    begin: str
    end: str
    keep: Literal["loop", "all", "none", "after_answer"] = "loop"
    """Whose thoughts are written: ``loop`` those after the last user message, ``after_answer`` those after the last
    answer without calls."""
    without: str = ""
    """Written in an answer whose thoughts are not."""
    without_in_loop: str | None = None
    """The same for an answer after the last user message; None if it is `without`."""

    def jinja(self) -> str:
        """What writes the thoughts of the message ``m``."""
        kept = {
            "loop": "loop.index0 > ns.user",
            "all": "true",
            "none": "false",
            "after_answer": "loop.index0 > ns.answer",
        }[self.keep]
        without = say(self.without)
        if self.without_in_loop is not None:
            without = (
                "{%- if loop.index0 > ns.user -%}"
                + say(self.without_in_loop)
                + "{%- else -%}"
                + without
                + "{%- endif -%}"
            )
        return (
            "{%- if m.reasoning_content and "
            + kept
            + " -%}"
            + say(self.begin)
            + "{{- m.reasoning_content -}}"
            + say(self.end)
            + "{%- else -%}"
            + without
            + "{%- endif -%}"
        )


TOOLS = "{%- for tool in tools -%}{{- '\\n' ~ (tool | tojson) -}}{%- endfor -%}"
_LAST = (
    "{%- set ns = namespace(user=-1, answer=-1, calls=none) -%}{%- for m in rest -%}"
    "{%- if m.role == 'user' -%}{%- set ns.user = loop.index0 -%}{%- endif -%}"
    "{%- if m.role == 'assistant' and not m.tool_calls -%}{%- set ns.answer = loop.index0 -%}{%- endif -%}"
    "{%- endfor -%}"
)


@dataclass(frozen=True)
class Shape:
    """A template's parts. ``user``, ``assistant``, ``tool`` and ``system`` are turns; Jinja stands where it is said so."""

    user: Turn
    assistant: Turn
    tool: Turn
    system: Turn
    begin: str = ""
    """Jinja at the beginning."""
    calls: Calls | None = None
    """None if the template does not write calls."""
    example: Calls | None = None
    """The calls that the instructions show as an example; None if they are `calls`."""
    thought: Thought | None = None
    tools: Literal["system", "before_last_user", "own_turn", "hidden"] = "system"
    """Where tools are shown."""
    tools_turn: Turn = ("\n\n# Tools\nThese functions can be called:", "")
    results: Turn = ("", "")
    """What surrounds results that follow each other."""
    content: str = "m.content or ''"
    """Jinja expression of an answer's text."""
    said: Turn = ("", "")
    """What surrounds an answer's text."""
    said_always: bool = False
    """Whether that is written around an empty text, too."""
    text_before_calls: bool = True
    after_text: str = ""
    """Between an answer's text and its calls."""
    ask: str | None = None
    """Jinja that begins an answer; None if it is the assistant turn's beginning."""
    asks_after_results: bool = True
    calls_end: str | None = None
    """What ends an answer with calls; None if it is what ends others."""
    merge_system: bool = False
    """Whether the system message is part of the first user message."""
    checks: str = ""
    """Jinja that may raise an error."""

    def template(self) -> str:
        """The template."""
        show = say(self.tools_turn[0]) + TOOLS + say(self.tools_turn[1]) + self._instructions()
        asked = say(self.assistant[0]) if self.ask is None else self.ask
        if not self.asks_after_results:
            asked = "{%- if messages[-1].role != 'tool' -%}" + asked + "{%- endif -%}"
        return (
            "{%- set has_system = messages and messages[0].role == 'system' -%}"
            "{%- set system = messages[0].content if has_system else '' -%}"
            "{%- set rest = messages[1:] if has_system else messages -%}"
            + self.begin
            + self.checks
            + _LAST
            + self._system(show)
            + "{%- for m in rest -%}"
            + "{%- if m.role == 'user' -%}"
            + (
                "{%- if tools and loop.index0 == ns.user -%}" + show + "{%- endif -%}"
                if self.tools == "before_last_user"
                else ""
            )
            + say(self.user[0])
            + (
                "{%- if loop.first and system -%}{{- system ~ '\\n\\n' -}}{%- endif -%}"
                if self.merge_system
                else ""
            )
            + "{{- m.content -}}"
            + say(self.user[1])
            + "{%- elif m.role == 'assistant' -%}"
            + self._answer()
            + "{%- elif m.role == 'tool' -%}"
            + "{%- if loop.first or rest[loop.index0 - 1].role != 'tool' -%}"
            + say(self.results[0])
            + "{%- endif -%}"
            + say(self.tool[0])
            + "{{- m.content -}}"
            + say(self.tool[1])
            + "{%- if loop.last or rest[loop.index0 + 1].role != 'tool' -%}"
            + say(self.results[1])
            + "{%- endif -%}"
            + "{%- elif m.role == 'system' -%}"
            + say(self.system[0])
            + "{{- m.content -}}"
            + say(self.system[1])
            + "{%- else -%}{{- raise_exception('no such role: ' ~ m.role) -}}{%- endif -%}"
            + "{%- endfor -%}"
            + "{%- if add_generation_prompt -%}"
            + asked
            + "{%- endif -%}"
        )

    def _instructions(self) -> str:
        shown = self.example or self.calls
        if shown is None or shown.as_text or shown.is_lossy:
            return ""
        example = shown.text([("NAME", {"KEY": "VALUE"})])
        return say(f"\nA call is written so:\n{example}\n") if example else ""

    def _system(self, show: str) -> str:
        if self.merge_system:
            return ""
        own = "{%- if tools -%}" + show + "{%- endif -%}"
        with_tools = own if self.tools == "system" else ""
        when = "system or tools" if self.tools == "system" else "system"
        first = (
            "{%- if "
            + when
            + " -%}"
            + say(self.system[0])
            + "{{- system -}}"
            + with_tools
            + say(self.system[1])
            + "{%- endif -%}"
        )
        return first if self.tools != "own_turn" else own + first

    def _answer(self) -> str:
        begin, end = self.said
        text = say(begin) + "{{- text -}}" + say(end)
        if not self.said_always:
            text = "{%- if text or not m.tool_calls -%}" + text + "{%- endif -%}"
        if not self.text_before_calls:
            text = "{%- if not m.tool_calls -%}" + text + "{%- endif -%}"
        calls = ""
        if self.calls:
            calls = (
                "{%- if m.tool_calls and text -%}"
                + say(self.after_text)
                + "{%- endif -%}"
                + self.calls.jinja()
            )
        ending = say(self.assistant[1])
        if self.calls_end is not None:
            ending = (
                "{%- if m.tool_calls -%}" + say(self.calls_end) + "{%- else -%}" + ending + "{%- endif -%}"
            )
        return (
            say(self.assistant[0])
            + (self.thought.jinja() if self.thought else "")
            + "{%- set text = "
            + self.content
            + " -%}"
            + text
            + calls
            + ending
        )


def turns(begin: str, end: str, names: Mapping[str, str] | None = None) -> dict[str, Turn]:
    """The four turns of a shape whose beginnings differ in the role's name alone, which is ROLE in ``begin``."""
    names = {r: r for r in ("user", "assistant", "tool", "system")} | dict(names or {})
    return {role: (begin.replace("ROLE", name), end) for role, name in names.items()}


CHATML = Shape(
    **{  # type: ignore[arg-type]
        **turns("<|im_start|>ROLE\n", "<|im_end|>\n"),
        "tool": ("\n<tool_response>\n", "\n</tool_response>"),
        "results": ("<|im_start|>user", "<|im_end|>\n"),
    },
    calls=HERMES,
    after_text="\n",
)


def but(shape: Shape, **changes: object) -> str:
    """The template of a shape with some other parts."""
    return replace(shape, **changes).template()  # type: ignore[arg-type]
