"""An expert's calls, without mistakes: for checking tasks and for writing transcripts."""

from __future__ import annotations

import re
from collections.abc import Sequence


def next_call(request: str, replies: Sequence[str]) -> str | None:
    """The next call after these replies; None when the errand is done.

    >>> next_call("Password otter. Pay ana 5.", [])
    'login otter'
    >>> next_call("Password otter. Pay ana 5.", ["welcome", "4"])
    'pay 4 5'
    """
    calls = plan(request)
    return (
        calls[len(replies)].replace("REPLY", replies[-1] if replies else "")
        if len(replies) < len(calls)
        else None
    )


def plan(request: str) -> list[str]:
    """All calls of an errand; REPLY stands for the reply to the previous call. Raises ValueError for an unknown errand."""
    forms = {
        r"Pay (\w+) (\d+)\.": ["contacts {0}", "pay REPLY {1}"],
        r"Do what (\w+) asks\.": ["inbox {0}", "REPLY"],
        r"Tell (\w+) (\w+)\.": ["mail {0} {1}"],
        r"Meet (\w+) on (\w+)\.": ["free {1}", "book {1} REPLY {0}"],
    }
    for form, calls in forms.items():
        if found := re.fullmatch(rf"Password (\w+)\. {form}", request):
            password, *words = found.groups()
            return [f"login {password}", *(call.format(*words) for call in calls)]
    raise ValueError(f"no such errand: {request!r}")
