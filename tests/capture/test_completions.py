"""The legacy completions wire: what its requests mean, and that the real SDK reads its replies."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import openai
import pytest

from ajet.capture.wires.completions import Completions
from ajet.interfaces.wire import Refused

from .served import Served, said


def parse(**body: Any) -> Any:
    return Completions().parse(json.dumps({"model": "m", "prompt": "once", **body}).encode())


def test_the_sdk_reads_all_choices() -> None:
    logprobs = ((" up", -0.5), ("on", -0.25))
    answers = [dataclasses.replace(said(" upon"), logprobs=logprobs), said(" more", cut=True)]
    found = Served(Completions(), answers).openai.completions.create(
        model="m", prompt="once", n=2, logprobs=0, max_tokens=5
    )
    assert [(c.text, c.finish_reason) for c in found.choices] == [(" upon", "stop"), (" more", "length")]
    told = found.choices[0].logprobs
    assert (told.tokens, told.token_logprobs, told.text_offset) == ([" up", "on"], [-0.5, -0.25], [0, 3])
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (7, 10)


def test_the_sdk_reads_a_stream() -> None:
    server = Served(Completions(), [said(" upon"), said(" more", cut=True)])
    stream = server.openai.completions.create(
        model="m", prompt="once", n=2, stream=True, stream_options={"include_usage": True}
    )
    texts, reasons, usage = ["", ""], {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert texts == [" upon", " more"] and reasons == {0: "stop", 1: "length"}
    assert usage and usage.total_tokens == 17
    assert server.streams[0].endswith(b"data: [DONE]\n\n")


def test_a_failure_within_a_stream_raises_in_the_sdk() -> None:
    server = Served(Completions(), Refused("the engine failed", code="engine_error"))
    with pytest.raises(openai.APIError, match="the engine failed"):
        list(server.openai.completions.create(model="m", prompt="once", stream=True))


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("a", "a"), (["a"], "a"), ("", ""), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))],
)
def test_one_prompt_is_text_or_tokens(prompt, read) -> None:
    assert parse(prompt=prompt).prompt == read


def test_the_other_parameters_are_read() -> None:
    request = parse(n=2, best_of=2, max_tokens=3, temperature=0, top_p=0.5, seed=4, stop=["x"], logprobs=0)
    assert (request.n, request.max_tokens, request.temperature, request.top_p) == (2, 3, 0, 0.5)
    assert (request.seed, request.stop, request.logprobs) == (4, ("x",), True)
    assert parse().max_tokens == 16, "the API's default"
    assert parse(echo=False, suffix=None, logit_bias={}, frequency_penalty=0, user="u")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of=3"),
        ({"logprobs": 2}, "logprobs=2"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"prompt": ["a", "b"]}, "prompt with 2 prompts"),
        ({"stream_options": {"more": True}}, "stream_options.more"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body, named) -> None:
    with pytest.raises(Refused, match=named) as caught:
        parse(**body)
    assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize("prompt", [None, [], [[]], [1.5], [True], [-1], {"a": 1}, [1, "a"]])
def test_a_bad_prompt_gets_one_clear_line(prompt) -> None:
    with pytest.raises(Refused, match="prompt must be") as caught:
        parse(prompt=prompt)
    assert caught.value.code == "invalid_request"
