"""Lists of episodes, groups, and single episodes of a run that really trained."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ajet.reports.credit import run_credit
from ajet.reports.episode import episode_report
from ajet.reports.folder import read_run
from ajet.reports.token_text import TokenText
from ajet.tracker.breaks import CAUSES, Break
from tests.reports import test_images

from . import runs


def rows(studio: runs.Studio, run: Path, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = studio.get("episodes", run=run.name, **query)["rows"]
    return found


@pytest.mark.whole
def test_the_list_agrees_with_the_core_s_reader(studio: runs.Studio, trained: Path) -> None:
    entries = read_run(trained).entries
    found = rows(studio, trained, limit=200)
    assert [row["id"] for row in found] == [entry.id for entry in entries]
    for row, entry in zip(found, entries, strict=True):
        for name in (
            "phase",
            "step",
            "task",
            "member",
            "attempt",
            "failure",
            "reward",
            "is_success",
            "seconds",
            "calls",
        ):
            assert row[name] == getattr(entry, name), name
        assert row["trained_tokens"] == entry.trainable
        assert row["tokens"] > entry.sampled > 0
        assert row["breaks"] == sum(entry.breaks.values())
        assert row["agents"] == ["solver", "critic"]
        assert row["labels"] == ["policy"]


@pytest.mark.whole
def test_rows_begin_with_the_query_of_their_task(studio: runs.Studio, trained: Path) -> None:
    wanted = {record["id"]: record["query"] for record in runs.RECORDS}
    for row in rows(studio, trained, limit=200):
        assert row["query"] == wanted[row["task"]]


def test_without_a_file_of_tasks_the_first_user_message_is_the_query(own: runs.Studio, folder: Path) -> None:
    chat = [[-1, {"role": "system", "content": "s"}], [0, {"role": "user", "content": "why? " * 100}]]
    runs.append(
        folder / "a",
        runs.line("1.0/t/0", chats={"k": chat}, calls=[]),
        runs.line("1.0/u/0", chats={}, calls=[]),
    )
    assert [row["query"] for row in own.get("episodes", run="a")["rows"]] == [("why? " * 100)[:150], ""]
    assert own.get("search", run="a", q="why")["rows"][0]["query"].startswith("why? why?")


def test_the_journal_says_what_the_task_was_if_no_file_does(own: runs.Studio, folder: Path) -> None:
    given = {"query": "6 * 7?", "messages": [], "metadata": {"answer": "42", "level": 2}}
    runs.append(folder / "a", runs.line("1.0/t/0", given=given))
    task = {"id": "t", "query": "6 * 7?", "metadata": given["metadata"], "answer": "42"}
    (row,) = own.get("episodes", run="a")["rows"]
    assert row["query"] == "6 * 7?"
    found = own.get("episode", run="a", id="1.0/t/0")
    assert found["task"] == task
    assert found["reference"] == {"text": "42"}
    assert own.get("group", run="a", phase="train", step=1, task="t")["task"] == task


def test_calls_say_how_long_they_took(
    studio: runs.Studio, trained: Path, own: runs.Studio, folder: Path
) -> None:
    id = rows(studio, trained)[0]["id"]
    calls = studio.get("episode", run=trained.name, id=id)["calls"]
    recorded = {
        e.number: e.seconds for e in read_run(trained).episode(read_run(trained).find(id)).record.exchanges
    }
    assert [call["seconds"] for call in calls] == [recorded[call["number"]] for call in calls]
    assert all(call["seconds"] > 0 for call in calls)
    runs.append(folder / "a", runs.line("1.0/t/0"))  # of a version that did not measure them
    assert own.get("episode", run="a", id="1.0/t/0")["calls"][0]["seconds"] is None


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"phase": "train"}, 12),
        ({"phase": "train", "step": 2}, 6),
        ({"phase": "validation", "task": "quotient"}, 3),
        ({"failure": "any"}, 0),
        ({"failure": "none"}, 15),
        ({"agent": "critic"}, 15),
        ({"agent": "crit"}, 0),
        ({"label": "policy"}, 15),
        ({"min_reward": 0.5, "phase": "train"}, 8),
        ({"max_reward": 0.5, "phase": "train"}, 8),
        ({"min_tokens": 100_000}, 0),
        ({"q": "sure"}, 15),
        ({"q": "quotient"}, 3),
        ({"q": "nowhere"}, 0),
    ],
)
def test_filters(studio: runs.Studio, trained: Path, query: dict[str, Any], count: int) -> None:
    studio.get("search", run=trained.name, q="wait for the words")
    assert studio.get("episodes", run=trained.name, **query)["total"] == count


def test_rows_are_sorted_and_come_in_pages(studio: runs.Studio, trained: Path) -> None:
    everything = rows(studio, trained, sort="reward", descending=1, limit=200)
    assert [row["reward"] for row in everything] == sorted(
        (row["reward"] for row in everything), reverse=True
    )
    pages = [
        rows(studio, trained, sort="reward", descending=1, limit=4, offset=offset)
        for offset in range(0, 15, 4)
    ]
    assert [row for page in pages for row in page] == everything


@pytest.mark.parametrize(
    "query", [{"sort": "id; DROP TABLE episodes"}, {"min_reward": "much"}, {"step": "one"}, {"q": "+"}]
)
def test_a_query_that_means_nothing_is_refused_in_one_line(
    studio: runs.Studio, trained: Path, query: dict[str, str]
) -> None:
    status, text = studio.refused("episodes", run=trained.name, **query)
    assert status == 400
    assert text.startswith(f"{next(iter(query))}: ")


def test_a_group_has_its_task_and_the_advantages_of_the_core(studio: runs.Studio, trained: Path) -> None:
    run = read_run(trained)
    first = next(entry for entry in run.entries if entry.phase == "train")
    found = studio.get("group", run=trained.name, phase="train", step=first.step, task=first.task)
    record = next(record for record in runs.RECORDS if record["id"] == first.task)
    assert found["task"]["query"] == record["query"]
    assert found["task"]["answer"] == record["answer"]
    wanted = run_credit(run).advantages(run.together(first))
    shown = [row["advantage"] for row in found["rows"]]
    assert shown == pytest.approx([wanted[e.id][""] for e in run.members(first)])
    assert [row["member"] for row in found["rows"]] == [0, 1, 2]


def test_groups_lead_to_each_other_over_the_ends_of_steps(studio: runs.Studio, trained: Path) -> None:
    seen = []
    place: dict[str, Any] | None = {
        "phase": "train",
        "step": 1,
        "task": rows(studio, trained, phase="train")[0]["task"],
    }
    while place:
        seen.append(place)
        place = studio.get("group", run=trained.name, **place)["next"]
    assert len(seen) == 4  # two groups in each of two steps
    backwards = seen[-1:]
    while previous := studio.get("group", run=trained.name, **backwards[-1])["previous"]:
        backwards.append(previous)
    assert backwards[::-1] == seen


def test_an_episode_has_its_messages_in_lanes_each_once(studio: runs.Studio, trained: Path) -> None:
    row = rows(studio, trained, phase="train")[0]
    found = studio.get("episode", run=trained.name, id=row["id"])
    assert [(lane["agent"], lane["trained"]) for lane in found["lanes"]] == [
        ("solver", True),
        ("critic", True),
    ]
    solver, critic = found["messages"]
    assert [message["role"] for message in solver] == ["system", "user", "assistant", "user", "assistant"]
    assert [message["parent"] for message in solver] == [-1, 0, 1, 2, 3]
    assert [message["role"] for message in critic] == ["user", "assistant"]
    assert [(call["lane"], call["messages_from"], call["answer"]) for call in found["calls"]] == [
        (0, 0, 2),
        (0, 3, 4),
        (1, 0, 1),
    ]
    assert found["response"] == solver[-1]["content"]
    assert found["reference"]["text"] == next(r["answer"] for r in runs.RECORDS if r["id"] == row["task"])
    assert found["metrics"] == {"words": 1.0}


def test_an_episode_leads_to_its_siblings_and_to_the_task_s_other_episodes(
    studio: runs.Studio, trained: Path
) -> None:
    group = rows(studio, trained, phase="train", step=1)
    task = group[0]["task"]
    ids = [row["id"] for row in sorted(group, key=lambda row: row["member"]) if row["task"] == task]
    found = studio.get("episode", run=trained.name, id=ids[1])
    assert (found["previous"], found["next"]) == (ids[0], ids[2])
    others = {row["id"]: row["member"] for row in rows(studio, trained, task=task) if row["id"] not in ids}
    assert {other["id"]: other["member"] for other in found["same_task"]} == others, (
        "siblings are not elsewhere"
    )


def test_episodes_of_the_task_in_other_runs_follow_those_of_its_own(own: runs.Studio, folder: Path) -> None:
    for name in ("a", "b", "never_opened"):
        runs.append(
            folder / name, runs.line("1.0/t/0", step=1), runs.line("2.0/t/0", step=2), runs.line("1.0/u/0")
        )
    for name in ("a", "b"):
        own.get("episodes", run=name)
    found = own.get("episode", run="a", id="1.0/t/0")["same_task"]
    assert [(one["run"], one["id"]) for one in found] == [
        ("a", "2.0/t/0"),
        ("b", "1.0/t/0"),
        ("b", "2.0/t/0"),
    ]


def test_at_most_fifty_of_them_are_named(own: runs.Studio, folder: Path) -> None:
    for name in ("a", "b"):
        runs.append(folder / name, *(runs.line(f"{n}.0/t/0", step=n) for n in range(200)))
        own.get("episodes", run=name)
    found = own.get("episode", run="a", id="0.0/t/0")["same_task"]
    assert len(found) == 50
    assert (found[0]["step"], found[-1]["step"]) == (1, 199)


def test_timelines_and_their_tokens_are_those_of_the_report(studio: runs.Studio, trained: Path) -> None:
    run = read_run(trained)
    entry = next(entry for entry in run.entries if entry.phase == "train" and entry.member)
    report = episode_report(run, entry, run_credit(run), TokenText(run.dir))
    found = studio.get("episode", run=trained.name, id=entry.id)
    lines = {line["index"]: line for lane in found["lanes"] for line in lane["timelines"]}
    wanted = {conversation.calls: conversation for conversation in report.conversations}
    assert {tuple(line["calls"]) for line in lines.values()} == set(wanted)
    for index, line in lines.items():
        parts = wanted[tuple(line["calls"])].tokens
        got = studio.get("tokens", run=trained.name, id=entry.id, timeline=index)
        assert got["total"] == line["tokens"] == sum(len(part.ids) for part in parts)
        assert [row["id"] for row in got["rows"]] == [i for part in parts for i in part.ids]
        assert [row["text"] for row in got["rows"]] == [t for part in parts for t in part.texts]
        assert [row["call"] for row in got["rows"]] == [part.call for part in parts for _ in part.ids]
        assert [row["trained"] for row in got["rows"]] == [part.trained for part in parts for _ in part.ids]
        assert [row["logprob"] for row in got["rows"] if row["trained"]] == [
            p for part in parts for p in part.logprobs
        ]
        assert [row["version"] for row in got["rows"] if row["trained"]] == [
            v for part in parts for v in part.versions
        ]
        advantages = {row["advantage"] for row in got["rows"] if row["trained"]}
        assert advantages == {part.advantage for part in parts if part.trained} == {line["advantage"]}
        assert sum(row["trained"] for row in got["rows"]) == line["trained_tokens"]


def test_a_window_of_tokens_is_a_part_of_all_of_them(studio: runs.Studio, trained: Path) -> None:
    id = rows(studio, trained, phase="train")[0]["id"]
    whole = studio.get("tokens", run=trained.name, id=id, timeline=0)
    total = whole["total"]
    for start, count in ((0, 5), (7, 3), (20, 10), (total - 2, 50), (total, 5)):
        part = studio.get("tokens", run=trained.name, id=id, timeline=0, **{"from": start, "count": count})
        assert part["rows"] == whole["rows"][start : start + count]
    borders = [place for place, _ in whole["marks"]]
    assert borders == sorted(set(borders))
    changes = [i for i in range(total) if i == 0 or whole["rows"][i]["call"] != whole["rows"][i - 1]["call"]]
    assert borders == changes


def test_the_tree_has_every_token_once_and_every_trained_one(studio: runs.Studio, trained: Path) -> None:
    row = rows(studio, trained, phase="train")[0]
    found = studio.get("episode", run=trained.name, id=row["id"])
    key_of = [lane["key"] for lane in found["lanes"]]
    assert len(set(key_of)) == 1  # both agents share a target and have no tools
    nodes = studio.get("tree", run=trained.name, id=row["id"], lane=0)["nodes"]
    assert sum(node["tokens"] for node in nodes) == row["tokens"]
    assert sum(node["trained_tokens"] for node in nodes) == row["trained_tokens"]
    assert all(node["parent"] < index for index, node in enumerate(nodes))
    shared = [node for node in nodes if len(node["timelines"]) > 1]
    assert shared and all(node["trained_tokens"] == 0 for node in shared)
    for index, line in {line["index"]: line for lane in found["lanes"] for line in lane["timelines"]}.items():
        assert sum(node["tokens"] for node in nodes if index in node["timelines"]) == line["tokens"]


def test_every_long_text_is_shortened_and_read_in_parts(own: runs.Studio, folder: Path) -> None:
    text = "".join(f"{n} " for n in range(20_000))
    said = {"role": "assistant", "content": text, "reasoning_content": text}
    given = {"query": "?", "messages": [], "metadata": {"answer": text}}
    told = {"response": text, "error": text, "feedback": text, "printed": text, "given": given}
    runs.append(folder / "a", runs.line("1.0/t/0", chats={"k": [[-1, said], [0, said]]}, **told))
    found = own.get("episode", run="a", id="1.0/t/0")
    names = ("response", "reference", "error", "feedback", "printed")
    parts = {name: found[name] for name in names} | {
        "0.0": found["messages"][0][0]["content"],
        "0.0.reasoning": found["messages"][0][0]["reasoning"],
    }
    for name, part in parts.items():
        assert part == {"text": text[:20_000], "cut": len(text)}, name
        more = own.get("text", run="a", id="1.0/t/0", part=name, **{"from": 20_000, "count": 30})
        assert (more["text"], more["from"], more["total"]) == (text[20_000:20_030], 20_000, len(text))
    for wrong in ("0.9", "0.-1", "9.0", "", "x"):
        assert own.refused("text", run="a", id="1.0/t/0", part=wrong)[0] == 404


def test_what_is_cut_without_a_rest_says_how_much(own: runs.Studio, folder: Path) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": "x" * 30_000}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    chat = [[-1, {"role": "user", "content": "?"}], [0, said]]
    runs.append(folder / "a", runs.line("1.0/t/0", chats={"k": chat}))
    (asked,) = own.get("episode", run="a", id="1.0/t/0")["messages"][0][1]["tool_calls"]
    assert asked["function"]["arguments"].endswith("x … (10,000 more characters are in the journal)")


def test_breaks_have_their_remedies_and_failures_their_error(own: runs.Studio, folder: Path) -> None:
    cause = next(iter(CAUSES))
    found = Break(
        call=1, after=0, agent="agent", cause=cause, message=2, before="two  spaces", now="two spaces", char=4, token=7,
        recorded=(1, 2), sent=(3,), lost_tokens=9,
    )  # fmt: skip
    failed = {"failure": "workflow:KeyError", "error": "KeyError: 'x'"}
    runs.append(folder / "a", runs.line("1.0/t/0", breaks=[asdict(found)], **failed))
    shown = own.get("episode", run="a", id="1.0/t/0")
    assert shown["breaks"] == [
        {"call": 1, "what": cause, "remedy": CAUSES[cause], "recorded": "two  spaces", "sent": "two spaces"}
    ]
    assert (shown["failure"], shown["error"]) == (failed["failure"], {"text": failed["error"]})
    assert own.get("episodes", run="a", failure="workflow:KeyError")["rows"][0]["breaks"] == 1


def test_content_of_parts_and_tool_calls_is_kept(own: runs.Studio, folder: Path) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    chat = [
        [-1, {"role": "user", "content": parts, "name": "ann"}],
        [0, {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": calls}],
    ]
    runs.append(folder / "a", runs.line("1.0/t/0", chats={"k": chat}))
    user, answer = own.get("episode", run="a", id="1.0/t/0")["messages"][0]
    assert user["content"]["text"] == "look\n" + json.dumps(parts[1])
    assert user["extra"] == {"name": "ann"}
    assert (answer["content"]["text"], answer["reasoning"]["text"], answer["tool_calls"]) == ("", "hm", calls)


def test_images_are_shown_with_their_message_and_loaded_from_the_run_folder(
    own: runs.Studio, folder: Path, bench: Any
) -> None:
    run_dir = folder / "seen"
    run_dir.mkdir()
    (first, *_) = test_images.recorded(bench, run_dir)
    lane, *_ = own.get("episode", run="seen", id=first.plan.id)["messages"]
    refs = [message["images"] for message in lane]
    assert [len(found) for found in refs] == [1, 0, 2, 0]
    shown = own.client.get("/api/image", params={"run": "seen", "ref": refs[0][0]})
    assert (shown.status_code, shown.headers["content-type"], shown.content) == (
        200,
        "image/png",
        test_images.RED,
    )
    for ref in ("../job.yaml", f"sha256:{'0' * 64}"):
        assert "not in the run's folder" in own.refused("image", run="seen", ref=ref)[1]
