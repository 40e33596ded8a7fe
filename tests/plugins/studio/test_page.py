"""The page of the studio in a real browser: every view, by keyboard, while a run grows, with hostile text."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
from PIL import Image
from playwright.sync_api import expect

import ajet_studio
from ajet_studio.library import open_library
from tests.plugins.audit.conftest import Runs
from tests.plugins.audit.conftest import runs as recorded  # noqa: F401
from tests.plugins.audit.conftest import saved_tokenizer as saved_tokenizer
from tests.plugins.audit.test_forks import FORKED, by_member, steady, varied
from tests.tiers import fast

from . import browser, runs, showcase

PAGE = Path(ajet_studio.__file__).parent / "page"
DOCS = Path(__file__).resolve().parents[3] / "docs" / "studio"
EPISODE = "6.0/apples/1"
OTHER = "1.0/apples/1"


@pytest.fixture(scope="module")
def shown(trained: Path, tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A folder with a run that trained, and two whose agents have tools."""
    folder = tmp_path_factory.mktemp("shown")
    shutil.copytree(trained, folder / "trained")
    showcase.write_run(folder / "steady", tokenizer, seed=1, skill=0.08, learning_rate=1e-4)
    showcase.write_run(folder / "hasty", tokenizer, seed=2, skill=0.03, learning_rate=5e-4, steps=2)
    showcase.judge_again(folder / "steady", "apples")
    return folder


@pytest.fixture(scope="module")
def chromium(shown: Path) -> Iterator[Any]:
    """The browser. It starts after the runs, which need an event loop of their own."""
    with browser.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def studio(shown: Path) -> Iterator[runs.Studio]:
    """A studio over the folder."""
    with runs.serving(shown) as found:
        yield found


@pytest.fixture(scope="module")
def anyone(chromium: Any) -> browser.Reader:
    """Who reads one studio after the other: a new page costs as much as a test."""
    return browser.Reader(chromium.new_page())


@pytest.fixture(scope="module")
def regular(chromium: Any) -> browser.Reader:
    """Who stays with one studio."""
    return browser.Reader(chromium.new_page())


@pytest.fixture
def reader(regular: browser.Reader, studio: runs.Studio) -> Iterator[browser.Reader]:
    """A reader of the folder's runs."""
    with regular.at(studio):
        yield regular


@pytest.fixture
def watcher(anyone: browser.Reader, own: runs.Studio) -> Iterator[browser.Reader]:
    """A reader of the folder of the test's own."""
    with anyone.at(own):
        yield anyone


def address(path: str, *pairs: tuple[str, Any], **query: Any) -> str:
    """The address of a view."""
    return f"{path}?{urlencode([*pairs, *query.items()])}"


VIEWS = {
    "runs": ("/", "Runs"),
    "compare": (address("/compare", ("run", "steady"), ("run", "hasty")), "Comparison of 2 runs"),
    "run": (address("/run", run="trained"), "trained"),
    "steps": (address("/run", run="trained", tab="steps"), "trained"),
    "episodes": (address("/run", run="steady", tab="episodes"), "steady"),
    "counters": (address("/run", run="steady", tab="counters"), "steady"),
    "settings": (address("/run", run="trained", tab="settings"), "trained"),
    "log": (address("/run", run="trained", tab="log"), "trained"),
    "checkpoints": (address("/run", run="trained", tab="checkpoints"), "trained"),
    "step": (address("/step", run="steady", phase="train", step=6), "step 6"),
    "group": (address("/group", run="steady", phase="train", step=6, task="apples"), "Group of apples"),
    "grouptree": (
        address("/group", run="steady", phase="train", step=6, task="apples", tab="tree"),
        "Group of apples",
    ),
    "episode": (address("/episode", run="steady", id=EPISODE), "apples, member 1"),
    "tokens": (address("/episode", run="steady", id=EPISODE, tab="tokens"), "apples, member 1"),
    "tree": (address("/episode", run="steady", id=EPISODE, tab="tree"), "apples, member 1"),
    "versus": (
        address("/versus", ("run", "steady"), ("id", OTHER), ("run", "steady"), ("id", EPISODE)),
        "Two episodes of apples",
    ),
    "search": (address("/search", run="steady", q="baskets"), "Search for baskets"),
    "missing": (address("/run", run="nowhere"), "This cannot be shown"),
    "rejudged": (address("/run", run="steady", tab="rejudged"), "steady"),
}


@pytest.mark.whole
def test_every_view_has_an_address_and_fits_a_narrow_window(reader: browser.Reader) -> None:
    for path, heading in VIEWS.values():
        assert reader.studio.client.get(path).text == (PAGE / "index.html").read_text()
        reader.open(path)
        assert reader.page.locator("h1").all_text_contents() == [heading]
        assert reader.nodes() < browser.MOST_NODES
        reader.page.set_viewport_size({"width": 320, "height": 256})  # as at 400 %
        assert reader.too_wide() <= 0, path
        reader.page.set_viewport_size(browser.SIZE)


# A page of curves, a table, a transcript, and cards.
@pytest.mark.whole
@pytest.mark.parametrize("view", fast({2, 4, 10, 12}, list(VIEWS)))
def test_no_view_has_a_serious_problem_of_access(reader: browser.Reader, view: str) -> None:
    reader.open(VIEWS[view][0])
    assert reader.violations() == []
    reader.page.emulate_media(color_scheme="dark")
    assert reader.violations("color-contrast") == []


def test_the_page_is_small_and_loads_nothing_from_elsewhere() -> None:
    files = [path for path in PAGE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 186_000
    for path in files:
        text = path.read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|style=", text
        ), path
    index = (PAGE / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=", index)


# --------------------------------------------------------------------------- keyboard


@pytest.mark.kept
def test_by_keyboard_from_the_runs_to_a_token_and_back(reader: browser.Reader) -> None:
    reader.open("/")
    reader.press("/")
    reader.page.keyboard.type("steady")
    reader.press("Escape", "j")
    assert reader.focused() == "steady"
    reader.press("Enter")
    reader.arrives("/run?run=steady")
    reader.press("2")
    reader.arrives("tab=steps")
    reader.press("j", "j", "Enter")
    reader.arrives("/step?run=steady&phase=train&step=2")
    reader.press("n")
    reader.arrives("step=3")
    reader.press("p")
    reader.arrives("step=2")
    reader.press("j", "Enter")
    reader.arrives("/group?")
    reader.press("j", "j")
    assert reader.focused() == "Member 1"
    reader.press("Enter")
    reader.arrives("/episode?")
    reader.press("n")
    reader.arrives("%2F2")
    reader.press("2")
    reader.arrives("tab=tokens")
    reader.page.locator("[role=grid]").focus()
    reader.press("ArrowRight", "ArrowDown")
    second = reader.studio.get("lines", run="steady", id="2.0/apples/2", timeline=0)["ends"][0]
    reader.sees(f"Token {second + 1} ", ".details")
    for part in ("/group?", "/step?", "/run?", "/"):
        reader.press("u")
        reader.arrives(part)
    assert reader.page.url == f"{reader.studio.url}/"


@pytest.mark.whole
def test_the_keys_are_listed_and_can_be_turned_off(reader: browser.Reader) -> None:
    reader.open("/")
    reader.press("?")
    reader.sees("next row or message", "dialog")
    reader.page.get_by_label("Keys of one letter are on").uncheck()
    reader.page.get_by_role("button", name="Close").click()
    reader.press("t")
    assert reader.page.evaluate("document.documentElement.dataset.theme") == "automatic"
    reader.press("?")
    reader.page.get_by_label("Keys of one letter are on").check()
    reader.press("Escape", "t")
    assert reader.page.evaluate("document.documentElement.dataset.theme") == "light"
    reader.press("t")
    assert reader.page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"


@pytest.mark.whole
def test_single_letters_in_a_field_are_text(reader: browser.Reader) -> None:
    reader.open(VIEWS["episode"][0])
    reader.press("e")
    reader.page.keyboard.type("nut+-?")
    assert reader.page.get_by_label("Comment").input_value() == "nut+-?"
    assert reader.page.url.endswith(urlencode({"id": EPISODE}))


# --------------------------------------------------------------------------- runs and curves


@pytest.mark.whole
def test_runs_are_sorted_filtered_and_compared(reader: browser.Reader) -> None:
    reader.open("/")
    names = reader.page.locator("tbody th a")
    reader.page.get_by_role("button", name="Run", exact=True).click()
    assert names.all_text_contents() == ["hasty", "steady", "trained"]
    reader.page.get_by_role("button", name="Run ↑").click()
    assert names.all_text_contents() == ["trained", "steady", "hasty"]
    reader.page.get_by_label("Filter runs").fill("agent.py")
    assert names.all_text_contents() == ["steady", "hasty"]
    reader.press("Escape", "j", "x", "j", "x", "c")
    reader.arrives("/compare?run=steady&run=hasty")
    table = reader.page.get_by_role("table", name="Settings")
    table.locator("tbody tr[data-index]").first.wait_for()
    rows = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in table.locator("tbody tr[data-index]").all()
    }
    assert rows["train.learning_rate"] == ["0.0001", "0.0005"]
    assert "train.algorithm.type" not in rows
    reader.page.get_by_label("also those that are the same").check()
    reader.sees("train.algorithm.type")
    reader.page.go_back()
    reader.arrives("choose=steady")


@pytest.mark.whole
def test_checks_forecasts_and_evaluations_are_found_by_the_filter_alone(
    watcher: browser.Reader, folder: Path
) -> None:
    others = ("20250102-000000-check", "20250103-000000-forecast")
    for name, backbone in (("20250101-000000-trained", "local"), *((name, "debug") for name in others)):
        runs.append(folder / name, runs.line("1.0/t/0"))
        (folder / name / "job.yaml").write_text(json.dumps({"backbone": {"name": backbone}}))
    watcher.open("/")
    names = watcher.page.locator("tbody th a")
    watcher.sees("1 run, and 2 without training")
    assert names.all_text_contents() == ["20250101-000000-trained"]
    for name in others:
        watcher.page.get_by_label("Filter runs").fill(name.rpartition("-")[2])
        watcher.sees("1 of 3 runs")
        assert names.all_text_contents() == [name]


@pytest.mark.whole
def test_the_page_draws_what_the_server_says_and_reads_it_out(reader: browser.Reader) -> None:
    reader.open(address("/run", run="steady", metric="reward"))
    points = reader.studio.get("series", run="steady", name="reward", phase="train")["points"]
    plot = reader.page.get_by_role("slider", name="reward over the steps")
    plot.focus()
    reader.press("End")
    step, value = points[-1]
    assert f"step {step}: A {value:g}" in plot.get_attribute("aria-valuetext")
    reader.press("ArrowLeft")
    assert f"step {points[-2][0]}: A {points[-2][1]:g}" in plot.get_attribute("aria-valuetext")
    path = reader.page.locator(".plot .s0 .curve").get_attribute("d")
    assert len(re.findall("[ML]", path)) == len(points)
    dashes = reader.page.locator(".plot .curve").evaluate_all(
        "all => all.map(one => getComputedStyle(one).strokeDasharray)"
    )
    assert len(set(dashes)) == len(dashes) == 2
    reader.page.get_by_text("Metrics (").click()
    reader.page.get_by_label("accuracy", exact=True).check()
    reader.page.get_by_role("slider", name="accuracy over the steps").wait_for()
    assert "metric=reward&metric=accuracy" in reader.page.url


@pytest.mark.whole
def test_columns_of_the_runs_are_chosen_and_remembered(watcher: browser.Reader, folder: Path) -> None:
    for name, after in (("low", 0.5), ("high", 0.9)):
        runs.append(folder / name, runs.line("1.0/t/0"))
        (folder / name / "job.yaml").write_text(
            json.dumps({"run": {"name": f"{name} one", "tags": ["sweep"]}})
        )
        lines = [
            {"type": "validation", "step": 0, "reward": 0.4},
            {"type": "validation", "step": 3, "reward": after},
        ]
        (folder / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    watcher.open("/")
    watcher.sees("0.400 → 0.900")
    names = watcher.page.locator("tbody th a")
    watcher.page.get_by_role("button", name="Gain").click()
    assert names.all_text_contents() == ["high onesweep", "low onesweep"]
    assert watcher.page.locator(".c-gain").all_inner_texts()[1:] == ["+0.500", "+0.100"]
    watcher.page.get_by_label("Filter runs").fill("sweep high")
    assert names.all_text_contents() == ["high onesweep"]
    watcher.page.get_by_text("Columns", exact=True).click()
    assert watcher.violations() == []
    watcher.page.get_by_label("Gain", exact=True).uncheck()
    watcher.page.get_by_label("Workflow", exact=True).check()
    watcher.load("/")
    heads = watcher.page.locator("thead th").all_inner_texts()
    assert "Workflow" in heads and "Gain" not in heads
    assert watcher.page.locator("tbody .c-validation_after").evaluate_all(
        "all => all.every(one => one.scrollWidth <= one.clientWidth)"
    )


@pytest.mark.whole
def test_a_folder_that_is_a_run_opens_as_the_run(anyone: browser.Reader, trained: Path) -> None:
    with runs.serving(trained) as alone, anyone.at(alone) as reader:
        reader.open("/")
        assert reader.page.url == f"{alone.url}/run?run=."
        assert reader.page.locator("#crumbs").get_by_text("Runs").count() == 0
        reader.press("u")
        reader.press("2")
        reader.arrives("tab=steps")


def _curves(run: Path, steps: int = 20) -> None:
    lines = [
        runs.line(f"{n}.0/t/0", step=n, started=1_790_000_000.0 + 10 * n, seconds=5.0)
        for n in range(1, steps + 1)
    ]
    runs.append(run, *lines)
    values = [
        {"type": "train", "step": n, "reward": n / 10, "loss": 10.0 ** (n % 4)} for n in range(1, steps + 1)
    ]
    values += [{"type": "validation", "step": n, "reward": 0.5} for n in (0, steps)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in values))


@pytest.mark.whole
def test_curves_have_axes_points_a_log_scale_and_time(watcher: browser.Reader, folder: Path) -> None:
    _curves(folder / "a")
    watcher.open(address("/run", ("metric", "reward"), ("metric", "loss"), run="a"))
    first = watcher.page.locator(".plot").first
    expect(first.locator(".title")).to_have_text("step")
    path = first.locator(".s1 .dots").get_attribute("d")
    assert path is not None and path.count("M") == 2, "two validations are two points"
    assert first.locator(".raw").count() == 0
    watcher.page.get_by_label("Smoothing").fill("0.5")
    expect(watcher.page.locator("output")).to_have_text("0.50")
    expect(first.locator(".s0 .raw")).to_have_count(1)
    expect(watcher.page.locator(".values").first).to_have_text("last: A 2 · B 0.5")
    watcher.page.get_by_label("Log scale").check()
    loss = watcher.page.get_by_role("slider", name="loss over the steps")
    expect(loss.locator("text.end")).to_have_text(["1", "10", "100", "1000"])
    watcher.page.get_by_role("combobox", name="Over").select_option("time")
    watcher.page.get_by_role("slider", name="reward over time").wait_for()
    expect(first.locator(".title")).to_have_text("time since the first episode")
    first.focus()
    watcher.press("Home")
    expect(watcher.page.locator(".values").first).to_have_text("5 s: A 0.1")
    assert "scale=log&over=time" in watcher.page.url


@pytest.mark.whole
def test_a_drag_or_a_key_zooms_all_curves_and_one_place_is_marked_in_all(
    watcher: browser.Reader, folder: Path
) -> None:
    _curves(folder / "a")
    watcher.open(address("/run", ("metric", "reward"), ("metric", "loss"), run="a"))
    plots = watcher.page.locator(".plot")
    expect(plots.locator(".dots")).to_have_count(3)
    place = plots.first.bounding_box()
    assert place is not None
    mouse = watcher.page.mouse
    mouse.move(place["x"] + place["width"] * 0.4, place["y"] + 80)
    expect(plots.locator(".cursor line")).to_have_count(2)
    mouse.down()
    mouse.move(place["x"] + place["width"] * 0.7, place["y"] + 80)
    mouse.up()
    watcher.page.wait_for_url("**range=**")
    low, high = (float(one) for one in re.findall(r"range=([\d.]+)", watcher.page.url))
    assert 1 < low < high < 20
    for plot in plots.all():
        shown = [float(one) for one in plot.locator("text.middle:not(.title)").all_text_contents()]
        assert low <= min(shown) and max(shown) <= high
    watcher.page.get_by_role("button", name="Show all").click()
    assert "range" not in watcher.page.url
    plots.first.focus()
    watcher.press("ArrowRight", "+")
    watcher.page.wait_for_url("**range=**")
    watcher.press("-")
    watcher.page.get_by_role("button", name="Show all").wait_for(state="hidden")


@pytest.mark.whole
def test_a_comparison_says_how_far_runs_are_from_the_first(watcher: browser.Reader, folder: Path) -> None:
    for name, rate in (("a", 1e-4), ("b", 2e-3)):
        runs.append(folder / name, runs.line("1.0/t/0"))
        line = {"type": "train", "step": 1, "reward": rate * 100, "learning_rate": rate}
        (folder / name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        (folder / name / "job.yaml").write_text(json.dumps({"task": {"path": f"/away/{name}/given.jsonl"}}))
    (folder / "b" / "metrics.jsonl").open("a").write(
        json.dumps({"type": "validation", "step": 1, "reward": 0.25}) + "\n"
    )
    watcher.open(address("/compare", ("run", "a"), ("run", "b")))
    watcher.sees("These runs have the same settings.")
    table = watcher.page.get_by_role("table", name="Last metrics")
    table.scroll_into_view_if_needed()
    rows = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in table.locator("tbody tr[data-index]").all()
    }
    assert rows == {"reward": ["0.01", "0.2 (+0.190)"], "learning_rate": ["1e-4", "0.002 (+0.002)"]}
    watcher.page.get_by_label("Phase").select_option("validation")
    watcher.sees("No metrics of validation: a")


@pytest.mark.whole
def test_filters_are_in_the_address_and_back_restores_them(reader: browser.Reader) -> None:
    reader.open(VIEWS["episodes"][0])
    reader.page.get_by_label("Phase").select_option("validation")
    reader.sees("12 episodes")
    reader.page.get_by_text("More filters").click()
    reader.page.get_by_label("Reward from").fill("0.5")
    right = reader.studio.get("episodes", run="steady", phase="validation", min_reward=0.5)["total"]
    reader.sees(f"{right} episode")
    assert "phase=validation&min_reward=0.5" in reader.page.url
    reader.page.locator("tbody th a").first.click()
    reader.arrives("/episode?")
    reader.page.go_back()
    reader.arrives("min_reward=0.5")
    reader.sees(f"{right} episode")
    assert reader.page.get_by_label("Phase").input_value() == "validation"


@pytest.mark.whole
def test_a_search_marks_the_words_and_leads_to_the_episode(reader: browser.Reader) -> None:
    reader.open(address("/run", run="steady"))
    reader.press("/")
    reader.page.keyboard.type("baskets")
    reader.press("Enter")
    reader.arrives("/search?run=steady&q=baskets")
    reader.page.locator("mark").first.wait_for()
    assert set(reader.page.locator("mark").all_text_contents()) == {"baskets"}
    reader.press("j")
    assert reader.focused().startswith("apples")
    reader.press("Enter")
    reader.arrives("/episode?")


@pytest.mark.whole
def test_a_run_that_was_judged_again_shows_both_rewards_and_marks_wrong_signs(reader: browser.Reader) -> None:
    again = reader.studio.get("rejudged", run="steady")
    reader.open(address("/run", run="steady"))
    reader.page.get_by_role("link", name="its rewards, and what they would have taught").click()
    reader.arrives("tab=rejudged")
    reader.sees("The first update with wrong signs is that of")
    plot = reader.page.get_by_role("slider", name="reward, train over the steps")
    before, later = (f"{values[-1][1]:.4g}" for values in again["curves"]["train"])
    expect(plot).to_have_attribute("aria-valuetext", f"last: A {before} · B {later}")
    marks = plot.locator(".marked").get_attribute("d")
    assert marks is not None and marks.count("M") == len(again["marks"]) > 0
    assert reader.page.get_by_role("table", name="Steps that change").locator("td.bad").count() == len(
        again["marks"]
    )
    reader.press("8")
    reader.page.get_by_role("table", name="Episodes with another verdict").get_by_role("link").first.click()
    reader.arrives("/episode?")
    assert reader.page.locator("h1").inner_text().startswith("apples, member ")


@pytest.mark.whole
def test_a_run_begins_with_its_verdict(reader: browser.Reader, watcher: browser.Reader, folder: Path) -> None:
    reader.open(address("/run", run="steady"))
    verdict = reader.studio.get("run", run="steady")["verdict"]
    shown = reader.page.get_by_label("Verdict").locator("p").all_inner_texts()
    assert shown[0] == f"{verdict['outcome']} {verdict['told']}"
    assert re.search(r"accuracy on 4 validation tasks .+, a change of \+.+ \(.+ to .+\), p = [01]", shown[0])
    assert shown[1].startswith("next ") and len(shown) == len(verdict["alarms"]) + len(verdict["advice"]) + 2
    _curves(folder / "a")
    (folder / "a" / "job.yaml").write_text(json.dumps({"train": 7, "task": "x"}))
    watcher.open(address("/run", run="a"))
    assert watcher.page.get_by_label("Verdict").count() == 0, "of a job of no known form"


@pytest.mark.whole
def test_a_counter_leads_to_the_last_episode_that_counted_it(watcher: browser.Reader, folder: Path) -> None:
    runs.append(folder / "a", *(runs.line(f"1.{n}/t/0", counters={"cut_calls": 1}) for n in range(2)))
    watcher.open(address("/run", run="a", tab="counters"))
    watcher.page.get_by_role("link", name="1.1/t/0").click()
    watcher.arrives(address("/episode", run="a", id="1.1/t/0"))


@pytest.mark.whole
def test_runs_of_several_experiments_are_called_by_their_folders_too(
    watcher: browser.Reader, folder: Path
) -> None:
    for seed in (0, 1):
        runs.append(folder / f"seed{seed}" / "20261128-101010", runs.line("1.0/t/0"))
    watcher.open("/")
    watcher.page.get_by_role("button", name="Run", exact=True).click()
    names = watcher.page.locator("tbody th a")
    assert names.all_text_contents() == ["seed0/20261128-101010", "seed1/20261128-101010"]
    names.first.click()
    watcher.arrives("/run?")
    assert watcher.page.locator("div.title").inner_text() == "seed0/20261128-101010"


@pytest.mark.whole
def test_a_task_whose_id_is_a_hash_is_called_by_its_first_words(
    watcher: browser.Reader, folder: Path
) -> None:
    query = "How many baskets of seven apples does Ann pick in twelve days?"
    for task in ("5aa4b1e6a588", "t"):
        given = {"query": query, "messages": [], "metadata": {}}
        runs.append(folder / "20261128-101010", runs.line(f"1.0/{task}/0", task=task, given=given))
    (folder / "20261128-101010" / "job.yaml").write_text(json.dumps({"run": {"name": "baskets"}}))
    of = {"run": "20261128-101010", "phase": "train", "step": 1}
    words = "“How many baskets of seven apples does Ann pick i…”"
    watcher.load(address("/group", **of, task="5aa4b1e6a588"))
    assert watcher.page.locator("h1").inner_text() == f"Group of {words}"
    watcher.sees("5aa4b1e6a588")
    assert watcher.page.locator("#crumbs li").all_inner_texts() == [
        "AgentJet",
        "Runs",
        "baskets",
        "step 1",
        words,
    ]
    watcher.page.locator("h3 a").click()
    watcher.arrives("/episode?")
    assert watcher.page.locator("h1").inner_text() == f"{words}, member 0"
    assert watcher.page.title().startswith("member 0 ")
    watcher.open(address("/step", **of))
    assert watcher.page.locator("tbody th a").all_inner_texts()[0].startswith("How many baskets")
    assert watcher.page.locator("tbody th a").all_inner_texts()[1].startswith("t ")
    watcher.open(address("/group", **of, task="t"))
    assert watcher.page.locator("h1").inner_text() == "Group of t"


# --------------------------------------------------------------------------- episodes


@pytest.mark.whole
def test_an_episode_shows_its_lanes_tools_reasoning_and_breaks(reader: browser.Reader) -> None:
    reader.open(VIEWS["episode"][0])
    for text in (
        "calculator",
        "The problem needs one operation.",
        "template drops thinking",
        "omits earlier reasoning",
        "The last number is right.",
    ):
        reader.sees(text)
    reader.press("h")
    assert reader.page.get_by_text("The problem needs one operation.", exact=True).count() == 0
    reader.press("m")
    reader.sees('"temperature"')
    reader.page.get_by_label("Lane").select_option(label="2: critic")
    reader.sees("Is this right?")
    assert reader.page.locator(".message").count() == 2
    reader.page.get_by_role("button", name="Call 0").click()
    reader.page.locator(":focus", has_text=re.compile("^Call 0")).wait_for()


@pytest.mark.whole
def test_a_token_tells_what_the_server_says_of_it(reader: browser.Reader) -> None:
    rows = reader.studio.get("tokens", run="steady", id=EPISODE, timeline=0)["rows"]
    place = next(i for i, row in enumerate(rows) if row["trained"])
    reader.open(address("/episode", run="steady", id=EPISODE, tab="tokens", timeline=0, at=place))
    row = rows[place]
    details = reader.page.locator(".details")
    wanted = (
        json.dumps(row["text"]),
        f"id {row['id']}",
        "sampled, trained",
        f"logprob {row['logprob']:.3f}",
        f"weight version {row['version']}",
    )
    for part in wanted:
        assert part in details.inner_text()
    reader.page.locator(f"#token-{place + 1}").hover()
    assert f"id {rows[place + 1]['id']}" in details.inner_text()
    cell = reader.page.locator(f"#token-{place}")
    assert "trained" in cell.get_attribute("class")
    for colour, name in (
        ("Loss mask", "up"),
        ("Weight version", f"v{row['version'] % 6}"),
        ("Advantage", "up"),
    ):
        reader.page.get_by_label("Colour").select_option(label=colour)
        assert name in cell.get_attribute("class").split()


@pytest.mark.whole
def test_token_lines_end_with_line_feeds(reader: browser.Reader) -> None:
    reader.open(VIEWS["tokens"][0])
    lines = [line.locator(".token").all_inner_texts() for line in reader.page.locator(".tokens .line").all()]
    assert len(lines) > 5
    assert all("⏎" not in token for line in lines for token in line[:-1])
    assert "".join(lines[1]) == "Use·the·calculator,·then·answer·with·one·number.⏎⏎"
    assert sum(line[-1].endswith("⏎") for line in lines) > 5
    reader.page.locator(".details").get_by_role("link").wait_for(state="hidden")
    reader.open(VIEWS["tokens"][0] + "&call=2")
    reader.page.locator(".details").get_by_role("link", name="call 2 of solver").click()
    reader.page.locator(":focus", has_text=re.compile("^Call 2")).wait_for()


@pytest.mark.whole
def test_a_step_has_its_metrics_by_what_they_are_about(reader: browser.Reader) -> None:
    reader.open(address("/step", run="trained", phase="train", step=2))
    parts = reader.page.locator(".metrics section")
    assert [part.locator("h2").inner_text() for part in parts.all()] == [
        "Rewards",
        "Episodes",
        "Tokens",
        "Update",
        "Time",
    ]
    names = reader.page.locator(".metrics dt").all_inner_texts()
    assert len(set(names)) == len(names) and "failures" not in names
    assert reader.page.locator("tbody .spark").count() == 2


def test_a_group_names_its_advantages(reader: browser.Reader) -> None:
    reader.open(VIEWS["group"][0])
    expect(reader.page.get_by_text(re.compile(r"^advantage [+−]\d"))).to_have_count(4)


@pytest.mark.whole
def test_failed_members_come_first_and_large_rewards_are_short(watcher: browser.Reader, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "job.yaml").write_text(
        json.dumps({"train": {"algorithm": {"type": "grpo"}, "filters": []}})
    )
    lines = [
        runs.line(f"1.0/t/{n}", member=n, reward=[0.0, 1.0, 1e306][n], failure="timeout" if n == 1 else None)
        for n in range(3)
    ]
    runs.append(folder / "a", *lines)
    watcher.open(address("/group", run="a", phase="train", step=1, task="t"))
    assert watcher.page.locator("h3 a").all_inner_texts() == ["Member 1", "Member 0", "Member 2"]
    watcher.sees("1 failed")
    watcher.sees("1.00e306")
    assert watcher.too_wide() <= 0


@pytest.mark.whole
def test_a_long_response_is_read_to_its_end(watcher: browser.Reader, folder: Path) -> None:
    text = "".join(f"{n} " for n in range(30_000))
    runs.append(folder / "a", runs.line("1.0/t/0", response=text))
    watcher.open(address("/episode", run="a", id="1.0/t/0"))
    more = watcher.page.get_by_role("button", name="more characters")
    expect(more).to_have_text(f"Show 100,000 of {len(text) - 800:,} more characters")
    while more.count():
        before = more.inner_text()
        more.click()
        watcher.page.wait_for_function("before => !document.body.innerText.includes(before)", arg=before)
    assert watcher.page.locator("section pre").first.text_content() == text


def test_the_tree_counts_each_trained_token_once(reader: browser.Reader) -> None:
    nodes = reader.studio.get("tree", run="steady", id=EPISODE, lane=0)["nodes"]
    reader.open(VIEWS["tree"][0])
    tokens, trained = (sum(node[name] for node in nodes) for name in ("tokens", "trained_tokens"))
    reader.sees(f"{len(nodes)} pieces with {tokens} tokens, {trained} of them trained")
    assert reader.page.locator(".tree rect.learned").count() == sum(
        node["trained_tokens"] > 0 for node in nodes
    )


@pytest.fixture
def forked(recorded: Runs, folder: Path) -> str:  # noqa: F811
    """The id of a run with forks of forks in the folder of the test's own."""
    with ThreadPoolExecutor(1) as pool:  # in this thread, the browser's loop runs
        wanted = {"rollout": FORKED, "credit": "tree", "steps": 1}
        shutil.copytree(
            pool.submit(recorded.run, steady, by_member, varied, **wanted).result(), folder / "forked"
        )
    return "forked"


@pytest.mark.whole
def test_the_tree_of_a_group_is_drawn_and_leads_to_its_episodes(watcher: browser.Reader, forked: str) -> None:
    task = watcher.studio.get("episodes", run=forked)["rows"][0]["task"]
    watcher.open(f"/group?run={forked}&phase=train&step=1&task={task}")
    watcher.press("2")
    watcher.arrives("tab=tree")
    watcher.sees("is a fork: the calls before it are shared")
    watcher.sees(
        "says what came of a line: the reward of the episode that ends there, or where forks leave it the value"
    )
    assert watcher.page.locator(".tree rect.good").count() and watcher.page.locator(".tree rect.bad").count()
    titles: list[Any] = watcher.page.locator(".tree rect title").all_text_contents()
    assert any(
        re.fullmatch(r"calls? [\d–]+, \S+, advantage [+−][\d.]+, value [\d.]+", title) for title in titles
    ), titles
    assert any("reward" in title for title in titles)
    assert watcher.nodes() < browser.MOST_NODES and watcher.too_wide() <= 0
    watcher.page.locator("tbody a").first.click()
    watcher.arrives("/episode?")


@pytest.mark.whole
def test_an_episode_is_rated_by_keyboard_and_by_form(reader: browser.Reader, shown: Path) -> None:
    reader.open(VIEWS["episode"][0])
    reader.press("+")
    reader.sees("Saved.")
    reader.page.get_by_label("bad", exact=True).check()
    reader.page.get_by_label("Comment").fill("not <b>this</b>")
    reader.page.get_by_text("Correct the answer").click()
    # The answer, to be edited.
    expect(reader.page.locator("[name=correction]")).to_have_value(re.compile("."))
    reader.page.get_by_label("What the answer should have been").fill("It is 84.")
    reader.page.get_by_role("button", name="Save").click()
    reader.sees("not <b>this</b>")
    stored = [json.loads(line) for line in (shown / "steady" / "feedback.jsonl").read_text().splitlines()]
    assert [(line["id"], line["rating"], line["comment"], line["correction"]) for line in stored] == [
        (EPISODE, 1, "", ""),
        (EPISODE, -1, "not <b>this</b>", "It is 84."),
    ]
    reader.open(VIEWS["episode"][0])
    assert reader.page.locator(".ratings li").count() == 2


def test_two_episodes_of_a_task_stand_side_by_side(reader: browser.Reader) -> None:
    reader.open(VIEWS["episode"][0])
    reader.page.get_by_role("link", name="Compare with step 1").first.click()
    reader.arrives("/versus?")
    reader.sees("They are the same up to message 2.")
    reader.page.get_by_role("button", name="Show the first difference").click()
    reader.page.locator("[aria-label='Message 3']:focus").wait_for()
    assert reader.page.locator("article.beside").first.locator(".message").count() == 2


# --------------------------------------------------------------------------- a run that grows


@pytest.mark.whole
def test_a_live_run_grows_on_the_page_and_keeps_scroll_and_focus(
    watcher: browser.Reader, folder: Path
) -> None:
    run = folder / "live"
    runs.append(run, *(runs.line(f"1.0/t{n}/0") for n in range(120)))
    _metrics(run, 1, 0.25)
    watcher.open(address("/run", run="live", tab="episodes"))
    watcher.press("j", *["j"] * 60)
    before = watcher.page.evaluate("[scrollY, document.activeElement.textContent]")
    assert before[0] > 300
    assert before[1].startswith("t60 ")
    runs.append(run, *(runs.line(f"2.0/u{n}/0", step=2) for n in range(30)))
    watcher.sees("150 episodes")
    assert watcher.page.evaluate("[scrollY, document.activeElement.textContent]") == before
    last = watcher.page.locator("main").get_by_text("u29").first
    for _ in range(browser.PATIENCE // 100):  # the page grows while rows are drawn
        watcher.page.evaluate("scrollTo(0, document.body.scrollHeight)")
        if last.is_visible():
            break
        watcher.page.wait_for_timeout(100)
    assert last.is_visible(), watcher.page.locator("main").inner_text()[-1000:]
    watcher.open(address("/run", run="live", metric="reward"))
    watcher.sees("last: 0.25")
    _metrics(run, 2, 0.75)
    watcher.sees("last: 0.75")


@pytest.mark.whole
def test_rows_that_did_not_arrive_are_asked_for_again(watcher: browser.Reader, folder: Path) -> None:
    runs.append(folder / "a", *(runs.line(f"1.0/t{n}/0") for n in range(150)))
    watcher.page.route("**/api/episodes?*offset=100*", lambda route: route.abort(), times=1)
    watcher.open(address("/run", run="a", tab="episodes"))
    watcher.sees("150 episodes")
    watcher.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    watcher.sees("The studio does not answer", "body")
    watcher.sees("t149")


@pytest.mark.whole
def test_a_store_shows_its_versions_and_why_one_was_kept_back(anyone: browser.Reader, tmp_path: Path) -> None:
    pytest.importorskip("ajet_online", reason="the store is one of ajet-plugin-online")
    from ajet_online.store import TraceStore
    from ajet_online.versions import Versions
    from tests.plugins.online.conftest import trace

    store = TraceStore.open(str(tmp_path / "traces.db"))
    store.record([trace("first", at=1000.0, key="<b>shop"), trace("last", at=2000.0, run="order-7")])
    versions = Versions(store)
    versions.begin("starter")
    versions.reject(0, 0.25, {}, HOSTILE.replace("\ud800", "").replace("\x00", ""))
    with runs.serving_library(open_library(store.name)) as studio, anyone.at(studio) as reader:
        reader.open("/")
        assert reader.page.url == f"{studio.url}/run?run=."
        reader.sees("rejected")
        reader.sees("owned")
        reader.sees("<b>shop")
        reader.sees("order-7")
        assert reader.page.locator("main img, main script").count() == 0
        assert reader.violations() == []
        reader.page.set_viewport_size({"width": 320, "height": 256})
        assert reader.too_wide() <= 0
        reader.page.set_viewport_size(browser.SIZE)
        reader.page.get_by_role("link", name="Episodes").click()
        reader.arrives("tab=episodes")
        assert reader.page.locator("tbody th a").all_inner_texts()[0].startswith("last")
        assert "Version" in reader.page.locator("thead").inner_text()
    store.close()


@pytest.mark.whole
def test_what_a_run_writes_before_the_page_listens_appears(watcher: browser.Reader, folder: Path) -> None:
    run = folder / "live"
    runs.append(run, runs.line("1.0/t/0"))
    _metrics(run, 1, 0.25)

    def late(route: Any) -> None:
        _metrics(run, 2, 0.75)
        route.continue_()

    watcher.page.route("**/api/live*", late, times=1)
    watcher.open(address("/run", run="live", metric="reward"))
    watcher.sees("last: 0.75")


@pytest.mark.whole
def test_steps_and_groups_grow_too(watcher: browser.Reader, folder: Path) -> None:
    run = folder / "live"
    runs.append(run, runs.line("1.0/t/0"))
    _metrics(run, 1, 1.0)
    watcher.open(address("/step", run="live", phase="train", step=1))
    runs.append(run, runs.line("1.1/u/0"))
    watcher.page.get_by_role("link", name=re.compile(r"^u\b")).wait_for()
    watcher.open(address("/group", run="live", phase="train", step=1, task="u"))
    runs.append(run, runs.line("1.1/u/2", member=2))
    watcher.page.get_by_role("link", name="Member 2").wait_for()
    runs.append(run, runs.line("1.1/u/1", member=1))  # it took longer
    watcher.page.get_by_role("link", name="Member 1").wait_for()
    assert watcher.page.locator("h3 a").all_inner_texts() == ["Member 0", "Member 2", "Member 1"]


@pytest.mark.whole
def test_a_comparison_follows_as_many_runs_as_it_shows(watcher: browser.Reader, folder: Path) -> None:
    names = [f"r{n}" for n in range(6)]  # as many as a browser has connections
    for name in names:
        runs.append(folder / name, runs.line("1.0/t/0"))
        _metrics(folder / name, 1, 0.25)
        runs.goes_on(folder / name, os.getpid())
    watcher.open(address("/compare", *(("run", name) for name in names)))
    watcher.page.get_by_text("● live").wait_for()
    _metrics(folder / "r0", 2, 0.75)
    watcher.sees("last: A 0.75")
    watcher.page.get_by_role("row", name="reward 0.75 0.25 (−0.500)").wait_for()


@pytest.mark.whole
def test_pages_out_of_sight_leave_the_connections_to_others(
    chromium: Any, own: runs.Studio, folder: Path
) -> None:
    runs.append(folder / "a", runs.line("1.0/t/0"))
    with chromium.new_context() as context, ExitStack() as open_pages:
        # In this browser, pages of several tabs are all in sight.
        hide = "Object.defineProperty(document, 'hidden', { get: () => !location.search.includes('tab') })"
        context.add_init_script(hide)
        for path in [*["/run?run=a"] * 6, "/run?run=a&tab=steps"]:
            reader = open_pages.enter_context(browser.Reader(context.new_page()).at(own))
            reader.load(path)
            reader.page.wait_for_timeout(200)
        reader.sees("reward")


def _metrics(run: Path, step: int, reward: float) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"type": "train", "step": step, "reward": reward, "episodes": 1}) + "\n")


@pytest.mark.whole
def test_a_deleted_run_and_a_torn_line_are_said_in_words(watcher: browser.Reader, folder: Path) -> None:
    run = folder / "a"
    runs.append(run, runs.line("1.0/t/0"), runs.line("1.0/t/1")[:50])
    watcher.open(address("/run", run="a"))
    watcher.sees("the last line was cut off")
    watcher.open(address("/episode", run="a", id="1.0/t/0"))
    shutil.rmtree(run)
    watcher.press("2")
    watcher.sees("it was deleted, or the address is wrong")
    runs.append(run, runs.line("1.0/t/0"))
    watcher.page.get_by_role("button", name="Try again").click()
    watcher.sees("Episode")


# --------------------------------------------------------------------------- much of it, and hostile


@pytest.mark.whole
def test_long_tables_have_few_nodes_and_every_row(watcher: browser.Reader, folder: Path) -> None:
    runs.append(folder / "a", *(runs.line(f"{n // 50}.0/task-{n}/0", step=n // 50) for n in range(5000)))
    watcher.open(address("/run", run="a", tab="episodes"))
    watcher.sees("5,000 episodes")
    for share, wanted in ((0.5, "task-2500"), (1, "task-4999"), (0, "task-0")):
        watcher.page.evaluate(
            "(share) => scrollTo(0, share * (document.body.scrollHeight - innerHeight))", share
        )
        watcher.page.get_by_role("link", name=re.compile(rf"^{wanted}\b")).wait_for()
        assert watcher.nodes() < browser.MOST_NODES
    watcher.page.set_viewport_size({"width": 3840, "height": 2160})
    watcher.page.wait_for_timeout(200)
    assert watcher.nodes() < browser.MOST_NODES


@pytest.mark.whole
def test_long_transcripts_have_few_nodes_and_every_message(watcher: browser.Reader, folder: Path) -> None:
    chat, calls = [], []
    for n in range(600):
        text = f"question {n}" + " and more words" * (n % 40)
        chat += [
            [2 * n - 1, {"role": "user", "content": text}],
            [2 * n, {"role": "assistant", "content": f"answer {n}"}],
        ]
        calls.append({"number": n, "agent": "agent", "target": "policy", "key": "k", "answer": 2 * n + 1})
    runs.append(folder / "a", runs.line("1.0/t/0", chats={"k": chat}, calls=calls))
    watcher.open(address("/episode", run="a", id="1.0/t/0"))
    watcher.sees("question 0")
    assert watcher.nodes() < browser.MOST_NODES
    watcher.page.evaluate("document.querySelector('[data-list]').list.jump(1199)")
    watcher.sees("answer 599")
    assert watcher.nodes() < browser.MOST_NODES
    watcher.press("k")
    assert "question 599" in watcher.focused()


HOSTILE = (
    "<img src=x onerror=\"alert('owned')\"><script>alert('owned')</script>"
    " \x1b[31mred\x1b[0m \u202etxt.exe\u202c \u2066x\u2069 \ud800 zero\u200bwidth \x00 \x9b </script> {{7*7}} &lt;"
)
SHOWN = (
    "<img src=x onerror=\"alert('owned')\"><script>alert('owned')</script>"
    " ␛[31mred␛[0m ⟦U+202E⟧txt.exe⟦U+202C⟧ ⟦U+2066⟧x⟦U+2069⟧ \\ud800 zero⟦U+200B⟧width ␀ ⟦U+009B⟧ </script> {{7*7}} &lt;"
)


@pytest.mark.whole
def test_hostile_text_is_shown_as_text(watcher: browser.Reader, folder: Path) -> None:
    run = folder / "a"
    call = {"id": "1", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    answer = {"role": "assistant", "content": HOSTILE, "reasoning_content": HOSTILE, "tool_calls": [call]}
    chat = [[-1, {"role": "user", "content": HOSTILE}], [0, answer]]
    given = {"query": HOSTILE, "messages": [], "metadata": {"answer": HOSTILE}}
    told = {"response": HOSTILE, "failure": "workflow:<i>", "error": HOSTILE, "given": given}
    lines = [runs.line(f"1.0/<b>t/{n}", task="<b>t", member=n, chats={"k": chat}, **told) for n in (0, 1)]
    runs.append(run, *lines)
    (run / "job.yaml").write_text(
        json.dumps({"workflow": HOSTILE.replace("\ud800", ""), "<u>": HOSTILE.replace("\ud800", "")})
    )
    again = [
        {
            "type": "episode",
            "id": "1.0/<b>t/0",
            "judged": {"reward": None, "failure": HOSTILE},
            "changed": True,
        },
        {"type": "episode", "id": "1.0/<b>t/1", "unknown": HOSTILE},
    ]
    (run / "rejudged.jsonl").write_text("".join(json.dumps(line) + "\n" for line in again))
    (run / "run.log").write_bytes(
        HOSTILE.encode("utf-8", "replace") + b"\n" + b"x" * 10_000_000 + b"\nlast line\n"
    )
    (run / "metrics.jsonl").write_text(
        json.dumps({"type": "train", "step": 1, "<s>reward": 1.0, "reward": 1.0}) + "\n"
    )
    watcher.open(address("/episode", run="a", id="1.0/<b>t/0"))
    watcher.page.get_by_text(SHOWN, exact=True).first.wait_for()
    assert watcher.page.get_by_text(SHOWN, exact=True).count() >= 5
    for path in (
        "/",
        address("/run", run="a"),
        address("/run", run="a", tab="settings"),
        address("/run", run="a", tab="log", log="run.log"),
        address("/run", run="a", tab="episodes"),
        address("/run", run="a", tab="rejudged"),
        address("/step", run="a", phase="train", step=1),
        address("/group", run="a", phase="train", step=1, task="<b>t"),
        address("/search", run="a", q="owned"),
        address("/search", run="a", q=HOSTILE.replace("\ud800", "")),
        address("/versus", ("run", "a"), ("id", "1.0/<b>t/0"), ("run", "a"), ("id", "1.0/<b>t/0")),
        f"/run?run={quote('<img src=x onerror=alert(1)>')}",
    ):
        watcher.open(path)
        made = "main img, main script, main b:has-text('t'), main s, main u, main i:not(.share i)"
        assert watcher.page.locator(made).count() == 0, path
        assert watcher.nodes() < browser.MOST_NODES
    watcher.open(address("/run", run="a", tab="log", log="run.log"))
    watcher.sees("last line")


# --------------------------------------------------------------------------- the pictures of docs/studio.md


PICTURES = {
    "runs": 300, "compare": 900, "run": 760, "step": 560, "group": 460, "episode": 760, "tokens": 640, "tree": 560, "store": 900,
    "grouptree": 760, "rejudged": 900,
}  # fmt: skip
"""Heights of the pictures."""
SWEEP = ("runs", "compare", "run", "step")
NEW = os.environ.get("AJET_PICTURES", "")
"""A folder with the runs of a sweep, ``runs``, a store of online training, ``traces.db``, and a run of examples/frozenlake with
forks, ``forks``: the pictures are written anew."""
ELSEWHERE = {"store": "traces.db", "grouptree": "forks"}
"""What pictures show that are not of these tests' runs."""


# One view shows that a picture can be made; all of them are in `make test-slow`.
@pytest.mark.whole
@pytest.mark.parametrize("view", fast({0}, [view for view in PICTURES if NEW or view not in ELSEWHERE]))
def test_the_pictures_of_the_documentation_are_views_of_now(
    anyone: browser.Reader, shown: Path, view: str, tmp_path: Path
) -> None:
    what = f"{NEW}/runs" if NEW and view in SWEEP else str(shown)
    if view in ELSEWHERE:
        what = f"{NEW}/{ELSEWHERE[view]}"
    with runs.serving_library(open_library(what)) as studio, anyone.at(studio) as reader:
        path = _pictured(studio, view)
        reader.page.set_viewport_size({"width": 1100, "height": PICTURES[view]})
        reader.open("/")
        reader.page.evaluate(
            """localStorage.setItem("ajet.hidden", '["workflow","backbone","episodes","state","started"]')"""
        )
        reader.load(path)
        if view == "store":
            withdrawn = reader.page.locator("tr", has_text="withdrawn").first
            withdrawn.evaluate("row => row.scrollIntoView({block: 'center'})")
        reader.page.wait_for_timeout(300)
        reader.page.screenshot(path=tmp_path / "whole.png")
        picture = tmp_path / f"{view}.png"
        colours = Image.open(tmp_path / "whole.png").convert("RGB")
        colours.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            picture, optimize=True
        )
        assert picture.stat().st_size < 100_000
        if NEW:
            shutil.copy(picture, DOCS / picture.name)


def _pictured(studio: runs.Studio, view: str) -> str:
    """The address of a picture's view."""
    if view == "store":
        return "/"
    if view == "grouptree":
        row = studio.get("episodes", run=".", phase="train", step=20)["rows"][0]
        of = {name: row[name] for name in ("phase", "step", "task")}
        return address("/group", run=".", **of, tab="tree")
    if not NEW or view not in SWEEP:
        return VIEWS[view][0].replace("trained", "steady") + ("&call=2" if view == "tokens" else "")
    found = studio.get("runs")["runs"]
    best = max(found, key=lambda run: run["gain"])["run"]
    return {
        "runs": "/",
        "compare": address("/compare", *(("run", run["run"]) for run in found)),
        "run": address("/run", run=best),
        "step": address("/step", run=best, phase="train", step=20),
    }[view]
