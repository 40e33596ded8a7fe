"""Claude Code, unmodified, gets only the skill and an agent program without AgentJet. The scripted model behind it knows no command of
AgentJet: it reads them in what Claude Code shows of SKILL.md, and puts what it has read of the program into their placeholders."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ajet.cli import run_program
from tests.harnesses.programs import head, installed
from tests.patience import PATIENCE

AGENT = '''
import json

from openai import OpenAI

TOOLS = [{"type": "function", "function": {"name": "multiply", "description": "The product of two numbers", "parameters":
    {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}}]


def settle_invoice(question: str) -> str:
    """Answers a question about an invoice."""
    messages = [{"role": "system", "content": "Answer with the amount."}, {"role": "user", "content": question}]
    while True:
        reply = OpenAI(api_key="unset").chat.completions.create(model="gpt-5-mini", messages=messages, tools=TOOLS)
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            given = json.loads(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] * given["b"])})
'''
pytestmark = pytest.mark.whole
STEP = "A step of the skill"
QUESTION = "Train my agent with ajet. My tasks are invoices: how much are N pieces of P euros each? Use the model starter."


def tasks(first: int, count: int) -> str:
    lines = [
        {"query": f"How much are {n} pieces of {n % 7 + 2} euros each?", "answer": str(n * (n % 7 + 2))}
        for n in range(first, first + count)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


class Model:
    """What a model that follows the skill says next, as a pair of text and tool calls."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        """Those it has asked for, as they stood in the skill."""

    def next(self, request: dict[str, Any]) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
        if not request.get("tools"):
            return "A title", []
        told, used = (
            _told(request),
            [block for m in request["messages"] for block in _blocks(m) if block["type"] == "tool_use"],
        )
        if not used:
            return "", [("Skill", {"skill": "ajet"})]
        shown = re.search(r"Base directory for this skill: (\S+)", told)
        if not shown:
            return "I was shown no skill.", []
        commands = re.findall(r"^\$ (.+)$", told[shown.end() :], re.MULTILINE)
        written = dict(
            zip(("train", "held_out", "judge"), re.findall(r"`(\w+\.jsonl|judge\.py)`", told), strict=False)
        )
        # It looks for what runs the agent, and takes the skill's steps 1 and 2: up to the second check with answers.
        end = next((n for n, command in enumerate(commands) if "wrong.yaml" in command), -1)
        steps = ["cat *.py", *commands[: end + 1]]
        agent = re.search(r"def (\w+)\(question", told)
        number = sum(block["input"].get("description") == STEP for block in used)
        if number >= len(steps):
            return "The job is checked.", []
        command = steps[number]
        if number:
            self.commands.append(command)
        command = command.replace("SKILL", shown[1])
        if agent:
            command = command.replace("agent.py:answer", f"billing.py:{agent[1]}")
        calls = [("Bash", {"command": command, "description": STEP})]
        if command.startswith("cd ") and {"train", "held_out"} <= written.keys():
            # What the user asked for, besides the skill's commands.
            folder = command.split()[1]
            chosen = f"sed -i 's/^model: .*/model: starter/' {folder}/job.yaml"
            calls.insert(0, ("Bash", {"command": chosen, "description": "The user's model"}))
            for name, count in (("train", 32), ("held_out", 16)):
                put = tasks(1 if name == "train" else 101, count)
                calls.insert(
                    0,
                    (
                        "Bash",
                        {
                            "command": f"cat > {folder}/{written[name]} <<'END'\n{put}END",
                            "description": "Tasks",
                        },
                    ),
                )
        return "", calls


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _told(request: dict[str, Any]) -> str:
    """All text of a request, without what the model itself has said."""
    texts: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list):
            for one in value:
                walk(one)
        elif isinstance(value, dict):
            for name in ("text", "content"):
                walk(value.get(name))

    walk(request.get("system"))
    walk([m["content"] for m in request["messages"] if m["role"] != "assistant"])
    return "\n".join(texts)


@pytest.fixture
def model() -> Iterator[tuple[Model, str]]:
    """A model behind Anthropic's Messages API on a loopback port."""
    scripted = Model()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or "{}")
            if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
                self.send_error(404)
                return
            text, calls = scripted.next(request)
            events = list(_events(text, calls))
            body = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield scripted, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def _events(text: str, calls: list[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {
        "id": f"msg_{os.urandom(8).hex()}",
        "type": "message",
        "role": "assistant",
        "model": "any",
        "content": [],
        "stop_reason": None,
    }
    yield {"type": "message_start", "message": message | {"stop_sequence": None, "usage": usage}}
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": text}) if not calls else ({}, {})
    ][: 0 if calls else 1]
    for name, arguments in calls:
        start = {"type": "tool_use", "id": f"toolu_{os.urandom(8).hex()}", "name": name, "input": {}}
        blocks.append((start, {"type": "input_json_delta", "partial_json": json.dumps(arguments)}))
    for index, (start, delta) in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    reason = "tool_use" if calls else "end_turn"
    yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def followed(folder: Path, url: str) -> str:
    """What Claude Code says at its end, with the skill as `ajet skill install` puts it there."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "CLAUDE"))},
        "PATH": os.pathsep.join(
            (str(installed("claude-code")), str(Path(sys.executable).parent), os.environ["PATH"])
        ),
        "HOME": str(folder.parent / "home"),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "unset",
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    Path(environment["HOME"]).mkdir(exist_ok=True)
    command = ["claude", "-p", QUESTION, "--dangerously-skip-permissions"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=20 * PATIENCE
    )
    return done.stdout + done.stderr


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an agent and nothing of AgentJet but the skill."""
    folder = tmp_path / "work"
    (folder / ".claude").mkdir(parents=True)
    (folder / "billing.py").write_text(AGENT)
    monkeypatch.chdir(folder)
    assert run_program(["skill", "install"]) == 0
    return folder


@pytest.mark.models("starter")
def test_the_skill_leads_claude_code_from_an_unknown_program_to_a_checked_job(
    work: Path,
    model: tuple[Model, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    row: dict[str, object],
) -> None:
    scripted, url = model
    said = followed(work, url)
    assert "The job is checked." in said, (said, scripted.commands)
    assert [command.split()[:2] for command in scripted.commands][-2:] == [["ajet", "check"]] * 2
    monkeypatch.chdir(work / "training")
    assert "How much are" in Path("tasks.jsonl").read_text()
    capsys.readouterr()
    for answers, reward in (("right.yaml", "1.00"), ("wrong.yaml", "0.00")):
        assert run_program(["check", "job.yaml", "--answers", answers]) == 0
        assert re.search(rf"reward +{re.escape(reward)}", capsys.readouterr().out)
    row |= {"program": "claude-code, skill", "version": head("claude-code").version, "API": "Messages"}


def test_a_skill_that_says_another_command_leads_nowhere(work: Path, model: tuple[Model, str]) -> None:
    skill = work / ".claude" / "skills" / "ajet" / "SKILL.md"
    skill.write_text(skill.read_text().replace("ajet new training --from", "ajet new training --form"))
    followed(work, model[1])
    assert not (work / "training").exists()
