"""Contiguous memory for the keys and values that decoding reads.

Most of the cost of attention while decoding is reading keys and values, which is fast only in contiguous memory. So
completions with a common prefix form a family with one slot: the prefix is copied into it once, followed by the own
tokens of each member. A mask says which member owns a column of the slot. One matrix product then serves the whole
family and reads the shared prefix once. A completion that shares too little with others is a family of one.

A bank is a tensor of slots with the same capacity, for families of the same size. Its first slots are taken, without
gaps. A family that fills its slot moves to a larger one, without the columns of members that have left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ajet_local.completion import Completion
from ajet_local.kv_cache import CacheNode, KVLayout

SMALLEST = 64
"""Columns of the smallest slot."""
AHEAD = 64
"""New tokens for which a slot has room at first, for each member, or fewer if its limit is lower."""
LARGEST_FAMILY = 8
"""Maximum members of a family: the product computes every member's scores on all columns, and discards others'."""
WORTH_SHARING = 64
"""Minimum number of token reads that a family must save: fewer are not worth its mask."""
SHARED, UNUSED = -1, -2
"""Owners of a column: all members of the family, or none."""


@dataclass(slots=True, eq=False)
class Family:
    """Completions whose contexts begin with the same ``shared`` tokens, which end at ``node``."""

    node: CacheNode | None
    shared: int
    members: list[Completion | None]
    columns: list[list[int]]
    """For each member, the columns of its own tokens in the slot, in the order of the tokens."""
    used: int = 0
    """How many columns are or were in use."""

    @property
    def alive(self) -> list[int]:
        """Indices of the current members. Their next tokens go into the next columns in this order."""
        return [number for number, member in enumerate(self.members) if member is not None]


class Bank:
    """Slots of ``capacity`` columns for families of ``size`` members.

    ``kv`` is [layers, 2, slots, heads, capacity, head_dim]. Slot i belongs to the family ``taken[i]``; ``owner[i, column]``
    (int8) is the index of a member, `SHARED` or `UNUSED`.
    """

    def __init__(self, layout: KVLayout, capacity: int, size: int) -> None:
        self.layout = layout
        self.capacity = capacity
        self.size = size
        self.taken: list[Family] = []
        self.kv = layout.zeros(0, tokens=capacity)
        self.owner = torch.zeros(0, capacity, dtype=torch.int8, device=layout.device)

    def foreign(self, families: int, width: int) -> torch.Tensor:
        """bool[families, 1, size, width]: the columns that a member must not read."""
        owner = self.owner[:families, None, :width]
        member = torch.arange(self.size, dtype=torch.int8, device=owner.device)[:, None]
        return ((owner != member) & (owner != SHARED))[:, None]

    def resize(self, slots: int) -> None:
        """Change the number of slots; it must not be below the number of taken ones."""
        kept = min(slots, len(self.owner))
        kv, owner = self.layout.zeros(slots, tokens=self.capacity), self.owner.new_zeros(slots, self.capacity)
        kv[:, :, :kept], owner[:kept] = self.kv[:, :, :kept], self.owner[:kept]
        self.kv, self.owner = kv, owner

    def take(self, family: Family) -> int:
        """Give a family a slot, and return its index."""
        if len(self.taken) == len(self.owner):
            self.resize(len(self.owner) + max(1, len(self.owner) // 2))
        self.taken.append(family)
        self.owner[len(self.taken) - 1] = UNUSED
        return len(self.taken) - 1

    def leave(self, family: Family) -> None:
        """Free a family's slot, and move the last slot into the gap."""
        slot, last = self.taken.index(family), self.taken.pop()
        if last is not family:
            self.kv[:, :, slot, :, : last.used] = self.kv[:, :, len(self.taken), :, : last.used]
            self.owner[slot] = self.owner[len(self.taken)]
            self.taken[slot] = last


class AdapterSlots:
    """The slots of one adapter's completions."""

    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        self._banks: dict[tuple[int, int], Bank] = {}
        self._members: dict[Completion, tuple[Family, int]] = {}
        self._bank_of: dict[Family, Bank] = {}
        self._families: dict[CacheNode, list[Family]] = {}
        """The families of each shared prefix."""

    @property
    def banks(self) -> list[Bank]:
        """The banks in use, smallest capacity first."""
        return [bank for _, bank in sorted(self._banks.items(), key=lambda item: item[0]) if bank.taken]

    @property
    def tokens(self) -> int:
        """How many tokens the allocated memory has room for."""
        return sum(bank.capacity * len(bank.owner) for bank in self._banks.values())

    def __contains__(self, completion: Completion) -> bool:
        return completion in self._members

    def join(self, completion: Completion) -> None:
        """Make a completion a member of a family, and copy those keys and values of its first ``completion.length``
        tokens into the slot that the family does not share."""
        family = self._family(completion)
        own = completion.length - family.shared
        if family.used + own + len(family.alive) >= self._bank_of[family].capacity:
            self._move(family, own)
        member, begin = family.members.index(None), family.used
        family.members[member] = completion
        family.columns[member] = list(range(begin, begin + own))
        family.used += own
        self._members[completion] = (family, member)
        self._copy(completion.node, family, family.shared, completion.length, begin, member)

    def advance(self) -> None:
        """Record one more token for every member. Call it after each pass."""
        for family in self._bank_of:
            for member in family.alive:
                family.columns[member].append(family.used)
                family.used += 1

    def own(self, completion: Completion, begin: int) -> torch.Tensor:
        """A copy of a completion's keys and values from position ``begin`` on, which must be after its family's shared
        prefix: [layers, 2, heads, T, head_dim]."""
        family, member = self._members[completion]
        bank = self._bank_of[family]
        columns = torch.tensor(family.columns[member][begin - family.shared :], device=self.layout.device)
        return bank.kv[:, :, bank.taken.index(family)].index_select(-2, columns)

    def leave(self, completion: Completion) -> None:
        """Free the columns of a completion, and the family's slot with its last member."""
        family, member = self._members.pop(completion)
        family.members[member], bank = None, self._bank_of[family]
        if family.alive:
            bank.owner[bank.taken.index(family), family.columns[member]] = UNUSED
            family.columns[member] = []
            return
        bank.leave(family)
        del self._bank_of[family]
        if family.node is not None:
            self._families[family.node].remove(family)
            if not self._families[family.node]:
                del self._families[family.node]

    def grow(self) -> None:
        """Make room for one more token of every member."""
        for bank in self.banks:
            for family in list(bank.taken):
                if family.used + len(family.alive) > bank.capacity:
                    self._move(family, 0)

    def clear(self) -> None:
        """Remove all completions, but keep the memory for later ones."""
        for table in (self._members, self._bank_of, self._families):
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
        """A family with a free member index, over the prefix that saves the most reads."""
        assert completion.node is not None
        best, size, most = None, 1, WORTH_SHARING - 1
        for node in completion.node.path():
            users = min(node.users, LARGEST_FAMILY)
            if node.end <= completion.length and node.end * (users - 1) > most:
                best, size, most = node, users, node.end * (users - 1)
        if best is not None:
            for family in self._families.get(best, ()):
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
            self._families.setdefault(best, []).append(family)
            self._copy(best, family, 0, shared, 0, SHARED)
            family.used = shared
        return family

    def _copy(
        self, node: CacheNode | None, family: Family, begin: int, end: int, column: int, owner: int
    ) -> None:
        """Copy positions ``[begin, end)`` of a node's path into the slot, from ``column`` on."""
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
        """Move a family to a slot with twice the columns of its members and ``room``; drop the columns of former members."""
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
