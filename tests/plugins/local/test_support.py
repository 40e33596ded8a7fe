"""What the local backbone says of an architecture, and of installed packages that break one."""

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoConfig, AutoModelForCausalLM, Lfm2Config, Qwen3Config  # noqa: E402

import ajet_local  # noqa: E402
from ajet.types import AjetError  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.modeling import load_model, load_tokenizer  # noqa: E402
from ajet_local.support import support_of  # noqa: E402
from ajet_local.trainer import LocalTrainer  # noqa: E402
from tests.pages import tool  # noqa: E402
from tests.tiers import fast  # noqa: E402


def test_python_code_in_a_model_s_folder_does_not_run_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoTokenizer": "evil.Config"}}
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps(about))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked"))
    for load in (load_tokenizer, lambda folder: load_model(str(folder), "cpu", "float32")):
        with pytest.raises(AjetError):
            load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_no_model_is_loaded_without_a_word_on_its_code() -> None:
    """transformers asks on a terminal, if nothing is said."""
    loading = re.compile(r"\bAuto\w*\.from_pretrained\([^()]*(\([^()]*\)[^()]*)*\)")
    root = Path(__file__).parents[3]
    found = [
        f"{path.relative_to(root)}: {match[0]}"
        for where in ("core", "plugins")
        for path in (root / where).rglob("*.py")
        for match in loading.finditer(path.read_text())
        if "trust" not in match[0]
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "kinds", "found"),
    fast(
        {0, 2, 4},
        [
            ("qwen3", {}, {"engine": "yes", "trees": "yes", "adapters": "yes", "memory": "estimated"}),
            ("qwen3_moe", {}, {"trees": "yes", "adapters": "yes, with the experts"}),
            (
                "gpt_oss",
                {},
                {
                    "trees": "no: the model has layers of sliding_attention",
                    "adapters": "yes, without the experts",
                },
            ),
            ("gemma2", {}, {"engine": "a row for each context", "trainer": "yes"}),
            ("nemotron_h", {}, {"adapters": "no: Module 'out_proj' is incompatible with Mamba-based models"}),
        ],
    ),
)
def test_an_architecture_is_tried_as_a_small_model(name, kinds, found):
    said = support_of(AutoConfig.for_model(name, **kinds))
    assert list(said) == ["memory", "engine", "trainer", "trees", "adapters"]
    assert {part: said[part].partition(" (")[0] for part in found} == found


def test_an_architecture_without_a_small_model_is_an_error():
    with pytest.raises(AjetError, match="'bert': no small model of its kind"):
        support_of(AutoConfig.for_model("bert", num_hidden_layers=2, hidden_act="no such function"))


@pytest.mark.slow
def test_the_page_has_what_the_script_writes():
    script = tool("architectures_table")
    assert script.page() == script.PAGE.read_text(encoding="utf-8"), (
        "run: python tools/architectures_table.py"
    )


def test_the_routers_auxiliary_loss_is_told_and_costs_no_trees(caplog):
    config = AutoConfig.for_model("qwen3_moe", output_router_logits=True)
    model = AutoModelForCausalLM.from_config(small(config), dtype=torch.float32).eval()
    LocalTrainer(model, None, LocalEngine(model, None))
    assert "auxiliary loss (router_aux_loss_coef: 0.001) is not added" in caplog.text
    assert "not as trees" not in caplog.text


# --------------------------------------------------------------------------- packages that need a GPU


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Make a distribution look installed: its metadata is on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def install(name):
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")

    return install


@pytest.mark.parametrize("names", [["causal-conv1d"], ["mamba-ssm"], ["flash-linear-attention", "triton"]])
def test_a_package_that_breaks_recurrent_layers_is_named(names, installed, tmp_path, tokenizer):
    models = {
        "recurrent": Lfm2Config(layer_types=["conv", "full_attention"], num_hidden_layers=2),
        "other": Qwen3Config(),
    }
    for name, config in models.items():
        AutoModelForCausalLM.from_config(small(config)).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    load_model(tmp_path / "recurrent", "cpu")
    for name in names:
        installed(name)
    [finding] = [line for line in ajet_local.ajet_doctor() if line[0] == names[0]]
    assert finding.optional and finding.remedy.endswith(f"pip uninstall {names[0]}")
    with pytest.raises(AjetError, match=f"pip uninstall {names[0]}"):
        load_model(tmp_path / "recurrent", "cpu")
    load_model(tmp_path / "other", "cpu")


def test_kernels_that_cannot_be_imported_break_nothing(installed):
    installed("flash-linear-attention")  # without triton
    assert [line[0] for line in ajet_local.ajet_doctor() if line[0] != "load"] == ["local backbone", "models"]


def small(config):
    for name, value in {
        "vocab_size": 600,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    }.items():
        setattr(config, name, value)
    config.layer_types = (getattr(config, "layer_types", None) or ["full_attention"] * 2)[:2]
    config.pad_token_id = config.bos_token_id = config.eos_token_id = None
    return config
