"""config.json of Mixtral and Qwen3 MoE, with the values of the public files."""

from pathlib import Path
from typing import Any

import pytest

from advisor.base.errors import UserError
from tests.advisor.models.config_json.published import PUBLISHED, load

MIXTRAL_8X7B, QWEN3_30B_A3B = (PUBLISHED[name] for name in ("mixtral_8x7b", "qwen3_30b_a3b"))


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, "1111"),
        ({"decoder_sparse_step": 2}, "0101"),
        ({"mlp_only_layers": [0, 2]}, "0101"),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, "0100"),
    ],
)
def test_which_layers_have_experts(changes: dict[str, Any], layers: str, tmp_path: Path) -> None:
    spec = load(tmp_path, QWEN3_30B_A3B | {"num_hidden_layers": 4} | changes)
    assert "".join(str(int(kind.feed_forward == "moe")) for kind in spec.layer_kinds) == layers


def test_probabilities_that_are_not_normalized_come_before_top_k(tmp_path: Path) -> None:
    assert load(tmp_path, QWEN3_30B_A3B | {"norm_topk_prob": False}).moe_router_pre_softmax
    assert not load(tmp_path, MIXTRAL_8X7B).moe_router_pre_softmax


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts": 0}, "must be at least 1"),
        ({"num_experts_per_tok": 256}, "must not exceed num_moe_experts = 128"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob"),
        ({"mlp_only_layers": 3}, "must be a list"),
        ({"router_jitter_noise": 0.1}, "noise on the router's input"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        load(tmp_path, QWEN3_30B_A3B | changes)
