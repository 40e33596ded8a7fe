"""docs/online.md, run as it stands there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

from ajet_online.keys import Keys
from ajet_online.settings import OnlineSettings
from ajet_online.store import Store
from ajet_online.versions import Versions
from tests.pages import files, page
from tests.ports import free_port

PAGE = page("docs/online.md")


def wait_for(ready: Callable[[], bool], seconds: float) -> None:
    """Until this is true; a server that does not answer yet is not ready."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if ready():
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.2)


def keys(model: type, prefix: str = "") -> list[str]:
    """The dotted keys of a section."""
    found = []
    for name, field in model.model_fields.items():  # type: ignore[attr-defined]
        inner = field.annotation
        nested = isinstance(inner, type) and hasattr(inner, "model_fields")
        found += keys(inner, f"{prefix}{name}.") if nested else [prefix + name]
    return found


def test_the_page_has_every_setting_and_state() -> None:
    assert [key for key in keys(OnlineSettings) if f"| `{key}` |" not in PAGE] == []
    assert yaml.safe_load(files(PAGE)["job.yaml"])["model"] == "starter"


def test_the_keys_of_the_page_are_valid(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(files(PAGE)["keys.yaml"])
    assert Keys.read(tmp_path / "keys.yaml").find("a-long-secret-of-the-shop~run-1")


@pytest.mark.slow
def test_five_minutes_on_a_laptop(tmp_path: Path) -> None:
    port = free_port()
    for name, content in files(PAGE).items():
        (tmp_path / name).write_text(content.replace(":8000", f":{port}"))
    command = [
        sys.executable,
        "-m",
        "ajet",
        "online",
        "job.yaml",
        "--port",
        str(port),
        "--key",
        "a-secret-of-my-own",
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200, 600)
        subprocess.run([sys.executable, "users.py"], cwd=tmp_path, check=True)
        store = Store.open(str(tmp_path / "traces.db"))
        wait_for(lambda: len(Versions(store).all()) > 1, 120)
        store.close()
    finally:
        process.terminate()
        assert process.wait(90) == 0, (tmp_path / "log").read_text()
    assert "of 16 rated" in (tmp_path / "log").read_text()
