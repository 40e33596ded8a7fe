"""What can the rendering of one message depend on? A static proof, read off a chat template's source.

A chat template is a program that writes a chat from the first message to the last. When messages are added,
the text of the earlier ones stays as it was, unless the loop that writes them reads something that the new
ones change: the number of messages, a later message, or a variable that was computed from the whole chat.
`examine` lists everything that a loop body reads. What it cannot classify raises `Unproven`; such a template
is rendered in full and compared at every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jinja2 import nodes

_OWN = frozenset({"index", "index0", "first", "previtem", "depth", "depth0"})
"""Attributes of ``loop`` that later messages do not change."""
_NEXT = frozenset({"last", "nextitem"})
"""Attributes of ``loop`` that only the next message changes."""
_CLOCKS = frozenset({"strftime_now", "lipsum", "cycler", "joiner"})
"""Globals whose value is not a function of the template's inputs."""
_FOREIGN = (
    nodes.ContextReference,
    nodes.DerivedContextReference,
    nodes.InternalName,
    nodes.EnvironmentAttribute,
    nodes.ExtensionAttribute,
    nodes.ImportedName,
    nodes.ScopedEvalContextModifier,
    nodes.EvalContextModifier,
)


class Unproven(Exception):
    """The template does something that this proof does not cover."""


@dataclass(slots=True)
class Reads:
    """What a loop body reads and writes apart from its own message."""

    names: set[str] = field(default_factory=set)
    """Variables that are read in any way."""
    attributes: set[tuple[str, str]] = field(default_factory=set)
    """(variable, attribute) of variables of which only that attribute is read."""
    limits: set[tuple[str, str]] = field(default_factory=set)
    """(variable, attribute or empty) that are compared with the position of the message."""
    positions: set[tuple[str, int]] = field(default_factory=set)
    """(variable, n): item n of a list, n >= 0."""
    neighbours: set[tuple[str, int]] = field(default_factory=set)
    """(variable, n): the item n places after the current position."""
    near: set[str] = field(default_factory=set)
    """Lists in which the loop looks up the current message (`messages.index(message)`) or reads the previous one."""
    writes: set[tuple[str, str]] = field(default_factory=set)
    """(namespace, attribute) that are set."""
    uses_loop: bool = False
    uses_next: bool = False

    def variables(self) -> set[str]:
        """All variables that are read or written."""
        pairs = (self.attributes, self.limits, self.positions, self.neighbours, self.writes)
        return {*self.names, *self.near, *(name for found in pairs for name, _ in found)}

    @property
    def ahead(self) -> int:
        """How many of the following messages may change the text of a message."""
        return max([int(self.uses_next), *(n for _, n in self.neighbours)])

    @property
    def wrapped(self) -> int:
        """How many of the first messages may read the last ones through a negative index."""
        return max([0, *(-n for _, n in self.neighbours)])


def examine(body: Sequence[nodes.Node], target: str) -> Reads:
    """What a loop body over messages reads, ``target`` being the variable that holds the message. Raises
    Unproven."""
    reads = Reads()
    _walk_all(body, reads, target, ours=True)
    return reads


def free_of_loops(macro: nodes.Macro) -> Reads:
    """Return what a macro reads. Raises Unproven if that cannot be determined."""
    return examine([*macro.body, *macro.defaults], "")


def _walk_all(found: Iterable[nodes.Node], reads: Reads, target: str, ours: bool) -> None:
    for node in found:
        _walk(node, reads, target, ours)


def _walk(node: nodes.Node, reads: Reads, target: str, ours: bool) -> None:
    """``ours``: the name ``loop`` means the loop over messages, not one inside it."""
    if isinstance(node, _FOREIGN) or (isinstance(node, nodes.Filter) and node.name == "random"):
        raise Unproven(f"{type(node).__name__} in line {node.lineno}")
    if isinstance(node, nodes.Break | nodes.Continue) and ours:
        raise Unproven(f"{type(node).__name__} in line {node.lineno}")
    if isinstance(node, nodes.For):
        _walk(node.iter, reads, target, ours)
        _walk_all([*node.body, *node.else_, *([node.test] if node.test else [])], reads, target, ours=False)
        return
    if _is_recognised(node, reads, target, ours):
        return
    if isinstance(node, nodes.Or) and ours and _is_loops(node.left, "first"):
        reads.uses_loop = True
        _walk(_without_previous(node.right, reads), reads, target, ours)
        return
    if isinstance(node, nodes.Name):
        if node.name in _CLOCKS or (node.name == "loop" and ours):
            raise Unproven(f"{node.name} in line {node.lineno}")
        if node.ctx == "load" and node.name not in (target, "loop"):
            reads.names.add(node.name)
        return
    _walk_all(node.iter_child_nodes(), reads, target, ours)


def _is_recognised(node: nodes.Node, reads: Reads, target: str, ours: bool) -> bool:
    """Whether the node has a form that is more specific than a variable's name; notes what it reads."""
    if isinstance(node, nodes.NSRef):
        reads.writes.add((node.name, node.attr))
        return True
    if isinstance(node, nodes.Compare) and (limit := _limit(node, ours)):
        reads.limits.add(limit)
        reads.uses_loop = True
        return True
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return _is_attribute(node.node.name, node.attr, reads, target, ours)
    if isinstance(node, nodes.Getitem) and isinstance(node.node, nodes.Name) and node.node.name != target:
        return _is_item(node.node.name, node.arg, reads, ours)
    return isinstance(node, nodes.Call) and _is_search(node, reads, target)


def _without_previous(node: nodes.Node, reads: Reads) -> nodes.Node:
    """A copy of the right side of ``loop.first or ...`` without its reads of the previous message. There the previous
    message exists and is not a later one, so reading it is safe; ``reads`` notes the lists in which it is read."""
    if isinstance(node, nodes.Getitem) and isinstance(node.node, nodes.Name) and _offset(node.arg) == -1:
        reads.near.add(node.node.name)
        return nodes.Const(None)
    if isinstance(node, nodes.Compare | nodes.Getattr | nodes.Not):
        inner = node.expr if isinstance(node, nodes.Compare) else node.node
        copy = _without_previous(inner, reads)
        if isinstance(node, nodes.Compare):
            return nodes.Compare(copy, node.ops)
        return nodes.Getattr(copy, node.attr, "load") if isinstance(node, nodes.Getattr) else copy
    return node


def _is_attribute(name: str, attribute: str, reads: Reads, target: str, ours: bool) -> bool:
    if name == "loop" and ours:
        if attribute not in _OWN | _NEXT:
            raise Unproven(f"loop.{attribute}")
        reads.uses_loop = True
        reads.uses_next |= attribute in _NEXT
    elif name not in (target, "loop"):
        reads.attributes.add((name, attribute))
    return True


def _is_item(name: str, index: nodes.Node, reads: Reads, ours: bool) -> bool:
    if isinstance(index, nodes.Const) and type(index.value) is int and index.value >= 0:
        reads.positions.add((name, index.value))
        return True
    offset = _offset(index) if ours else None
    if offset is not None:
        reads.neighbours.add((name, offset))
        reads.uses_loop = True
        return True
    return False


def _offset(index: nodes.Node) -> int | None:
    """n, if the index is ``loop.index0 + n``."""
    if isinstance(index, nodes.Getattr) and _is_own_index(index):
        return int(index.attr == "index")
    if isinstance(index, nodes.Add | nodes.Sub) and _is_own_index(index.left):
        right = index.right
        if isinstance(right, nodes.Const) and type(right.value) is int:
            start = _offset(index.left) or 0
            return start + (right.value if isinstance(index, nodes.Add) else -right.value)
    return None


def _limit(node: nodes.Compare, ours: bool) -> tuple[str, str] | None:
    """The variable (and its attribute) that the current position is compared with, if that is all."""
    if not ours or len(node.ops) != 1 or node.ops[0].op in ("in", "notin"):
        return None
    sides = [node.expr, node.ops[0].expr]
    others = [side for side in sides if not _is_own_index(side)]
    if len(others) != 1:
        return None
    (other,) = others
    if isinstance(other, nodes.Name) and other.name != "loop":
        return other.name, ""
    if isinstance(other, nodes.Getattr) and isinstance(other.node, nodes.Name) and other.node.name != "loop":
        return other.node.name, other.attr
    return None


def _is_own_index(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.Getattr)
        and isinstance(node.node, nodes.Name)
        and node.node.name == "loop"
        and node.attr in ("index", "index0")
    )


def _is_search(node: nodes.Call, reads: Reads, target: str) -> bool:
    """``messages.index(message)``: finds the message itself or an equal one before it."""
    method = node.node
    if not (
        isinstance(method, nodes.Getattr) and isinstance(method.node, nodes.Name) and method.attr == "index"
    ):
        return False
    plain = len(node.args) == 1 and not (node.kwargs or node.dyn_args or node.dyn_kwargs)
    if plain and isinstance(node.args[0], nodes.Name) and node.args[0].name == target:
        reads.near.add(method.node.name)
        return True
    return False


# --------------------------------------------------------------------------- a search from the end


@dataclass(frozen=True, slots=True)
class Search:
    """A loop that finds the last message with a property, as in Qwen3's template: it runs from the end, and does
    nothing more once ``flag`` of a namespace is false."""

    messages: str
    """The variable that is searched."""
    target: str
    namespace: str
    flag: str
    wanted: nodes.Expr
    """The property, which depends only on the message."""
    found: tuple[tuple[str, nodes.Const | None], ...]
    """Attributes that are then set in the namespace, each to its value, or to the message's index (None)."""


def search_from_the_end(node: nodes.Node) -> Search | None:
    """The search that a loop is, if it is one."""
    if not isinstance(node, nodes.For) or node.else_ or node.test or node.recursive:
        return None
    messages, target = _reversed(node.iter), node.target
    if messages is None or not isinstance(target, nodes.Name) or not node.body:
        return None
    *before, condition = node.body
    index = _named_index(before, messages)
    if index is None or not isinstance(condition, nodes.If) or condition.elif_ or condition.else_:
        return None
    test = condition.test
    conjuncts = _conjuncts(test) if isinstance(test, nodes.Expr) else []
    guards = [c for c in conjuncts if isinstance(c, nodes.Getattr) and isinstance(c.node, nodes.Name)]
    guards = [guard for guard in guards if guard.node.name != target.name]  # type: ignore[attr-defined]
    if len(guards) != 1:
        return None
    guard = guards[0]
    wanted = [c for c in conjuncts if c is not guard]
    namespace = guard.node.name  # type: ignore[attr-defined]
    found = _assignments(condition.body, namespace, index)
    if found is None or not wanted or not _is_about(wanted, target.name):
        return None
    ends = [value for name, value in found if name == guard.attr]
    if len(ends) != 1 or ends[0] is None or ends[0].value is not False:
        return None
    all_wanted = wanted[0]
    for other in wanted[1:]:
        all_wanted = nodes.And(all_wanted, other)
    return Search(messages, target.name, namespace, guard.attr, all_wanted, tuple(found))


def _reversed(node: nodes.Node) -> str | None:
    """The variable, in ``variable[::-1]``."""
    if not isinstance(node, nodes.Getitem) or not isinstance(node.arg, nodes.Slice):
        return None
    cut = node.arg
    backwards = cut.step is not None and _constant(cut.step) == -1
    whole = cut.start is None and cut.stop is None
    return node.node.name if whole and backwards and isinstance(node.node, nodes.Name) else None


def _constant(node: nodes.Node) -> object:
    if isinstance(node, nodes.Neg):
        inner = _constant(node.node)
        return -inner if isinstance(inner, int) else None
    return node.value if isinstance(node, nodes.Const) else None


def _named_index(before: Sequence[nodes.Node], messages: str) -> str | None:
    """The variable that is first set to the message's index; empty if there is none, None if anything else
    happens."""
    if not before:
        return ""
    (first, *more) = before
    if more or not isinstance(first, nodes.Assign) or not isinstance(first.target, nodes.Name):
        return None
    value = first.node
    counted = isinstance(value, nodes.Sub) and _is_loops(value.right, "index0")
    if not counted or not isinstance(value, nodes.Sub) or not isinstance(value.left, nodes.Sub):
        return None
    length, one = value.left.left, value.left.right
    is_length = isinstance(length, nodes.Filter) and length.name in ("length", "count")
    if not is_length or not isinstance(length, nodes.Filter) or _constant(one) != 1:
        return None
    of = length.node
    return first.target.name if isinstance(of, nodes.Name) and of.name == messages else None


def _is_loops(node: nodes.Node, attribute: str) -> bool:
    return (
        isinstance(node, nodes.Getattr)
        and isinstance(node.node, nodes.Name)
        and (node.node.name, node.attr) == ("loop", attribute)
    )


def _conjuncts(node: nodes.Expr) -> list[nodes.Expr]:
    if isinstance(node, nodes.And):
        return [*_conjuncts(node.left), *_conjuncts(node.right)]
    return [node]


def _assignments(
    body: Sequence[nodes.Node], namespace: str, index: str
) -> list[tuple[str, nodes.Const | None]] | None:
    """What is set in a namespace, if nothing else happens."""
    found: list[tuple[str, nodes.Const | None]] = []
    for node in body:
        if not isinstance(node, nodes.Assign) or not isinstance(node.target, nodes.NSRef):
            return None
        if node.target.name != namespace:
            return None
        value = node.node
        if isinstance(value, nodes.Const):
            found.append((node.target.attr, value))
        elif index and isinstance(value, nodes.Name) and value.name == index:
            found.append((node.target.attr, None))
        else:
            return None
    return found


def _is_about(wanted: Sequence[nodes.Expr], target: str) -> bool:
    """Whether expressions depend on only one variable."""
    reads = Reads()
    try:
        _walk_all(wanted, reads, target, ours=True)
    except Unproven:
        return False
    return not reads.variables() and not reads.uses_loop
