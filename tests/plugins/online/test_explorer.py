"""The explorer over HTTP: replies are stored before they are delivered, conversations go on from stored tokens, feedback is taken
as clients send it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from ajet.capture.answers import Answerer
from ajet.capture.portal import Portal
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target
from ajet.chat.renderer import Chat
from ajet.testing import ScriptedEngine
from ajet.types import ConfigError
from ajet_online.explorer import exploring
from ajet_online.schema import TraceState
from tests import tokenizers
from tests.patience import PATIENCE
from tests.plugins.online.serving import CHAT, KEYS, OTHER, RATER, Server, answer, said, user
from tests.processors import seen


@pytest.fixture
def url(file: Path) -> str:
    """SQLite: what differs between databases is in test_store.py and test_several_servers.py."""
    return f"sqlite:///{file}"


def test_a_reply_is_in_the_store_when_the_client_has_it(serve: Callable[[], Server]) -> None:
    server = serve()
    reply = server.ask([user("hi")])
    (trace,) = server.store.all()
    assert reply.id.endswith(trace.id)
    assert (trace.key, trace.target, trace.state, trace.trained) == (
        "app",
        "policy",
        TraceState.RECORDED,
        True,
    )
    assert trace.answer["content"] == "answer 1" and list(trace.messages) == [user("hi")]
    assert len(trace.tokens) == len(trace.logprobs) == reply.usage.completion_tokens
    (request,) = server.engine.requests
    assert trace.prompt.tolist() == request.prompt_ids.tolist()


@pytest.mark.whole
def test_so_is_a_streamed_one(serve: Callable[[], Server]) -> None:
    server = serve()
    chunks = list(server.ask([user("hi")], stream=True))
    (trace,) = server.store.all()
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{trace.id}"}


@pytest.mark.whole
def test_a_conversation_goes_on_from_its_stored_tokens_also_after_a_restart(
    serve: Callable[[], Server],
) -> None:
    server = serve()
    messages = [user("one")]
    for turn in range(4):
        if turn in (1, 3):
            server = serve()
        reply = server.ask(messages)
        messages += [said(reply), user(f"turn {turn}")]
    traces = list(server.store.all())
    assert [t.parent for t in traces] == [None, *(t.id for t in traces[:-1])]
    assert {t.conversation for t in traces} == {traces[0].id}
    assert [len(t.messages) for t in traces] == [1, 1, 1, 1]
    # Stored deltas are what the engine has seen.
    whole = [token for t in traces for token in (*t.prompt.tolist(), *t.tokens.tolist())]
    assert server.engine.requests[-1].prompt_ids.tolist() == whole[: -len(traces[-1].tokens)]


CONTINUED = {"continue_final_message": True}


def test_a_reply_that_is_continued_is_stored_with_all_its_tokens(serve: Callable[[], Server]) -> None:
    """Its prompt is the reply's without the end of the turn, so it does not follow the stored tokens of the reply."""
    server = serve()
    messages = [user("one")]
    messages += [said(server.ask(messages))]
    server.ask(messages, extra_body=CONTINUED)
    first, second = server.store.all()
    assert second.parent is None and len(second.messages) == 2 and first.id != second.id
    assert second.prompt.tolist() == server.engine.requests[-1].prompt_ids.tolist()


@pytest.mark.parametrize("again", [False, True], ids=["", "after a restart"])
@pytest.mark.parametrize("apart", [False, True], ids=["whole", "apart"])
def test_what_follows_a_prefill_is_the_same_in_memory_and_from_the_store(
    serve: Callable[[], Server], again: bool, apart: bool
) -> None:
    server = serve()
    begun = {"role": "assistant", "content": "It is"}
    reply = said(server.ask([user("one"), begun], extra_body=CONTINUED))
    whole = [{**reply, "content": begun["content"] + reply["content"]}]
    server = serve() if again else server
    chat = [user("one"), *([begun, reply] if apart else whole), user("two")]
    server.ask(chat)
    _, last = server.store.all()
    assert last.parent is None and len(last.messages) == len(chat)
    text = server.engine.tokenizer.decode(last.prompt.tolist())
    assert text.count("<|im_start|>assistant") == (3 if apart else 2)


def test_variables_of_the_chat_template_are_refused_because_the_store_does_not_keep_them(
    serve: Callable[[], Server],
) -> None:
    server = serve()
    with pytest.raises(openai.BadRequestError, match="remove enable_thinking, and set them for the model"):
        server.ask([user("hi")], extra_body={"enable_thinking": False})
    assert not list(server.store.all())


def test_no_other_key_continues_it(serve: Callable[[], Server]) -> None:
    server = serve()
    messages = [user("one")]
    messages += [said(server.ask(messages)), user("two")]
    server = serve()
    server.ask(messages, key=OTHER)
    server.ask(messages, key=CHAT)
    first, others, own = server.store.all()
    assert (others.key, others.parent, others.conversation) == ("other", None, others.id)
    assert (own.key, own.parent, own.conversation) == ("app", first.id, first.id)


@pytest.mark.whole
def test_a_branch_continues_the_reply_that_it_names(serve: Callable[[], Server]) -> None:
    server = serve()
    start = [user("one")]
    start += [said(server.ask(start))]
    for text in ("left", "right"):
        server = serve()
        server.ask([*start, user(text)])
    first, left, right = server.store.all()
    assert left.parent == right.parent == first.id


@pytest.mark.whole
def test_many_clients_at_once_lose_nothing(serve: Callable[[], Server]) -> None:
    server = serve()
    names: list[str] = []

    def work(number: int) -> None:
        messages = [user(f"client {number}")]
        for _ in range(5):
            reply = server.ask(messages)
            names.append(reply.id.removeprefix("chatcmpl-"))
            messages += [said(reply), user("and?")]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(names) == sorted(t.id for t in server.store.all()) and len(names) == 40
    assert len({t.conversation for t in server.store.all()}) == 8


def test_greedy_calls_are_recorded_but_not_trained(serve: Callable[[], Server]) -> None:
    server = serve()
    server.ask([user("hi")], temperature=0)
    server.ask([user("hi")], top_p=0.5)
    assert [t.trained for t in server.store.all()] == [False, False]


# --------------------------------------------------------------------------- feedback


def test_feedback_says_what_it_has_done(serve: Callable[[], Server]) -> None:
    server = serve()
    name = server.ask([user("hi")]).id
    body = {
        "msg_ids": [name, "chatcmpl-nobody"],
        "reward": 0,
        "task_id": 7,
        "correction": "hello",
        "comment": "short",
    }
    assert server.post("/feedback", body, key=RATER).json() == {
        "status": "success",
        "message": "1 rated, 0 unchanged, 1 unknown: chatcmpl-nobody",
        "rated": [name],
        "unchanged": [],
        "unknown": ["chatcmpl-nobody"],
    }
    assert server.post("/feedback", {**body, "reward": 1}).json()["unchanged"] == [name]
    (trace,) = server.store.all()
    assert (trace.reward, trace.task_id, trace.run_id, trace.correction) == (0.0, "7", "0", "hello")
    assert server.post("/commit", {"task_id": "7", "run_id": 0, "details": True}).json()["committed"] == 1


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("/feedback", b"{", "the body must be a JSON object"),
        ("/feedback", {}, "exactly one of msg_ids, run and conversation"),
        ("/feedback", {"msg_ids": "a", "reward": 1, "task_id": "t"}, "msg_ids must be a list"),
        ("/feedback", {"msg_ids": [], "reward": 1, "task_id": "t"}, "msg_ids must be a list"),
        ("/feedback", {"msg_ids": ["a"], "task_id": "t"}, "reward must be a number from 0 to 1"),
        (
            "/feedback",
            {"msg_ids": ["a"], "reward": "1", "task_id": "t"},
            "reward must be a number from 0 to 1",
        ),
        (
            "/feedback",
            b'{"msg_ids": ["a"], "reward": NaN, "task_id": "t"}',
            "reward must be a number from 0 to 1",
        ),
        ("/feedback", {"msg_ids": ["a"], "reward": 1}, "task_id is missing; for a rating of one reply"),
        (
            "/feedback",
            {"msg_ids": ["a"], "reward": 1, "task_id": "t", "run_id": [1]},
            "run_id must be a string",
        ),
        (
            "/feedback",
            {"msg_ids": ["a"], "reward": 1, "task_id": "t", "comment": 1},
            "comment must be a string",
        ),
        ("/commit", {"time_threshold": "now"}, "time_threshold must be a time in seconds"),
        ("/commit", [1], "the body must be a JSON object"),
    ],
)
def test_missing_and_mistyped_fields_are_named(standing: Server, path: str, body: Any, problem: str) -> None:
    answered = standing.post(path, body)
    assert answered.status_code == 400
    assert problem in answered.json()["error"]["message"]


@pytest.mark.whole
def test_keys_open_only_what_they_are_for(serve: Callable[[], Server]) -> None:
    server = serve()
    body = {"msg_ids": ["a"], "reward": 1, "task_id": "t"}
    assert server.post("/feedback", body, key=OTHER).status_code == 403
    assert server.post("/feedback", body, key="wrong").status_code == 401
    assert server.post("/commit", b"", key=OTHER).status_code == 403
    with pytest.raises(openai.AuthenticationError):
        server.ask([user("hi")], key=RATER)
    assert not list(server.store.all())


def test_without_its_store_the_explorer_delivers_nothing(
    serve: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ajet_online.database import StoreFailed

    server = serve()

    def fail(traces: Any) -> None:
        raise StoreFailed(
            "store x: database or disk is full. Free space on its disk; what was acknowledged is kept."
        )

    monkeypatch.setattr(server.store, "record", fail)
    with pytest.raises(openai.InternalServerError, match="database or disk is full") as found:
        server.ask([user("hi")])
    assert found.value.status_code == 503
    streamed = server.post("/v1/chat/completions", {"model": "m", "messages": [user("hi")], "stream": True})
    assert "database or disk is full" in streamed.text and '"finish_reason":"stop"' not in streamed.text
    assert '"type":"server_error"' in streamed.text and "[DONE]" not in streamed.text
    monkeypatch.undo()
    reply = server.ask([user("hi")])
    server.ask([user("hi"), said(reply), user("and?")])
    first, second = server.store.all()
    assert second.parent in (first.id, None), "no reply that is not in the store is continued"


@pytest.mark.whole
def test_a_store_of_another_vocabulary_is_refused(serve: Callable[[], Server]) -> None:
    server = serve()
    engine = ScriptedEngine(tokenizers.llama3(), answer, model_type="llama")
    answerer = Answerer(engine, Chat(engine.tokenizer, "llama"), (Target("policy"),), SamplingPolicy(False))
    where = {"models": ["m"], "host": "127.0.0.1", "port": 0, "most_calls": 1}
    portal = Portal()
    try:
        with (
            pytest.raises(ConfigError, match=r"another vocabulary\. Serve that model, or name another store"),
            exploring(portal, answerer, server.store, KEYS, **where),
        ):
            pass
    finally:
        portal.close()


def test_an_image_is_refused_because_the_store_holds_only_text(serve: Callable[[], Server]) -> None:
    server = serve()
    with pytest.raises(openai.BadRequestError, match="the store of online training holds only text"):
        server.ask([seen("Which colour?")])
    assert not list(server.store.all())
