"""Whether the Transformer Engine that env.sh brings computes what torch does, by fused attention.

. te/env.sh; python3 te/check.py       exit code 0: all of it agrees
"""

import os
import sys
from collections.abc import Iterator

# cuDNN's fused attention alone may be chosen: where it cannot be had attention fails.
os.environ.update(NVTE_FUSED_ATTN="1", NVTE_FLASH_ATTN="0", NVTE_UNFUSED_ATTN="0")

import torch
import transformer_engine
import transformer_engine.pytorch as te
import transformer_engine_torch as compiled
from torch.nn import functional
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

Compared = tuple[str, torch.Tensor, torch.Tensor, float]  # what, ours, torch's, tolerance


def _tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def _gradient(output: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    of.grad = None
    output.float().square().sum().backward()
    return of.grad


def _linear() -> Iterator[Compared]:
    layer, x = te.Linear(1024, 3072, params_dtype=torch.bfloat16), _tensor(512, 1024)
    ours, wanted = layer(x), functional.linear(x, layer.weight, layer.bias)
    yield "linear", ours, wanted, 0.02
    yield "linear, gradient", _gradient(ours, x), _gradient(wanted, x), 0.02


def _attention() -> Iterator[Compared]:
    q, k, v = _tensor(1024, 2, 16, 128), _tensor(1024, 2, 4, 128), _tensor(1024, 2, 4, 128)
    layer = te.DotProductAttention(
        16, 128, num_gqa_groups=4, attn_mask_type="causal", qkv_format="sbhd", attention_dropout=0.0
    )
    ours = layer(q, k, v)
    by_head = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    wanted = functional.scaled_dot_product_attention(*by_head, is_causal=True, enable_gqa=True)
    wanted = wanted.permute(2, 0, 1, 3).reshape(ours.shape)
    yield "fused attention", ours, wanted, 0.02
    yield "fused attention, gradient of q", _gradient(ours, q), _gradient(wanted, q), 0.03


def _in_8_bits() -> Iterator[Compared]:
    layer, x = te.Linear(1024, 3072, params_dtype=torch.bfloat16), _tensor(512, 1024)
    wanted = functional.linear(x, layer.weight, layer.bias)
    for recipe in (DelayedScaling(), Float8CurrentScaling()):
        for _ in range(2):  # delayed scaling knows the largest value from the step before
            with te.autocast(enabled=True, recipe=recipe):
                ours = layer(x)
            ours.sum().backward()
        yield f"linear in FP8, {type(recipe).__name__}", ours, wanted, 0.08


def _agrees(compared: Iterator[Compared]) -> bool:
    try:
        for what, ours, wanted, tolerance in compared:
            error = ((ours - wanted).float().norm() / wanted.float().norm()).item()
            print(f"{what}: differs by {error:.1e}, {tolerance} allowed")
            assert error < tolerance, f"{what} is wrong"  # NaN too
    except Exception as error:  # whatever it is, the other checks still say something
        print(f"{compared.__name__}: {type(error).__name__}: {error}")
        return False
    return True


print("transformer_engine", transformer_engine.__version__, "torch", torch.__version__)
print("cuDNN", compiled.get_cudnn_version(), "of torch:", torch.backends.cudnn.version())
if not torch.cuda.is_available():
    sys.exit("no GPU: it was imported, nothing was computed")
sys.exit(sum(not _agrees(compared) for compared in (_linear(), _attention(), _in_8_bits())))
