"""Comparing rendered texts, without cutting a tag or a token in two."""

from __future__ import annotations

import re


def common_start(one: str, two: str, control: re.Pattern[str]) -> str:
    """The common beginning of two texts; it ends where both go on with a tag, a token, space, a mark or nothing.
    ``control`` matches special tokens."""
    end = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    while end and not all(_begins_part(text, end, control) for text in (one, two)):
        end -= 1
    return one[:end]


def common_end(one: str, two: str, control: re.Pattern[str]) -> str:
    """The common end of two texts; it begins with a tag, a token, a bracket or space, or is one of the texts."""
    shorter = min(len(one), len(two))
    same = next((n for n in range(shorter) if one[-1 - n] != two[-1 - n]), shorter)
    while same and not all(_begins_call(text, len(text) - same, control) for text in (one, two)):
        same -= 1
    return one[len(one) - same :]


def without_header(text: str, header: str, control: re.Pattern[str]) -> str:
    """A turn without its header, or what it has of it."""
    return text[len(header if text.startswith(header) else common_start(text, header, control)) :]


def partial(text: str, markers: tuple[str, ...]) -> int:
    """How many characters at the end of a text may be the beginning of one of the markers."""
    longest = min(len(text), max(map(len, markers), default=1) - 1)
    ends = (n for n in range(longest, 0, -1) if any(m.startswith(text[-n:]) for m in markers))
    return next(ends, 0)


def _begins_call(text: str, at: int, control: re.Pattern[str]) -> bool:
    """Whether a part begins, or words after a token."""
    after_token = any(
        token.end() == at for n in range(max(0, at - 64), at) if (token := control.match(text, n))
    )
    return after_token or _begins_part(text, at, control)


def _begins_part(text: str, at: int, control: re.Pattern[str]) -> bool:
    if at in (0, len(text)):
        return True
    near = range(max(0, at - 64), at)
    if any(n < at < match.end() for n in near if (match := control.match(text, n))):
        return False
    tag = text.rfind("<", near.start, at)
    if tag >= 0 and ">" not in text[tag:at]:
        return False
    return (
        text[at] in "<[{(" or text[at].isspace() or text[at - 1].isspace() or "\ufdd0" <= text[at] <= "\ufdef"
    )
