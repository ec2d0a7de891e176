"""Peak of a step of transformers' Llama under FSDP2 against torch's own code.

Eight fake ranks; groups as Accelerate 1.15 makes them, or the layers and the root, as a script of
one's own does.
"""

from functools import partial
from typing import Any

import pytest

pytest.importorskip("tyro")  # comes with torchtitan
pytest.importorskip("accelerate")

import torch

from advisor.base.dtypes import DType
from advisor.frameworks.torch.parameter_groups import Sharding
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import FULL, NONE
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.memory.static import stage_elements
from advisor.models.layer_kind import DENSE

from .recorded import measured
from .stacks.fsdp import (
    RANKS,
    Step,
    assert_near,
    predicted_step,
    recorded_step,
    tracked_peak,
    transformers_step,
)
from .stacks.shapes import llama_shape

TOLERANCE = 0.002
"""A tenth of a percent is a hidden state and the masks of the loss; the bar is 0.5 %."""
LAYERS = 4
REDUCED = {DType.BF16: torch.bfloat16, DType.FP32: torch.float32}


def _predicted(shape: RankShape, sharding: Sharding, *, checkpointed: bool) -> Step:
    setting = FULL if checkpointed else NONE
    plan = chunk_plan(setting, shape, (DENSE,) * LAYERS, Semantics(starts_with_first=True))
    return predicted_step(shape, plan, sharding)


def _compare(
    shape: RankShape, reduce_dtype: DType, *, checkpointed: bool, by_accelerate: bool, **given: Any
) -> None:
    sharding = Sharding(
        ranks=RANKS, root_holds_ends=not by_accelerate, reduce_dtype=reduce_dtype, **given
    )
    predicted = _predicted(shape, sharding, checkpointed=checkpointed)
    options = {"checkpointed": checkpointed, "by_accelerate": by_accelerate, **given}
    live = partial(transformers_step, shape, reduce_dtype=REDUCED[reduce_dtype], **options)
    step = recorded_step("transformers_step", shape, reduce_dtype, options, by=live)
    assert_near(predicted, step, TOLERANCE)


@pytest.mark.parametrize("reshards", [True, False], ids=["reshards", "stays"])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["none", "full"])
@pytest.mark.parametrize("by_accelerate", [False, True], ids=["root", "accelerate"])
@pytest.mark.parametrize(
    ("vocabulary", "reduce_dtype"), [(32000, DType.BF16), (128256, DType.FP32)]
)
def test_peak_of_a_step(vocabulary, reduce_dtype, by_accelerate, checkpointed, reshards) -> None:
    """With 32,000 tokens the layers decide, with 128,256 the ends."""
    _compare(
        llama_shape(vocabulary),
        reduce_dtype,
        checkpointed=checkpointed,
        by_accelerate=by_accelerate,
        reshards=reshards,
    )


@pytest.mark.parametrize("reduce_dtype", [DType.BF16, DType.FP32])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["none", "full"])
@pytest.mark.parametrize("vocabulary", [32000, 128256])
def test_tied_ends_are_one_group(vocabulary: int, checkpointed: bool, reduce_dtype: DType) -> None:
    """Embedding, norm and output layer; the sum of both gradients is a third tensor."""
    shape = llama_shape(vocabulary, tied=True)
    _compare(shape, reduce_dtype, checkpointed=checkpointed, by_accelerate=True)


def test_longer_sequences() -> None:
    """Activations and the loss decide."""
    for by_accelerate in (False, True):
        _compare(
            llama_shape(128256, seq=2048),
            DType.BF16,
            checkpointed=True,
            by_accelerate=by_accelerate,
        )


@pytest.mark.parametrize("by_accelerate", [False, True], ids=["root", "accelerate"])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["none", "full"])
def test_torchs_own_tracker_sees_the_same_peak(checkpointed: bool, by_accelerate: bool) -> None:
    """MemTracker counts the sharded parameters as well."""
    shape = llama_shape(32000)
    options = {"checkpointed": checkpointed, "by_accelerate": by_accelerate}
    (tracked,) = measured(
        "transformers_tracked_peak",
        shape,
        options,
        by=lambda: (transformers_step(shape, measure=tracked_peak, **options),),
    )
    sharding = Sharding(ranks=RANKS, root_holds_ends=not by_accelerate)
    step = _predicted(shape, sharding, checkpointed=checkpointed)
    chunk = ModelChunk((DENSE,) * LAYERS, embedding=True, head=True)
    parameters = sharding.shard(stage_elements(shape, (chunk,)))
    assert step.backward + parameters == pytest.approx(tracked, rel=0.005)
