"""The run folder: episodes as lines with their tokens, superseded work, atomic checkpoints."""

from __future__ import annotations

import base64
import dataclasses
import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import ajet
from ajet.capture.targets import Target
from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.failures import Failure
from ajet.rollout.journal import episode_from_json, episode_to_json
from ajet.rollout.recorder import JOURNAL, METRICS, RunRecorder, live_lines
from ajet.testing import ScriptedEngine
from ajet.tracker.record import EpisodeRecord
from ajet.tracker.timelines import timelines
from ajet.types import AjetError, Task, WorkflowOutput

CLIENT = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


async def conversation(task: Any) -> str:
    """A tool conversation, then an unrelated question twice over by another agent."""
    create = CLIENT.chat.completions.create
    messages: list[Any] = [{"role": "user", "content": f"{task.query} – ü"}]
    for turn in range(2):
        answer = (await create(model="m", messages=messages, tools=[TOOL])).choices[0].message
        assert answer.tool_calls
        result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": f"{turn}"}
        messages += [answer, result]
    with ajet.label(agent="critic"):
        await create(
            model="m", messages=[{"role": "user", "content": "good?"}], n=2, max_tokens=2, temperature=0
        )
    last = await create(model="m", messages=messages, tools=[TOOL])
    return last.choices[0].message.content or ""


def answers(request: Any, prompt: str) -> str:
    return CALL if prompt.count("<tool_response>") < 2 and "good?" not in prompt else "it is 42"


def through_text(episode: Episode) -> Episode:
    """An episode written to a line of JSON text and read again."""
    text = json.dumps(episode_to_json(episode, phase="train", step=3), ensure_ascii=False)
    return episode_from_json(json.loads(text), episode.plan)


@pytest.fixture
def lived(bench: Any, tokenizer: Any) -> Episode:
    def judge(task: Any, output: Any) -> Any:
        return ajet.JudgeOutput(1 / 3, True, {"steps": 4.0})

    (episode,) = bench(ScriptedEngine(tokenizer, answers)).run(conversation, judge)
    assert episode.failure is None and len(episode.record.calls) == 5
    return episode


# ------------------------------------------------------------------ a line and back


def test_timelines_are_bit_equal_after_a_journey_through_json_text(lived: Episode) -> None:
    before, after = timelines(lived.record.trained_calls), timelines(through_text(lived).record.trained_calls)
    assert len(before) == len(after) == 3
    for one, two in zip(before, after, strict=True):
        for name in ("token_ids", "mask", "logprobs", "versions"):
            a, b = getattr(one, name), getattr(two, name)
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), name
        assert one.spans == two.spans


def test_verdict_counters_and_chats_are_equal_too(lived: Episode) -> None:
    again = through_text(lived)
    assert lived.counters["overridden:temperature"] == 2, "once for each of the two choices"
    for name in ("plan", "attempt", "failure", "error", "reward", "is_success", "metrics", "counters"):
        assert getattr(again, name) == getattr(lived, name), name
    assert again.output.response == lived.output.response == "it is 42"
    assert [list(chat) for chat in again.view().messages] == [list(chat) for chat in lived.view().messages]
    assert episode_to_json(again, phase="train", step=3) == episode_to_json(lived, phase="train", step=3)


def test_a_line_holds_each_token_and_each_message_once_however_long_the_conversation(lived: Episode) -> None:
    line = episode_to_json(lived, phase="train", step=1)
    held = sum(len(base64.b64decode(data)) // 4 for tree in line["trees"].values() for _, _, data in tree)
    whole = sum(call.end.length for call in lived.record.calls)
    assert held == sum(tree.unique_tokens() for tree in lived.record.trees.values()) < whole * 0.7
    messages = [json.dumps(row) for rows in line["chats"].values() for row in rows]
    assert len(messages) == len(set(messages)) < sum(len(chat) for chat in lived.view().messages)


def test_calls_without_tokens_survive_as_messages(bench: Any, tokenizer: Any) -> None:
    class Frozen:
        async def complete(self, messages: Any, tools: Any, sampling: Any) -> Any:
            return {"role": "assistant", "content": "frozen"}

    targets = (Target("critic", ("critic",), Frozen(), trained=False), Target("policy"))
    sdk = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    with bench(ScriptedEngine(tokenizer, lambda r, p: "own")).session(targets=targets) as session:
        for agent in ("solver", "critic"):
            with ajet.label(agent=agent):
                sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    plan = Plan("1.0/t/0", "s", Task("t"), 0, 0)
    again = through_text(Episode(plan, 0, WorkflowOutput(), session.record))
    assert [(e.target, e.chat()[-1]["content"]) for e in again.record.exchanges] == [
        ("policy", "own"),
        ("critic", "frozen"),
    ]
    assert [call.agent for call in again.record.calls] == ["solver"]


def test_calls_without_messages_survive_as_tokens(bench: Any, tokenizer: Any) -> None:
    async def workflow() -> None:
        await CLIENT.completions.create(model="m", prompt="Once upon", max_tokens=3)
        await CLIENT.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])

    (episode,) = bench(ScriptedEngine(tokenizer, lambda r, p: " a time there was")).run(workflow)
    copy = through_text(episode)
    assert episode.failure is None and copy.record.answered == 2 and len(copy.record.exchanges) == 1
    assert copy.record.calls[0].chat_end is None
    pairs = [timelines(e.record.trained_calls) for e in (episode, copy)]
    assert [one.token_ids.tolist() for one in pairs[0]] == [two.token_ids.tolist() for two in pairs[1]]


@pytest.mark.parametrize(
    ("response", "kept"),
    [({"a": [1, None]}, {"a": [1, None]}), (None, None), (np.float32(0.5), "0.5"), ({1}, "{1}")],
)
def test_a_response_is_kept_as_json_or_as_text(response: Any, kept: Any) -> None:
    episode = blank("e")
    episode.output = WorkflowOutput(response=response)
    assert through_text(episode).output.response == kept


# ------------------------------------------------------------------ the recorder


def blank(name: str, **values: Any) -> Episode:
    """An episode without calls."""
    plan = Plan(name, name, Task("t"), 0, 0)
    return dataclasses.replace(Episode(plan, 0, WorkflowOutput(), EpisodeRecord()), **values)


def record(run_dir: Path, *named: tuple[str, int], metrics: tuple[int, ...] = ()) -> RunRecorder:
    recorder = RunRecorder(run_dir)
    for name, step in named:
        recorder.episode(blank(name), phase="train", step=step)
    for step in metrics:
        recorder.metrics("train", step, {"reward": float(step)})
    return recorder


def ids(run_dir: Path) -> list[str]:
    return [line["id"] for line in live_lines(run_dir / JOURNAL)]


def test_an_id_appended_twice_is_there_once_also_after_reopening(tmp_path: Path) -> None:
    record(tmp_path, ("a", 1), ("b", 1), ("a", 1)).close()
    record(tmp_path, ("b", 1), ("c", 1)).close()
    assert ids(tmp_path) == ["a", "b", "c"]
    assert (tmp_path / JOURNAL).read_text().count("\n") == 3


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_last_line_cut_by_a_kill_is_dropped_and_appending_goes_on(tmp_path: Path, cut: int) -> None:
    record(tmp_path, ("a", 1), ("b", 1), metrics=(1, 2)).close()
    for name in (JOURNAL, METRICS):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-cut])
    assert ids(tmp_path) == ["a"]
    record(tmp_path, ("b", 1), ("c", 2), metrics=(2, 3)).close()
    assert ids(tmp_path) == ["a", "b", "c"]
    assert [line["step"] for line in live_lines(tmp_path / METRICS)] == [1, 2, 3]


@pytest.mark.parametrize("name", [JOURNAL, METRICS])
@pytest.mark.parametrize("torn", ['{"type": "train", "st\n', "5\n", "{}\n"])
def test_a_torn_line_in_the_middle_is_named_by_file_and_line_when_a_run_starts(
    tmp_path: Path, name: str, torn: str
) -> None:
    record(tmp_path, ("a", 1), ("b", 1), metrics=(1, 2)).close()
    first, second = (tmp_path / name).read_text().splitlines(keepends=True)
    (tmp_path / name).write_text(first + torn + second)
    with pytest.raises(AjetError, match=rf"{name}:2: (is not|has no) .*delete it\.$"):
        RunRecorder(tmp_path)


def test_superseded_lines_are_not_live_but_kept_in_the_file(tmp_path: Path) -> None:
    recorder = record(tmp_path, ("a", 1), ("b", 2), ("c", 2), ("d", 3), metrics=(1, 2, 3))
    recorder.supersede(2, {"c": None})
    recorder.close()
    assert ids(tmp_path) == ["a", "c"]
    assert [line["step"] for line in live_lines(tmp_path / METRICS)] == [1]
    assert all(f'"id": "{name}"' in (tmp_path / JOURNAL).read_text() for name in "abcd")


def test_what_a_step_did_not_use_is_of_this_step_alone(tmp_path: Path) -> None:
    recorder = record(tmp_path, ("1.0/a", 1), ("1.1/b", 1), ("2.0/a", 2))
    recorder.unused(1, ["1.0/a"])
    recorder.close()
    assert ids(tmp_path) == ["1.0/a", "2.0/a"], (
        "episodes of later steps may be there, taken over from a parent"
    )


def test_a_validation_that_is_repeated_takes_the_place_of_the_one_that_failed(tmp_path: Path) -> None:
    recorder = record(tmp_path, ("2.0/a/0", 2))
    for name in ("validation@1/a", "validation@2/a", "greedy@2/a"):
        recorder.episode(blank(name), phase=name.partition("@")[0], step=int(name.partition("@")[2][0]))
    recorder.close()
    recorder = RunRecorder(tmp_path)
    recorder.repeat_validation(2)
    recorder.episode(blank("validation@2/a", reward=1.0), phase="validation", step=2)
    recorder.close()
    rewards = {line["id"]: line["reward"] for line in live_lines(tmp_path / JOURNAL)}
    assert rewards == {"2.0/a/0": 0.0, "validation@1/a": 0.0, "validation@2/a": 1.0}


def test_a_long_journal_is_opened_without_holding_it_in_memory(tmp_path: Path) -> None:
    chat = ["x" * 500_000] * 2
    lines = ({"type": "episode", "step": n, "id": f"{n}.0/t/0", "chat": chat} for n in range(40))
    (tmp_path / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    tracemalloc.start()
    try:
        RunRecorder(tmp_path).close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000 < (tmp_path / JOURNAL).stat().st_size


def test_a_superseded_episode_can_be_run_and_recorded_again_but_a_kept_one_is_there_already(
    tmp_path: Path,
) -> None:
    recorder = record(tmp_path, ("a", 1), ("b", 2), ("c", 2))
    recorder.supersede(2, {"c": None})
    for name in "abc":
        recorder.episode(blank(name, reward=9.0), phase="train", step=2)
    recorder.close()
    rewards = {line["id"]: line["reward"] for line in live_lines(tmp_path / JOURNAL)}
    assert rewards == {"a": 0.0, "b": 9.0, "c": 0.0}
    recorder = RunRecorder(tmp_path)
    recorder.supersede(2, {})
    assert ids(tmp_path) == ["a"], "what an earlier mark kept, a later one can supersede"


def test_text_that_is_no_unicode_does_not_lose_the_journal(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path)
    recorder.episode(
        blank("a", failed=Failure.parse("timeout", "half a pair: \ud83d")), phase="train", step=1
    )
    recorder.episode(blank("b"), phase="train", step=1)
    recorder.close()
    assert [line["error"] for line in live_lines(tmp_path / JOURNAL)] == ["half a pair: \ud83d", ""]


def test_numbers_of_numpy_in_a_verdict_are_numbers_in_the_journal(
    bench: Any, tokenizer: Any, tmp_path: Path
) -> None:
    async def asks(task: Any) -> str:
        answer = await CLIENT.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
        return answer.choices[0].message.content or ""

    def judge(task: Any, output: Any) -> Any:
        correct: Any = np.float32(1.0) > 0
        return ajet.JudgeOutput(np.float32(0.5), correct, {"length": np.int64(3)})  # type: ignore[arg-type]

    (episode,) = bench(ScriptedEngine(tokenizer, lambda r, p: "x")).run(asks, judge)
    recorder = RunRecorder(tmp_path)
    recorder.episode(episode, phase="train", step=1)
    recorder.close()
    (line,) = live_lines(tmp_path / JOURNAL)
    assert (line["reward"], line["is_success"], line["metrics"]) == (0.5, True, {"length": 3})


# ------------------------------------------------------------------ checkpoints


def saves(text: str) -> Any:
    def save(path: Path) -> None:
        path.mkdir()
        (path / "weights").write_text(text)

    return save


def test_a_checkpoint_is_complete_under_its_name_with_its_step(tmp_path: Path) -> None:
    path = RunRecorder(tmp_path).checkpoint(7, saves("w"), {"version": 7}, keep_last=2)
    assert path == checkpoints(tmp_path)[-1] and (path / "weights").read_text() == "w"
    assert json.loads((path / "ajet.json").read_text()) == {"step": 7, "version": 7}


def test_a_save_that_fails_leaves_no_checkpoint_and_the_older_ones_as_they_were(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path)
    recorder.checkpoint(1, saves("one"), {}, keep_last=1)

    def fails(path: Path) -> None:
        saves("half")(path)
        raise OSError("disk full")

    with pytest.raises(AjetError, match=r"step_000002: cannot be written: disk full\."):
        recorder.checkpoint(2, fails, {}, keep_last=1)
    assert [c.name for c in checkpoints(tmp_path)] == ["step_000001"]
    assert (checkpoints(tmp_path)[0] / "weights").read_text() == "one"
    assert (recorder.checkpoint(2, saves("two"), {}, keep_last=1) / "weights").read_text() == "two"
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_000002"], (
        "nothing partial is left"
    )


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path)
    for step in (5, 10, 100, 1000):
        recorder.checkpoint(step, saves(str(step)), {}, keep_last=2)
    assert [c.name for c in checkpoints(tmp_path)] == ["step_000100", "step_001000"]


def test_the_best_checkpoint_is_kept_beside_the_last(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path)
    rewards = {1: 0.2, 2: 0.7, 3: None, 4: 0.7, 5: 0.1}
    better = {}
    for step, reward in rewards.items():
        better[step] = recorder.beats_all(reward)
        state = {} if reward is None else {"validation_reward": reward}
        recorder.checkpoint(step, saves(str(step)), state, keep_last=1, keep_best=True)
    assert better == {1: True, 2: True, 3: False, 4: False, 5: False}
    assert [c.name for c in checkpoints(tmp_path)] == ["step_000002", "step_000005"]
    assert RunRecorder(tmp_path).beats_all(0.8), "a resumed run knows the best"


def test_counters_come_back_as_counters() -> None:
    assert through_text(blank("a", counters=Counter(x=2))).counters["y"] == 0
