"""docs/coming-from.md: what it names is there."""

from __future__ import annotations

import re

from ajet.job.config import all_keys
from ajet.plugins import load_plugins
from ajet_migrate.earlier.job_file import RENAMED
from tests.pages import page

PAGE = page("docs/coming-from.md")
KEYS = {key.key for key in all_keys()}


def test_every_key_that_it_names_is_one_of_the_jobs() -> None:
    named = set(re.findall(r"`((?:task|rollout|train|eval|run)\.[a-z_.]+)`", PAGE))
    assert len(named) > 20
    assert not [key for key in named if key not in KEYS and not any(k.startswith(f"{key}.") for k in KEYS)]


def test_the_judges_and_algorithms_that_it_names_are_installed() -> None:
    classes = load_plugins().classes
    for kind, names in {
        "judge": ("listwise", "pairwise", "combine"),
        "algorithm": ("grpo", "dapo", "dr_grpo", "cispo", "gspo"),
    }.items():
        assert all(f"`{name}`" in PAGE and (kind, name) in classes for name in names)


def test_what_is_missing_is_said() -> None:
    missing = PAGE.partition("## What AgentJet does not have today")[2]
    for name in ("DPO", "critic", "reward model", "QLoRA", "Comet"):
        assert name in missing
    for name in ("Hub", "Python API", "notebook"):
        assert name not in missing


def test_every_earlier_key_with_a_new_name_is_in_its_table() -> None:
    rows = re.findall(
        r"^\| `ajet\.([\w.]+)` \| `([\w.]+)` \|$", page("plugins/migrate/KEYS.md"), re.MULTILINE
    )
    assert dict(rows) == {old: new for old, (new, _) in RENAMED.items()}


def test_every_form_of_the_earlier_agentjet_is_on_the_page() -> None:
    section = PAGE.partition("## Programs of the earlier AgentJet")[2]
    forms = """class X(Workflow)|AjetTuner|WorkflowTask|BaseJudge|main_query|init_messages|gym_env|as_agentscope_model(agent_name=|
    as_raw_openai_sdk_client|as_oai_baseurl_apikey|trainable_targets|debug_model|tuner.config|context_overflow|
    update_judge_input_dictionary|log_metrics|compute_reward|EnvServiceJudge|AutoGraderJudge|create_external_llm_fn|
    ajet.utils.robust_dashscope|ajet.tuner_lib|AgentJetJob|->Class|--conf|launcher|--with-ray|--with-appworld|--with-crafters|
    --with-logview|--db|--exp-dir|--kill|ajet config from-earlier"""
    assert not [form for form in forms.split("|") if form.strip() not in section]
