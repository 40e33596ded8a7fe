"""`tuner.as_openai_client`, and the line of `ajet doctor`."""

from __future__ import annotations

import importlib.metadata
import ssl
from typing import Any

import openai
import pytest

import ajet_openai_sdk
from ajet import Tuner


@pytest.fixture
def tuner() -> Tuner:
    return Tuner("http://episode.invalid/v1", "key-of-this-episode", ajet_openai_sdk.ajet_handles())


def test_the_client_talks_to_the_episode(tuner: Tuner) -> None:
    client = tuner.as_openai_client()
    assert isinstance(client, openai.AsyncOpenAI)
    assert str(client.base_url) == "http://episode.invalid/v1/"
    assert client.api_key == "key-of-this-episode"


def test_a_synchronous_client_on_request(tuner: Tuner) -> None:
    assert isinstance(tuner.as_openai_client(asynchronous=False), openai.OpenAI)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_certificates_are_not_read_again_for_each_client(
    tuner: Tuner, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner.as_openai_client(asynchronous=asynchronous)

    def read(*_: Any, **__: Any) -> ssl.SSLContext:
        raise AssertionError("certificates are read again")

    monkeypatch.setattr(ssl, "create_default_context", read)
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", read)
    tuner.as_openai_client(asynchronous=asynchronous)


def test_agent_and_target_travel_as_headers(tuner: Tuner) -> None:
    headers = tuner.as_openai_client(agent="solver", target="small").default_headers
    assert headers["x-ajet-agent"] == "solver" and headers["x-ajet-target"] == "small"


def test_without_labels_there_are_no_such_headers(tuner: Tuner) -> None:
    assert not [name for name in tuner.as_openai_client().default_headers if name.startswith("x-ajet")]


def test_the_environment_does_not_redirect_the_client(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere.invalid/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "a real key")
    client = tuner.as_openai_client()
    assert str(client.base_url) == "http://episode.invalid/v1/" and client.api_key == "key-of-this-episode"


@pytest.mark.parametrize("label", ["löser", "two\nlines"])
def test_a_label_that_no_header_can_carry_is_refused(tuner: Tuner, label: str) -> None:
    with pytest.raises(ValueError, match=r"agent .* printable ASCII"):
        tuner.as_openai_client(agent=label)


@pytest.mark.parametrize("version", ["1.66.0", "1.109.1", "2.3.4", "3.52.0"])
def test_doctor_is_content_with_a_tested_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert ajet_openai_sdk.ajet_doctor() == [("openai", f"{version} (tested: 1.66 to 3.x)", "")]


@pytest.mark.parametrize("version", ["1.65.5", "4.0.0"])
def test_doctor_gives_the_remedy_for_another_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    [(_, found, remedy)] = ajet_openai_sdk.ajet_doctor()
    assert found.startswith(version) and "pip install" in remedy


def test_doctor_says_when_the_sdk_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert ajet_openai_sdk.ajet_doctor() == [("openai", "not installed", "pip install openai")]
