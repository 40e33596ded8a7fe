"""`ajet eval` against an endpoint, and its flags."""

from __future__ import annotations

import json

import pytest
from pytest_httpserver import HTTPServer

from .conftest import Folder


@pytest.fixture
def url(httpserver: HTTPServer) -> str:
    """An OpenAI-compatible endpoint that always says 4."""
    answer = {"choices": [{"message": {"role": "assistant", "content": "4"}}]}
    httpserver.expect_request("/v1/chat/completions").respond_with_json(answer)
    return httpserver.url_for("/v1")


def test_an_endpoint_is_scored_and_json_is_the_last_line(folder: Folder, url: str) -> None:
    outcome = folder.ajet("eval", "job.yaml", "--endpoint", url, "--endpoint-model", "four", "--json")
    assert outcome.code == 0, outcome.err
    assert "validation of the endpoint's model: " in outcome.err  # it is of no step
    figures = json.loads(outcome.out.splitlines()[-1])
    assert (figures["accuracy"], figures["episodes"], figures["model"]["model"]) == (0.5, 2, "four")
    assert ["accuracy,", "sampled", "0.500"] in [line.split() for line in outcome.out.splitlines()]


def test_greedy_reaches_the_endpoint_and_episodes_limits_the_tasks(
    folder: Folder, url: str, httpserver: HTTPServer
) -> None:
    options = ["--endpoint", url, "--endpoint-model", "four", "--greedy", "--episodes", "1"]
    outcome = folder.ajet("eval", "job.yaml", *options)
    assert outcome.code == 0 and outcome.out.startswith("accuracy, greedy ")
    assert [request.get_json()["temperature"] for request, _ in httpserver.log] == [0]


def test_greedily_each_task_is_tried_once_as_it_would_say_the_same_again(
    folder: Folder, url: str, httpserver: HTTPServer
) -> None:
    options = ["--endpoint", url, "--endpoint-model", "four", "--repeats", "3", "--set", "eval.greedy=true"]
    figures = json.loads(folder.ajet("eval", "job.yaml", "--json", *options).out.splitlines()[-1])
    assert (figures["episodes"], figures["greedy_episodes"]) == (6, 2)
    assert sorted(request.get_json()["temperature"] for request, _ in httpserver.log) == [0] * 2 + [1] * 6


def test_tasks_take_the_place_of_the_jobs_validation_tasks(folder: Folder, url: str) -> None:
    folder.write("one.jsonl", '{"query": "4?", "answer": "4"}\n')
    options = ["--endpoint", url, "--endpoint-model", "four", "--json", "--tasks", "one.jsonl"]
    outcome = folder.ajet("eval", "job.yaml", "--set", "model=x", *options)
    figures = json.loads(outcome.out.splitlines()[-1])
    assert (figures["accuracy"], figures["episodes"]) == (1, 1)


@pytest.mark.whole
def test_a_backbone_that_is_not_installed_here_is_no_obstacle(folder: Folder, url: str) -> None:
    job = (folder.path / "job.yaml").read_text().replace("name: debug", "name: a_cluster")
    folder.write("job.yaml", job)
    assert folder.ajet("eval", "job.yaml", "--endpoint", url, "--endpoint-model", "four").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--endpoint", "http://x/v1"], "--endpoint and --endpoint-model: go together"),
        (["--endpoint", "http://x/v1", "--endpoint-model", "m", "--model", "y"], "exclude each other"),
    ],
)
def test_half_an_endpoint_is_refused(folder: Folder, arguments: list[str], said: str) -> None:
    outcome = folder.ajet("eval", "job.yaml", *arguments)
    assert outcome.code == 2 and said in outcome.err
