"""Sparse attention (DSA) of the real Megatron Core on fake tensors: saved bytes and parameters.

0.19 alone builds what is modelled (MEGATRON_CORE). Its spec asks for Transformer Engine: here
Megatron's own linear layers and norms stand in the same places, and torch's where one is whole on
every rank.
The Hadamard transform keeps nothing (fast_hadamard_transform 1.0.4, HadamardTransformFn).
"""

import copy
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("megatron.core")

import torch

from harness.backends.megatron_core import model

from .megatron import OracleCase, activation_peak, rows_of, saved_bytes_of_a_layer
from .prediction import (
    RELEASE,
    full,
    predicted_peak,
    predicted_saved_bytes,
    selective,
    tensor_parallel,
)
from .test_latent_attention import rotary_table

DSA = OracleCase(
    num_layers=4,
    hidden_size=512,
    ffn_hidden_size=1024,
    num_attention_heads=8,
    seq_length=256,
    multi_latent_attention=True,
    q_lora_rank=192,
    kv_lora_rank=96,
    qk_head_dim=32,
    qk_pos_emb_head_dim=16,
    v_head_dim=24,
    qk_layernorm=True,
    experimental_attention_variant="dsa",
    dsa_indexer_n_heads=4,
    dsa_indexer_head_dim=48,
    dsa_indexer_topk=64,
)
TP4 = tensor_parallel(4, True)
LEARNS = {"dsa_indexer_loss_coeff": 0.01}
CASES: dict[str, dict[str, Any]] = {
    "tp1": {},
    "two sequences": {"micro_batch_size": 2},
    "tp4": TP4,
    "learns": LEARNS,
    "learns, tp4, two sequences": {**TP4, **LEARNS, "micro_batch_size": 2},
    "rope, no norms": {"rope_type": "rope", "qk_layernorm": False},
    "queries of full rank": {"q_lora_rank": None, "qk_layernorm": False, **LEARNS},
    "core_attn": {**TP4, **LEARNS, **selective("core_attn")},
    "mla_up_proj": {**TP4, **selective("mla_up_proj")},
    "all": {**TP4, **LEARNS, **selective("core_attn", "mla_up_proj", "layernorm", "mlp")},
    "full": {**TP4, **full("uniform", 1)},
}
SCALARS = 8
"""Bytes of a factor that the product with it keeps, on the host: the softmax's scale, and of an
indexer that learns two more."""


class Whole(torch.nn.Linear):
    def __init__(self, inputs: int, outputs: int, **_: Any) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), None


class Hadamard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def _spec(case: OracleCase, _: Any) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.experimental_attention_variant import absorbed_mla, dsa
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    kinds = {"multi_latent_attention": True, "normalization": case.normalization}
    layer = copy.deepcopy(get_gpt_layer_local_spec(qk_layernorm=case.qk_layernorm, **kinds))
    parts = dsa.DSAIndexerSubmodules(Whole, Whole, WrappedTorchNorm, Whole)
    indexer = ModuleSpec(module=dsa.DSAIndexer, submodules=parts)
    core = ModuleSpec(dsa.DSAttention, submodules=dsa.DSAttentionSubmodules(indexer))
    norm = WrappedTorchNorm if case.qk_layernorm else None
    columns = [ColumnParallelLinear] * 5
    own = absorbed_mla.AbsorbedMLASelfAttentionSubmodules(
        *columns, core, RowParallelLinear, norm, norm
    )
    attention = layer.submodules.self_attention
    layer.submodules.self_attention = ModuleSpec(
        absorbed_mla.AbsorbedMLASelfAttention, params=attention.params, submodules=own
    )
    return layer


@pytest.fixture(autouse=True)
def as_megatron_builds_it() -> Iterator[None]:
    """A fake tensor has no value: the kind of mask, of which a checkpoint makes one, is causal."""
    if not RELEASE.at_least(0, 19):
        pytest.skip("sparse attention is modelled as 0.19 runs it")
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.experimental_attention_variant import absorbed_mla, dsa

    with (
        patch.object(model, "_layer_spec", _spec),
        patch.object(dsa, "rotate_activation", Hadamard.apply),
        patch.object(absorbed_mla, "AttnMaskType", lambda _: AttnMaskType.causal),
        patch.dict(dsa.DSAIndexerLossLoggingHelper.tracker, clear=True),
    ):
        yield


@pytest.mark.parametrize("name", CASES)
def test_saved_bytes(name: str) -> None:
    case = DSA.changed(**CASES[name])
    replayed = "core_attn" in (case.recompute_modules or ()) or case.recompute_method
    factors = 0 if replayed else 3 if case.dsa_indexer_loss_coeff else 1
    expected = predicted_saved_bytes(case) + rotary_table(case) + factors * SCALARS
    assert expected == saved_bytes_of_a_layer(case), rows_of(case)


@pytest.mark.parametrize("name", ["tp1", "tp4", "learns", "core_attn", "full"])
def test_peaks(name: str) -> None:
    """Score-sized tensors are counted as dsa.py and dsa_masking.py hold them at their peaks; left
    out are masks [b, s, s], of the size of one head's scores: with TP 4 a rank has two heads."""
    case = DSA.changed(**CASES[name])
    measured, heads = activation_peak(case, 0), 8 // case.tensor_model_parallel_size
    mask = case.seq_length**2 * 4
    assert abs(predicted_peak(case, 0) - measured) <= 2 * mask, f"{heads} heads"
