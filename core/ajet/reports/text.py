"""Reports of a run and of an episode, for a terminal or a log.

Sampled tokens are coloured on a terminal and bracketed elsewhere: ⟦trained⟧, ⟨not trained⟩.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

from rich.text import Text

from ajet.reports.episode import BreakReport, ChatLine, Conversation, EpisodeReport
from ajet.reports.group_tree import GroupNode, GroupTree, Stretch
from ajet.reports.labels import counted, episode_labels, folds, run_labels, shortened, step_table, who
from ajet.reports.run_summary import Count, RunSummary, SteeredTask
from ajet.reports.token_text import visible
from ajet.reports.view import EDGE, Tokens
from ajet.utils.terminal import readable, table

_columns = partial(table, most=sys.maxsize)

BARS = "▁▂▃▄▅▆▇█"
MOST_BRANCHES = 40
"""Lines of a group's tree, unless all are asked for."""
WIDEST = 40
"""Bars of a sparkline."""
LONGEST = 2000
"""Maximum characters of a message that is shown in full."""


def describe_run(summary: RunSummary) -> str:
    """The summary of a run, as plain text."""
    parts = [_columns(run_labels(summary))]
    if len(summary.rewards) > 1:
        parts.append(
            f"reward  {sparkline(summary.rewards)}  {summary.rewards[0]:.3g} → {summary.rewards[-1]:.3g}"
        )
    if summary.rows:
        parts.append(table(step_table(summary.rows, summary.validates)))
    if summary.groups:
        zero, groups = summary.groups_zero_advantage, summary.groups
        parts.append(
            f"groups with zero advantage (nothing to learn): {zero} of {groups}, {zero / groups:.0%}"
        )
    if summary.verdict:
        parts.append("\n  ".join(["verdict", *summary.verdict]))
    if summary.steered:
        parts.append("steered tasks\n" + _columns(steered_table(summary.steered), indent="  "))
    parts += [f"{title}\n{_counts(counts)}" for title, counts in counted(summary)]
    if summary.picks:
        run = shlex.quote(summary.run)
        shown = [(f"ajet show {run} {shlex.quote(pick.id)}", pick.why) for pick in summary.picks]
        parts.append("look at\n" + _columns(shown, indent="  "))
    parts += [f"note: {note}" for note in summary.notes]
    return readable("\n\n".join(parts))


def describe_episode(
    report: EpisodeReport, *, everything: bool, tokens: bool, colour: bool
) -> Iterator[Text]:
    """An episode: header, then chat and tokens of each timeline, then where conversations broke."""
    yield Text(readable(_columns(episode_labels(report))))
    for note in report.notes:
        yield Text(readable(f"note: {note}"))
    if report.tree:
        yield Text(f"\n{group_title(report.tree)}", "bold")
        for line in group_lines(report.tree, report.header.id, everything=everything):
            yield Text(readable(line))
    legend = True
    for conversation in report.conversations:
        yield Text(f"\n{_title(conversation)}", "bold")
        yield from _chat(conversation.chat, everything)
        if conversation.tokens:
            if legend:
                yield _legend(colour)
                legend = False
            yield Text()
            yield _strip(conversation.tokens, everything, colour)
            if tokens:
                yield Text()
                yield Text(_token_table(conversation.tokens, everything))
    if report.printed:
        yield Text("\nprinted by workflow and judge", "bold")
        yield Text(_indented(report.printed.rstrip("\n"), everything))
    for broken in report.breaks:
        yield Text()
        yield describe_break(broken)


# --------------------------------------------------------------------------- the run


def sparkline(values: Sequence[float]) -> str:
    """Values as bars; neighbours are averaged if there are more values than fit."""
    count = min(WIDEST, len(values))
    cuts = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def steered_table(tasks: Sequence[SteeredTask]) -> list[Sequence[str]]:
    """Rows of the tasks of which some groups began with calls of an earlier episode, over the steps."""
    heads = ("task", "pass rate of whole groups", "calls with which others begin")
    return [heads, *((one.task, _course(one.rates), _course(one.starts)) for one in tasks)]


def _course(points: Sequence[tuple[int, float]]) -> str:
    """Values over the steps, the first and the last of them."""
    values = [value for _, value in points]
    return f"{sparkline(values)}  {values[0]:.3g} → {values[-1]:.3g}" if values else ""


def _counts(counts: Sequence[Count]) -> str:
    return _columns([(c.name, str(c.count), c.about) for c in counts], indent="  ")


# --------------------------------------------------------------------------- the episode


def _title(conversation: Conversation) -> str:
    numbers = ", ".join(str(n) for n in conversation.calls)
    return f"{conversation.title}: call{'s' * (len(conversation.calls) > 1)} {numbers}; {conversation.about}"


def _chat(lines: Sequence[ChatLine], everything: bool) -> Iterator[Text]:
    for folded, shown in folds(lines, everything):
        if folded:
            yield Text(f"  … {folded} …", "dim")
        for line in shown:
            yield from _message(line, everything)


def _message(line: ChatLine, everything: bool) -> Iterator[Text]:
    yield Text(readable(f"  {who(line)}"), "bold cyan")
    if line.reasoning:
        yield Text(_indented(f"(reasoning) {line.reasoning}", everything), "dim italic")
    if line.content:
        yield Text(_indented(line.content, everything))
    for path in line.images:
        yield Text(_indented(f"image: {path}", everything), "blue")
    for name, arguments in line.tool_calls:
        yield Text(_indented(f"→ {name}({arguments})", everything), "magenta")


def _indented(text: str, everything: bool) -> str:
    text = readable(text if everything else shortened(text, LONGEST))
    return "\n".join(f"     {line}" for line in text.split("\n"))


# --------------------------------------------------------------------------- the group


def group_title(tree: GroupTree) -> str:
    """How many episodes the group has, and what they are worth."""
    value = "none was judged" if tree.value is None else f"value {tree.value:.3g}"
    recorded = "" if tree.is_recorded else "; no record says what its calls were trained with"
    return f"group of {tree.leaves} episodes: {value}{recorded}"


def group_lines(tree: GroupTree, shown: str, *, everything: bool) -> list[str]:
    """The tree of a group, a line for each stretch of calls, the episode ``shown`` marked. A long tree is cut."""
    last = {node.parent: place for place, node in enumerate(tree.nodes)}
    above: list[str] = []
    """For each node, what stands before the lines below it."""
    rows: list[Sequence[str]] = []
    for place, node in enumerate(tree.nodes):
        before = above[node.parent] if node.parent >= 0 else ""
        is_last = last[node.parent] == place
        above.append(before + ("   " if is_last else "│  "))
        lead = before + ("└─ " if is_last else "├─ ")
        stretches = node.stretches or (Stretch((), "", "", None),)
        for stretch in stretches:
            ends = stretch is stretches[-1]
            rows.append(
                (
                    lead + _calls(stretch.calls),
                    stretch.agent,
                    "" if stretch.advantage is None else f"{stretch.advantage:+.3f}",
                    _worth(node) if ends else "",
                    ("◀ " if node.episode == shown else "") + node.episode if ends and node.episode else "",
                    stretch.words,
                )
            )
            lead = above[-1]
    most = len(rows) if everything else MOST_BRANCHES
    heads = ("CALLS", "AGENT", "ADVANTAGE", "WORTH", "EPISODE", "ANSWER")
    lines = _columns([heads, *rows[:most]]).splitlines()
    return lines + ([f"… {len(rows) - most} more lines; --all shows them"] if len(rows) > most else [])


def _calls(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no call"
    return f"call {numbers[0]}" if len(numbers) == 1 else f"calls {numbers[0]}–{numbers[-1]}"


def _worth(node: GroupNode) -> str:
    if node.failure:
        return f"failed: {node.failure}"
    if node.value is None:
        return "none was judged"
    return f"reward {node.value:.3g}" if node.episode else f"value {node.value:.3g}"


# --------------------------------------------------------------------------- tokens


def _legend(colour: bool) -> Text:
    signs = "  · space  → tab  ↵ newline  | next token"
    if not colour:
        return Text(f"\n  ⟦trained⟧  ⟨sampled, not trained⟩{signs}")
    text = Text("\n  trained, its probability at least ")
    for word, logprob in (("50 %", -0.1), ("10 %", -1.0), ("less", -9.0)):
        text.append(f" {word} ", _style(True, logprob)).append(" ")
    return text.append(" sampled, not trained ", _style(False, None)).append(signs, "dim")


def _style(trained: bool, logprob: float | None) -> str:
    if not trained:
        return "black on bright_black"
    probability = 1.0 if logprob is None else math.exp(logprob)
    return f"black on {'green' if probability >= 0.5 else 'yellow' if probability >= 0.1 else 'red'}"


def _strip(parts: Sequence[Tokens], everything: bool, colour: bool) -> Text:
    text = Text()
    for part in parts:
        if part.sampled:
            _sampled(text, part, colour)
        else:
            _context(text, part, everything)
    return text


def _sampled(text: Text, part: Tokens, colour: bool) -> None:
    opening, closing = ("", "") if colour else ("⟦", "⟧") if part.trained else ("⟨", "⟩")
    text.append(opening)
    first = True
    for token, piece, logprob in zip(part.ids, part.texts, part.logprobs, strict=True):
        if piece != "":  # part of a character
            shown = _shown(token, piece)
            text.append(shown if first else f"|{shown}", _style(part.trained, logprob))
            first = False
    text.append(closing)


def _context(text: Text, part: Tokens, everything: bool) -> None:
    shown = [_shown(token, piece) for token, piece in zip(part.ids, part.texts, strict=True)]
    between = " " if part.texts[0] is None else ""
    if everything or not part.folded:
        text.append(between.join(shown), "dim")
        return
    text.append(between.join(shown[:EDGE]), "dim")
    text.append(f" … {part.folded} context tokens … ", "italic")
    text.append(between.join(shown[-EDGE:]), "dim")


def _shown(token: int, piece: str | None) -> str:
    return str(token) if piece is None else visible(piece).replace("↵", "↵\n")


def _token_table(parts: Sequence[Tokens], everything: bool) -> str:
    rows: list[Sequence[str]] = [
        ("POSITION", "ID", "TEXT", "MASK", "LOGPROB", "ADVANTAGE", "VERSION", "CALL", "AGENT")
    ]
    for part in parts:
        for i in part.shown(everything):
            if i is None:
                rows.append(("…", "", f"{part.folded} context tokens"))
                continue
            piece = part.texts[i]
            row = [str(part.start + i), str(part.ids[i]), "" if piece is None else visible(piece)]
            if part.sampled:
                logprob = part.logprobs[i]
                row += [
                    "1" if part.trained else "0",
                    "" if logprob is None else f"{logprob:.4f}",
                    "" if part.advantage is None else f"{part.advantage:+.4f}",
                    str(part.versions[i]),
                    str(part.call),
                    readable(part.agent),
                ]
                rows.append(row)
            else:
                rows.append([*row, "0"])
    return table(rows)


# --------------------------------------------------------------------------- breaks


def describe_break(report: BreakReport) -> Text:
    """Where a call did not continue another: the message, the characters, the tokens and the remedy."""
    broken = report.found
    text = Text(f"break: call {broken.call} did not continue call {broken.after}", "bold")
    text.append(f" ({readable(broken.agent)})" if broken.agent else "").append(f": {broken.cause}\n")
    if broken.char >= 0:
        text.append(f"  message {broken.message + 1}, character {broken.char}:  ", "not bold")
        text.append(visible(report.head), "not bold")
        if report.removed:
            text.append(f"[-{visible(report.removed)}-]", "not bold red")
        if report.added:
            text.append(f"{{+{visible(report.added)}+}}", "not bold green")
        text.append(f"{visible(report.tail)}\n", "not bold")
    elif broken.message >= 0:
        text.append(f"  message {broken.message + 1} was  {visible(broken.before)}\n", "not bold red")
        text.append(f"  message {broken.message + 1} is   {visible(broken.now)}\n", "not bold green")
    text.append(
        f"  tokens agree up to {broken.token}; {broken.lost_tokens} of the prompt are new\n", "not bold"
    )
    text.append(f"    was  {_few(broken.recorded, report.recorded)}\n", "not bold red")
    text.append(f"    is   {_few(broken.sent, report.sent)}\n", "not bold green")
    return text.append(f"  remedy: {report.remedy}", "not bold")


def _few(ids: Sequence[int], texts: Sequence[str | None]) -> str:
    return "  ".join(f"{i}" if t is None else f"{i} {visible(t)}" for i, t in zip(ids, texts, strict=True))
