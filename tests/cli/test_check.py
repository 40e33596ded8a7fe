"""`ajet check`: what is captured, what merges, what breaks and why, before anything is trained."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from ajet.chat.answers import FAULTS
from ajet.reports.run_summary import MEANINGS
from tests.tiny import save_tiny_model
from tests.tokenizers import thinker

from .conftest import JOB, Folder

ROOT = Path(__file__).resolve().parents[2]
DRIFT = ROOT / "examples" / "drift"
AGENT = """
import httpx2

async def ask(messages, **more):
    async with httpx2.AsyncClient() as client:
        body = {"model": "m", "messages": messages, **more}
        answer = await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]

async def clean(task):
    history = [{"role": "user", "content": task.query}]
    for question in ("why?", "really?"):
        history += [await ask(history), {"role": "user", "content": question}]
    return (await ask(history))["content"]

async def cold(task):
    return (await ask([{"role": "user", "content": task.query}], temperature=0, max_tokens=1))["content"]

async def long(task):
    return (await ask([{"role": "user", "content": "one word and more " * 1000}]))["content"]

async def equipped(task):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    return (await ask([{"role": "user", "content": task.query}], tools=[tool]))["content"]

async def seldom(task):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    asked = [{"role": "user", "content": task.query}]
    for _ in range(12):
        answer = await ask(asked, tools=[tool])
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "3"} for c in answer.get("tool_calls") or ()]
        asked += [answer, *(results or [{"role": "user", "content": "Go on."}])]
    return answer["content"]

clock = iter(range(10**6))

async def late(task):
    asked = [{"role": "user", "content": task.query}]
    asked += [await ask(asked), {"role": "user", "content": f"It is 12:{next(clock):02}. Go on."}]
    return (await ask(asked))["content"]

async def choosy(task):
    asked = [{"role": "user", "content": task.query}]
    drafts = [await ask(asked) for _ in range(3)]
    return (await ask([*asked, drafts[-1], {"role": "user", "content": "sure?"}]))["content"]

async def compacting(task):
    asked = [{"role": "user", "content": task.query}]
    drafts = [await ask([*asked, {"role": "user", "content": f"shorter than {n}"}]) for n in (9, 8, 7)]
    return (await ask([{"role": "user", "content": "So far: " + drafts[-1]["content"]}]))["content"]

async def silent(task):
    return "4"

async def broken(task):
    await ask([{"role": "user", "content": task.query}])
    raise KeyError("tool")
"""


@pytest.fixture
def folder(folder: Folder) -> Folder:
    folder.write("agent.py", AGENT)
    folder.write("answers.yaml", '- {turn: 0, say: "4"}\n- {say: "Because it is so, four."}\n')
    return folder


def check(folder: Folder, workflow: str, *options: str, code: int = 0) -> str:
    outcome = folder.ajet(
        "check", "job.yaml", "--workflow", f"agent.py:{workflow}", "--answers", "answers.yaml", *options
    )
    assert outcome.code == code, outcome.err
    return outcome.out


@pytest.mark.kept
def test_a_clean_agent_has_one_timeline_an_episode_and_no_breaks(folder: Folder) -> None:
    page = check(folder, "clean", "--first", "2", "--group-size", "2")
    assert re.search(r"episodes +4 run in .*, 0 failed", page)
    assert re.search(r"calls captured +12, 3.0 an episode; by agent: agent 12", page)
    assert re.search(r"timelines +1.0 an episode, at most 1", page)
    assert "breaks: none" in page
    rows, lines, trees = (int(n) for n in re.findall(r"(?:tokens|call|trees) +(\d+)[ ,]", page)[-3:])
    assert trees <= lines < rows or trees <= rows


@pytest.mark.whole
def test_whether_an_agent_does_the_same_again_is_told(folder: Folder) -> None:
    options = ("--first", "1", "--group-size", "1")
    assert re.search(r"repeats itself +yes\n", check(folder, "clean", *options))
    page = check(folder, "late", *options)
    said = 'call 1 differs from its recording: message 3 (user) is now "It is 12:01. Go on.", and was "It is 12:00. Go on."'
    assert f"no: {said}; rollout.fork would discard its forks" in page
    assert "! forks would be discarded" not in page and "fork_diverged" not in page
    page = check(folder, "late", *options, "--set", "rollout.fork.roots=2")
    assert re.search(
        r"! forks would be discarded: call 1 differs .*\n  -> Let the agent do the same again", page
    )


@pytest.mark.whole
def test_answers_that_the_agent_rejected_are_told_with_the_filter_that_leaves_them_out(
    folder: Folder,
) -> None:
    options = ("--first", "1", "--group-size", "1")
    folder.write("answers.yaml", "".join(f'- {{turn: {n}, say: "draft {n}"}}\n' for n in range(4)))
    page = check(folder, "choosy", *options)
    assert "! 2 answers were rejected by the agent" in page and "train.filters: [discarded_attempts]" in page
    filtered = check(folder, "choosy", *options, "--set", "train.filters=[discarded_attempts]")
    assert "rejected" not in filtered


@pytest.mark.whole
def test_answers_of_which_nothing_came_are_told_although_nothing_broke(folder: Folder) -> None:
    options = ("--first", "1", "--group-size", "1")
    folder.write("answers.yaml", "".join(f'- {{turn: {n}, say: "draft {n}"}}\n' for n in range(4)))
    page = check(folder, "compacting", *options)
    assert "! 2 answers were never used by a later call, such as calls 0, 1 of " in page
    assert "breaks: none" in page and "train.filters: [unused_branches]" in page
    assert "never used" not in check(
        folder, "compacting", *options, "--set", "train.filters=[unused_branches]"
    )


def test_equal_rewards_and_overridden_parameters_are_told_with_what_helps(folder: Folder) -> None:
    page = check(folder, "cold", "--first", "1", "--group-size", "2")
    assert re.search(r"zero advantage +1 of 1 groups have equal rewards", page)
    assert "temperature" in page and "training uses 1.0" in page
    assert "answers ended at their length" in page and "max_tokens" in page
    assert "Check more of them (--first, --group-size)" in page


def test_nothing_is_said_of_breaks_where_no_call_was_captured(folder: Folder) -> None:
    page = check(folder, "silent", "--first", "1", "--group-size", "1", code=1)
    assert "breaks: none, as no call is trained." in page


RECIPE = '''
from ajet import Recipe
from tests.tiny import save_tiny_model
from tests.tokenizers import thinker

class Adder(Recipe):
    """Only adds small numbers."""
    name = "adder"

    def build(self, folder, seed, progress):
        save_tiny_model(folder, thinker(), 128)

    def tokenizer(self, seed):
        return thinker(), "thinker"
'''


@pytest.mark.whole
@pytest.mark.parametrize("agent", ["equipped", "long"])
def test_a_small_model_that_cannot_do_what_the_agent_asks_is_named_first(
    folder: Folder, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AJET_CACHE", str(folder.path / "cache"))
    folder.write("recipe.py", RECIPE)
    command = ["check", "job.yaml", "--workflow", f"agent.py:{agent}", "--model", "recipe.py:Adder"]
    outcome = folder.ajet(*command, "--first", "1", "--group-size", "1")
    first = next(line for line in outcome.out.splitlines() if line.startswith("! "))
    assert first == "! the model is adder: Only adds small numbers"
    assert "built once, then kept; adder: Only adds small numbers" in outcome.err


@pytest.mark.whole
def test_a_model_that_hardly_ever_calls_a_tool_is_told_with_one_that_does(folder: Folder) -> None:
    folder.write("answers.yaml", '- {turn: 0, call: {name: add, arguments: {}}}\n- {say: "Four."}\n')
    page = check(folder, "seldom", "--first", "1", "--group-size", "1")
    assert (
        "! 12 calls offer tools, of which 1 got a tool call\n  -> Of the recipes, smollm2-tools calls tools"
        in page
    )


@pytest.mark.whole
def test_tools_that_the_model_does_not_see_are_told(folder: Folder) -> None:
    save_tiny_model(folder.path / "thinker", thinker())
    options = ("--first", "1", "--group-size", "1")
    page = check(folder, "equipped", *options)
    assert "does not see" not in page and "! 1 calls offer tools, of which 0 got a tool call" in page
    assert "breaks: none. Every call" in page
    folder.write("calls.yaml", "- call: {name: add, arguments: {}}\n")
    assert "got a tool call" not in check(folder, "equipped", *options, "--answers", "calls.yaml")
    cut = check(
        folder, "equipped", *options, "--answers", "calls.yaml", "--set", "rollout.sampling.max_tokens=8"
    )
    assert "got a tool call" not in cut and "! 1 tool calls have no end, so they stayed text" in cut
    page = check(folder, "equipped", *options, "--model", "thinker")
    assert "! 1 calls have tools that the model does not see: its chat template writes no tools" in page
    assert "  -> Set rollout.tool_prompt: hermes," in page
    prompted = ("--model", "thinker", "--set", "rollout.tool_prompt=hermes")
    page = check(folder, "equipped", *options, *prompted)
    assert "tool calls: JSON, from rollout.tool_prompt, which also shows the tools" in page
    assert "does not see" not in page


LOOKING = """
async def looking(task):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = [{"role": "user", "content": task.query}, {"role": "assistant", "content": "I look."}]
    return (await ask([*asked, {"role": "user", "content": [image]}]))["content"]
"""


def test_what_a_call_was_answered_without_is_told(folder: Folder) -> None:
    folder.write("agent.py", AGENT + LOOKING)
    page = check(folder, "looking", "--first", "1", "--group-size", "2")
    assert (
        "! 2 calls were answered without what they ask for: image\n  -> The model reads in its place" in page
    )
    assert MEANINGS["left_out"]


UNREADABLE = """
{%- for tool in tools or [] -%}<|system|>{{ tool | tojson }}<|stop|>{%- endfor -%}
{%- for m in messages -%}
{{- '<|' ~ m.role ~ '|>' ~ (m.content or '') ~ ('[a tool is called]' if m.tool_calls else '') ~ '<|stop|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""


@pytest.fixture
def unreadable(folder: Folder) -> Path:
    """A model whose chat template shows tools, and writes calls that cannot be read."""
    model = save_tiny_model(folder.path / "unreadable", thinker())
    (model / "chat_template.jinja").write_text(UNREADABLE)
    return model


@pytest.mark.whole
@pytest.mark.parametrize(
    "answers", [("--answers", "answers.yaml"), ("--set", "rollout.sampling.max_tokens=4")]
)
def test_a_model_whose_calls_cannot_be_read_is_told_in_the_first_lines(
    folder: Folder, unreadable: Path, answers: tuple[str, str]
) -> None:
    options = ("--first", "1", "--group-size", "1", "--model", "unreadable", *answers)
    outcome = folder.ajet("check", "job.yaml", "--workflow", "agent.py:equipped", *options)
    assert outcome.code == 1
    title, first, *_ = outcome.out.splitlines()
    assert title.startswith("ajet check · ")
    assert first.startswith(
        f"AgentJet cannot read how {unreadable} writes tool calls; tried: the chat template"
    )
    assert "rollout.call_example" in first and "rollout.tool_calls: text" in first
    before_the_episodes = outcome.err.splitlines()[:2]
    assert any(first in line for line in before_the_episodes), outcome.err
    text = ("--set", "rollout.tool_calls=text")
    assert folder.ajet("check", "job.yaml", "--workflow", "agent.py:equipped", *options, *text).code == 0
    example = ("--set", 'rollout.call_example=[call NAME {"KEY": "VALUE"}]')
    outcome = folder.ajet("check", "job.yaml", "--workflow", "agent.py:equipped", *options, *example)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[1].startswith("tool calls: ")


def test_how_chats_are_read_and_what_breaks_them_are_the_first_lines(folder: Folder) -> None:
    _, first, broken, *_ = check(folder, "clean", "--first", "1", "--group-size", "1").splitlines()
    assert first.startswith("tool calls: JSON, ")
    assert first.endswith("; thoughts: <think> … </think>; stops: <|im_end|>")
    assert broken == (
        "chats with thoughts would break (template drops thinking): rollout.merge: text avoids it"
    )


SAMPLED = {
    "malformed_tool_calls": ("<tool_call>\n{oops}\n</tool_call>", "unreadable tool calls"),
    "cut_calls": ('<tool_call>\n{"name": "add", "argum', "cut calls"),
    "unoffered_tool_calls": (
        '<tool_call>\n{"name": "sub", "arguments": {}}\n</tool_call>',
        "unoffered tool calls",
    ),
    "calls_in_thoughts": (
        '<think>\nhm <tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
        "calls in thoughts",
    ),
    "cut_thoughts": ("<think>\nhm", "cut thoughts"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_went_wrong_in_answers_is_counted_and_told_with_what_helps(folder: Folder, fault: str) -> None:
    sampled, words = SAMPLED[fault]
    folder.write("answers.yaml", json.dumps([{"say": sampled}]))
    page = check(folder, "equipped", "--first", "1", "--group-size", "2")
    assert re.search(rf"^answers .*\b2 {words}", page, re.MULTILINE)
    assert re.search(r"^! 2 .*, such as in 1\.0/\w+/0\n  -> (Look at one|Raise)", page, re.MULTILINE)
    assert MEANINGS[fault]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            {"call": {"nam": "add"}},
            "rule 1: call.nam: no such key; did you mean 'name'. The keys are name, arguments.",
        ),
        ({"call": {"arguments": {}}}, "rule 1: call.name is missing. Name the tool."),
        ({"call": "add"}, "rule 1: call: is not a mapping."),
        ({"call": {"name": "add", "arguments": "{}"}}, "rule 1: call.arguments: is not a mapping."),
        (
            {"say": "4", "trun": 0},
            "rule 1: trun: no such key; did you mean 'turn'. The keys are say, call, when, turn.",
        ),
    ],
)
def test_a_misspelt_key_of_a_rule_is_named_with_file_and_rule(
    folder: Folder, rule: object, said: str
) -> None:
    folder.write("answers.yaml", json.dumps([rule]))
    outcome = folder.ajet("check", "job.yaml", "--workflow", "agent.py:clean", "--answers", "answers.yaml")
    assert outcome.code == 2 and outcome.err.startswith(f"error: answers.yaml, {said}"), outcome.err


def test_failures_are_told_by_cause_with_the_first_error(folder: Folder) -> None:
    page = check(folder, "broken", "--first", "1", "--group-size", "1", "--set", "rollout.retries=0", code=1)
    assert re.search(r"! 1 of 1 episodes failed: workflow:KeyError: .*agent.py:\d+", page)


def test_the_exit_code_is_1_only_if_all_episodes_failed(folder: Folder) -> None:
    folder.write("judge.py", "def judge(task, output): return {'a': 1.0}[task.id]\n")
    options = ("--judge", "judge.py:judge", "--first", "2", "--group-size", "1")
    assert "1 failed" in check(folder, "clean", *options, code=0)
    folder.write("judge.py", "def judge(task, output): return {}[task.id]\n")
    outcome = folder.ajet("check", "--help")
    assert "1: all episodes failed" in " ".join(outcome.out.split())


def test_a_misspelt_recipe_is_named_before_anything_is_fetched(folder: Folder) -> None:
    outcome = folder.ajet("check", "job.yaml", "--workflow", "agent.py:clean", "--model", "starterr")
    assert outcome.code == 2 and not (folder.path / "runs").exists()
    assert outcome.err.startswith(
        "error: --model starterr: no such recipe or folder; did you mean 'starter'."
    )


JUDGES = """
def helper(text):
    return text["score"]

def raises(task, output):
    return helper("no mapping")

def needs_text(task, output):
    return float("4" in output.response)

def nothing(task, output):
    pass

def not_finite(task, output):
    return float("nan")

async def forgotten(task, output):
    async def reward(): return 1.0
    return reward()

def of_trl(completions, answer, **kwargs):
    return [1.0 for _ in completions]

import ajet

class Mine(ajet.Judge):
    name = "mine"
    async def judge(self, task, output, episode):
        return ajet.JudgeOutput(float("inf"))

def of_verl(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0

def misspelt(task, output):
    return ajet.JudgeOutput(0.5, rewards={"agnet": float("4" in output.response)})

def odd_metric(task, output):
    return ajet.JudgeOutput(0.5, metrics={"length": float("nan")})

def says_no(task, output):
    return ajet.JudgeOutput(0.5, is_success="no")
"""


@pytest.mark.whole
def test_a_judge_that_raises_is_named_with_the_line_of_its_own_code(folder: Folder) -> None:
    file = folder.write("judge.py", JUDGES)
    page = check(folder, "clean", "--judge", "judge.py:raises", "--first", "1", "--group-size", "2", code=1)
    said = "2 of 2 episodes failed: judge:TypeError: judge raises: TypeError: string indices must be integers"
    assert said in page and f"({file}:3)" in page
    assert "Fix the judge" in page


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "called", "said", "line"),
    [
        ("nothing", "nothing", "returned NoneType; expected a number", 11),
        ("not_finite", "not_finite", "the reward is nan", 14),
        ("forgotten", "forgotten", "returned a coroutine, which must be awaited", 17),
        ("Mine", "mine", "the reward is inf", 28),
        ("odd_metric", "odd_metric", "the metric length is nan", 37),
        ("says_no", "says_no", "is_success is 'no'; expected True, False or None", 40),
    ],
)
def test_a_judge_that_breaks_its_contract_is_named_with_its_line(
    folder: Folder, name: str, called: str, said: str, line: int
) -> None:
    file = folder.write("judge.py", JUDGES)
    page = check(folder, "clean", "--judge", f"judge.py:{name}", "--first", "1", "--group-size", "1", code=1)
    assert f"judge {called}: " in page and said in page and page.count(f"({file}:{line})") == 1


def test_a_reward_function_of_trl_is_refused_with_the_judge_that_calls_it(folder: Folder) -> None:
    folder.write("judge.py", JUDGES)
    outcome = folder.ajet("check", "job.yaml", "--workflow", "agent.py:clean", "--judge", "judge.py:of_trl")
    asked = "return reward(completions=[output.response], answer=[task.metadata['answer']])[0]. If it reads messages"
    assert outcome.code == 2 and asked in outcome.err


def test_a_reward_function_of_verl_is_refused_with_the_judge_that_calls_it(folder: Folder) -> None:
    folder.write("judge.py", JUDGES)
    outcome = folder.ajet("check", "job.yaml", "--workflow", "agent.py:clean", "--judge", "judge.py:of_verl")
    asked = "return score(data_source='', solution_str=output.response, ground_truth=task.metadata['answer'])"
    assert outcome.code == 2 and asked in outcome.err


def test_a_reward_of_nobody_is_told_with_the_names_that_there_are(folder: Folder) -> None:
    folder.write("judge.py", JUDGES)
    page = check(folder, "clean", "--judge", "judge.py:misspelt", "--first", "1", "--group-size", "2")
    assert "! the judge rewards 'agnet', but no call is of an agent or target with this name" in page
    assert "-> Name them as the calls do: agent." in page


@pytest.mark.whole
def test_a_group_size_that_a_run_refuses_is_said(folder: Folder) -> None:
    assert "`ajet run` refuses this job" not in check(folder, "clean", "--first", "1")
    page = check(folder, "clean", "--first", "1", "--set", "rollout.group_size=1")
    assert "! `ajet run` refuses this job\n  -> rollout.group_size: the algorithm 'grpo' compares" in page


@pytest.mark.whole
def test_a_workflow_that_returns_none_is_blamed_where_its_judge_fails_for_it(folder: Folder) -> None:
    file = folder.write("judge.py", JUDGES)
    folder.write("agent.py", AGENT + "async def silent(task):\n    await clean(task)\n")
    options = ("--judge", "judge.py:needs_text", "--first", "1", "--group-size", "1")
    page = check(folder, "silent", *options, code=1)
    assert "failed: workflow:returned_none: the workflow returned None, which the judge cannot score" in page
    assert f"({file}:9)" in page and "-> Return the answer from the workflow." in page
    folder.write("job.yaml", (folder.path / "job.yaml").read_text().replace("judge: {type: exact}\n", ""))
    page = check(folder, "silent", "--first", "1", "--group-size", "1", code=1)
    assert "workflow:no_reward: the workflow returned None, and the job names no judge" in page
    assert "-> Name a judge" in page


@pytest.mark.whole
def test_scripted_answers_take_prompts_of_any_length_unless_there_is_a_limit(folder: Folder) -> None:
    options = ("--first", "1", "--group-size", "1", "--set", "rollout.retries=0")
    page = check(folder, "long", *options)
    longest = re.search(r"longest call +(\d+) tokens$", page, re.MULTILINE)
    assert longest and int(longest[1]) > 4096 and "0 failed" in page
    limited = check(folder, "long", *options, "--context-length", "4096", code=1)
    assert "context_length_exceeded" in limited, limited


def test_a_limit_for_scripted_answers_without_any_is_refused(folder: Folder) -> None:
    outcome = folder.ajet("check", "job.yaml", "--context-length", "4096")
    assert outcome.code == 2
    assert (
        outcome.err.startswith("error: --context-length applies only with --answers")
        and "Add the file of answers" in outcome.err
    )


@pytest.mark.whole
def test_the_episodes_are_kept_for_show(folder: Folder) -> None:
    page = check(folder, "clean", "--first", "1", "--group-size", "1")
    run, episode = re.search(r"ajet show (\S+) (\S+)$", page, re.MULTILINE).groups()  # type: ignore[union-attr]
    outcome = folder.ajet("show", run, episode)
    assert outcome.code == 0, outcome.err
    assert "Because it is so, four." in outcome.out


def test_a_script_without_a_fitting_rule_names_the_call(folder: Folder) -> None:
    folder.write("answers.yaml", '- {turn: 0, say: "4"}\n')
    page = check(folder, "clean", "--first", "1", "--group-size", "1", code=1)
    assert "no rule fits call 1" in page


@pytest.mark.whole
def test_the_drifting_example_is_explained(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    command = re.search(r"^OPENAI_API_KEY=none ajet (.+)$", (DRIFT / "README.md").read_text(), re.MULTILINE)
    assert command
    monkeypatch.chdir(DRIFT)
    outcome = folder.ajet(*command[1].split(), "--set", f"run.dir={json.dumps(str(folder.path))}")
    assert outcome.code == 0, outcome.err
    for cause in ("whitespace changed", "window slid"):
        assert f"calls could not continue their conversation: {cause}" in outcome.out
    assert "harbour·town,·[-·it·has" in outcome.out and "remedy: Send messages back unchanged" in outcome.out


COMMAND = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
ask = {"model": "m", "messages": [{"role": "user", "content": task["query"]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(ask).encode())
request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
urllib.request.urlopen(request).read()
assert task == json.loads(os.environ["AJET_TASK"])
print(json.dumps({"reward": 0, "response": ["got", *sorted(task["metadata"])]}))
"""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("judge", "hidden", "got"),
    [
        ("judge: {type: contains}", "null", ["level", "tests"]),
        ("judge: {type: contains}", "[answer, tests]", ["level"]),
        ("judge: {type: contains}", "[]", ["answer", "level", "tests"]),
        ("", "null", ["answer", "level", "tests"]),
    ],
    ids=["default", "named", "none", "it judges itself"],
)
def test_a_command_gets_the_fields_that_are_not_for_the_judge_alone(
    folder: Folder, judge: str, hidden: str, got: list[str]
) -> None:
    folder.write("solve.py", COMMAND)
    folder.write("tasks.jsonl", '{"query": "2+2?", "answer": "4", "tests": "t", "level": 1}\n')
    folder.write("job.yaml", JOB.replace("judge: {type: exact}", judge))
    command = f"cmd:{sys.executable} solve.py"
    done = folder.ajet("run", "job.yaml", "--workflow", command, "--set", f"task.hidden={hidden}")
    assert str(["got", *got]) in done.err


@pytest.mark.whole
def test_a_response_that_only_the_task_can_have_given_is_a_warning(folder: Folder) -> None:
    folder.write(
        "agent.py",
        f"{AGENT}\nasync def peeks(task):\n    await clean(task)\n    return task.metadata['answer']\n",
    )
    assert "! 4 responses repeat the task's answer, which no message has" in check(
        folder, "peeks", "--first", "2"
    )
    folder.write("answers.yaml", "- {say: 'It is 4 or 6.'}\n")
    assert "repeat the task's answer" not in check(folder, "peeks", "--first", "2")
    assert "repeat the task's answer" not in check(folder, "clean", "--first", "2")


PROGRAM = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
ask = {"model": "m", "messages": [{"role": "user", "content": task["query"]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(ask).encode())
request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
urllib.request.urlopen(request).read()
print(eval(task["query"].removesuffix("?")))
"""


@pytest.mark.whole
def test_a_command_that_works_the_answer_out_is_no_warning_and_one_that_prints_something_else_is(
    folder: Folder,
) -> None:
    folder.write("solve.py", PROGRAM)
    folder.write("tasks.jsonl", '{"query": "2+2?", "answer": "4"}\n')
    folder.write("answers.yaml", "- {say: 'Add them.'}\n")
    words = ("--workflow", f"cmd:{sys.executable} solve.py", "--answers", "answers.yaml")
    checked = folder.ajet("check", "job.yaml", *words).out
    assert "reward              1.00" in checked and "repeat the task's answer" not in checked
    folder.write("solve.py", PROGRAM + "print('in 3 ms')")
    unpaid = folder.ajet("check", "job.yaml", *words).out
    assert (
        "! no response got a reward, such as 'in 3 ms'\n  -> Return what the judge expects; of a command"
        in unpaid
    )
    assert "If the answers are wrong: `ajet docs own-agent#what-a-small-model-needs`." in unpaid
    assert "no response got a reward" not in checked


CODER = """
import json, os, urllib.request  # an SDK would take most of the time

tool = {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}

def ask(model, *chat, **more):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions")
    request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    request.data = json.dumps({"model": model, "messages": list(chat), **more}).encode()
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

user = {"role": "user", "content": "Count the files."}
ask("nano", {"role": "user", "content": "Give this chat a name: Count the files."})
said = ask("big", user, tools=[tool])
result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a b c"}
print(ask("big", user, said, result, tools=[tool])["content"])
"""
CODERS_ANSWERS = """
- {turn: 0, say: Files and their number}
- {turn: 1, call: {name: shell, arguments: {command: ls}}}
- {say: "4"}
"""


SMALL = """
rollout: {side_calls: train}
targets:
  main: {}
  small: {models: ["*nano*"], train: false}
"""


@pytest.mark.whole
@pytest.mark.parametrize(
    "keys", ["", "\nrollout: {side_calls: train}", SMALL], ids=["found", "trained", "named"]
)
def test_side_calls_of_a_program_are_listed_and_not_trained(folder: Folder, keys: str) -> None:
    folder.write("coder.py", CODER)
    folder.write("answers.yaml", CODERS_ANSWERS)
    folder.write("job.yaml", JOB + keys)
    options = ("--workflow", f"cmd:{sys.executable} coder.py", "--answers", "answers.yaml", "--first", "1")
    outcome = folder.ajet("check", "job.yaml", *options, "--group-size", "2")
    page = outcome.out
    assert re.search("episodes .* 0 failed", page), outcome.err
    listed = "side calls are answered and not trained" in page
    if keys.endswith("train}"):
        assert not listed and re.search(r"timelines +2.0 an episode", page)
        return
    tokens = re.search(
        r"  2 of agent agent, model nano: (\d+) tokens, such as 'Files and their number'", page
    )
    assert listed and tokens and re.search(r"timelines +1.0 an episode", page)
    assert f"{tokens[1]} sampled tokens by side_calls" in page
    (run_dir,) = (folder.path / "runs").iterdir()
    lines = [json.loads(line) for line in (run_dir / "episodes.jsonl").read_text().splitlines()]
    marked = [[call["tokens"].get("side", False) for call in line["calls"]] for line in lines]
    assert marked == [[True, False, False]] * 2
    assert [call["details"]["model"] for call in lines[0]["calls"]] == ["nano", "big", "big"]
