"""The logger `otel`: what a collector receives, and that the run never waits for it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet import ConfigError
from ajet.interfaces.backbone import RunResult
from ajet_loggers import otel
from tests.core.test_hooks import Training, scripted_backbone, training  # noqa: F401
from tests.patience import PATIENCE

from ..programs import script
from .collector import Collector, attributes, collector

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

AGENT = """
from tests.plugins.programs import ask_plainly

def solve(task):
    ask_plainly(task.query)
    return "42"

def fails(task):
    ask_plainly(task.query)
    raise KeyError("the secret word")
"""
RunTo = Callable[..., RunResult]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Collector]:
    with collector(tmp_path / "spans.jsonl") as received:
        yield received


@pytest.fixture
def run_to(training: Training, tokenizer: Any) -> RunTo:  # noqa: F811
    """Train for a step, with four episodes that ask for "12 + 30" and use a calculator."""
    (training.folder / "agent.py").write_text(AGENT)
    training.attach("solver", ajet_plugins=lambda: [scripted_backbone(tokenizer, script, "solver")])
    tasks = [{"id": f"t{i}", "query": "12 + 30"} for i in range(2)]
    (training.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))

    def run_to(endpoint: str | None, workflow: str = "solve", **options: Any) -> RunResult:
        logger = {"type": "otel", **({"endpoint": endpoint} if endpoint else {}), **options}
        return training.run(workflow, steps=1, loggers=[logger], sets={"backbone.name": "solver"})

    return run_to


@pytest.fixture
def said(training: Training) -> Callable[[], list[str]]:  # noqa: F811
    return lambda: [line for line in training.lines.said if "otel" in line]


def episodes(received: Collector) -> list[list[dict[str, Any]]]:
    """The spans of each trace."""
    traces: dict[str, list[dict[str, Any]]] = {}
    for span in received.spans:
        traces.setdefault(span["traceId"], []).append(span)
    return list(traces.values())


# ------------------------------------------------------------------ what arrives


def test_an_episode_is_a_trace_of_an_agent_its_calls_and_its_tools(
    run_to: RunTo, receiver: Collector, said: Callable[[], list[str]]
) -> None:
    result = run_to(receiver.url)
    assert len(episodes(receiver)) == 4 and not said()
    for root, *below in episodes(receiver):
        operations = [attributes(span)["gen_ai.operation.name"] for span in (root, *below)]
        assert operations == ["invoke_agent", "chat", "execute_tool", "chat"]
        assert "parentSpanId" not in root and {s["parentSpanId"] for s in below} == {root["spanId"]}
        assert [s["kind"] for s in below] == ["SPAN_KIND_CLIENT", "SPAN_KIND_INTERNAL", "SPAN_KIND_CLIENT"]
        facts = attributes(root)
        name = f"{result.run_dir.name}/{facts['ajet.episode.id']}"
        assert {attributes(s)["gen_ai.conversation.id"] for s in (root, *below)} == {name}
        (verdict,) = root["events"]
        assert verdict["name"] == "gen_ai.evaluation.result"
        assert attributes(verdict)["gen_ai.evaluation.score.value"] == 1.0
        for span in (below[0], below[2]):
            facts = attributes(span)
            assert facts["gen_ai.request.model"] == "starter"
            assert facts["gen_ai.usage.input_tokens"] > facts["gen_ai.usage.output_tokens"] > 0
        assert attributes(below[1])["gen_ai.tool.call.result"] == "42"


@pytest.mark.whole
def test_the_reader_traces_makes_tasks_of_them(run_to: RunTo, receiver: Collector) -> None:
    from ajet_readers.traces import Traces

    run_to(receiver.url)
    tasks = list(Traces(path=receiver.file).tasks())
    assert len(tasks) == 4
    for task in tasks:
        assert task.query == "12 + 30" and task.metadata["tools"] == ["calculator"]
        assert task.metadata["response"] == task.metadata["answer"] == "The result is 42."
        assert task.metadata["feedback"]["score"] == 1.0
        assert task.metadata["model"] == "starter"


@pytest.mark.whole
def test_contents_can_be_kept_back(run_to: RunTo, receiver: Collector) -> None:
    with pytest.raises(Exception, match="all 4 episodes failed"):
        run_to(receiver.url, "fails", contents=False)
    sent = receiver.file.read_text()
    for text in ("12 + 30", "The result is 42", "secret word", "expression", "messages"):
        assert text not in sent
    root, first, *_ = episodes(receiver)[0]
    assert attributes(root)["error.type"] == "workflow:KeyError"
    assert root["status"] == {"code": "STATUS_CODE_ERROR", "message": "workflow:KeyError"}
    assert attributes(first)["gen_ai.usage.input_tokens"] > 0


@pytest.mark.whole
def test_headers_come_from_the_job_and_the_environment(
    run_to: RunTo, receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20k")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.removesuffix("/v1/traces"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    run_to(None, headers={"x-team": "blue"}, service="sums")
    assert len(episodes(receiver)) == 4
    for headers in receiver.headers:
        assert (headers["authorization"], headers["x-team"]) == ("Bearer k", "blue")
        assert (headers["content-encoding"], headers["content-type"]) == ("gzip", "application/x-protobuf")
    (service,) = {
        attributes(resource["resource"])["service.name"]
        for line in receiver.file.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
    }
    assert service == "sums"


@pytest.mark.whole
def test_a_large_episode_is_sent_in_several_requests(
    run_to: RunTo, receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "LARGEST_REQUEST", 400)
    run_to(receiver.url)
    assert len(receiver.sizes) > 4
    assert [len(trace) for trace in episodes(receiver)] == [4] * 4


# ------------------------------------------------------------------ when the collector does not answer


@pytest.mark.whole
def test_a_run_without_a_collector_says_so_once_and_logs_nothing_else(
    run_to: RunTo, said: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert run_to("http://127.0.0.1:9/v1/traces", flush_seconds=0.2).steps == 1
    assert said()[-1] == "logger otel: 4 of 4 episodes were not sent to http://127.0.0.1:9/v1/traces"
    assert not [record for record in caplog.records if record.name == otel.EXPORTER_LOG]


@pytest.mark.whole
def test_what_the_collector_refuses_is_counted_with_its_reason_and_the_rest_arrives(
    run_to: RunTo, receiver: Collector, said: Callable[[], list[str]]
) -> None:
    receiver.answer = lambda number: 413 if number == 2 else 200
    run_to(receiver.url)
    refused, counted = said()
    assert "413" in refused and refused.endswith("The run continues.")
    assert counted == f"logger otel: 1 of 4 episodes were not sent to {receiver.url}"
    assert len(episodes(receiver)) == 3


@pytest.mark.whole
def test_a_run_does_not_wait_for_a_collector_that_hangs(
    run_to: RunTo, receiver: Collector, said: Callable[[], list[str]]
) -> None:
    ended = threading.Event()
    receiver.answer = lambda number: 200 if ended.wait(PATIENCE) else 500
    try:
        assert run_to(receiver.url, flush_seconds=0.05).steps == 1
        assert said() == [f"logger otel: 4 of 4 episodes were not sent to {receiver.url}"]
    finally:
        ended.set()


def test_nothing_is_sent_unless_the_job_names_the_logger(
    training: Training,  # noqa: F811
    receiver: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.removesuffix("/v1/traces"))
    training.run(steps=1)
    assert not receiver.sizes


# ------------------------------------------------------------------ the keys


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "API_KEY", "X-Auth-Token"])
def test_a_secret_is_refused_with_the_place_where_it_belongs(run_to: RunTo, name: str) -> None:
    expected = rf"run\.loggers\.0\.headers.*OTEL_EXPORTER_OTLP_HEADERS='{name}="
    with pytest.raises(ConfigError, match=expected):
        run_to("http://127.0.0.1:9/v1/traces", headers={name: "k-123"})


@pytest.mark.parametrize(
    "endpoint", ["localhost:4318/v1/traces", "http://", "http://u:p@host/v1/traces", "http://host"]
)
def test_an_address_that_is_not_one_is_refused(run_to: RunTo, endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.loggers\.0\.endpoint"):
        run_to(endpoint)
