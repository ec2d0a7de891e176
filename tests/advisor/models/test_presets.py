"""Model presets, YAML files and paths, as `--model` takes them."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.models.options import Activation, Normalization, PositionEmbedding
from advisor.models.presets import hub_ids, load_model, load_preset, model_names
from advisor.reading.model_names import named_model
from tests.advisor.models.config_json.published import PUBLISHED
from tests.advisor.refusals import refused

TINY = """\
num_layers: 2
hidden_size: 64
ffn_hidden_size: 128
num_attention_heads: 4
num_query_groups: 2
kv_channels: 16
vocab_size: 1000
max_position_embeddings: 128
"""


def yaml_model(folder: Path, text: str, name: str = "tiny.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", model_names())
def test_every_preset_names_its_source(name: str) -> None:
    preset = load_preset(name)
    assert preset.spec.name == name
    assert preset.source


@pytest.mark.parametrize("name", ["gpt3_22b", "gpt3_175b", "gpt3_530b", "gpt3_1t"])
def test_gpt3_is_the_transformer_of_its_time(name: str) -> None:
    spec = load_model(name)
    assert (spec.hidden_dropout, spec.attention_dropout) == (0.1, 0.1)
    assert spec.normalization is Normalization.LAYER_NORM
    assert spec.activation is Activation.GELU
    assert spec.position_embedding_type is PositionEmbedding.LEARNED
    assert spec.add_bias_linear
    assert spec.share_embeddings_and_output_weights
    assert spec.ffn_hidden_size == 4 * spec.hidden_size


def test_families_differ_where_they_should() -> None:
    assert load_model("qwen2.5_7b").add_qkv_bias
    assert load_model("qwen3_8b").qk_layernorm
    assert load_model("llama3.2_1b").share_embeddings_and_output_weights
    nemotron = load_model("nemotron4_15b")
    assert nemotron.activation is Activation.SQUARED_RELU
    assert nemotron.rotary_percent == 0.5
    assert load_model("qwen3_32b").query_projection_size == 8192  # and hidden_size is 5120


@pytest.mark.parametrize("spelt", ["llama3_70b", "Llama3_70B", "llama3-70b", "LLAMA3-70B"])
def test_case_and_dashes_do_not_matter(spelt: str) -> None:
    assert load_model(spelt).name == "llama3_70b"


def test_llama3_405b_is_llama_3_1() -> None:
    assert load_model("llama3_405b") == replace(load_model("llama3.1_405b"), name="llama3_405b")


def test_a_base_gives_shape_and_size_but_not_notes() -> None:
    derived, base = load_preset("llama3.1_8b"), load_preset("llama3_8b")
    assert derived.spec == replace(base.spec, name="llama3.1_8b", max_position_embeddings=131072)
    assert derived.published_parameters == base.published_parameters
    assert derived.notes != base.notes


def test_a_yaml_file_is_a_model_and_may_cut_a_preset(tmp_path: Path) -> None:
    spec = load_model(yaml_model(tmp_path, TINY))
    assert (spec.name, spec.num_layers, spec.fc1_size_of(128)) == ("tiny", 2, 256)
    path = yaml_model(tmp_path, "base: llama3_70b\nnum_layers: 12\n", "cut.yml")
    assert load_model(path) == replace(load_model("llama3_70b"), name="cut", num_layers=12)


def test_another_shape_loses_the_published_size(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    yaml_model(tmp_path / "model", "base: llama3_70b\nnum_layers: 12\n", "cut.yaml")
    assert load_preset("cut", tmp_path).published_parameters is None
    assert "cut" in model_names(tmp_path)
    assert load_model("cut", tmp_path).num_layers == 12


def test_a_circle_of_bases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    yaml_model(tmp_path / "model", "base: b\n", "a.yaml")
    yaml_model(tmp_path / "model", "base: a\n", "b.yaml")
    with pytest.raises(UserError, match=r"base = [ab]: leads back to the file itself"):
        load_model("a", tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num_layers: 2\n", "hidden_size = (none): is missing"),
        (TINY + "num_layer: 3\n", "num_layer = 3: is not a known key; did you mean num_layers"),
        (TINY + "sources: me\n", "sources = me: is not a known key; did you mean source"),
        (TINY.replace("64", "'64'"), "hidden_size = 64: must be an integer"),
        (TINY.replace("64", "0"), "model.hidden_size = 0: must be at least 1"),
        (
            TINY.replace("groups: 2", "groups: 3"),
            "model.num_query_groups = 3: must divide num_attention_heads = 4; nearest: 2 or 4",
        ),
        (TINY + "activation: swish\n", "squared_relu, swiglu, geglu, quick_geglu; did you mean"),
        (TINY + "add_bias_linear: 1\n", "add_bias_linear = 1: must be true or false"),
        (TINY + "published_parameters: 7\n", "published_parameters = 7: must be a mapping"),
        (TINY + "base: llama3\n", "base = llama3: unknown model; did you mean llama3_8b"),
        (TINY + "base: [a]\n", "base = ['a']: must be text"),
        (TINY + "hidden_size\n", "is not valid YAML"),
    ],
)
def test_a_wrong_yaml_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = yaml_model(tmp_path, text)
    with refused(says, "tiny.yaml"):
        load_model(path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("llama3_7b", "--model = llama3_7b: unknown model; did you mean llama3_70b"),
        ("qwen3", "did you mean qwen3_4b, qwen3_8b"),
        ("falcon_180b", "attention and MLP in parallel, which Megatron Core"),
        ("", "--model = '': unknown model; similar: "),
        ("no/such.yaml", "--model = no/such.yaml: no such file or folder"),
        (
            "meta-llama/llama3_8B",
            "no preset has this id of the Hugging Face hub",
        ),
        ("Qwen/Qwen99-7B", "; give its config.json; did you mean qwen"),
        ("../model/llama3_8b", "no such file or folder"),
        ("a\nb", "--model = 'a\\nb': unknown model"),
        ("a\0b", "--model = 'a\\x00b': unknown model"),
        ("x" * 5000, "unknown model; similar: "),
        ("x/" * 2500, "no such file or folder"),
    ],
)
def test_an_unknown_model_is_one_line(name: str, says: str) -> None:
    with refused(says):
        load_model(name)


def test_a_preset_comes_before_a_folder_of_that_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama3_8b").mkdir()
    assert load_model("llama3_8b").num_layers == 32


def test_folders_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"this folder holds no config\.json"):
        load_model(str(tmp_path))
    other = tmp_path / "model.toml"
    other.write_text("")
    with pytest.raises(UserError, match=r"is neither a YAML file nor a config\.json"):
        load_model(str(other))


def test_a_hugging_face_folder_or_file(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED["gpt2"]))
    assert load_model(str(folder)) == load_model(str(folder / "config.json"))
    assert load_model(str(folder)).name == "My-Model"


def test_ids_of_the_hub_are_models_in_any_case() -> None:
    """Each of one preset; with its owner, and in a path, without."""
    listed = [(known, name) for name in model_names() for known in load_preset(name).hub]
    assert len({known.lower() for known, _ in listed}) == len(listed) > 100
    for known, name in listed:
        assert hub_ids()[known.lower()] == name
        assert named_model([f"--model /data/{known.rpartition('/')[2]}"]) == name
    assert load_model("META-LLAMA/llama-3.1-8B").name == "llama3.1_8b"
    assert named_model(["deepseek-ai/DeepSeek-R1-Distill-Llama-70B"]) == "llama3.1_70b"
