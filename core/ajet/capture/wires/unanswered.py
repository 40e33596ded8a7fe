"""API paths other than LLM calls: refused by name, so that none of them reaches a paid API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.interfaces.wire import Answer, ChatRequest, Events, Refused, Wire

_OTHER_CALL = (
    "during an episode only calls that generate text are answered. To let this one reach its own endpoint, make it "
    "inside `with ajet.passthrough():`"
)
_OLLAMA = (
    "it is Ollama's own API. Give the agent Ollama's OpenAI-compatible address, which ends with /v1, such as "
    'OpenAI(base_url="http://localhost:11434/v1", api_key="ollama")'
)
_INTERACTIONS = (
    "it is Google's Interactions API. Let the agent call its model with generateContent, such as "
    "client.models.generate_content(...)"
)
_BEDROCK = (
    "it is Amazon Bedrock's own API. Let the agent call its model through an OpenAI client with Bedrock's "
    "OpenAI-compatible address, which ends with /openai/v1"
)
_COHERE = (
    "it is Cohere's own API. Let the agent call its model through an OpenAI client with Cohere's OpenAI-compatible "
    "address, which ends with /compatibility/v1"
)
_GENERATING: Mapping[str, str] = {
    r"/api/(chat|generate)": _OLLAMA,
    r"/v1(alpha|beta|beta1)?/interactions": _INTERACTIONS,
    r"/model/.+/(converse|converse-stream|invoke|invoke-with-response-stream)": _BEDROCK,
    r"/v[12]/chat": _COHERE,
}
"""APIs that generate text and that AgentJet does not capture: a pattern for the end of the path, and the remedy."""
_OTHERS = (
    r"/embeddings|/rerank|/moderations|/audio/(speech|transcriptions|translations)"
    r"|/images/(generations|edits|variations)|/realtime/(client_secrets|calls)|/api/(embed|embeddings)"
    r"|:(embedContent|batchEmbedContents|batchGenerateContent|predict|predictLongRunning)"
)
"""Other calls of paid or hosted models: a pattern for the end of the path."""


class Unanswered:
    """A `Wire` that refuses every request, with errors in an API's own format."""

    def __init__(
        self, path: str, dialect: Wire, reason: str = _OTHER_CALL, *, generates_text: bool = False
    ) -> None:
        self.path = path
        self.generates_text = generates_text
        self._dialect = dialect
        self._reason = reason

    @property
    def refusal(self) -> Refused:
        """The error that every request gets."""
        return Refused(f"{self.path} is not captured: {self._reason}", code="unsupported_wire")

    def parse(self, body: bytes) -> NoReturn:
        """Raises Refused."""
        raise self.refusal

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        return self._dialect.reply(request, answers, reply_id)

    def events(self, request: ChatRequest, reply_id: str) -> Events:
        return self._dialect.events(request, reply_id)

    def error(self, error: Refused) -> dict[str, Any]:
        return self._dialect.error(error)


def find_unanswered(path: str) -> Unanswered | None:
    """The wire that refuses calls to a URL's path; None if the path is not one of a model."""
    path = path.rstrip("/")
    for end, reason in _GENERATING.items():
        if re.search(f"{end}$", path):
            return Unanswered(path, ChatCompletions(), reason, generates_text=True)
    return Unanswered(path, ChatCompletions()) if re.search(f"({_OTHERS})$", path) else None
