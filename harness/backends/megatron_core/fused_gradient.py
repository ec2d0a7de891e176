"""Weight gradients added where they are summed, without Apex.

Megatron's own linear layers (the output layer among them) hand this to Apex's CUDA extension
fused_weight_gradient_mlp_cuda, and refuse gradient_accumulation_fusion where it is not installed.
Transformer Engine's layers need none of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import torch
from megatron.core.tensor_parallel import layers
from torch import Tensor


def accumulate(total_input: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
    """main_grad [out, in] += grad_output [rows, out]^T x total_input [rows, in], in place: one GEMM
    that reads 16 bits and writes the type of `main_grad`, as Apex's; in releases of torch whose
    GEMM has one type, a product beside it."""
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
    """Inside, Megatron finds `accumulate` where Apex's extension is missing."""
    if layers._grad_accum_fusion_available:
        yield
        return
    extension = SimpleNamespace(wgrad_gemm_accum_fp32=accumulate, wgrad_gemm_accum_fp16=accumulate)
    with (
        mock.patch.object(layers, "_grad_accum_fusion_available", True),
        mock.patch.object(layers, "fused_weight_gradient_mlp_cuda", extension, create=True),
    ):
        yield
