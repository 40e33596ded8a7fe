"""The `generated` reader, against a scripted endpoint over real HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ajet import AjetError, ConfigError, Task
from ajet.interfaces.progress import Silent, reporting_to
from ajet.interfaces.reader import read_all
from ajet.services.answers import AnswerStore
from ajet.types import Metrics
from ajet_readers import Generated
from ajet_readers.generated.prompts import read_scores
from ajet_readers.near_duplicates import first_of_each
from tests.patience import PATIENCE
from tests.program import Program
from tests.tiers import fast

from .scripted_endpoint import Endpoint, endpoint, write_tasks

pytest.importorskip("datasketch")
WORDS = ["Oaks", "Elms", "Yews", "Pines", "Birches", "Limes", "Planes", "Rowans", "Alders", "Maples"]


@pytest.fixture
def served() -> Iterator[Endpoint]:
    with endpoint() as served:
        yield served


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Ten documents of three chunks each, two sentences a chunk."""
    folder = tmp_path / "library"
    folder.mkdir()
    for word in WORDS:
        write_document(folder, word)
    return folder


def write_document(folder: Path, word: str, last: str = "three") -> None:
    parts = [f"{word} grow {n}. They like {n} {word}. {'x' * 150}" for n in ("one", "two", last)]
    (folder / f"{word}.txt").write_text("\n\n".join(parts))


def reader(served: Endpoint, folder: Path, **fields: Any) -> Generated:
    model = {"base_url": served.url, "model": "m", **fields.pop("model", {})}
    settings = {"chunk_characters": 220, "per_chunk": 2, "cache": folder / "cache", **fields}
    return Generated.model_validate({"model": model, **settings})


def read(*args: Any, **fields: Any) -> list[Task]:
    return read_all(reader(*args, **fields), "task.reader")


@pytest.mark.kept
def test_each_chunk_gives_questions_with_answers_and_their_source(
    served: Endpoint, library: Path, tmp_path: Path
) -> None:
    tasks = read(served, tmp_path, documents=library)
    assert len(tasks) == 60 and len(served.asked) == 30
    assert {t.metadata["source"] for t in tasks} == {f"{word}.txt" for word in WORDS}
    first = next(t for t in tasks if t.metadata["source"] == "Oaks.txt")
    assert (
        first.query.startswith("What is said about Oaks in ") and first.metadata["answer"] == "Oaks grow one"
    )
    assert [t.metadata["source"] for t in tasks] == sorted(t.metadata["source"] for t in tasks)


@pytest.mark.whole
def test_a_second_read_asks_nothing_and_is_the_same(served: Endpoint, library: Path, tmp_path: Path) -> None:
    first = read(served, tmp_path, documents=library)
    calls = len(served.asked)
    assert read(served, tmp_path, documents=library) == first and len(served.asked) == calls


@pytest.mark.whole
@pytest.mark.parametrize(
    "change",
    [{"model": {"model": "other"}}, {"instructions": "In French."}, {"temperature": 0.1}, {"per_chunk": 3}],
)
def test_whatever_matters_to_an_answer_is_asked_anew(
    served: Endpoint, library: Path, tmp_path: Path, change: Any
) -> None:
    read(served, tmp_path, documents=library)
    read(served, tmp_path, documents=library, **change)
    assert len(served.asked) == 60


@pytest.mark.whole
@pytest.mark.parametrize(
    "change",
    [{"model": {"concurrency": 1, "timeout": 9, "prompt_price": 1}}, {"limit": 3}, {"similarity": 0.5}],
)
def test_what_does_not_matter_to_an_answer_is_not_asked_anew(
    served: Endpoint, library: Path, tmp_path: Path, change: Any
) -> None:
    read(served, tmp_path, documents=library)
    read(served, tmp_path, documents=library, **change)
    assert len(served.asked) == 30


@pytest.mark.whole
def test_a_changed_document_asks_for_its_changed_chunk_only(
    served: Endpoint, library: Path, tmp_path: Path
) -> None:
    before = read(served, tmp_path, documents=library)
    del served.asked[:]
    write_document(library, "Elms", last="many")
    after = read(served, tmp_path, documents=library)
    assert len(served.asked) == 1 and "Elms grow many" in served.asked[0]["messages"][1]["content"]
    others = [t for t in before if t.metadata["source"] != "Elms.txt"]
    assert [t for t in after if t.metadata["source"] != "Elms.txt"] == others
    gone = {t.metadata["answer"] for t in before} - {t.metadata["answer"] for t in after}
    assert gone == {"Elms grow three", "They like three Elms"}


@pytest.mark.whole
def test_training_and_validation_share_no_chunk(served: Endpoint, library: Path, tmp_path: Path) -> None:
    parts = {
        part: read(served, tmp_path, documents=library, part=part, hold_out=0.3)
        for part in ("train", "held_out")
    }
    chunks = {part: {t.metadata["chunk"] for t in tasks} for part, tasks in parts.items()}
    assert not chunks["train"] & chunks["held_out"] and len(chunks["train"] | chunks["held_out"]) == 30
    assert len(chunks["held_out"]) >= 3 and len(served.asked) == 30


# ------------------------------------------------------------------ examples, quality, near-duplicates


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps({"query": f"{w}?", "answer": w}) + "\n" for w in WORDS))
    return path


def test_examples_give_variations(served: Endpoint, examples: Path, tmp_path: Path) -> None:
    tasks = read(served, tmp_path, examples=examples, variations=12, per_chunk=3)
    assert served.kinds() == ["variations"] * 4 and len(tasks) == 12
    shown = [json.loads(body["messages"][1]["content"])["examples"] for body in served.asked]
    assert all(len(examples) == 4 for examples in shown)
    assert len({json.dumps(examples) for examples in shown}) == 4


@pytest.mark.whole
def test_examples_are_shown_with_documents_for_their_style(
    served: Endpoint, examples: Path, library: Path, tmp_path: Path
) -> None:
    read(served, tmp_path, documents=library, examples=examples, shots=2)
    assert set(served.kinds()) == {"questions"}
    assert all(len(json.loads(b["messages"][1]["content"])["examples"]) == 2 for b in served.asked)


@pytest.mark.whole
def test_a_new_document_in_front_asks_for_its_own_chunks_only(
    served: Endpoint, examples: Path, library: Path, tmp_path: Path
) -> None:
    before = read(served, tmp_path, documents=library, examples=examples)
    write_document(library, "Acacias")
    after = read(served, tmp_path, documents=library, examples=examples)
    assert len(served.asked) == 33 and after[6:] == before


def test_a_repeated_example_is_no_new_task(served: Endpoint, examples: Path, tmp_path: Path) -> None:
    served.answer = lambda system, given: json.dumps(
        {"tasks": [{"question": "oaks!", "answer": "1"}, {"question": "New one?", "answer": 2}]}
    )
    tasks = read(served, tmp_path, examples=examples, variations=4, per_chunk=2)
    assert [(t.query, t.metadata["answer"]) for t in tasks] == [("New one?", "2")]


@pytest.mark.whole
def test_what_the_check_finds_bad_is_dropped(served: Endpoint, library: Path, tmp_path: Path) -> None:
    def answer(system: str, given: Any) -> str:
        text = write_tasks(system, given)
        return (
            text.replace("about They", "about bad They") if "text" in given and "tasks" not in given else text
        )

    served.answer = answer
    tasks = read(served, tmp_path, documents=library, quality=0.5)
    assert len(tasks) == 30 and not any("bad" in t.query for t in tasks)
    assert Counter(served.kinds()) == {"questions": 30, "quality": 30}
    assert {b["temperature"] for b in served.asked if "check" in b["messages"][0]["content"][:20]} == {0.0}


def test_near_duplicates_share_most_characters_and_all_numbers() -> None:
    texts = [
        "How long does an old oak tree live in the forest of Bialowieza?",
        "How long does an old oak tree live in the forests of Bialowieza?",
        "Who planted the lime trees along the road to Versailles?",
        "HOW LONG does an old oak tree live, in the forest of Bialowieza",
        "How many of the 12 oaks that were planted in the park are alive?",
        "How many of the 13 oaks that were planted in the park are alive?",
    ]
    assert first_of_each(texts, 0.8) == [0, 2, 4, 5]
    assert first_of_each(texts, 1.0) == [0, 1, 2, 4, 5]


def test_an_embedding_model_decides_where_one_is_given(
    served: Endpoint, examples: Path, tmp_path: Path
) -> None:
    questions = ["When do oaks grow fast?", "How tall is a yew?", "Oaks grow fast when do?"]
    served.answer = lambda system, given: json.dumps(
        {"tasks": [{"question": q, "answer": "1"} for q in questions]}
    )
    fields: dict[str, Any] = {"examples": examples, "variations": 3, "per_chunk": 3}
    assert len(read(served, tmp_path, **fields)) == 3
    embeddings = {"base_url": served.url, "model": "e"}
    for _ in range(2):
        tasks = read(served, tmp_path, embeddings=embeddings, **fields)
        assert [t.query for t in tasks] == questions[:2]
    assert served.kinds().count("embeddings") == 1


# ------------------------------------------------------------------ trouble


@pytest.mark.whole
def test_malformed_answers_are_asked_anew(served: Endpoint, library: Path, tmp_path: Path) -> None:
    bad = ["I cannot.", '{"tasks": [{"question": "q"}]}', "[1]", '{"tasks": 3}']
    hopeless = "Oaks grow one"

    def answer(system: str, given: Any) -> str:
        if hopeless in given["text"]:
            return bad[0]
        return bad.pop() if len(bad) > 1 else write_tasks(system, given)

    served.answer = answer
    tasks = read(served, tmp_path, documents=library)
    asked = 29 + 3 + 3  # three were answered badly once, the hopeless chunk was given up after three
    assert len(tasks) == 58 and len(served.asked) == asked
    served.answer = write_tasks
    assert read(served, tmp_path, documents=library) == tasks and len(served.asked) == asked


@pytest.mark.parametrize("scores", ['{"scores": [null, null]}', '{"scores": [{"score": 1}, 1]}', "[[1], 1]"])
def test_scores_that_are_no_numbers_are_asked_for_anew(scores: str) -> None:
    with pytest.raises(ValueError, match="a score is not a number"):
        read_scores(scores, 2)


@pytest.mark.whole
def test_a_model_that_writes_no_json_is_an_error(served: Endpoint, library: Path, tmp_path: Path) -> None:
    served.answer = lambda system, given: "no"
    with pytest.raises(AjetError, match="no answer of the model could be read as tasks"):
        read(served, tmp_path, documents=library)


@pytest.mark.whole
def test_refusals_are_tried_again_and_other_errors_are_not(
    served: Endpoint, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet.services.llm_client.LONGEST_PAUSE", 0.01)
    served.refuse = [429, 503, 500]
    assert len(read(served, tmp_path, documents=library)) == 60
    served.refuse = [401]
    with pytest.raises(AjetError, match=f"{served.url}/chat/completions: HTTP 401: .*not now"):
        read(served, tmp_path / "other", documents=library, model={"concurrency": 1})


def test_an_endpoint_that_is_not_there(library: Path, tmp_path: Path) -> None:
    with endpoint() as gone:
        pass
    with pytest.raises(AjetError, match=r"chat/completions: ConnectError: .* Is the server running\?"):
        read(gone, tmp_path, documents=library, model={"retries": 0})


@pytest.mark.whole
def test_what_was_answered_before_an_error_is_kept(served: Endpoint, library: Path, tmp_path: Path) -> None:
    served.refuse = []
    count = 0

    def answer(system: str, given: Any) -> str:
        nonlocal count
        count += 1
        if count == 11:
            served.refuse = [400] * 99
        return write_tasks(system, given)

    served.answer = answer
    with pytest.raises(AjetError, match="HTTP 400"):
        read(served, tmp_path, documents=library, model={"concurrency": 1})
    answered = len(served.asked)
    served.refuse, served.answer = [], write_tasks
    assert len(read(served, tmp_path, documents=library)) == 60
    assert answered == 11 and len(served.asked) == 30


def test_it_needs_material(served: Endpoint, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="give `documents`, `examples`, or both"):
        reader(served, tmp_path)
    (tmp_path / "examples.jsonl").write_text('{"query": "q"}\n')
    with pytest.raises(ConfigError, match="lacks a query or an answer"):
        read(served, tmp_path, examples=tmp_path / "examples.jsonl")
    with pytest.raises(ConfigError, match=r"none.jsonl: no such file. Check the reader's `examples`"):
        read(served, tmp_path, examples=tmp_path / "none.jsonl")


@pytest.mark.whole
def test_progress_and_cost_are_told(served: Endpoint, library: Path, tmp_path: Path) -> None:
    class Told(Silent):
        def __init__(self) -> None:
            self.shares: list[float] = []
            self.costs: list[float] = []
            self.lines: list[str] = []

        def stage(self, name: str, fraction: float, metrics: Metrics) -> None:
            self.shares.append(fraction)
            self.costs.append(metrics["cost"])

        def say(self, text: str) -> None:
            self.lines.append(text)

    prices = {"prompt_price": 10.0, "completion_price": 100.0}
    told = Told()
    with reporting_to(told):
        read(served, tmp_path, documents=library, model=prices)
        read(served, tmp_path, documents=library, model=prices)
    first = told.shares[: told.shares.index(1.0) + 1]
    assert len(first) > 5 and sorted(first) == first and told.shares[-1] == 1.0
    cost = 30 * (100 * 10 + 10 * 100) / 1e6
    assert max(told.costs) == pytest.approx(cost)
    counted = "60 tasks (0 near-duplicates dropped)"
    assert told.lines == [
        f"generated: {counted}; 30 calls, 0 answered from the cache, 3,000 + 300 tokens, cost {cost:.4g}",
        f"generated: {counted}; 0 calls, 30 answered from the cache, 0 + 0 tokens",
    ]


def test_two_processes_do_not_write_one_journal(served: Endpoint, library: Path, tmp_path: Path) -> None:
    with AnswerStore(tmp_path / "cache" / "answers.sqlite", exclusive=True) as journal:
        journal.put("key", "answer")
        with pytest.raises(AjetError, match="another process is writing"):
            read(served, tmp_path, documents=library)


# ------------------------------------------------------------------ the command, killed


def command(served: Endpoint, folder: Path, library: Path, *more: str) -> list[str]:
    sets = ["chunk_characters=220", "per_chunk=2", "quality=0.5", "model.concurrency=3"]
    return [
        *("data", "generate", "--documents", str(library)),
        *("--endpoint", served.url, "--endpoint-model", "m", "--output", str(folder / "tasks.jsonl")),
        *(argument for text in [*sets, f"cache={folder / 'cache'}"] for argument in ("--set", text)),
        *more,
    ]


@pytest.mark.parametrize("kill_after", [pytest.param(9, marks=pytest.mark.slow), 41])
def test_a_killed_generation_goes_on_without_a_repeated_call_and_ends_the_same(
    served: Endpoint, library: Path, tmp_path: Path, ajet: Program, kill_after: int
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert ajet(*command(served, whole, library)).code == 0
    assert len(served.asked) == 60
    del served.asked[:]

    served.answers = kill_after
    program = [sys.executable, "-m", "ajet", *command(served, killed, library)]
    running = subprocess.Popen(program, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while len(served.asked) < kill_after + 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    served.answers = math.inf
    assert not (killed / "tasks.jsonl").exists()
    with closing(sqlite3.connect(killed / "cache" / "answers.sqlite")) as answers:
        ((journaled,),) = answers.execute("select count(*) from answers")
    assert kill_after - 3 <= journaled <= kill_after

    asked = [json.dumps(body) for body in served.asked]
    assert ajet(*command(served, killed, library)).code == 0
    again = [json.dumps(body) for body in served.asked[len(asked) :]]
    # Only calls that were in flight when it was killed can be asked twice: their answers never arrived.
    assert len(again) == 60 - journaled
    assert (killed / "tasks.jsonl").read_text() == (whole / "tasks.jsonl").read_text()
    ids = [json.loads(line)["id"] for line in (killed / "tasks.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 60


def test_the_command_writes_training_and_validation_files_that_the_job_can_read(
    served: Endpoint, library: Path, tmp_path: Path, ajet: Program
) -> None:
    held_out = tmp_path / "validation.jsonl"
    done = ajet(*command(served, tmp_path, library, "--validation", str(held_out), "--hold-out", "0.3"))
    counts = [int(line.split()[0]) for line in done.out.splitlines()]
    assert sum(counts) == 60 and min(counts) > 0
    assert "generating 100%" in done.err and "60 calls" in done.err
    from ajet_readers import JsonLines

    tasks = [read_all(JsonLines(path=p), "r") for p in (held_out, tmp_path / "tasks.jsonl")]
    assert [len(t) for t in tasks] == counts
    chunks = [{t.metadata["chunk"] for t in part} for part in tasks]
    assert not chunks[0] & chunks[1]


@pytest.mark.whole
def test_the_command_takes_a_job_file_and_says_what_is_missing(
    served: Endpoint, library: Path, tmp_path: Path, ajet: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = Path("job.yaml")
    job.write_text("task: {reader: {type: jsonl, path: x.jsonl}}\n")
    done = ajet("data", "generate", "job.yaml")
    assert done.code == 2
    assert "task.reader is of type 'jsonl'; this command needs 'generated'" in done.err
    done = ajet("data", "generate")
    assert done.code == 2 and "task.reader.model: is required" in done.err
    settings = {"type": "generated", "documents": "library", "model": {"base_url": served.url, "model": "m"}}
    job.write_text(json.dumps({"task": {"reader": settings}}))
    done = ajet("data", "generate", "job.yaml", "--set", "limit=4")
    assert (done.code, done.out) == (0, "4 tasks in tasks.jsonl\n")


@pytest.mark.parametrize(("share", "lacking"), fast({0}, [("0.001", "--validation"), ("0.999", "--output")]))
def test_a_share_that_leaves_nothing_is_told_and_nothing_is_written_nor_lost(
    served: Endpoint, library: Path, tmp_path: Path, ajet: Program, share: str, lacking: str
) -> None:
    more = ("--validation", str(tmp_path / "validation.jsonl"), "--hold-out", share)
    done = ajet(*command(served, tmp_path, library, *more))
    assert done.code == 2 and not list(tmp_path.glob("*.jsonl"))
    assert f"error: --hold-out {share}: nothing is left for {lacking}." in done.err
    assert ajet(*command(served, tmp_path, library)).code == 0
    assert len(served.asked) == 60


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--output", "library"), "--output library: is a directory. Name a file that can be written."),
        (
            ("--validation", "library/Oaks.txt/x"),
            "--validation library/Oaks.txt/x: its folder cannot be created",
        ),
        (("--validation", "./tasks.jsonl", "--output", "tasks.jsonl"), "is also the file of --output."),
    ],
)
def test_where_to_write_is_checked_before_anything_is_asked(
    served: Endpoint,
    library: Path,
    tmp_path: Path,
    ajet: Program,
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ajet(*command(served, tmp_path, library, *more))
    assert done.code == 2 and message in done.err and "Traceback" not in done.err
    assert not served.asked


@pytest.mark.whole
def test_it_can_be_read_where_a_loop_is_running(served: Endpoint, library: Path, tmp_path: Path) -> None:
    async def in_a_notebook() -> list[Task]:
        return read(served, tmp_path, documents=library)

    assert len(asyncio.run(in_a_notebook())) == 60
