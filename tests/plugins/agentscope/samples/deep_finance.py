"""An agent whose tools are those of an MCP server, trained from a configuration file alone."""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.mcp import HttpStatelessClient
from agentscope.message import Msg
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit

from ajet_agentscope.tuner import JudgeOutput, WorkflowOutput, tune

_TOOLKIT: Toolkit | None = None
_LOCK = asyncio.Lock()


async def finance_toolkit() -> Toolkit:
    """The tools of the server, which the first episode asks for."""
    global _TOOLKIT
    async with _LOCK:
        if _TOOLKIT is None:
            client = HttpStatelessClient(
                name="finance-mcp",
                transport=os.getenv("FINANCE_MCP_TRANSPORT", "sse"),
                url=os.environ["FINANCE_MCP_URL"],
                timeout=100,
                sse_read_timeout=1000,
            )
            toolkit = Toolkit()
            toolkit.create_tool_group(group_name="finance-mcp", description="Prices.", active=True)
            assert await client.list_tools()
            await toolkit.register_mcp_client(client, group_name="finance-mcp")
            _TOOLKIT = toolkit
    return _TOOLKIT


async def run_deep_finance(
    task: dict[str, Any],
    model: OpenAIChatModel,
    auxiliary_models: dict[str, OpenAIChatModel] | None = None,
) -> WorkflowOutput:
    assert not auxiliary_models
    toolkit = await finance_toolkit()
    (tool,) = [schema["function"]["name"] for schema in toolkit.get_json_schemas()]
    agent = ReActAgent(
        name="react_agent",
        sys_prompt="Answer with figures.",
        model=model,
        enable_meta_tool=False,
        formatter=OpenAIChatFormatter(),
        toolkit=toolkit,
    )
    response = await agent.reply(msg=Msg("user", task["query"], role="user"))
    steps = task.get("workflow_args", {}).get("max_env_steps")
    kept = {"content": response.content, "role": response.role, "metadata": {"tool": tool, "steps": steps}}
    return WorkflowOutput(response=kept, metrics={"tools": 1.0})


async def deep_finance_judge(
    task: dict[str, Any],
    response: dict[str, Any],
    auxiliary_models: dict[str, OpenAIChatModel] | None = None,
) -> JudgeOutput:
    expected = response["metadata"] == {"tool": "price", "steps": 10}
    return JudgeOutput(reward=float(expected), metrics={"expected": float(expected)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config_path", default=str(Path(__file__).with_suffix(".yaml")))
    args = parser.parse_args()
    tune(workflow_func=run_deep_finance, judge_func=deep_finance_judge, config_path=str(args.config_path))


if __name__ == "__main__":
    main()
