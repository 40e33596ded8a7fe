"""Contiguous memory for the keys and values that decoding reads.

Reading keys and values is most of what attention costs while decoding, and quick only over contiguous
memory. So completions that share a prefix form a family: they have one slot, into which the prefix is
copied once, and beside it what each of them has of its own; a mask says whose a column of the slot is. One
matrix product then serves the family, and reads what its members share only once. Who shares too little
with others is a family of one.

A bank is a tensor of slots of one capacity for families of one size; its first slots are taken, without
gaps. A family that fills its slot moves to a larger one, without the columns of those who have left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ajet_local.completion import Completion
from ajet_local.kv_cache import KVLayout, Node

SMALLEST = 64
"""Columns of the smallest slot."""
AHEAD = 64
"""Tokens that a new slot has room for, for each member that may sample so many."""
LARGEST_FAMILY = 8
"""Members at most: a product computes all members' scores on all columns, and drops those of others."""
WORTH_SHARING = 64
"""Tokens that a family must save in reading: less are not worth its mask."""
EVERYBODY, NOBODY = -1, -2


@dataclass(slots=True, eq=False)
class Family:
    """Completions whose contexts begin with the ``shared`` tokens down to ``node``."""

    node: Node | None
    shared: int
    members: list[Completion | None]
    columns: list[list[int]]
    """Of each member: where its own tokens are in the slot, in their order."""
    used: int = 0
    """Columns that are taken or were."""

    @property
    def alive(self) -> list[int]:
        """The numbers of its members. Their next tokens go into the next columns in this order."""
        return [number for number, member in enumerate(self.members) if member is not None]


class Bank:
    """Slots of ``capacity`` columns for families of ``size``: ``kv[layer, 0 or 1, slot, head, column]``. Slot i is
    ``taken[i]``'s, and ``owner[i, column]`` the number of a member, or `EVERYBODY`, or `NOBODY`."""

    def __init__(self, layout: KVLayout, capacity: int, size: int) -> None:
        self.layout = layout
        self.capacity = capacity
        self.size = size
        self.taken: list[Family] = []
        self.kv = layout.zeros(0, tokens=capacity)
        self.owner = torch.zeros(0, capacity, dtype=torch.int8, device=layout.device)

    def resize(self, slots: int) -> None:
        """Have so many slots, not fewer than are taken."""
        kept = min(slots, len(self.owner))
        kv, owner = self.layout.zeros(slots, tokens=self.capacity), self.owner.new_zeros(slots, self.capacity)
        kv[:, :, :kept], owner[:kept] = self.kv[:, :, :kept], self.owner[:kept]
        self.kv, self.owner = kv, owner

    def take(self, family: Family) -> int:
        """The number of a new slot."""
        if len(self.taken) == len(self.owner):
            self.resize(len(self.owner) + max(1, len(self.owner) // 2))
        self.taken.append(family)
        self.owner[len(self.taken) - 1] = NOBODY
        return len(self.taken) - 1

    def leave(self, family: Family) -> None:
        """Free its slot; the last one takes its place."""
        slot, last = self.taken.index(family), self.taken.pop()
        if last is not family:
            self.kv[:, :, slot, :, : last.used] = self.kv[:, :, len(self.taken), :, : last.used]
            self.owner[slot] = self.owner[len(self.taken)]
            self.taken[slot] = last


class Slots:
    """The slots of one adapter's completions."""

    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        self._banks: dict[tuple[int, int], Bank] = {}
        self._home: dict[Completion, tuple[Family, int]] = {}
        self._bank_of: dict[Family, Bank] = {}
        self._open: dict[Node, list[Family]] = {}

    @property
    def banks(self) -> list[Bank]:
        """Those in use, small slots first."""
        return [bank for _, bank in sorted(self._banks.items(), key=lambda item: item[0]) if bank.taken]

    @property
    def tokens(self) -> int:
        """Tokens for which memory is held, used or not."""
        return sum(bank.capacity * len(bank.owner) for bank in self._banks.values())

    def __contains__(self, completion: Completion) -> bool:
        return completion in self._home

    def join(self, completion: Completion) -> None:
        """Copy the keys and values of the first ``completion.length`` tokens of its path into a slot, as far as
        they are not there."""
        family = self._family(completion)
        own = completion.length - family.shared
        if family.used + own + len(family.alive) >= self._bank_of[family].capacity:
            self._move(family, own)
        member, begin = family.members.index(None), family.used
        family.members[member] = completion
        family.columns[member] = list(range(begin, begin + own))
        family.used += own
        self._home[completion] = (family, member)
        self._copy(completion.node, family, family.shared, completion.length, begin, member)

    def advance(self) -> None:
        """Everybody has one more token: call after each pass."""
        for family in self._bank_of:
            for member in family.alive:
                family.columns[member].append(family.used)
                family.used += 1

    def own(self, completion: Completion, begin: int) -> torch.Tensor:
        """A copy of its keys and values from position ``begin``, which is not in what its family shares:
        [layers, 2, heads, T, head_dim]."""
        family, member = self._home[completion]
        bank = self._bank_of[family]
        columns = torch.tensor(family.columns[member][begin - family.shared :], device=self.layout.device)
        return bank.kv[:, :, bank.taken.index(family)].index_select(-2, columns)

    def leave(self, completion: Completion) -> None:
        """Free its columns, and the slot with its last member."""
        family, member = self._home.pop(completion)
        family.members[member], bank = None, self._bank_of[family]
        if family.alive:
            bank.owner[bank.taken.index(family), family.columns[member]] = NOBODY
            family.columns[member] = []
            return
        bank.leave(family)
        del self._bank_of[family]
        if family.node is not None:
            self._open[family.node].remove(family)
            if not self._open[family.node]:
                del self._open[family.node]

    def grow(self) -> None:
        """Make sure that everybody has a column for one more token."""
        for bank in self.banks:
            for family in list(bank.taken):
                if family.used + len(family.alive) > bank.capacity:
                    self._move(family, 0)

    def clear(self) -> None:
        """Everybody leaves; the memory is kept for those who come."""
        for table in (self._home, self._bank_of, self._open):
            table.clear()
        for bank in self._banks.values():
            bank.taken.clear()

    def shrink(self) -> None:
        """Free the memory of unused slots."""
        for key, bank in list(self._banks.items()):
            if not bank.taken:
                del self._banks[key]
            elif len(bank.taken) < len(bank.owner):
                bank.resize(len(bank.taken))

    def _family(self, completion: Completion) -> Family:
        """One with a place for it, which shares the prefix that saves most."""
        assert completion.node is not None
        best, size, most = None, 1, WORTH_SHARING - 1
        for node in completion.node.path():
            users = min(node.users, LARGEST_FAMILY)
            if node.end <= completion.length and node.end * (users - 1) > most:
                best, size, most = node, users, node.end * (users - 1)
        if best is not None:
            for family in self._open.get(best, ()):
                if None in family.members:
                    return family
            size = 1 << (size - 1).bit_length()
        shared = best.end if best else 0
        family = Family(best, shared, [None] * size, [[] for _ in range(size)])
        ahead = min(AHEAD, completion.limit - len(completion.token_ids))
        room = shared + size * (completion.length - shared + ahead)
        bank = self._bank_of[family] = self._bank(room, size)
        bank.take(family)
        if best is not None:
            self._open.setdefault(best, []).append(family)
            self._copy(best, family, 0, shared, 0, EVERYBODY)
            family.used = shared
        return family

    def _copy(self, node: Node | None, family: Family, begin: int, end: int, column: int, owner: int) -> None:
        """Positions ``[begin, end)`` of a path go into the slot, from ``column`` on."""
        bank = self._bank_of[family]
        slot = bank.taken.index(family)
        bank.owner[slot, column : column + end - begin] = owner
        assert node is not None
        for part in node.path():
            if part.end <= begin:
                break
            start, stop = max(part.start, begin), min(part.end, end)
            if start < stop:
                to = slice(column + start - begin, column + stop - begin)
                bank.kv[:, :, slot, :, to] = part.kv[..., start - part.start : stop - part.start, :]

    def _move(self, family: Family, room: int) -> None:
        """To a slot that is half empty, with ``room`` columns more; the columns of those who left stay behind."""
        old = self._bank_of[family]
        slot = old.taken.index(family)
        kept = [*range(family.shared), *(c for columns in family.columns for c in columns)]
        index = torch.tensor(kept, device=self.layout.device)
        kv, owner = old.kv[:, :, slot].index_select(-2, index), old.owner[slot].index_select(0, index)
        old.leave(family)
        new = self._bank_of[family] = self._bank(2 * (len(kept) + room), old.size)
        slot = new.take(family)
        new.kv[:, :, slot, :, : len(kept)], new.owner[slot, : len(kept)] = kv, owner
        family.used = family.shared
        for columns in family.columns:
            columns[:] = range(family.used, family.used + len(columns))
            family.used += len(columns)

    def _bank(self, columns: int, size: int) -> Bank:
        capacity = SMALLEST
        while capacity < columns:
            capacity *= 2
        if (capacity, size) not in self._banks:
            self._banks[capacity, size] = Bank(self.layout, capacity, size)
        return self._banks[capacity, size]
