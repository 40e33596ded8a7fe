"""Texts by their letters and digits: what stays of a text that was quoted in another form."""

from __future__ import annotations

import re
from typing import Any

LONG = 8
"""Letters and digits that another text does not contain by chance."""


def letters(value: Any) -> str:
    """The letters and digits of a value, without those of escaped white space; none of None."""
    text = "" if value is None else re.sub(r"\\+[nrt]", " ", str(value))
    return "".join(filter(str.isalnum, text)).casefold()
