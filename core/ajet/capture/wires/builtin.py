"""The built-in wires; plugins add more with the hook ``ajet_wires``."""

from __future__ import annotations

from ajet.capture.wires import anthropic, google, responses
from ajet.capture.wires.anthropic import AnthropicMessages
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.capture.wires.completions import Completions
from ajet.capture.wires.google import GenerateContent, StreamGenerateContent
from ajet.capture.wires.responses import Responses
from ajet.capture.wires.unanswered import Unanswered
from ajet.interfaces.wire import Wire

BUILTIN_WIRES: tuple[Wire, ...] = (
    ChatCompletions(),
    Responses(),
    Completions(),
    AnthropicMessages(),
    GenerateContent(),
    StreamGenerateContent(),
    responses.ResponsesTokenCount(),
    responses.Compaction(),
    anthropic.AnthropicTokenCount(),
    google.GoogleTokenCount(),
    Unanswered("/messages/batches", AnthropicMessages()),
)
