"""The audit finds nothing in runs that are odd, but honest."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ajet
from ajet.cli import run_program
from ajet.learning import algorithms as a
from ajet.learning.filters import DiscardedAttempts, OverLong, Repetition, UnusedBranches
from ajet.learning.rollouts import plan_validation
from ajet.rollout.recorder import RunRecorder
from ajet.types import Task
from tests.plugins.audit.conftest import CLIENT, TASKS, TOOL, Runs, ask, audited, everything, judged
from tests.plugins.audit.test_audit import good, once, summed_up, titled
from tests.plugins.audit.test_believes_nothing import FAILING, TWO, equal_for_some, resumed, shaky
from tests.plugins.audit.test_call_credit import by_call
from tests.plugins.audit.test_forks import FORKED, by_member, steady, talk, varied
from tests.tiers import fast

ALL = [OverLong(max_tokens=150), Repetition(min_tokens=2), DiscardedAttempts(), UnusedBranches()]


def wild(seed: int) -> Any:
    """An agent that retries, cuts and edits its history, samples several answers, and talks to others."""

    async def run(task: Task) -> str:
        draw = random.Random(f"{seed}{task.id}")
        chats: list[list[Any]] = [[{"role": "user", "content": task.query}]]
        for _ in range(9):
            chat = draw.choice(chats)
            with ajet.label(agent=draw.choice(["solver", "critic"]) if draw.random() < 0.2 else "solver"):
                match draw.randrange(8):
                    case 0:  # another try
                        await ask(chat)
                    case 1:  # several answers
                        made = await CLIENT.chat.completions.create(model="m", messages=chat, n=2)
                        chat.append(draw.choice(made.choices).message)
                    case 2:  # a failed attempt is taken back
                        tried = [*chat, await ask(chat), {"role": "user", "content": "that failed"}]
                        await ask(tried)
                    case 3 if len(chat) > 2:  # the history is cut, or edited
                        del chat[draw.randrange(1, len(chat)) :]
                        chat.append({"role": "user", "content": f"again {draw.randrange(9)}"})
                    case 4:  # a summary, of which one is used
                        said = [await ask([*chat, {"role": "user", "content": "sum up"}]) for _ in range(2)]
                        text = draw.choice(said).content
                        chats.append([chat[0], {"role": "user", "content": f"So far: {text}. Go on."}])
                    case 5:  # a prefill
                        same_turn = {"continue_final_message": draw.random() < 0.5}
                        answer = await ask(
                            [*chat, {"role": "assistant", "content": "So it"}], extra_body=same_turn
                        )
                        chat.append({"role": "assistant", "content": f"So it{answer.content}"})
                    case 6:
                        chats.append([*chat])
                    case _:
                        chat.append(await ask(chat))
                if chat[-1] is not chats[0][0]:
                    chat.append({"role": "user", "content": f"and {draw.randrange(99)}"})
        return "done"

    return run


def babbles(request: Any, prompt: str) -> str:
    """Answers that differ, some of which are equal, and some repetitive."""
    number = request.sampling.seed % 7
    return "ab ab ab ab ab ab ab ab" if number == 3 else f"the answer is maybe {number}"


async def in_parallel(task: Task) -> str:
    both = [{"role": "user", "content": f"{name} {task.query}"} for name in ("left", "right")]
    said = await asyncio.gather(*(ask([message]) for message in both))
    chat = [both[0], said[0], both[1], said[1], {"role": "user", "content": "both"}]
    return str((await ask(chat, tools=[TOOL])).content)


async def nothing_said(task: Task) -> str:
    await ask([{"role": "user", "content": task.query}], max_tokens=1)
    return await once(task)


def with_a_random_tool() -> Any:
    drawn = itertools.count()

    async def run(task: Task) -> str:
        return await talk(task, lambda: "go on" if next(drawn) % 5 else f"drawn {next(drawn)}")

    return run


def in_two_parts(runs: Runs, **settings: Any) -> Path:
    """Resumed with another learning rate, and with more steps than it had."""
    runs.run(once, judged, steps=2, learning_rate=1e-3, schedule="linear")
    return runs.run(once, judged, steps=4, first_step=3, schedule="cosine")


WILD = 12
RUNS: dict[str, Callable[[Runs], Path]] = {
    **{
        f"filters of a wild agent, {seed}": partial(
            lambda runs, seed: runs.run(
                wild(seed),
                judged,
                babbles,
                steps=1,
                filters=ALL[seed % 4 :],
                max_timelines=seed % 3 + 2 if seed % 2 else None,
            ),
            seed=seed,
        )
        for seed in range(WILD)
    },
    "forks of which filters drop calls": lambda r: r.run(
        steady, by_member, varied, rollout=FORKED, filters=[OverLong(max_tokens=200)], credit="tree"
    ),
    "forks and few timelines": lambda r: r.run(steady, by_member, varied, rollout=FORKED, max_timelines=1),
    "forks of which some diverge": lambda r: r.run(with_a_random_tool(), by_member, varied, rollout=FORKED),
    "forks of parallel calls": lambda r: r.run(in_parallel, by_call, varied, rollout=FORKED, credit="tree"),
    "forks, oversampled": lambda r: r.run(
        steady, by_member, varied, rollout={**FORKED, "oversample": 2.0}, steps=1
    ),
    "forks in an asynchronous run with filters": lambda r: r.run(
        steady, by_member, varied, rollout=FORKED, asynchronous=True, steps=3, filters=[UnusedBranches()]
    ),
    "forks with mini-batches and epochs": lambda r: r.run(
        steady, by_call, varied, rollout=FORKED, mini_batches=2, epochs=2, call_discount=0.7
    ),
    "failures": lambda r: r.run(shaky(), **FAILING),
    "failures in an asynchronous run": lambda r: r.run(shaky(), asynchronous=True, **FAILING),
    "failures and mini-batches": lambda r: r.run(shaky(), mini_batches=2, **FAILING),
    "replaced groups": lambda r: r.run(once, equal_for_some, dynamic_sampling=3.0, steps=3),
    "replaced groups with failures": lambda r: r.run(
        shaky(), equal_for_some, dynamic_sampling=3.0, **FAILING
    ),
    "replaced groups, none of which differs": lambda r: r.run(
        once, lambda task, output: 1.0, dynamic_sampling=2.0, steps=1
    ),
    "groups that were not needed": lambda r: r.run(rollout={"oversample": 2.0, "group_size": 3}, steps=3),
    "groups that were not needed, resumed": lambda r: resumed(
        r, rollout={"oversample": 2.0, "group_size": 2}
    ),
    "replaced groups, resumed": lambda r: resumed(r, dynamic_sampling=3.0),
    "resumed with filters": lambda r: resumed(r, filters=[UnusedBranches()], max_timelines=1),
    "resumed with mini-batches": lambda r: resumed(r, mini_batches=2, epochs=2),
    "resumed with other settings": in_two_parts,
    "stale episodes": lambda r: r.run(asynchronous=True, max_staleness=1, steps=4),
    "no staleness allowed": lambda r: r.run(once, max_staleness=0, steps=2),
    "two adapters": lambda r: r.run(target_keys=TWO),
    "two adapters and pairs": lambda r: r.run(target_keys=TWO, algorithm=a.DPO(), mini_batches=2),
    "two adapters, one trained": lambda r: r.run(target_keys=TWO, targets=["critic"]),
    "two adapters, filters, epochs": lambda r: r.run(target_keys=TWO, filters=ALL[:2], epochs=3),
    "an adapter beside all weights": lambda r: r.run(
        target_keys={"solver": {"agents": ["solver"], "lora": {"rank": 2}}, "rest": {"agents": ["*"]}}
    ),
    "side calls and filters": lambda r: r.run(titled, rollout={"side_calls": "answer"}, filters=ALL[1:]),
    "parallel calls": lambda r: r.run(in_parallel, by_call, varied),
    "short answers": lambda r: r.run(nothing_said, judged),
    "unused answers and pairs": lambda r: r.run(summed_up, filters=[UnusedBranches()], algorithm=a.DPO()),
    "groups of one": lambda r: r.run(everything, algorithm=a.ReinforcePlusPlus(), rollout={"group_size": 1}),
    "one group": lambda r: r.run(everything, batch_size=1, mini_batches=4),
    "more groups than mini-batches": lambda r: r.run(once, batch_size=5, mini_batches=3),
    "a warm-up and a cosine": lambda r: r.run(once, steps=5, warmup_steps=2, schedule="cosine"),
    "a linear rate to nothing": lambda r: r.run(once, steps=4, schedule="linear", final_share=0.0),
    "few checkpoints": lambda r: r.run(once, steps=5, save_every=2, keep_last=1),
    "rejection and filters": lambda r: r.run(algorithm=a.RejectionSampling(), filters=ALL, epochs=2),
    "a critic and limits": lambda r: r.run(algorithm=a.PPO(), max_timelines=2, mini_batches=2),
    "every call left out of some episodes": lambda r: r.run(
        filters=[OverLong(max_tokens=80)],
        steps=1,
        answers=lambda request, prompt: babbles(request, prompt) * 3,
    ),
}


# Of the wild agents, those that differ in the filters.
@pytest.mark.parametrize("name", fast([*range(4), *range(WILD, len(RUNS))], list(RUNS)))
def test_nothing_is_unexplained_in_an_honest_run(runs: Runs, name: str, tmp_path: Path) -> None:
    folder = RUNS[name](runs)
    (folder / "tokenizer").rename(tmp_path / "elsewhere")  # test_audit.py compares the prompts
    good(audited(folder))


def test_a_validation_is_cut_off_only_where_the_run_has_ended(runs: Runs) -> None:
    folder = runs.run(once)
    plans = plan_validation(TASKS[:3], 2, "validation", limit=None, repeats=1, seed=0)
    with closing(RunRecorder(folder)) as recorder:
        record = partial(recorder.episode, phase="validation", step=2)
        asyncio.run(runs.bench.rollout(once, judged).run(plans[:1], record))
    (folder / "ended.json").write_text('{"name": "interrupted", "why": ""}')
    found = audited(folder)
    assert found.faults == [] and found.excluded["validation"] > 0
    assert found.notes == ["validation at step 2, which did not come to its end"]
    (folder / "ended.json").write_text('{"name": "finished", "why": ""}')
    assert audited(folder).faults == ["validation at step 2: metrics.jsonl has no line of it"]
    (folder / "ended.json").unlink()
    journal = folder / "episodes.jsonl"
    *lines, last = map(json.loads, journal.read_text().splitlines())
    last |= {"id": "validation@1/t0", "step": 1}
    journal.write_text("".join(json.dumps(line) + "\n" for line in (*lines, last)))
    assert audited(folder).faults == ["validation at step 1: metrics.jsonl has no line of it"]


def test_answers_that_no_client_got_are_counted_where_they_are_lost(runs: Runs) -> None:
    """The first of two choices is there when the request is given up."""
    generate, sampled = runs.engine.generate, set()

    async def hangs(request: Any) -> Any:
        if request.key[1] == 1:
            await asyncio.sleep(600)
        found = await generate(request)
        sampled.add(request.key[0])
        return found

    async def gives_up(task: Task) -> str:
        asked = [{"role": "user", "content": task.query}]
        two = asyncio.ensure_future(CLIENT.chat.completions.create(model="m", messages=asked, n=2))
        before = len(sampled)
        while len(sampled) < before + 2:  # both episodes of the group
            await asyncio.sleep(0.01)
        two.cancel()
        with suppress(asyncio.CancelledError):
            await two
        return await once(task)

    runs.engine.generate = hangs  # type: ignore[method-assign]
    found = audited(runs.run(gives_up, judged, steps=1, batch_size=1))
    assert good(found)["not_received"] > 0


def test_what_verl_does_not_record_is_in_the_first_line(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs.run(everything, steps=1, backbone="verl")
    assert run_program(["audit", str(folder)]) == 0
    assert "no token ids and logprobs" in capsys.readouterr().out.splitlines()[0]


def test_in_separate_async_the_first_line_says_that_what_was_trained_is_unknown(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs.run(everything, steps=1, backbone="verl", mode="separate_async")
    for record in (folder / "batches").iterdir():
        record.unlink()
    assert run_program(["audit", str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("not checked: what was trained") and "separate_async" in said[0]
    assert run_program(["audit", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["excluded"]["not_recorded"] and told["trained_tokens"] == 0
