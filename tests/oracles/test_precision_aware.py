"""What Megatron's precision-aware optimizer holds and what its step takes, next to what we predict.

Megatron's own OptimizerConfig, get_megatron_optimizer and DistributedOptimizer run on fake tensors.
Transformer Engine's FusedAdam, whose kernels need a GPU, is one of its signature, with its states
and the fp32 copies that it makes of them (optimizers/fused_adam.py, 2.12 and 2.20).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from advisor.base.dtypes import DType
from advisor.job.job import Fp8Recipe, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import pipeline_stages
from advisor.memory.static import fp32_states, gradient_copies, stage_elements, static_memory

pytest.importorskip("megatron.core")

import torch
from megatron.core import optimizer as megatron_optimizer
from megatron.core.optimizer import OptimizerConfig, distrib_optimizer, optimizer_config

from harness.backends.megatron_core.fake.meter import LiveBytes
from harness.backends.megatron_core.fake.without_gpu import FlashLikeAttention, megatron_without_gpu
from harness.backends.megatron_core.model import transformer_config
from harness.backends.megatron_core.trainer import MegatronTraining
from tests.advisor.jobs import job_config
from tests.oracles.prediction import LLAMA3_8B, rank_shape

DATA_PARALLEL = 4
MODEL = LLAMA3_8B.changed(data_parallel_size=DATA_PARALLEL, use_distributed_optimizer=True)
SCALARS = 16
"""Bytes of the gradients' norm."""
TYPES = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16, DType.FP16: torch.float16}


class _FusedAdam(torch.optim.Optimizer):
    """States and copies of Transformer Engine's; no parameter is changed."""

    fuses_bf16_moments = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.types = {"exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype}
        if master_weights:
            remainders = store_param_remainders and master_weight_dtype is torch.float32
            self.types["master_param"] = torch.int16 if remainders else master_weight_dtype
        self.gradient = "decoupled_grad" if use_decoupled_grad else "grad"
        moments = {exp_avg_dtype, exp_avg_sq_dtype}
        self.as_they_are = {torch.float32, torch.int16}
        if self.fuses_bf16_moments and moments == {torch.bfloat16}:
            self.as_they_are.add(torch.bfloat16)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            copies = []
            for param in group["params"]:
                assert getattr(param, self.gradient).shape == param.shape
                state = self.state[param]
                if not state:
                    state |= {n: torch.zeros_like(param, dtype=t) for n, t in self.types.items()}
                copies += [t.float() for t in state.values() if t.dtype not in self.as_they_are]


class _OldFusedAdam(_FusedAdam):
    """That of releases before 2.13."""

    fuses_bf16_moments = False


@contextmanager
def _transformer_engine(adam: type[_FusedAdam]) -> Iterator[None]:
    """With `adam` where Megatron looks for Transformer Engine's, of a release that has it."""
    module = ModuleType("transformer_engine.pytorch.optimizers")
    module.FusedAdam = adam
    names = ("transformer_engine", "transformer_engine.pytorch")
    modules = {name: ModuleType(name) for name in names} | {module.__name__: module}
    with (
        mock.patch.dict(sys.modules, modules),
        mock.patch.object(optimizer_config, "is_te_min_version", return_value=True),
        mock.patch.object(megatron_optimizer, "is_te_min_version", return_value=True),
        mock.patch.object(megatron_optimizer, "USING_PYTORCH_OPTIMIZER", False),
        mock.patch.object(megatron_optimizer, "Adam", adam),
        mock.patch.object(distrib_optimizer, "Adam", adam),
    ):
        yield


class _Training(MegatronTraining):
    """The step of one rank, with the precision-aware optimizer."""

    options: OptimizerConfig

    def _optimizer(self) -> Any:
        return megatron_optimizer.get_megatron_optimizer(
            self.options, self.model, use_gloo_process_groups=False
        )


def _held_and_taken(config: JobConfig, recipe: str | None) -> tuple[int, int]:
    """Bytes of states and main parameters, and what the step takes at its peak."""
    reduces = config.main_grads_dtype is DType.FP32
    case = MODEL.changed(grad_reduce_in_fp32=reduces)
    adam = _FusedAdam if config.transformer_engine >= (2, 13) else _OldFusedAdam
    meter = LiveBytes()
    with megatron_without_gpu(case), _transformer_engine(adam):
        _Training.options = OptimizerConfig(
            optimizer="adam",
            lr=1e-3,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=True,
            use_precision_aware_optimizer=True,
            fp8_recipe=recipe,
            main_params_dtype=TYPES[config.main_params_dtype],
            exp_avg_dtype=TYPES[config.exp_avg_dtype],
            exp_avg_sq_dtype=TYPES[config.exp_avg_sq_dtype],
        )
        training = _Training(case, transformer_config(case), FlashLikeAttention)
        flag = _Training.options.use_precision_aware_optimizer_no_fp8_or_ds_fp8
        assert config.adam_holds_main_params == flag
        training.optimizer.step()  # makes the states
        training.optimizer.zero_grad()
        resident = training.resident()
        held = {t.untyped_storage()._cdata: t.untyped_storage() for t in resident["optimizer"]}
        weights = {t.untyped_storage()._cdata for t in resident["weights"]}
        meter.exclude(chain(*resident.values()))
        with meter:
            training.optimizer.step()
        training.close()
    return sum(s.nbytes() for key, s in held.items() if key not in weights), meter.peak_bytes


BF16_MOMENTS = {"exp_avg_dtype": DType.BF16, "exp_avg_sq_dtype": DType.BF16}
FP16_MOMENTS = {"exp_avg_dtype": DType.FP16, "exp_avg_sq_dtype": DType.FP16}
BF16_BUFFER = {"main_grads_dtype": DType.BF16}
OLD = {"transformer_engine_version": "2.12"}


@pytest.mark.parametrize(
    ("recipe", "fields", "held", "taken"),
    [
        (None, BF16_MOMENTS | BF16_BUFFER, 2 + 4, 0),
        ("delayed", BF16_MOMENTS | BF16_BUFFER, 2 + 4, 0),
        ("tensorwise", BF16_MOMENTS | BF16_BUFFER, 4 + 4, 4),
        ("blockwise", BF16_MOMENTS | BF16_BUFFER, 4 + 4, 4),
        ("mxfp8", BF16_MOMENTS | BF16_BUFFER, 4 + 4, 4),
        ("tensorwise", BF16_MOMENTS, 4 + 4, 0),
        ("delayed", BF16_BUFFER, 2 + 8, 0),
        ("tensorwise", BF16_BUFFER, 4 + 8, 4),
        ("tensorwise", {}, 4 + 8, 0),
        ("tensorwise", {"main_params_dtype": DType.FP16} | BF16_BUFFER, 2 + 8, 4),
        ("delayed", BF16_MOMENTS | BF16_BUFFER | OLD, 2 + 4, 8),
        ("tensorwise", BF16_MOMENTS | BF16_BUFFER | OLD, 4 + 4, 4 + 8),
        ("delayed", FP16_MOMENTS | BF16_BUFFER, 2 + 4, 8),
    ],
)
def test_bytes_of_a_parameter(recipe, fields, held, taken) -> None:
    """Of the shard: what stays, and what the step adds; fp32 copies of states of one group."""
    config = job_config(
        *(8, 1, DATA_PARALLEL),
        use_precision_aware_optimizer=True,
        fp8_recipe=None if recipe is None else Fp8Recipe(recipe),
        **fields,
    )
    shape = rank_shape(MODEL)
    chunks = pipeline_stages(shape.model, ParallelLayout(data_parallel_size=DATA_PARALLEL))[0]
    elements = stage_elements(shape, chunks)
    shard = elements // DATA_PARALLEL
    static = static_memory(elements, DATA_PARALLEL, config.main_grads_dtype, config.optimizer_bytes)
    step = gradient_copies(static, config) + shard * fp32_states(config)
    assert (static.optimizer, step) == (held * shard, taken * shard)
    measured = _held_and_taken(config, recipe)
    norms = (2 * MODEL.num_layers + 1) * MODEL.hidden_size  # a group of their own
    assert measured[0] == static.optimizer
    assert -SCALARS <= step - measured[1] <= fp32_states(config) * norms
