"""An agent's name, from the metadata of the LangChain run in which it calls its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_CREATE_AGENT = ("model", "tools")
_OF_HOOKS = (".before_agent", ".before_model", ".after_model", ".after_agent")
_OF_PREBUILT = (
    *_OF_CREATE_AGENT,
    *("agent", "generate_structured_response", "pre_model_hook", "post_model_hook"),
)
"""Names that `create_agent` and `create_react_agent` give to nodes."""


def agent_name(metadata: Mapping[str, Any]) -> str | None:
    """The innermost name that the user gave to an agent, or to the node that makes the call. None outside any
    graph.

    ``langgraph_checkpoint_ns`` lists the nodes from the outermost graph inwards, ``supervisor:<id>|agent:<id>``. The
    ``name`` given to `create_agent` is in ``lc_agent_name``, which the graphs that this agent calls inherit. So it names
    the caller only if a node of `create_agent` itself makes the call.
    """
    space, node = metadata.get("langgraph_checkpoint_ns"), metadata.get("langgraph_node")
    nodes = (
        [part.partition(":")[0] for part in str(space).split("|")] if space else [str(node)] if node else []
    )
    given = metadata.get("lc_agent_name")
    if given and (not nodes or nodes[-1] in _OF_CREATE_AGENT or nodes[-1].endswith(_OF_HOOKS)):
        return str(given)
    users = (name for name in reversed(nodes) if name not in _OF_PREBUILT and not name.endswith(_OF_HOOKS))
    return next(users, None) or (str(given) if given else nodes[-1] if nodes else None)
