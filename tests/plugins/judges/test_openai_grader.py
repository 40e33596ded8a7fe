"""The judge `openai_grader`: every grader of OpenAI against scores by hand, and graders that mean harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from ajet import ContractBroken, EpisodeView, JudgeOutput, Task, WorkflowOutput
from ajet_judges import OpenAIGrader
from ajet_judges.openai import similarity as similarities
from ajet_judges.openai.formula import Formula
from ajet_judges.openai.graders import Metric, Multi
from ajet_judges.openai.templates import NotInSample, filled
from ajet_judges.sandbox import Limits

from .judge_model import Asked, serving
from .test_sandbox import with_walls

CALL = {"id": "c", "type": "function", "function": {"name": "get_acceptors", "arguments": '{"smiles": "CO"}'}}
NAME = {
    "type": "string_check",
    "name": "function_name",
    "operation": "eq",
    "input": "get_acceptors",
    "reference": "{{sample.output_tools[0].function.name}}",
}
ASKS = {
    "name": "asks",
    "model": "gpt-4o",
    "input": [{"role": "developer", "content": "Grade it: {{item.want}} or {{ sample.output_text }}"}],
}


def judged(grader: Mapping[str, Any], response: Any, calls: Any = (), **given: Any) -> JudgeOutput:
    """The verdict on a response to a task with these metadata; keys of the judge go into ``judge``."""
    fields = given.pop("judge", {})
    said = {"role": "assistant", "content": response, "tool_calls": list(calls)}
    view = EpisodeView("e", "t1", 0, 0, messages=[[{"role": "user", "content": "?"}, said]])
    judge = OpenAIGrader(grader=dict(grader), **fields)
    task = Task("t1", messages=({"role": "user", "content": "?"},), metadata=given)
    return asyncio.run(judge.judge(task, WorkflowOutput(response=response), view))


def check(operation: str, text: str, reference: str) -> float:
    grader = {"type": "string_check", "operation": operation, "input": text, "reference": reference}
    return judged(grader, "").reward


@pytest.mark.parametrize("operation", ["eq", "ne", "like", "ilike"])
@pytest.mark.parametrize("nothing", ["", " ", None, float("nan")])
def test_a_record_with_nothing_to_compare_with_is_an_error(operation: str, nothing: Any) -> None:
    grader = {"type": "string_check", "operation": operation, "input": "{{sample.output_text}}"}
    with pytest.raises(ValueError, match=r"the task's record has nothing in \{\{item.want\}\}"):
        judged({**grader, "reference": "{{item.want}}"}, "null", want=nothing)


def test_an_empty_answer_is_not_contained_in_a_text() -> None:
    grader = {"type": "string_check", "operation": "like", "input": "{{item.text}}"}
    assert judged({**grader, "reference": "{{sample.output_text}}"}, "", text="a b").reward == 0.0
    assert judged({**grader, "reference": "{{sample.output_text}}"}, "a", text="a b").reward == 1.0
    assert check("eq", "", "") == 1.0, "who writes nothing as the reference means it"


# ------------------------------------------------------------------ templates


def test_a_template_is_a_text_or_the_json_of_another_value() -> None:
    values = {
        "item": {"a": "x", "n": 1.0, "none": None, "deep": [{"ü b": [True]}]},
        "sample": {"output_text": "{{item.a}}"},
    }
    assert (
        filled("{{item.a}}|{{ item.n }}|{{item.none}}|{{item.deep}}", values)
        == 'x|1.0|null|[{"ü b": [true]}]'
    )
    assert filled("{{item.deep[0]['ü b'][0]}} {{item.deep.0}}", values) == 'true {"ü b": [true]}'
    assert filled("{{sample.output_text}}", values) == "{{item.a}}", (
        "a template must not fill in what the model wrote"
    )
    with pytest.raises(ValueError, match=r"the task's record has no item\.b"):
        filled("{{item.b}}", values)
    with pytest.raises(NotInSample):
        filled("{{sample.output_json.a}}", values)


@pytest.mark.parametrize(
    "text", ["{{output_text}}", "{{item}}", "{{sample.audio}}", "{{item.a[}}", "{{item.a b}}"]
)
def test_another_form_is_refused_before_anything_runs(text: str) -> None:
    with pytest.raises(ValidationError, match=r"template|a sample has"):
        OpenAIGrader(grader={**NAME, "input": text})


# ------------------------------------------------------------------ string_check


def test_strings_are_equal_other_or_contained() -> None:
    assert [check("eq", "a", b) for b in ("a", "A")] == [1.0, 0.0]
    assert [check("ne", "a", b) for b in ("a", "A")] == [0.0, 1.0]
    assert [check("like", "Paris, France", b) for b in ("Paris", "paris", "Rome")] == [1.0, 0.0, 0.0]
    assert [check("ilike", "Paris, France", b) for b in ("Paris", "paris", "Rome")] == [1.0, 1.0, 0.0]


def test_tool_calls_are_those_of_the_last_answer() -> None:
    assert judged(NAME, "", [CALL]) == JudgeOutput(1.0, True, {})
    arguments = {
        **NAME,
        "input": '{"smiles": "{{item.smiles}}"}',
        "reference": "{{sample.output_tools[0].function.arguments}}",
    }
    assert judged(arguments, "", [CALL], smiles="CO").reward == 1.0
    assert (
        judged(
            {**NAME, "input": "{{sample.choices[0].finish_reason}}", "reference": "tool_calls"}, "", [CALL]
        ).reward
        == 1.0
    )


@pytest.mark.parametrize("operation", ["eq", "ne", "like", "ilike"])
def test_an_answer_without_what_a_template_names_scores_0(operation: str) -> None:
    assert judged({**NAME, "operation": operation}, "no call") == JudgeOutput(
        0.0, False, {"sample_parse_error": 1.0}
    )
    assert judged({**NAME, "operation": operation}, None) == JudgeOutput(0.0, False, {"no_response": 1.0})


def test_a_record_without_it_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"the task's record has no item\.want"):
        judged({**NAME, "reference": "{{item.want}}"}, "")


# ------------------------------------------------------------------ text_similarity

CAT, MAT = "the cat sat on the mat", "the cat is on the mat"
BY_HAND = {
    "fuzzy_match": 40 / 43,  # 20 of 22 + 21 characters are in the longest common subsequence
    "bleu": (5 / 6 * 3 / 5 * 1 / 4 * 0.1 / 3) ** 0.25,
    "gleu": 9 / 18,  # n-grams of 1 to 4 words
    "rouge_1": 5 / 6,
    "rouge_2": 3 / 5,
    "rouge_3": 1 / 4,
    "rouge_4": 0.0,
    "rouge_5": 0.0,
    "rouge_l": 5 / 6,
}


class NoSynonyms:
    """In place of WordNet, which has to be fetched."""

    def synsets(self, word: str) -> list[Any]:
        return []


@pytest.mark.whole
def test_each_metric_is_that_of_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rouge_score")
    pytest.importorskip("rapidfuzz")
    monkeypatch.setattr(similarities, "_wordnet", NoSynonyms)
    found = {metric: similarities.similarity(metric, CAT, MAT) for metric in BY_HAND}
    assert found == pytest.approx(BY_HAND)
    # Six words in one chunk: 1 less the penalty 0.5 (1 / 6)³.
    assert similarities.similarity("meteor", CAT, CAT) == pytest.approx(1 - 0.5 / 6**3)
    assert {*BY_HAND, "meteor", "cosine"} == {*get_args(Metric)}
    assert all(similarities.similarity(metric, "", "Paris") == 0 for metric in BY_HAND)


def test_a_metric_without_its_package_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(similarities.importlib.util, "find_spec", lambda name: None)
    similar = {"type": "text_similarity", "input": "a", "reference": "b", "evaluation_metric": "rouge_l"}
    with pytest.raises(
        ValidationError,
        match=r"rouge_l needs rouge-score. Install pip install 'ajet-plugin-judges\[openai\]'",
    ):
        OpenAIGrader(grader=similar)
    with pytest.raises(ValidationError, match="cosine needs `embeddings`"):
        OpenAIGrader(grader={**similar, "evaluation_metric": "cosine"})


def test_cosine_is_that_of_the_embeddings() -> None:
    vectors = {"cat": [3.0, 4.0], "dog": [4.0, 3.0], "void": [-3.0, -4.0]}

    def answer(asked: Asked) -> Any:
        data = [{"index": i, "embedding": vectors[text]} for i, text in enumerate(asked.body["input"])]
        return 200, {"content-type": "application/json"}, json.dumps({"data": data})

    grader = {
        **{"type": "text_similarity", "evaluation_metric": "cosine"},
        **{"input": "{{sample.output_text}}", "reference": "{{item.want}}"},
    }
    with serving(answer) as model:
        judge = {"embeddings": {"base_url": model.url, "model": "small"}}
        scores = [judged(grader, text, want="cat", judge=judge).reward for text in (*vectors, "")]
    assert scores == pytest.approx([1.0, 24 / 25, -1.0, 0.0])  # 3 · 4 + 4 · 3 of 5 · 5
    assert model.asked[0].body["model"] == "small"


# ------------------------------------------------------------------ models


def test_a_model_scores_inside_the_range_and_gets_the_chat_as_it_stands() -> None:
    grader = {
        **ASKS,
        "type": "score_model",
        "range": [-1, 2],
        "sampling_params": {"max_completions_tokens": 9, "seed": 3},
    }
    with serving(lambda asked: {"result": 5, "steps": []}) as model:
        endpoint = {"base_url": model.url}
        verdict = judged(grader, "cat", want="dog", judge={"endpoint": endpoint})
        (asked,) = model.asked
        judged(grader, "cat", want="dog", judge={"endpoint": {**endpoint, "model": "mine"}})
    assert (verdict.reward, verdict.is_success, verdict.metrics["llm_calls"]) == (2.0, None, 1)
    body = dict(asked.body)
    assert body.pop("response_format")["json_schema"]["schema"]["required"] == ["result", "steps"]
    assert body == {
        "model": "gpt-4o",
        "messages": [{"role": "system", "content": "Grade it: dog or cat"}],
        "max_completion_tokens": 9,
        "seed": 3,
    }
    assert model.asked[1].body["model"] == "mine"


@pytest.mark.parametrize("said", ["good", '{"result": "0.5"}', '{"result": true}', '{"result": NaN}', "[]"])
def test_what_is_no_number_scores_0(said: str) -> None:
    with serving(lambda asked: said) as model:
        judge = {"endpoint": {"base_url": model.url, "retries": 0}}
        verdict = judged({**ASKS, "type": "score_model"}, "cat", want="dog", judge=judge)
    assert (verdict.reward, verdict.metrics["model_grader_parse_error"]) == (0.0, 1.0)


def test_a_model_chooses_a_label() -> None:
    grader = {**ASKS, "type": "label_model", "labels": ["good", "bad"], "passing_labels": ["good"]}

    def answer(asked: Asked) -> Any:
        assert asked.schema["properties"]["result"]["enum"] == ["good", "bad"]
        return {"result": "good" if "cat" in asked.orders else "bad", "steps": []}

    with serving(answer) as model:
        judge = {"endpoint": {"base_url": model.url}}
        verdicts = [judged(grader, text, want="x", judge=judge) for text in ("cat", "dog")]
    assert [(v.reward, v.is_success) for v in verdicts] == [(1.0, True), (0.0, False)]


# ------------------------------------------------------------------ python

SOURCES = {
    "print('9')\ndef grade(sample, item):\n    print('{\"score\": 9}')\n    return len(sample['output_text']) / item['n']": 0.5,
    "def grade(sample, item):\n    return sample['output_json']['a'] + (item['messages'][0]['role'] == 'user')": 3.0,
    "def grade(sample, item):\n    return float('nan')": None,
    "def grade(sample, item):\n    return 'good'": None,
    "def grade(sample, item):\n    raise KeyError('x')": None,
    "def grade(sample, item):\n    return open('/etc/shadow').read() and 1.0": None,
    "import socket\ndef grade(sample, item):\n    return socket.create_connection(('1.1.1.1', 53), 1) and 1.0": None,
    "import os\ndef grade(sample, item):\n    os._exit(0)": None,
}


@with_walls
@pytest.mark.parametrize("source", SOURCES)
def test_a_function_scores_in_the_sandbox_and_one_that_fails_scores_0(source: str) -> None:
    verdict = judged({"type": "python", "source": source}, '{"a": 2}', n=16)
    expected = SOURCES[source]
    assert verdict.reward == (expected or 0.0)
    assert verdict.metrics == ({} if expected else {"python_grader_runtime_error": 1.0})


@pytest.mark.whole
@with_walls
def test_an_endless_one_is_ended_and_a_missing_package_ends_the_run() -> None:
    quick = {"limits": Limits(seconds=2, cpu_seconds=1)}
    endless = {"type": "python", "source": "def grade(sample, item):\n    while True: pass"}
    assert judged(endless, "", judge=quick).metrics == {"python_grader_runtime_error": 1.0}
    with pytest.raises(ContractBroken, match=r"No module named 'no_such_package'. Install it"):
        judged({"type": "python", "source": "import no_such_package\ndef grade(sample, item): return 1"}, "")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def grade(", "is not Python"),
        ("x = 1", "defines no function grade"),
        ("(" * 10_000, "is not Python"),
        ("#" * (256 << 10), "256 kB"),
    ],
)
def test_a_source_that_cannot_grade_is_refused_at_once(source: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        OpenAIGrader(grader={"type": "python", "source": source})


# ------------------------------------------------------------------ multi


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("(name + email) / 2", 0.75),
        ("0.5 * name + 0.5*email", 0.75),
        ("-2 ^ 2", -4.0),
        ("2 ^ 3 ^ 2", 512.0),
        ("2 ^ -1 * 4", 2.0),
        ("8 / 2 / 2 - 1 - 1", 0.0),
        ("- -name", 0.5),
        ("min(name, email, 2) + max(abs(-3), 1)", 3.5),
        ("floor(1.9) + ceil(.1) + sqrt(4) + exp(0) + log(1)", 5.0),
        ("max(name)", 0.5),
        ("(1+2)*-(3)", -9.0),
    ],
)
def test_a_formula_is_computed_as_it_is_read(formula: str, value: float) -> None:
    assert Formula(formula, ["name", "email"])({"name": 0.5, "email": 1.0}) == value


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "name name",
        "name +",
        "(name",
        "name)",
        "2 ** 3",
        "abs(1, 2)",
        "min()",
        "abs 1",
        "eval(1)",
        "name.x",
        "other",
        "()",
        "1 , 2",
    ],
)
def test_what_is_no_formula_is_refused(formula: str) -> None:
    with pytest.raises(ValueError):
        Formula(formula, ["name"])


@pytest.mark.parametrize(
    "formula",
    ["1" + "+1" * 30_000, "(" * 30_000 + "1" + ")" * 30_000, "-" * 60_000 + "1", "9^" * 1_000 + "9"],
)
def test_a_huge_formula_takes_linear_time_and_no_stack(formula: str) -> None:
    multi = {"type": "multi", "graders": {"a": NAME}, "calculate_output": formula}
    verdict = judged(multi, "", [CALL])
    assert verdict.reward in (30_001.0, 1.0, 0.0)
    assert ("formula_error" in verdict.metrics) == formula.startswith("9^")


def test_several_graders_are_one_score() -> None:
    """The example of OpenAI's guide."""
    email = {"type": "string_check", "name": "email_grader", "operation": "eq"}
    graders = {
        "name": {**email, "input": "{{sample.output_json.name}}", "reference": "{{item.name}}"},
        "email": {**email, "input": "{{sample.output_json.email}}", "reference": "{{item.email}}"},
    }
    multi = {
        "type": "multi",
        "graders": graders,
        "calculate_output": "(name + email) / 2",
        "pass_threshold": 0.5,
    }
    said = json.dumps({"name": "Ann", "email": "a@b.c"})
    verdict = judged(multi, said, name="Ann", email="other")
    assert verdict == JudgeOutput(0.5, True, {"name": 1.0, "email": 0.0})
    assert judged(multi, "no JSON", name="Ann", email="other") == JudgeOutput(
        0.0, False, {"name": 0.0, "email": 0.0, "sample_parse_error": 2.0}
    )


def test_a_formula_without_a_value_scores_0() -> None:
    multi = {"type": "multi", "graders": {"a": NAME}, "calculate_output": "1 / (1 - a)"}
    assert judged(multi, "", [CALL]) == JudgeOutput(0.0, None, {"a": 1.0, "formula_error": 1.0})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"graders": {"a": {"type": "multi"}}}, "cannot be part"),
        ({"graders": {"a-b": NAME}}, "not a name"),
        ({"graders": {}}, "at least 1"),
        ({"calculate_output": "a + b"}, "'b' is neither a grader nor a function"),
        ({"calculate_output": "1" * (65 << 10)}, "at most"),
    ],
)
def test_several_graders_that_cannot_be_one_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        OpenAIGrader(grader={"type": "multi", "graders": {"a": NAME}, "calculate_output": "a", **change})


def test_graders_have_the_fields_that_openais_types_have() -> None:
    from openai.types import graders as theirs

    from ajet_judges.openai import graders as ours

    for name, cls in (
        ("StringCheck", ours.StringCheck),
        ("TextSimilarity", ours.TextSimilarity),
        ("ScoreModel", ours.ScoreModel),
        ("LabelModel", ours.LabelModel),
        ("Python", ours.Python),
        ("Multi", Multi),
    ):
        fields = getattr(theirs, f"{name}Grader").model_fields
        assert set(fields) <= set(cls.model_fields), name
    assert get_args(theirs.TextSimilarityGrader.model_fields["evaluation_metric"].annotation) == get_args(
        Metric
    )
