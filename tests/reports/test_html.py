"""The page: one well-formed file that needs no network, runs no script and escapes everything."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
import yaml

from ajet.reports.chart import scale, ticks
from ajet.reports.credit import run_credit
from ajet.reports.episode import episode_report
from ajet.reports.token_text import TokenText
from ajet.rollout.failures import Failure, FailureKind

from .conftest import Folder, page, squeezing, two_turns

VOID = {"meta", "br"}
HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)> \" ' &amp; </title> $title \x1b[31m"


class Checked(HTMLParser):
    """Parses a page and fails where an element is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        assert "svg" in self.open, "only there a tag may close itself"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def rendered(folder: Folder, *episodes: str, everything: bool = False) -> str:
    run = folder.read()
    credit = run_credit(run)
    reports = [episode_report(run, run.find(e), credit, TokenText(run.dir)) for e in episodes]
    return page(folder.summary(), reports, everything=everything)


@pytest.fixture
def lived(folder: Folder, live: Any) -> Folder:
    folder.write(live(group_size=2))
    folder.write(live(squeezing, lambda r, p: "one  two", group_size=2), step=2)
    for step in (1, 2):
        folder.metrics("train", step, reward=step / 2)
    return folder


def test_the_page_is_well_formed_with_headings_in_order(lived: Folder) -> None:
    found = Checked(rendered(lived, "1.0/t0/1", "2.0/t0/0"))
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels)), "no level is left out"
    assert len(found.named("article")) == 2 and found.named("html")[0]["lang"] == "en"
    assert found.named("svg")[0]["aria-label"] == "training reward: from 0.5 to 1"


def test_the_chart_has_validations_and_an_axis_of_steps(folder: Folder, live: Any) -> None:
    folder.write(live(group_size=2))
    for step in range(1, 31):
        folder.metrics("train", step, reward=step / 30)
    for step in (0, 15, 30):
        folder.metrics("validation", step, reward=0.1, accuracy=step / 30)
        folder.metrics("greedy", step, reward=0.1, accuracy=0.5)
    text = rendered(folder)
    found = Checked(text)
    label = str(found.named("svg")[0]["aria-label"])
    assert label == (
        "training reward: from 0.0333 to 1; validation accuracy: from 0 to 1; "
        "greedy accuracy: from 0.5 to 0.5"
    )
    assert [len(found.named(tag)) for tag in ("path", "circle")] == [3, 6], "a dot for each validation"
    labels = re.findall(r">([^<>]+)</text>", text)
    assert labels[:4] == ["reward, accuracy", "0", "0.5", "1"]
    ticks = [n for n in labels if n.isdigit() and n not in ("0", "1")]
    assert ticks[-1] == "30" and "10" in ticks and ">step</text>" in text
    figure = re.search(r"<figure>.*</figure>", text, re.DOTALL)
    assert figure and "NaN" not in figure[0] and "inf" not in figure[0]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (1, 1, [1]),
        (0, 3, [0, 1, 2, 3]),
        (1, 80, [1, 20, 40, 60, 80]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (7, 1000, [7, 200, 400, 600, 800, 1000]),
    ],
)
def test_the_axis_has_round_steps_between_the_ends(first: int, last: int, expected: list[int]) -> None:
    assert ticks(first, last) == expected


def test_the_heading_is_the_name_of_the_run_and_not_its_path(lived: Folder) -> None:
    text = rendered(lived)
    assert f"<h1>{lived.dir.name}</h1>" in text
    (lived.dir / "job.yaml").write_text("run: {name: sums & products}\n")
    assert "<h1>sums &amp; products</h1>" in rendered(lived)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 0.156, [0, 0.05, 0.1, 0.15, 0.2]),
        (-1, 3, [-1, 0, 1, 2, 3]),
        (0.5, 0.5, [0.4, 0.6]),
        (0, 0, [0, 0.5]),
        (1e-9, 3e-8, [0, 1e-8, 2e-8, 3e-8]),
    ],
)
def test_the_axis_of_values_has_round_marks_around_them(
    low: float, high: float, expected: list[float]
) -> None:
    assert scale(low, high) == expected


def test_it_needs_nothing_from_outside_and_runs_nothing(lived: Folder) -> None:
    text = rendered(lived, "1.0/t0/1")
    found = Checked(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in found.tags}
    assert not re.search(r"https?://|url\(|@import|\bon\w+=", text)
    policy = next(m for m in found.named("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_links_to_the_chosen_episodes_lead_somewhere(lived: Folder) -> None:
    summary = lived.summary()
    found = Checked(rendered(lived, *(pick.id for pick in summary.picks)))
    places = {attributes["id"] for attributes in found.named("article")}
    links = [str(attributes["href"]).removeprefix("#") for attributes in found.named("a")]
    assert len(links) == len(summary.picks) and set(links) <= places


def test_hostile_text_is_only_text_wherever_a_run_wrote_it(folder: Folder, live: Any) -> None:
    async def hostile(task: Any) -> str:
        await two_turns(task)
        return HOSTILE

    (episode,) = live(hostile, lambda r, p: HOSTILE)
    episode.counters[HOSTILE] += 1
    episode.metrics = {HOSTILE: 1.0}
    failed = live(hostile, lambda r, p: HOSTILE, tasks=2)[1]
    failed.failed = Failure(FailureKind.WORKFLOW, HOSTILE, HOSTILE)
    folder.write([episode, failed])
    (folder.dir / "job.yaml").write_text(yaml.safe_dump({"model": HOSTILE}))
    text = rendered(folder, "1.0/t0/0", "1.1/t1/0", everything=True)
    found = Checked(text)
    assert not {"script", "img"} & {tag for tag, _ in found.tags}
    assert "<script" not in text and "\x1b" not in text
    assert found.text.count("<script>alert('x')</script>") >= 8
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)


def test_tokens_carry_their_figures_and_a_colour_by_probability(lived: Folder) -> None:
    found = Checked(rendered(lived, "1.0/t0/1"))
    tokens = [a for a in found.named("span") if "title" in a]
    trained = [a for a in tokens if "class" in a]
    assert all(re.fullmatch(r"s p\d", str(a["class"])) for a in trained)
    assert re.fullmatch(
        r"position \d+ · id \d+ · logprob -\d\.\d{4} · advantage \+0\.7071 · weights 0 · call 0 · solver",
        str(trained[0]["title"]),
    )
    assert re.fullmatch(r"position 0 · id \d+", str(tokens[0]["title"])), "context is grey, with its id"
    assert "≥ 50 %" in found.text and "< 1 %" in found.text


def test_breaks_are_shown_with_what_was_removed_and_the_remedy(lived: Folder) -> None:
    text = rendered(lived, "2.0/t0/0")
    assert "one·<del>·</del>two" in text
    assert (
        "Call 1 did not continue call 0: whitespace changed" in text and "Remedy: Send messages back" in text
    )


def test_long_contexts_are_folded_unless_all_is_asked(folder: Folder, live: Any) -> None:
    async def long(task: Any) -> str:
        from .conftest import ask

        return (await ask([{"role": "user", "content": "7" * 500}])).content or ""

    folder.write(live(long))
    short, whole = (rendered(folder, "1.0/t0/0", everything=e) for e in (False, True))
    assert len(re.findall(r"… \d+ context tokens …", short)) == 1
    assert "context tokens …" not in whole and len(whole) > len(short)
    Checked(short)
    Checked(whole)


def test_the_page_of_a_run_without_episodes_is_a_page(folder: Folder) -> None:
    assert "none has ended yet" in Checked(rendered(folder.write([]))).text
