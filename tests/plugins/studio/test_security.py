"""Only the browser that was given the token reads, and only our own page posts."""

from __future__ import annotations

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from ajet_studio.server import PAGES

from . import runs

EVERYTHING = [
    "/",
    "/run?run=.",
    "/page/index.html",
    "/api/runs",
    "/api/live?run=.",
    "/api/nothing",
    "/nothing",
]


@pytest.fixture
def stranger(studio: runs.Studio) -> httpx.Client:
    """A client without the token."""
    return httpx.Client(base_url=studio.url)


def raw(studio: runs.Studio, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """A request whose path and headers no client library has corrected."""
    connection = http.client.HTTPConnection(urlsplit(studio.url).netloc)
    connection.putrequest(method, path, skip_host=True)
    for name, value in ({"host": urlsplit(studio.url).netloc} | headers).items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
    connection.close()
    return found


@pytest.mark.parametrize("path", EVERYTHING)
@pytest.mark.parametrize("token", [None, "", "wrong", "é"])
def test_nothing_is_answered_without_the_token(stranger: httpx.Client, path: str, token: str | None) -> None:
    params = {} if token is None else {"token": token}
    found = stranger.get(path, params=params)
    assert found.status_code == 401
    assert "ajet studio" in found.text
    assert "set-cookie" not in found.headers


def test_the_printed_address_gives_the_browser_a_cookie_and_removes_the_token(stranger: httpx.Client) -> None:
    first = stranger.get("/run", params={"run": "a b", "token": runs.TOKEN})
    assert (first.status_code, first.headers["location"]) == (303, "/run?run=a+b")
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert stranger.get("/api/runs").status_code == 200


def test_the_redirect_stays_on_this_server(studio: runs.Studio) -> None:
    status, headers, _ = raw(studio, "GET", f"//evil.example/?token={runs.TOKEN}")
    assert (status, headers["location"]) == (303, "/evil.example/")


@pytest.mark.parametrize("path", [*EVERYTHING[:4], "/nothing"])
def test_every_answer_forbids_inline_scripts_and_other_hosts(studio: runs.Studio, path: str) -> None:
    headers = studio.client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[", "10.0.0.1"]
)
def test_another_name_for_this_machine_is_refused(studio: runs.Studio, host: str) -> None:
    status, _, text = raw(studio, "GET", "/api/runs", host=host, authorization=f"Bearer {runs.TOKEN}")
    assert status in (400, 403)
    assert "runs" not in text


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_answered_at_any_port(studio: runs.Studio, host: str) -> None:
    assert raw(studio, "GET", "/api/runs", host=host, authorization=f"Bearer {runs.TOKEN}")[0] == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", None]
)
def test_another_site_cannot_post(
    studio: runs.Studio, stranger: httpx.Client, origin: str | None, trained: Path
) -> None:
    stranger.get("/", params={"token": runs.TOKEN})
    body = {"run": trained.name, "id": studio.get("episodes", run=trained.name)["rows"][0]["id"], "rating": 1}
    headers = {} if origin is None else {"origin": origin}
    assert stranger.post("/api/feedback", json=body, headers=headers).status_code == 403
    assert not (trained / "feedback.jsonl").exists()


def test_another_site_cannot_read_with_a_cookie_that_a_browser_should_not_have_sent(
    stranger: httpx.Client,
) -> None:
    stranger.get("/", params={"token": runs.TOKEN})
    assert stranger.get("/api/runs", headers={"origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_questions_are_asked_by_get(studio: runs.Studio, method: str) -> None:
    found = studio.client.request(method, "/api/runs", headers={"origin": studio.url})
    assert found.status_code == 405
    assert "\n" not in found.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page/..%2fserver.py",
        "/page//etc/passwd",
        "/page/%00",
        "/api/run?run=..",
        "/api/run?run=../..",
        "/api/run?run=%2Fetc",
        "/api/run?run=./.",
        "/api/run?run=x%00y",
        "/api/run?run=.studio",
        "/api/log?run=../runs&name=x",
    ],
)
def test_paths_lead_nowhere_else(studio: runs.Studio, path: str) -> None:
    assert raw(studio, "GET", path, authorization=f"Bearer {runs.TOKEN}")[0] == 404


def test_a_link_out_of_the_folder_is_not_followed(own: runs.Studio, folder: Path, trained: Path) -> None:
    (folder / "link").symlink_to(trained)
    assert own.get("runs")["runs"] == []
    assert own.refused("run", run="link")[0] == 404


def test_every_page_is_the_same_file(studio: runs.Studio) -> None:
    assert len({studio.client.get(path).text for path in PAGES}) == 1
