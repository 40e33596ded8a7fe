"""One call of the model for each task, as OpenAI's reinforcement fine-tuning samples. Put your own agent in its place if it does
more than that: the judge reads the response that it returns, and the tool calls of its last call."""

from __future__ import annotations

import json
from pathlib import Path

from openai import AsyncOpenAI, UnprocessableEntityError

from ajet import Task, Tuner, WorkflowOutput

FORM = Path(__file__).with_name("response_format.json")
"""The job's ``response_format``, if it has one."""


async def run(task: Task, tuner: Tuner) -> WorkflowOutput:
    """The answer's text; no response if it does not have the form that ``response_format`` asks for."""
    request = {"model": "policy", "messages": list(task.messages)}
    if task.metadata.get("tools"):
        request["tools"] = task.metadata["tools"]
    if FORM.exists():
        request["response_format"] = json.loads(FORM.read_text("utf-8"))
    async with AsyncOpenAI(base_url=tuner.base_url, api_key=tuner.api_key) as client:
        try:
            answer = await client.chat.completions.create(**request)
        except UnprocessableEntityError:
            return WorkflowOutput()
    return WorkflowOutput(response=answer.choices[0].message.content or "")
