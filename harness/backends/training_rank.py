"""What the training step of one rank has in every backend: device, tokens, count of processes."""

import os
from typing import Final

import torch
from torch import Tensor

from advisor.base.errors import UserError
from advisor.job.layout import ParallelLayout
from advisor.plan.flops import model_flops
from harness.trial.trial import Device, Workload

LEARNING_RATE: Final = 1e-3
SEED_STRIDE: Final = 1_000_003
"""Between the random states of neighbours: data-parallel ranks, or the sequences of two seeds."""
COLLECTIVES: Final = {Device.CUDA: "nccl", Device.CPU: "gloo"}
"""What carries the collectives of a device."""


def torch_device(device: Device) -> torch.device:
    """The device of this rank, made the current one."""
    if device is not Device.CUDA:
        return torch.device("cpu")
    where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(where)
    return where


def check_processes(layout: ParallelLayout, world_size: int) -> None:
    """UserError where the layout's ranks are not as many as the processes that were started."""
    if layout.world_size != world_size:
        raise UserError(
            "layout TP x CP x PP x DP",
            layout.world_size,
            f"must be the number of processes, WORLD_SIZE = {world_size}",
        )


def random_tokens(seed: int, index: int, vocab_size: int, seq_length: int) -> Tensor:
    """[seq_length + 1] tokens of sequence `index` of the global batch: the same at every step, and
    on every rank that asks for it."""
    generator = torch.Generator().manual_seed(seed * SEED_STRIDE + index)
    return torch.randint(vocab_size, (seq_length + 1,), generator=generator)


def job_flops(workload: Workload) -> int:
    """Megatron's model FLOPs of one step, all ranks; replays are not in them."""
    return model_flops(
        workload.model,
        workload.seq_length,
        workload.global_batch_size,
        workload.model.padded_vocab_size(workload.layout.tensor_model_parallel_size),
    )
