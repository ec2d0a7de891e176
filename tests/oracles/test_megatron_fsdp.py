"""What Megatron-FSDP holds, gathers and reduces, next to what we predict.

Megatron's own FullyShardedDataParallel wraps its own model on fake tensors and a fake process
group, and its schedule runs one microbatch. Stubs stand for its device mesh, which reads values,
and for DTensors, which look at the same bytes.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from advisor.base.dtypes import DType
from advisor.frameworks.megatron.buffers import process_buffers
from advisor.frameworks.megatron.fsdp import fsdp_memory
from advisor.frameworks.megatron.fsdp_units import parts_of_model
from advisor.frameworks.megatron.plan import chunk_plan
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.job.pipeline_split import pipeline_stages
from advisor.memory.chunk import chunk_footprint
from advisor.memory.static import num_elements
from tests.advisor.jobs import job_config
from tests.oracles.moe_cases import MIXTRAL, with_experts
from tests.oracles.prediction import (
    COPIES,
    LLAMA3_8B,
    LLAMA3_70B,
    full,
    rank_shape,
    recompute_setting,
)

pytest.importorskip("megatron.core")

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig
from torch.overrides import TorchFunctionMode

from harness.backends.megatron_core.fake.gpu_kernels import FlashLikeAttention
from harness.backends.megatron_core.fake.meter import LiveBytes
from harness.backends.megatron_core.fake.without_gpu import megatron_without_gpu
from harness.backends.megatron_core.model import build_chunks, fake_batch, transformer_config
from tests.oracles.megatron.peak import run_schedule

RANKS = 8
MODEL = LLAMA3_8B.changed(
    data_parallel_size=RANKS, num_layers=8, seq_length=1024, micro_batch_size=1, num_microbatches=2
)
STRATEGIES = {
    "no_shard": DataParallelSharding.NONE,
    "optim": DataParallelSharding.OPTIMIZER,
    "optim_grads": DataParallelSharding.GRADIENTS,
    "optim_grads_params": DataParallelSharding.FULL,
}


class _Groups:
    """Stands for FSDPDistributedIndex, which makes a device mesh."""

    use_hybrid_fsdp = False

    def get_fsdp_group(self, is_expert_parallel=False, independent_all_gather=False) -> Any:
        if independent_all_gather:
            return None
        if is_expert_parallel:
            return parallel_state.get_expert_data_parallel_group()
        return parallel_state.get_data_parallel_group(with_context_parallel=True)

    def get_dp_group(self, is_expert_parallel: bool = False) -> Any:
        return self.get_fsdp_group(is_expert_parallel)

    def get_outer_fsdp_group(self, is_expert_parallel: bool = False) -> None:
        return None


class _NotMeta(TorchFunctionMode):
    """Parameters of the meta device are not yet made, for Megatron-FSDP; these are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.is_meta.__get__:
            return False
        return func(*args, **(kwargs or {}))


class _Coalesced:
    """Collectives that are there at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Any:
        return SimpleNamespace(wait=lambda: None)

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def _without_gpu(case: Any, meter: LiveBytes) -> Iterator[type]:
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
    from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer

    def index(wrapped: Any, _: Any) -> _Groups:
        wrapped.tp_group = parallel_state.get_tensor_model_parallel_group()
        return _Groups()

    def local(local_tensor: Any, *_: Any, **__: Any) -> Any:
        return local_tensor

    with megatron_without_gpu(case, kernel=meter.kernel), ExitStack() as stack:
        for where, name, stub in (
            (param_and_grad_buffer, "_coalescing_manager", _Coalesced),
            (param_and_grad_buffer, "make_fsdp_dtensor", local),
            (FullyShardedDataParallel, "_init_dist_index", index),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "empty_cache", lambda: None),
        ):
            stack.enter_context(mock.patch.object(where, name, stub))
        yield FullyShardedDataParallel


def _run(case: Any, strategy: str, **options: Any) -> tuple[list[int], int, int]:
    """Bytes of model weights, main gradients and main weights; of their padding at most; and the
    peak above them and whole weights."""
    meter, own = LiveBytes(), "megatron_fsdp_main_grads_dtype"  # from 0.17 on
    if own in DistributedDataParallelConfig.__dataclass_fields__:
        options[own] = torch.float32
    with _without_gpu(case, meter) as wrapper:
        ddp = DistributedDataParallelConfig(
            use_megatron_fsdp=True,
            use_distributed_optimizer=True,
            data_parallel_sharding_strategy=strategy,
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            bucket_size=40_000_000,
            **options,
        )
        config = transformer_config(case)
        (chunk,) = build_chunks(case, FlashLikeAttention, config)
        with _NotMeta():
            model = wrapper(config, ddp, chunk, device=torch.device("meta"))
        groups = model.param_and_grad_buffer.parameter_groups
        names = ("model_weight_buffer", "main_grad_buffer", "main_weight_buffer")
        held = [[getattr(group, name) for group in groups] for name in names]
        data = [[one.data for one in each if one is not None] for each in held]
        weights = [p.data for p in model.module.raw_param.values()]
        batch = fake_batch(case)
        whole = [] if strategy == "optim_grads_params" else weights
        meter.exclude([*batch.tensors(), *(t for each in data for t in each), *whole])
        with meter.measuring():
            run_schedule(case, [model], batch)
        if strategy == "no_shard":
            data[0] = weights
        padding = sum(RANKS * group.chunk_size_factor * 4 for group in groups)
        sizes = [sum(t.numel() * t.element_size() for t in each) for each in data]
        return sizes, padding, meter.peak_bytes


def _predicted(case: Any, strategy: str, **layout: Any) -> tuple[list[int], int]:
    shape = rank_shape(case)
    cut = ParallelLayout(
        data_parallel_size=RANKS, data_parallel_sharding=STRATEGIES[strategy], **layout
    )
    config = job_config(case.seq_length, 1, RANKS, main_grads_dtype=DType.FP32)
    job = SimpleNamespace(model=shape.model, layout=cut, config=config)
    (chunks,) = pipeline_stages(shape.model, cut)
    fixed = fsdp_memory(job, shape, chunks, process_buffers(shape, chunks))
    setting, layers = recompute_setting(case), chunks[0].layers
    plan = chunk_plan(setting, shape.model, layers, case.sequence_parallel, COPIES)
    found = chunk_footprint(shape, plan, True, True, working_set=fixed.working_set)
    static, gathered = fixed.static, 0
    if strategy == "optim_grads_params":
        parts = parts_of_model(shape, chunks)
        gathered = 2 * (num_elements(parts[0]) + num_elements(parts[-1]))
    peak = max(found.forward.num_bytes, found.backward.num_bytes) + gathered
    buffers = sum(term.num_bytes for term in fixed.buffers)
    sizes = [static.weights - gathered, static.gradients, static.optimizer // 3]
    return sizes, peak + buffers


EXPERTS = with_experts(MIXTRAL, expert_model_parallel_size=2).changed(
    data_parallel_size=RANKS, num_layers=4, num_microbatches=2
)
LARGE = LLAMA3_70B.changed(data_parallel_size=RANKS, num_layers=5, num_microbatches=2)
FULL = "optim_grads_params"
CASES = [
    *((strategy, MODEL, False, 0) for strategy in ("no_shard", "optim", FULL)),
    ("optim_grads", MODEL, False, 2),
    (FULL, MODEL.changed(**full("uniform", 1)), False, 0),
    (FULL, MODEL.changed(**full("uniform", 2)), False, 2),
    (FULL, MODEL, True, 4),
    (FULL, LARGE, False, 1),
    (FULL, EXPERTS, False, 2),
    ("optim_grads", EXPERTS, False, 4),
]


@pytest.mark.parametrize(("strategy", "case", "pooled", "percent"), CASES)
def test_bytes_by_strategy(strategy, case, pooled, percent) -> None:
    """To the padding of the buffers, except where what follows one another is predicted to meet:
    buckets and a layer's most activations, layers of one checkpoint, experts and the rest of their
    layer, the output layer's main gradients and the logits' (where the weight's is no product of
    its own)."""
    measured, padding, peak = _run(case, strategy, fsdp_double_buffer=pooled)
    ranks = case.expert_model_parallel_size
    experts = {"expert_model_parallel_size": ranks, "expert_tensor_parallel_size": 1}
    own = experts if ranks > 1 else {}
    sizes, predicted = _predicted(case, strategy, double_buffers=pooled, **own)
    for own_bytes, theirs in zip(sizes, measured, strict=True):
        assert 0 <= theirs - own_bytes <= padding
    assert -padding <= predicted - peak <= peak * percent // 100
