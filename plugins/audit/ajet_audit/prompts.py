"""Prompts against the model's chat template, rendered by transformers from the run's tokenizer/ folder.

A prompt must be what the template writes for the call's messages. Where it continues an earlier call, it must be that call's
prompt and sampled ids, and then what the template writes after that answer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ajet.chat.tool_prompt import with_tool_prompt
from ajet_audit.journal import JournalCall, JournalEpisode

Message = dict[str, Any]
_NEXT: Message = {"role": "user", "content": ""}


class PromptCheck:
    """Checks the prompts of a run. ``missing`` says why it cannot; `skipped` counts the calls that it could not check, by cause."""

    def __init__(self, folder: Path, variables: Mapping[str, Any], tool_prompt: bool = False) -> None:
        self.missing = ""
        self.skipped: dict[str, int] = {}
        self._variables = dict(variables)
        self._forms = list(_FORMS)
        try:
            self._tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=False
            )
        except ImportError:
            self.missing = "transformers is not installed (pip install transformers)"
        except Exception as error:  # of the library, for files that it cannot read
            self.missing = f"the tokenizer in {folder} cannot be read: {' '.join(str(error).split())[:200]}"
        else:
            if tool_prompt:
                self._tokenizer = with_tool_prompt(self._tokenizer, variables)
            template = self._tokenizer.chat_template
            if not isinstance(template, str):
                self.missing = "the tokenizer has no chat template, or several"
            self._has_clock = "strftime_now" in str(template)

    def fault(self, episode: JournalEpisode, call: JournalCall) -> str:
        """What is wrong with the prompt of a call; empty if nothing is, or if it cannot be checked."""
        if self.missing:
            return ""
        prompt = call.ids[: call.start]
        if (call.ids < 0).any():
            return self._skip("with images")
        if "answer" not in call.data:
            return self._of_text(call, prompt)
        end = episode.line["chats"][call.data["key"]][call.data["answer"]][0]
        chat, tools = (
            episode.chat(call.data["key"], end),
            episode.line.get("tools", {}).get(call.data["key"], []),
        )
        said = self._text(prompt)
        for number, form in enumerate(self._forms):
            if self._is_written(episode, call, said, chat, tools, form):
                self._forms.insert(0, self._forms.pop(number))  # it will be that of the next calls, too
                return ""
        if self._has_clock:
            return self._skip("of a template that writes the time")
        written = next(filter(None, (self._write(chat, tools, form) for form in self._forms)), None)
        if written is None:
            return self._skip("of a chat that the template alone does not render")
        at = next(
            (i for i, (a, b) in enumerate(zip(said, written, strict=False)) if a != b),
            min(len(said), len(written)),
        )
        return (
            f"its prompt has {said[at : at + 40]!r} where the chat template writes {written[at : at + 40]!r}"
        )

    def _is_written(
        self,
        episode: JournalEpisode,
        call: JournalCall,
        said: str,
        chat: Sequence[Message],
        tools: Sequence[Any],
        form: Form,
    ) -> bool:
        text = self._write(chat, tools, form)
        if text is None:
            return False
        if said in (text, self._write(chat, tools, form, continue_final_message=True)):
            return True
        earlier = episode.calls.get(call.data["tokens"]["parent"])
        if earlier is None or "answer" not in earlier.data or earlier.data["key"] != call.data["key"]:
            return False
        until = earlier.end
        if call.start < until or not np.array_equal(call.ids[:until], earlier.ids):
            return False
        whole = episode.chat(call.data["key"], earlier.data["answer"])
        before = self._write(whole[:-1], tools, form)
        after = said[len(self._text(earlier.ids)) :]
        if (
            before is None
            or chat[: len(whole)] != whole
            or not (text.startswith(before) and text.endswith(after))
        ):
            return False
        # Between them is the answer as the template writes it, and nothing else.
        until_after = text[: len(text) - len(after)]
        return len(until_after) >= len(before) and any(
            alone.startswith(until_after) for alone in self._alone(whole, tools, form)
        )

    def _alone(self, whole: Sequence[Message], tools: Sequence[Any], form: Form) -> Iterator[str]:
        """What the template writes for a chat that ends with an answer, and for the same chat in a longer one: Qwen3's writes
        empty thoughts into the last answer only."""
        last, once, twice = (
            self._write([*whole, *[_NEXT] * more], tools, form, add_generation_prompt=False)
            for more in range(3)
        )
        yield last or ""
        if once and twice:
            yield once[: 2 * len(once) - len(twice)]

    def _of_text(self, call: JournalCall, prompt: Any) -> str:
        """A call without messages continues text or token ids."""
        given = call.data.get("details", {}).get("prompt")
        if given is None:
            return self._skip("without messages")
        if isinstance(given, str):
            given = (
                self._tokenizer(given, add_special_tokens=False)["input_ids"],
                self._tokenizer(given)["input_ids"],
            )
            return "" if prompt.tolist() in list(given) else "its prompt is not the text that the client sent"
        return (
            ""
            if prompt.tolist() == list(given)
            else "its prompt has other ids than those that the client sent"
        )

    def _skip(self, why: str) -> str:
        self.skipped[why] = self.skipped.get(why, 0) + 1
        return ""

    def _text(self, ids: Any) -> str:
        return str(
            self._tokenizer.decode(
                ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def _write(self, chat: Sequence[Message], tools: Sequence[Any], form: Form, **options: Any) -> str | None:
        """What the template writes for a chat in a form; None if it refuses that."""
        if "continue_final_message" in options and (not chat or chat[-1]["role"] != "assistant"):
            return None
        messages = [form(_with_objects(copy.deepcopy(message))) for message in chat]
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=list(tools) or None,
                    tokenize=False,
                    **{"add_generation_prompt": not options, **options, **self._variables},
                )
            )
        except Exception:  # the template is foreign code
            return None


Form = Callable[[Message], Message]


def _with_objects(message: Message) -> Message:
    """Arguments of tool calls as objects, and reasoning under both of its names."""
    for call in message.get("tool_calls") or ():
        try:
            value = json.loads(call["function"]["arguments"] or "{}")
        except (TypeError, ValueError):
            continue
        if isinstance(value, dict):
            call["function"]["arguments"] = value
    if message.get("reasoning_content"):
        message.setdefault("thinking", message["reasoning_content"])
    return message


def _in_parts(message: Message) -> Message:
    if isinstance(message.get("content"), str):
        message["content"] = [{"type": "text", "text": message["content"]}] if message["content"] else []
    return message


def _arguments_as_text(message: Message) -> Message:
    for call in message.get("tool_calls") or ():
        if isinstance(call["function"].get("arguments"), dict):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return message


def _without_content(message: Message) -> Message:
    if message.get("tool_calls") and not message.get("content"):
        message.pop("content", None)
    return message


def _thinking_elsewhere(message: Message) -> Message:
    if message.get("reasoning_content"):
        message |= {name: message["reasoning_content"] for name in ("reasoning", "tool_plan")}
    return message


_FORMS: Sequence[Form] = (
    lambda message: message,
    _arguments_as_text,
    _without_content,
    lambda message: _without_content(_arguments_as_text(message)),
    _in_parts,
    _thinking_elsewhere,
)
"""Templates differ in how they want messages; the first form in which one writes the prompt counts."""
