"""The workflow of a run that is sent to Studio by the logger ``agentscope_studio``."""

from __future__ import annotations

import ajet


async def run(task: ajet.Task) -> ajet.WorkflowOutput:
    """Ask the model the task's question. The reward is always the same."""
    import httpx2

    body = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
    async with httpx2.AsyncClient() as client:
        answer = await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)
    response = answer.json()["choices"][0]["message"]["content"]
    return ajet.WorkflowOutput(reward=0.25, response=response)
