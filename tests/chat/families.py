"""Every family of the programme, by name."""

from __future__ import annotations

from tests.chat.family import Family
from tests.chat.known import KNOWN
from tests.chat.others import OF_TRL, OTHERS

FAMILIES: dict[str, Family] = {family.name: family for family in [*KNOWN, *OTHERS, *OF_TRL]}
assert len(FAMILIES) == len([*KNOWN, *OTHERS, *OF_TRL]), "two families have the same name"
