"""The chat models that come with the core: any OpenAI-compatible endpoint, and a script file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr

from ajet.interfaces.engine import ChatModelPlugin
from ajet.services.llm_client import BaseUrl, Endpoint, EndpointUsage
from ajet.types import AjetError, ConfigError, Sampling
from ajet.utils.suggest import nearest


class OpenAIChatModel(ChatModelPlugin):
    """Any OpenAI-compatible endpoint. The key is read from the environment, never from the job."""

    name = "openai"
    base_url: BaseUrl = Field(description="Base URL of the API, including /v1.")
    model: str = Field(description="Name of the model at this endpoint.")
    api_key_env: str = Field("OPENAI_API_KEY", description="Environment variable that contains the key.")
    timeout: float = Field(120.0, gt=0, description="Seconds for one answer.")
    retries: int = Field(3, ge=0, description="Retries after a failed answer, with growing pauses.")
    prompt_price: float = Field(0.0, ge=0, description="Cost of a million prompt tokens, in any currency.")
    completion_price: float = Field(0.0, ge=0, description="Cost of a million completion tokens.")
    _client: Any = PrivateAttr(None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Hold one HTTP client while the job runs."""
        endpoint = Endpoint(
            base_url=self.base_url,
            model=self.model,
            api_key_env=self.api_key_env if os.environ.get(self.api_key_env) else None,
            timeout=self.timeout,
            retries=self.retries,
            concurrency=sys.maxsize,  # rollout.concurrency limits the calls
            prompt_price=self.prompt_price,
            completion_price=self.completion_price,
        )
        async with endpoint.calling() as self._client:
            yield self

    @property
    def spent(self) -> EndpointUsage:
        """Tokens and cost of all answers since the model was opened."""
        spent = self._client.spent if self._client else EndpointUsage()
        assert isinstance(spent, EndpointUsage)
        return spent

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], sampling: Sampling
    ) -> Mapping[str, Any]:
        """See `ChatModel.complete`. Raises EndpointFailed with the endpoint's own message and status."""
        body: dict[str, Any] = {"messages": list(messages), "temperature": sampling.temperature}
        body |= {"tools": list(tools)} if tools else {}
        body |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
        # OpenAI's own endpoint refuses these two by name; others know them.
        body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        body |= {"min_p": sampling.min_p} if sampling.min_p else {}
        body |= {"max_tokens": sampling.max_tokens} if sampling.max_tokens else {}
        body |= {"stop": list(sampling.stop)} if sampling.stop else {}
        body |= {"seed": sampling.seed} if sampling.seed is not None else {}
        message, usage = await self._client.message(body)
        used = {
            "prompt_tokens": int(usage.prompt_tokens),
            "completion_tokens": int(usage.completion_tokens),
            "cost": usage.cost,
        }
        kept = ("role", "content", "tool_calls", "reasoning_content", "finish_reason")
        return {k: v for k, v in message.items() if k in kept and v is not None} | {"usage": used}


class ScriptChatModel(ChatModelPlugin):
    """Answers from a YAML file: a list of rules, of which the first that matches answers.

    Each rule has ``say`` (text) or ``call`` ({name, arguments}), and may have ``when`` (text that the
    last message must contain) and ``turn`` (how many answers the chat must already contain).
    """

    name = "script"
    path: Path = Field(description="The YAML file.")

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], sampling: Sampling
    ) -> Mapping[str, Any]:
        """See `ChatModel.complete`. Raises AjetError if no rule fits."""
        turn = sum(m.get("role") == "assistant" for m in messages)
        last = str(messages[-1].get("content") or "")
        for rule in read_script(self.path):
            if rule.get("turn", turn) == turn and str(rule.get("when", "")) in last:
                return scripted(rule, turn)
        raise AjetError(
            f"{self.path}: no rule fits turn {turn} after {last[:80]!r}; a turn is how many answers the chat has, also those that the "
            "agent shows as examples. Add a rule without `when` and `turn` at the end."
        )


def read_script(path: Path) -> list[Mapping[str, Any]]:
    """The rules of a script file. Raises ConfigError that names the rule and the key."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such script file.")
    from ajet.utils.yaml_file import read_yaml

    rules = read_yaml(path)
    if not isinstance(rules, list) or not all(
        isinstance(r, dict) and ("say" in r) != ("call" in r) for r in rules
    ):
        raise ConfigError(f"{path}: a script is a list of rules, each with either `say` or `call`.")
    for number, rule in enumerate(rules, 1):
        _check_keys(f"{path}, rule {number}", rule, "", ("say", "call", "when", "turn"))
        if "call" in rule:
            _check_call(f"{path}, rule {number}", rule["call"])
    return rules


def _check_call(where: str, call: Any) -> None:
    if not isinstance(call, dict):
        raise ConfigError(where, "call: is not a mapping. Write call: {name: …, arguments: {…}}.")
    _check_keys(where, call, "call.", ("name", "arguments"))
    if not call.get("name"):
        raise ConfigError(where, "call.name is missing. Name the tool.")
    if not isinstance(call.get("arguments", {}), dict):
        raise ConfigError(where, "call.arguments: is not a mapping. Write one, such as {text: a}.")


def _check_keys(where: str, given: Mapping[str, Any], prefix: str, known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(
                where,
                f"{prefix}{key}: no such key{nearest(str(key), known)}. The keys are {', '.join(known)}.",
            )


def scripted(rule: Mapping[str, Any], turn: int) -> Mapping[str, Any]:
    """The assistant message of a rule."""
    if "say" in rule:
        return {"role": "assistant", "content": str(rule["say"])}
    call = rule["call"]
    function = {"name": str(call["name"]), "arguments": json.dumps(call.get("arguments", {}))}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": function}],
    }
