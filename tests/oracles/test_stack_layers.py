"""Bytes that a block keeps and needs, against torchtitan's and transformers' own code."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytest.importorskip("transformers")

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from advisor.base.dtypes import DType
from advisor.layers.shape import RankShape
from advisor.memory.chunk import chunk_footprint
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import ON_HOST, Checkpoint, RecomputePlan, Segment

from .stacks.measure import Measured, measure
from .stacks.shapes import MODELS, SHARING, VARIANTS, shape_of

CHECKPOINTS = {
    Checkpoint.NON_REENTRANT: {"early_stop": False},
    Checkpoint.EARLY_STOP: {"early_stop": True},
    Checkpoint.REENTRANT: {"checkpoint_impl": CheckpointImpl.REENTRANT},
}
EAGER = {"eager_attention": True}  # scores in Python, with a mask of all pairs next to each layer
AUTOCAST = {"autocast": True, "weight_grads_dtype": DType.FP32}  # 16-bit copies of fp32 weights
PEAK_TOLERANCE = 0.005
"""Bar of the project for memory: 0.5 %. What is kept is equal to the byte."""


def assert_same(shape: RankShape, plan: RecomputePlan, measured: Measured) -> None:
    """Of a part of a model without its ends."""
    predicted = chunk_footprint(shape, plan, False, False)
    assert predicted.kept == measured.kept
    assert predicted.forward.num_bytes == pytest.approx(measured.forward, rel=PEAK_TOLERANCE)
    assert predicted.backward.num_bytes == pytest.approx(measured.backward, rel=PEAK_TOLERANCE)


@pytest.mark.parametrize("impl", [TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_recomputed(name: str, impl: TransformerImpl) -> None:
    shape = shape_of(MODELS[name], impl)
    assert_same(shape, RecomputePlan((Segment((DENSE,)),)), measure(shape))


@pytest.mark.parametrize(
    ("name", "how"), [("llama3_8b", EAGER), ("llama3_8b", AUTOCAST), ("llama2_7b", AUTOCAST)]
)
def test_eager_attention_and_autocast(name: str, how: dict[str, Any]) -> None:
    shape = replace(shape_of(MODELS[name], TransformerImpl.TRANSFORMERS), **how)
    assert_same(shape, RecomputePlan((Segment((DENSE,)),)), measure(shape))


def wrapped(made: nn.Module, checkpoint: Checkpoint) -> nn.Module:
    return checkpoint_wrapper(made, preserve_rng_state=False, **CHECKPOINTS[checkpoint])


@pytest.mark.parametrize("checkpoint", Checkpoint)
@pytest.mark.parametrize("impl", [TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS])
@pytest.mark.parametrize("name", MODELS)
def test_whole_block_recomputed(name: str, impl: TransformerImpl, checkpoint: Checkpoint) -> None:
    shape = shape_of(MODELS[name], impl)
    measured = measure(shape, partial(wrapped, checkpoint=checkpoint))
    plan = RecomputePlan((Segment((DENSE,), whole=True, checkpoint=checkpoint),))
    assert_same(shape, plan, measured)


class _Away(nn.Module):
    """save_on_cpu around a checkpoint, as transformers and offload_wrapper have it; what goes to
    the host is dropped here, and made again of the same size."""

    def __init__(self, made: nn.Module, reentrant: bool, size: torch.Size) -> None:
        super().__init__()
        self._made, self._reentrant, self._size = made, reentrant, size
        self.dropped = 0

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if tensor.shape != self._size:
            return tensor  # the table of rotary frequencies, which all blocks share
        self.dropped += 1
        return None

    def _unpack(self, kept: torch.Tensor | None) -> torch.Tensor:
        return torch.empty(self._size, requires_grad=True) if kept is None else kept

    def forward(self, hidden: torch.Tensor, *rest: Any) -> Any:
        with saved_tensors_hooks(self._pack, self._unpack):
            return torch_checkpoint(
                self._made, hidden, *rest, use_reentrant=self._reentrant, preserve_rng_state=False
            )


@pytest.mark.parametrize("checkpoint", [Checkpoint.EARLY_STOP, Checkpoint.REENTRANT])
def test_inputs_of_checkpoints_on_the_host(checkpoint: Checkpoint) -> None:
    """The checkpoint's input is a saved tensor, and the only one that reaches hooks around it."""
    shape = shape_of(MODELS["llama3_8b"], TransformerImpl.TORCH)
    wrapped: list[_Away] = []

    def wrap(made: nn.Module) -> nn.Module:
        reentrant = checkpoint is Checkpoint.REENTRANT
        wrapped.append(_Away(made, reentrant, torch.Size((2, 512, 4096))))
        return wrapped[0]

    measured = measure(shape, wrap)
    segment = Segment((DENSE,), whole=True, checkpoint=checkpoint, input=ON_HOST)
    assert wrapped[0].dropped == 1
    assert measured.kept == 0
    assert_same(shape, RecomputePlan((segment,)), measured)


@pytest.mark.parametrize("name", VARIANTS)
def test_what_transformers_alone_has(name: str) -> None:
    shape = shape_of(VARIANTS[name], TransformerImpl.TRANSFORMERS)
    assert_same(shape, RecomputePlan((Segment(shape.model.layer_kinds[:1]),)), measure(shape))


@pytest.mark.parametrize("layer", [0, 1, 4, 5])
@pytest.mark.parametrize("name", SHARING)
def test_layers_that_share(name: str, layer: int) -> None:
    """With a window and without, that have keys and values of their own, and that have none."""
    shape = shape_of(SHARING[name], TransformerImpl.TRANSFORMERS)
    plan = RecomputePlan((Segment(shape.model.layer_kinds[layer : layer + 1]),))
    assert_same(shape, plan, measure(shape, layer=layer))
