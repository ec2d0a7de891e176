"""Causal attention by torch's flash kernel, on every release of torch and GPU."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def causal_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """Attention of [batch, heads, sequence, channels]; keys and values may have fewer heads."""
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        dropout_p=dropout,
        is_causal=True,
        enable_gqa=query.shape[1] != key.shape[1],
    )


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
