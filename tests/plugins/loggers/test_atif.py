"""The logger `atif`: each episode is a file that the reader `traces` and `ajet sft` read."""

from __future__ import annotations

import json
import re
from typing import Any

from ajet.interfaces.reader import read_all
from ajet.learning.sft import read_transcripts
from ajet_loggers.atif import FOLDER
from ajet_readers import Traces
from tests.core.test_hooks import Training, scripted_backbone, training  # noqa: F401

from ..programs import script

AGENT = """
from tests.plugins.programs import ask_plainly

def solve(task):
    ask_plainly(task.query)
    return "42"
"""


def test_each_episode_is_a_trajectory_in_the_run_folder(training: Training, tokenizer: Any) -> None:  # noqa: F811
    (training.folder / "agent.py").write_text(AGENT)
    training.attach("solver", ajet_plugins=lambda: [scripted_backbone(tokenizer, script, "solver")])
    tasks = [{"id": f"t/{i}", "query": "12 + 30"} for i in range(2)]
    (training.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    result = training.run("solve", steps=1, loggers=[{"type": "atif"}], sets={"backbone.name": "solver"})
    folder = result.run_dir / FOLDER
    files = sorted(folder.iterdir())
    assert len(files) == 4
    assert all(re.fullmatch(r"trajectory-1\.[01]-t-[01]-[01]-[0-9a-f]{8}\.json", file.name) for file in files)
    trajectory = json.loads(files[0].read_text())
    _, asked, called, said = trajectory["steps"]
    assert asked["message"] == "12 + 30" and said["source"] == "agent"
    (result_of_tool,) = called["observation"]["results"]
    assert result_of_tool["source_call_id"] == called["tool_calls"][0]["tool_call_id"]
    assert len(said["metrics"]["logprobs"]) == said["metrics"]["completion_tokens"]
    assert trajectory["agent"]["tool_definitions"] and trajectory["extra"]["reward"] is not None
    assert len(read_all(Traces(path=folder, format="atif", cache=training.folder), "task.reader")) == 4
    transcripts = read_transcripts(folder)
    assert len(transcripts) == 4 and transcripts[0].tools == trajectory["agent"]["tool_definitions"]
