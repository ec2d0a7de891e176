"""DeepSeek's families in config.json, with the values that are published, against the presets."""

import pytest

from advisor.layers.parameters import active_parameters, parameter_count
from tests.advisor.models.config_json.published import NEWER, PUBLISHED, load
from tests.advisor.refusals import refused

DEEPSEEK_V3, GLM45_AIR, PHI4 = (PUBLISHED[name] for name in ("deepseek_v3", "glm4.5_air", "phi4"))
DEEPSEEK_V32, GLM5 = NEWER["DeepSeek-V3.2"], NEWER["GLM-5"]
SHARED = {"indexer_types": ["full", "shared"] * 39}


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (DEEPSEEK_V3, {"kv_lora_rank": None}, "kv_lora_rank = None: is missing"),
        (DEEPSEEK_V3, {"q_lora_rank": 0}, "q_lora_rank = 0: must be at least 1"),
        (DEEPSEEK_V3, {"attention_bias": True}, "attention_bias = true: latent attention has no"),
        (DEEPSEEK_V3, {"hidden_act": "gelu"}, "hidden_act = gelu: is not a modelled activation"),
        (DEEPSEEK_V3, {"moe_layer_freq": 2}, "moe_layer_freq = 2: must be 1, with first_k"),
        (DEEPSEEK_V3, {"topk_group": 9}, "model.moe_router_group_topk = 9: must be between 1"),
        (DEEPSEEK_V3, {"index_topk": 2048}, "index_topk = 2048: is unknown"),
        (GLM45_AIR, {"kv_lora_rank": 512}, "kv_lora_rank = 512: is unknown"),
        (PHI4, {"resid_pdrop": 0.1}, "resid_pdrop = 0.1: is unknown"),
        (GLM5, {"index_topk_freq": 4}, "index_topk_freq = 4: must be 1: no other is modelled"),
        (GLM5, SHARED, "must be full in every layer: no other is modelled"),
        (GLM5, {"index_topk": None}, "index_topk = None: is missing"),
        (GLM5, {"q_lora_rank": None}, "model.qk_layernorm = true: needs q_lora_rank"),
        (PHI4, {"rope_theta": float("inf"), "hidden_size": float("inf")}, "hidden_size = inf: "),
    ],
)
def test_refusals_are_one_line(tmp_path, base, changes, says) -> None:
    with refused(says):
        load(tmp_path, base, **changes)


@pytest.mark.parametrize(
    ("config", "of_a_layer"),
    [
        (DEEPSEEK_V32, 64 * 128 * 1536 + 7168 * 128 + 2 * 128 + 7168 * 64),
        (GLM5, 32 * 128 * 2048 + 6144 * 128 + 2 * 128 + 6144 * 32),
    ],
)
def test_an_indexer_adds_its_weights(tmp_path, config, of_a_layer) -> None:
    """wq_b, wk, k_norm and weights_proj, in every layer; else the model is as DeepSeek-V3 is."""
    without = {key: value for key, value in config.items() if not key.startswith("index")}
    plain = load(tmp_path, without | {"model_type": "deepseek_v3", "topk_method": "noaux_tc"})
    spec = load(tmp_path, config)
    more = of_a_layer * spec.num_layers
    assert parameter_count(spec).total - parameter_count(plain).total == more
    assert active_parameters(spec) - active_parameters(plain) == more


def test_infinity_is_read_as_python_writes_it(tmp_path) -> None:
    spec = load(tmp_path, PHI4, rope_theta=float("inf"), initializer_range=float("nan"))
    assert spec == load(tmp_path, PHI4)
