"""The logger `otel` with a real collector: an MLflow server, which shows the episodes as traces.

The server does not fit beside the other tools of the tests: `make test-matrix ARGS=loggers` runs this.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.patience import PATIENCE
from tests.ports import free_port

from .test_otel import RunTo, run_to, said, training  # noqa: F401

if find_spec("mlflow") is None or find_spec("flask") is None:
    pytest.skip("MLflow's server is not installed: make test-matrix", allow_module_level=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """An MLflow server on a free port, with a database of its own."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE
        while not _answers(url):
            assert process.poll() is None and time.monotonic() < deadline, (
                tmp_path / "server.log"
            ).read_text()
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


def test_mlflow_shows_episodes_as_traces(
    run_to: RunTo,  # noqa: F811
    server: str,
    said: Callable[[], list[str]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mlflow import MlflowClient

    # The server's first request takes it many seconds.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    client = MlflowClient(server)
    experiment = client.create_experiment("episodes")
    run_to(f"{server}/v1/traces", headers={"x-mlflow-experiment-id": experiment}, flush_seconds=60)
    assert not said()
    traces = client.search_traces(locations=[experiment])
    assert len(traces) == 4
    for trace in traces:
        root, first, tool, second = trace.data.spans
        assert [s.name for s in trace.data.spans] == [
            "invoke_agent agent",
            "chat starter",
            "execute_tool calculator",
            "chat starter",
        ]
        assert root.parent_id is None and {s.parent_id for s in (first, tool, second)} == {root.span_id}
        (verdict,) = root.events
        assert verdict.name == "gen_ai.evaluation.result"
        assert verdict.attributes["gen_ai.evaluation.score.value"] == 1.0
        assert tool.get_attribute("gen_ai.tool.call.result") in ("42", 42)
        (answer,) = _loaded(second.get_attribute("gen_ai.output.messages"))
        assert answer["parts"] == [{"type": "text", "content": "The result is 42."}]
        assert int(second.get_attribute("gen_ai.usage.output_tokens")) > 0


def _loaded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
