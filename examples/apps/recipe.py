"""The untrained assistant: it logs in and calls apps correctly, but often calls the wrong app.

In most errands it does not check calendars or read letters: it books at lunch, and answers by mail. These errands
fail; in the others it does check or read. That is what training reinforces.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from expert import next_call
from service import DAYS, LUNCH, NAMES, PASSWORDS, WORDS, Apps

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript, tool_call

SYSTEM = "Run the errand with the apps."
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "api",
        "description": "Call an app; help lists the calls.",
        "parameters": {"properties": {"call": {"type": "string"}}, "required": ["call"], "type": "object"},
    },
}
CARELESS = 0.7
"""Share of the errands with a calendar or a letter that are done without checking it."""


def errand(rng: random.Random, careless: float = 0.0) -> Transcript:
    """An errand of the split `train`, with or without checks."""
    app = Apps(f"train-recipe-{rng.randrange(2**40)}", {})
    request = app.start()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": request},
    ]
    hasty = rng.random() < careless
    replies: list[str] = []
    while (call := next_call(request, replies)) is not None:
        words = request.rstrip(".").split()
        if hasty and len(replies) == 1 and words[2] == "Meet":
            call = f"book {words[5]} {LUNCH} {words[3]}"
        elif hasty and len(replies) == 1 and words[2] == "Do":
            call = f"mail {words[4]} later"
        reply = str(app.step({"role": "assistant", "content": call}).messages[0]["content"])
        replies.append(reply)
        messages += [
            tool_call("api", {"call": call}),
            {"role": "tool", "tool_call_id": "call_0", "content": reply},
        ]
        if call.split()[0] in ("pay", "mail", "book"):
            break
    messages.append({"role": "assistant", "content": "Done."})
    return Transcript(messages, (TOOL,), (request,))


def careful(rng: random.Random) -> Transcript:
    """An errand run correctly."""
    return errand(rng)


def hasty(rng: random.Random) -> Transcript:
    """An errand as the untrained assistant runs it."""
    return errand(rng, CARELESS)


def echo(rng: random.Random) -> Transcript:
    """Practice in copying numbers and names."""
    words = [*map(str, range(1, 10)), *NAMES, *PASSWORDS, *DAYS, *WORDS]
    text = " ".join(rng.choice(words) for _ in range(rng.randint(2, 6)))
    return Transcript([{"role": "user", "content": text}, {"role": "assistant", "content": text}])


class Assistant(TinyRecipe):
    """An assistant that can call its apps, but mostly does not check calendars or read letters."""

    name = "assistant"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (careful, hasty, echo) for _ in range(80))

    def phases(self) -> Sequence[Phase]:
        """Copying, correct errands, habits."""
        return (
            Phase("copy", 400, 2e-3, echo, 2),
            Phase("care", 280, 2e-3, echo, 8, careful),
            Phase("habits", 60, 1e-3, echo, 8, hasty),
        )
