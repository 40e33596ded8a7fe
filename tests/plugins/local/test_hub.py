"""`ajet export --push`: what arrives at the Hub, through real requests of huggingface_hub to a server on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet.cli import run_program

constants = pytest.importorskip("huggingface_hub.constants")


class Hub:
    """The part of the Hub that uploads use: repositories, preupload, git-lfs and commits. ``refusals`` are the statuses
    with which it answers requests whose path contains a text."""

    def __init__(self, server: HTTPServer, large: tuple[str, ...] = ()) -> None:
        self.url = server.url_for("").rstrip("/")
        self.large = large
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.objects: dict[str, bytes] = {}
        self.refusals: dict[str, int] = {}
        self.tokens = set[str | None]()
        self.paths: list[str] = []
        server.expect_request(re.compile(".*")).respond_with_handler(self.answer)

    def answer(self, request: Request) -> Response:
        path = request.path
        self.paths.append(path)
        for text, status in self.refusals.items():
            if text in path:
                return Response(json.dumps({"error": "not for you"}), status)
        if path.startswith("/objects/"):  # a signed address, which needs no token
            self.objects[path.rpartition("/")[2]] = request.get_data()
            return Response("")
        if path == "/api/agent-harnesses":  # which programs are agents; asked once a day, without a token
            return Response("", 404)
        self.tokens.add(request.headers.get("Authorization"))
        if path == "/api/repos/create":
            return self.create(request.get_json())
        if path.endswith("/info/lfs/objects/batch"):
            return answered({"objects": [self.place(o) for o in request.get_json()["objects"]]})
        found = re.fullmatch(r"/api/models/(\w+/[\w-]+)(?:/(preupload|commit)/main)?", path)
        assert found, path
        repository, action = found.groups()
        if action is None:
            return answered({"id": repository, "private": self.private[repository], "siblings": []})
        if action == "preupload":
            return answered({"files": [self.mode(file["path"]) for file in request.get_json()["files"]]})
        lines = [json.loads(line) for line in request.get_data().splitlines()]
        for line in lines:
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.files[repository][line["value"]["path"]] = content
            elif line["key"] == "lfsFile":
                self.files[repository][line["value"]["path"]] = self.objects[line["value"]["oid"]]
        return answered({"commitUrl": f"{self.url}/{repository}/commit/{'0' * 40}", "commitOid": "0" * 40})

    def create(self, asked: dict[str, Any]) -> Response:
        repository = f"{asked['organization'] or 'me'}/{asked['name']}"
        status = 409 if repository in self.private else 200
        self.private.setdefault(repository, asked.get("visibility") == "private")
        self.files.setdefault(repository, {})
        return answered({"url": f"{self.url}/{repository}"}, status)

    def place(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {**asked, "actions": {"upload": {"href": f"{self.url}/objects/{asked['oid']}"}}}

    def mode(self, path: str) -> dict[str, Any]:
        return {"path": path, "uploadMode": "lfs" if path in self.large else "regular", "shouldIgnore": False}


def answered(body: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(body), status, content_type="application/json")


@pytest.fixture
def hub(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(httpserver)
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere/token")
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    return made


FILES = {"config.json": b'{"a": 1}\n', "model.safetensors": bytes(range(256)) * 999, "sub/notes.txt": b""}


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of all weights, whose export copies its files, but for those of training."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "step_000001"
    for name, content in {**FILES, "files.json": b"{}", "ajet.json": b"{}"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def export(*options: str) -> int:
    return run_program(["export", "step_000001", "out", *options])


@pytest.mark.parametrize("large", [(), ("model.safetensors",)], ids=["in the commit", "by git-lfs"])
def test_every_file_of_the_model_arrives_byte_for_byte(
    hub: Hub,
    checkpoint: Path,
    large: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub.large = large
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", bool(large))  # the hub of this test has git-lfs only
    assert export("--push", "owner/my-model") == 0
    assert hub.files == {"owner/my-model": FILES}
    assert list(hub.objects) == [hashlib.sha256(FILES[name]).hexdigest() for name in large]
    assert hub.private == {"owner/my-model": False} and hub.tokens == {"Bearer hf_mine"}
    assert capsys.readouterr().out == f"wrote out\nuploaded it to {hub.url}/owner/my-model\n"


def test_a_new_repository_can_be_private_and_one_that_is_public_is_refused(
    hub: Hub, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("--push", "mine", "--private") == 0
    assert hub.private == {"me/mine": True} and hub.files == {"me/mine": FILES}
    hub.private["me/mine"], hub.files["me/mine"] = False, {}
    (tmp_path / "out").rename(tmp_path / "before")
    assert export("--push", "mine", "--private") == 1
    assert hub.files == {"me/mine": {}}
    said = capsys.readouterr().err
    assert "mine: the model was not uploaded: the repository exists and is not private. Name another" in said
    (tmp_path / "out").rename(tmp_path / "again")
    assert export("--push", "mine") == 0
    assert hub.files == {"me/mine": FILES}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        (
            "create",
            401,
            "the repository cannot be created: the Hugging Face Hub answered 401.* Check HF_TOKEN",
        ),
        ("/", 403, "the repository cannot be created: .* answered 403: not for you. Check the owner's name"),
        (
            "preupload",
            404,
            "the model was not uploaded: the Hugging Face Hub answered 404: .*token may write",
        ),
        (
            "commit",
            400,
            "the model was not uploaded: the Hugging Face Hub answered 400: not for you. Try again",
        ),
    ],
)
def test_a_refused_upload_is_one_line_and_the_folder_is_kept(
    hub: Hub, checkpoint: Path, path: str, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refusals[path] = status
    assert export("--push", "owner/name") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.match(rf"error: owner/name: {said}", error), error
    assert error.endswith("The model is kept in out; `hf upload owner/name out .` uploads it.")
    assert Path("out/model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_name_that_the_hub_does_not_have_is_said_without_a_request(
    hub: Hub, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("--push", "owner/a--b") == 1
    said = capsys.readouterr().err
    assert "the repository cannot be created: Cannot have -- or .. in repo_id" in said and hub.paths == []


def test_an_object_that_the_storage_refuses_is_named_by_its_status(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    hub.large, hub.refusals = ("model.safetensors",), {"objects/batch": 403}
    assert export("--push", "owner/name") == 1
    assert "the model was not uploaded: the Hugging Face Hub answered 403" in capsys.readouterr().err
    assert hub.files == {"owner/name": {}}


def test_a_hub_that_cannot_be_reached_leaves_the_folder(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert export("--push", "owner/name") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.match(
        r"error: owner/name: the repository cannot be created: \w+: .*\. Check the network\.", error
    )
    assert Path("out/config.json").is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--push", "a/b/c"], "--push a/b/c: is not the name of a repository. Give owner/name"),
        (["--private"], "--private applies only with --push REPO"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    hub: Hub, checkpoint: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(*options) == 2
    assert said in capsys.readouterr().err and not Path("out").exists() and hub.paths == []


def test_a_missing_token_is_said_before_anything_is_written(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    assert export("--push", "owner/name") == 2
    assert (
        "no token for the Hugging Face Hub. Set HF_TOKEN, or run `hf auth login`." in capsys.readouterr().err
    )
    assert not Path("out").exists() and hub.paths == []
