"""One block forward and backward on fake tensors: bytes kept, and the peak of either pass."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
from msgspec import Struct
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import GradientEdge

from advisor.layers.shape import RankShape

from .blocks import block
from .kernels import GpuKernels
from .meter import LiveBytes


class Measured(Struct, frozen=True, dict=True):
    """Bytes, the block's input and the gradient that arrives included."""

    kept: int
    forward: int
    backward: int


def measure(
    shape: RankShape,
    wrap: Callable[..., Any] = lambda made: made,
    num_blocks: int = 0,
    *,
    layer: int = 0,
    real: bool = False,
) -> Measured:
    """Run the shape's block, wrapped, in its 16-bit type; its weights are not counted. num_blocks:
    so many blocks are made, and given to `wrap` as a list with what follows the hidden states in a
    call. layer: of a variant. real: on real tensors, for code that swaps their data."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if shape.autocast else torch.bfloat16)
    mode = nullcontext() if real else FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, GpuKernels():
            return _run(shape, wrap, num_blocks, layer)
    finally:
        torch.set_default_dtype(before)


def _run(shape: RankShape, wrap: Callable[..., Any], num_blocks: int, layer: int) -> Measured:
    made, rest, named = block(shape, layer)
    if not shape.tuning.trains_all:
        from .adapters import with_adapters

        made = with_adapters(made, shape.tuning)
    blocks = nn.ModuleList([made, *(block(shape)[0] for _ in range(num_blocks - 1))]).train()
    size = (shape.micro_batch_size, shape.seq_length, shape.model.hidden_size)
    leaf = torch.empty(size, requires_grad=True)
    given = (*rest, *named.get("position_embeddings", ()), named.get("attention_mask"))
    tables = [tensor for tensor in given if tensor is not None]
    tables += [one for pair in named.get("shared_kv_states", {}).values() for one in pair]
    known = (leaf, *blocks.parameters(), *blocks.buffers(), *tables)
    function = wrap(list(blocks), rest) if num_blocks else wrap(made)
    tuned = shape.tuning.has_adapter and shape.tuning.autocast
    return passes(function, leaf, rest, named, known, autocast=shape.autocast or tuned)


def passes(
    function: Callable[..., Any],
    leaf: torch.Tensor,
    rest: tuple[Any, ...],
    named: dict[str, Any],
    known: tuple[torch.Tensor, ...],
    *,
    autocast: bool = False,
) -> Measured:
    """`function` once forward and once backward on a copy of `leaf`."""
    with LiveBytes(known) as live:
        hidden = leaf * 1
        live.reset_peak()
        as_on_a_gpu = patch.object(torch, "is_autocast_enabled", lambda *_: autocast)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), as_on_a_gpu:
            output = function(hidden, *rest, **named)
        forward = live.peak
        del hidden
        gradient = torch.empty(leaf.shape)
        edge = GradientEdge(output.grad_fn, 0)
        del output
        kept = live.now - gradient.nbytes
        live.reset_peak()
        # torch.autograd.backward would want the output itself, which the next layer let go
        torch.autograd.Variable._execution_engine.run_backward(
            (edge,), (gradient,), False, False, (), True, True
        )
        return Measured(kept, forward, live.peak)
