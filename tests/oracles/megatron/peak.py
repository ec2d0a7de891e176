"""Activation peak of one pipeline rank, through Megatron's own schedule on fake tensors."""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules

from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.fake.meter import LiveBytes
from harness.backends.megatron_core.fake.without_gpu import fake_chunks, megatron_without_gpu
from harness.backends.megatron_core.model import Batch, fake_batch


def activation_peak(case: MegatronCase, pp_rank: int = 0) -> int:
    """Peak bytes of one training step on a stage, above parameters and their gradients.

    Counts everything torch would allocate in forward and backward: saved tensors, working
    tensors, temporary weight gradients, receive buffers, Megatron's global buffer. Not counted:
    the input batch, optimizer, kernel workspaces, NCCL, fragmentation. Raises what Megatron
    raises for settings it refuses (microbatch counts of the interleaved schedule, ...).
    """
    _refuse_endless_replay(case)
    meter = LiveBytes()
    with megatron_without_gpu(case, pp_rank, meter.kernel):
        chunks = fake_chunks(case)
        batch = fake_batch(case)
        meter.exclude(batch.tensors())
        for chunk in chunks:
            meter.exclude([*chunk.parameters(), *chunk.buffers()])
            for parameter in chunk.parameters():
                meter.exclude(_allocate_gradients(parameter, case.gradient_accumulation_fusion))
        with meter.measuring():
            run_schedule(case, chunks, batch)
        return meter.peak_bytes


def _refuse_endless_replay(case: MegatronCase) -> None:
    """Megatron's own defect, which would hang this process. The MLP returns its bias parameter; as
    an output of CheckpointFunction the parameter itself gets that function as `grad_fn`, and the
    replay's backward runs into it again, for ever."""
    if case.add_bias_linear and "mlp" in (case.recompute_modules or ()):
        raise ValueError("recompute_modules mlp with add_bias_linear: Megatron replays for ever")


def _allocate_gradients(parameter: torch.nn.Parameter, fused: bool) -> list[torch.Tensor]:
    """A standing gradient buffer, so that the backward pass accumulates into it. Without fusion:
    bf16 `.grad`. With it: `.main_grad`, that apex's kernel fills, and a placeholder is returned to
    autograd, as under Megatron's DistributedDataParallel."""
    if not fused:
        parameter.grad = torch.empty_like(parameter)
        return [parameter.grad]
    main_grad = torch.empty_like(parameter, dtype=torch.float32, requires_grad=False)
    parameter.main_grad = main_grad
    parameter.grad_added_to_main_grad = False

    def accumulate(*_: Any) -> None:
        """DistributedDataParallel's hook: add what the kernel did not, and drop `.grad`."""
        if parameter.grad is not None and not parameter.grad_added_to_main_grad:
            main_grad.add_(parameter.grad)
        parameter.grad_added_to_main_grad = False
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(accumulate)
    return [main_grad]


def run_schedule(case: MegatronCase, chunks: list[Any], batch: Batch) -> None:
    """All microbatches of a step, each `batch`."""

    def forward_step(_: Any, model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        return batch.forward(model), batch.loss

    schedules.get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=[None] * len(chunks) if case.interleaved else None,
        model=chunks if case.interleaved else chunks[0],
        num_microbatches=case.num_microbatches,
        seq_length=case.seq_length,
        micro_batch_size=case.micro_batch_size,
        forward_only=False,
    )
