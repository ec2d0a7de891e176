"""DeepSeek's families in config.json, with the values that are published, against the presets."""

import pytest

from advisor.base.errors import UserError
from tests.advisor.models.config_json.published import PUBLISHED, load

DEEPSEEK_V3, GLM45_AIR, PHI4 = (PUBLISHED[name] for name in ("deepseek_v3", "glm4.5_air", "phi4"))


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
    ],
)
def test_refusals_are_one_line(tmp_path, base, changes, says) -> None:
    with pytest.raises(UserError) as error:
        load(tmp_path, base, **changes)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
