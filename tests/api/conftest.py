"""A working directory whose answers come from a script."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.types import Task
from tests.api.asking import ask

SCRIPT = "- {when: 2+2, say: '4'}\n- {say: 'no idea'}\n"
RECORDS = [{"id": "a", "query": "2+2?", "answer": "4"}, {"id": "b", "query": "3+3?", "answer": "6"}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    (tmp_path / "script.yaml").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def debugging(folder: Path) -> dict[str, Any]:
    """Arguments of a run on the backbone debug, answered by the script."""
    return {
        "tasks": RECORDS,
        "backbone": "debug",
        "set": {
            "backbone.debug.answers": {"type": "script", "path": "script.yaml"},
            "backbone.debug.group_size": 1,
        },
        "progress": False,
    }


@pytest.fixture
def agent() -> Callable[[Task], Any]:
    """A function that no import leads to."""

    async def local(task: Task) -> str:
        return await ask(task)

    return local


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A random Qwen3 of one layer with the calculator's tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("model") / "tiny"
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
