"""Runs a chat template step by step, so that a longer chat costs only its new messages.

The template is split into the statements between its loops over messages, which run each time, and the bodies of
those loops, which run once per message. `ajet.chat.proof` shows which earlier messages a body may write differently
when the chat grows: the last ones, which see what comes after them; the first ones, whose index may wrap around; and
those between an old and a new value of a variable that positions are compared with. These are written again and
compared; all other variables that a body reads must be unchanged. So either the text of a chat is proven to begin
with the text of the shorter one, or no claim is made.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import loopcontrols
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ajet.chat.proof import Reads, Search, Unproven, examine, free_of_loops, search_from_the_end

Message = Mapping[str, Any]

_ITEMS = "ajet_items"
_ABSENT: Any = object()
_UNSET = "\ufdd0 not set"
"""Placeholder for a namespace attribute that the loop sets but never reads, so its initial value cannot matter."""
_PLAIN = (str, int, float, bool, type(None), list, tuple, dict)
_DICT_ATTRIBUTES = frozenset(dir(dict))
_FROM_ELSEWHERE = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)
_WRITTEN_JSON = 512
"""Number of objects whose JSON is cached: tools are written in every prompt."""


class _Chat(list[Message]):
    """Messages; slices to the end record where they begin."""

    start = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if isinstance(index, slice) and index.stop is None and index.step in (None, 1):
            start = index.start or 0
            if type(start) is int and start >= 0:
                chat = _Chat(found)
                chat.start = self.start + min(start, len(self))
                return chat
        return found


class _Loop:
    """What a loop body sees as ``loop``."""

    __slots__ = ("depth", "depth0", "first", "index", "index0", "last", "nextitem", "previtem")

    def __init__(self, index: int, first: bool, last: bool, previtem: Any, nextitem: Any) -> None:
        self.index0, self.index = index, index + 1
        self.first, self.last = first, last
        self.previtem, self.nextitem = previtem, nextitem
        self.depth, self.depth0 = 1, 0


class _Piece:
    """A piece of a template that is run repeatedly. Not thread-safe."""

    __slots__ = ("_context", "_run", "_scope")

    def __init__(self, template: Any) -> None:
        self._scope: dict[str, Any] = {}
        self._context = template.new_context(self._scope, shared=True)
        self._run = template.root_render_func

    def begin(self, scope: Mapping[str, Any]) -> _Piece:
        """The piece itself, with the variables around it."""
        self._scope.clear()
        self._scope.update(scope)
        return self

    def written(self, **own: Any) -> str:
        """The text it writes, with some variables of its own."""
        self._scope.update(own)
        self._context.vars.clear()
        self._context.exported_vars.clear()
        return "".join(self._run(self._context))

    @property
    def stored(self) -> Mapping[str, Any]:
        """The variables that it set."""
        stored: Mapping[str, Any] = self._context.vars
        return stored


class _Own(threading.local):
    """A piece of a template per thread, because large chats are rendered off the loop."""

    def __init__(self, template: Any) -> None:
        self.piece = _Piece(template)


class _Environment(ImmutableSandboxedEnvironment):
    """Like the environment of transformers for chat templates, with faster access to fields of messages."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self._json: dict[tuple[int, str], tuple[Any, str]] = {}
        self.filters["tojson"] = self._tojson
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Like Jinja's."""
        if obj.__class__ is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if obj.__class__ is _Loop:
            return getattr(obj, attribute)
        if obj.__class__ is Namespace and not attribute.startswith("_"):
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
        options: Any = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        if not isinstance(value, dict):
            return json.dumps(value, ensure_ascii=ensure_ascii, **options)
        key = (id(value), repr((ensure_ascii, indent, separators, sort_keys)))
        held, text = self._json.get(key, (None, ""))
        if held is not value:
            text = json.dumps(value, ensure_ascii=ensure_ascii, **options)
            if len(self._json) >= _WRITTEN_JSON:
                self._json.clear()
            self._json[key] = value, text
        return text


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


# --------------------------------------------------------------------------- the parts of a template


@dataclass(frozen=True, slots=True)
class _Statements:
    """The statements between two loops over messages."""

    template: Any
    """None if there are none."""
    own: _Own | None
    """None if the statements define macros: a macro keeps the context it was defined in, so each run needs a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MessageLoop:
    """A loop over messages whose body is proven."""

    body: _Own
    target: str
    items: str
    """The variable that the loop iterates over; empty for an expression."""
    reads: Reads
    outer: frozenset[str]
    """Variables from outside the loop that the body reads or writes."""
    ahead: int
    """How many of the following messages may change the text of a message."""
    wrapped: int
    """How many messages at the start can reach the end of the chat through a negative index."""
    writes: tuple[tuple[str, str], ...]
    """What the body sets for the next message and for the statements after the loop."""
    reads_own: bool
    """Whether it may read what it wrote for the previous message."""


@dataclass(frozen=True, slots=True)
class _Searching:
    """A search for the last message with a property."""

    wanted: _Own
    """Sets attributes for such a message."""
    search: Search


@dataclass(frozen=True, slots=True)
class _Searched:
    """How far a search went, and the index of its result (-1: none)."""

    start: int
    count: int
    found: int


@dataclass(frozen=True, slots=True)
class _Ran:
    """How a loop ran over a chat: what is needed to continue with a longer one."""

    start: int
    """Messages before the first that the loop saw."""
    count: int
    inputs: Mapping[tuple[str, str], Any]
    """Values that the body reads, by variable and attribute (or empty)."""
    before: tuple[Any, ...]
    """Values that the body writes, as they were before the loop."""
    state: tuple[Any, ...]
    """The same, before the last messages."""
    first: tuple[str, ...]
    """The text of those first messages that may read the last ones."""
    last: tuple[str, ...]
    """The text of those last messages that later ones may change."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered chat, up to where the assistant begins."""

    chat: list[Message]
    """Its messages, and perhaps those of a longer chat after them."""
    settled: tuple[str, Mapping[str, Any]]
    """Text and variables of the statements that depend only on the first messages. They are not run again."""
    count: int
    tools: Sequence[Message]
    statements: tuple[str, ...]
    """The texts between the loops."""
    loops: tuple[_Ran | _Searched, ...]

    def copied(self) -> Rendered:
        """A copy for a chat that must not see how other chats continue."""
        return replace(self, chat=_Chat(self.chat[: self.count]))

    @property
    def header(self) -> str:
        """What follows the last message."""
        return self.statements[-1]


def prove(source: str, constants: Mapping[str, Any]) -> IncrementalTemplate | None:
    """The template, if it can be run step by step. ``constants`` are the variables that never change."""
    try:
        return _analysed(source).with_constants(constants)
    except Unproven:
        return None


@lru_cache(maxsize=32)
def _analysed(source: str) -> IncrementalTemplate:
    # The proof takes some 30 ms and depends on the source only.
    return IncrementalTemplate(source)


class IncrementalTemplate:
    """A chat template that is proven to run step by step; see `prove`. Raises Unproven."""

    def __init__(self, source: str) -> None:
        self.proven = True
        """Whether the proof has covered everything so far."""
        self._environment = _Environment()
        self._constants: Mapping[str, Any] = {}
        try:
            tree = self._environment.parse(source)
        except TemplateError as error:
            raise Unproven(str(error)) from None
        if next(tree.find_all(_FROM_ELSEWHERE), None):
            raise Unproven("it consists of several templates")
        self._macros = {node.name: node for node in tree.find_all(nodes.Macro)}
        stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
        self._fixed = set(self._environment.globals) - stored - self._macros.keys()
        aliases = _aliases(tree)
        self._steps: list[_Statements | _MessageLoop | _Searching] = []
        between: list[nodes.Node] = []
        settled, by, rest = _settled(tree, aliases)
        self._settled, self._settled_by = self._statements(settled, None), by
        for node in rest:
            loop = self._message_loop(node, aliases)
            if loop is not None and isinstance(node, nodes.For):
                self._steps += [self._statements(between, node.iter), loop]
            elif (search := search_from_the_end(node)) is not None:
                self._steps += [self._statements(between, None), self._searching(search)]
            else:
                between.append(node)
                continue
            between = []
        if not any(isinstance(step, _MessageLoop) for step in self._steps):
            raise Unproven("no loop over messages depends on them one by one")
        self._steps.append(self._statements(between, None))
        self._check_macros(tree)

    def with_constants(self, constants: Mapping[str, Any]) -> IncrementalTemplate:
        """The same template with variables that never change. The two share what the proof has found."""
        other = copy(self)
        other._constants = dict(constants)
        return other

    # ---------------------------------------------------------------- running

    def render(self, messages: Sequence[Message], tools: Sequence[Message]) -> tuple[str, Rendered] | None:
        """The whole chat as text, and what is needed to continue it; None if the proof fails after all. Raises
        whatever the template raises."""
        try:
            texts, rendered = self._run(_Chat(messages), tools, None)
        except Unproven:
            self.proven = False
            return None
        return "".join(texts), rendered

    def go_on(self, earlier: Rendered, more: Sequence[Message]) -> tuple[str, Rendered] | None:
        """What the text of the longer chat has after the text of the earlier one without its header, and what is
        needed to continue from there; None unless the longer chat's text is proven to begin like that. Raises
        whatever the template raises."""
        chat = earlier.chat if isinstance(earlier.chat, _Chat) else _Chat(earlier.chat)
        if len(chat) != earlier.count:  # another chat continued from the same place
            chat = _Chat(list.__getitem__(chat, slice(earlier.count)))
        chat.extend(more)
        try:
            texts, rendered = self._run(chat, earlier.tools, earlier)
        except _Rewritten:
            return None
        except Unproven:
            self.proven = False
            return None
        return "".join(texts[-2:]), rendered

    def _run(
        self, chat: _Chat, tools: Sequence[Message], earlier: Rendered | None
    ) -> tuple[list[str], Rendered]:
        """The texts of all steps; if a chat continues an earlier one, those of the last loop and of what follows it
        are what the longer chat adds."""
        scope = {
            **self._environment.globals,
            **self._constants,
            "messages": chat,
            "tools": list(tools) or None,
        }
        settled = earlier.settled if earlier and self._settled_by < earlier.count else None
        if settled is None:
            before = dict(scope)
            text = self._run_statements(self._settled, scope)
            settled = text, {k: v for k, v in scope.items() if before.get(k, _ABSENT) is not v}
            if earlier and text != earlier.settled[0]:
                raise _Rewritten
        else:
            scope.update(settled[1])
        texts = [settled[0]]
        loops: list[_Ran | _Searched] = []
        for number, step in enumerate(self._steps):
            index, is_last = number // 2, number >= len(self._steps) - 2
            if isinstance(step, _Statements):
                text = self._run_statements(step, scope)
                if earlier and not is_last and text != earlier.statements[index]:
                    raise _Rewritten
            else:
                old = earlier.loops[index] if earlier else None
                if isinstance(step, _Searching):
                    text = ""
                    loops.append(self._run_search(step, scope, old))
                else:
                    text, ran = self._run_loop(step, scope, chat, old)
                    loops.append(ran)
                if earlier and text and not is_last:
                    raise _Rewritten
            texts.append(text)
        between = (*earlier.statements[:-1], texts[-1]) if earlier else tuple(texts[1::2])
        return texts, Rendered(chat, settled, len(chat), tools, between, tuple(loops))

    def _run_statements(self, step: _Statements, scope: dict[str, Any]) -> str:
        if step.template is None:
            return ""
        piece = (step.own.piece if step.own else _Piece(step.template)).begin(scope)
        text = piece.written()
        scope.update(piece.stored)
        return text

    def _run_search(self, step: _Searching, scope: dict[str, Any], old: Any) -> _Searched:
        search = step.search
        chat, namespace = scope.get(search.messages), scope.get(search.namespace)
        if not isinstance(chat, _Chat) or not isinstance(namespace, Namespace):
            raise Unproven("the search does not run over the messages")
        if old and old.start != chat.start:
            raise _Rewritten
        known, found = (old.count, old.found) if old else (0, -1)
        wanted = step.wanted.piece
        for index in range(len(chat) - 1, known - 1, -1):
            if wanted.written(**{search.target: list.__getitem__(chat, index)}):
                found = index
                break
        if found >= 0 and getattr(namespace, search.flag, False):
            for attribute, value in search.found:
                namespace[attribute] = found if value is None else value.value
        return _Searched(chat.start, len(chat), found)

    def _run_loop(self, step: _MessageLoop, scope: dict[str, Any], chat: _Chat, old: Any) -> tuple[str, _Ran]:
        """The text of the messages that the earlier run did not see."""
        items = scope.get(step.items or _ITEMS)
        if not isinstance(items, _Chat):
            raise Unproven("the loop does not run over the messages")
        start, count = items.start, len(chat) - items.start
        inputs = self._inputs(step, scope, start, old.start + old.count if old else len(chat))
        before = _states(step, scope)
        if old:
            if start != old.start or (step.reads_own and not _same(before, old.before)):
                raise _Rewritten
            self._compare_inputs(step, scope, chat, old, inputs)
        body = step.body.piece.begin(scope)
        first: tuple[str, ...] = ()
        if old:
            again = range(min(step.wrapped, old.count))
            first = tuple(self._written(body, step, chat, start, index) for index in again)
            if first[: len(old.first)] != old.first:
                raise _Rewritten
            state, known = old.state, old.count - len(old.last)
        else:
            state, known = before if step.reads_own else (_UNSET,) * len(before), 0
        _set_states(step, scope, state)
        texts = []
        for index in range(known, count):
            if index == count - step.ahead:
                state = _states(step, scope)
            texts.append(self._written(body, step, chat, start, index))
        if not step.ahead:
            state = _states(step, scope)
        _begin_with(step, scope, before)
        repeated = len(old.last) if old else 0
        if old and tuple(texts[:repeated]) != old.last:
            raise _Rewritten
        new = texts[repeated:]
        first += tuple(new[: min(step.wrapped, count) - len(first)])
        last = tuple(texts[len(texts) - min(step.ahead, count) :])
        return "".join(new), _Ran(start, count, inputs, before, state, first, last)

    def _written(self, body: _Piece, step: _MessageLoop, chat: _Chat, start: int, index: int) -> str:
        """The text that the body writes for one message."""
        at = start + index
        message = list.__getitem__(chat, at)
        if not step.reads.uses_loop:
            return body.written(**{step.target: message})
        missing = self._environment.undefined
        is_last = at + 1 == len(chat)
        loop = _Loop(
            index,
            index == 0,
            is_last,
            list.__getitem__(chat, at - 1) if index else missing("there is no previous item"),
            missing("there is no next item") if is_last else list.__getitem__(chat, at + 1),
        )
        return body.written(**{step.target: message, "loop": loop})

    # ---------------------------------------------------------------- what a body reads

    def _inputs(
        self, step: _MessageLoop, scope: Mapping[str, Any], start: int, known: int
    ) -> dict[tuple[str, str], Any]:
        """The values that a loop body reads. ``known``: messages that exist in any case."""
        reads = step.reads
        found: dict[tuple[str, str], Any] = {}
        for name in step.outer:
            value = scope.get(name, _ABSENT)
            if value is _ABSENT or isinstance(value, Macro):
                if isinstance(value, Macro) and name not in self._macros:
                    raise Unproven(f"{name} is another macro")
            elif isinstance(value, _Chat):
                found[name, ""] = self._as_list_of_messages(step, name, value, start, known)
            elif isinstance(value, Namespace):
                if name in reads.names | reads.near | {n for n, _ in reads.positions | reads.neighbours}:
                    raise Unproven(f"the namespace {name} is passed on")
                for of, attribute in (reads.attributes | reads.limits) - reads.writes:
                    if of == name:
                        found[name, attribute] = _plain(getattr(value, attribute, None))
            else:
                found[name, ""] = _plain(value)
        return found

    def _as_list_of_messages(
        self, step: _MessageLoop, name: str, value: _Chat, start: int, known: int
    ) -> int:
        """Where the list begins, if the body reads only proven parts of it."""
        reads = step.reads
        if name in reads.names or any(n == name for n, _ in reads.attributes | reads.limits | reads.writes):
            raise Unproven(f"the body reads {name} as a whole")
        near = name in reads.near or any(n == name for n, _ in reads.neighbours)
        if near and value.start != start:
            raise Unproven(f"{name} does not begin where the loop does")
        if any(n == name and value.start + index >= known for n, index in reads.positions):
            raise Unproven(f"{name} is read beyond the end of the chat")
        return value.start

    def _compare_inputs(
        self,
        step: _MessageLoop,
        scope: dict[str, Any],
        chat: _Chat,
        old: _Ran,
        inputs: Mapping[tuple[str, str], Any],
    ) -> None:
        """Raises _Rewritten unless the earlier messages, except the last ones, are written as before."""
        if inputs.keys() != old.inputs.keys():
            raise _Rewritten
        changed = [key for key, value in inputs.items() if not _same(value, old.inputs[key])]
        if not changed:
            return
        if step.writes:
            raise _Rewritten
        indices: set[int] = set()
        for key in changed:
            if not self._is_limit(step, key) or {type(inputs[key]), type(old.inputs[key])} != {int}:
                raise _Rewritten
            low, high = sorted((inputs[key], old.inputs[key]))
            indices.update(range(max(0, low - 1), min(high + 2, old.count - len(old.last))))
        texts = []
        for values in (old.inputs, inputs):
            body = step.body.piece.begin(_with_inputs(scope, values))
            texts.append([self._written(body, step, chat, old.start, index) for index in sorted(indices)])
        if texts[0] != texts[1]:
            raise _Rewritten

    def _is_limit(self, step: _MessageLoop, key: tuple[str, str]) -> bool:
        """Whether the body uses a variable only to compare the position with it."""
        name, attribute = key
        reads = step.reads
        return key in reads.limits and not (
            key in reads.attributes
            or name in reads.names | reads.near
            or (not attribute and any(n == name for n, _ in reads.attributes))
            or any(n == name for n, _ in reads.positions | reads.neighbours)
        )

    # ---------------------------------------------------------------- splitting the template

    def _message_loop(self, node: nodes.Node, aliases: frozenset[str]) -> _MessageLoop | None:
        """The loop, if it runs over messages and its body is proven."""
        if not isinstance(node, nodes.For) or not isinstance(node.target, nodes.Name):
            return None
        if node.recursive or node.else_ or not _is_of_messages(node.iter, aliases):
            return None
        target = node.target.name
        body: list[nodes.Node] = list(node.body)
        try:
            reads = examine(body, target)
            if node.test is not None:
                if reads.uses_loop:
                    return None  # positions count only the messages that pass the test
                body = [nodes.If(node.test, body, [], [], lineno=node.lineno, environment=self._environment)]
                reads = examine(body, target)
            outer = self._undeclared(body) - {target, "loop"}
            through_macros = self._read_by_macros(outer)
            reads.names |= through_macros
            outer |= through_macros
        except Unproven:
            return None
        whole = reads.names | {name for name, _ in reads.attributes | reads.limits}
        if (reads.writes and reads.wrapped) or (whole & aliases):
            return None
        return _MessageLoop(
            body=_Own(self._compiled(body)),
            target=target,
            items=node.iter.name if isinstance(node.iter, nodes.Name) else "",
            reads=reads,
            outer=frozenset(outer & reads.variables()),
            ahead=reads.ahead,
            wrapped=reads.wrapped,
            writes=tuple(sorted(written for written in reads.writes if written[0] in outer)),
            reads_own=bool(reads.writes & (reads.attributes | reads.limits)),
        )

    def _statements(self, found: Sequence[nodes.Node], items: nodes.Node | None) -> _Statements:
        """Statements, and the items of the loop after them as a variable unless they are one."""
        body = list(found)
        if items is not None and not isinstance(items, nodes.Name):
            body.append(nodes.Assign(nodes.Name(_ITEMS, "store"), items))
        if not body:
            return _Statements(None, None)
        template = self._compiled(body)
        macros = any(isinstance(node, nodes.Macro) or node.find(nodes.Macro) for node in body)
        return _Statements(template, None if macros else _Own(template))

    def _searching(self, search: Search) -> _Searching:
        says_so = nodes.Output([nodes.TemplateData("found")])
        return _Searching(_Own(self._compiled([nodes.If(search.wanted, [says_so], [], [])])), search)

    def _compiled(self, body: Sequence[nodes.Node]) -> Any:
        tree = nodes.Template(list(body), lineno=1)
        tree.set_lineno(1).set_environment(self._environment)
        code = self._environment.compile(tree)
        return self._environment.template_class.from_code(
            self._environment, code, dict(self._environment.globals)
        )

    def _undeclared(self, body: Sequence[nodes.Node]) -> set[str]:
        tree = nodes.Template(list(body), lineno=1)
        tree.set_environment(self._environment)
        return set(meta.find_undeclared_variables(tree)) - self._fixed

    def _read_by_macros(self, names: set[str]) -> set[str]:
        """What the macros among these names read, including through macros that they call. Raises Unproven."""
        found: set[str] = set()
        todo = sorted(names & self._macros.keys())
        while todo:
            macro = self._macros[todo.pop()]
            free_of_loops(macro)
            read = self._undeclared([macro])
            todo += sorted((read - found) & self._macros.keys())
            found |= read
        return found

    def _check_macros(self, tree: nodes.Template) -> None:
        """A macro may read what is set after it. Raises Unproven if a loop over messages lies in between."""
        steps = 0
        set_in: dict[str, int] = {}
        made_in: dict[str, int] = {}
        for node in tree.body:
            for name in _stored([node]):
                set_in[name] = steps
            made_in |= {macro.name: steps for macro in node.find_all(nodes.Macro)}
            if isinstance(node, nodes.Macro):
                made_in[node.name] = steps
            steps += isinstance(node, nodes.For)
        for name, macro in self._macros.items():
            if any(set_in.get(read, 0) > made_in[name] for read in self._undeclared([macro])):
                raise Unproven(f"the macro {name} reads what is set after a loop")


class _Rewritten(Exception):
    """The earlier messages are not written as before."""


def _settled(tree: nodes.Template, aliases: frozenset[str]) -> tuple[list[nodes.Node], int, list[nodes.Node]]:
    """The first statements whose text and variables depend only on the first messages, the index of the last of
    these messages, and the other statements."""
    settled: list[nodes.Node] = []
    by = -1
    rest = list(tree.body)
    while rest:
        try:
            reads = examine(rest[:1], "")
        except Unproven:
            break
        positions = {name for name, _ in reads.positions}
        if (reads.variables() - positions) & aliases or (reads.names & aliases):
            break
        if any(name in aliases for name, _ in reads.attributes | reads.limits | reads.neighbours):
            break
        by = max([by, *(index for name, index in reads.positions if name in aliases)])
        settled.append(rest.pop(0))
    stored = set(_stored(settled))
    written = {ref.name for node in rest for ref in node.find_all(nodes.NSRef)}
    return (settled, by, rest) if not stored & (written | aliases) else ([], -1, list(tree.body))


def _aliases(tree: nodes.Template) -> frozenset[str]:
    """Variables that may hold the messages or the last of them."""
    found = {"messages"}
    grows = True
    while grows:
        grows = False
        for node in tree.find_all(nodes.Assign):
            if isinstance(node.target, nodes.Name) and node.target.name not in found:
                options = [node.node]
                if isinstance(node.node, nodes.CondExpr):
                    options = [node.node.expr1, *([node.node.expr2] if node.node.expr2 else [])]
                if any(_is_of_messages(option, frozenset(found)) for option in options):
                    found.add(node.target.name)
                    grows = True
    return frozenset(found)


def _is_of_messages(node: nodes.Node, aliases: frozenset[str]) -> bool:
    """Whether an expression is the messages, or all of them from a position on."""
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        if node.arg.stop is not None or node.arg.step is not None:
            return False
        node = node.node
    return isinstance(node, nodes.Name) and node.name in aliases


def _stored(found: Iterable[nodes.Node]) -> Iterable[str]:
    """Names that statements set for those after them."""
    for node in found:
        if isinstance(node, nodes.Macro):
            yield node.name
        elif isinstance(node, nodes.Assign | nodes.AssignBlock):
            targets = node.target.items if isinstance(node.target, nodes.Tuple) else [node.target]
            yield from (target.name for target in targets if isinstance(target, nodes.Name))
        elif isinstance(node, nodes.If):
            yield from _stored([*node.body, *node.elif_, *node.else_])


def _plain(value: Any) -> Any:
    if not isinstance(value, _PLAIN):
        raise Unproven(f"a variable holds a {type(value).__name__}")
    return value


def _same(one: Any, other: Any) -> bool:
    """Whether two values are written alike: 1 and True are equal, but written differently."""
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    return not isinstance(one, list | tuple | dict) or repr(one) == repr(other)


def _states(step: _MessageLoop, scope: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values that a loop body writes."""
    return tuple(_plain(getattr(scope.get(name), attribute, None)) for name, attribute in step.writes)


def _set_states(step: _MessageLoop, scope: Mapping[str, Any], state: Sequence[Any]) -> None:
    for (name, attribute), value in zip(step.writes, state, strict=True):
        if not isinstance(scope.get(name), Namespace):
            raise Unproven(f"{name} is not a namespace")
        scope[name][attribute] = value


def _begin_with(step: _MessageLoop, scope: Mapping[str, Any], before: Sequence[Any]) -> None:
    """Reset what the body has not set to its initial value."""
    for (name, attribute), value in zip(step.writes, before, strict=True):
        if getattr(scope[name], attribute, None) == _UNSET:
            scope[name][attribute] = value


def _with_inputs(scope: Mapping[str, Any], inputs: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    """The variables with the values that a loop body read."""
    found = dict(scope)
    made: dict[str, Namespace] = {}
    for (name, attribute), value in inputs.items():
        if attribute:
            made.setdefault(name, Namespace())[attribute] = value
        elif not isinstance(scope[name], _Chat):
            found[name] = value
    return {**found, **made}
