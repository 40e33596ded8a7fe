"""`ajet new`: what it writes runs at once, around an agent of its own or one that is already there."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet_projects.project import KINDS, TEMPLATES
from tests.pages import files, page
from tests.program import Outcome, Program
from tests.tiny import save_tiny_model

FRAMEWORKS = {
    "plain": "openai",
    "langgraph": "langchain.agents",
    "agentscope": "agentscope.credential",
    "openai-agents": "agents",
    "autogen": "autogen_agentchat",
}
ASK = """
import httpx

async def ask(query):
    async with httpx.AsyncClient() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": query}]}
        answer = await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A tiny model, of which only the chat template is used."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), tokenizer)


def job(folder: Path) -> dict[str, Any]:
    """The job of a project."""
    found: dict[str, Any] = yaml.safe_load((folder / "job.yaml").read_text())
    return found


def check(ajet: Program, folder: Path, model: Path, calls: bool = False, job: str = "job.yaml") -> Outcome:
    """`ajet check` of a project on scripted answers, which are right."""
    answers = []
    for task in map(json.loads, (folder / "tasks.jsonl").read_text().splitlines()):
        expression = task["query"].removeprefix("What is ").removesuffix("?")
        call = {"name": "calculate", "arguments": {"expression": expression}}
        answers += [{"turn": 0, "when": task["query"], "call": call}] if calls else []
        answers += [{"when": task["query"], "say": f"It is {task['answer']}."}]
    (folder / "answers.yaml").write_text(json.dumps(answers))
    words = [
        "--answers",
        str(folder / "answers.yaml"),
        "--model",
        str(model),
        "--first",
        "1",
        "--group-size",
        "2",
    ]
    return ajet("check", job, *words)


# ------------------------------------------------------------------ an agent of its own


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_runs_at_once(
    kind: str, folder: Path, ajet: Program, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[kind])
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    made = ajet("new", "sums", "--agent", kind)
    assert made.out == f"Created sums, to train {KINDS[kind][0]}. Next: cd sums && ajet check job.yaml\n"
    monkeypatch.chdir("sums")
    calls = (folder / "sums" / "calculator.py").exists()
    assert job(folder / "sums")["model"] == ("smollm2-tools" if calls else "smollm2")
    checked = check(ajet, folder / "sums", model, calls)
    assert checked.code == 0 and "reward              1.00" in checked.out, checked.out + checked.err
    assert f"calls captured      {4 if calls else 2}," in checked.out


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_is_small_and_knows_nothing_of_agentjet(kind: str) -> None:
    text = (TEMPLATES / "agents" / f"{kind}.py.txt").read_text()
    assert "ajet" not in text.lower() and len([line for line in text.splitlines() if line.strip()]) <= 30


def test_plain_is_the_default(folder: Path, ajet: Program) -> None:
    ajet("new", "one"), ajet("new", "two", "--agent", "plain")
    one, two = ({p.name: p.read_text() for p in (folder / name).iterdir()} for name in ("one", "two"))
    assert one.pop("README.md").replace("# one", "# two") == two.pop("README.md") and one == two


@pytest.mark.whole
def test_the_tests_of_a_project_pass(folder: Path, ajet: Program) -> None:
    ajet("new", "sums")
    words = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "sums", "sums"]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], capture_output=True, text=True)
    assert done.returncode == 0 and "9 passed" in done.stdout, done.stdout


def test_what_it_writes_is_sound_code_without_gaps(folder: Path, ajet: Program) -> None:
    for kind in KINDS:
        ajet("new", "sums", "--agent", kind, "--folder", kind)
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "F,B,UP,SIM",
        str(folder),
    ]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 40 and [path for path in written if "«" in path.read_text()] == []


def test_the_readme_has_the_commands_and_names_every_file(folder: Path, ajet: Program) -> None:
    ajet("new", "my-sums", "--agent", "langgraph")
    text = (folder / "my-sums" / "README.md").read_text()
    assert text.startswith("# my sums\n") and 'pip install "ajet[local,langgraph]" "langchain"' in text
    for command in ("check job.yaml", "forecast job.yaml", "run job.yaml", "show runs", "serve CHECKPOINT"):
        assert f"`ajet {command}`" in text
    assert [
        p.name for p in (folder / "my-sums").iterdir() if p.name != "README.md" and f"`{p.name}`" not in text
    ] == []


def test_what_is_missing_is_a_step_of_its_own(ajet: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_projects.project.find_spec", lambda name: None)
    made = ajet("new", "sums", "--agent", "agentscope")
    install = shlex.join(["pip", "install", "ajet[local,agentscope]", "agentscope>=2"])
    assert made.out.endswith(f"Next: cd sums && {install} && ajet check job.yaml\n")


@pytest.mark.slow
@pytest.mark.models("smollm2")
def test_a_new_project_trains_its_model(folder: Path, ajet: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    ajet("new", "sums")
    monkeypatch.chdir("sums")
    smaller = [
        "--set",
        "train.batch_size=2",
        "--set",
        "rollout.group_size=4",
        "--set",
        "task.validation=null",
    ]
    trained = ajet("run", "job.yaml", "--steps", "2", *smaller)
    assert trained.code == 0, trained.err
    assert list((folder / "sums" / "runs").glob("*/checkpoints/step_000002"))


# ------------------------------------------------------------------ --from

FUNCTION = ASK + "async def run(task):\n    return await ask(task.query)\n"
CLASS = ASK + "class Solver:\n    async def execute(self, task):\n        return await ask(task.query)\n"
TEXT = ASK.replace("(query)", "(query: str, retries: int = 0) -> str")
PLAIN_TEXT = (
    TEXT.replace("async with httpx.AsyncClient", "with httpx.Client")
    .replace("async ", "")
    .replace("await ", "")
)
GRAPH = (
    ASK
    + """
from langgraph.graph import START, MessagesState, StateGraph

async def solver(state):
    return {"messages": [("ai", await ask(state["messages"][-1].text))]}

graph = StateGraph(MessagesState).add_node(solver).add_edge(START, "solver").compile()
"""
)
SDK = """
from agents import Agent, OpenAIChatCompletionsModel
from openai import AsyncOpenAI

solver = Agent("solver", model=OpenAIChatCompletionsModel("gpt-5-mini", AsyncOpenAI(api_key="unset")))
"""
CALLING_SDK = (
    SDK.replace("AsyncOpenAI\n", "AsyncOpenAI\nfrom agents import Runner, WebSearchTool\n").replace(
        '"solver",', '"solver", tools=[WebSearchTool()],'
    )
    + "\nasync def run(task):\n    return (await Runner.run(solver, task.query)).final_output\n"
)
CALLING_GRAPH = """
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

def query(sql: str) -> str:
    "Its rows."

librarian = create_agent(ChatOpenAI(model="gpt-5-mini", api_key="unset"), [query])

async def run(task):
    state = await librarian.ainvoke({"messages": [("user", task.query)]})
    return state["messages"][-1].text
"""


@pytest.mark.parametrize(
    ("text", "name", "what", "workflow"),
    [
        (FUNCTION, "run", "an async function", "../my_agent.py:run"),
        (CLASS, "Solver", "a class", "../my_agent.py:Solver"),
        (TEXT, "ask", "an async function", "workflow.py:run"),
        (PLAIN_TEXT, "ask", "a function", "workflow.py:run"),
        (GRAPH, "graph", "a CompiledStateGraph of langgraph", "../my_agent.py:graph"),
        (SDK, "solver", "an Agent of agents", "workflow.py:run"),
    ],
)
def test_a_project_around_an_agent_runs_it_unchanged(
    text: str,
    name: str,
    what: str,
    workflow: str,
    folder: Path,
    ajet: Program,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if text in (GRAPH, SDK):
        pytest.importorskip("langgraph" if text == GRAPH else "agents")
    (folder / "my_agent.py").write_text(text)
    made = ajet("new", "shop", "--from", f"my_agent.py:{name}")
    assert (
        made.out
        == f"Created shop, to train my_agent.py:{name} ({what}). Its tasks are sums: put yours into tasks.jsonl and held_out.jsonl. "
        "Its model is small: show it examples, also of tool calls, as `ajet docs own-agent#what-a-small-model-needs` does. "
        "Next: cd shop && ajet check job.yaml\n"
    )
    assert (folder / "my_agent.py").read_text() == text and not (folder / "shop" / "agent.py").exists()
    assert job(folder / "shop")["workflow"] == workflow
    monkeypatch.chdir("shop")
    checked = check(ajet, folder / "shop", model)
    assert checked.code == 0 and "reward              1.00" in checked.out, checked.out + checked.err


def test_an_agent_in_a_package_is_run_from_where_it_is_imported(
    folder: Path, ajet: Program, model: Path
) -> None:
    (folder / "my_package").mkdir()
    (folder / "my_package" / "agents.py").write_text(TEXT)
    made = ajet("new", "shop", "--from", "my_package.agents:ask")
    assert made.out.endswith("Next: ajet check shop/job.yaml\n")
    assert "`ajet run shop/job.yaml`" in (folder / "shop" / "README.md").read_text()
    assert check(ajet, folder / "shop", model, job="shop/job.yaml").code == 0


def test_a_project_around_a_command_runs_it_from_where_it_is(
    folder: Path, ajet: Program, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (TEMPLATES / "agents" / "command.py.txt").read_text()
    (folder / "my_agent.py").write_text(program)
    command = "cmd:python my_agent.py '# a: b'"
    made = ajet("new", "shop", "--from", command, "--folder", "projects/shop")
    assert made.out.startswith(f"Created projects/shop, to train {command} (a command). Its tasks are sums")
    assert "Next: cd projects/shop" in made.out
    assert job(folder / "projects/shop")["workflow"] == command
    monkeypatch.chdir("projects/shop")
    checked = check(ajet, folder / "projects/shop", model)
    assert checked.code == 0 and "reward              1.00" in checked.out, checked.out + checked.err


def test_a_graph_with_tools_gets_a_model_that_calls_them(folder: Path, ajet: Program) -> None:
    pytest.importorskip("langchain.agents")
    ajet("new", "sums", "--agent", "langgraph")
    ajet("new", "again", "--from", "sums/agent.py:graph")
    assert job(folder / "again")["model"] == "smollm2-tools"
    assert '"ajet[local,langgraph]"' in (folder / "again" / "README.md").read_text()


@pytest.mark.parametrize(
    ("text", "needs", "extra"),
    [(CALLING_GRAPH, "langchain.agents", "langgraph"), (CALLING_SDK, "agents", "openai-agents")],
)
def test_a_function_that_runs_an_agent_with_tools_gets_a_model_that_calls_them(
    text: str, needs: str, extra: str, folder: Path, ajet: Program
) -> None:
    pytest.importorskip(needs)
    (folder / "my_agent.py").write_text(text)
    ajet("new", "shop", "--from", "my_agent.py:run")
    assert job(folder / "shop")["model"] == "smollm2-tools"
    assert f'"ajet[local,{extra}]"' in (folder / "shop" / "README.md").read_text()


def test_the_page_shows_a_small_model_calls_as_earlier_messages(
    folder: Path, ajet: Program, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("langchain.agents")
    monkeypatch.setenv("OPENAI_API_KEY", "unset")
    (folder / "clerk.py").write_text(files(page("docs/own-agent.md"))["clerk.py"])
    (folder / "tasks.jsonl").write_text('{"query": "How many screws are there?", "answer": "12"}\n')
    call = {"name": "count", "arguments": {"item": "screws"}}
    said = json.dumps([{"when": "<tool_response>\n12", "say": "12."}, {"call": call}])
    (folder / "answers.yaml").write_text(said)
    flags = ["--workflow", "clerk.py:run", "--judge", "math", "--tasks", "tasks.jsonl", "--model", str(model)]
    checked = ajet("check", *flags, "--answers", "answers.yaml")
    assert "reward              1.00" in checked.out, checked.out + checked.err


NONE = (
    ASK
    + "answer = 3\n\ndef nothing():\n    return 0\n\nclass Chat:\n    def send(self, text): ...\n\nchat = Chat()\n"
)
TEAM = """
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

solver = AssistantAgent("solver", OpenAIChatCompletionClient(model="gpt-5-mini", api_key="unset"))
"""
STATE = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

graph = StateGraph(TypedDict("State", {"question": str})).add_node("a", lambda s: s).add_edge(START, "a").compile()
"""


@pytest.mark.parametrize(
    ("text", "name", "found", "needed"),
    [
        (NONE, "answer", "is an int of builtins: int is not callable", "Needed is a function run(task), "),
        (
            NONE,
            "nothing",
            "is a function: must take (task) or (task, tuner), but takes ()",
            "Needed is a function",
        ),
        (NONE, "Chat", "is a class: the class has no method `execute", "Needed is a function"),
        (NONE, "chat", "is a Chat of my_agent: Chat is not callable", "Needed is a function"),
        (
            TEAM,
            "solver",
            "is an AssistantAgent of autogen_agentchat, which keeps",
            "Write a function run(task)",
        ),
        (
            STATE,
            "graph",
            "this graph takes question, but no `messages`",
            "name a function `async def run(task)`",
        ),
        (NONE, "rum", "my_agent.py has no 'rum'", ""),
        ("import nothing_of_this_name\n", "run", "does not import: ModuleNotFoundError", ""),
    ],
)
def test_where_nothing_fits_the_error_says_what_is_there_and_what_is_needed(
    text: str, name: str, found: str, needed: str, folder: Path, ajet: Program
) -> None:
    if text in (TEAM, STATE):
        pytest.importorskip("autogen_ext.models.openai" if text == TEAM else "langgraph")
    (folder / "my_agent.py").write_text(text)
    refused = ajet("new", "shop", "--from", f"my_agent.py:{name}")
    assert refused.code == 2 and len(refused.err.splitlines()) == 1
    assert refused.err.startswith(f"error: --from my_agent.py:{name}: ") and found in refused.err, refused.err
    assert needed in refused.err and not (folder / "shop").exists()


def test_a_file_without_a_name_lists_what_could_be_meant(folder: Path, ajet: Program) -> None:
    (folder / "my_agent.py").write_text(FUNCTION + NONE)
    refused = ajet("new", "shop", "--from", "my_agent.py")
    assert (
        refused.err
        == "error: --from my_agent.py: names no object in it. It has ask, run: --from my_agent.py:ask.\n"
    )
    assert "no such file" in ajet("new", "shop", "--from", "other.py").err
    (folder / "workflow.py").write_text(TEXT + "async def run(task):\n    return await ask(task.query)\n")
    named = ajet("new", "shop", "--from", "workflow.py").err
    assert "It has run, ask: --from workflow.py:run." in named, "what takes a text is often a tool"


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("my shop",),
            "my shop: a project's name has only letters, digits, hyphens and underscores, such as my-agent; ",
        ),
        (("../shop",), "../shop: a project's name has only"),
        (("full",), "full already exists; name a new folder with --folder."),
        (("shop", "--folder", "full"), "full already exists"),
        (
            ("shop", "--folder", "full/notes.txt/x"),
            "--folder full/notes.txt/x cannot be written (Not a directory).",
        ),
        (
            ("shop", "--agent", "langraph"),
            "--agent langraph: unknown; did you mean 'langgraph'. Known: plain, langgraph, ",
        ),
        (
            ("shop", "--agent", "plain", "--from", "a.py:run"),
            "--from a.py:run brings its own agent; leave out --agent.",
        ),
    ],
)
def test_mistakes_are_named_in_one_line_and_nothing_is_written(
    words: tuple[str, ...], message: str, folder: Path, ajet: Program
) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "notes.txt").write_text("mine")
    refused = ajet("new", *words)
    assert refused.code == 2 and refused.err.startswith(f"error: {message}"), refused.err
    assert len(refused.err.splitlines()) == 1
    assert [p.name for p in folder.rglob("*")] == ["full", "notes.txt"] and (
        folder / "full/notes.txt"
    ).read_text() == "mine"


def test_an_empty_folder_is_filled(folder: Path, ajet: Program) -> None:
    (folder / "sums").mkdir()
    assert ajet("new", "sums").code == 0 and (folder / "sums" / "job.yaml").exists()
