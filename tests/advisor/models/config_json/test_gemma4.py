"""config.json of Gemma 4: both ways to write the heads of layers without a window, what of a layer
follows its kind, and refusals. tests/oracles count its parameters and bytes exactly."""

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.layers.parameters import parameter_count
from advisor.models.layer_kind import DENSE, Mixer
from advisor.plan.flops import layer_weights
from tests.advisor.models.config_json.published import load
from tests.advisor.refusals import refused
from tests.advisor.tables import tables

TABLES = tables(__file__)

_SHAPE: dict[str, Any] = {
    **{"model_type": "gemma4_text", "num_hidden_layers": 12, "hidden_size": 5376},
    **{"intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 16},
    **{"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "sliding_window": 1024},
}
OLDER = _SHAPE | {"global_head_dim": 512, "num_global_key_value_heads": 4}
_OVERRIDES = {"head_dim": 512, "num_key_value_heads": 4}
NEWER = _SHAPE | {"per_layer_config": {"05": _OVERRIDES, "11": _OVERRIDES}}
SLIDING = DENSE._replace(mixer=Mixer.SLIDING_WINDOW)


def test_both_ways_to_write_it_read_alike(tmp_path) -> None:
    spec = load(tmp_path, OLDER)
    assert load(tmp_path, NEWER) == spec
    both = {"model_type": "gemma4", "text_config": NEWER, "vision_config": {}}
    assert load(tmp_path, both) == replace(spec, name=f"{spec.name} (text alone)")
    assert spec.layer_kinds == ((SLIDING,) * 5 + (DENSE,)) * 2
    assert load(tmp_path, OLDER, max_position_embeddings=512).layer_kinds == spec.layer_kinds


def test_heads_follow_the_kind_of_the_layer(tmp_path) -> None:
    spec = load(tmp_path, OLDER)
    heads = {DENSE: (512, 4, True), SLIDING: (256, 16, False)}
    for kind, expected in heads.items():
        seen = spec.of_kind(kind)
        assert (seen.kv_channels, seen.num_query_groups, seen.attention_k_eq_v) == expected
    widths = {DENSE: 512 * (2 * 32 + 4), SLIDING: 256 * (2 * 32 + 2 * 16)}  # q, k, o; v as well
    assert layer_weights(spec)[0] == sum(
        5376 * (3 * 21504 + widths[kind]) for kind in spec.layer_kinds
    )


@pytest.mark.parametrize(
    ("changes", "heads"),
    [
        ({"attention_k_eq_v": False}, (512, 16)),
        ({"num_global_key_value_heads": None}, (512, 16)),
        ({"global_head_dim": 128}, (128, 4)),
        ({"per_layer_config": {}}, (256, 16)),
        ({"per_layer_config": {"5": {"head_dim": 96}, "11": {"head_dim": 96}}}, (96, 16)),
    ],
)
def test_heads_without_a_window(tmp_path, changes, heads) -> None:
    spec = load(tmp_path, OLDER, **changes)
    assert (spec.global_kv_channels, spec.num_global_query_groups) == heads


def test_the_last_layer_has_no_window(tmp_path) -> None:
    """Whatever the file says: transformers makes it so."""
    kinds = load(tmp_path, OLDER, num_hidden_layers=4).layer_kinds
    assert [kind.mixer is Mixer.SLIDING_WINDOW for kind in kinds] == [True] * 3 + [False]
    plain = load(tmp_path, OLDER, layer_types=["full_attention"] * 12)
    assert (plain.window_size, set(plain.layer_kinds)) == (None, {DENSE})


def test_last_layers_attend_to_keys_of_earlier_ones(tmp_path) -> None:
    spec = load(tmp_path, OLDER, num_kv_shared_layers=4, use_double_wide_mlp=True)
    assert [kind.reuses_keys for kind in spec.layer_kinds] == [False] * 8 + [True] * 4
    assert [spec.of_kind(k).ffn_hidden_size for k in spec.layer_kinds] == [21504] * 8 + [43008] * 4
    plain, keys = layer_weights(load(tmp_path, OLDER))[0], 5376 * (3 * 256 * 2 * 16 + 512 * 4)
    assert layer_weights(spec)[0] == plain + 4 * 5376 * 3 * 21504 - keys


def test_layers_have_inputs_of_their_own(tmp_path) -> None:
    """256 channels where the file does not say, of 262144 tokens, and three projections a layer."""
    spec, plain = (load(tmp_path, OLDER, hidden_size_per_layer_input=own) for own in (None, 0))
    assert layer_weights(spec)[0] - layer_weights(plain)[0] == 12 * 3 * 5376 * 256
    more = parameter_count(spec).embedding - parameter_count(plain).embedding
    assert more == 12 * 256 * (262144 + 5376) + 256


@pytest.mark.parametrize(("changes", "says"), TABLES["test_refusals_are_one_line"])
def test_refusals_are_one_line(tmp_path, changes, says) -> None:
    with refused(says):
        load(tmp_path, OLDER, **changes)
