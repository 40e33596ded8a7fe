"""A run and some of its episodes as one HTML file without scripts or network access.

Everything that a run wrote is escaped by `_text`; the page's content security policy also forbids scripts and
network access.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path
from string import Template

from ajet.reports.chart import chart
from ajet.reports.episode import BreakReport, ChatLine, Conversation, EpisodeReport
from ajet.reports.labels import counted, episode_labels, folds, run_labels, step_table, who
from ajet.reports.run_summary import Count, Pick, RunSummary
from ajet.reports.text import group_lines, group_title, steered_table
from ajet.reports.token_text import visible
from ajet.reports.view import Tokens
from ajet.utils.terminal import readable

_MARK = "\0"
"""Marks where the content goes in the template. A NUL, because no text on a page contains one."""
LEVELS = ((0.5, "≥ 50 %"), (0.2, "≥ 20 %"), (0.05, "≥ 5 %"), (0.01, "≥ 1 %"), (0.0, "< 1 %"))
"""Minimum probability for each colour of a trained token, and its label."""


def written(
    summary: RunSummary, reports: Mapping[str, Callable[[], EpisodeReport]], *, everything: bool
) -> Iterator[str]:
    """The whole file in pieces, so that a run of many episodes is never in memory as a whole. ``reports`` makes the report
    of an episode, by its id, when it is needed. ``everything``: long contexts are not folded."""
    anchors = {episode: f"episode-{n}" for n, episode in enumerate(reports)}
    shown = (_episode(report(), anchors[episode], everything) for episode, report in reports.items())
    yield from document(
        f"{summary.run} – ajet show", chain(_run(summary, anchors), chain.from_iterable(shown))
    )


def document(title: str, parts: Iterable[str]) -> Iterator[str]:
    """A file with these parts, in pieces."""
    template = Template((files("ajet.reports") / "page.html").read_text(encoding="utf-8"))
    before, after = template.substitute(title=_text(title), content=_MARK).split(_MARK)
    yield before
    for part in parts:
        yield f"{part}\n"
    yield after


def _text(text: str) -> str:
    """Text as HTML; unprintable characters become escapes."""
    return html.escape(readable(text))


# --------------------------------------------------------------------------- the run


def _run(summary: RunSummary, anchors: Mapping[str, str]) -> Iterator[str]:
    yield f"<h1>{_text(summary.name or Path(summary.run).name)}</h1>"
    yield _labels(run_labels(summary))
    yield from (f"<p>{_text(note)}</p>" for note in summary.notes)
    if summary.verdict:
        lines = "".join(f"<li>{_text(line)}</li>" for line in summary.verdict)
        yield f"<section>\n<h2>Verdict</h2>\n<ul>{lines}</ul>\n</section>"
    if summary.curves:
        yield chart(summary.curves)
    if summary.rows:
        yield f"<section>\n<h2>Steps</h2>\n{_table(step_table(summary.rows, summary.validates))}\n</section>"
    if summary.steered:
        yield f"<section>\n<h2>Steered tasks</h2>\n{_table(steered_table(summary.steered))}\n</section>"
    for title, counts in counted(summary):
        yield f"<section>\n<h2>{title.capitalize()}</h2>\n{_counts(counts)}\n</section>"
    total = sum(summary.episodes.values())
    if total > len(anchors):
        yield (
            f"<p>On this page: {len(anchors)} of {total:,} episodes. <code>ajet show RUN --html FILE --all</code> includes "
            "all of them.</p>"
        )
    if summary.picks:
        items = "\n".join(f"<li>{_pick(pick, anchors)}</li>" for pick in summary.picks)
        more = _more(anchors) if len(anchors) > len(summary.picks) else ""
        yield f"<nav aria-label='Episodes'>\n<h2>Episodes to look at</h2>\n<ul>\n{items}\n</ul>\n{more}</nav>"


def _more(anchors: Mapping[str, str]) -> str:
    """Links to all episodes of the page, collapsed."""
    links = " ".join(
        f"<a href='#{anchor}'><code>{_text(name)}</code></a>" for name, anchor in anchors.items()
    )
    return f"<details><summary>all {len(anchors):,} episodes</summary>\n<p>{links}</p>\n</details>\n"


def _pick(pick: Pick, anchors: Mapping[str, str]) -> str:
    name = f"<code>{_text(pick.id)}</code>"
    if pick.id in anchors:
        name = f"<a href='#{anchors[pick.id]}'>{name}</a>"
    return f"{name} <span class=soft>{_text(pick.why)}</span>"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    return "<dl>\n" + "\n".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in labels) + "\n</dl>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th class=n scope=col>{_text(cell)}</th>" for cell in rows[0])
    body = "\n".join(
        f"<tr>{''.join(f'<td class=n>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows[1:]
    )
    return (
        f"<div class=wide><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _counts(counts: Sequence[Count]) -> str:
    body = "\n".join(
        f"<tr><td>{_text(c.name)}</td><td class=n>{c.count}</td><td class=soft>{_text(c.about)}</td></tr>"
        for c in counts
    )
    return f"<div class=wide><table>\n<tbody>\n{body}\n</tbody>\n</table></div>"


# --------------------------------------------------------------------------- an episode


def _episode(report: EpisodeReport, anchor: str, everything: bool) -> Iterator[str]:
    yield f"<article id={anchor}>\n<h2>Episode {_text(report.header.id)}</h2>"
    yield _labels(episode_labels(report)[1:])
    yield from (f"<p>{_text(note)}</p>" for note in report.notes)
    if report.tree:
        lines = "\n".join(group_lines(report.tree, report.header.id, everything=everything))
        yield f"<section>\n<h3>{_text(group_title(report.tree))}</h3>\n<pre class=wide>{_text(lines)}</pre></section>"
    for conversation in report.conversations:
        yield from _conversation(conversation, everything)
    if report.printed:
        yield f"<details><summary>printed by workflow and judge</summary><pre>{_text(report.printed)}</pre></details>"
    if report.breaks:
        yield "<section>\n<h3>Breaks</h3>"
        yield from map(_break, report.breaks)
        yield "</section>"
    yield "</article>"


def _conversation(conversation: Conversation, everything: bool) -> Iterator[str]:
    yield f"<section>\n<h3>{_text(conversation.title)} <span class=soft>{_text(conversation.about)}</span></h3>"
    if conversation.chat:
        yield "<ol class=chat>"
        for folded, lines in folds(conversation.chat, everything):
            yield f"<li class=fold>… {_text(folded)} …</li>" if folded else "\n".join(map(_message, lines))
        yield "</ol>"
    if conversation.tokens:
        yield _legend(conversation.tokens)
        yield f"<p class=strip>{''.join(_tokens(conversation.tokens, everything))}</p>"
    yield "</section>"


def _message(line: ChatLine) -> str:
    parts = [f"<p class=who>{_text(who(line))}</p>"]
    if line.reasoning:
        parts.append(f"<details><summary>reasoning</summary><pre>{_text(line.reasoning)}</pre></details>")
    if line.content:
        parts.append(f"<pre>{_text(line.content)}</pre>")
    parts += [_image(path) for path in line.images]
    parts += [f"<pre>→ {_text(name)}({_text(arguments)})</pre>" for name, arguments in line.tool_calls]
    role = "assistant" if line.role == "assistant" else "other"
    return f"<li class={role}>{''.join(parts)}</li>"


def _image(path: Path) -> str:
    """An image in the page itself, which loads nothing. A file with the name of an image may be a link to any other."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != path.stem:
        return f"<p>image {_text(path.stem[:8])}: its file holds something else</p>"
    encoded = base64.b64encode(data).decode()
    kind = path.suffix.removeprefix(".")
    return f"<p><img alt='image {_text(path.stem[:8])}' src='data:image/{kind};base64,{encoded}'></p>"


# --------------------------------------------------------------------------- tokens


def _legend(parts: Sequence[Tokens]) -> str:
    signs = "context is grey; · space, → tab, ↵ newline; point at a token for its figures"
    if any(part.trained for part in parts):
        levels = " ".join(f"<span class='s p{n}'>{words}</span>" for n, (_, words) in enumerate(LEVELS))
        return f"<p class=legend>trained, by the probability that the model gave it: {levels}; {signs}</p>"
    return f"<p class=legend><span class='s u'>sampled, not trained</span>; {signs}</p>"


def _tokens(parts: Sequence[Tokens], everything: bool) -> Iterator[str]:
    for part in parts:
        for i in part.shown(everything):
            if i is None:
                yield f"<i> … {part.folded} context tokens … </i>"
                continue
            token, piece = part.ids[i], part.texts[i]
            text = f" {token} " if piece is None else _shown(piece).replace("↵", "↵<br>") or "▫"
            labels = [f"position {part.start + i}", f"id {token}"]
            style = ""
            if part.sampled:
                logprob = part.logprobs[i]
                labels += [f"logprob {logprob:.4f}"] if logprob is not None else []
                labels += [] if part.advantage is None else [f"advantage {part.advantage:+.4f}"]
                labels += [f"weights {part.versions[i]}", f"call {part.call}", part.agent]
                style = f" class='s {_level(logprob) if part.trained else 'u'}'"
            yield f"<span{style} title='{_text(' · '.join(labels))}'>{text}</span>"


def _level(logprob: float | None) -> str:
    probability = 1.0 if logprob is None else math.exp(logprob)
    return f"p{next(n for n, (least, _) in enumerate(LEVELS) if probability >= least)}"


# --------------------------------------------------------------------------- breaks


def _break(report: BreakReport) -> str:
    broken = report.found
    labels = [f"<h4>Call {broken.call} did not continue call {broken.after}: {_text(broken.cause)}</h4>"]
    if broken.char >= 0:
        diff = f"{_shown(report.head)}{_diff(report.removed, report.added)}{_shown(report.tail)}"
        labels.append(f"<p>message {broken.message + 1}, character {broken.char}: <code>{diff}</code></p>")
    elif broken.message >= 0:
        labels.append(f"<p>message {broken.message + 1}: <code>{_diff(broken.before, broken.now)}</code></p>")
    was, now = _few(broken.recorded, report.recorded), _few(broken.sent, report.sent)
    labels.append(
        f"<p>tokens agree up to {broken.token}, {broken.lost_tokens} of the prompt are new: "
        f"<code><del>{was}</del> <ins>{now}</ins></code></p>"
    )
    labels.append(f"<p>Remedy: {_text(report.remedy)}</p>")
    return "\n".join(labels)


def _few(ids: Sequence[int], texts: Sequence[str | None]) -> str:
    return " ".join(f"{i} <b>{_shown(t)}</b>" if t else str(i) for i, t in zip(ids, texts, strict=True))


def _diff(was: str, now: str) -> str:
    return (f"<del>{_shown(was)}</del>" if was else "") + (f"<ins>{_shown(now)}</ins>" if now else "")


def _shown(text: str) -> str:
    return _text(visible(text))
