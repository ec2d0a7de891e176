"""config.json of the dense families: equal to the presets, and strict about everything else."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.layers.parameters import count_parameters
from advisor.models.config_json.importer import MODEL_TYPES, load_config_json
from advisor.models.config_json.keys import KNOWN, HuggingFaceConfig
from advisor.models.options import Activation
from advisor.models.presets import load_model
from tests.advisor.models.config_json.published import NEWER, PUBLISHED, load
from tests.advisor.refusals import refused

LLAMA3_8B, MISTRAL_7B, QWEN25_7B, QWEN3_32B, NEMOTRON4_15B, GPT2 = (
    PUBLISHED[name]
    for name in ("llama3_8b", "mistral_7b", "qwen2.5_7b", "qwen3_32b", "nemotron4_15b", "gpt2")
)
GEMMA3 = LLAMA3_8B | {"model_type": "gemma3_text", "sliding_window": 4096}
WINDOW_FIRST = ["sliding_attention", "full_attention"]
# The load-balancing loss of Mixtral and Qwen3 has a weight for fine-tuning.
LOSSES = ("mixtral_8x7b", "qwen3_30b_a3b")


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - {"gpt2"}))
def test_a_published_config_gives_the_preset(tmp_path: Path, name: str) -> None:
    """Except the vocabulary's multiple, which config.json does not hold."""
    spec = load(tmp_path, PUBLISHED[name])
    preset = replace(load_model(name), name=spec.name, make_vocab_size_divisible_by=128)
    if name in LOSSES:
        assert spec.moe_aux_loss_coeff == PUBLISHED[name]["router_aux_loss_coef"]
        preset = replace(preset, moe_aux_loss_coeff=spec.moe_aux_loss_coeff)
    assert spec == preset


def test_gpt2_has_its_published_size(tmp_path: Path) -> None:
    spec = load(tmp_path, GPT2)
    assert count_parameters(spec) == 124_439_808  # openai-community/gpt2
    assert (spec.hidden_dropout, spec.attention_dropout) == (0.1, 0.1)
    assert spec.ffn_hidden_size == 3072


def test_all_families_are_tested() -> None:
    read = {config["model_type"] for config in PUBLISHED.values()}
    elsewhere = {"gemma2", "gemma3_text", "gemma4_text", "llama4_text", "olmo2"}  # tests/oracles
    newer = {config.get("text_config", config)["model_type"] for config in NEWER.values()}
    assert (read | elsewhere | newer | {"qwen3_5_text"}) & {*MODEL_TYPES} == {*MODEL_TYPES}


@pytest.mark.parametrize(
    ("base", "changes", "field", "value"),
    [
        (LLAMA3_8B, {"attention_bias": True, "mlp_bias": True}, "add_bias_linear", True),
        (LLAMA3_8B, {"head_dim": 64}, "kv_channels", 64),
        (LLAMA3_8B, {"head_dim": None}, "kv_channels", 128),
        (LLAMA3_8B, {"num_key_value_heads": None}, "num_query_groups", 32),
        (LLAMA3_8B, {"hidden_act": "gelu_pytorch_tanh"}, "activation", Activation.GEGLU),
        (LLAMA3_8B, {"attention_dropout": 0.1}, "attention_dropout", 0.1),
        (LLAMA3_8B, {"partial_rotary_factor": 0.25}, "rotary_percent", 0.25),
        (LLAMA3_8B, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rotary_percent", 0.5),
        (MISTRAL_7B, {"sliding_window": 32768}, "num_layers", 32),
        (QWEN25_7B, {"sliding_window": 131072}, "add_qkv_bias", True),
        (QWEN3_32B, {"head_dim": None}, "kv_channels", 80),
        (GPT2, {"n_inner": 1000}, "ffn_hidden_size", 1000),
        (GPT2, {"tie_word_embeddings": False}, "share_embeddings_and_output_weights", False),
    ],
)
def test_fields_that_change_the_shape_are_read(tmp_path, base, changes, field, value) -> None:
    assert getattr(load(tmp_path, base, **changes), field) == value


def test_an_absent_key_means_what_transformers_means(tmp_path: Path) -> None:
    mistral = {key: value for key, value in MISTRAL_7B.items() if key != "num_key_value_heads"}
    assert load(tmp_path, mistral).num_query_groups == 8
    llama = {key: value for key, value in LLAMA3_8B.items() if key != "num_key_value_heads"}
    assert load(tmp_path, llama).num_query_groups == 32
    windowed = {key: value for key, value in MISTRAL_7B.items() if key != "sliding_window"}
    assert load(tmp_path, windowed).window_size == 4096


@pytest.mark.parametrize(
    ("base", "changes", "skips"),
    [
        (MISTRAL_7B, {"sliding_window": 4096}, None),
        (QWEN25_7B, {"use_sliding_window": True, "max_window_layers": 0}, None),
        (QWEN25_7B, {"use_sliding_window": True, "max_window_layers": 26}, f"[{'0,' * 26}1,1]"),
        (QWEN3_32B, {"sliding_window": 64, "layer_types": WINDOW_FIRST * 32}, "2"),
        (GEMMA3, {}, "6"),
        (GEMMA3, {"sliding_window_pattern": 3}, "3"),
    ],
)
def test_windows(tmp_path, base, changes, skips) -> None:
    spec = load(tmp_path, base, **changes)
    assert spec.window_size == changes.get("sliding_window", 4096)
    assert spec.window_attn_skip_freq == skips


@pytest.mark.parametrize(
    ("changes", "experts", "bare"),
    [
        ({}, "1", "4"),
        ({"interleave_moe_layer_step": 2}, "[0,1]*16", "4"),
        ({"moe_layers": [1], "no_rope_layers": [1] * 31 + [0]}, f"[0,1{',0' * 30}]", "32"),
        ({"no_rope_layers": [0, 1] * 16}, "1", f"[{'1,0,' * 15}1,0]"),
    ],
)
def test_llama4_layers(tmp_path: Path, changes: dict[str, Any], experts: str, bare: str) -> None:
    spec = load(tmp_path, LLAMA3_8B, model_type="llama4_text", **changes)
    assert (spec.moe_layer_freq, spec.no_rope_freq) == (experts, bare)


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (LLAMA3_8B, {"num_local_experts": 8}, "num_local_experts = 8: mixture-of-experts"),
        (LLAMA3_8B, {"quantization_config": {"bits": 4}}, "quantization_config = {'bits': 4}: qu"),
        (LLAMA3_8B, {"attention_bias": True}, "attention_bias = true: needs mlp_bias = true too"),
        (LLAMA3_8B, {"mlp_bias": True}, "mlp_bias = true: needs attention_bias = true too"),
        (LLAMA3_8B, {"auto_map": {"AutoModel": "x.y"}}, "auto_map = {'AutoModel': 'x.y'}: points"),
        (LLAMA3_8B, {"sliding_window": 9}, "sliding_window = 9: this family has no sliding-window"),
        (LLAMA3_8B, {"my_extra_layers": 3}, "my_extra_layers = 3: is unknown"),
        (LLAMA3_8B, {"output_hidden_states": True}, "output_hidden_states = true: returns every"),
        (LLAMA3_8B, {"architectures": ["LlamaForSequenceClassification"]}, "is not a causal"),
        (LLAMA3_8B, {"hidden_act": "relu"}, "hidden_act = relu: is not a modelled activation"),
        (LLAMA3_8B, {"hidden_act": 3}, "hidden_act = 3: must be text"),
        (LLAMA3_8B, {"hidden_size": 4100}, "num_attention_heads = 32: must divide the hidden"),
        (LLAMA3_8B, {"num_hidden_layers": 0}, "num_hidden_layers = 0: must be at least 1"),
        (LLAMA3_8B, {"num_hidden_layers": "32"}, "num_hidden_layers = 32: must be an integer"),
        (LLAMA3_8B, {"vocab_size": None}, "vocab_size = None: is missing"),
        (LLAMA3_8B, {"num_key_value_heads": 5}, "model.num_query_groups = 5: must divide"),
        (LLAMA3_8B, {"attention_dropout": 1.5}, "dropout = 1.5: must be at least 0 and below 1"),
        (LLAMA3_8B, {"tie_word_embeddings": "no"}, "tie_word_embeddings = no: must be true or"),
        (LLAMA3_8B, {"model_type": "dbrx"}, "model_type = dbrx: is not a supported model family"),
        (LLAMA3_8B, {"model_type": None}, "model_type = None: is not a supported model family"),
        (LLAMA3_8B, {"use_sliding_window": True}, "use_sliding_window = true: this family has no"),
        (MISTRAL_7B, {"layer_types": ["full_attention"], "sliding_window": 9}, "must list num_hid"),
        (LLAMA3_8B, {"layer_types": ["sliding_attention"] * 32}, "only full_attention"),
        (LLAMA3_8B, {"model_type": "falcon"}, "in parallel, which Megatron Core"),
        (
            LLAMA3_8B,
            {"model_type": "llama4_text", "layer_types": ["full_attention"] * 32},
            "must be chunked_attention exactly where no_rope_layers is 1",
        ),
        (LLAMA3_8B, {"model_type": "gemma2", "use_bidirectional_attention": True}, "only causal"),
        (QWEN3_32B, {"attention_bias": True}, "attention_bias = true: adds biases"),
        (QWEN3_32B, {"layer_types": ["linear_attention"] * 64}, "only full_attention and sliding"),
        (NEMOTRON4_15B, {"hidden_act": "silu"}, "hidden_act = silu: is not a modelled activation"),
        (GPT2, {"embd_pdrop": 0.0}, "embd_pdrop = 0.0: must equal resid_pdrop = 0.1"),
        (GPT2, {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn = true: fp32"),
        (GPT2, {"n_embd": 770}, "n_head = 12: must divide the hidden size = 770"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path, base, changes, says) -> None:
    with refused(says, "config.json: "):
        load(tmp_path, base, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"quantization_config": None},
        {"num_local_experts": 0},
        {"use_sliding_window": False},
        {"rope_scaling": {"type": "linear", "factor": 8.0}},
        {"_attn_implementation": "sdpa"},
        {"dtype": "bfloat16"},
        {"pruned_heads": {}},
        {"my_extra_layers": None},
    ],
)
def test_what_is_off_or_harmless_is_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert load(tmp_path, LLAMA3_8B, **changes) == load(tmp_path, LLAMA3_8B)


def test_the_name_is_the_file_or_its_folder(tmp_path: Path) -> None:
    assert load(tmp_path, LLAMA3_8B).name == tmp_path.name
    other = tmp_path / "mine.json"
    other.write_text(json.dumps(LLAMA3_8B))
    assert load_config_json(other).name == "mine"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not valid JSON: line 1, column 1: Expecting value"),
        (b"\xff\xff\xff", "is not UTF-8 text in line 1"),
        (b"[]", "must hold keys and values, but holds a list"),
    ],
)
def test_broken_json_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_config_json(path)
    path.write_bytes(content)
    with refused(says):
        load_config_json(path)


@given(
    key=st.text(st.characters(categories=("Ll",)), min_size=3),
    value=st.integers() | st.text() | st.lists(st.integers()) | st.booleans(),
)
def test_no_unknown_key_gets_through(key: str, value: object) -> None:
    config = HuggingFaceConfig(path=Path("config.json"), values={key: value})
    if key in KNOWN.neutral:
        return
    with refused():
        config.check_keys(frozenset())
