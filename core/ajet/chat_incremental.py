"""A chat template run step by step, so that a longer chat costs its new messages only.

The template is cut into the statements between its loops over messages, which are run each time, and the
bodies of those loops, which are run once for a message. `ajet.chat_proof` shows which earlier messages a body
may write otherwise when the chat grows: the last ones, which see what comes after them, the first ones, whose
index may wrap around, and those between an old and a new value of a variable that positions are compared with.
These are written again and compared; all other variables that a body reads must be what they were. So the text
of a chat is known to begin with the text of the shorter one, or nothing is claimed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import loopcontrols
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ajet.chat_proof import Reads, Unproven, examine, free_of_loops

Message = Mapping[str, Any]

_KEEP = "ajet_keep"
_ITEMS = "ajet_items"
_ABSENT: Any = object()
_PLAIN = (str, int, float, bool, type(None), list, tuple, dict)
_DICT_ATTRIBUTES = frozenset(dir(dict))
_FROM_ELSEWHERE = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)
_WRITTEN_JSON = 512
"""Objects whose JSON is remembered: tools are written in every prompt."""


class _Chat(list[Message]):
    """Messages; slices to the end know where they begin."""

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


class _Environment(ImmutableSandboxedEnvironment):
    """As transformers' for chat templates; quicker where a message is asked for a field."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self._json: dict[tuple[int, str], tuple[Any, str]] = {}
        self.filters["tojson"] = self._tojson
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As Jinja's."""
        if obj.__class__ is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if obj.__class__ is _Loop:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        key = (id(value), repr((ensure_ascii, indent, separators, sort_keys)))
        held, text = self._json.get(key, (None, ""))
        if held is value and held is not None:
            return text
        options: Any = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        text = json.dumps(value, ensure_ascii=ensure_ascii, **options)
        if isinstance(value, dict):
            if len(self._json) >= _WRITTEN_JSON:
                self._json.clear()
            self._json[key] = value, text
        return text


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


# --------------------------------------------------------------------------- the parts of a template


@dataclass(frozen=True, slots=True)
class _Statements:
    """What stands between two loops over messages."""

    template: Any


@dataclass(frozen=True, slots=True)
class _MessageLoop:
    """A loop over messages whose body is proven."""

    template: Any
    target: str
    reads: Reads
    outer: frozenset[str]
    """Variables from outside of the loop that the body reads or writes."""

    @property
    def writes(self) -> list[tuple[str, str]]:
        """What it leaves for the next message and for what follows."""
        return sorted(written for written in self.reads.writes if written[0] in self.outer)


@dataclass(frozen=True, slots=True)
class _Ran:
    """How a loop ran over a chat: what must be known to go on with a longer one."""

    start: int
    """Messages before the first that the loop saw."""
    count: int
    inputs: Mapping[tuple[str, str], Any]
    """Values of what the body reads, by variable and attribute (or empty)."""
    before: tuple[Any, ...]
    """What the body writes, as it was before the loop."""
    state: tuple[Any, ...]
    """The same, before the last `Reads.ahead` messages."""
    first: tuple[str, ...]
    """The text of the first `Reads.wrapped` messages."""
    last: tuple[str, ...]
    """The text of the last `Reads.ahead` messages."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered chat, up to where the assistant begins to write."""

    chat: list[Message]
    """Its messages, and perhaps those of a longer chat after them."""
    count: int
    tools: Sequence[Message]
    statements: tuple[str, ...]
    """The texts between the loops."""
    loops: tuple[_Ran, ...]

    def copied(self) -> Rendered:
        """The same, for a chat that is not to see what other chats go on with."""
        return replace(self, chat=_Chat(self.chat[: self.count]))

    @property
    def header(self) -> str:
        """What follows the last message."""
        return self.statements[-1]


def prove(source: str, constants: Mapping[str, Any]) -> IncrementalTemplate | None:
    """The template, if it can be run step by step. ``constants`` are the variables that never change."""
    try:
        return IncrementalTemplate(source, constants)
    except Unproven:
        return None


class IncrementalTemplate:
    """A chat template of which it is proven that it can be run step by step; see `prove`. Raises Unproven."""

    def __init__(self, source: str, constants: Mapping[str, Any]) -> None:
        self.proven = True
        """Whether nothing has been met yet that the proof does not cover."""
        self._environment = _Environment()
        self._constants = dict(constants)
        try:
            tree = self._environment.parse(source)
        except TemplateError as error:
            raise Unproven(str(error)) from None
        if next(tree.find_all(_FROM_ELSEWHERE), None):
            raise Unproven("it consists of several templates")
        self._macros = {node.name: node for node in tree.find_all(nodes.Macro)}
        aliases = _aliases(tree)
        self._steps: list[_Statements | _MessageLoop] = []
        between: list[nodes.Node] = []
        for node in tree.body:
            loop = self._message_loop(node, aliases)
            if loop is None:
                between.append(node)
                continue
            assert isinstance(node, nodes.For)
            self._steps += [self._statements(between, node.iter), loop]
            between = []
        if not self._steps:
            raise Unproven("no loop over messages depends on them one by one")
        self._steps.append(self._statements(between, None))
        self._check_macros(tree)

    # ---------------------------------------------------------------- running

    def render(self, messages: Sequence[Message], tools: Sequence[Message]) -> tuple[str, Rendered] | None:
        """The whole chat as text, and what is needed to go on from it; None if it is not proven after all.
        Raises whatever the template raises."""
        try:
            texts, rendered = self._run(_Chat(messages), tools, None)
        except Unproven:
            self.proven = False
            return None
        return "".join(texts), rendered

    def go_on(self, earlier: Rendered, more: Sequence[Message]) -> tuple[str, Rendered] | None:
        """What the text of the longer chat has after the text of the earlier one without its header, and what
        is needed to go on from there; None unless the longer chat's text is sure to begin like that. Raises
        whatever the template raises."""
        chat = earlier.chat if isinstance(earlier.chat, _Chat) else _Chat(earlier.chat)
        if len(chat) != earlier.count:  # another chat went on from the same place
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
        scope = {**self._constants, "messages": chat, "tools": list(tools) or None}
        texts: list[str] = []
        loops: list[_Ran] = []
        for number, step in enumerate(self._steps):
            place, is_last = number // 2, number >= len(self._steps) - 2
            if isinstance(step, _Statements):
                text = self._run_statements(step, scope)
                if earlier and not is_last and text != earlier.statements[place]:
                    raise _Rewritten
            else:
                text, ran = self._run_loop(step, scope, chat, earlier.loops[place] if earlier else None)
                loops.append(ran)
                if earlier and text and not is_last:
                    raise _Rewritten
            texts.append(text)
        between = tuple(earlier.statements[:-1]) + (texts[-1],) if earlier else tuple(texts[::2])
        return texts, Rendered(chat, len(chat), tools, between, tuple(loops))

    def _run_statements(self, step: _Statements, scope: dict[str, Any]) -> str:
        def keep(**values: Any) -> str:
            undefined = self._environment.undefined
            for name, value in values.items():
                if isinstance(value, undefined):
                    scope.pop(name, None)
                else:
                    scope[name] = value
            return ""

        return str(step.template.render({**scope, _KEEP: keep}))

    def _run_loop(
        self, step: _MessageLoop, scope: dict[str, Any], chat: _Chat, old: _Ran | None
    ) -> tuple[str, _Ran]:
        """The text of the messages that the earlier run did not see."""
        items = scope.pop(_ITEMS, None)
        if not isinstance(items, _Chat):
            raise Unproven("the loop does not run over the messages")
        start, ahead, wrapped = items.start, step.reads.ahead, step.reads.wrapped
        count = len(chat) - start
        inputs = self._inputs(step, scope, start, old.start + old.count if old else len(chat))
        before = _states(step, scope)
        first: tuple[str, ...] = ()
        begin = 0
        if old:
            if start != old.start:
                raise _Rewritten
            self._compare_inputs(step, scope, chat, old, inputs)
            self._compare_states(step, scope, chat, old, before)
            first = tuple(self._written(step, scope, chat, start, i) for i in range(min(wrapped, old.count)))
            if first[: len(old.first)] != old.first:
                raise _Rewritten
            begin = old.count - len(old.last)
            _set_states(step, scope, old.state)
        texts = []
        state = old.state if old else before
        for index in range(begin, count):
            if index == count - ahead:
                state = _states(step, scope)
            texts.append(self._written(step, scope, chat, start, index))
        if ahead == 0:
            state = _states(step, scope)
        again = len(old.last) if old else 0
        if old and tuple(texts[:again]) != old.last:
            raise _Rewritten
        if not old:
            first = tuple(texts[:wrapped])
        elif len(first) < min(wrapped, count):
            first += tuple(texts[again : again + min(wrapped, count) - len(first)])
        last = tuple(texts[len(texts) - min(ahead, count) :])
        ran = _Ran(start, count, inputs, before, state, first, last)
        return "".join(texts[again:]), ran

    def _written(self, step: _MessageLoop, scope: dict[str, Any], chat: _Chat, start: int, index: int) -> str:
        """What the body writes for one message."""
        at = start + index
        variables = {**scope, step.target: list.__getitem__(chat, at)}
        if step.reads.uses_loop:
            missing = self._environment.undefined
            is_last = at + 1 == len(chat)
            variables["loop"] = _Loop(
                index,
                index == 0,
                is_last,
                list.__getitem__(chat, at - 1) if index else missing("there is no previous item"),
                missing("there is no next item") if is_last else list.__getitem__(chat, at + 1),
            )
        return str(step.template.render(variables))

    # ---------------------------------------------------------------- what a body reads

    def _inputs(
        self, step: _MessageLoop, scope: Mapping[str, Any], start: int, known: int
    ) -> dict[tuple[str, str], Any]:
        """The values of what a loop body reads. ``known``: messages that are there in any case."""
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
                if name in reads.names | reads.searched | {n for n, _ in reads.positions | reads.neighbours}:
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
        """Where the list begins, if the body reads none of it but what is proven."""
        reads = step.reads
        if name in reads.names or any(n == name for n, _ in reads.attributes | reads.limits | reads.writes):
            raise Unproven(f"the body reads {name} as a whole")
        near = name in reads.searched or any(n == name for n, _ in reads.neighbours)
        if near and value.start != start:
            raise Unproven(f"{name} does not begin where the loop does")
        if any(n == name and value.start + place >= known for n, place in reads.positions):
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
        """Raises _Rewritten unless the earlier messages are written as they were, the last ones excepted."""
        if inputs.keys() != old.inputs.keys():
            raise _Rewritten
        changed = [key for key, value in inputs.items() if not _same(value, old.inputs[key])]
        if changed and step.writes:
            raise _Rewritten
        places: set[int] = set()
        for key in changed:
            if not self._is_limit(step, key) or {type(inputs[key]), type(old.inputs[key])} != {int}:
                raise _Rewritten
            low, high = sorted((inputs[key], old.inputs[key]))
            places.update(range(max(0, low - 1), min(high + 2, old.count - len(old.last))))
        scopes = [_with_inputs(scope, values) for values in (old.inputs, inputs)]
        for index in sorted(places):
            was, now = (self._written(step, each, chat, old.start, index) for each in scopes)
            if was != now:
                raise _Rewritten

    def _compare_states(
        self, step: _MessageLoop, scope: dict[str, Any], chat: _Chat, old: _Ran, before: tuple[Any, ...]
    ) -> None:
        """What the body writes must come to be what it was, after a few messages, however it begins. Raises
        _Rewritten."""
        was, now = old.before, before
        for index in range(old.count - len(old.last)):
            if _same(was, now):
                return
            texts = []
            states = []
            for state in (was, now):
                _set_states(step, scope, state)
                texts.append(self._written(step, scope, chat, old.start, index))
                states.append(_states(step, scope))
            if texts[0] != texts[1]:
                raise _Rewritten
            was, now = states
        if not _same(was, now):
            raise _Rewritten

    def _is_limit(self, step: _MessageLoop, key: tuple[str, str]) -> bool:
        """Whether the body does nothing with a variable but compare the position with it."""
        name, attribute = key
        reads = step.reads
        return key in reads.limits and not (
            key in reads.attributes
            or name in reads.names | reads.searched
            or (not attribute and any(n == name for n, _ in reads.attributes))
            or any(n == name for n, _ in reads.positions | reads.neighbours)
        )

    # ---------------------------------------------------------------- cutting the template up

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
                    return None  # positions count only what passes the test
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
        return _MessageLoop(self._compiled(body), target, reads, frozenset(outer & reads.variables()))

    def _statements(self, found: Sequence[nodes.Node], items: nodes.Expr | None) -> _Statements:
        """Statements that hand over the variables they set, and the items of the loop after them."""
        names = sorted(set(_stored(found)))
        kept: list[nodes.Keyword] = [nodes.Keyword(name, nodes.Name(name, "load")) for name in names]
        if items is not None:
            kept.append(nodes.Keyword(_ITEMS, items))
        call = nodes.Call(nodes.Name(_KEEP, "load"), [], kept, None, None)
        return _Statements(self._compiled([*found, nodes.ExprStmt(call)]))

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
        return set(meta.find_undeclared_variables(tree)) - set(self._environment.globals)

    def _read_by_macros(self, names: set[str]) -> set[str]:
        """What the macros among these names read, and the macros that they call. Raises Unproven."""
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
        """A macro may read what is set after it. Raises Unproven where a loop over messages is in between."""
        steps = 0
        set_in = {}
        made_in = {}
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
    """The earlier messages are not written as they were."""


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
    """Whether an expression is the messages, or all from a place on."""
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
    """Whether two values are written alike: 1 and True are equal, but not the same."""
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    return not isinstance(one, list | tuple | dict) or repr(one) == repr(other)


def _states(step: _MessageLoop, scope: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of what a loop body writes."""
    return tuple(_plain(getattr(scope.get(name), attribute, None)) for name, attribute in step.writes)


def _set_states(step: _MessageLoop, scope: Mapping[str, Any], state: Sequence[Any]) -> None:
    for (name, attribute), value in zip(step.writes, state, strict=True):
        if not isinstance(scope.get(name), Namespace):
            raise Unproven(f"{name} is not a namespace")
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
