"""SDPO: divergences worked out by hand, what the teacher reads, and what has no teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ajet.chat.renderer import Chat
from ajet.interfaces.algorithm import SelfTaught
from ajet.job.checks import check_needs
from ajet.job.job import Backbone
from ajet.learning.algorithms import SDPO
from ajet.learning.batch import Learning, build_batch
from ajet.learning.self_teacher import SelfTeacher, with_feedback
from ajet.plugins import load_plugins
from ajet.rollout.episode import Episode, Fork, Plan
from ajet.rollout.failures import Failure
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord, as_ids, merging_key
from ajet.tracker.timelines import timelines
from ajet.types import ConfigError, Generation, LossTokens, Task, WorkflowOutput
from tests import tokenizers

# ------------------------------------------------------------------ the formula

HALF, QUARTER, EIGHTH = np.log([1 / 2, 1 / 4, 1 / 8])


def seen(student: Sequence[Any], teacher: Sequence[Any], advantages: Sequence[float]) -> LossTokens:
    zeros = np.zeros(len(advantages))
    return LossTokens(
        new=zeros,
        old=zeros,
        advantages=np.array(advantages),
        calls=np.arange(len(advantages)),
        student=np.array(student),
        teacher=np.array(teacher),
    )


def test_kl_by_hand() -> None:
    # ½ log(½ / ¼) + ¼ log(¼ / ½) + ¼ log 1 = ¼ log 2.
    tokens = seen([[HALF, QUARTER, QUARTER]], [[QUARTER, HALF, QUARTER]], [1.0])
    np.testing.assert_allclose(SDPO(divergence="kl").loss(np, tokens), [np.log(2) / 4])
    np.testing.assert_allclose(SDPO().measures(np, tokens)["teacher_kl"], [np.log(2) / 4])


def test_jensen_shannon_by_hand() -> None:
    # m = ⅜, ⅜, ¼. KL(student || m) = ½ log(4/3) + ¼ log(2/3), and the teacher's is the same.
    tokens = seen([[HALF, QUARTER, QUARTER]], [[QUARTER, HALF, QUARTER]], [1.0])
    np.testing.assert_allclose(SDPO().loss(np, tokens), [np.log(4 / 3) / 2 + np.log(2 / 3) / 4])


@pytest.mark.parametrize("divergence", ["kl", "js"])
def test_equal_distributions_cost_nothing_and_so_do_tokens_without_advantage(divergence: Any) -> None:
    one, other = [HALF, QUARTER, QUARTER], [QUARTER, EIGHTH, np.log(5 / 8)]
    found = SDPO(divergence=divergence).loss(np, seen([one, one, one], [one, other, other], [1.0, 0.0, 1.0]))
    assert found[0] == found[1] == 0 < found[2]


def test_the_gradient_for_logits_is_the_policy_gradient_of_the_paper() -> None:
    torch = pytest.importorskip("torch")
    logits = torch.tensor([[0.3, -0.5, 1.1, 0.2]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[1.0, 0.1, -0.4, 0.3]], dtype=torch.float64).log_softmax(-1)
    student = logits.log_softmax(-1)
    tokens = replace(
        seen([[0.0]], [[0.0]], [1.0]), advantages=torch.ones(1), student=student, teacher=teacher
    )
    found = SDPO(divergence="kl").loss(torch, tokens)
    plain = seen(student.detach().numpy(), teacher.numpy(), [1.0])
    np.testing.assert_allclose(found.detach(), SDPO(divergence="kl").loss(np, plain))
    found.sum().backward()
    # Prop. 2.1: E_ŷ[log(π(ŷ) / q(ŷ)) · ∇ log π(ŷ)], and ∇ log π(ŷ) for logits is onehot(ŷ) - π.
    p, worth = student.detach().exp()[0], (student.detach() - teacher)[0]
    expected = sum(p[y] * worth[y] * (torch.eye(4, dtype=torch.float64)[y] - p) for y in range(4))
    torch.testing.assert_close(logits.grad[0], expected)


def test_templates_without_a_place_for_the_words_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\{feedback\}"):
        SDPO(template="Again.")
    with pytest.raises(ValueError, match=r"\{answer\}"):
        SDPO(solution_template="It is right.")


def test_backbones_without_a_teacher_refuse_it_by_name() -> None:
    found = {name: cls.cls for (kind, name), cls in load_plugins().classes.items() if kind == "backbone"}
    trains = {
        name: cls for name, cls in found.items() if issubclass(cls, Backbone) and cls.capabilities.trains
    }
    assert {"local", "tinker", "verl", "trinity"} <= trains.keys()
    check_needs(SDPO(), trains.pop("local"), "train.algorithm")
    for name, cls in trains.items():
        with pytest.raises(
            ConfigError, match=f"'sdpo' needs the model itself as a teacher .* '{name}' does not"
        ):
            check_needs(SDPO(), cls, "train.algorithm")


# ------------------------------------------------------------------ what the teacher reads


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(tokenizers.qwen3(), "qwen3")


SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "2 + 3?"}


def episode(
    chat: Chat,
    member: int,
    feedback: str = "",
    *,
    reward: float = 0.0,
    answers: Sequence[str] = ("5",),
    group: int = 0,
) -> Episode:
    """An episode of one conversation, whose further calls each answer "Sure?"."""
    record = EpisodeRecord()
    key = merging_key("policy", ())
    tree, end = record.tree(key), record.chat(key)
    messages = [SYSTEM, ASKED]
    node = tree.extend(tree.root, as_ids(chat.render(messages, ())))
    for number, answer in enumerate(answers):
        for message in messages:
            end = end.add(message)
        ids = as_ids([*chat.prefill_ids(answer), chat.stop_token_ids[0]])
        generation = Generation(
            ids, np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32), "stop"
        )
        after = tree.extend(node, ids)
        call = Call(number, "a", "policy", key, node, after, generation, 1.0, True, chat_end=end)
        end = record.add(call, {"role": "assistant", "content": answer}) or end
        messages = [{"role": "user", "content": "Sure?"}]
        whole = chat.render([*end.chat(), *messages], ())
        node = tree.extend(after, as_ids(whole[after.length :]))
    plan = Plan(f"1.{group}/t/{member}", "", Task("t"), member, group)
    return Episode(plan, 0, WorkflowOutput(), record, reward=reward, feedback=feedback)


def teacher(chat: Chat, context: int = 10_000, **fields: Any) -> SelfTeacher:
    return SelfTeacher(SDPO(**fields), chat, context)


def test_feedback_follows_the_users_message_and_the_sampled_tokens_stay_as_they_are(chat: Chat) -> None:
    told = episode(chat, 0, "It is 5.", answers=("4", "Yes"))
    (line,) = timelines(told.record.trained_calls)
    hint = teacher(chat, template=" Note: {feedback}").hint(told, line, "It is 5.")
    assert hint is not None
    longer = {**ASKED, "content": "2 + 3? Note: It is 5."}
    assert hint.token_ids.tolist() == chat.render([SYSTEM, longer], ())
    assert hint.replaces == len(chat.render([SYSTEM, ASKED], ())) == line.spans[0].start


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([SYSTEM], [SYSTEM, {"role": "user", "content": "Note"}]),
        ([ASKED, SYSTEM], [{**ASKED, "content": "2 + 3? Note"}, SYSTEM]),
        (
            [{"role": "user", "content": [{"type": "image", "image": "sha256:0"}]}],
            [
                {
                    "role": "user",
                    "content": [{"type": "image", "image": "sha256:0"}, {"type": "text", "text": " Note"}],
                }
            ],
        ),
    ],
    ids=["no user", "not the last message", "an image"],
)
def test_where_feedback_is_put(messages: list[Any], expected: list[Any]) -> None:
    assert with_feedback(messages, " Note") == expected


def test_there_is_no_teacher_without_room_or_if_the_prompt_cannot_be_written_again(chat: Chat) -> None:
    told = episode(chat, 0, "It is 5.")
    (line,) = timelines(told.record.trained_calls)
    hint = teacher(chat).hint(told, line, "x")
    assert hint is not None
    length = len(hint.token_ids) + len(line.token_ids) - hint.replaces
    assert teacher(chat, length).hint(told, line, "x") and not teacher(chat, length - 1).hint(told, line, "x")
    (call,) = told.record.calls
    call.chat_end = call.chat_end and call.chat_end.parent  # the prompt has a message more than is known
    assert teacher(chat).hint(told, line, "x") is None
    call.chat_end = None  # a call without messages
    assert teacher(chat).hint(told, line, "x") is None


def test_feedback_of_an_episode_is_the_judges_else_the_best_siblings_answer(chat: Chat) -> None:
    right = [episode(chat, m, reward=r, answers=(f"{m}",)) for m, r in enumerate([0.0, 0.5, 1.0, 1.0])]
    failed = episode(chat, 4, "It broke.")
    failed.failed = Failure.parse("timeout", "")
    alone = episode(chat, 0, reward=0.0, group=1)
    episodes = [*right, episode(chat, 5, " Wrong. "), failed, alone]
    assert teacher(chat).feedback(episodes) == {"1.0/t/5": "Wrong."}
    found = teacher(chat, solution=1.0, solution_template="Right: {answer}").feedback(episodes)
    assert {name[-1]: said for name, said in found.items() if name.startswith("1.0")} == {
        "0": "Right: 2",
        "1": "Right: 2",
        "2": "Right: 3",
        "3": "Right: 2",
        "5": "Wrong.",
    }
    assert "1.1/t/0" not in found


# ------------------------------------------------------------------ the batch


def test_the_mean_is_over_the_tokens_that_have_a_teacher(chat: Chat) -> None:
    episodes = [
        episode(chat, 0, "It is 5.", answers=("55",)),
        episode(chat, 1, answers=("5",)),
        episode(chat, 2, "No.", answers=("5",)),
    ]
    found = build_batch(
        episodes, Learning(SDPO()), mini_batches=1, learning_rate=1.0, seed="s", teacher=teacher(chat)
    )
    assert found is not None
    assert found.metrics["episodes_without_feedback"] == 1 and found.metrics["timelines_without_teacher"] == 0
    assert sum(float(s.weights.sum()) for s in found.batch.samples) == pytest.approx(1.0)
    by_episode = {s.episode[-1]: s for s in found.batch.samples}
    assert by_episode["1"].hint is None and not by_episode["1"].advantages.any()
    assert [found.batch.has_credit(by_episode[m]) for m in "012"] == [True, False, True]
    assert by_episode["0"].weights.max() == by_episode["2"].weights.max()
    assert found.batch.needs == {"teacher"} and found.batch.teacher_share == SDPO().teacher_share


def test_a_fork_without_feedback_is_in_no_mean_though_its_parent_is(chat: Chat) -> None:
    parent, fork = episode(chat, 0, "It is 5.", answers=("5", "Yes")), episode(chat, 1, answers=("5", "No"))
    fork.record.calls[0].replayed, fork.record.calls[0].trained = True, False
    fork.plan = replace(fork.plan, fork=Fork(parent.id, 1))
    found = build_batch(
        [parent, fork], Learning(SDPO()), mini_batches=1, learning_rate=1.0, seed="s", teacher=teacher(chat)
    )
    assert found is not None
    assert [float(s.weights.sum()) for s in found.batch.samples] == [pytest.approx(1.0), 0.0]


def test_an_algorithm_of_ones_own_can_have_the_teacher(chat: Chat) -> None:
    class Nearer(SelfTaught):
        name = "nearer"

        def loss(self, xp: Any, tokens: LossTokens) -> Any:
            return tokens.advantages * (xp.exp(tokens.student) * (tokens.student - tokens.teacher)).sum(-1)

    algorithm = Nearer(teacher_share=0.5)
    taught = SelfTeacher(algorithm, chat, 4096)
    episodes = [episode(chat, 0, "It is 5.", answers=("55",))]
    found = build_batch(
        episodes, Learning(algorithm), mini_batches=1, learning_rate=1.0, seed="s", teacher=taught
    )
    assert found and found.batch.teacher_share == 0.5 and found.batch.needs == {"teacher"}
    assert [sample.hint is not None for sample in found.batch.samples] == [True]
