"""What a family of models is: its chat template, its tokens, and how it writes calls and thoughts."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from tests import tokenizers
from tests.chat.formats import Call, Calls
from tests.chat.shapes import Turn


@dataclass(frozen=True)
class Family:
    """One family."""

    name: str
    template: str
    """Jinja; ``TRL: NAME`` stands for the file of TRL."""
    model_type: str
    end: str
    """What the model samples at the end of a turn."""
    calls: Calls | None = None
    """What the model samples; None for a model without tools."""
    special: Sequence[str] = ()
    added: Sequence[str] = ()
    """Added tokens that are not special."""
    bos: str | None = None
    eos: str = ""
    """Empty if it is `end`."""
    stops: Sequence[str] = ()
    """What has to end an answer: ``eos_token_id`` of ``generation_config.json``. Empty if it is `end`."""
    thought: Turn | None = None
    """What surrounds a thought; None for a model that does not think."""
    said: Turn = ("", "")
    """What surrounds an answer's text."""
    said_with_calls: Turn | None = ("", "")
    """What surrounds text before calls; None if the model writes no such text."""
    after_text: str = ""
    """What the model samples between text and calls."""
    parallel: bool = True
    """Whether the model can call two tools at once."""
    calls_end: str | None = None
    """What ends an answer with calls; None if it is `end`."""
    system: bool = True
    """Whether the template takes a system message."""
    in_parts: bool = False
    """Whether the template reads texts in parts only."""
    variables: dict[str, Any] = field(default_factory=dict)
    also: Mapping[str, tuple[str, Sequence[Call]]] = field(default_factory=dict)
    """Other forms in which the model writes calls, by name."""
    unwritten: bool = False
    """Whether the template writes no calls, or other ones than the model does."""
    remark: str = ""
    known: bool = True
    """Whether it is one of those that the readers were made with."""

    @property
    def is_published(self) -> bool:
        """Whether the template is a file of TRL, not a form of our own."""
        return self.template.startswith("TRL: ")

    @property
    def jinja(self) -> str:
        """The template's text."""
        return trl(self.template[5:]) if self.is_published else self.template

    @property
    def ends(self) -> tuple[str, ...]:
        """Every token that has to end an answer."""
        return tuple(self.stops or (self.end,))


def trl(name: str) -> str:
    """A template of the installed TRL."""
    return (importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()


def trl_names() -> list[str]:
    """The names of TRL's templates."""
    folder = importlib.resources.files("trl") / "chat_templates"
    return sorted(f.name.removesuffix(".jinja") for f in folder.iterdir() if f.name.endswith(".jinja"))


_WORDS = (
    "functions name arguments parameters true false null <tool_call> </tool_call> city days exact text path"
)
_made: dict[str, Any] = {}


@functools.cache
def _trained() -> str:
    return str(tokenizers.byte_level((), more=[_WORDS]).to_str())


def tokenizer(family: Family) -> Any:
    """The tokenizer of a family, made once: byte-level, with the family's tokens and template."""
    if family.name not in _made:
        _made[family.name] = _make(family)
    return _made[family.name]


def _make(family: Family) -> Any:
    tokens = Tokenizer.from_str(_trained())
    bos, eos = family.bos, family.eos or family.end
    special = list(dict.fromkeys([*family.special, *([bos] if bos else []), eos]))
    tokens.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    tokens.add_tokens([AddedToken(t, normalized=False, special=False) for t in family.added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        bos_token=bos,
        eos_token=eos,
        pad_token=eos,
        chat_template=family.jinja,
        clean_up_tokenization_spaces=False,
    )
