"""`ajet judge learn`: rubrics out of few labels, against a model that applies a rubric's text to the letter.

Responses have 20 features, each by chance; 4 of them made the labels. The model knows the 20 by their
descriptions and says of each criterion whether the response has the feature that its text names. It
proposes features in an order that knows nothing of labels.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ajet import EpisodeView, Task, WorkflowOutput
from ajet.cli import run_program
from ajet_judges import RubricJudge
from ajet_judges.fit import fit, ranked_correctly
from ajet_judges.learn import read_examples
from ajet_judges.rubric import Rubric, read_rubric

from .judge_model import Asked, JudgeModel, serving
from .test_llm import judged

FEATURES = (
    "names a source",
    "gives a date",
    "thanks the reader",
    "ends with a question",
    "has a list",
    "states a number",
    "names a person",
    "quotes someone",
    "warns of a risk",
    "gives an example",
    "sums up at the end",
    "starts with a greeting",
    "uses a metaphor",
    "admits a doubt",
    "mentions a price",
    "compares two things",
    "names a place",
    "gives a reason",
    "offers more help",
    "defines a term",
)
SENTENCES = {feature: f"Here it {feature}." for feature in FEATURES}


def response_of(features: Sequence[str]) -> str:
    return " ".join(["An answer.", *(SENTENCES[f] for f in features)])


def literal(asked: Asked) -> Any:
    """Applies the text of each criterion; asked for criteria, proposes those features that are not known yet."""
    if "criteria" in asked.fields:
        known = asked.data.get("KNOWN", "")
        count = int(re.search(r"up to (\d+) criteria", asked.orders)[1])  # type: ignore[index]
        order = random.Random(7).sample(FEATURES, len(FEATURES))
        new = [f for f in order if f"It {f}." not in known][:count]
        found = [{"name": f, "text": f"It {f}.", "wanted": True} for f in new]
        return {"reason": "these differ", "criteria": found}
    verdict: dict[str, Any] = {"reason": ""}
    for name, text in re.findall(r"^- (\w+): (.*)$", asked.orders, re.MULTILINE):
        feature = next((f for f in FEATURES if f in text), None)
        verdict[name] = feature is not None and SENTENCES[feature] in asked.data["RESPONSE"]
    return verdict


def labelled(
    seed: int, count: int, good: Callable[[set[str]], bool] = lambda has: len(has & HIDDEN) >= 3
) -> list[dict[str, Any]]:
    """Responses, half of them good."""
    rng = random.Random(seed)
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    while min(map(len, found.values())) < count // 2:
        has = {f for f in FEATURES if rng.random() < 0.5}
        if len(has & HIDDEN) == 2:
            continue  # neither good nor bad
        row = {"query": "Tell me.", "response": response_of(sorted(has, key=FEATURES.index))}
        found[good(has)].append({**row, "label": "good" if good(has) else "bad"})
    rows = found[True][: count // 2] + found[False][: count // 2]
    rng.shuffle(rows)
    return rows


HIDDEN = {"names a source", "warns of a risk", "gives an example", "admits a doubt"}


def learn(model: JudgeModel, folder: Path, rows: list[dict[str, Any]], *more: str) -> tuple[int, Path]:
    examples, output = folder / "labelled.jsonl", folder / "rubric.yaml"
    examples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["judge", "learn", "--examples", str(examples), "--output", str(output)]
    arguments += ["--base-url", model.url, "--model", "scripted", "--about", "Questions of all kinds."]
    return run_program([*arguments, *more]), output


def held_out_accuracy(model: JudgeModel, rubric: Path, rows: list[dict[str, Any]]) -> float:
    """Share of good-over-bad pairs, by the judge itself."""
    judge = RubricJudge(endpoint=model.endpoint(), path=rubric)

    async def judge_all() -> list[float]:
        async with judge.open() as live:
            outputs = [WorkflowOutput(response=row["response"]) for row in rows]
            view = EpisodeView("e", "t", 0, 0)
            verdicts = await asyncio.gather(*(live.judge(Task("t"), o, view) for o in outputs))
        return [verdict.reward for verdict in verdicts]

    rewards = np.array(asyncio.run(judge_all()))
    return ranked_correctly(rewards, np.array([row["label"] == "good" for row in rows], float))


@pytest.fixture(scope="module")
def model() -> Any:
    with serving(literal) as running:
        yield running


class Run(NamedTuple):
    """Of `ajet judge learn`."""

    model: JudgeModel
    rubric: Path
    again: list[str]
    """Its options, beside those of `learn`."""
    out: str


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """What twenty labels taught: a run that many tests look at."""
    folder, out = tmp_path_factory.mktemp("learned"), io.StringIO()
    rubric = folder / "new" / "folder" / "rubric.yaml"
    options = ["--cache", str(folder / "cache"), "--output", str(rubric), "--set", "parameters.max_tokens=77"]
    with serving(literal) as model:
        with redirect_stdout(out):
            code, _ = learn(model, folder, labelled(0, 20), *options)
        assert code == 0
        yield Run(model, rubric, options, out.getvalue())


def check_rank(model: JudgeModel, rubric: Path, seed: int) -> None:
    assert held_out_accuracy(model, rubric, labelled(1000 + seed, 60)) >= 0.9
    kept = read_rubric(rubric)
    top = sorted(kept.criteria, key=lambda c: -c.weight)[:3]
    assert sum(any(f in c.text for f in HIDDEN) for c in top) >= 2


@pytest.mark.whole
def test_twenty_labels_make_a_rubric_that_ranks_new_responses(model: JudgeModel, learned: Run) -> None:
    check_rank(model, learned.rubric, 0)
    assert "round 3: 4 new criteria, 20 in all" in learned.out
    assert re.search(r"held-out pairs ranked correctly: \d+%; cross-validated: \d+%", learned.out)
    assert re.search(r"judge model: \d+ calls, .* tokens", learned.out)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_so_do_other_labels(model: JudgeModel, tmp_path: Path, seed: int) -> None:
    code, rubric = learn(model, tmp_path, labelled(seed, 20), "--seed", str(seed))
    assert code == 0
    check_rank(model, rubric, seed)


@pytest.mark.slow
def test_shuffled_labels_teach_nothing(model: JudgeModel, tmp_path: Path) -> None:
    scores = []
    for seed in range(8):
        rows = labelled(seed, 80)
        labels = [row["label"] for row in rows]
        random.Random(seed).shuffle(labels)
        rows = [{**row, "label": label} for row, label in zip(rows, labels, strict=True)]
        good = [r for r in rows if r["label"] == "good"]
        bad = [r for r in rows if r["label"] == "bad"]
        code, rubric = learn(model, tmp_path, good[:10] + bad[:10], "--seed", str(seed), "--rounds", "3")
        assert code == 0
        scores.append(held_out_accuracy(model, rubric, good[10:] + bad[10:]))
        reported = (read_rubric(rubric).learned or {})["cross_validated"]
        assert reported < 0.9, "and it does not claim to have learned"
    assert 0.4 <= np.mean(scores) <= 0.6, scores


@pytest.mark.whole
def test_the_rubric_can_be_edited_and_says_how_it_was_learned(
    model: JudgeModel, learned: Run, tmp_path: Path
) -> None:
    text = learned.rubric.read_text()
    assert text.startswith("# A rubric: what a good response does. Edit it freely")
    assert "about: Questions of all kinds." in text
    assert "\n  - name: " in text and "\n    text: It " in text and "\n    weight: 1.0" in text
    found = read_rubric(learned.rubric).learned or {}
    assert found["examples"] == 20 and found["pairs"] == 100 and found["criteria_tried"] == 20
    mine = "criteria:\n  - {name: mine, text: It gives a date.}\n"
    path = tmp_path / "rubric.yaml"
    path.write_text(re.sub(r"criteria:\n.*(?=\nlearned)", mine, text, flags=re.DOTALL))
    judge = RubricJudge(endpoint=model.endpoint(), path=path)
    assert judged(judge, response_of(["gives a date"])).reward == 1.0
    assert judged(judge, response_of(["names a source"])).reward == 0.0


@pytest.mark.whole
def test_a_second_try_with_a_cache_asks_nothing_twice(learned: Run, tmp_path: Path) -> None:
    asked, again = len(learned.model.asked), tmp_path / "again"
    learn(learned.model, tmp_path, labelled(0, 20), *learned.again, "--output", str(again))
    assert len(learned.model.asked) == asked > 0
    assert read_rubric(again).criteria == read_rubric(learned.rubric).criteria


def test_who_proposes_never_sees_what_is_held_out(learned: Run) -> None:
    proposals = [asked for asked in learned.model.asked if "criteria" in asked.fields]
    shown = {text.rsplit("\n\n", 1)[1] for a in proposals for n, text in a.data.items() if n != "KNOWN"}
    assert len(proposals) == 3 and 10 <= len(shown) <= 14
    assert {"KNOWN"} <= set(proposals[1].data) and "WRONG" in proposals[1].orders
    assert not any("An answer." in asked.orders for asked in learned.model.asked), "responses are data"


@pytest.mark.whole
def test_unwanted_properties_get_negative_weights(tmp_path: Path) -> None:
    def proposes_faults(asked: Asked) -> Any:
        said = literal(asked)
        if "criteria" in asked.fields:
            for criterion in said["criteria"]:
                criterion["wanted"] = criterion["name"] not in HIDDEN
        return said

    with serving(proposes_faults) as model:
        rows = labelled(3, 20, good=lambda has: len(has & HIDDEN) <= 1)
        _, path = learn(model, tmp_path, rows)
        weights = {f: c.weight for c in read_rubric(path).criteria for f in HIDDEN if f in c.text}
        assert sum(w < 0 for w in weights.values()) >= 3
        test = labelled(4, 40, good=lambda has: len(has & HIDDEN) <= 1)
        assert held_out_accuracy(model, path, test) >= 0.9


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", r"labelled.jsonl:2: not JSON"),
        ("[]", r"labelled.jsonl:2: needs `response`"),
        ('{"label": "good"}', r"labelled.jsonl:2: needs `response`"),
        ('{"response": "a"}', r"labelled.jsonl:2: `label` is None; write good, bad"),
        ('{"response": "a", "label": "fine"}', r"labelled.jsonl:2: `label` is 'fine'"),
        ('{"response": "a", "label": Infinity}', r"labelled.jsonl:2: `label` is inf"),
        ('{"response": "caf\udce9", "label": 1}', r"labelled.jsonl:2: not UTF-8 text"),
        ("[" * 100_000, r"labelled.jsonl:2: not JSON"),
    ],
)
def test_a_broken_example_is_named_with_its_line(
    model: JudgeModel, tmp_path: Path, line: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "labelled.jsonl"
    text = f'{{"response": "a", "label": 1}}\n{line}\n'
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    code = run_program(
        ["judge", "learn", "--examples", str(path), "--output", "x", "--base-url", model.url, "--model", "m"]
    )
    assert code == 2 and re.search(fault, capsys.readouterr().err)


def test_too_few_or_equal_labels_are_an_error(
    model: JudgeModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rows in (labelled(0, 4), [{**row, "label": "good"} for row in labelled(0, 20)]):
        code, _ = learn(model, tmp_path, rows)
        assert code == 2 and "Label more" in capsys.readouterr().err


def test_an_endpoint_that_is_not_there_is_an_error(tmp_path: Path, free_port: int, capsys: Any) -> None:
    model = JudgeModel(f"http://127.0.0.1:{free_port}/v1", literal)
    code, path = learn(model, tmp_path, labelled(0, 20), "--set", "retries=0")
    assert code == 1 and "Is the server running?" in capsys.readouterr().err and not path.exists()


def test_labels_may_be_words_truth_values_or_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = [{"response": "a", "label": v} for v in ("good", "bad", True, False, 0.5, 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [e.label for e in read_examples(path)] == [1.0, 0.0, 1.0, 0.0, 0.5, 3.0]


def test_an_examples_line_ends_at_a_newline_only(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes('\ufeff{"response": "one\u2028two", "label": 1}\r\n\n'.encode())
    assert [e.response for e in read_examples(path)] == ["one\u2028two"]


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (["--set", "retires=0"], "endpoint.retires: unknown key; did you mean 'retries'. Known: base_url, "),
        (["--set", "retries=["], "--set retries=[: write --set key=value, the value in YAML."),
        (["--set", "model.name=x"], "--set model.name=x: write --set key=value"),
        (["--set", "retries"], "--set retries: write --set key=value"),
        (["--set", "retries=-1"], "endpoint.retries: input should be greater than or equal to 0 (found -1)."),
        (["--output", "."], "--output .: is a directory. Name a file that can be written."),
        (["--output", f"{__file__}/x.yaml"], f"--output {__file__}/x.yaml: its folder cannot be created"),
    ],
)
def test_what_is_wrong_with_the_command_is_said_before_anything_is_asked(
    tmp_path: Path, more: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(literal) as model:
        code, _ = learn(model, tmp_path, labelled(0, 20), *more)
        assert code == 2 and f"error: {fault}" in capsys.readouterr().err
        assert not model.asked


def test_the_rubrics_folder_is_made_and_the_endpoints_parameters_can_be_set(learned: Run) -> None:
    assert {asked.body["max_tokens"] for asked in learned.model.asked} == {77}
    assert read_rubric(learned.rubric).criteria


def test_graded_labels_are_ranked_by_degree() -> None:
    rng = np.random.default_rng(0)
    met = rng.integers(0, 2, (40, 8)).astype(float)
    weights = fit(met, met[:, 0] * 2 + met[:, 1] + met[:, 2])
    assert set(np.argsort(-weights)[:3]) == {0, 1, 2} and weights.max() == 1
    assert Rubric(criteria=({"name": "a", "text": "b"},)).reward({"a": True}) == 1.0  # type: ignore[arg-type]
