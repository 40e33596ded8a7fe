"""The error messages in the source code, for the site's page of all errors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ERRORS = {
    "AjetError",
    "BadMessage",
    "CheckpointDamaged",
    "ConfigError",
    "ContractBroken",
    "MachineFailed",
    "Refused",
}
"""Classes whose first argument is a message for users."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message, with ``…`` in place of what is only known when it is raised."""

    text: str
    folder: str
    """The folder of the core, or the plugin, that raises it."""

    @property
    def anchor(self) -> str:
        """A short name for links: the words of the message."""
        return "-".join(re.findall(r"[a-z0-9]+", self.text.lower())[:12])


def messages(root: Path) -> list[Message]:
    """Every message once, by folder and text."""
    found = {}
    for path in [*root.glob("core/ajet/**/*.py"), *root.glob("plugins/*/ajet_*/**/*.py")]:
        first, *parts = path.relative_to(root).parts
        folder = parts[0] if first == "plugins" else parts[1].removesuffix(".py")
        for text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            found[text, folder] = Message(text, folder)
    return sorted(found.values(), key=lambda message: (message.folder, message.text.lower()))


def texts(tree: ast.AST) -> Iterator[str]:
    """The messages of the errors that a module creates, as far as they are written there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _name(node.func) in ERRORS:
            # `ConfigError(where, text)`, or the text and what else it carries.
            parts = [_text(part) for part in node.args[:2]]
            said = ": ".join(parts if parts[-1].strip("…") else parts[:1])
            text = re.sub(r"(?:…\s*)+$|^(?:…\s*)+(?=…)", "…", said).strip()
            if len(text.replace("…", "").split()) >= 3:
                yield text


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _text(node: ast.expr) -> str:
    """The text of an expression; ``…`` for what is not a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"
