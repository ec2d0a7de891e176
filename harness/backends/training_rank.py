"""What the training step of one rank has in every backend: device, tokens, count of processes."""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

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
        relation = f"must be the number of processes, WORLD_SIZE = {world_size}"
        raise UserError("layout TP x CP x PP x DP", layout.world_size, relation)


def random_tokens(seed: int, index: int, vocab_size: int, seq_length: int) -> Tensor:
    """[seq_length + 1] tokens of sequence `index` of the global batch, always the same."""
    generator = torch.Generator().manual_seed(seed * SEED_STRIDE + index)
    return torch.randint(vocab_size, (seq_length + 1,), generator=generator)


def job_flops(workload: Workload) -> int:
    """Megatron's model FLOPs of one step, all ranks; replays are not in them."""
    model, tp = workload.model, workload.layout.tensor_model_parallel_size
    padded = model.padded_vocab_size(tp)
    return model_flops(model, workload.seq_length, workload.global_batch_size, padded)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """Attention of [batch, heads, sequence, channels]; keys and values may have fewer heads."""
    grouped = query.shape[1] != key.shape[1]
    return functional.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout, is_causal=True, enable_gqa=grouped
    )


def flash_only(query: Tensor, value: Tensor) -> AbstractContextManager[None]:
    """The flash kernel and no other on a GPU; where keys [.., channels] and values differ in width,
    which flash does not take, cuDNN's, or the memory-efficient one where cuDNN refuses them too;
    torch's choice on a CPU and in fp32."""
    if not query.is_cuda or query.dtype is torch.float32:
        return nullcontext()
    if query.shape[-1] == value.shape[-1]:
        return sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    in_turn = [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    return sdpa_kernel(in_turn, set_priority=True)
