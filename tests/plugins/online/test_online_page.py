"""docs/online.md, run as it stands there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from ajet_online.keys import Keys
from ajet_online.settings import OnlineSettings
from ajet_online.store import TraceStore
from ajet_online.versions import Versions
from tests.pages import files, page
from tests.patience import PATIENCE
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


@contextmanager
def online(folder: Path, *arguments: str) -> Iterator[str]:
    """A block in which `ajet online job.yaml` runs on the page's files; its address."""
    port = free_port()
    for name, content in files(PAGE).items():
        (folder / name).write_text(content.replace(":8000", f":{port}"))
    command = [sys.executable, "-m", "ajet", "online", "job.yaml", "--port", str(port), *arguments]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200, PATIENCE)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0, (folder / "log").read_text()


@pytest.mark.slow
@pytest.mark.models("starter")
def test_five_minutes_on_a_laptop(tmp_path: Path) -> None:
    with online(tmp_path, "--key", "a-secret-of-my-own"):
        subprocess.run([sys.executable, "users.py"], cwd=tmp_path, check=True)
        store = TraceStore.open(str(tmp_path / "traces.db"))
        wait_for(lambda: len(Versions(store).all()) > 1, PATIENCE)
        store.close()
    assert "of 16 rated" in (tmp_path / "log").read_text()


@pytest.mark.slow
@pytest.mark.models("starter")
def test_keys_and_redaction_with_one_command(tmp_path: Path) -> None:
    (tmp_path / "hidden.py").write_text(
        "def hide(message):\n    return {**message, 'content': message['content'].replace('3 + 4', 'X')}\n"
    )
    with online(tmp_path, "--keys", "keys.yaml", "--redact", "hidden.py:hide") as url:
        body = {"model": "any", "messages": [{"role": "user", "content": "What is 3 + 4?"}]}
        for key, status in (("a-long-secret-of-the-shop", 200), ("another-secret-of-nobody", 401)):
            asked = httpx.post(
                f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
            )
            assert asked.status_code == status
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("traces.db*"))
    assert b"What is X?" in stored and b"What is 3 + 4?" not in stored
