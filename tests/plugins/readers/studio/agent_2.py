"""A conversation with an agent of AgentScope 2, sent to Studio: ``agent_2.py MODEL_URL STUDIO_URL``."""

from __future__ import annotations

import asyncio
import sys

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.middleware import TracingMiddleware
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor


def look(place: str) -> str:
    """Look what grows somewhere."""
    return "oaks"


async def main(model_url: str, studio_url: str) -> None:
    """Ask twice."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{studio_url}/v1/traces")))
    trace.set_tracer_provider(provider)
    there = OpenAICredential(api_key="k", base_url=model_url)
    allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="")
    guide = Agent(
        "guide",
        "Be brief.",
        OpenAIChatModel(credential=there, model="m", stream=False),
        Toolkit(tools=[FunctionTool(look, permission=allowed)]),
        middlewares=[TracingMiddleware()],
    )
    for question in ("What grows in the woods?", "How old do they get?"):
        await guide.reply(UserMsg("visitor", question))


asyncio.run(main(*sys.argv[1:]))
