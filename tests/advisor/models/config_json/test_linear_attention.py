"""config.json of Qwen3-Next and Nemotron 3 Nano, with the values of the public files."""

from pathlib import Path

import pytest

from tests.advisor.models.config_json.published import PUBLISHED, load
from tests.advisor.refusals import refused

QWEN3_NEXT, NEMOTRON3_NANO = (
    PUBLISHED[name] for name in ("qwen3_next_80b_a3b", "nemotron3_nano_30b_a3b")
)


def test_layers_by_name(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention", "full_attention", "linear_attention"]
    qwen = load(tmp_path, QWEN3_NEXT | {"num_hidden_layers": 4, "layer_types": kinds})
    mixers = [kind.mixer == "gated_delta_net" for kind in qwen.layer_kinds]
    assert mixers == [True, False, False, True]
    blocks = {"layers_block_type": ["mamba", "moe", "attention", "mlp"]}
    named = {k: v for k, v in NEMOTRON3_NANO.items() if k != "hybrid_override_pattern"}
    assert load(tmp_path, named | blocks).hybrid_layer_pattern == "ME*-"


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (QWEN3_NEXT, {"layer_types": ["sliding_attention"] * 48}, "layer_types"),
        (QWEN3_NEXT, {"linear_num_key_heads": 5}, "must divide linear_num_value_heads = 32"),
        (QWEN3_NEXT, {"index_topk": 1}, "index_topk = 1: is unknown"),
        (NEMOTRON3_NANO, {"hybrid_override_pattern": "MX"}, "must not hold 'X'; write M (Mamba)"),
        (NEMOTRON3_NANO, {"conv_kernel": 8}, "conv_kernel = 8: must be 4: other values"),
        (NEMOTRON3_NANO, {"moe_latent_size": 0}, "moe_latent_size = 0: must be at least 1"),
        (NEMOTRON3_NANO, {"n_groups": 7}, "mamba_num_groups = 7: must divide the 64 heads"),
    ],
)
def test_refusals_are_one_line(tmp_path, base, changes, says) -> None:
    with refused(says):
        load(tmp_path, base | changes)
