"""Peak of a step under HSDP, shards in each of two replicas, against torch's own code."""

import pytest
from msgspec.structs import astuple, replace

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

from advisor.frameworks.torch.parameter_groups import Sharding  # noqa: E402
from advisor.models.layer_kind import DENSE  # noqa: E402
from advisor.models.options import TransformerImpl  # noqa: E402
from advisor.plan.recompute_plan import RecomputePlan, Segment  # noqa: E402

from .recorded import measured  # noqa: E402
from .stacks.fsdp import RANKS, Step, assert_near, predicted_step, titan_step  # noqa: E402
from .stacks.shapes import LLAMA3_8B, shape_of  # noqa: E402

TOLERANCE = 0.005
"""Bar of the project for memory: 0.5 %."""
LAYERS, REPLICAS = 4, 2


def test_peak_of_a_step() -> None:
    """Shards are cut over the ranks of one replica; the all-reduce over replicas is in place."""
    model = replace(LLAMA3_8B, num_layers=LAYERS, vocab_size=512)
    shape = shape_of(model, TransformerImpl.TORCH, seq=2048)

    def live() -> tuple[int, ...]:
        return astuple(titan_step(shape, lambda model: None, replicas=REPLICAS))

    step = Step(*measured("hsdp_step", shape, REPLICAS, by=live))
    plan = RecomputePlan((Segment((DENSE,), copies=LAYERS),))
    assert_near(predicted_step(shape, plan, Sharding(ranks=RANKS // REPLICAS)), step, TOLERANCE)
