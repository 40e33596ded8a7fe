"""What runs and checks say of calls that were not captured: what was asked, on which line, and what helps."""

from __future__ import annotations

import logging
import re
import threading

import pytest

from tests.program import Outcome
from tests.tiers import thinned

from .conftest import Folder

CLOSED = "http://127.0.0.1:9"  # the discard port: a request that gets out fails at once
BODY = '{"model": "m", "messages": [{"role": "user", "content": "2+2?"}]}'


def agent(folder: Folder, code: str) -> None:
    folder.write("agent.py", f"URL, BODY = {CLOSED!r}, {BODY}\n{code}")


def line_of(folder: Folder, text: str) -> str:
    """``…/agent.py:17``: the line of the agent that holds a text."""
    lines = (folder.path / "agent.py").read_text().splitlines()
    return f"{folder.path}/agent.py:{next(i for i, line in enumerate(lines, 1) if text in line)}"


def run(folder: Folder, *options: str) -> Outcome:
    return folder.ajet("run", "job.yaml", "--steps", "1", *options)


def check(folder: Folder, *options: str) -> Outcome:
    outcome = folder.ajet("check", "job.yaml", "--answers", "script.yaml", "--group-size", "2", *options)
    assert outcome.code in (0, 1), outcome.err
    return outcome


# ------------------------------------------------------------------ while the workflow is imported


IMPORTS = """
import httpx
{call}
async def run(task):
    return (await httpx.AsyncClient().post(URL + "/v1/chat/completions", json=BODY)).json()
"""


@pytest.mark.parametrize("command", ["run", "check", "eval"])
def test_a_call_while_the_workflow_is_imported_is_refused_with_what_and_where(
    command: str, folder: Folder
) -> None:
    call = 'openai.OpenAI(base_url=URL + "/v1", api_key="k").chat.completions.create(**BODY)'
    agent(folder, IMPORTS.format(call=f"import openai\n{call}"))
    outcome = folder.ajet(command, "job.yaml")
    assert outcome.code == 2
    for said in ("agent.py:run is imported", "passthrough", line_of(folder, call)):
        assert said in outcome.err
    assert "\n" not in outcome.err.strip()


@pytest.mark.whole
def test_a_call_whose_error_is_swallowed_is_a_warning(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    call = 'httpx.post(URL + "/v1/chat/completions", json=BODY)'
    agent(folder, IMPORTS.format(call=call))
    with caplog.at_level(logging.WARNING, "ajet"):
        assert run(folder).code == 0
    (warning,) = [r.getMessage() for r in caplog.records if "is imported" in r.getMessage()]
    assert f"{CLOSED}/v1/chat/completions ({line_of(folder, call)})" in warning


def test_passthrough_says_that_a_call_is_meant_to_be_real(folder: Folder) -> None:
    call = 'with ajet.passthrough(): httpx.post(URL + "/v1/chat/completions", json=BODY)'
    agent(folder, IMPORTS.format(call=f"import ajet\n{call}"))
    outcome = run(folder)
    assert outcome.code == 2 and "ConnectError" in outcome.err


# ------------------------------------------------------------------ of an agent that capture does not see


RAISES = """
import requests
def run(task):
    return requests.post(URL + "/models/x:answer", json=BODY).json()
"""
SWALLOWS = """
import httpx
def run(task):
    try:
        httpx.post(URL + "{path}", json=BODY).raise_for_status()
    except httpx.HTTPError:
        pass
    return httpx.post(URL + "/v1/chat/completions", json=BODY).json()["choices"][0]["message"]["content"]
"""


def test_a_run_that_fails_names_what_was_not_captured(folder: Folder) -> None:
    """`eval`, as it fails where a training run does: inside, with the first step."""
    agent(folder, RAISES)
    endpoint = ("--endpoint", f"{CLOSED}/v1", "--endpoint-model", "m")
    outcome = folder.ajet("eval", "job.yaml", *endpoint)
    said = outcome.out + outcome.err
    assert outcome.code == 1
    assert re.search(r"\d+ connections during episodes were not captured: 127.0.0.1:9 \(", said)
    assert line_of(folder, "requests.post") in said and "passthrough" in said


LEAVES = """
import openai
CLIENT = openai.OpenAI(base_url=URL + "/v1", api_key="k")
def second(task):
    CLIENT.chat.completions.create(**BODY)
    return run(task)
def run(task):
    for event in CLIENT.chat.completions.create(**BODY, stream=True):
        if event.choices and event.choices[0].delta.content:
            return event.choices[0].delta.content
"""


def test_answers_that_an_agent_does_not_take_whole_are_counted_and_named(folder: Folder) -> None:
    agent(folder, LEAVES)
    page = check(folder).out
    assert (
        "nothing_captured:abandoned: the workflow ended without an answered LLM call: it left 1 before"
        in page
    )
    assert "Read each stream to its end, and await each call" in page
    assert "calls were left" not in page
    page = check(folder, "--workflow", "agent.py:second").out
    assert re.search(r"! \d calls were left before their answer was complete, and are not recorded", page)
    assert re.search(r"calls captured +4, 1.0 an episode", page)


def test_each_cause_of_refused_calls_is_named_though_one_line_makes_them_all(folder: Folder) -> None:
    agent(
        folder,
        "import openai\nCLIENT = openai.OpenAI(base_url=URL + '/v1', api_key='k')\n"
        "def run(task):\n"
        "    for more in ({}, {'top_logprobs': 2, 'logprobs': True}, {'frequency_penalty': 1.5}):\n"
        "        try:\n"
        "            said = CLIENT.chat.completions.create(**BODY, **more)\n"
        "        except openai.BadRequestError:\n"
        "            pass\n"
        "    return said.choices[0].message.content\n",
    )
    page = check(folder).out
    assert len(re.findall(r"! \d+ LLM calls were refused: unsupported_parameter", page)) == 2
    assert "top_logprobs" in page and "frequency_penalty" in page


def test_an_agent_on_requests_needs_no_change(folder: Folder) -> None:
    agent(folder, RAISES.replace("/models/x:answer", "/v1/chat/completions"))
    page = check(folder).out
    assert re.search(r"calls captured +4, 1.0 an episode; by agent: agent 4", page)
    assert "not captured" not in page and "refused" not in page


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("/api/chat", 'OpenAI(base_url="http://localhost:11434/v1"'),
        ("/v2/chat", "/compatibility/v1"),
        ("/v1beta/interactions", "client.models.generate_content"),
        ("/v1beta/models/m:embedContent", "ajet.passthrough()"),
        ("/v1/embeddings", "ajet.passthrough()"),
    ],
)
@pytest.mark.parametrize("command", [run, check])
@thinned
def test_a_refused_call_is_told_with_its_address_and_line_where_its_error_is_swallowed(
    command, path: str, remedy: str, folder: Folder
) -> None:
    """And the ollama client's remedy names the address that ends with /v1."""
    agent(folder, SWALLOWS.format(path=path))
    outcome = command(folder)
    said = outcome.out + outcome.err
    where = f"{CLOSED}{path} ({line_of(folder, path)})"
    assert re.search(rf"\d LLM calls were refused: unsupported_wire, {re.escape(where)}", said)
    assert remedy in said


@pytest.mark.whole
def test_both_places_of_a_check_count_alike_where_episodes_are_retried(folder: Folder) -> None:
    agent(
        folder,
        SWALLOWS.format(path="/api/chat").replace(
            "    return", '    __import__("socket").create_connection(("127.0.0.1", 9))\n    return'
        ),
    )
    outcome = check(folder, "--set", "rollout.retries=1", "--first", "1")
    (at_the_end,) = re.findall(r"(\d+) connections during episodes were not captured", outcome.err)
    (in_the_report,) = re.findall(r"! (\d+) connections were not captured", outcome.out)
    assert at_the_end == in_the_report == "4", "two episodes, each tried twice"
    assert re.findall(r"(\d+) LLM calls were refused", outcome.err + outcome.out) == ["4", "4"]


# ------------------------------------------------------------------ threads and processes


CALL = """
import httpx
def call():
    answer = httpx.post(URL + "/v1/chat/completions", json=BODY)
    return answer.json()["choices"][0]["message"]["content"] if answer.is_success else "refused"
"""
THREAD = (
    CALL
    + """
import threading
def run(task):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return call()
"""
)
POOL = (
    CALL
    + """
import concurrent.futures, multiprocessing
def run(task):
    context = multiprocessing.get_context("{kind}")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        pool.submit({work}).result()
    return call()
"""
)


def test_the_remedy_for_a_plain_thread_is_threads_all(folder: Folder) -> None:
    agent(folder, THREAD)
    outcome = run(folder)
    said = outcome.out + outcome.err
    where = f"{CLOSED}/v1/chat/completions ({line_of(folder, 'httpx.post')})"
    assert f"refused: outside_episode, {where}" in said
    assert "rollout.threads: all" in said and "strict: false" not in said
    applied = run(folder, "--set", "rollout.threads=all")
    assert "refused" not in applied.out + applied.err


@pytest.mark.whole
def test_tracebacks_of_the_threads_of_an_agent_are_kept_with_their_episodes(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest's own one keeps them, too
    agent(folder, THREAD.replace("if answer.is_success", "if answer.raise_for_status()"))
    outcome = check(folder)
    assert "Error" not in outcome.err and "episodes printed" in outcome.err
    assert outcome.out.count("Client error '400 Bad Request'") == 1
    assert "4 of 4 episodes print:" in outcome.out


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_remedy_for_a_process_pool_is_the_gateway(folder: Folder) -> None:
    agent(folder, POOL.format(kind="fork", work="call"))
    outcome = run(folder)
    said = outcome.out + outcome.err
    where = f"{CLOSED}/v1/chat/completions ({line_of(folder, 'httpx.post')})"
    assert f"refused: no_gateway, {where}" in said and "rollout.gateway: true" in said
    applied = run(folder, "--set", "rollout.gateway=true")
    assert "refused" not in applied.out + applied.err


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_agent_that_waits_forever_for_a_child_whose_call_was_refused_ends_with_the_cause(
    folder: Folder,
) -> None:
    """As in `multiprocessing.Pool`: the errors of OpenAI's client cannot be unpickled, the pool's thread dies, its callers wait."""
    code = (
        "import multiprocessing, openai, threading\n"
        "def call():\n"
        "    client = openai.OpenAI(base_url=URL + '/v1', api_key='k', max_retries=0)\n"
        "    try: client.chat.completions.create(**BODY)\n"
        "    except openai.OpenAIError: pass\n"
        "def run(task):\n"
        "    multiprocessing.get_context('fork').Process(target=call).start()\n"
        "    threading.Event().wait()\n"
    )
    agent(folder, code)
    said = check(folder, "--first", "1", "--set", "rollout.retries=0", "--set", "rollout.timeout=5s").out
    assert "2 of 2 episodes failed: workflow:no_gateway: no result within 5 s" in said
    assert "Set rollout.gateway: true" in said and f"({line_of(folder, 'client.chat')})" in said


@pytest.mark.whole
def test_a_spawned_process_finds_the_module_of_the_workflow(folder: Folder) -> None:
    agent(folder, POOL.format(kind="spawn", work="work") + "\ndef work():\n    return 4\n")
    (folder.path / "agent.py").rename(folder.path / "mp_agent.py")
    outcome = run(folder, "--workflow", "mp_agent.py:run", "--set", "rollout.retries=0")
    assert outcome.code == 0 and "No module named" not in outcome.out + outcome.err
