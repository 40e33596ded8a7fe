"""Peak memory and CPU time of an update at a vocabulary of 152,000: the trainer's chunks of logprobs beside all logits at once.

    python bench/vocabulary.py                # 8192 tokens
    python bench/vocabulary.py --tokens 2048

Both sides take one AdamW step of GRPO on one sample, all of whose tokens are trained, with the same small Qwen3; each in a process of
its own. The opponent is the usual loss on a model of transformers: its logits, divided by the temperature, `log_softmax`, `gather`;
with 8192 tokens these take 20 GB. Peaks are those of resident memory during the step, less what the process had before it. The last
line is a JSON object of the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 151_936
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--side", choices=SIDES, help="measure one side in this process")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measured(SIDES[options.side], options.tokens)))
        return
    found = {}
    for side in SIDES:
        command = [sys.executable, __file__, "--tokens", str(options.tokens), "--side", side]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found[side] = json.loads(done.stdout.splitlines()[-1])
        print(f"{side:10}{found[side]['peak_mib']:8.0f} MiB{found[side]['seconds']:8.1f} CPU s", flush=True)
    ratios = {
        f"{name}_ratio": round(found["chunks"][name] / found["logits"][name], 3) for name in found["chunks"]
    }
    print(json.dumps({"tokens": options.tokens, **ratios, **found}))


def chunks(model: Any, ids: Any) -> Callable[[], object]:
    """An update of the local trainer."""
    import numpy as np

    from ajet.learning.algorithms import GRPO
    from ajet.types import Batch, Sample, Span
    from ajet_local.engine import LocalEngine
    from ajet_local.trainer import LocalTrainer

    on = (np.arange(len(ids)) >= 1).astype(np.float32)
    sample = Sample(ids, on > 0, on * -11.9, on, on / len(ids), (Span(1, len(ids), 0, "agent", "policy"),))
    trainer = LocalTrainer(model, None, LocalEngine(model, None, cache_mib=1), micro_batch_tokens=len(ids))
    return lambda: trainer.update(Batch([sample], GRPO().loss, [range(1)], 1e-4))


def logits(model: Any, ids: Any) -> Callable[[], object]:
    """The same update from all logits."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    tokens = torch.as_tensor(ids, dtype=torch.long)[None]

    def update() -> None:
        given = model(input_ids=tokens[:, :-1], use_cache=False).logits / 1.0
        new = given.float().log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        ratio = (new + 11.9).exp()
        loss = -torch.minimum(ratio, ratio.clamp(0.8, 1.2)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return update


SIDES = {"chunks": chunks, "logits": logits}


def measured(side: Callable[[Any, Any], Callable[[], object]], count: int) -> dict[str, float]:
    """CPU seconds of a step, and the MiB by which it raises the process's memory."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    ids = np.random.default_rng(0).integers(0, VOCABULARY, count + 1).astype(np.int32)
    step = side(model, ids)
    before = resident("VmRSS")
    CLEAR.write_text("5")  # the peak is counted from here
    started = time.process_time()
    step()
    return {"peak_mib": resident("VmHWM") - before, "seconds": time.process_time() - started}


def resident(what: str) -> float:
    """MiB of a line of the process's status."""
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith(what)]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
