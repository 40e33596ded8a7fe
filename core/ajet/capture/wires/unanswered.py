"""API paths other than LLM calls: refused by name, so that none of them reaches a paid API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ajet.capture.wires import Answer, ChatRequest, Events, Refused, Wire
from ajet.capture.wires.chat_completions import ChatCompletions

_OTHER_CALL = (
    "during an episode only calls that generate text are answered. To let this one reach its own endpoint, make it "
    "inside `with ajet.passthrough():`"
)
_OLLAMA = (
    "it is Ollama's own API. Give the agent Ollama's OpenAI-compatible address, which ends with /v1, such as "
    'OpenAI(base_url="http://localhost:11434/v1", api_key="ollama")'
)
_GOOGLE = (
    "it is Google's own API. Let the agent call its model through LiteLLM or an OpenAI client, with Google's "
    "OpenAI-compatible address, which ends with /v1beta/openai/"
)
_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("/embeddings", "/rerank", "/moderations", "/audio/speech"), _OTHER_CALL),
    **dict.fromkeys(("/audio/transcriptions", "/audio/translations"), _OTHER_CALL),
    **dict.fromkeys(("/images/generations", "/images/edits", "/images/variations"), _OTHER_CALL),
    **dict.fromkeys(("/realtime/client_secrets", "/realtime/calls"), _OTHER_CALL),
    **dict.fromkeys(("/api/embed", "/api/embeddings"), _OTHER_CALL),
    **dict.fromkeys(("/api/chat", "/api/generate"), _OLLAMA),
    **dict.fromkeys((":generateContent", ":streamGenerateContent"), _GOOGLE),
}
"""Path suffixes of paid or hosted models that no wire answers, each with the remedy."""


class Unanswered:
    """A `Wire` that refuses every request, with errors in an API's own format."""

    def __init__(self, path: str, dialect: Wire, reason: str = _OTHER_CALL) -> None:
        self.path = path
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
    end = next((end for end in _REASONS if path.endswith(end)), None)
    return None if end is None else Unanswered(path, ChatCompletions(), _REASONS[end])
