"""An assistant that uses a person's apps by Python code, written with the OpenAI SDK; AppWorld runs the code."""

from __future__ import annotations

import json
import os
from typing import Any

from openai import AsyncOpenAI

from ajet.environments import environment

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
SYSTEM = """You run errands for a person in their apps by writing Python programs. A program calls the apps as \
apis.APP.CALL(argument=value); variables stay until the errand is done, and you see only what the program prints.
apis.api_docs.show_app_descriptions() lists the apps, apis.api_docs.show_api_descriptions(app_name=…) the calls of an app, and \
apis.api_docs.show_api_doc(app_name=…, api_name=…) the arguments of a call: print them before you use a call.
apis.supervisor.show_account_passwords() has the person's passwords. Change nothing that the errand does not ask for.
At the end, call apis.supervisor.complete_task(), with answer=… if the person has asked a question."""
PYTHON: Any = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run a Python program. Returns what it prints, or its error.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}},
            "required": ["code"],
        },
    },
}

client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY") or "unset")


async def run(task: Any) -> str:
    """The assistant's last message. It ends with the errand, after too many programs, or with a message without a program."""
    async with environment(task) as env:
        chat: list[Any] = [{"role": "system", "content": SYSTEM}, *env.state.messages]
        text = ""
        while not env.state.is_terminated:
            completion = await client.chat.completions.create(model=MODEL, messages=chat, tools=[PYTHON])
            message = completion.choices[0].message
            text = message.content or ""
            if not message.tool_calls:
                break
            chat.append(message)
            for call in message.tool_calls:
                chat.append({"role": "tool", "tool_call_id": call.id, "content": await ran(env, call)})
        return text


async def ran(env: Any, call: Any) -> str:
    """What a call's program prints. If the call is invalid, the text says why, so that the model can correct it."""
    try:
        code = json.loads(call.function.arguments)["code"]
    except (ValueError, KeyError, TypeError):
        return "error: the tool needs an argument `code`"
    if env.state.is_terminated:
        return "error: the errand has ended"
    state = await env.step({"role": "assistant", "content": code})
    return str(state.messages[-1]["content"])
