"""Training on what top-k, top-p and min-p leave: sampled, recorded and trained probabilities are those over the kept tokens."""

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ajet.capture.answers import _joined  # noqa: E402
from ajet.tracker.record import check_generation, joined_kept  # noqa: E402
from ajet.types import Batch, GenerateRequest, Kept, Sample, Sampling, Span  # noqa: E402
from ajet_local.rows import trained_tokens  # noqa: E402
from ajet_local.sampling import RequestSampler, sample  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402
from ajet_local.trees import enable_trees, tree_tokens  # noqa: E402
from ajet_trees import head as heads  # noqa: E402
from ajet_trees.models import ComputedTree  # noqa: E402
from ajet_trees.packing import pack  # noqa: E402
from tests.tiers import thinned  # noqa: E402

WAYS = [{"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 5, "top_p": 0.7, "min_p": 0.1}]
LOGITS = torch.log(torch.tensor([0.02, 0.3, 0.05, 0.25, 0.01, 0.2, 0.07, 0.1]))
PROMPT = [300, 1, 2, 3]


def left(logits, sampling):
    """The kept tokens, worked out in float64 one token after the other."""
    probs = torch.softmax(logits.double() / sampling.temperature, -1)
    order = probs.argsort(descending=True, stable=True).tolist()
    order = order[: sampling.top_k or None]
    total, nucleus, passed = float(probs[order].sum()), [], 0.0
    for token in order:
        if nucleus and passed >= sampling.top_p * total:
            break
        nucleus.append(token)
        passed += float(probs[token])
    return sorted(t for t in nucleus if probs[t] >= sampling.min_p * probs.max())


def over(logits, kept, temperature=1.0):
    """float64[V]: the logprobs over the kept tokens."""
    logits = logits.double() / temperature
    found = torch.full_like(logits, -torch.inf)
    found[..., kept] = torch.log_softmax(logits[..., kept], -1)
    return found


@pytest.mark.whole
@thinned
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_draws_have_the_recorded_probabilities(way, temperature):
    """Pearson's chi-square of 2000 draws, at a level of 0.1 %."""
    sampling = Sampling(temperature=temperature, report_kept=True, seed=0, **way)
    drawn = sample(LOGITS.repeat(2000, 1), [RequestSampler(sampling)] * 2000)
    kept = left(LOGITS, sampling)
    assert all(d.kept.tolist() == kept for d in drawn)
    expected = over(LOGITS, kept, temperature).exp().numpy()[kept] * len(drawn)
    counts = np.bincount([d.token for d in drawn], minlength=len(LOGITS))
    assert counts.sum() == counts[kept].sum()
    critical = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 6: 22.46}[len(kept) - 1]
    assert ((counts[kept] - expected) ** 2 / expected).sum() < critical
    logprobs = {d.token: d.logprob for d in drawn}
    for token, logprob in logprobs.items():
        assert logprob == pytest.approx(float(over(LOGITS, kept, temperature)[token]), abs=1e-5)


def request(**sampling):
    asked = Sampling(report_kept=True, max_tokens=12, seed=5, **sampling)
    return GenerateRequest(np.array(PROMPT, np.int32), asked)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_answers_kept_tokens_are_those_of_one_pass_in_float64(running, model, way):
    async def scenario(engine):
        return await engine.generate(request(temperature=1.3, **way))

    got = running(scenario)
    check_generation(got, 10_000)
    exact = copy.deepcopy(model).double()
    ids = torch.tensor([[*PROMPT, *got.token_ids]])
    logits = exact(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].detach()
    each = np.split(got.kept.token_ids, np.cumsum(got.kept.counts)[:-1])
    for token, logprob, kept, row in zip(got.token_ids, got.logprobs, each, logits, strict=True):
        assert kept.tolist() == left(row, Sampling(temperature=1.3, **way))
        assert logprob == pytest.approx(float(over(row, kept, 1.3)[token]), abs=1e-5)


def test_a_stream_says_the_same_kept_tokens_as_the_whole_answer(running):
    async def scenario(engine):
        whole = await engine.generate(request(top_p=0.8))
        return whole, [delta async for delta in engine.stream(request(top_p=0.8))]

    whole, deltas = running(scenario)
    joined = _joined(deltas)
    for name in ("counts", "token_ids"):
        np.testing.assert_array_equal(getattr(joined.kept, name), getattr(whole.kept, name))


def test_answers_that_are_not_asked_for_kept_tokens_have_logprobs_before_truncation(running):
    async def scenario(engine):
        asked = request(top_k=1)
        got = await engine.generate(replace(asked, sampling=replace(asked.sampling, report_kept=False)))
        return got, await engine.score(np.array([*PROMPT, *got.token_ids], np.int32))

    got, scored = running(scenario)
    assert got.kept is None
    np.testing.assert_allclose(got.logprobs, scored[len(PROMPT) :], atol=1e-4)


@pytest.mark.parametrize(
    ("counts", "token_ids", "said"),
    [
        ([1, 1], [7, 7], "not among those that were kept"),
        ([2], [7, 8], "kept tokens of 1 tokens"),
        ([1, 2], [7, 8], "kept tokens of 2 tokens, 2 in all"),
        ([1, 1], [7, 99], "outside the vocabulary"),
    ],
)
def test_kept_tokens_that_cannot_be_are_refused(counts, token_ids, said):
    from ajet.types import Generation

    got = Generation(*(np.array(x) for x in ([7, 8], [-1.0, -1.0], [0, 0])), "stop")
    kept = Kept(np.array(counts, np.int32), np.array(token_ids, np.int32))
    with pytest.raises(ValueError, match=said):
        check_generation(replace(got, kept=kept), 50)


# --------------------------------------------------------------------------- training


def made(seed, trunk=(300, 1, 2, 3), temperature=0.7):
    """A sample of two calls with a context between them, the second of which was drawn from all tokens."""
    draw = np.random.default_rng(seed)
    ids = np.array([*trunk, *draw.integers(4, 60, 9)], np.int32)
    spans = (Span(4, 8, 0, "a", "p", temperature), Span(10, 13, 1, "a", "p", temperature))
    mask = np.zeros(len(ids), np.bool_)
    mask[4:8] = mask[10:13] = True
    among = [
        np.unique([t, *draw.integers(4, 60, n)]).astype(np.int32)
        for t, n in zip(ids[4:8], (0, 3, 9, 30), strict=True)
    ]
    counts = np.array([*map(len, among), 0, 0, 0], np.int32)
    numbers = np.where(mask, draw.normal(size=len(ids)), np.nan).astype(np.float32)
    return Sample(
        ids,
        mask,
        numbers,
        np.nan_to_num(numbers),
        mask / np.float32(7),
        spans,
        kept=Kept(counts, np.concatenate(among)),
    )


def naive(model, samples, terms):
    """Logprobs and entropies in plain torch, one token at a time."""
    found, entropies = [], []
    for one in samples:
        logits = model(input_ids=torch.as_tensor(one.token_ids, dtype=torch.long)[None]).logits[0]
        each = iter(np.split(one.kept.token_ids, np.cumsum(one.kept.counts)[:-1]))
        for place in np.flatnonzero(one.mask):
            row, among = logits[place - 1] / np.float32(0.7), next(each)
            chosen = list(among) if len(among) else list(range(len(row)))
            logprobs = torch.log_softmax(row[chosen], -1)
            found.append(logprobs[chosen.index(one.token_ids[place])])
            entropies.append(-(logprobs.exp() * logprobs).sum())
    new, entropy = torch.stack(found), torch.stack(entropies)
    return new, entropy, (new * terms).sum() + (entropy * terms.flip(0)).sum()


@pytest.mark.parametrize("kernels", [None, lambda kernel: kernel])
@pytest.mark.parametrize("tokens_at_once", [100, 3])
@pytest.mark.parametrize("form", ["rows", "tree"])
def test_values_and_gradients_over_the_kept_tokens_are_those_of_plain_float64(
    model, form, tokens_at_once, kernels, monkeypatch
):
    model = model.double()
    vocabulary = model.config.vocab_size
    for name in ("LOGITS", "FUSED_LOGITS"):
        monkeypatch.setattr(heads, name, tokens_at_once * vocabulary * 8)
    heads.fuse_head(model, kernels)
    samples = [made(0), made(1)]
    terms = torch.linspace(-1, 2, 14, dtype=torch.float64)
    new, entropy, loss = naive(model, samples, terms)
    loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    if form == "tree":
        assert not enable_trees(model)
        tokens = tree_tokens(model, ComputedTree(pack(samples)), {"entropy"})
    else:
        tokens = trained_tokens(model, samples, {"entropy"})
    torch.testing.assert_close(tokens.new, new, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(tokens.entropy, entropy, rtol=1e-10, atol=1e-10)
    ((tokens.new * terms).sum() + (tokens.entropy * terms.flip(0)).sum()).backward()
    for name, parameter in model.named_parameters():
        off = (parameter.grad - expected[name]).abs().max() / expected[name].abs().max()
        assert off < 1e-6, (name, off)  # the norms of Qwen3 compute in float32


def test_ratios_of_tokens_that_the_engine_has_drawn_are_1_before_an_update_and_exact_after_it(
    model, tokenizer, engine, running
):
    async def scenario(engine):
        return await engine.generate(request(temperature=0.7, top_p=0.9))

    got = running(scenario)
    ids = np.array([*PROMPT, *got.token_ids], np.int32)
    mask = np.arange(len(ids)) >= len(PROMPT)
    on = mask.astype(np.float32)
    old = np.full(len(ids), np.nan, np.float32)
    old[mask] = got.logprobs
    spans = (Span(len(PROMPT), len(ids), 0, "a", "p", 0.7),)
    one = Sample(ids, mask, old, on, on / np.float32(len(got.token_ids)), spans, kept=joined_kept([got]))
    trainer = LocalTrainer(model, tokenizer, engine)
    ratios = []

    def loss(xp, tokens):
        ratio = xp.exp(tokens.new - tokens.old)
        ratios.append(ratio.detach())
        return -ratio * tokens.advantages

    metrics = trainer.update(Batch([one], loss, [[0], [0]], 1e-2))
    assert metrics["logprob_diff_max"] < 1e-5
    torch.testing.assert_close(ratios[0], torch.ones_like(ratios[0]), rtol=0, atol=1e-5)
    assert (ratios[1] - 1).abs().max() > 1e-3
    new = naive(model, [one], torch.zeros(len(got.token_ids)))[0]
    assert (new - torch.as_tensor(got.logprobs)).mean() > 0  # the answer has become likelier


@pytest.mark.whole
def test_the_reference_is_asked_for_the_same_tokens(model, tokenizer, engine):
    trainer = LocalTrainer(model, tokenizer, engine, reference=copy.deepcopy(model))
    seen = []

    def loss(xp, tokens):
        seen.append((tokens.new.detach(), tokens.reference))
        return -tokens.new * tokens.advantages

    trainer.update(Batch([made(0)], loss, [[0]], 0.0, frozenset({"reference"})))
    torch.testing.assert_close(*seen[0])
