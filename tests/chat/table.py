"""docs/models.md: what `tests.chat.programme` found, a row for each family."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.chat.families import FAMILIES
from tests.chat.programme import Result

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
LAYERS = "\n## Architectures on the local backbone"
"""Where the page goes on with what tools/architectures_table.py writes."""
SHARE = 0.9
"""How many of the families have to be complete."""

_COMPLETE, _RIGHT = "yes", "right in this form"

_HEAD = """# Families of models

AgentJet renders chats with a model's own chat template, and finds out from that template how the model writes tool
calls and thoughts, and which tokens end its answers. This page shows for {all} templates what it found. Your
own model need not be among them: `ajet doctor --model MODEL` prints the same for any model, and `ajet check` for that
of a job. [Which architectures are sampled and trained](#architectures-on-the-local-backbone) is below.

`make test-templates` tries each family with tool calls of many kinds, tool loops, chats, thoughts, stop tokens and
streams. The answers are written by hand as the model writes them; no weights were run. Chat templates are files of
the TRL package (TRL), or forms (own): written for this test after what is known of a family's format. A form says that
such a format is read, and nothing of the template that is published with the family's weights.

{complete} of {published} published templates are complete, and {right} of {own} forms are right; {lose} of them loses calls
without an error. A template is complete, and a form right, if

- the first prompt is what the tokenizer's template gives;
- every call is read exactly, as the model samples it and as the template writes it;
- each new timeline of a tool loop or a chat is one that the template enforces, because it writes earlier messages in
  another way;
- thoughts become `reasoning_content`, every stop token ends an answer, and a stream gives what the whole answer
  gives;
- wherever an answer is cut, each call that is complete is called, each other one that has begun is counted, and nothing
  else is called; words between calls are content.

## If a request with tools is refused

If AgentJet cannot read a model's tool calls, it refuses requests that offer tools. Otherwise the agent would get each
call as text, and never run it. The error says what was tried. There are two remedies:

- Show one call as the model writes it, with `NAME`, `KEY` and `VALUE` in the places of the tool's name, an argument's
  name and its text. It is often in the model's documentation:

```yaml
rollout:
  call_example: '<call>{{"name": "NAME", "arguments": {{"KEY": "VALUE"}}}}</call>'
```

- Set `rollout.tool_calls: text` if the agent reads calls from the text itself.

## If the model does not see tools

Some chat templates leave tools out without an error: `ajet check` says that calls have tools that the model does not
see. Then AgentJet can write them:

```yaml
rollout:
  tool_prompt: hermes
```

Tools become a part of the system message, or of the user's first turn where there can be none; calls are
`<tool_call>` with JSON, and results are turns of the user. This is a prelude before the model's own template, and both
together are read, continued and audited as one template. A template that writes tools itself is refused. Checkpoints
keep the model's own template: serve them with `ajet serve --tool-prompt hermes`. A model that was never trained to call
tools seldom does: let the agent's first messages show a call or two.

## The families

- **How calls are read**: the form of a call, and what showed it: the chat template, or a token of the vocabulary
  where the template writes no calls. *not read* stands for models without tools, and for those whose requests with
  tools are refused.
- **Timelines**: first those of a tool loop of four calls, then those of a chat of four answers whose thoughts the
  client drops. 1 means that all of it is trained as one sequence; 4 means that every answer is trained with a history
  of its own, which costs time but is as exact ([the context tracker](tracker.md)).
- **Complete**: *right in this form* stands for own forms. *refused; read with an example* means that requests with tools
  are refused until `rollout.call_example` is set. If the template raises an error, transformers cannot render such a chat either.
- **Notes**: *unseen* families were added after the readers were written. A variable such as
  `thinking: true` is set in `rollout.chat_template`.
- A dash means that there is none.

| Family | Template | A call | How calls are read | Thoughts | Stops | Timelines: tools, chat | Complete | Notes |
|---|---|---|---|---|---|---|---|---|
"""


def row(result: Result) -> str:
    """A family's row."""
    family = result.family
    call = family.calls.text([("f", {"a": 1})]) if family.calls else ""
    notes = [_plain(family.remark)] if family.remark else []
    if family.calls and not result.shows_tools and not result.template_refuses:
        notes.append("the template does not show tools")
    if not family.known:
        notes.append("unseen")
    if family.variables:
        notes += [_code(f"{key}: {str(value).lower()}") for key, value in family.variables.items()]
    cells = [
        _plain(family.name),
        "TRL" if family.is_published else "own",
        _code(call),
        _plain(result.described) or "–",
        _code("…".join(family.thought)) if family.thought else "–",
        " ".join(_code(stop) for stop in result.stops) or "–",
        f"{result.loop or '–'}, {result.plain[0] or '–'}",
        (_COMPLETE if family.is_published else _RIGHT) if result.is_complete else _plain(f"no: {result.why}"),
        "; ".join(notes),
    ]
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    shown = text.strip("\n").replace("\n", "⏎")
    return f"<code>{_plain(shown)}</code>" if shown else "–"


def _plain(text: str) -> str:
    """A text that Markdown shows as it is, also in a table."""
    return re.sub(r"[|*_\[\]`\\]", lambda m: f"&#{ord(m[0])};", html.escape(text, quote=False))


def page(rows: Mapping[str, str]) -> str:
    """The page; ``rows`` are the rows of the families, by name."""
    found = [rows[name] for name in FAMILIES]
    published = [row for row in found if _cells(row)[1] == "TRL"]
    head = _HEAD.format(
        all=len(found),
        published=len(published),
        own=len(found) - len(published),
        complete=sum(_cells(row)[7] == _COMPLETE for row in published),
        right=sum(_cells(row)[7] == _RIGHT for row in found),
        lose=sum(map(loses_calls, found)) or "none",
    )
    return head + "\n".join(found) + "\n" + LAYERS + PAGE.read_text().partition(LAYERS)[2]


def is_complete(row: str) -> bool:
    """Whether a row says that its published template is complete, or its form right."""
    return _cells(row)[7] in (_COMPLETE, _RIGHT)


def loses_calls(row: str) -> bool:
    """Whether a row says that its family loses calls without an error."""
    return "calls lost" in _cells(row)[7]


def committed() -> dict[str, str]:
    """The rows of the page as it is, by the families' names."""
    lines = PAGE.read_text().partition(LAYERS)[0].splitlines()
    rows = [line for line in lines if line.startswith("| ")][1:]
    return {html.unescape(_cells(line)[0]): line for line in rows}


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")[1:-1]]


def summary(rows: Iterable[str]) -> str:
    """One line on all families."""
    found = list(rows)
    complete, lose = sum(map(is_complete, found)), sum(map(loses_calls, found))
    return f"{complete} of {len(found)} templates and forms are complete; {lose} lose calls without an error"
