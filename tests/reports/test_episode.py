"""One episode: what became of it, its chats, its tokens with mask and credit, its breaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ajet.learning.algorithms import GRPO
from ajet.learning.batch import Learning, build_batch
from ajet.reports.episode import EpisodeReport
from ajet.reports.text import describe_episode
from ajet.testing import logprob_of
from ajet.tracker.breaks import CAUSES
from ajet.tracker.call import Exchange

from .conftest import Folder, ask, squeezing, two_turns

TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def text(report: EpisodeReport, **options: bool) -> str:
    wanted = {"everything": False, "tokens": False, "colour": False, **options}
    return "\n".join(line.plain for line in describe_episode(report, **wanted))


async def with_tool(task: Any) -> str:
    messages: list[Any] = [{"role": "user", "content": task.query}]
    answer = await ask(messages, tools=[TOOL])
    messages += [answer, {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "42"}]
    return (await ask(messages, tools=[TOOL])).content or ""


# ------------------------------------------------------------------ the header


def test_the_advantage_is_the_one_that_the_batch_had(folder: Folder, live: Any) -> None:
    episodes = live(group_size=4, judge=lambda task, output, episode: float(episode.member**2))
    folder.write(episodes)
    batch = build_batch(episodes, Learning(GRPO()), mini_batches=1, learning_rate=0.0, seed="")
    trained = {s.episode: float(s.advantages[s.mask][0]) for s in batch.batch.samples}
    shown = {name: folder.report(name).header.advantages[""] for name in trained}
    assert shown == pytest.approx(trained) and len(shown) == 4
    assert folder.report("1.0/t0/2").header.rewards_of_group == (0.0, 1.0, 4.0, 9.0)


def test_failed_members_are_no_part_of_the_groups_statistics(folder: Folder, live: Any) -> None:
    async def third_fails(task: Any) -> str:
        return await two_turns(task)

    def judge(task: Any, output: Any, episode: Any) -> float:
        if episode.member == 2:
            raise ValueError("no verdict")
        return float(episode.member)

    folder.write(live(third_fails, group_size=3, judge=judge))
    failed = folder.report("1.0/t0/2")
    assert failed.header.advantages == {} and failed.header.failure == "judge:ValueError"
    assert folder.report("1.0/t0/1").header.advantages[""] == pytest.approx(0.7071, abs=1e-4)
    assert folder.report("1.0/t0/1").header.rewards_of_group == (0.0, 1.0, None)
    assert {c.about for c in failed.conversations} == {"not trained: the episode failed"}
    assert "judge:ValueError: " in text(failed)


def test_a_validation_episode_has_no_advantage_and_nothing_trained(folder: Folder, live: Any) -> None:
    folder.write(live(), phase="validation", step=3)
    report = folder.report("validation@3/t0")
    assert report.header.advantages == {} and report.header.rewards_of_group == ()
    assert {c.about for c in report.conversations} == {"not trained: validation"}
    assert "⟨" in text(report) and "⟦trained" not in text(report).split("timeline 1", 1)[0]


# ------------------------------------------------------------------ the chat


def test_a_chat_shows_roles_reasoning_tool_calls_and_who_said_what(folder: Folder, live: Any) -> None:
    def says(request: Any, prompt: str) -> str:
        return "it is 42" if "<tool_response>" in prompt else CALL

    folder.write(live(with_tool, says))
    (conversation,) = folder.report("1.0/t0/0").conversations
    assert [line.role for line in conversation.chat] == ["user", "assistant", "tool", "assistant"]
    assert conversation.chat[1].reasoning == "I add."
    assert conversation.chat[1].tool_calls == (("add", '{"a": 1}'),)
    assert [line.call for line in conversation.chat] == [None, 0, None, 1]
    shown = text(folder.report("1.0/t0/0"))
    assert '→ add({"a": 1})' in shown and "(reasoning) I add." in shown and "2  assistant · call 0" in shown


def test_each_message_is_shown_once_and_its_place_afterwards(folder: Folder, live: Any) -> None:
    async def forks(task: Any) -> str:
        start = [{"role": "user", "content": task.query}]
        first = await ask(start)
        for question in ("one?", "two?"):
            await ask([*start, first, {"role": "user", "content": question}])
        return "done"

    folder.write(live(forks))
    first, second = folder.report("1.0/t0/0").conversations
    assert [line.same_as for line in first.chat] == [None] * 4
    assert [line.same_as for line in second.chat] == ["1.1", "1.2", None, None]
    shown = text(folder.report("1.0/t0/0"))
    assert "… messages 1–2 as in 1.1 …" in shown and shown.count("question 0\n") == 1
    assert text(folder.report("1.0/t0/0"), everything=True).count("     question 0\n") == 2


def test_agents_are_named_with_their_calls(folder: Folder, live: Any) -> None:
    folder.write(live())
    solver, critic = folder.report("1.0/t0/0").conversations
    assert {line.agent for line in solver.chat if line.call is not None} == {"solver"}
    assert [line.agent for line in critic.chat] == ["", "critic"]


def test_long_messages_are_shortened_unless_all_is_asked(folder: Folder, live: Any) -> None:
    async def long(task: Any) -> str:
        return (await ask([{"role": "user", "content": "x" * 3000}])).content or ""

    folder.write(live(long))
    report = folder.report("1.0/t0/0")
    assert "… 1000 characters …" in text(report)
    assert "x" * 3000 in text(report, everything=True)


def test_answers_of_a_chat_model_are_shown_as_chat_and_said_to_have_no_tokens(
    folder: Folder, live: Any
) -> None:
    (episode,) = live()
    record = episode.record
    record.asked = [
        Exchange(c.number, c.agent, c.target, c.key, chat_end=c.chat_end, answer=c.answer)
        for c in record.asked
    ]
    folder.write([episode])
    report = folder.report("1.0/t0/0")
    assert [c.tokens for c in report.conversations] == [(), ()]
    assert [c.calls for c in report.conversations] == [(0, 1), (2,)]
    assert "a chat model answered, so there are no tokens" in text(report)
    assert report.header.advantages == {}


# ------------------------------------------------------------------ the tokens


def test_the_strip_brackets_what_was_trained_and_shows_white_space(folder: Folder, live: Any) -> None:
    folder.write(live(answers=lambda r, p: "1 2\n"))
    strip = text(folder.report("1.0/t0/0")).split("next token\n")[1]
    assert "⟦1|·|2|↵\n|<|im_end|>⟧↵\n<|im_start|>user↵\nsure?" in strip


def test_tokens_carry_position_id_logprob_version_call_and_agent(folder: Folder, live: Any) -> None:
    (episode,) = live()
    folder.write([episode])
    first, *_ = folder.report("1.0/t0/0").conversations
    parts = [part for part in first.tokens if part.sampled]
    assert [(p.call, p.agent, p.target, p.trained) for p in parts] == [
        (0, "solver", "policy", True),
        (1, "solver", "policy", True),
    ]
    whole = [i for part in first.tokens for i in part.ids]
    assert whole == episode.record.calls[1].end.ids().tolist()
    for part in parts:
        foreseen = [logprob_of(token, part.start + i) for i, token in enumerate(part.ids)]
        assert np.allclose(part.logprobs, foreseen) and set(part.versions) == {0}


def test_half_a_character_at_the_end_of_an_answer_is_the_answers(folder: Folder, live: Any) -> None:
    async def cut(task: Any) -> str:
        first = {"role": "user", "content": task.query}
        answer = await ask([first], max_tokens=1)
        return (await ask([first, answer, {"role": "user", "content": "go on"}])).content or ""

    folder.write(live(cut, lambda r, p: "ok" if "go on" in p else "👍"))
    assert "⟦\ufffd⟧<|im_end|>" in text(folder.report("1.0/t0/0"))


def test_the_token_table_has_one_row_a_token(folder: Folder, live: Any) -> None:
    folder.write(live(group_size=2, answers=lambda r, p: "a b"))
    shown = text(folder.report("1.0/t0/1"), tokens=True).splitlines()
    (head,) = [i for i, line in enumerate(shown) if line.startswith("POSITION")][:1]
    rows = [line.split() for line in shown[head + 1 :]]
    (a,) = [row for row in rows if len(row) == 9 and row[2] == "a" and row[7] == "0"]
    assert a[3] == "1" and float(a[4]) < 0 and a[5] == "+0.7071" and a[8] == "solver"
    assert rows[0][2:] == ["<|im_start|>", "0"]


def test_long_contexts_are_folded_unless_all_is_asked(folder: Folder, live: Any) -> None:
    async def long(task: Any) -> str:
        return (await ask([{"role": "user", "content": "7" * 500}])).content or ""

    folder.write(live(long))
    report = folder.report("1.0/t0/0")
    folded = len(report.conversations[0].tokens[0].ids) - 32
    assert f"… {folded} context tokens …" in text(report)
    assert text(report, tokens=True).count(f"{folded} context tokens") == 2
    assert "context tokens" not in text(report, everything=True)
    assert "7" * 500 in text(report, everything=True).split("next token")[1]


def test_without_a_tokenizer_ids_are_shown_and_it_is_said(folder: Folder, live: Any) -> None:
    (episode,) = live()
    folder.write([episode])
    (folder.dir / "tokenizer" / "tokenizer.json").unlink()
    shown = text(folder.report("1.0/t0/0"))
    assert "tokens are shown by id, because their text is unknown" in shown
    ids = episode.record.calls[0].generation.token_ids
    assert f"⟦{'|'.join(map(str, ids))}⟧" in shown


def test_calls_that_a_filter_drops_are_shown_as_not_trained(folder: Folder, live: Any) -> None:
    path = folder.dir / "job.yaml"
    path.write_text(path.read_text().replace("filters: []", "filters: [{type: over_long, max_tokens: 30}]"))
    folder.write(live())
    report = folder.report("1.0/t0/0")
    assert [(c.calls, c.about) for c in report.conversations] == [
        ((0,), "trained"),
        ((2,), "trained"),
        ((1,), "not trained: dropped by train.filters or train.max_timelines"),
    ]
    assert report.header.timelines == 3 and report.header.timelines_trained == 2


def test_a_debug_run_says_what_would_be_trained(folder: Folder, live: Any) -> None:
    folder.write(live(group_size=2), phase="debug")
    report = folder.report("1.0/t0/1")
    assert {c.about for c in report.conversations} == {"would be trained"}
    assert report.header.advantages[""] == pytest.approx(0.7071, abs=1e-4)


def test_on_a_terminal_colours_take_the_place_of_brackets(folder: Folder, live: Any) -> None:
    folder.write(live())
    report = folder.report("1.0/t0/0")
    lines = list(describe_episode(report, everything=False, tokens=False, colour=True))
    assert "⟦" not in "".join(line.plain for line in lines)
    styles = {str(span.style) for line in lines for span in line.spans}
    assert "black on green" in styles and "dim" in styles


# ------------------------------------------------------------------ breaks


def test_a_break_is_shown_with_its_place_characters_tokens_and_remedy(folder: Folder, live: Any) -> None:
    folder.write(live(squeezing, lambda r, p: "one  two"))
    report = folder.report("1.0/t0/0")
    (found,) = report.breaks
    assert (found.head, found.removed, found.added, found.tail) == ("one ", " ", "", "two")
    assert found.remedy == CAUSES["whitespace changed"]
    shown = text(report)
    assert "break: call 1 did not continue call 0 (agent): whitespace changed" in shown
    assert "message 2, character 4:  one·[-·-]two" in shown
    assert f"remedy: {CAUSES['whitespace changed']}" in shown


def test_hostile_text_reaches_no_terminal_as_it_is(folder: Folder, live: Any) -> None:
    folder.write(live(answers=lambda r, p: "\x1b]0;owned\x07 \u202e"))
    for everything in (False, True):
        shown = text(folder.report("1.0/t0/0"), tokens=True, everything=everything)
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
        assert "\\x1b" in shown
