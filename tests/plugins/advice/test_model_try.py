"""`ajet model try`: what a model does with an agent's tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ajet.services.scripted_engine import ScriptedEngine
from ajet.types import GenerateRequest
from ajet_local.backbone import LocalEnginePlugin
from tests.cli.conftest import Folder
from tests.tiny import save_tiny_model

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tells the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
CLOCK: dict[str, Any] = {"name": "clock", "description": "Tells the time."}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, CLOCK)]


@pytest.fixture
def model(tmp_path: Path, tokenizer: Any) -> Path:
    return save_tiny_model(tmp_path / "model", tokenizer, context=2048)


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> dict[str, str]:
    """What the model answers to prompts that contain a text; the tools stand in every prompt."""
    answers: dict[str, str] = {}

    def answer(request: GenerateRequest, prompt: str) -> str:
        return next((said for asked, said in answers.items() if asked in prompt), "I do not know.")

    engine = ScriptedEngine(tokenizer, answer, context_length=4096, model_type="qwen3")
    monkeypatch.setattr(LocalEnginePlugin, "build", lambda *args: engine)
    return answers


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_each_request_is_shown_with_its_call_and_what_is_wrong_with_it(
    folder: Folder, model: Path, says: dict[str, str]
) -> None:
    requests = [
        {"request": "Weather in Rome?", "tool": "get_weather"},
        "Weather in Oslo?",
        {"request": "How late is it?", "tool": "clock"},
        "Hello!",
    ]
    says |= {
        "Weather in Rome?": call("get_weather", city="Rome"),
        "Weather in Oslo?": call("get_weather", days="two"),
        "How late is it?": call("get_weather", city="late"),
    }
    folder.write("tools.json", json.dumps({"tools": TOOLS, "requests": requests}))
    outcome = folder.ajet("model", "try", str(model), "--tools", "tools.json")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[:2] == ["Weather in Rome?", '  get_weather({"city": "Rome"})']
    assert lines[3].startswith('  get_weather({"days": "two"})  [$')
    assert lines[5] == '  get_weather({"city": "late"})  [another tool than clock]'
    assert lines[7] == "  I do not know.  [calls no tool]"
    assert (
        lines[8]
        == "4 requests; calls that can be read: 3, of the right tool: 2, with arguments that fit it: 1. "
        "Any tool counts as right where a request names none (2 of 4)."
    )


def test_a_parameter_that_a_tool_does_not_list_is_a_fault(
    folder: Folder, model: Path, says: dict[str, str]
) -> None:
    says |= {"Weather in Rome?": call("get_weather", city="Rome", rows=12)}
    folder.write("tools.json", json.dumps({"tools": TOOLS, "requests": ["Weather in Rome?"]}))
    outcome = folder.ajet("model", "try", str(model), "--tools", "tools.json")
    assert '"rows": 12})  [no such parameter: rows]' in outcome.out and "that fit it: 0." in outcome.out


def test_without_requests_one_is_made_of_each_description(
    folder: Folder, model: Path, says: dict[str, str]
) -> None:
    says |= {"Tells the time, please.": call("clock")}
    folder.write("tools.json", json.dumps(TOOLS))
    outcome = folder.ajet("model", "try", str(model), "--tools", "tools.json")
    assert outcome.out.splitlines() == [
        "Tells the weather in a city, please (city: example).",
        "  I do not know.  [calls no tool]",
        "Tells the time, please.",
        "  clock({})",
        "2 requests; calls that can be read: 1, of the right tool: 1, with arguments that fit it: 1.",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "cannot be read as JSON"),
        ("{}", "has no tools"),
        ('[{"name": "f"}]', 'tools[0] must be {"type": "function"'),
        (
            json.dumps({"tools": TOOLS, "requests": [{"text": "hi"}]}),
            'a request is a text or {"request": text',
        ),
        (
            json.dumps({"tools": TOOLS, "requests": [{"request": "hi", "tool": "get_wether"}]}),
            "a request needs 'get_wether', which is none of its tools; did you mean 'get_weather'",
        ),
        ('[{"type": "function", "function": {"name": "f", "parameters": []}}]', "f are not a JSON schema"),
    ],
)
def test_a_file_without_tools_is_refused_by_name(folder: Folder, model: Path, text: str, said: str) -> None:
    folder.write("tools.json", text)
    outcome = folder.ajet("model", "try", str(model), "--tools", "tools.json")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --tools tools.json: ") and said in outcome.err


def test_a_parameter_that_takes_any_value_gets_one(folder: Folder, model: Path, says: dict[str, str]) -> None:
    schema = {"type": "object", "properties": {"x": True}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "description": "Keeps x.", "parameters": schema}}
    folder.write("tools.json", json.dumps([tool]))
    says |= {"Keeps x, please (x: example).": call("f", x=1)}
    outcome = folder.ajet("model", "try", str(model), "--tools", "tools.json")
    assert outcome.code == 0 and '  f({"x": 1})' in outcome.out.splitlines()


def test_a_model_that_calls_no_tool_is_exit_code_1_with_a_remedy(folder: Folder, model: Path) -> None:
    folder.write("tools.json", json.dumps(TOOLS))
    outcome = folder.ajet("model", "try", str(model), "--tools", "tools.json", "--max-tokens", "4")
    assert outcome.code == 1
    assert "smollm2-tools" in outcome.out.splitlines()[-1]
