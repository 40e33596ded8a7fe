"""Training on trees: the same loss and gradients as on rows, each unique token computed once."""

import copy
import importlib
import itertools
import logging
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config  # noqa: E402
from transformers.integrations.sdpa_attention import repeat_kv  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

from ajet.interfaces.algorithm import ActorCritic, Algorithm  # noqa: E402
from ajet.learning.algorithms import GRPO  # noqa: E402
from ajet.learning.credit import batch_advantages  # noqa: E402
from ajet.learning.critic import estimated  # noqa: E402
from ajet.learning.objective import objective  # noqa: E402
from ajet.learning.pairs import paired  # noqa: E402
from ajet.learning.settings import LoraSettings, TrainSettings  # noqa: E402
from ajet.plugins import load_plugins  # noqa: E402
from ajet.types import Batch, Sample, Span  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.modeling import checkpointing, enable_checkpointing  # noqa: E402
from ajet_local.plan import plan, score  # noqa: E402
from ajet_local.rows import micro_batches, trained_tokens  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402
from ajet_local.trees import enable_trees, tree_tokens  # noqa: E402
from ajet_lora.adapters import Adapters  # noqa: E402
from ajet_trees import attention  # noqa: E402
from ajet_trees.attention import CHUNK, TreeLayout, _TreeAttention, masked_attention  # noqa: E402
from ajet_trees.head import head_of  # noqa: E402
from ajet_trees.models import ComputedTree  # noqa: E402
from ajet_trees.packing import pack, split  # noqa: E402
from tests.patience import PATIENCE  # noqa: E402
from tests.tiers import fast, thinned  # noqa: E402

ALGORITHMS = [cls for cls in load_plugins().of(Algorithm).values() if cls.__module__.startswith("ajet.")]
ARCHITECTURES = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
TRAINED = {"all weights": (), "an adapter": ("solver",), "two adapters": ("solver", "critic")}
BENCH = Path(__file__).resolve().parents[3] / "bench"
FAST_LOGS = ("forks", "mixed")
LOGS = ("tool30", "werewolf", "retry", "fanout", "forks", "drift", "retok", "grow", "mixed")


def tiny(architecture=Qwen3Config, dtype=torch.float32, **more):
    sizes = dict(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
        initializer_range=0.2,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(architecture(**{**sizes, **more}), dtype=dtype).eval()
    return with_norms_of_its_type(model)


def with_norms_of_its_type(model):
    """transformers computes norms in float32 whatever the model's type, which would hide float64's digits."""
    for norm in (m for m in model.modules() if type(m).__name__.endswith("RMSNorm")):
        norm.forward = lambda x, norm=norm: torch.nn.functional.rms_norm(
            x, norm.weight.shape, norm.weight, norm.variance_epsilon
        )
    return model


def make_sample(ids, start, advantage=1.0, temperature=1.0, stop=None, name="episode"):
    """Tokens ``start`` to ``stop`` are trained."""
    mask = np.zeros(len(ids), np.bool_)
    mask[start:stop] = True
    return Sample(
        np.array(ids, np.int32),
        mask,
        np.where(mask, -1.0, np.nan).astype(np.float32),
        np.where(mask, advantage, 0).astype(np.float32),
        np.where(mask, 1 / mask.sum(), 0).astype(np.float32),
        (Span(start, stop or len(ids), 0, "agent", "policy", temperature),),
        name,
    )


def two_calls(sample, middle):
    """The sample's trained tokens as those of two calls."""
    (span,) = sample.spans
    if not span.start < middle < span.end:
        return sample
    return replace(sample, spans=(replace(span, end=middle), replace(span, start=middle, call=1)))


def random_forest(seed, rows=12, longest=40):
    """Samples that leave earlier ones anywhere, with equal ones and prefixes of others among them."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(0, 60, rng.integers(4, longest))]
    while len(made) < rows:
        other = made[rng.integers(len(made))]
        kept = rng.integers(0, len(other) + 1)
        ids = np.concatenate([other[:kept], rng.integers(0, 60, rng.integers(0, longest))])
        if len(ids) >= 4:
            made.append(ids)
    starts = [int(rng.integers(1, len(ids))) for ids in made]
    stops = [int(rng.integers(start + 1, len(ids) + 1)) for ids, start in zip(made, starts, strict=True)]
    return [
        make_sample(ids, start, rng.normal(), rng.choice([0.7, 1.0, 1.3]), stop, f"episode {number}")
        for number, (ids, start, stop) in enumerate(zip(made, starts, stops, strict=True))
    ]


clipped = GRPO().loss


def of_rows(model, samples):
    return trained_tokens(model, samples)


def of_tree(model, samples):
    return tree_tokens(model, ComputedTree(pack(samples)))


def loss_and_gradients(model, groups, tokens, adapters=None):
    """Each group goes through the model by the adapter that its samples name."""
    model.zero_grad(set_to_none=True)
    loss = 0.0
    for group in groups:
        if adapters:
            (adapter,) = {s.adapter for s in group}
            adapters.activate(adapter)
        with checkpointing(model):
            found = tokens(model, group)
            total = (found.weights * clipped(torch, found)).sum()
            total.backward()
        loss += total.item()
    return loss, torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


def with_adapters(model, names):
    """The model's adapters of these names, all trained, whose weights do something already; None for no names."""
    if not names:
        return None
    adapters = Adapters(model)
    for number, name in enumerate(names):
        adapters.add(name, LoraSettings(rank=3 + number), seed=0)
        for weights in adapters.parameters(name):
            torch.nn.init.normal_(weights, std=0.1, generator=torch.Generator().manual_seed(number))
    adapters.train(names)
    return adapters


def by_target(samples, names):
    """The samples of each adapter, by turns; all of them together if there is none."""
    if not names:
        return [samples]
    return [[replace(s, adapter=name) for s in samples[n :: len(names)]] for n, name in enumerate(names)]


def one_row_a_call(sample):
    """The sample's trained tokens as one sample for each of its calls, as long as that call's context."""
    inside = [
        (np.arange(len(sample.token_ids)) >= s.start) & (np.arange(len(sample.token_ids)) < s.end)
        for s in sample.spans
    ]
    return [
        Sample(
            sample.token_ids[: span.end],
            (sample.mask & there)[: span.end],
            sample.logprobs[: span.end],
            sample.advantages[: span.end],
            sample.weights[: span.end],
            (span,),
            sample.episode,
            sample.adapter,
        )
        for span, there in zip(sample.spans, inside, strict=True)
    ]


def assert_equal(found, expected, tolerance):
    assert found[0] == pytest.approx(expected[0], rel=tolerance)
    assert (found[1] - expected[1]).norm() <= tolerance * expected[1].norm()


# --------------------------------------------------------------------------- packing


def test_a_tree_holds_each_unique_token_once_in_preorder():
    samples = [make_sample([1, 2, 9], 1), make_sample([1, 2, 3, 4, 5], 1), make_sample([1, 2, 3, 7], 1)]
    tree = pack(samples)
    assert tree.token_ids.tolist() == [1, 2, 3, 4, 5, 7, 9]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 2, 1]
    assert [p.tolist() for p in tree.positions] == [[1, 6], [1, 2, 3, 4], [1, 2, 5]]


def test_tokens_that_predict_nothing_are_left_out():
    assert pack([make_sample([1, 2, 3, 4, 5], 1, stop=3)]).token_ids.tolist() == [1, 2, 3]


def test_equal_tokens_of_two_members_stay_two_credits():
    tree = pack([make_sample([1, 2, 3], 1, 1.0), make_sample([1, 2, 3], 1, -1.0)])
    assert len(tree.token_ids) == 3
    assert [p.tolist() for p in tree.positions] == [[1, 2], [1, 2]]
    assert [s.advantages[1] for s in tree.samples] == [1, -1]


@pytest.mark.parametrize("seed", range(5))
def test_every_samples_tokens_are_the_ancestors_of_its_last_trained_one(seed):
    samples = random_forest(seed, rows=30)
    tree = pack(samples)
    assert (tree.parents < np.arange(len(tree.parents))).all()
    assert list(tree.samples) == samples
    for sample, positions in zip(samples, tree.positions, strict=True):
        path, at = [], int(positions[-1])
        while at >= 0:
            path.append(at)
            at = int(tree.parents[at])
        path.reverse()
        last = np.flatnonzero(sample.mask)[-1] + 1
        assert tree.token_ids[path].tolist() == sample.token_ids[:last].tolist()
        assert positions.tolist() == np.array(path)[np.flatnonzero(sample.mask)].tolist()
    unique = {tuple(s.token_ids[: i + 1]) for s in samples for i in range(np.flatnonzero(s.mask)[-1] + 1)}
    assert len(tree.token_ids) == len(unique)


def test_samples_of_different_adapters_share_nothing():
    samples = [replace(make_sample([1, 2, 3, n], 2), adapter=name) for n in (7, 8) for name in ("a", "b")]
    tree = pack(samples)
    assert sorted(tree.token_ids.tolist()) == sorted([1, 2, 3, 7, 8] * 2)
    assert (tree.parents == -1).sum() == 2
    for sample, positions in zip(samples, tree.positions, strict=True):
        assert tree.token_ids[positions].tolist() == sample.token_ids[2:].tolist()
    assert [{s.adapter for s in group} for group in split(samples, 5)] == [{"a"}, {"b"}]


@pytest.mark.parametrize("limit", [1, 50, 200, 10_000])
def test_a_split_holds_every_sample_once_within_the_limit(limit):
    samples = random_forest(1, rows=30)
    groups = split(samples, limit)
    assert sorted(s.episode for g in groups for s in g) == sorted(s.episode for s in samples)
    assert all(len(g) == 1 or len(pack(g).token_ids) <= limit for g in groups)
    assert len(groups) == 1 or limit < 10_000


def test_groups_end_early_only_where_little_is_shared():
    apart = [make_sample([n, *range(10, 40)], 5) for n in range(6)]
    assert [len(g) for g in split(apart, 1000, enough=60)] == [2, 2, 2]
    together = [make_sample([*range(10, 40), n], 5) for n in range(6)]
    assert len(split(together, 1000, enough=20)) == 1


# --------------------------------------------------------------------------- attention


def attends(parents):
    """bool[N, N]: whether the column's token is the row's, or one of its ancestors."""
    mask = np.eye(len(parents), dtype=np.bool_)
    for token, parent in enumerate(parents):
        if parent >= 0:
            mask[token] |= mask[parent]
    return mask


@pytest.mark.parametrize("seed", fast(range(3), range(8)))
def test_blocks_cover_every_ancestor_exactly_once(seed):
    parents = pack(random_forest(seed, rows=25, longest=10 if seed % 2 else 3 * CHUNK)).parents
    layout = TreeLayout(parents)
    covered = np.zeros((len(parents),) * 2, np.int64)
    for batch in layout.triangles:
        for row in batch.index.numpy():
            tokens = np.unique(row)  # a padded place repeats the last one
            covered[np.ix_(tokens, tokens)] += np.tri(len(tokens), dtype=np.int64)
    for r in layout.rectangles:
        covered[r.start : r.stop, r.key_start : r.key_stop] += 1
    np.testing.assert_array_equal(covered, attends(parents).astype(np.int64))
    np.testing.assert_array_equal(layout.depths, attends(parents).sum(1) - 1)


@pytest.mark.whole
@pytest.mark.parametrize("seed", fast(range(2), range(6)))
def test_the_block_mask_for_gpus_gives_the_same_attention(seed):
    """`flex_attention` without compilation, on grouped queries. Sizes are far from whole blocks, some below one."""
    layout = TreeLayout(pack(random_forest(seed, rows=[1, 2, 25][seed % 3], longest=40 * (seed + 1))).parents)
    query, key, value = (
        torch.randn(1, heads, len(layout.parents), 16, dtype=torch.float64) for heads in (4, 2, 2)
    )
    of_mask = masked_attention(flex_attention, query, key, value, layout, 0.3)
    of_blocks = _TreeAttention.apply(query, repeat_kv(key, 2), repeat_kv(value, 2), layout, 0.3)
    torch.testing.assert_close(of_mask, of_blocks)


def test_attention_in_bfloat16_is_rounded_once():
    layout = TreeLayout(pack(random_forest(2, rows=25, longest=120)).parents)
    assert len(layout.rectangles) > 5, "results are merged"
    given = torch.randn(
        4, 1, 2, len(layout.parents), 8, generator=torch.Generator().manual_seed(0)
    ).bfloat16()

    def attended(dtype):
        *leaves, weights = [x.to(dtype).requires_grad_() for x in given]
        out = _TreeAttention.apply(*leaves, layout, 0.3)
        out.backward(weights)
        return out, [leaf.grad for leaf in leaves]

    (out, gradients), (exact, right) = attended(torch.bfloat16), attended(torch.float32)
    torch.testing.assert_close(out, exact.bfloat16(), rtol=0, atol=0)
    for found, expected in zip(gradients, right, strict=True):
        assert (found.float() - expected).abs().max() <= 2**-8 * expected.abs().max()


@pytest.mark.parametrize("seed", fast(range(2), range(6)))
def test_a_block_mask_computes_no_more_blocks_than_one_made_from_all_pairs(seed):
    layout = TreeLayout(pack(random_forest(seed, rows=25, longest=300)).parents)
    mask = layout.block_mask(torch.device("cpu"))
    ends = torch.as_tensor(layout.ends)

    def attends(batch, head, query, key):
        inside = (query < len(ends)) & (key < len(ends))
        seen = (key <= query) & (query < ends[key.clamp(max=len(ends) - 1)])
        return torch.where(inside, seen, query == key)

    size = mask.shape[-1]
    assert size % 128 == 0 and len(layout.parents) <= size
    expected = create_block_mask(attends, None, None, size, size, device="cpu")
    assert torch.equal(mask.to_dense(), expected.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mask, name), getattr(expected, name)), name


# --------------------------------------------------------------------------- exactness


def combined(*axes, few=None):
    """Every combination of the axes, the longest of which is the first. In the fast tier there is each of its values, or each
    of ``few``, with one of each further axis, which take turns; the others are slow."""
    cases = []
    for picks in itertools.product(*(range(len(axis)) for axis in axes)):
        fast = all(
            pick == (picks[0] + shift) % len(axis)
            for shift, (pick, axis) in enumerate(zip(picks, axes, strict=True))
        )
        values = [axis[pick] for pick, axis in zip(picks, axes, strict=True)]
        marks = () if fast and (few is None or values[0] in few) else pytest.mark.slow
        cases.append(pytest.param(*values, marks=marks, id="-".join(map(str, values))))
    return cases


@pytest.mark.parametrize(
    ("trained", "dense", "name", "dtype"),
    combined(list(TRAINED), ["blocks", "dense"], list(ARCHITECTURES), list(TOLERANCE)),
)
@pytest.mark.kept
def test_trees_give_the_loss_and_the_gradients_of_rows(name, dtype, trained, dense, monkeypatch):
    monkeypatch.setattr(attention, "DENSE", 0 if dense == "blocks" else attention.DENSE)
    model = tiny(ARCHITECTURES[name], dtype)
    adapters = with_adapters(model, TRAINED[trained])
    assert enable_trees(model) == ""
    for seed in range(2):
        targets = by_target(random_forest(seed, longest=40 if seed else 2 * CHUNK + 9), TRAINED[trained])
        each = [[s] for samples in targets for s in samples]
        naive = loss_and_gradients(model, each, of_rows, adapters)
        assert_equal(loss_and_gradients(model, targets, of_rows, adapters), naive, TOLERANCE[dtype])
        assert_equal(loss_and_gradients(model, targets, of_tree, adapters), naive, TOLERANCE[dtype])


@pytest.fixture(scope="module")
def call_logs():
    """``call_logs(log)``: a sample for each call, and the timelines, of a log's beginning with short texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        bench = importlib.import_module("tree_training")
        assert tuple(bench.SCENARIOS) == LOGS
        yield lambda log: bench.make_samples(log, 0, 0.01 if log == "werewolf" else 0.02, 50)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("log", "trained", "name", "dtype"),
    combined(LOGS, ["all weights", "two adapters"], list(ARCHITECTURES), list(TOLERANCE), few=FAST_LOGS),
)
def test_call_logs_give_one_loss_and_gradient_by_calls_by_linear_rows_and_by_trees(
    call_logs, log, name, dtype, trained
):
    model = tiny(ARCHITECTURES[name], dtype, vocab_size=1000)
    names = TRAINED[trained]
    adapters = with_adapters(model, names)
    assert enable_trees(model) == ""
    calls, timelines = (with_a_twin(samples) for samples in call_logs(log))
    targets = by_target(timelines, names)
    calls_of = [[c for s in samples for c in one_row_a_call(s)] for samples in targets] if names else [calls]

    def found(groups, tokens):
        return loss_and_gradients(model, groups, tokens, adapters)

    naive = found([g for samples in calls_of for g in micro_batches(samples, 1000)], of_rows)
    linear = [g for samples in targets for g in micro_batches(samples, 2000)]
    assert_equal(found(linear, of_rows), naive, TOLERANCE[dtype])
    longest = max(len(s.token_ids) for s in timelines)
    parts = [g for samples in targets for g in split(samples, longest)]
    for groups in (targets, parts):
        assert_equal(found(groups, of_tree), naive, TOLERANCE[dtype])


def with_a_twin(samples):
    """A second member sampled the same tokens, at other temperatures, with opposite advantages."""
    twins = [
        replace(
            s,
            advantages=-0.3 * s.advantages,
            spans=tuple(replace(span, temperature=0.8) for span in s.spans),
            episode="twin",
        )
        for s in samples
    ]
    return [*samples, *twins]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_opposite_credit_on_equal_tokens_is_not_merged(dtype):
    model = tiny(dtype=dtype)
    enable_trees(model)
    ids = np.arange(20) % 7
    samples = [make_sample(ids, 9, 2.0), make_sample(ids, 9, -1.0), make_sample(ids[:12], 4, -0.5)]
    naive = loss_and_gradients(model, [[s] for s in samples], of_rows)
    assert_equal(loss_and_gradients(model, [samples], of_tree), naive, TOLERANCE[dtype])


@pytest.mark.whole
def test_splitting_bounds_the_tokens_and_keeps_the_gradients():
    model = tiny(dtype=torch.float64)
    enable_trees(model)
    trunk = np.arange(200) % 50
    rng = np.random.default_rng(0)
    samples = [
        make_sample(np.concatenate([trunk, rng.integers(0, 60, 20)]), 200, rng.normal()) for _ in range(24)
    ]
    naive = loss_and_gradients(model, [[s] for s in samples], of_rows)
    for limit in (300, 450, 5000):
        groups = split(samples, limit)
        assert len(groups) >= 680 // limit
        assert_equal(loss_and_gradients(model, groups, of_tree), naive, 1e-12)


def test_two_runs_are_bit_equal():
    model = tiny()
    enable_trees(model)
    samples = random_forest(0)
    one, other = (loss_and_gradients(model, [samples], of_tree) for _ in range(2))
    assert one[0] == other[0] and torch.equal(one[1], other[1])


@thinned
@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("tokens", [of_rows, of_tree])
def test_gradient_checkpointing_changes_memory_not_results(tokens, trained):
    model = tiny(attention_dropout=0.5)
    adapters = with_adapters(model, TRAINED[trained])
    enable_trees(model)
    targets = by_target(random_forest(0), TRAINED[trained])
    expected = loss_and_gradients(model, targets, tokens, adapters)
    enable_checkpointing(model)
    calls = []
    model.model.layers[0].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    assert_equal(loss_and_gradients(model, targets, tokens, adapters), expected, 1e-6)
    assert len(calls) == 2 * len(targets) and not any(m.training for m in model.modules())


def test_a_model_still_answers_as_before():
    plain, enabled = tiny(), tiny()
    enable_trees(enabled)
    ids = torch.arange(30).reshape(2, 15)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    assert torch.equal(plain(ids, attention_mask=mask).logits, enabled(ids, attention_mask=mask).logits)


# --------------------------------------------------------------------------- trees or rows


def counted_tokens(model, work):
    """How many tokens the model's embedding sees."""
    seen = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, ids, __: seen.append(ids[0].numel()))
    work()
    hook.remove()
    return sum(seen)


def test_shared_tokens_are_computed_once():
    model = tiny()
    engine = LocalEngine(model, None)
    trainer = LocalTrainer(model, None, engine)
    trunk = np.arange(500) % 60
    samples = [make_sample(np.concatenate([trunk[: 100 * n], [n] * 30]), 100 * n) for n in range(1, 6)]
    batch = Batch(samples, clipped, [range(5)], 1e-4)
    assert counted_tokens(model, lambda: trainer.update(batch)) == 500 + 5 * 29


def test_rows_are_kept_where_tiny_branches_would_cost_more_than_they_save():
    model = tiny(num_hidden_layers=2)
    enable_trees(model)
    rng = np.random.default_rng(0)
    bushy = [make_sample(rng.integers(0, 2, 8), 1) for _ in range(60)]
    assert [m.tree for m in plan(model, bushy, 10_000)] == [None]
    assert all(m.tree for m in plan(model, random_forest(0, rows=40, longest=400), 10_000))


def test_with_gradient_checkpointing_rows_are_known_to_repeat_what_they_share():
    model = tiny()
    enable_trees(model)
    head_of(model)
    group = [make_sample([*(np.arange(200) % 60), n], 200) for n in range(8)]
    assert [m.tree for m in plan(model, group, 10_000)] == [None], "rows have a cache for their prefix"
    enable_checkpointing(model)
    assert counted_tokens(model, lambda: score(model, group, 10_000)) == 200


# --------------------------------------------------------------------------- algorithms


FAMILIES = ("grpo", "gspo", "sft", "dpo", "ppo", "sdpo")
"""One of each kind of gradients: ratios of tokens, of calls, none, pairs, values, a teacher."""
TERMS = {
    "alone": {},
    "with every term": {"kl": 0.1, "entropy": 0.01, "correction": "truncated", "correction_cap": 1.2},
}


@pytest.mark.whole
@thinned
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize(
    "algorithm",
    fast([place for place, a in enumerate(ALGORITHMS) if a.name in FAMILIES], ALGORITHMS),
    ids=lambda a: a.name,
)
def test_every_algorithm_makes_the_same_update_by_trees_and_by_rows(algorithm, terms, monkeypatch):
    monkeypatch.setattr("ajet_trees.cost.BLOCK_FLOPS", -1e12)  # trees wherever the model has them
    start = tiny(dtype=torch.float64)
    reference = tiny(dtype=torch.float64, initializer_range=0.15).requires_grad_(False)
    batch = make_batch(start, algorithm(), TrainSettings(**TERMS[terms]))
    updates, metrics, tokens = [], [], []
    for trees in (True, False):
        model, other = copy.deepcopy(start), copy.deepcopy(reference)
        trainer = LocalTrainer(
            model,
            None,
            LocalEngine(model, None),
            reference=other,
            adam_epsilon=1e-4,
            micro_batch_tokens=80,
            critic="values" in batch.needs,
        )
        if not trees:
            model.set_attn_implementation("sdpa")
            other.set_attn_implementation("sdpa")
        tokens.append(counted_tokens(model, lambda: metrics.append(trainer.update(batch))))  # noqa: B023
        change = [p - q for p, q in zip(model.parameters(), start.parameters(), strict=True)]
        updates.append(torch.cat([c.detach().flatten() for c in change]))
    assert tokens[0] < 0.9 * tokens[1]
    assert metrics[0]["optimizer_steps"] == 4
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-6), "some are sums in float32"
    assert updates[1].norm() > 1e-3
    assert (updates[0] - updates[1]).norm() <= 1e-9 * updates[1].norm()


def make_batch(model, algorithm, settings):
    """Two epochs over two mini-batches of samples that share much, some with two calls, sampled nearby. Each mini-batch has
    two groups of three."""
    rng = np.random.default_rng(0)
    samples = [two_calls(s, int(s.mask.argmax()) + 3) for s in random_forest(1, rows=12, longest=30)]
    assert any(len(s.spans) > 1 for s in samples)
    rewards = rng.integers(0, 2, len(samples)).astype(np.float64)
    found = batch_advantages(algorithm, {group: rewards[group::4] for group in range(4)})
    advantages = np.stack([found[group] for group in range(4)]).T.flatten()
    weights = algorithm.weights(np.array([s.mask.sum() for s in samples], np.float64))
    for s, logprobs, advantage, weight in zip(
        samples, score(model, samples, 10_000), advantages, weights, strict=True
    ):
        s.logprobs[:] = logprobs + rng.normal(scale=0.2, size=len(logprobs))
        s.advantages[:] = s.mask * advantage
        s.weights[:] = s.mask * weight
    if "pairs" in algorithm.needs:
        samples = paired(samples, [i % 4 for i in range(len(samples))])
    loss = objective(algorithm, settings)
    estimate = partial(estimated, algorithm) if isinstance(algorithm, ActorCritic) else None
    halves = [range(0, len(samples), 2), range(1, len(samples), 2)]
    return Batch(
        samples,
        loss,
        halves * 2,
        1e-3,
        loss.needs,
        loss.zero_costs_nothing,
        loss.measures,
        estimate,
    )


# --------------------------------------------------------------------------- memory


WITHIN_A_LIMIT = """
import copy, resource, sys
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config
from ajet.learning.algorithms import SFT
from ajet_trees.packing import pack
from ajet.types import Batch, Sample, Span
from ajet_local.engine import LocalEngine
from ajet_local.trainer import LocalTrainer

torch.set_num_threads(1)
torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=500, hidden_size=128, intermediate_size=768, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=4, head_dim=32, max_position_embeddings=2048, initializer_range=0.05,
)
start = AutoModelForCausalLM.from_config(config).eval()
rng = np.random.default_rng(0)
trunk = rng.integers(0, 500, 256)


def sample(ids):
    on = (np.arange(len(ids)) >= len(trunk)).astype(np.float32)
    spans = (Span(len(trunk), len(ids), 0, "agent", "policy"),)
    return Sample(np.array(ids, np.int32), on > 0, on, on * rng.normal(), on / len(ids), spans)


samples = [sample([*trunk, n, *rng.integers(0, 500, 59)]) for n in range(64)]
assert len(pack(samples).token_ids) == 4096


def trained(megabytes, **settings):
    model = copy.deepcopy(start)
    trainer = LocalTrainer(model, None, LocalEngine(model, None), max_grad_norm=1e9, adam_epsilon=1.0, **settings)
    trainer.update(Batch(samples[:2], SFT().loss, [range(2)], 0.0))  # what is made once
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    most = used + megabytes * 2**20 if megabytes else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    try:
        trainer.update(Batch(samples, SFT().loss, [range(64)], 1.0))
    except RuntimeError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return torch.cat([p.detach().flatten() for p in model.parameters()])


torch.save(
    [
        trained(170, micro_batch_tokens=1024),
        trained(170, micro_batch_tokens=2048, gradient_checkpointing=True),
        trained(170, micro_batch_tokens=16384),
        trained(None, micro_batch_tokens=16384),
    ],
    sys.argv[1],
)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits address space and reads /proc")
def test_a_tree_of_64_branches_trains_within_a_memory_limit_by_splitting(tmp_path):
    command = [sys.executable, "-c", WITHIN_A_LIMIT, str(tmp_path / "weights.pt")]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, env=environment, check=True, timeout=PATIENCE)
    split_up, checkpointed, unsplit, unlimited = torch.load(tmp_path / "weights.pt")
    assert "memory" in unsplit
    for found in (split_up, checkpointed):
        assert (found - unlimited).norm() <= 1e-6 * unlimited.norm()


def test_models_with_sliding_windows_are_trained_as_rows_and_say_so(caplog):
    for model, reason in (
        (
            tiny(Qwen2Config, use_sliding_window=True, sliding_window=4, max_window_layers=1),
            "sliding_attention",
        ),
        (tiny(MistralConfig, sliding_window=4), "sliding_window"),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="ajet"):
            trainer = LocalTrainer(model, None, LocalEngine(model, None))
        said = [r.message for r in caplog.records if "rows" in r.message]
        assert len(said) == 1 and reason in said[0]
        samples = random_forest(0)
        metrics = trainer.update(Batch(samples, clipped, [range(len(samples))], 1e-4))
        assert metrics["optimizer_steps"] == 1


def test_models_with_attention_of_their_own_are_trained_as_rows():
    model = tiny(attn_implementation="eager")
    assert "eager" in enable_trees(model)


# --------------------------------------------------------------------------- the proof that a model computes trees


def ignoring_the_tree(module, query, key, value, mask, **options):
    options["tree"].uses += 1
    return attention.sdpa_attention_forward(
        module, query, key, value, None, is_causal=True, scaling=options["scaling"]
    )


def wrong_in_the_backward_pass(module, query, key, value, mask, **options):
    found = attention.tree_attention(module, query, key, value, mask, **options)[0]
    wrong = ignoring_the_tree(module, query, key, value, mask, **options)[0]
    options["tree"].uses -= 1
    return wrong + (found - wrong).detach(), None


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("out of resource: shared memory, Required: 180224")


def without_a_backward_pass(module, query, key, value, mask, **options):
    return FailsBackward.apply(attention.tree_attention(module, query, key, value, mask, **options)[0]), None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (ignoring_the_tree, "its logits over a tree differ"),
        (wrong_in_the_backward_pass, "its gradients over a tree differ"),
        (without_a_backward_pass, "out of resource"),
    ],
)
def test_attention_that_is_wrong_on_trees_is_noticed_in_every_type(wrong, reason, dtype, monkeypatch):
    model = tiny(dtype=dtype)
    assert enable_trees(model) == ""

    def attend(module, query, key, value, mask, **options):
        chosen = wrong if options.get("tree") is not None else attention.tree_attention
        return chosen(module, query, key, value, mask, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, attention.NAME, attend)
    assert reason in enable_trees(model)


def test_the_proof_leaves_no_gradients():
    model = tiny()
    assert enable_trees(model) == ""
    assert all(p.grad is None for p in model.parameters())
