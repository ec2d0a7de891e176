"""Which of torch's attention kernels runs, on every release of torch and GPU."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def flash_only(query: Tensor, value: Tensor) -> AbstractContextManager[None]:
    """The flash kernel and no other on a GPU; where keys [.., channels] and values differ in width,
    which flash does not take, cuDNN's, or the memory-efficient one where cuDNN refuses them too;
    torch's choice on a CPU and in fp32.

    torch itself prefers cuDNN's on Hopper in some releases (2.11).
    """
    if not query.is_cuda or query.dtype is torch.float32:
        return nullcontext()
    if query.shape[-1] == value.shape[-1]:
        return sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    in_turn = [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    return sdpa_kernel(in_turn, set_priority=True)
