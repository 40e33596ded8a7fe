"""`ajet sft` as a user starts it: the loss falls, the checkpoint loads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ajet.rollout.recorder import METRICS, live_lines
from tests.tiers import fast

pytestmark = pytest.mark.e2e

CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"say {i}"},
            {"role": "assistant", "content": f"{i}, as you asked"},
        ]
    }
    for i in range(8)
]


def fine_tune(project: Any, model: Any, *arguments: str, code: int = 0) -> str:
    flags = ("--model", str(model), "--transcripts", "chats.jsonl", "--output", "out", "--batch-size", "4")
    return project.ajet("sft", *flags, "--set", "backbone.local.threads=1", *arguments, code=code)


@pytest.mark.kept
def test_the_loss_falls_and_the_checkpoint_is_a_model_that_speaks_as_taught(project, tiny_model) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (project.folder / "chats.jsonl").write_text("".join(f"{json.dumps(c)}\n" for c in CHATS))
    output = fine_tune(project, tiny_model, "--epochs", "10", "--learning-rate", "1e-2")
    checkpoint = project.folder / "out" / "checkpoints" / "step_000020"
    assert output.rstrip().endswith("out/checkpoints/step_000020")
    losses = [line["loss"] for line in live_lines(project.folder / "out" / METRICS)]
    assert len(losses) == 20
    assert losses[0] > 4 and sum(losses[-2:]) / 2 < losses[0] / 2, losses
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(checkpoint),
        AutoTokenizer.from_pretrained(checkpoint),
    )
    prompt = tokenizer.apply_chat_template(
        CHATS[0]["messages"][:1], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
    with torch.no_grad():
        likely = model(ids).logits[0, -1].softmax(-1)
    assert float(likely.max()) > 3 / len(tokenizer), "no longer uniform"


@pytest.mark.parametrize(
    ("line", "said"),
    fast(
        {0},
        [
            ('{"messages": [', "chats.jsonl:2: not JSON"),
            ('{"messages": [{"role": "user", "content": "?"}]}', "chats.jsonl:2: has no assistant message"),
            (
                json.dumps({"messages": [{"role": "assistant", "content": "word " * 400}]}),
                "chats.jsonl:2: has ",
            ),
        ],
    ),
)
def test_a_broken_transcript_is_named_by_file_and_line_and_nothing_is_written(
    project, tiny_model, line: str, said: str
) -> None:
    (project.folder / "chats.jsonl").write_text(f"{json.dumps(CHATS[0])}\n{line}\n")
    output = fine_tune(project, tiny_model, code=2)
    assert output.strip().splitlines()[-1].startswith("error: ") and said in output
    assert "Traceback" not in output and not (project.folder / "out").exists()
