"""What Megatron's own layers lack where there is no Transformer Engine and no Apex: attention by
torch's flash kernel, weight gradients added where they are summed, norms' sequence parallelism."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from megatron.core.tensor_parallel import layers
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch import Tensor

from harness.backends.megatron_core.installed import has_transformer_engine
from harness.backends.training_rank import causal_attention, flash_only


class SdpaAttention(torch.nn.Module):
    """Causal attention through scaled_dot_product_attention; no scores are kept.

    query [s, b, heads, channels], key and value with their own number of heads; gives
    [s, b, heads x channels of the values].
    """

    def __init__(self, config: Any, layer_number: int, **_: Any) -> None:
        super().__init__()
        self._dropout: float = config.attention_dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Megatron's mask is always causal here, and is not read."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        with flash_only(q, v):
            out = causal_attention(q, k, v, self._dropout if self.training else 0.0)
        return out.permute(2, 0, 1, 3).flatten(2)


def accumulate(total_input: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
    """main_grad [out, in] += grad_output [rows, out]^T x total_input [rows, in], in place: one GEMM
    that reads 16 bits and writes the type of `main_grad`, as Apex's; in releases of torch whose
    GEMM has one type, a product next to it."""
    if main_grad.dtype is total_input.dtype:
        torch.addmm(main_grad, grad_output.t(), total_input, out=main_grad)
    elif hasattr(torch.ops.aten.addmm, "dtype_out"):
        torch.ops.aten.addmm.dtype_out(
            main_grad, grad_output.t(), total_input, main_grad.dtype, out=main_grad
        )
    else:
        main_grad.add_(grad_output.t() @ total_input)


@contextmanager
def without_apex() -> Iterator[None]:
    """Inside, Megatron's linear layers find `accumulate` where Apex's CUDA extension
    fused_weight_gradient_mlp_cuda is missing, without which they refuse
    gradient_accumulation_fusion. Transformer Engine's layers need none of it."""
    if layers._grad_accum_fusion_available:
        yield
        return
    extension = SimpleNamespace(wgrad_gemm_accum_fp32=accumulate, wgrad_gemm_accum_fp16=accumulate)
    with (
        patch.object(layers, "_grad_accum_fusion_available", True),
        patch.object(layers, "fused_weight_gradient_mlp_cuda", extension, create=True),
    ):
        yield


def _torch_norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
    """The local spec's norm, without its refusal of sequence parallelism (TE's has none)."""
    kinds = {"LayerNorm": torch.nn.LayerNorm, "RMSNorm": torch.nn.RMSNorm}
    norm = kinds[config.normalization](hidden_size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return norm


def local_patches() -> Iterator[Any]:
    """What Megatron's own layers lack where there is no Transformer Engine, on any device; the norm
    they lack with it too."""
    yield patch.object(WrappedTorchNorm, "__new__", _torch_norm)
    if has_transformer_engine():
        return
    # its classes are None, and isinstance() refuses them; 0.13 does not ask
    yield patch.object(multi_latent_attention, "HAVE_TE", False, create=True)
    # CheckpointWithoutOutput(fp8=False) would enter a path of Transformer Engine's
    init = megatron_random.CheckpointWithoutOutput.__init__
    yield patch.object(
        megatron_random.CheckpointWithoutOutput, "__init__", lambda self, **_: init(self, fp8=None)
    )
    # the router asks for a name that only Transformer Engine defines
    yield patch.object(moe_utils, "te_general_gemm", None, create=True)
