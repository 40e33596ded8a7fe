"""The cases of the context tracker with a picture in the prompt, on two families of processors.

`Script.lines` checks, for every case, that each sampled token is trained once, after exactly the ids that the engine saw, with
the engine's logprobs. Case numbers are those of tests/tracker/test_cases.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from ajet.chat.images import Images, open_image
from ajet.chat.messages import images_of, normalise
from ajet.tracker.breaks import find_breaks
from ajet.tracker.forest import forest
from tests.processors import FAMILIES, part, picture, seen, vision
from tests.tracker.harness import U2, S, Script, user

families = pytest.mark.parametrize("family", FAMILIES)
RED, BLUE = picture("red"), picture("blue")
V = seen("Which colour?", RED)


def stop_of(script: Script) -> str:
    return str(script.tokenizer.decode(script.chat.stop_token_ids[:1]))


def causes(script: Script) -> list[str]:
    return [b.cause for b in find_breaks(script.record)]


def placeholders(line: Any) -> set[int]:
    return set(line.token_ids[line.token_ids < 0].tolist())


@families
def test_a_prompt_is_what_the_models_own_processor_writes(family: str) -> None:
    script = Script(family)
    chat = [
        S,
        seen("first", RED, picture("blue", (64, 96))),
        {"role": "assistant", "content": "two"},
        seen("again", RED),
    ]
    taken, images = Images().take(chat)
    plain = [normalise(message, index) for index, message in enumerate(taken)]
    seeing = vision(family)
    seeing.images.update(images)
    found = seeing.plain(script.chat.render(plain, []))
    listed = [
        m if isinstance(m["content"], list) else {**m, "content": [{"type": "text", "text": m["content"]}]}
        for m in plain
    ]
    text = script.tokenizer.apply_chat_template(listed, tokenize=False, add_generation_prompt=True)
    files = [open_image(images[ref]) for message in plain for ref in images_of(message)]
    expected = seeing.processor(images=files, text=[text], add_special_tokens=False)["input_ids"][0]
    assert found == list(expected)


@families
def test_01_a_continued_conversation_is_one_timeline(family: str) -> None:
    script = Script(family)
    x = script.call([S, V], "red")
    script.call([S, V, x, U2], "two")
    (line,) = script.lines()
    assert script.trained() == [[f"red{stop_of(script)}", f"two{stop_of(script)}"]]
    assert np.isfinite(line.logprobs).sum() == line.mask.sum()
    assert not line.mask[line.token_ids < 0].any(), "placeholders are context"
    assert [image.token for image in script.record.images_in(line.token_ids)] == [*placeholders(line)]
    assert not causes(script)


@families
def test_a_picture_may_come_back_in_a_later_message(family: str) -> None:
    script = Script(family)
    x = script.call([S, V], "red")
    script.call([S, V, x, seen("And this?", BLUE, RED)], "blue")
    (line,) = script.lines()
    assert len(placeholders(line)) == 2
    assert not causes(script)


@families
def test_02_03_an_answer_that_was_cut_off_is_closed_untrained(family: str) -> None:
    script = Script(family)
    ids = script.ids("red and more")
    x = script.call([S, V], ids[:2], max_tokens=2)
    script.call([S, V, x, U2], "two")
    (line,) = script.lines()
    (first, _second) = line.spans
    assert line.token_ids[first.start : first.end].tolist() == ids[:2]
    assert not line.mask[first.end]


@families
def test_04_05_the_same_prompt_twice_gives_two_timelines(family: str) -> None:
    for answers in (("red", "blue"), ("red", "red")):
        script = Script(family)
        for answer in answers:
            script.call([S, V], answer)
        assert len(script.lines()) == 2
        assert len(script.record.tree(script.record.calls[0].key).branches) == len(set(answers))


@families
def test_06_a_fork_trains_the_shared_answer_once(family: str) -> None:
    script = Script(family)
    x = script.call([S, V], "red")
    script.call([S, V, x, user("1")], "one")
    script.call([S, V, x, user("2")], "two")
    stop = stop_of(script)
    assert (
        script.trained() == [[f"red{stop}", f"two{stop}"], [f"one{stop}"]]
        or script.trained()
        == [
            [f"one{stop}"],
            [f"red{stop}", f"two{stop}"],
        ]
        or script.trained() == [[f"red{stop}", f"one{stop}"], [f"two{stop}"]]
    )


@families
def test_07_08_the_result_does_not_depend_on_the_order_in_which_calls_finish(family: str) -> None:
    def run(order: tuple[int, ...]) -> list[list[str]]:
        script = Script(family)
        chats = [
            [S, V],
            [S, V, {"role": "assistant", "content": "red"}, U2],
            [S, seen("Which colour?", BLUE)],
        ]

        async def all_calls() -> None:
            for index in order:
                await script.acall(chats[index], ["red", "two", "blue"][index])

        asyncio.run(all_calls())
        return script.trained()

    # A longer chat that is rendered before its prefix was sampled has other calls before it, but the same tokens are trained.
    flat = {
        tuple(sorted(text for line in run(order) for text in line))
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0))
    }
    assert len(flat) == 1


@families
def test_09_10_agents_that_look_at_the_same_picture_share_its_tokens_and_keep_their_credit(
    family: str,
) -> None:
    script = Script(family)
    a = script.call([S, V], "red", agent="a")
    b = script.call([S, V], "blue", agent="b")
    script.call([S, V, a, U2], "two", agent="a")
    script.call([S, V, b, U2], "four", agent="b")
    stop = stop_of(script)
    assert script.trained() == [[f"blue{stop}", f"four{stop}"], [f"red{stop}", f"two{stop}"]]
    agents = {tuple(span.agent for span in line.spans) for line in script.lines()}
    assert agents == {("a", "a"), ("b", "b")}
    tree = script.record.tree(script.record.calls[0].key)
    held = np.concatenate([np.frombuffer(branch.data, np.int32) for branch in tree.branches])
    assert (held < 0).sum() == vision(family).see(script.record.images_in(held)[0]).count, (
        "the picture is stored once"
    )


@families
def test_11_an_answer_pasted_into_another_chat_is_trained_only_where_it_was_sampled(family: str) -> None:
    script = Script(family)
    x = script.call([S, V], "red hello world", agent="sub")
    script.call([S, seen(f"It says: {x['content']}", BLUE)], "two", agent="parent")
    stop = stop_of(script)
    assert script.trained() == [[f"red hello world{stop}"], [f"two{stop}"]]


@families
def test_12_a_rewritten_history_splits_and_trains_nothing_twice(family: str) -> None:
    script = Script(family)
    x = script.call([S, V], "red")
    y = script.call([S, V, x, U2], "two")
    script.call([S, user("Summary: red, two."), y, U2], "four")
    assert len(script.lines()) == 2


@families
def test_another_picture_in_the_same_place_is_another_conversation(family: str) -> None:
    script = Script(family)
    x = script.call([S, V], "It is red, of course, as the weather in Paris.")
    script.call([S, seen("Which colour?", BLUE), x, U2], "two")
    first, second = script.lines()
    assert len(first.token_ids) and placeholders(first).isdisjoint(placeholders(second))
    assert causes(script) == ["message edited"], "the break names the picture's message"
    (found,) = find_breaks(script.record)
    assert found.recorded != found.sent


@families
def test_pictures_of_one_size_never_share_a_token_in_a_tree(family: str) -> None:
    script = Script(family)
    for data in (RED, BLUE):
        script.call([S, seen("Which colour?", data)], "red")
    tree = forest(script.record.trained_calls)
    assert len({int(i) for i in tree.token_ids if i < 0}) == 2
    red, blue = (vision(family).see(image) for image in script.record.images_in(tree.token_ids))
    assert (tree.token_ids < 0).sum() == red.count + blue.count, "none of them is stored once for both"


@families
def test_the_clients_own_messages_stay_as_they_are_and_hold_no_reference(family: str) -> None:
    script = Script(family)
    message = {"role": "user", "content": [part(RED), {"type": "text", "text": "Which colour?"}]}
    script.call([S, message], "red")  # the harness compares it with a copy
    assert images_of(script.record.exchanges[0].chat()[1])
    assert not images_of(message)
