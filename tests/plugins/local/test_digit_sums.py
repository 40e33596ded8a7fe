"""Models of other architectures learn sums of digits from rewards alone, on the local backbone."""

import json
import string
from pathlib import Path
from statistics import mean

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from ajet.job.config import Layers  # noqa: E402
from ajet.job.prepare import prepare  # noqa: E402
from ajet_local.starter.calculator import Calculator  # noqa: E402

SUMS = [(a, b) for a in range(5) for b in range(5)]
AGENT = f"{Path(__file__).resolve().parents[3] / 'bench' / 'digit_sums.py'}:run"
STEPS, LAST = 80, 5
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 32,
}
ARCHITECTURES = {
    "qwen3_5_text": DELTA,
    "qwen3_next": {
        **DELTA,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
    "olmo_hybrid": DELTA,
    "granitemoehybrid": {
        **MAMBA,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 128,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "mlp", "attention", "mlp"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "chunk_size": 32,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "falcon_h1": {**MAMBA, "mamba_n_heads": 4, "mamba_d_ssm": 64},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64},
    "gpt_oss": {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 64,
        "sliding_window": 8,  # shorter than a prompt
        "rope_parameters": ROPE,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_rewards_raise_three_right_answers_in_ten_to_more_than_eight(kind, tmp_path):
    before, after = learn(kind, tmp_path)
    print(f"{kind}: {before:.2f} -> {after:.2f}")
    assert before < 0.45 and after >= 0.8


def learn(kind, folder):
    """The share of right answers of a small model in the first and in the last steps of training by GRPO."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = Calculator().tokenizer(0)[0]
    model = AutoModelForCausalLM.from_config(config(kind, tokenizer), dtype=torch.float32).eval()
    imitate(model, tokenizer, 1.0, lambda right: right >= 0.9, rate=2e-3)
    imitate(model, tokenizer, 0.25, lambda right: right <= 0.32, rate=3e-4)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    tasks = [{"id": f"{a}+{b}", "query": f"{a}+{b}=", "answer": a + b} for a, b in SUMS]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    layers = Layers()
    for key, value in {
        "task.reader": str(folder / "tasks.jsonl"),
        "workflow": AGENT,
        "model": str(folder / "model"),
        "rollout.group_size": 8,
        "rollout.sampling.max_tokens": 8,
        "train.steps": STEPS,
        "train.batch_size": 8,
        "train.learning_rate": 1e-3,
        "train.adam_epsilon": 1e-4,
        "train.save_every": 10**6,
        "run.dir": str(folder / "run"),
        "run.deterministic": True,
        "backbone.local.threads": 1,
        "backbone.local.device": "cpu",
    }.items():
        layers.set(key, value, "test", Path.cwd())
    job = prepare(layers)
    metrics = Path(job.backbone.run(job).run_dir) / "metrics.jsonl"
    lines = map(json.loads, metrics.read_text().splitlines())
    rewards = [line["reward"] for line in lines if "reward" in line]
    return mean(rewards[:2]), mean(rewards[-LAST:])


def config(kind, tokenizer):
    """A model of some hundred thousand weights with this tokenizer."""
    return AutoConfig.for_model(
        kind,
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 128,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            **ARCHITECTURES[kind],
        },
    )


def imitate(model, tokenizer, share, done, rate):
    """Supervised fine-tuning on all sums at once, until ``done`` accepts the mean probability of the right answers. A ``share`` of
    the answers is right, the others are any digit."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    digits = tokenizer.convert_tokens_to_ids(list(string.digits))
    chats = [[{"role": "user", "content": f"{a}+{b}="}] for a, b in SUMS]
    prompts = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in chats]
    right = torch.tensor([[digits[a + b]] for a, b in SUMS])
    answers = torch.zeros(len(SUMS), len(tokenizer))
    answers[:, digits] = (1 - share) / len(digits)
    answers.scatter_add_(1, right, torch.full(right.shape, share))
    ids = torch.cat([torch.tensor(prompts), right], dim=1)
    for _ in range(2000):
        first, second = model(input_ids=ids, logits_to_keep=2).logits.log_softmax(-1).unbind(1)
        if done(first.exp().gather(1, right).mean().item()):
            return
        loss = -(answers * first).sum(1).mean() - second[:, tokenizer.eos_token_id].mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    raise AssertionError("the sums were not learned")
