"""Breaks: which changes of a history are reported, with their cause and place, and which are none."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.tracker.breaks import CAUSES, Break, discarded, find_breaks
from ajet.tracker.call import Call, recognise
from ajet.tracker.differences import explain
from ajet.tracker.record import EpisodeRecord, as_ids
from ajet.types import Generation
from tests.properties import examples

Message = dict[str, Any]
EOS = 0


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str, *arguments: str, ids: str = "c", **fields: Any) -> Message:
    """An answer, with a tool call for each of ``arguments``."""
    calls = [
        {"id": f"{ids}{i}", "type": "function", "function": {"name": "f", "arguments": a}}
        for i, a in enumerate(arguments)
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {}), **fields}


def tool(text: str, call: str = "c0") -> Message:
    return {"role": "tool", "tool_call_id": call, "content": text}


S, U, U2, U3 = system("Be brief."), user("One and one?"), user("And twice that?"), user("Why?")
X, Y, Z = said("It is two, clearly."), said("It is four, clearly."), said("Because two and two are four.")


class Episode:
    """Calls one after another, their chats as tokens: one a character. Prompts continue stored ids, if a
    recorded answer is in the chat, and no ``cause`` forbids it."""

    def __init__(self) -> None:
        self.record = EpisodeRecord()

    def call(
        self,
        chat: Sequence[Message],
        answer: Message,
        *,
        agent: str = "agent",
        tools: str = "",
        target: str = "policy",
        cause: str = "",
    ) -> list[Message]:
        key = f"{target}/{tools}"
        node = recognise(self.record.chat(key), chat)[0]
        tree, held = self.record.tree(key), node.held()
        parent = held.ends[0] if held is not None and not cause else None
        if held is not None and parent is not None:
            prompt = tree.extend(parent.end, as_ids([*tokens(chat[held.depth :]), *HEADER]))
        else:
            anew = [system(tools + cause), *chat]  # what the chat format writes first
            prompt = tree.extend(tree.root, as_ids([*tokens(anew), *HEADER]))
        sampled = tokens([answer])[len(HEADER) :]
        end = tree.extend(prompt, sampled)
        zeros = np.zeros(len(sampled))
        generation = Generation(sampled, zeros.astype(np.float32), zeros.astype(np.int32), "stop")
        number = len(self.record.calls)
        continued = parent.number if parent else None
        call = Call(
            number, agent, target, key, prompt, end, generation, 1.0, True, continued, cause, chat_end=node
        )
        self.record.add(call, answer)
        return [*chat, answer]

    def breaks(self) -> list[tuple[str, int, int, int]]:
        """(cause, call, after, message) of each break."""
        return [(b.cause, b.call, b.after, b.message) for b in find_breaks(self.record)]

    def the_break(self) -> Break:
        (only,) = find_breaks(self.record)
        return only


def tokens(chat: Sequence[Message]) -> Any:
    parts = ("reasoning_content", "content", "name", "tool_calls")
    texts = (f"{m['role']}:{''.join(str(m.get(part, '')) for part in parts)}" for m in chat)
    return as_ids([i for text in texts for i in (*map(ord, text), EOS)])


HEADER = tokens([said("")])[:-1]


def in_order(record: EpisodeRecord, order: Sequence[int]) -> EpisodeRecord:
    """The same record, its calls added in another order."""
    made = EpisodeRecord()
    answers = {e.number: e.answer.message for e in record.exchanges}
    for call in (record.calls[i] for i in order):
        tree = made.tree(call.key)
        assert call.chat_end
        node = recognise(made.chat(call.key), call.chat_end.chat())[0]
        prompt = tree.extend(tree.root, call.prompt.ids())
        end = tree.extend(prompt, call.generation.token_ids)
        fields = (call.generation, call.temperature, True, call.parent, call.cause)
        copy = Call(call.number, call.agent, call.target, call.key, prompt, end, *fields, chat_end=node)
        made.add(copy, answers[call.number])
    return made


@pytest.fixture
def episode() -> Episode:
    return Episode()


# ------------------------------------------------------------------ an answer came back otherwise


def test_an_answer_stripped_of_whitespace_is_reported_with_its_place(episode: Episode) -> None:
    episode.call([S, U], said("It is two.\n\n"))
    episode.call([S, U, said("It is two."), U2], Y)
    found = episode.the_break()
    assert (found.cause, found.call, found.after, found.message) == ("whitespace changed", 1, 0, 2)
    assert (found.before, found.now, found.char) == ("It is two.\n\n", "It is two.", 10)
    first, second = episode.record.calls
    ids, prompt = first.end.ids(), second.prompt.ids()
    assert (ids[: found.token] == prompt[: found.token]).all() and ids[found.token] == ord("\n")
    assert found.recorded == tuple(ids[found.token :][:8].tolist())
    assert found.sent == tuple(prompt[found.token :][:8].tolist())
    assert found.lost_tokens == len(prompt) - found.token


def test_every_turn_that_is_stripped_is_one_break_after_the_call_before(episode: Episode) -> None:
    chat = [S, U]
    for number in range(4):
        episode.call(chat, said(f"answer {number} "))
        chat = [*chat, said(f"answer {number}"), user(f"question {number}")]
    assert episode.breaks() == [("whitespace changed", n, n - 1, 2 * n) for n in range(1, 4)]


def test_a_later_answer_that_is_stripped_is_reported_although_an_earlier_one_was_continued(
    episode: Episode,
) -> None:
    chat = episode.call([S, U], X)
    episode.call([*chat, U2], said("Four. "))
    episode.call([*chat, U2, said("Four."), U3], Z)
    assert episode.record.calls[2].parent == 0
    assert episode.breaks() == [("whitespace changed", 2, 1, 4)]


def test_reasoning_stripped_by_the_framework_is_reported(episode: Episode) -> None:
    episode.call([S, U], said("<think>one, two</think>\n\nIt is two."))
    episode.call([S, U, said("It is two."), U2], Y)
    found = episode.the_break()
    assert (found.cause, found.message, found.char) == ("thinking stripped", 2, 0)
    assert found.before.startswith("<think>one") and found.now == "It is two."


def test_arguments_written_again_with_other_values_of_equal_meaning_are_reported(episode: Episode) -> None:
    episode.call([S, U], said("", '{"a": 1, "b": null}'))
    episode.call([S, U, said("", '{"a": 1.0}'), tool("2")], Y)
    found = episode.the_break()
    assert (found.cause, found.message) == ("arguments re-serialised", 2)
    assert (found.before, found.now, found.char) == ('f({"a": 1, "b": null})', 'f({"a": 1.0})', 9)


def test_changed_tool_call_ids_are_reported(episode: Episode) -> None:
    episode.call([S, U], said("", "{}", ids="call_1_"))
    episode.call([S, U, said("", "{}", ids="call_9_"), tool("2", "call_9_0")], Y)
    found = episode.the_break()
    assert (found.cause, found.message, found.before, found.now) == (
        "tool-call ids changed",
        2,
        "call_1_0",
        "call_9_0",
    )


def test_a_reply_without_its_reasoning_is_not_the_cause_where_its_tool_call_ids_changed(
    episode: Episode,
) -> None:
    """A reply is recognised without its reasoning, so sending that back would not help."""
    episode.call([S, U], {**said("", "{}", ids="call_1_"), "reasoning_content": "A sum."})
    episode.call([S, U, said("", "{}", ids="call_9_"), tool("2", "call_9_0")], Y)
    found = episode.the_break()
    assert (found.cause, found.before, found.now) == ("tool-call ids changed", "call_1_0", "call_9_0")


@pytest.mark.parametrize(
    ("recorded", "sent"),
    [
        (said("It is two."), said("It is three.")),
        (said("", '{"a": 1}'), said("", '{"a": 2}')),
        (said("", '{"a": 1}', '{"a": 2}'), said("", '{"a": 1}')),
    ],
    ids=["text", "arguments", "fewer calls"],
)
def test_an_edited_answer_is_reported(episode: Episode, recorded: Message, sent: Message) -> None:
    episode.call([S, U], recorded)
    episode.call([S, U, sent, U2], Y)
    assert episode.breaks() == [("answer edited", 1, 0, 2)]


def test_a_name_that_a_framework_gives_an_answer_changes_nothing(episode: Episode) -> None:
    episode.call([S, U], said("It is two. "))
    episode.call([S, U, said("It is two.", name="solver"), U2], Y)
    assert episode.breaks() == [("whitespace changed", 1, 0, 2)]


def test_the_nearest_of_several_answers_to_one_prompt_is_the_one_that_came_back(episode: Episode) -> None:
    for text in ("two ", "three", "four"):
        episode.call([S, U], said(text))
    episode.call([S, U, said("two"), U2], Y)
    assert episode.breaks() == [("whitespace changed", 3, 0, 2)]


def test_another_agent_that_goes_on_with_a_stripped_answer_is_reported(episode: Episode) -> None:
    episode.call([S, U], said("two "), agent="planner")
    episode.call([S, U, said("two"), U2], Y, agent="solver")
    assert episode.breaks() == [("whitespace changed", 1, 0, 2)]
    assert episode.the_break().agent == "solver"


# ------------------------------------------------------------------ the prompt around it changed


def test_another_tool_list_is_reported(episode: Episode) -> None:
    chat = episode.call([S, U], X, tools="a")
    episode.call([*chat, U2], Y, tools="b")
    found = episode.the_break()
    assert (found.cause, found.call, found.after, found.message) == ("tool list changed", 1, 0, -1)


def test_a_tool_list_that_changes_back_is_reported_twice(episode: Episode) -> None:
    chat = episode.call([S, U], X, tools="a")
    chat = episode.call([*chat, U2], Y, tools="b")
    episode.call([*chat, U3], Z, tools="a")
    assert episode.breaks() == [("tool list changed", 1, 0, -1), ("tool list changed", 2, 1, -1)]


@pytest.mark.parametrize("changed", [[system("Be brief. 12:01")], []], ids=["edited", "left out"])
def test_a_changed_system_prompt_is_reported(episode: Episode, changed: list[Message]) -> None:
    episode.call([S, U], X)
    episode.call([*changed, U, X, U2], Y)
    assert episode.breaks() == [("system prompt changed", 1, 0, 0)]


def test_an_edited_earlier_message_is_reported_around_its_first_character(episode: Episode) -> None:
    long = "x" * 300
    episode.call([S, user(f"{long} now {long}")], X)
    episode.call([S, user(f"{long} then {long}"), X, U2], Y)
    found = episode.the_break()
    assert (found.cause, found.message, found.char) == ("message edited", 1, 301)
    for text, word in ((found.before, " now "), (found.now, " then ")):
        assert len(text) <= 80 and word in text and text[0] == text[-1] == "…"


def test_an_inserted_message_is_an_edited_history(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    episode.call([S, user("By the way."), *chat[1:], U2], Y)
    assert episode.breaks() == [("message edited", 1, 0, 1)]


@pytest.mark.parametrize("notes", [[], [system("Note: 1.")]], ids=["inserted", "edited"])
def test_a_system_message_within_the_history_is_no_system_prompt(
    episode: Episode, notes: list[Message]
) -> None:
    episode.call([S, U, *notes], X)
    episode.call([S, U, system("Note: 2."), X, U2], Y)
    assert episode.breaks() == [("message edited", 1, 0, 2)]


def test_a_stripped_user_message_is_whitespace(episode: Episode) -> None:
    episode.call([S, user("One? ")], X)
    episode.call([S, user("One?"), X, U2], Y)
    assert episode.breaks() == [("whitespace changed", 1, 0, 1)]


# ------------------------------------------------------------------ turns are gone


def three_turns(episode: Episode) -> list[Message]:
    chat = episode.call([S, U], X)
    chat = episode.call([*chat, U2], Y)
    return episode.call([*chat, U3], Z)


def test_a_summary_before_kept_turns_is_reported(episode: Episode) -> None:
    chat = three_turns(episode)
    episode.call([S, user("So far: two, four."), *chat[5:], user("Sure?")], said("Yes."))
    assert episode.breaks() == [("history summarised", 3, 2, 1)]


def test_a_summary_in_place_of_all_turns_is_reported(episode: Episode) -> None:
    three_turns(episode)
    episode.call([S, U, user("So far: two, four."), user("Sure?")], said("Yes."))
    assert episode.breaks() == [("history summarised", 3, 2, 2)]


def test_a_summary_in_the_system_prompt_is_reported(episode: Episode) -> None:
    chat = three_turns(episode)
    episode.call([system("Be brief. So far: two."), *chat[5:], user("Sure?")], said("Yes."))
    assert episode.breaks() == [("history summarised", 3, 2, 0)]


@pytest.mark.parametrize("dropped", [[1, 2], [1, 2, 3, 4], [2, 3]], ids=["turn", "two turns", "first kept"])
def test_a_window_that_slid_is_reported(episode: Episode, dropped: list[int]) -> None:
    chat = three_turns(episode)
    episode.call([m for i, m in enumerate(chat) if i not in dropped] + [user("Sure?")], said("Yes."))
    assert episode.breaks() == [("window slid", 3, 2, dropped[0])]


def test_a_window_that_slides_every_turn_is_a_break_every_turn(episode: Episode) -> None:
    chat: list[Message] = []
    for number in range(6):
        chat = episode.call([S, *chat[-4:], user(f"question {number}")], said(f"a long answer, {number}"))[1:]
    assert episode.breaks() == [("window slid", n, n - 1, 1) for n in range(3, 6)]


@pytest.mark.parametrize("answer", ["home", "home, as far as I can see"])
@pytest.mark.parametrize("start", [[], [S]], ids=["", "system prompt kept"])
def test_a_window_that_slides_over_equal_answers_is_a_break_every_turn(
    episode: Episode, start: list[Message], answer: str
) -> None:
    chat: list[Message] = []
    for number in range(12):
        chat = episode.call([*start, *chat[-4:], user(f"question {number}")], said(answer))[len(start) :]
    assert episode.breaks() == [("window slid", n, n - 1, len(start)) for n in range(3, 12)]


def test_a_window_that_keeps_only_the_users_messages_is_reported(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    episode.call([*chat, U2], Y)
    episode.call([S, U2, U3], Z)
    assert episode.breaks() == [("window slid", 2, 1, 1)]


def retry(episode: Episode, chat: list[Message]) -> list[Message]:
    """A failed tool call, its error, and a second try, after which the first is cut out."""
    good = said("", '{"a": 2}', ids="good")
    failed = episode.call(chat, said("", '{"a": 1', ids="bad"))
    episode.call([*failed, tool("not JSON", "bad0")], good)
    return episode.call([*chat, good, tool("4", "good0")], Y)


def test_a_failed_attempt_cut_out_of_the_history_is_reported(episode: Episode) -> None:
    retry(episode, [S, U])
    assert episode.breaks() == [("turns removed", 2, 1, 2)]


def test_a_failed_attempt_in_the_middle_of_a_conversation_is_reported(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    retry(episode, [*chat, U2])
    assert episode.breaks() == [("turns removed", 3, 2, 4)]


def test_an_attempt_cut_out_some_turns_later_is_reported(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    chat = episode.call([*chat, U2], said("", "{", ids="bad"))
    chat = episode.call([*chat, tool("not JSON", "bad0")], Y)
    chat = episode.call([*chat, U3], Z)
    episode.call([*chat[:4], *chat[6:], user("Sure?")], said("Yes."))
    assert episode.breaks() == [("turns removed", 4, 3, 4)]


def test_an_answer_left_out_is_reported(episode: Episode) -> None:
    episode.call([S, U], X)
    episode.call([S, U, user("In one word, please.")], said("Two."))
    assert episode.breaks() == [("turns removed", 1, 0, 2)]


def test_an_answer_replaced_by_another_models_is_no_edit(episode: Episode) -> None:
    episode.call([S, U], said("From the judge."), target="judge")
    episode.call([S, U], X)
    episode.call([S, U, said("From the judge."), U2], Y)
    assert episode.breaks() == [("turns removed", 2, 1, 2)]


# ------------------------------------------------------------------ the same messages, other tokens


@pytest.mark.parametrize("cause", ["template drops thinking", "template rewrites history"])
def test_what_the_chat_format_could_not_continue_has_its_cause(episode: Episode, cause: str) -> None:
    chat = episode.call([S, U], said("It is two.", reasoning_content="one, two"))
    episode.call([*chat, U2], Y, cause=cause)
    found = episode.the_break()
    assert (found.cause, found.call, found.after, found.message, found.char) == (cause, 1, 0, 2, -1)
    assert found.before == found.now == "It is two."
    assert found.lost_tokens > 0


def test_equal_messages_of_other_tokens_are_retokenised(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    first = episode.record.calls[0]
    node = recognise(episode.record.chat(first.key), [*chat, U2])[0]
    tree = episode.record.tree(first.key)
    prompt = tree.extend(first.prompt, as_ids([7, 7, 7]))
    other = Call(
        1, "agent", "policy", first.key, prompt, prompt, first.generation, 1.0, True, None, "", chat_end=node
    )
    episode.record.add(other, Y)
    found = episode.the_break()
    assert (found.cause, found.message, found.token) == ("retokenised", 2, first.prompt.length)
    assert found.sent == (7, 7, 7) and found.lost_tokens == 3


def test_a_chat_rendered_anew_to_the_same_tokens_is_no_break(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    first = episode.record.calls[0]
    node = recognise(episode.record.chat(first.key), [*chat, U2])[0]
    prompt = episode.record.tree(first.key).extend(first.end, as_ids([7]))
    call = Call(
        1, "agent", "policy", first.key, prompt, prompt, first.generation, 1.0, True, None, "", chat_end=node
    )
    episode.record.add(call, Y)
    assert episode.breaks() == []


def test_a_changed_message_that_the_template_renders_to_the_same_tokens_is_no_break(episode: Episode) -> None:
    episode.call([S, U], said("two "))
    first = episode.record.calls[0]
    node = recognise(episode.record.chat(first.key), [S, U, said("two"), U2])[0]
    prompt = episode.record.tree(first.key).extend(first.end, as_ids([7]))
    call = Call(
        1, "agent", "policy", first.key, prompt, prompt, first.generation, 1.0, True, None, "", chat_end=node
    )
    episode.record.add(call, Y)
    assert episode.breaks() == []


# ------------------------------------------------------------------ what is no break


def test_a_conversation_that_goes_on_has_no_break(episode: Episode) -> None:
    three_turns(episode)
    assert episode.breaks() == [] and discarded(episode.record) == frozenset()


@pytest.mark.parametrize("answers", [(X, Y), (X, X)], ids=["other answers", "equal answers"])
def test_the_same_prompt_twice_is_no_break(episode: Episode, answers: tuple[Message, Message]) -> None:
    for answer in answers:
        episode.call([S, U], answer)
    assert episode.breaks() == [] and discarded(episode.record) == frozenset()


def test_choices_of_one_broken_prompt_are_one_break(episode: Episode) -> None:
    episode.call([S, U], said("two "))
    for answer in (Y, Z):
        episode.call([S, U, said("two"), U2], answer)
    assert episode.breaks() == [("whitespace changed", 1, 0, 2)]


def test_forks_from_a_recorded_answer_are_no_breaks(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    chat = episode.call([*chat, U2], Y)
    episode.call([*chat[:3], U3], Z)
    episode.call([*chat[:3], user("Really?"), U3], Z)
    assert episode.breaks() == [] and discarded(episode.record) == frozenset()


def test_two_agents_with_the_same_first_prompt_are_no_break(episode: Episode) -> None:
    a = episode.call([S, U], X, agent="a")
    b = episode.call([S, U], Y, agent="b")
    episode.call([*a, U2], Z, agent="a")
    episode.call([*b, U3], Z, agent="b")
    assert episode.breaks() == []


def test_a_sub_agent_and_its_answer_as_tool_text_are_no_break(episode: Episode) -> None:
    chat = episode.call([S, U], said("", "{}"))
    episode.call([S, user("Sub-task.")], X, agent="sub")
    episode.call([*chat, tool(X["content"])], Y)
    assert episode.breaks() == []


def test_another_agent_with_another_history_of_the_same_answers_is_no_break(episode: Episode) -> None:
    episode.call([S, U], X, agent="a")
    episode.call([system("You judge."), U, X], Y, agent="b")
    assert episode.breaks() == []


def test_independent_prompts_of_one_agent_are_no_break(episode: Episode) -> None:
    for number in range(4):
        episode.call([S, user(f"Summarise part {number}."), user("Answer in one word.")], X)
    for number in range(4):
        episode.call([user(f"Part {number}.")], X)
    assert episode.breaks() == [] and discarded(episode.record) == frozenset()


def test_a_question_asked_again_in_a_new_conversation_is_no_break(episode: Episode) -> None:
    three_turns(episode)
    episode.call([S, U3], Z)
    assert episode.breaks() == []


@pytest.mark.parametrize("example", ["yes", "It is two, clearly."])
def test_few_shot_examples_are_no_break(episode: Episode, example: str) -> None:
    shots = [S, user("Is this an example?"), said(example)]
    for number in range(3):
        episode.call([*shots, user(f"question {number}")], said(example))
    assert episode.breaks() == [] and discarded(episode.record) == frozenset()


def test_a_few_shot_word_that_was_also_answered_elsewhere_is_no_break(episode: Episode) -> None:
    episode.call([S, U], said("yes"))
    episode.call([S, user("Is this an example?"), said("yes"), U2], said("no"))
    assert episode.breaks() == []


def test_answers_of_a_frozen_target_in_between_are_no_break(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    chat = episode.call([*chat, U2], said("From the judge."), target="judge")
    episode.call([*chat, U3], Z)
    assert episode.breaks() == []


def test_an_error_text_of_the_framework_is_no_break(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    episode.call([*chat, U2, said("Sorry, I ran into an error."), U3], Z)
    assert episode.breaks() == []


def test_calls_without_messages_are_left_alone() -> None:
    record = EpisodeRecord()
    at = record.tree("k").extend(record.tree("k").root, as_ids([1]))
    nothing = Generation(as_ids([]), np.zeros(0, np.float32), as_ids([]), "stop")
    record.add(Call(0, "agent", "policy", "k", at, at, nothing, 1.0, True))
    assert find_breaks(record) == [] and discarded(record) == frozenset()


# ------------------------------------------------------------------ attempts thrown away


def test_a_failed_attempt_that_was_cut_out_is_discarded(episode: Episode) -> None:
    retry(episode, [S, U])
    assert discarded(episode.record) == {0}


def test_a_failed_attempt_in_the_middle_is_discarded(episode: Episode) -> None:
    chat = episode.call([S, U], X)
    retry(episode, [*chat, U2])
    assert discarded(episode.record) == {1}


def test_two_failed_attempts_in_a_row_are_both_discarded(episode: Episode) -> None:
    good = said("", '{"a": 2}', ids="good")
    chat = episode.call([S, U], said("", "{", ids="bad"))
    chat = episode.call([*chat, tool("not JSON", "bad0")], said("", "[", ids="worse"))
    episode.call([*chat, tool("not JSON", "worse0")], good)
    episode.call([S, U, good, tool("4", "good0")], Y)
    assert discarded(episode.record) == {0, 1}


def test_an_attempt_that_a_still_later_prompt_takes_up_is_not_discarded(episode: Episode) -> None:
    retry(episode, [S, U])
    bad = said("", '{"a": 1', ids="bad")
    episode.call([S, U, bad, tool("try again", "bad0")], Z)
    assert discarded(episode.record) == frozenset()


def test_a_choice_is_discarded_once_a_prompt_goes_on_with_its_sibling(episode: Episode) -> None:
    for answer in (X, Y, Z):
        episode.call([S, U], answer)
    assert discarded(episode.record) == frozenset()
    episode.call([S, U, Y, U2], Z)
    assert discarded(episode.record) == {0, 2}


def test_a_choice_is_discarded_once_a_prompt_quotes_its_sibling(episode: Episode) -> None:
    first, second, third = (said(f"Summary {n}: one and one is two.") for n in range(3))
    for answer in (first, second, third):
        episode.call([S, U], answer)
    episode.call([S, user(f"So far: {second['content']}\nAnd twice that?")], Z)
    assert discarded(episode.record) == {0, 2}
    episode.call([S, user(f"Or rather: {first['content']}")], Z)
    assert discarded(episode.record) == {2}, "quoted, too"


def test_choices_that_were_all_followed_are_kept(episode: Episode) -> None:
    for answer in (X, Y):
        episode.call([S, U], answer)
    for answer in (X, Y):
        episode.call([S, U, answer, U2], Z)
    assert discarded(episode.record) == frozenset()


def test_another_agents_sibling_discards_nothing(episode: Episode) -> None:
    episode.call([S, U], X, agent="a")
    chat = episode.call([S, U], Y, agent="b")
    episode.call([*chat, U2], Z, agent="b")
    assert discarded(episode.record) == frozenset()


def test_summaries_windows_and_edits_discard_nothing(episode: Episode) -> None:
    chat = three_turns(episode)
    episode.call([S, U, user("So far: two, four."), user("Sure?")], said("Yes."))
    episode.call([S, U, *chat[4:], user("Certain?")], said("Yes."))
    episode.call([S, U, said("Two."), U2], said("Yes."))
    assert len(find_breaks(episode.record)) == 3
    assert discarded(episode.record) == frozenset()


# ------------------------------------------------------------------ properties


texts = st.sampled_from(["a", "b ", "long enough to tell it apart", "<think>t</think> c"])
edits = st.sampled_from(["", "", "strip", "drop first", "drop one", "edit", "cut"])
steps = st.tuples(st.integers(-1, 6), edits, texts, texts, st.sampled_from(["a", "a", "b"]), st.booleans())


def edited(chat: list[Message], edit: str) -> list[Message]:
    if edit == "strip":
        return [{**m, "content": m["content"].replace("<think>t</think>", "").strip()} for m in chat]
    if edit == "drop first":
        return chat[2:]
    if edit == "drop one":
        return [*chat[:-3], *chat[-1:]]
    if edit == "edit":
        return [*chat[:-2], user("other"), *chat[-1:]]
    return chat[:-1] if edit == "cut" else chat


def random_episode(graph: Sequence[tuple[int, str, str, str, str, bool]]) -> EpisodeRecord:
    made = Episode()
    chats: list[list[Message]] = []
    for parent, edit, question, answer, agent, tools in graph:
        chat = edited(chats[parent], edit) if 0 <= parent < len(chats) else [S]
        chats.append(
            made.call([*chat, user(question)], said(answer), agent=agent, tools="t" if tools else "")
        )
    return made.record


@examples(200)
@given(st.lists(steps, min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_the_order_in_which_calls_finish_does_not_matter(graph: Any, rng: random.Random) -> None:
    record = random_episode(graph)
    order = list(range(len(record.calls)))
    rng.shuffle(order)
    other = in_order(record, order)
    assert find_breaks(other) == find_breaks(record)
    assert discarded(other) == discarded(record)


@examples(200)
@given(st.lists(steps, min_size=2, max_size=8))
def test_a_break_names_an_earlier_call_of_its_target_and_a_known_cause(graph: Any) -> None:
    record = random_episode(graph)
    calls = {c.number: c for c in record.calls}
    found = find_breaks(record)
    assert len({b.call for b in found}) == len(found)
    for each in found:
        call, earlier = calls[each.call], calls[each.after]
        assert each.after < each.call and earlier.target == call.target
        assert each.cause in CAUSES and max(len(each.before), len(each.now)) <= 80
        assert call.chat_end and -1 <= each.message <= call.chat_end.depth
        assert each.lost_tokens == call.prompt.length - each.token >= 0
        assert not call.prompt.starts_with(earlier.end)


@examples(100)
@given(st.lists(steps, min_size=1, max_size=8))
def test_appending_and_forking_never_break(graph: Any) -> None:
    plain = [(parent, "", q, f"{a}{i}", agent, False) for i, (parent, _, q, a, agent, _) in enumerate(graph)]
    assert find_breaks(random_episode(plain)) == []


def test_five_thousand_calls_without_a_break_take_no_time() -> None:
    episode, chat = Episode(), [S]
    root = episode.record.chat("policy/")
    node = recognise(root, chat)[0]
    tree = episode.record.tree("policy/")
    end = tree.root
    nothing = Generation(as_ids([1]), np.zeros(1, np.float32), as_ids([0]), "stop")
    for number in range(5000):
        node = node.add(user(f"question {number}"))
        prompt = tree.extend(end, as_ids([number + 2]))
        end = tree.extend(prompt, as_ids([1]))
        parent = number - 1 if number else None
        call = Call(
            number, "agent", "policy", "policy/", prompt, end, nothing, 1.0, True, parent, "", chat_end=node
        )
        answer = said(f"answer {number}")
        episode.record.add(call, answer)
        node = node.add(answer)
    start = time.process_time()
    assert find_breaks(episode.record) == []
    assert time.process_time() - start < 0.5


# ------------------------------------------------------------------ two lists of messages


def test_a_chat_that_only_grew_has_no_difference_in_its_messages() -> None:
    assert explain([S, U, X], [S, U, X, U2]).cause == "retokenised"


def test_explaining_changes_nothing() -> None:
    recorded, sent = [S, U, said("a ", "{}")], [S, U, said("a", "{}", ids="d"), U2]
    before = repr((recorded, sent))
    assert explain(recorded, sent).cause == "tool-call ids changed"
    assert repr((recorded, sent)) == before


def test_every_cause_has_a_remedy_in_one_line() -> None:
    assert all(remedy and "\n" not in remedy for remedy in CAUSES.values())
