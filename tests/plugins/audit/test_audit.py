"""`ajet audit` explains every sampled token of runs of all kinds."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ajet.cli import run_program
from ajet.learning import algorithms as a
from ajet.learning.filters import DiscardedAttempts, OverLong, UnusedBranches
from ajet.types import ConfigError, Task
from tests.plugins.audit.conftest import TOOL, Runs, ask, audited, everything, judged

ALGORITHMS = [
    a.GRPO(),
    a.DAPO(),
    a.DrGRPO(divisor=7),
    a.RLOO(),
    a.ReinforcePlusPlus(),
    a.ReinforcePlusPlus(group_baseline=False),
    a.GSPO(),
    a.CISPO(),
    a.RejectionSampling(),
    a.RejectionSampling(threshold=1.0),
    a.Distillation(),
    a.DPO(),
    a.PPO(),
]


async def once(task: Task) -> str:
    answer = await ask([{"role": "user", "content": task.query}])
    return answer.content or ""


def good(found: Any) -> dict[str, int]:
    """What was excluded, in tokens; the audit has nothing against the run, and its numbers add up."""
    assert found.faults == []
    excluded = {rule: count for rule, count in found.excluded.items() if count}
    assert found.sampled == found.trained + sum(excluded.values()) and found.calls
    return excluded


@pytest.mark.whole
def test_tool_loops_broken_histories_several_answers_and_agents_are_explained(runs: Runs) -> None:
    found = audited(runs.run(epochs=2, mini_batches=2))
    assert good(found) == {} and found.trained
    assert found.calls == 2 * 4 * 7 and found.notes == [] and found.unused == {}


def test_text_after_a_call_stays_where_it_was_sampled(runs: Runs) -> None:
    """The template writes it before the call, and the last answer of a chat otherwise than those before it."""

    async def looped(task: Task) -> str:
        messages: list[Any] = [{"role": "user", "content": task.query}]
        for _ in range(3):
            messages.append(await ask(messages, tools=[TOOL]))
            messages.append({"role": "tool", "tool_call_id": messages[-1].tool_calls[0].id, "content": "7"})
        return ""

    def talks(request: Any, prompt: str) -> str:
        return (
            f'<tool_call>\n{{"name": "add", "arguments": {{"a": {len(prompt) % 7}}}}}\n</tool_call>\nand more'
        )

    folder = runs.run(looped, answers=talks, steps=1)
    found = audited(folder)
    assert good(found) == {} and found.calls == 12
    journal = folder / "episodes.jsonl"
    journal.write_text(journal.read_text().replace('"content": "7"', '"content": "8"'))
    assert len(audited(folder).faults) == 8, "the prompts that continue an answer"


@pytest.mark.whole
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda x: x.name)
def test_advantages_and_weights_are_those_of_each_algorithm(runs: Runs, algorithm: Any) -> None:
    found = audited(runs.run(algorithm=algorithm, steps=1, mini_batches=2, rollout={"group_size": 4}))
    assert "no_credit" in good(found) or found.trained


def test_a_group_with_equal_rewards_has_no_credit(runs: Runs) -> None:
    found = audited(runs.run(once, lambda task, output: 0.5, steps=1))
    assert good(found) == {"no_credit": found.sampled} and not found.trained


@pytest.mark.kept
def test_two_targets_of_which_one_is_trained(runs: Runs) -> None:
    targets = {"solver": {"agents": ["solver"]}, "others": {"agents": ["*"]}}
    assert "frozen" not in good(audited(runs.run(name="both", steps=1, target_keys=targets)))
    assert good(audited(runs.run(name="one", steps=1, target_keys=targets, targets=["solver"])))["frozen"]


def test_failed_episodes_and_retried_attempts_are_named(runs: Runs) -> None:
    tries: Counter[str] = Counter()

    async def shaky(task: Task) -> str:
        tries[task.id] += 1
        answer = await once(task)
        if tries[task.id] in (1, 3, 4):
            raise RuntimeError("no luck")
        return answer

    found = audited(runs.run(shaky, rollout={"retries": 1, "group_size": 3, "concurrency": 1}, steps=1))
    excluded = good(found)
    assert excluded["failed"] and excluded["retried_attempts"]


@pytest.mark.whole
def test_groups_that_were_not_needed_or_replaced_are_named(runs: Runs) -> None:
    async def slow_ones(task: Task) -> str:
        return await once(task)

    def by_task(task: Task, output: Any, episode: Any) -> float:
        return 1.0 if int(task.id[1:]) % 2 else float(episode.member)

    found = audited(
        runs.run(slow_ones, by_task, dynamic_sampling=4.0, rollout={"oversample": 2.0}, batch_size=2)
    )
    assert set(good(found)) & {"equal_rewards", "oversampled"}


async def titled(task: Task) -> str:
    """A title without tools, and work with them."""
    await ask([{"role": "user", "content": f"a title for {task.query}"}])
    return str((await ask([{"role": "user", "content": task.query}], tools=[TOOL])).content)


@pytest.mark.whole
def test_side_calls_are_excluded_by_their_rule_and_marked_in_the_journal(runs: Runs) -> None:
    folder = runs.run(titled, rollout={"side_calls": "answer"})
    assert good(audited(folder))["side_calls"] > 0
    assert "side_calls" not in good(audited(runs.run(titled, name="trained")))
    journal = folder / "episodes.jsonl"
    journal.write_text(journal.read_text().replace('"side": true', '"side": false'))
    assert "was left out by side_calls, but is not marked as one in the journal" in str(
        audited(folder).faults
    )


@pytest.mark.whole
def test_filters_and_limits_are_named(runs: Runs) -> None:
    found = audited(runs.run(filters=[OverLong(max_tokens=60), DiscardedAttempts()], max_timelines=1))
    excluded = good(found)
    assert excluded["over_long"] and excluded["max_timelines"]


async def summed_up(task: Task) -> str:
    """Two summaries, and a fresh chat that quotes the second one."""
    chat: list[Any] = [{"role": "user", "content": task.query}]
    chat.append(await ask(chat))
    for words in ("sum it up", "sum it up once more"):
        summary = await ask([*chat, {"role": "user", "content": words}])
    quoted = {"role": "user", "content": f"So far: {summary.content}. And now?"}
    return str((await ask([chat[0], quoted])).content)


@pytest.mark.whole
def test_answers_that_no_later_call_used_are_named_and_trained_unless_a_filter_leaves_them_out(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs.run(summed_up, steps=1)
    found = audited(folder)
    assert good(found) == {} and list(found.unused.values()) == [[1]] * 4 and found.unused_tokens

    assert run_program(["audit", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "used by no later call: 4 answers" in said and "such as call 1 of " in said
    assert run_program(["audit", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unused_branches"]["calls"] == 4
    filtered = audited(runs.run(summed_up, steps=1, name="filtered", filters=[UnusedBranches()]))
    assert good(filtered)["unused_branches"] == found.unused_tokens and filtered.unused == {}


@pytest.mark.whole
def test_an_asynchronous_run_with_stale_episodes_is_explained(runs: Runs) -> None:
    good(audited(runs.run(asynchronous=True, max_staleness=1, steps=3)))


@pytest.mark.whole
def test_a_resumed_run_counts_the_steps_that_its_weights_contain(runs: Runs) -> None:
    folder = runs.run(once, judged, steps=3)
    runs.run(once, judged, steps=4, first_step=3)
    found = audited(folder)
    assert good(found)["done_again"] and len(found.folder.steps) == 4


def test_a_killed_run_is_checked_up_to_its_last_checkpoint(runs: Runs) -> None:
    folder = runs.run(once, judged, steps=3)
    shutil.rmtree(folder / "checkpoints" / "step_000003")
    found = audited(folder)
    assert good(found)["after_the_last_checkpoint"] and len(found.folder.steps) == 2


def test_the_command_prints_one_json_object_on_demand(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs.run(once, judged, steps=1)
    assert run_program(["audit", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "sha256" not in said and said.endswith("\nunexplained: nothing\n")
    assert run_program(["audit", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["calls"] == 4 and told["unexplained"] == 0
    assert told["sampled_tokens"] == told["trained_tokens"] + sum(told["excluded"].values())
    assert {"episodes.jsonl", "metrics.jsonl", "batches/step_000001.npz"} <= told["sha256"].keys()


def test_a_run_without_a_record_is_refused_by_name(runs: Runs) -> None:
    folder = runs.run(once, judged, steps=1)
    job = json.loads((folder / "settings.json").read_text())
    job["run"]["record_batches"] = False
    (folder / "settings.json").write_text(json.dumps(job))
    with pytest.raises(ConfigError, match=r"run\.record_batches"):
        audited(folder)


def test_a_record_without_token_ids_is_compared_by_places_and_the_audit_says_so(runs: Runs) -> None:
    found = audited(runs.run(everything, steps=1, backbone="verl"))
    good(found)
    assert any("no token ids" in note for note in found.notes)


def test_without_a_tokenizer_the_audit_says_what_it_did_not_check(runs: Runs, tmp_path: Path) -> None:
    folder = runs.run(everything, steps=1)
    (folder / "tokenizer").rename(tmp_path / "elsewhere")
    found = audited(folder)
    good(found)
    assert any("not compared with the chat template" in note for note in found.notes)
