"""A chat template, compiled once, with transformers' rules for chat templates.

`tokenizer.apply_chat_template` copies every message of every chat. A conversation renders its growing chat again and
again, so here the caller keeps its messages, and Jinja reads their fields directly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_METHODS = frozenset(dir(dict))
_FORMATTING = ("format", "format_map")
_KEPT_JSON = 1 << 16


@lru_cache(64)
def compiled(source: str) -> ChatTemplate:
    """The template with this source. Compiling takes as long as a hundred renderings. Raises jinja2's TemplateError for a
    source that is not a template."""
    return ChatTemplate(source)


class ChatTemplate:
    """A template's source, ready to render. Raises jinja2's TemplateError for a source that is not a template."""

    def __init__(self, source: str) -> None:
        self._template = _Environment().from_string(source)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], variables: Mapping[str, Any]
    ) -> str:
        """A chat as text. ``messages`` and ``tools`` are plain dictionaries and lists, which the caller no longer changes.
        Raises whatever the template raises."""
        return self._template.render(messages=messages, tools=tools or None, documents=None, **variables)


class _Environment(ImmutableSandboxedEnvironment):
    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self._json: dict[tuple[Any, ...], tuple[Any, str]] = {}
        self.filters["tojson"] = self._tojson
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Like Jinja's; at once for fields of messages, loops and namespaces, and methods of texts that the sandbox allows."""
        kind = obj.__class__
        if kind is dict and attribute not in _METHODS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute[:1] != "_" and (
            kind is LoopContext or kind is Namespace or (kind is str and attribute not in _FORMATTING)
        ):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """transformers' filter, which escapes no HTML. The text of a tool or of arguments is kept, because each
        rendering of a conversation writes it again."""
        options: Any = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        if value.__class__ is not dict:
            return json.dumps(value, ensure_ascii=ensure_ascii, **options)
        key = id(value), ensure_ascii, indent, separators and tuple(separators), sort_keys
        held, text = self._json.get(key, (None, ""))
        if held is not value:
            text = json.dumps(value, ensure_ascii=ensure_ascii, **options)
            if len(self._json) >= _KEPT_JSON:
                self._json.clear()
            self._json[key] = value, text
        return text


class _Generation(Extension):
    """The block ``{% generation %}``, which marks what the assistant says and writes nothing itself."""

    tags = {"generation"}  # noqa: RUF012 - its type in Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
