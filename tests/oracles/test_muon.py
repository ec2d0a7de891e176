"""What Megatron's layer-wise distributed optimizer gives each rank, next to what we predict.

Megatron's own get_megatron_muon_optimizer sorts, deals and copies the parameters of its own model,
on fake tensors. emerging_optimizers, whose class orthogonalizes, cannot be installed: torch's Muon,
which has the same state, stands in its place, and no step is run.
"""

from itertools import chain
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import pipeline_stages
from advisor.memory.muon_shares import muon_shares

pytest.importorskip("megatron.core")

import torch
from megatron.core.optimizer import OptimizerConfig, muon

from harness.backends.megatron_core.fake.meter import LiveBytes
from harness.backends.megatron_core.fake.without_gpu import FlashLikeAttention, megatron_without_gpu
from harness.backends.megatron_core.model import transformer_config
from harness.backends.megatron_core.trainer import MegatronTraining
from tests.advisor.jobs import parallel
from tests.oracles.moe_cases import MIXTRAL, with_experts
from tests.oracles.prediction import GPT_22B, rank_shape, tensor_parallel


def _torch_muon(groups: Any, **_: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon(groups)


class _MuonTraining(MegatronTraining):
    """The step of one rank, with Muon in Adam's place."""

    def _optimizer(self) -> Any:
        options = OptimizerConfig(
            optimizer="dist_muon",
            lr=1e-3,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=False,
        )
        with (
            mock.patch.object(muon, "HAVE_EMERGING_OPTIMIZERS", True),
            mock.patch.object(muon, "TensorParallelMuon", _torch_muon),
        ):
            return muon.get_megatron_muon_optimizer(
                options,
                self.model,
                use_gloo_process_groups=False,
                layer_wise_distributed_optimizer=True,
            )


EXPERTS = with_experts(MIXTRAL, expert_model_parallel_size=2).changed(
    **parallel(pp=2, dp=4), use_distributed_optimizer=False, **tensor_parallel(2, True)
)
DENSE = GPT_22B.changed(data_parallel_size=3, use_distributed_optimizer=False)
LAYOUT = ParallelLayout(use_distributed_optimizer=False, data_parallel_size=3)
CASES = [
    (DENSE, LAYOUT),
    (EXPERTS, replace(LAYOUT, **parallel(tp=2, sp=True, dp=4, pp=2, ep=2, etp=1))),
]


@pytest.mark.parametrize(("case", "layout"), CASES, ids=["dense", "experts"])
def test_every_rank_is_dealt_what_megatron_deals(case, layout) -> None:
    """Parameters of every rank, bytes of the first one's states, and of its step: fp32 copies of
    16-bit gradients, then everybody's weights and its own flattened."""
    shape = rank_shape(case)
    chunks = pipeline_stages(shape.model, layout)[0]
    shares = muon_shares(shape, chunks, layout, dealt=True)
    meter = LiveBytes()
    with megatron_without_gpu(case):
        training = _MuonTraining(case, transformer_config(case), FlashLikeAttention)
        optimizer = training.optimizer
        dealt = [_numbers(optimizer.dp_cp_params_list), _numbers(optimizer.expt_dp_params_list)]
        for part in optimizer.chained_optimizers:
            part.init_state_fn(part.optimizer)
        resident = training.resident()
        states = sum(t.numel() * t.element_size() for t in resident["optimizer"])
        meter.exclude(chain(*resident.values()))
        with meter:
            optimizer.prepare_grads()
            optimizer.allgather_params()
    tp, cut = layout.tensor_model_parallel_size, layout.expert_model_parallel_size
    ranks = range(tp * layout.data_parallel_size)
    assert [share.elements for share in shares] == [
        dealt[0][rank // tp] + (dealt[1][rank // cut] if dealt[1] else 0) for rank in ranks
    ]
    first = shares[0]
    assert first.state_bytes == states
    assert meter.peak_bytes == 4 * first.elements + 2 * (first.received + first.sent)


def _numbers(lists: list[list[torch.Tensor]] | None) -> list[int]:
    return [sum(p.numel() for p in params) for params in lists or ()]


@pytest.mark.parametrize(
    ("options", "raises"),
    [
        (
            {"use_precision_aware_optimizer": True, "use_distributed_optimizer": True},
            "--use-precision-aware-optimizer only supported with adam",
        ),
        ({"use_distributed_optimizer": True}, "muon with dist optimizer is not supported."),
        ({"fp16": True}, "muon with fp16 is not supported."),
    ],
)
def test_megatron_refuses_what_we_refuse(options: dict[str, bool], raises: str) -> None:
    with (
        mock.patch.object(muon, "HAVE_EMERGING_OPTIMIZERS", True),
        pytest.raises(Exception, match=raises),
    ):
        muon.get_megatron_muon_optimizer(OptimizerConfig(optimizer="dist_muon", **options), [])
