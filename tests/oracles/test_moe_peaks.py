"""Activation peak of stages with MoE layers against Megatron Core's schedules on fake tensors.

The bar is 2 % for the worst stage and 0.5 % for the mean; found: 0.02 % on plain pipelines, where
small tensors that a dispatcher's attributes keep (row indices, counts of tokens) are left out. On
interleaved ones the order in which spent graphs go is not followed to the end: 1.8 %; nor is the
order in which overlapped shared experts go back: 0.6 %.
"""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

from tests.advisor.jobs import parallel

from .megatron import OracleCase, activation_peak
from .moe_cases import MIXTRAL, OVERLAP, QWEN3_MOE, SHARED, TP, with_experts
from .prediction import full, predicted_peak, selections, selective

PLAIN, OVERLAPPED, INTERLEAVED = 0.0005, 0.01, 0.02
EP4 = with_experts(MIXTRAL, expert_model_parallel_size=4)
ETP2 = with_experts(EP4, expert_tensor_parallel_size=2).changed(**TP)
ALLGATHER = with_experts(EP4, moe_token_dispatcher_type="allgather")
FP32: dict[str, Any] = {"moe_router_dtype": "fp32", "moe_aux_loss_coeff": 0.01}


def pipeline(pp: int, layers: int, microbatches: int, vpp: int | None = None) -> dict[str, Any]:
    return {**parallel(pp=pp, vpp=vpp), "num_layers": layers, "num_microbatches": microbatches}


def assert_peaks(case: OracleCase, tolerance: float = PLAIN) -> None:
    for stage in range(case.pipeline_model_parallel_size):
        measured, predicted = activation_peak(case, stage), predicted_peak(case, stage)
        assert predicted == pytest.approx(measured, rel=tolerance), f"stage {stage}"


MODELS = {"mixtral": EP4, "etp2": ETP2, "allgather": ALLGATHER, "qwen3": QWEN3_MOE}
SETTINGS: dict[str, dict[str, Any]] = {**selections("moe", "layernorm"), "full": full("uniform", 1)}


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (name, setting)
        for name in MODELS
        for setting in SETTINGS
        if name != "qwen3" or setting in ("none", "full")
    ],
)
def test_every_setting(name: str, setting: str) -> None:
    model, recompute = MODELS[name], SETTINGS[setting]
    assert_peaks(model.changed(**pipeline(2, 4, 3), **recompute))


VARIANTS: dict[str, OracleCase] = {
    "no_expert_parallelism": MIXTRAL.changed(**pipeline(1, 2, 2)),
    "full_of_many_layers": EP4.changed(**pipeline(2, 8, 3), **full("uniform", 1)),
    "full_uniform_2": EP4.changed(**pipeline(2, 8, 3), **full("uniform", 2)),
    "full_block_2": EP4.changed(**pipeline(2, 8, 3), **full("block", 2)),
    "moe_of_many_layers": EP4.changed(**pipeline(2, 8, 3), **selective("moe")),
    "every_other_layer": with_experts(EP4, moe_layer_freq="2").changed(
        **pipeline(2, 8, 3), **selective("moe", "mlp")
    ),
    "dense_first": with_experts(EP4, moe_layer_freq="[0,1,1,1]").changed(**pipeline(2, 4, 3)),
    "fp32_router": with_experts(ETP2, **FP32).changed(**pipeline(2, 4, 3)),
    "fp32_allgather": with_experts(ALLGATHER, **FP32).changed(**pipeline(2, 4, 3)),
    "fp32_unfused": with_experts(EP4, **FP32).changed(
        bias_activation_fusion=False, **pipeline(2, 4, 3)
    ),
    "shared": with_experts(EP4, **SHARED).changed(**TP, **pipeline(2, 4, 3)),
    "shared_recomputed": with_experts(EP4, **SHARED).changed(
        **TP, **pipeline(2, 4, 3), **selective("shared_experts")
    ),
    "shared_in_moe": with_experts(EP4, **SHARED).changed(
        **TP, **pipeline(2, 4, 3), **selective("moe")
    ),
    "shared_overlap": with_experts(EP4, **OVERLAP).changed(**TP, **pipeline(2, 4, 3)),
    "padded": with_experts(
        EP4, moe_expert_capacity_factor=1.25, moe_pad_expert_input_to_capacity=True
    ).changed(**pipeline(2, 4, 3)),
    "main_grad_fusion": EP4.changed(
        gradient_accumulation_fusion=True, micro_batch_size=2, **pipeline(2, 4, 3)
    ),
    "three_modules": EP4.changed(
        **TP, **pipeline(2, 4, 3), **selective("core_attn", "layernorm", "moe")
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    assert_peaks(VARIANTS[name], OVERLAPPED if "overlap" in name else PLAIN)


@pytest.mark.parametrize(
    "recompute", [{}, selective("moe"), full("uniform", 1)], ids=["none", "moe", "full"]
)
def test_interleaved(recompute: dict[str, Any]) -> None:
    assert_peaks(EP4.changed(**pipeline(2, 8, 4, vpp=2), **recompute), INTERLEAVED)
