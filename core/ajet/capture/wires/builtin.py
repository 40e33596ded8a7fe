"""The built-in wires; plugins add more with the hook ``ajet_wires``."""

from __future__ import annotations

from ajet.capture.wires import Wire
from ajet.capture.wires.anthropic import AnthropicMessages
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.capture.wires.completions import Completions
from ajet.capture.wires.responses import Responses
from ajet.capture.wires.unanswered import Unanswered

BUILTIN_WIRES: tuple[Wire, ...] = (
    ChatCompletions(),
    Responses(),
    Completions(),
    AnthropicMessages(),
    *(Unanswered(path, Responses()) for path in ("/responses/compact", "/responses/input_tokens")),
    *(Unanswered(path, AnthropicMessages()) for path in ("/messages/count_tokens", "/messages/batches")),
)
