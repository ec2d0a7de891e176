"""Saved bytes of MoE layers against Megatron Core's local spec on fake tensors, routing balanced.

The bar is 0.1 %. The model is exact except numbers of Python that autograd saves as tensors (the
factor of an auxiliary loss, the micro batch it is divided by): 8 bytes each, in host memory.
"""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

import torch
from megatron.core.transformer.moe import moe_layer

from .megatron import OracleCase, saved_bytes_of_a_layer
from .moe_cases import MIXTRAL, OVERLAP, QWEN3_MOE, SHARED, TP, with_experts
from .prediction import full, predicted_saved_bytes, selective

LLAMA4: dict[str, Any] = {
    "moe_router_topk": 1,
    "moe_router_score_function": "sigmoid",
    "moe_apply_probs_on_input": True,
}
HOST_NUMBERS_BYTES = 16
SIGMOID: dict[str, Any] = {
    "moe_router_score_function": "sigmoid",
    "moe_aux_loss_coeff": 0.01,
    "moe_router_num_groups": 4,
    "moe_router_group_topk": 2,
}


def assert_saved(case: OracleCase) -> None:
    measured, predicted = saved_bytes_of_a_layer(case), predicted_saved_bytes(case)
    assert 0 <= measured - predicted <= HOST_NUMBERS_BYTES, f"{predicted / measured}"


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"expert_model_parallel_size": 4},
        {"expert_model_parallel_size": 8},
        {"moe_router_dtype": "fp32", "moe_aux_loss_coeff": 0.01},
        {"moe_expert_capacity_factor": 1.5},
    ],
)
def test_dispatchers(dispatcher: str, changes: dict[str, Any]) -> None:
    assert_saved(with_experts(MIXTRAL, moe_token_dispatcher_type=dispatcher, **changes))


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
@pytest.mark.parametrize("etp", [1, 2])
def test_tensor_parallelism(dispatcher: str, etp: int) -> None:
    experts = {"expert_model_parallel_size": 4, "expert_tensor_parallel_size": etp}
    case = with_experts(MIXTRAL, moe_token_dispatcher_type=dispatcher, **experts)
    assert_saved(case.changed(**TP))


@pytest.mark.parametrize(
    "recompute",
    [
        *map(selective, ("moe", "layernorm", "mlp", "core_attn")),
        selective("moe", "layernorm"),
        full("uniform", 1),
    ],
)
def test_recompute(recompute: dict[str, Any]) -> None:
    assert_saved(MIXTRAL.changed(**recompute))


ROUTERS: dict[str, dict[str, Any]] = {
    "aux_and_z": {"moe_aux_loss_coeff": 0.01, "moe_z_loss_coeff": 0.001},
    "seq_aux": {"moe_aux_loss_coeff": 0.01, "moe_router_load_balancing_type": "seq_aux_loss"},
    "global_aux": {"moe_aux_loss_coeff": 0.01, "moe_router_load_balancing_type": "global_aux_loss"},
    "sigmoid_groups": SIGMOID,
    "sigmoid_bias": SIGMOID | {"moe_router_enable_expert_bias": True},
    "sigmoid_bias_fp32": SIGMOID
    | {"moe_router_enable_expert_bias": True, "moe_router_dtype": "fp32"},
    "pre_softmax": {
        "moe_router_pre_softmax": True,
        "moe_router_num_groups": 4,
        "moe_router_group_topk": 2,
    },
    "probs_on_input": {
        "moe_router_topk": 1,
        "moe_router_pre_softmax": True,
        "moe_apply_probs_on_input": True,
    },
}


@pytest.mark.parametrize("name", ROUTERS)
def test_routers(name: str) -> None:
    assert_saved(with_experts(MIXTRAL, **ROUTERS[name]).changed(micro_batch_size=2))


VARIANTS: dict[str, OracleCase] = {
    "shared": with_experts(MIXTRAL, **SHARED),
    "shared_sp": with_experts(MIXTRAL, **SHARED).changed(**TP),
    "shared_recomputed": with_experts(MIXTRAL, **SHARED).changed(
        **TP, **selective("shared_experts")
    ),
    "overlap": with_experts(MIXTRAL, **OVERLAP),
    "overlap_sp": with_experts(MIXTRAL, **OVERLAP).changed(**TP),
    "unfused": with_experts(MIXTRAL, moe_router_dtype="fp32").changed(bias_activation_fusion=False),
    "squared_relu": MIXTRAL.changed(activation="squared_relu", bias_activation_fusion=False),
    "cp2": MIXTRAL.changed(context_parallel_size=2),
    "qwen3": QWEN3_MOE,
    "llama4": with_experts(MIXTRAL, **{**OVERLAP, "moe_shared_expert_gate": False}, **LLAMA4),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    assert_saved(VARIANTS[name])


class _Linear(torch.nn.Linear):
    """In place of TELinear: Megatron's own specs have no duplicated linear layer."""

    def __init__(self, width: int, output: int, **_: Any) -> None:
        super().__init__(width, output, bias=False, dtype=torch.bfloat16)

    def forward(self, source: torch.Tensor) -> tuple[torch.Tensor, None]:
        return super().forward(source), None


LATENTS: dict[str, dict[str, Any]] = {
    "nemotron": {},
    "tp2": TP,
    "ep4": {"expert_model_parallel_size": 4},
    "recomputed": selective("moe"),
}


@pytest.mark.parametrize("name", LATENTS)
def test_experts_on_a_latent_dimension(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nemotron 3 Super: routed experts narrower than hidden_size, next to a shared one."""
    for attribute, value in (("HAVE_TE", True), ("TELinear", _Linear)):
        monkeypatch.setattr(moe_layer, attribute, value, raising=False)
    shared = {"moe_shared_expert_intermediate_size": 4096}
    case = with_experts(MIXTRAL, moe_latent_size=1024, **shared, **SIGMOID)
    assert_saved(case.changed(**LATENTS[name]))
