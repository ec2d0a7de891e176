"""Bytes that a block keeps and needs, against torchtitan's and transformers' own code."""

from functools import partial

import pytest

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytest.importorskip("transformers")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

from torch import nn  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (  # noqa: E402
    CheckpointImpl,
    checkpoint_wrapper,
)

from advisor.memory.chunk import chunk_footprint  # noqa: E402
from advisor.models.layer_kind import DENSE  # noqa: E402
from advisor.models.spec import TransformerImpl  # noqa: E402
from advisor.recompute import Checkpoint, RecomputePlan, Segment  # noqa: E402

from .stacks.measure import measure  # noqa: E402
from .stacks.shapes import MODELS, shape_of  # noqa: E402

CHECKPOINTS = {
    Checkpoint.NON_REENTRANT: {"early_stop": False},
    Checkpoint.EARLY_STOP: {"early_stop": True},
    Checkpoint.REENTRANT: {"checkpoint_impl": CheckpointImpl.REENTRANT},
}
PEAK_TOLERANCE = 0.005
"""Bar of the project for memory: 0.5 %. What is kept is equal to the byte."""


@pytest.mark.parametrize("impl", [TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_recomputed(name: str, impl: TransformerImpl) -> None:
    shape = shape_of(MODELS[name], impl)
    measured = measure(shape)
    predicted = chunk_footprint(shape, RecomputePlan((Segment((DENSE,)),)), False, False)
    assert predicted.kept == measured.kept
    assert predicted.forward.num_bytes == pytest.approx(measured.forward, rel=PEAK_TOLERANCE)
    assert predicted.backward.num_bytes == pytest.approx(measured.backward, rel=PEAK_TOLERANCE)


def _wrapped(made: nn.Module, checkpoint: Checkpoint) -> nn.Module:
    return checkpoint_wrapper(made, preserve_rng_state=False, **CHECKPOINTS[checkpoint])


@pytest.mark.parametrize("checkpoint", Checkpoint)
@pytest.mark.parametrize("impl", [TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS])
@pytest.mark.parametrize("name", MODELS)
def test_whole_block_recomputed(name: str, impl: TransformerImpl, checkpoint: Checkpoint) -> None:
    shape = shape_of(MODELS[name], impl)
    measured = measure(shape, partial(_wrapped, checkpoint=checkpoint))
    plan = RecomputePlan((Segment((DENSE,), whole=True, checkpoint=checkpoint),))
    predicted = chunk_footprint(shape, plan, False, False)
    assert predicted.kept == measured.kept
    assert predicted.forward.num_bytes == pytest.approx(measured.forward, rel=PEAK_TOLERANCE)
    assert predicted.backward.num_bytes == pytest.approx(measured.backward, rel=PEAK_TOLERANCE)
