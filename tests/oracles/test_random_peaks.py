"""Tiny stages that a random search (random_peaks.py) found the model wrong on, mended; and a few
new ones of a fixed seed."""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

from tests.advisor.jobs import parallel

from .megatron import CoreAttention, OracleCase, activation_peak
from .prediction import full, predicted_peak, selective
from .random_peaks import TOLERANCE, differences

SMALL_TENSORS = 0.0015
"""Of a stage so small: row indices that dispatchers' attributes keep (test_moe_peaks.py)."""
EXPERTS: dict[str, Any] = {"num_moe_experts": 8, "moe_router_dtype": "fp32", "micro_batch_size": 2}
EP4: dict[str, Any] = EXPERTS | {**parallel(ep=4, pp=2), "num_microbatches": 4}


def tiny(**changes: Any) -> OracleCase:
    usual = {"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 256, "num_attention_heads": 4}
    return OracleCase(**(usual | {"seq_length": 256, "vocab_size": 4096} | changes))


FOUND: dict[str, OracleCase] = {
    # 2.3 and 1.7 % too low: probabilities of all ranks' tokens live to the end of the layer
    "gathered probabilities, replayed": tiny(
        **EP4, num_query_groups=2, moe_ffn_hidden_size=64, **selective("layernorm", "moe")
    ),
    "the same of wider experts": tiny(
        **EP4, seq_length=512, moe_ffn_hidden_size=192, **selective("moe", "mlp")
    ),
    # 0.1 % too low: the same on one rank
    "probabilities of one rank": tiny(
        **EXPERTS | {"num_moe_experts": 4, "moe_router_topk": 3},
        **{"num_layers": 1, "hidden_size": 256, "ffn_hidden_size": 1024, "vocab_size": 512},
        moe_ffn_hidden_size=192,
        share_embeddings_and_output_weights=True,
        **full("uniform", 1),
    ),
    # 1.7 % too low: what the backward left is there until the next forward sends tokens away
    "the graph that a dispatcher holds, in the next forward": tiny(
        **EXPERTS | {"num_layers": 1, "micro_batch_size": 1, "hidden_size": 128},
        **{"seq_length": 512, "num_microbatches": 2, "attention": CoreAttention.UNFUSED},
        expert_model_parallel_size=4,
        moe_ffn_hidden_size=192,
        num_query_groups=2,
        vocab_size=512,
        **selective("moe"),
    ),
    # 5 % too high as long as the case's rotary dimension was taken for the head's
    "half of the channels rotary": tiny(
        num_layers=6, rotary_percent=0.5, qk_layernorm=True, pipeline_model_parallel_size=3
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_a_search_found(name: str) -> None:
    case = FOUND[name]
    for stage in range(case.pipeline_model_parallel_size):
        measured, predicted = activation_peak(case, stage), predicted_peak(case, stage)
        assert predicted == pytest.approx(measured, rel=SMALL_TENSORS), f"stage {stage}"


def test_new_ones_of_a_fixed_seed() -> None:
    """Two known gaps are left out: spent graphs on interleaved schedules (test_moe_peaks.py), and
    unfused attention of tiny widths next to its scores."""
    found = [one for one in differences(8, 3) if not one.is_known]
    assert [(one.error, one.stage, one.case.given) for one in found] == []
    assert TOLERANCE <= 0.005
