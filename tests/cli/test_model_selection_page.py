"""The choice of a model in docs/before-you-train.md: its examples run as they stand."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tests.pages import blocks, files, page
from tests.program import Program

PAGE = page("docs/before-you-train.md")


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, httpserver: HTTPServer) -> HTTPServer:
    """The page's files; its models are at another address: `strong` adds, `small` knows the smallest sum only."""

    def answer(request: Request) -> Response:
        body: Any = request.get_json()
        a, b = map(int, body["messages"][-1]["content"].split(" + "))
        said = str(a + b if body["model"] == "strong" else 5)
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        message = {"choices": [{"message": {"role": "assistant", "content": said}}], "usage": usage}
        return Response(json.dumps(message), content_type="application/json")

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(answer)
    for name, content in files(PAGE).items():
        (tmp_path / name).write_text(content.replace("http://localhost:8001/v1", httpserver.url_for("/v1")))
    monkeypatch.chdir(tmp_path)
    return httpserver


def _without_seconds(text: str) -> list[list[str]]:
    """The rows of a table, without the third column and its place."""
    cells = [re.split(r"  +", line.strip()) for line in text.strip().splitlines()]
    return [row[:2] + row[3:] for row in cells]


@pytest.mark.whole
def test_the_command_prints_the_table_of_the_page(example: HTTPServer, ajet: Program) -> None:
    outcome = ajet("eval", "compare.yaml", "--models", "small,strong")
    assert outcome.code == 0, outcome.err
    (shown,) = [code for code in blocks(PAGE, "") if code.startswith("$ ajet eval")]
    assert _without_seconds(outcome.out) == _without_seconds(shown.partition("\n")[2])


@pytest.mark.whole
def test_the_python_example_prints_the_same(example: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [code for code in blocks(PAGE, "python") if "ajet.select_model" in code]
    exec(code, {})
    printed = capsys.readouterr().out
    assert printed.startswith("strong True 0.0156")
    assert "small 0.125 0.125 1.4" in printed and "best: strong" in printed


def test_the_agentscope_example_chooses_the_same_model(example: HTTPServer) -> None:
    """Its models may be anything that a workflow can call."""
    pytest.importorskip("ajet_agentscope")
    (code,) = [code for code in blocks(PAGE, "python") if "ajet_agentscope" in code]

    class Model:
        def __init__(self, model_name: str) -> None:
            self.model_name = model_name

        async def __call__(self, text: str) -> str:
            a, b = map(int, text.split(" + "))
            return str(a + b if self.model_name == "strong" else 5)

    async def ask(model: Model, text: str) -> str:
        return await model(text)

    names: dict[str, Any] = {"ask": ask}
    exec(code, names)
    small, strong = Model("small"), Model("strong")
    best, reward, significant = asyncio.run(names["choose"]([small, strong]))
    assert best is strong and (reward, significant) == (1.0, 1.0)
