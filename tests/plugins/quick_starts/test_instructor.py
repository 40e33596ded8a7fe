"""Instructor: an answer as a pydantic model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from ..programs import CLOSED, agents_of, by_rules, calling, require

require("instructor")

import instructor
import openai


class Sum(BaseModel):
    value: int


def test_an_answer_as_a_model_is_captured(prepared: Callable[..., Any]) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=0))
    with prepared(by_rules(("12 + 30", calling("Sum", value=42)))).session() as session:
        found = client.chat.completions.create(
            model="m", response_model=Sum, messages=[{"role": "user", "content": "12 + 30"}], max_retries=1
        )
    assert found.value == 42
    assert agents_of(session) == ["agent"] and not session.refusals
