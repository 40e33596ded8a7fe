"""Programs of the earlier AgentJet (0.0.1): classes run unchanged, commands and job files as those of today that they mean."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import ajet as package
from ajet.interfaces.reader import Reader
from ajet.interfaces.workflow import LoadedWorkflow, Tuner
from ajet.interfaces.workflow import load_workflow as load
from ajet.job.config import all_keys
from ajet.job.layers import job_layers
from ajet.job.parts import build_judge
from ajet.plugins import load_plugins
from ajet.types import AjetError, ConfigError, ContractBroken, EpisodeView, Task, WorkflowOutput
from ajet_migrate.earlier import command_line
from ajet_migrate.earlier.job_file import GONE, KEYS, RENAMED
from ajet_migrate.earlier.services import AppWorld
from tests.cli.conftest import Folder

HEAD = "from ajet import AjetTuner, Workflow, WorkflowOutput, WorkflowTask\n"
SDK = (
    HEAD
    + """
class Sums(Workflow):
    name: str = "sums"
    system_prompt: str = "You add numbers."

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client(agent_name="adder")
        self.chat = [
            {"role": "system", "content": self.system_prompt},
            {"role": "user", "content": workflow_task.task.main_query},
        ]
        first = await client.chat.completions.create(messages=self.chat)
        self.chat.append({"role": "assistant", "content": first.choices[0].message.content})
        self.chat.append({"role": "user", "content": "Sure?"})
        reply = await client.chat.completions.create(self.chat)
        return WorkflowOutput(reward=None, metadata={"final_answer": reply.choices[0].message.content})
"""
)
HTTP = (
    HEAD
    + """
import requests

class Sums(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        endpoint = tuner.as_oai_baseurl_apikey()
        base_url, api_key = endpoint.base_url, endpoint.api_key
        reply = requests.post(
            f"{base_url}/chat/completions",
            json={"model": "whatever", "messages": [{"role": "user", "content": workflow_task.task.main_query}]},
            headers={"Authorization": f"Bearer {api_key}"},
        )
        answer = reply.json()["choices"][0]["message"]["content"]
        right = answer == workflow_task.task.metadata["answer"]
        return WorkflowOutput(reward=float(right), metadata={"final_answer": answer})
"""
)
AGENTSCOPE = (
    HEAD
    + """
from agentscope.message import UserMsg

class Sums(Workflow):
    async def execute(self, task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        self.model = tuner.as_agentscope_model(agent_name="adder", target_tag="adders", debug_model=None)
        reply = await self.model([UserMsg(name="user", content=task.task.main_query)])
        answer = reply.content[0].text
        return WorkflowOutput(reward=1.0 if answer == task.task.metadata["answer"] else 0.0)
"""
)
EARLIEST = """
from astuner import ModelTuner, Workflow, WorkflowOutput, WorkflowTask
from astuner.utils.robust_dashscope import RobustDashScopeChatModel
from agentscope.message import UserMsg

class Sums(Workflow):
    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        reply = await model_tuner([UserMsg(name="user", content=workflow_task.task.main_query)])
        answer = reply.content[0].text
        return WorkflowOutput(reward=1.0 if answer == workflow_task.task.metadata["answer"] else 0.0)
"""
JUDGE = """
import re
from ajet.task_judge.base_judge import BaseJudge
from ajet.task_rollout.dashscope_llm_bridge import create_external_llm_fn
from ajet.workflow import WorkflowOutput, WorkflowTask


class AnswerAsJudge(BaseJudge):
    def __init__(self, config):
        super().__init__(config)
        self.best = 2.0

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple:
        found = re.search(r"[0-9]+", workflow_output.metadata["final_answer"])
        is_success = bool(found) and found.group() == workflow_task.task.metadata["answer"]
        return (self.best if is_success else 0.0), is_success


class AskingJudge(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        ask = create_external_llm_fn(alien_llm_model="qwen-max", alien_llm_response_length=512)
        return ask(messages=[]), False


class ConfiguredJudge(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return self.config.ajet.task_judge.alien_llm_model, False
"""


def check(folder: Folder, *options: str) -> tuple[str, str]:
    """What `ajet check` prints to both streams."""
    outcome = folder.ajet("check", "--tasks", "tasks.jsonl", "--answers", "script.yaml", *options)
    return outcome.out, outcome.err


def load_workflow(spec: str) -> LoadedWorkflow:
    """A workflow, as a job loads it."""
    return load(spec, load_plugins().manager.hook)


def run(workflow: LoadedWorkflow, task: Task | None = None, **tuner: Any) -> Any:
    """One call of a workflow."""
    return asyncio.run(
        workflow.fresh()(task or Task("t", "q"), Tuner("http://x", "key", tuner.pop("handles", {}), **tuner))
    )


def refused(folder: Folder, body: str, **tuner: Any) -> str:
    """Why a workflow with this body of `execute` is refused while it runs."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    folder.write(
        "refused.py",
        f"{HEAD}class Flow(Workflow):\n    async def execute(self, workflow_task, tuner):\n{lines}\n",
    )
    sys.modules.pop("refused", None)
    with pytest.raises(ContractBroken) as caught:
        run(load_workflow(f"{folder.path / 'refused.py'}:Flow"), **tuner)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------ workflows


@pytest.mark.whole
@pytest.mark.parametrize(
    ("code", "calls", "reward"),
    [(SDK, "2.0", "1.00"), (HTTP, "1.0", "0.50"), (AGENTSCOPE, "1.0", "0.50"), (EARLIEST, "1.0", "0.50")],
    ids=["sdk", "http", "agentscope", "astuner"],
)
def test_a_workflow_class_runs_unchanged(folder: Folder, code: str, calls: str, reward: str) -> None:
    folder.write("earlier_sums.py", code)
    folder.write("earlier_judge.py", JUDGE)
    named = ("--workflow", "earlier_sums.py->Sums", "--judge", "earlier_judge.py->AnswerAsJudge")
    out, err = check(folder, *named)
    assert f"{calls} an episode; by agent: " in out, out + err
    assert f"reward              {reward} (0 to " in out


def test_its_task_has_a_list_of_messages_and_the_fields_of_nested_metadata(folder: Folder) -> None:
    folder.write(
        "told.py",
        HEAD
        + """
class Flow(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        task = workflow_task.task
        assert isinstance(task.init_messages, list) and isinstance(task.init_messages[0], dict)
        return WorkflowOutput(1.0, (task.task_id, task.main_query, task.metadata["level"], task.metadata["answer"], task.query))
""",
    )
    task = Task("7", "why?", ({"role": "user", "content": "hi"},), {"answer": "4", "metadata": {"level": 3}})
    found = run(load_workflow(f"{folder.path / 'told.py'}:Flow"), task)
    assert found.response == ("7", "why?", 3, "4", "why?")


def test_fields_of_the_class_have_their_defaults_in_each_episode(folder: Folder) -> None:
    folder.write(
        "fields.py",
        HEAD
        + """
from typing import List
from pydantic import Field

class Flow(Workflow):
    trainable_targets: List[str] | None = Field(default=["werewolf"], description="Agents to train.")

    async def execute(self, workflow_task, tuner):
        self.trainable_targets.append("seer")
        return WorkflowOutput(1.0, self.trainable_targets)

class Plain:
    trainable_targets: List[str] = Field(default=["werewolf"])

    async def execute(self, task):
        return "werewolf" in self.trainable_targets
""",
    )
    flow = load_workflow(f"{folder.path / 'fields.py'}:Flow")
    assert [run(flow).response for _ in range(2)] == [["werewolf", "seer"]] * 2
    with pytest.raises(ConfigError, match=r"trainable_targets is a pydantic Field.*trainable_targets = …"):
        load_workflow(f"{folder.path / 'fields.py'}:Plain")


def test_the_base_class_does_not_hide_a_missing_execute(folder: Folder) -> None:
    folder.write("empty.py", f"{HEAD}class Flow(Workflow):\n    name: str = 'x'\n")
    with pytest.raises(ConfigError, match="no method `execute"):
        load_workflow(f"{folder.path / 'empty.py'}:Flow")


def test_a_module_and_class_with_an_arrow_are_found_from_the_folder_of_the_job_file(folder: Folder) -> None:
    folder.write("deep/agent.py", "async def run(task): return ''\n")
    job = folder.write("deep/job.yaml", "workflow: agent.py->run\ntask: {reader: tasks.jsonl}\n")
    folder.write("deep/tasks.jsonl", '{"query": "q"}\n')
    out = folder.ajet("run", str(job), "--backbone", "debug", "--dry-run").out
    assert f"workflow: {folder.path / 'deep' / 'agent.py'}:run" in out


# ------------------------------------------------------------------ what a tuner gives


TAGGED = """
class Model:
    model_name = "qwen-max"
model = tuner.as_agentscope_model(agent_name="Player1", target_tag="seer", debug_model=Model())
return WorkflowOutput(1.0, model)
"""


def tagged(folder: Folder, auxiliary: tuple[str, ...]) -> Any:
    body = "\n".join(f"        {line}" for line in TAGGED.strip().splitlines())
    head = f"{HEAD}class Flow(Workflow):\n    trainable_targets: list = ['werewolf']\n"
    code = f"{head}    async def execute(self, task, tuner):\n{body}\n"
    folder.write("tagged.py", code)
    sys.modules.pop("tagged", None)
    handles = {"as_agentscope_model": lambda tuner, **labels: labels}
    return run(load_workflow(f"{folder.path / 'tagged.py'}:Flow"), handles=handles, auxiliary=auxiliary)


def test_agents_that_are_not_trained_get_the_frozen_target_of_the_job(folder: Folder) -> None:
    for auxiliary in (("seer", "witch"), ("others",)):
        labels = tagged(folder, auxiliary).response
        assert labels == {"agent": "Player1", "target": auxiliary[0], "stream": False}


def test_without_one_the_key_of_the_job_is_written_out(folder: Folder) -> None:
    with pytest.raises(ContractBroken) as caught:
        tagged(folder, ())
    spec = "{policy: {}, others: {frozen_model: {type: openai, base_url: URL, model: qwen-max}}}"
    assert "'seer' is not in trainable_targets" in str(caught.value) and spec in str(caught.value)
    targets = yaml.safe_load(str(caught.value).rpartition("there: targets: ")[2])
    job = folder.write("targets.yaml", yaml.safe_dump({"targets": targets}))
    assert job_layers(job).job().targets["others"].frozen_model is not None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "for step in range(tuner.config.ajet.rollout.multi_turn.max_steps): pass",
            "tuner.config.ajet.rollout.multi_turn.max_steps: ",
        ),
        (
            "size = tuner.config.frozen_lake.frozen_lake_size",
            "tuner.config.frozen_lake: programs do not see the job",
        ),
        ("env = workflow_task.gym_env", "async with environment(workflow_task) as env:"),
        ("if tuner.get_context_tracker().context_overflow: return", "context_length_exceeded"),
        (
            "tuner.update_judge_input_dictionary(final_answer='4')",
            'WorkflowOutput(metadata={"final_answer": final_answer})',
        ),
    ],
)
def test_what_a_workflow_no_longer_gets_is_refused_with_the_new_form(
    folder: Folder, body: str, said: str
) -> None:
    assert said in refused(folder, body)


def test_a_refusal_ends_the_run_in_one_line(folder: Folder) -> None:
    folder.write(
        "ending.py",
        f"{HEAD}class Flow(Workflow):\n    async def execute(self, task, tuner):\n        return task.gym_env\n",
    )
    _, err = check(folder, "--workflow", "ending.py:Flow")
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "workflow_task.gym_env" in line


# ------------------------------------------------------------------ judges


def verdict(folder: Folder, name: str, output: WorkflowOutput) -> Any:
    folder.write("earlier_judge.py", JUDGE)
    job = folder.write("judged.yaml", f"judge: earlier_judge.py->{name}\n")
    judge = build_judge(job_layers(job))
    return asyncio.run(judge.judge(Task("t", metadata={"answer": "4"}), output, EpisodeView("e", "t", 0, 0)))


def test_a_judge_class_gives_reward_and_success(folder: Folder) -> None:
    right = verdict(folder, "AnswerAsJudge", WorkflowOutput(metadata={"final_answer": "It is 4."}))
    wrong = verdict(folder, "AnswerAsJudge", WorkflowOutput(metadata={"final_answer": "It is 5."}))
    assert (right.reward, right.is_success, wrong.reward, wrong.is_success) == (2.0, True, 0.0, False)


def test_a_judge_class_is_not_asked_where_the_workflow_gave_a_reward(folder: Folder) -> None:
    given = verdict(folder, "AnswerAsJudge", WorkflowOutput(reward=0.5, is_success=True))
    assert (given.reward, given.is_success) == (0.5, True)


def test_what_a_judge_no_longer_gets_is_refused_with_the_new_form(folder: Folder) -> None:
    output = WorkflowOutput(metadata={"final_answer": "4"})
    with pytest.raises(ContractBroken, match=r"create_external_llm_fn is of the earlier.*type: math_llm"):
        verdict(folder, "AskingJudge", output)
    with pytest.raises(ContractBroken, match=r"config\.ajet\.task_judge\.alien_llm_model: programs do not"):
        verdict(folder, "ConfiguredJudge", output)


def test_a_judge_function_may_return_reward_and_success() -> None:
    from ajet.interfaces.judge import FunctionJudge

    def judged(function: Any) -> Any:
        judge = FunctionJudge(function=function)
        return asyncio.run(judge.judge(Task("t"), WorkflowOutput(), EpisodeView("e", "t", 0, 0)))

    found = judged(lambda task, output: (0.5, True))
    assert (found.reward, found.is_success) == (0.5, True)
    for wrong in ((0.5,), ("a", True), (0.5, True, "why"), (True, "yes"), (0.5, 2)):
        with pytest.raises(TypeError, match=r"returned \(.+\); expected .*\(reward, is_success\)"):
            judged(lambda task, output, wrong=wrong: wrong)


# ------------------------------------------------------------------ imports


@pytest.mark.parametrize(
    "line",
    [
        "from ajet import AjetTuner, Workflow, WorkflowOutput, WorkflowTask",
        "from ajet import AgentJetJob",
        "from ajet import BaseJudge, bp",
        "from ajet.workflow import WorkflowOutput, WorkflowTask",
        "from ajet.task_judge.base_judge import BaseJudge",
        "from ajet.utils.vsdb import vscode_conditional_breakpoint as bp",
        "from ajet.utils.robust_dashscope import RobustDashScopeChatModel",
        "from ajet.schema.task import Task, WorkflowTask",
        "from ajet.utils.sington import singleton",
        "from ajet.task_reader.tracing_reader.filters.base import Filter",
        "from ajet.task_judge.rm_auto_grader_judge import AutoGraderJudge",
        "import ajet.tuner_lib.weight_tuner.as_oai_sdk_model",
    ],
)
def test_earlier_import_paths_import(line: str) -> None:
    exec(line, {})


def test_a_name_without_a_counterpart_is_refused_where_it_is_used(folder: Folder) -> None:
    folder.write(
        "asking.py",
        "from ajet.utils.robust_dashscope import RobustDashScopeChatModel\n\nllm = RobustDashScopeChatModel('qwen-plus')\n",
    )
    with pytest.raises(ConfigError) as caught:
        load_workflow(f"{folder.path / 'asking.py'}:Flow")
    assert "RobustDashScopeChatModel is of the earlier AgentJet. Use a model of your framework" in str(
        caught.value
    )
    assert "asking.py:3" in str(caught.value)
    with pytest.raises(AjetError, match=r"subclass of ajet\.Reader"):
        exec(
            "from ajet.task_reader.task_reader_base import BaseTaskReader\nclass R(BaseTaskReader): pass", {}
        )
    with pytest.raises(AjetError, match=r"`ajet docs coming-from`"):
        exec("from ajet.utils.sington import singleton\n@singleton\nclass S: pass", {})


def test_other_missing_modules_and_names_are_missing_as_usual() -> None:
    for line in ("import ajet.nothing", "from ajet.utils import nothing", "from ajet import Nothing"):
        with pytest.raises(ImportError):
            exec(line, {})
    assert not {"AjetTuner", "BaseJudge"} & set(dir(package))


def test_the_builder_of_jobs_is_refused_with_the_call_of_run() -> None:
    scope: dict[str, Any] = {}
    exec(
        HEAD
        + """
from ajet import AgentJetJob
class Sums(Workflow): pass
job = AgentJetJob(backbone="verl", model="Qwen/Qwen3-0.6B", n_gpu=4, algorithm="grpo")
job.set_workflow(Sums)
job.set_data(type="hf", dataset_path="my/sums")
""",
        scope,
    )
    with pytest.raises(ConfigError) as caught:
        scope["job"].tune()
    _, _, call = str(caught.value).partition("Write: ajet.run")
    given = eval(f"dict{call}", {"Sums": "the class"})
    assert (
        given["workflow"] == "the class"
        and given["backbone"] == "verl"
        and given["model"] == "Qwen/Qwen3-0.6B"
    )
    assert given["set"] == {"train.algorithm": "grpo", "backbone.verl.trainer.n_gpus_per_node": 4}
    assert given["tasks"] == {"type": "huggingface", "path": "my/sums", "split": "train", "query": "question"}
    assert given["validation"]["split"] == "test"


# ------------------------------------------------------------------ commands


@pytest.mark.parametrize(
    ("earlier", "todays"),
    [
        ("ajet --conf job.yaml", "ajet run job.yaml --backbone verl"),
        ("ajet --conf job.yaml --backbone='verl'", "ajet run job.yaml --backbone verl"),
        ("ajet --conf job.yaml --backbone='verl' --with-ray", "ajet run job.yaml --backbone verl --with ray"),
        ("ajet --conf job.yaml --backbone='trinity' --with-ray", "ajet run job.yaml --backbone trinity"),
        (
            "ajet --conf job.yaml --backbone='debug' --with-logview --exp-dir=out",
            "ajet run job.yaml --backbone debug --set run.dir=out --with logview --set services.logview.folder=out",
        ),
        (
            "ajet --conf job.yaml --with-appworld --backbone='verl'",
            "ajet run job.yaml --backbone verl --with appworld",
        ),
        ("ajet --conf job.yaml --with-crafters", "ajet run job.yaml --backbone verl --with crafters"),
        ('ajet --conf job.yaml --debug="TAG_1"', "ajet run job.yaml --backbone verl --break TAG_1"),
        (
            "ajet --conf job.yaml --db='TAG1|TAG2|TAG3'",
            "ajet run job.yaml --backbone verl --break TAG1,TAG2,TAG3",
        ),
        ("ajet --backbone debug --conf job.yaml", "ajet run job.yaml --backbone debug"),
        (
            "ajet --conf job.yaml --exp-dir out --backbone=debug",
            "ajet run job.yaml --backbone debug --set run.dir=out",
        ),
        (
            "ajet --conf job.yaml --autokill --skip-check-avail-gpu",
            "ajet run job.yaml --backbone verl (AgentJet ends what it has started, so there is nothing to kill)",
        ),
        ("ajet run job.yaml --with-ray --steps 3", "ajet run job.yaml --steps 3 --with ray"),
        (
            "ajet run --backbone debug job.yaml --with-ray --with-bfcl",
            "ajet run --backbone debug job.yaml --with bfcl",
        ),
    ],
)
def test_an_earlier_command_runs_as_todays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, earlier: str, todays: str
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(command_line, "run_program", lambda words: ran.extend(words) or 7)
    with pytest.raises(SystemExit) as ended:
        command_line.run_earlier(shlex.split(earlier)[1:])
    assert ended.value.code == 7 and shlex.join(["ajet", *ran]) == todays.partition(" (")[0]
    err = capsys.readouterr().err
    assert err.startswith("ajet --") and err.endswith(f"This runs: {todays}\n") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("earlier", "said"),
    [
        ("--kill='python|ray|vllm'", "remove it (AgentJet ends what it has started"),
        ("--with-webshop", "Run: ajet run job.yaml --backbone verl --with webshop"),
    ],
)
def test_an_earlier_command_without_a_job_is_refused(folder: Folder, earlier: str, said: str) -> None:
    outcome = folder.ajet(*shlex.split(earlier))
    assert outcome.code == 2 and said in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.whole
def test_an_earlier_command_with_a_viewer_runs_a_job_to_its_end(folder: Folder) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.write(
        "viewed.yaml", f"{(folder.path / 'job.yaml').read_text()}\nservices: {{logview: {{port: {port}}}}}\n"
    )
    outcome = folder.ajet("--conf", "viewed.yaml", "--backbone=debug", "--with-logview")
    assert outcome.code == 0, outcome.err
    assert "service logview: healthy" in outcome.err + outcome.out


def test_an_environment_is_started_by_its_two_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APPWORLD_PATH", raising=False)
    environment = AppWorld()
    with pytest.raises(ConfigError, match="the variables APPWORLD_PATH and APPWORLD_SCRIPT start it"):
        environment.argv()
    monkeypatch.setenv("APPWORLD_PATH", "/of the/service")
    monkeypatch.setenv("APPWORLD_SCRIPT", "bash start.sh")
    assert environment.argv() == ["bash", "-c", "cd '/of the/service' && bash start.sh"]
    assert environment.address == "127.0.0.1:8080"


@pytest.mark.whole
def test_python_m_ajet_launcher_is_the_program(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ajet.launcher",
        "--conf",
        "bench.yaml",
        "--with-appworld",
        "--autokill",
        "--db=EXT",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 2
    assert "This runs: ajet run bench.yaml --backbone verl --break EXT --with appworld" in ended.stderr
    assert "error: bench.yaml: no such" in ended.stderr


def test_options_of_today_are_not_taken_for_earlier_ones(folder: Folder) -> None:
    assert folder.ajet("--help").code == 0
    outcome = folder.ajet("run", "job.yaml", "--backbone", "debug", "--dry-run")
    assert outcome.code == 0, outcome.err


# ------------------------------------------------------------------ job files

FILES = {
    "questions": """
ajet:
  project_name: example
  task_reader:
    type: huggingface_dat_repo
    huggingface_dat_repo: {dataset_path: data/sums, training_split: train, validation_split: test}
  task_judge: {judge_protocol: tutorial.sums.judge->AnswerAsJudge}
  model: {path: Qwen/Qwen2.5-7B}
  rollout:
    user_workflow: "tutorial/sums/agent.py->Sums"
    temperature: 1.0
    num_repeat: 6
    max_response_length_in_one_turn: 1024
    max_model_len: 10000
    n_vllm_engine: 2
    compute_madness_checklist: [nonsense]
    multi_turn: {max_sample_per_task: 2, max_steps: 25}
  data: {train_batch_size: 100, max_prompt_length: 3000}
  debug: {debug_max_parallel: 1, debug_first_n_tasks: 3}
  trainer_common: {save_freq: 100, test_freq: 50, total_epochs: 100, logger: swanlab, optim: {lr: 1e-5}, kl_loss_coef: 0.01}
trinity: {synchronizer: {sync_method: nccl}}
frozen_lake: {is_slippery: false}
hydra: {searchpath: [file://ajet/default_config]}
defaults: [ajet_default, _self_]
""",
    "service": """
ajet:
  task_judge: {judge_protocol: ajet.task_judge.env_service_as_judge->EnvServiceJudge}
  task_reader:
    type: env_service
    env_service: {env_type: appworld, env_url: "http://127.0.0.1:8080", training_split: train, validation_split: dev}
  model: {path: m}
  rollout: {user_workflow: a.b->C, force_disable_toolcalls: True, top_p: 0.9}
  trainer_common: {nnodes: 2, use_kl_loss: False, algorithm: {adv_estimator: rloo}, logger: [console, comet]}
""",
    "file": """
ajet:
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: t.jsonl}, validation: {file_path: v.jsonl}}}
  rollout: {user_workflow: a.b->C}
  task_judge: {judge_type: rubrics_auto_grader, rubrics_auto_grader: {model_name: qwen-max}}
""",
    "numbers": "ajet:\n  task_reader: {type: random_dummy}\n  rollout: {user_workflow: a.b->C}\n  task_judge: {judge_protocol: null}\n",
    "documents": """
ajet:
  task_reader: {type: data_generation, data_generation: {document_reader: {document_path: [d.pdf]}, llm_model: qwen-long}}
""",
    "astune": """
astune:
  task_reader: {type: env_service, env_service: {env_type: appworld, env_url: "http://127.0.0.1:8080", training_split: train}}
  task_judge: {judge_protocol: astune.task_judge.env_service_as_judge->EnvServiceJudge}
  model: {path: m}
  rollout: {use_agentscope_protocol: True, agentscope_learn_protocol: a.b->C, agentscope_disable_toolcalls: True, own: 1}
trinity: {algorithm: {repeat_times: 7}, cluster: {node_num: 2}, buffer: {trainer_input: {auxiliary_buffers: {sft: 1}}}}
""",
    "traces": "ajet:\n  task_reader: {type: tracing, feedback_tracing: {base_url: ./database.sqlite, filters: []}}\n",
}


EPOCHS = "  data: {train_batch_size: 4}\n  trainer_common: {total_epochs: 5}\n"


def translated(folder: Folder, name: str) -> tuple[dict[str, Any], str]:
    folder.write("old.yaml", FILES[name])
    outcome = folder.ajet("config", "from-earlier", "old.yaml")
    assert outcome.code == 0, outcome.err
    folder.write("new.yaml", outcome.out)
    return yaml.safe_load(outcome.out), outcome.out


@pytest.mark.parametrize("name", FILES)
def test_the_new_file_of_an_earlier_one_is_a_job(folder: Folder, name: str) -> None:
    values, _ = translated(folder, name)
    assert job_layers(folder.path / "new.yaml").job().backbone.name == "verl"
    assert values["train"]["learning_rate"] in (1e-6, 1e-5)


def test_the_new_file_has_the_values_and_the_defaults_of_the_earlier_one(folder: Folder) -> None:
    values, text = translated(folder, "questions")
    reader = {"type": "huggingface", "path": "data/sums", "query": "question"}
    assert values["task"] == {
        "reader": {**reader, "split": "train"},
        "validation": {**reader, "split": "test"},
    }
    assert (values["workflow"], values["judge"]) == (
        "tutorial/sums/agent.py:Sums",
        "tutorial.sums.judge:AnswerAsJudge",
    )
    assert values["rollout"]["group_size"] == 6 and values["rollout"]["sampling"] == {
        "max_tokens": 1024,
        "temperature": 1.0,
    }
    train = values["train"]
    assert (train["batch_size"], train["kl"], train["learning_rate"], train["save_every"]) == (
        100,
        0.01,
        1e-5,
        100,
    )
    assert values["run"]["loggers"] == ["swanlab"]
    assert values["eval"] == {"sampling": {"temperature": 0.0}, "every": 50, "repeats": 4}
    assert values["backbone"]["debug"] == {"tasks": 3, "concurrency": 1}
    for line in (
        "#   ajet.trainer_common.total_epochs: 100: train.steps = epochs x tasks / train.batch_size",
        "#   ajet.rollout.multi_turn.max_steps: 25: the workflow limits its steps itself",
        "#   trinity.synchronizer.sync_method: nccl: the engine gets the weights after every step; train.asynchronous "
        "samples during updates",
        "#   frozen_lake: the workflow's own; write its values into the program",
    ):
        assert line in text.splitlines()
    assert "hydra" not in text and "project_name" not in text


def test_files_of_its_first_names_are_translated_with_their_keys_of_trinity(folder: Folder) -> None:
    values, text = translated(folder, "astune")
    assert (values["workflow"], values["judge"]["type"]) == ("a.b:C", "environment")
    assert values["rollout"]["tool_calls"] == "text" and values["rollout"]["group_size"] == 7
    assert (
        "use_agentscope_protocol" not in text
        and "#   astune.rollout.own: 1: no key of today means it" in text
    )
    for key in ("cluster.node_num: 2", "buffer.trainer_input.auxiliary_buffers: {'sft': 1}"):
        assert f"#   trinity.{key}: " in text


def test_services_tool_calls_truncation_and_algorithms_are_translated(folder: Folder) -> None:
    values, text = translated(folder, "service")
    assert values["task"]["validation"] == {
        "type": "environment",
        "url": "http://127.0.0.1:8080",
        "env_type": "appworld",
        "split": "dev",
    }
    assert values["judge"] == {"type": "environment"} and values["rollout"]["tool_calls"] == "text"
    assert values["rollout"]["sampling"]["allow_truncated"] is True and "kl" not in values["train"]
    assert values["train"]["algorithm"] == "rloo" and "logger: comet" in text and "console" not in text


def test_the_tasks_of_dummy_numbers_are_written_by_the_command_in_the_new_file(folder: Folder) -> None:
    _, text = translated(folder, "numbers")
    (command,) = re.findall(r"writes its tasks: (.*)", text)
    subprocess.run(command, shell=True, cwd=folder.path, check=True)
    layers = job_layers(folder.path / "new.yaml")
    from ajet.job.parts import build_plugin

    reader: Any = build_plugin(layers, Reader, layers.job().task.reader, "task.reader")  # type: ignore[union-attr]
    tasks = list(reader.tasks())
    assert len(tasks) == 1000 and tasks[7].metadata == {"random_number": 7}


def test_an_earlier_job_file_is_read_as_the_job_that_it_says(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder.write(
        "old.yaml", FILES["file"].replace("{user_workflow", "{num_repeat: 3, user_workflow") + EPOCHS
    )
    folder.write("t.jsonl", '{"main_query": "q", "init_messages": [], "task_id": "1"}\n' * 8)
    job = job_layers(file).job()
    assert job.rollout.group_size == 3 and job.train.steps == 10, "8 tasks, 5 epochs, batches of 4"
    said = capsys.readouterr().err
    assert "old.yaml: is a job file of the earlier AgentJet; `ajet config from-earlier" in said
    outcome = folder.ajet("config", "from-earlier", "job.yaml")
    assert outcome.code == 2 and "job.yaml: is not a job file of the earlier AgentJet" in outcome.err
    assert "no such job file" in folder.ajet("config", "from-earlier", "none.yaml").err


def test_a_key_that_the_table_does_not_know_is_named(folder: Folder) -> None:
    folder.write("old.yaml", "ajet:\n  rollout: {user_workflow: a->b, own_key: 3}\n")
    assert (
        "#   ajet.rollout.own_key: 3: no key of today means it\n"
        in folder.ajet("config", "from-earlier", "old.yaml").out
    )


def test_the_table_names_keys_of_today() -> None:
    keys = {key.key for key in all_keys()}
    for new, _ in RENAMED.values():
        assert new in keys or new.startswith(("backbone.verl.", "backbone.debug.")), new
    assert len(KEYS) == len(RENAMED) + len(GONE) == len(set(KEYS))
