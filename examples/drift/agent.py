"""An agent that edits its own history in ways that break timelines and so make training expensive.

Run `ajet check` on it and read the report.
"""

from __future__ import annotations

import openai

import ajet

SYSTEM = "You are a travel planner. Think step by step, then answer in one sentence."
STOPS = ("Where should we start?", "What do we see there?", "And after that?", "How do we get home?")


async def run(task: ajet.Task) -> ajet.WorkflowOutput:
    """Four questions about a trip, with a history that differs from what the model answered."""
    client = openai.AsyncOpenAI()
    history: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    history.append({"role": "user", "content": task.query})
    for number, question in enumerate(STOPS):
        reply = await client.chat.completions.create(model="any", messages=history, temperature=0.2)
        answer = reply.choices[0].message.content or ""
        if number == 0:
            answer = answer.replace("  ", " ") + "\n"  # tidied, so it differs from what was sampled
        history.append({"role": "assistant", "content": answer})
        history.append({"role": "user", "content": question})
        if number == 2:  # a sliding window drops the oldest turn
            del history[1:3]
    return ajet.WorkflowOutput(reward=float("home" in answer))
