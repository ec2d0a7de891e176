"""Peak of a step under HSDP, shards in each of two replicas, against torch's own code."""

from functools import partial

import pytest
from msgspec.structs import replace

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is

from advisor.frameworks.torch.parameter_groups import Sharding
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import RecomputePlan, Segment

from .stacks.fsdp import RANKS, assert_near, predicted_step, recorded_step, titan_step
from .stacks.shapes import LLAMA3_8B, shape_of

TOLERANCE = 0.005
"""Bar of the project for memory: 0.5 %."""
LAYERS, REPLICAS = 4, 2


def test_peak_of_a_step() -> None:
    """Shards are cut over the ranks of one replica; the all-reduce over replicas is in place."""
    model = replace(LLAMA3_8B, num_layers=LAYERS, vocab_size=512)
    shape = shape_of(model, TransformerImpl.TORCH, seq=2048)
    live = partial(titan_step, shape, lambda model: None, replicas=REPLICAS)
    step = recorded_step("hsdp_step", shape, REPLICAS, by=live)
    plan = RecomputePlan((Segment((DENSE,), copies=LAYERS),))
    assert_near(predicted_step(shape, plan, Sharding(ranks=RANKS // REPLICAS)), step, TOLERANCE)
