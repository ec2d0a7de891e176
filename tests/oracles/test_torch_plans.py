"""Plans of blocks run for real: what `--format file` writes, on torchtitan's and transformers' own
layers, beside what the plan says."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytest.importorskip("transformers")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

from advisor.frameworks.torch.optimum.options import Rates  # noqa: E402
from advisor.frameworks.torch.optimum.solve import Blocks  # noqa: E402
from advisor.frameworks.torch.parameter_groups import Sharding, fsdp_working_set  # noqa: E402
from advisor.frameworks.torch.plan import Semantics, chunk_plan  # noqa: E402
from advisor.frameworks.torch.setting import FULL, NONE, TorchSetting  # noqa: E402
from advisor.hardware.calibration import load_calibration  # noqa: E402
from advisor.layers.shape import RankShape  # noqa: E402
from advisor.memory.chunk import chunk_footprint  # noqa: E402
from advisor.memory.working_set import WorkingSet  # noqa: E402
from advisor.models.options import TransformerImpl  # noqa: E402
from advisor.search.evaluate import Evaluator  # noqa: E402
from tests.advisor.frameworks.torch.jobs import stack_job  # noqa: E402

from .stacks.fsdp import RANKS, Step, titan_step, transformers_step  # noqa: E402
from .stacks.plans import written_plan  # noqa: E402
from .stacks.shapes import LLAMA2_7B, LLAMA3_8B, QWEN3_30B_A3B, shape_of  # noqa: E402

TOLERANCE = 0.005
"""Bar of the issue for the peak of a step: 0.5 %. What is kept is equal to the byte."""
TITAN, FACE = TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS
LAYERS = 6
BUDGETS = 0.1, 0.35, 0.6, 0.85
"""Of the bytes between a checkpoint around every block and none."""


class Case(Struct, frozen=True):
    """A model of some blocks under FSDP2, and what runs it."""

    shape: RankShape
    sharding: Sharding
    run: Callable[[RankShape, Callable[[Any], None]], Step]


def _titan(shape: RankShape, apply_plan: Callable[[Any], None]) -> Any:
    return titan_step(shape, lambda model: apply_plan(model.layers))


def _face(shape: RankShape, apply_plan: Callable[[Any], None]) -> Any:
    def checkpoint(model: Any) -> None:
        apply_plan(model.model.layers)

    return transformers_step(shape, checkpointed=False, by_accelerate=False, checkpoint=checkpoint)


def _case(model: Any, impl: TransformerImpl) -> Case:
    small = replace(model, num_layers=LAYERS, vocab_size=4096)
    shape = shape_of(small, impl, seq=2048)
    sharding = Sharding(ranks=RANKS, root_holds_ends=impl is FACE)
    return Case(shape, sharding, _titan if impl is TITAN else _face)


CASES = {
    "torchtitan llama3": _case(LLAMA3_8B, TITAN),
    "torchtitan llama2": _case(LLAMA2_7B, TITAN),
    "torchtitan qwen3 experts": _case(replace(QWEN3_30B_A3B, num_moe_experts=8), TITAN),
    "transformers llama3": _case(LLAMA3_8B, FACE),
    "transformers llama2": _case(LLAMA2_7B, FACE),
}


@cache
def rates() -> Rates:
    """Of an H100."""
    _, job = stack_job("fsdp2")
    return Rates(*Evaluator(job, load_calibration(job.gpu, None)).rates)


def _peak(setting: TorchSetting, shape: RankShape, working_set: WorkingSet | None) -> int:
    plan = chunk_plan(setting, shape, shape.model.layer_kinds, Semantics())
    found = chunk_footprint(shape, plan, True, True, working_set=working_set)
    return max(found.forward.num_bytes, found.backward.num_bytes)


@pytest.mark.parametrize("share", BUDGETS)
@pytest.mark.parametrize("name", CASES)
def test_a_plan_stays_within_its_budget(name: str, share: float) -> None:
    case = CASES[name]
    working_set = fsdp_working_set(case.shape, case.sharding)
    least, most = (_peak(one, case.shape, working_set) for one in (FULL, NONE))
    budget = least + int(share * (most - least))
    blocks = Blocks(case.shape, Semantics(), rates(), working_set, on_host=False)
    found = blocks.within(0, budget)
    assert found is not None
    assert found.chosen.bound == found.chosen.cost
    predicted = _peak(found.setting, case.shape, working_set)
    assert predicted <= budget
    step = case.run(case.shape, written_plan(found.setting, case.shape)["apply_plan"])
    measured = max(step.forward, step.backward)
    print(name, share, found.setting.spec, budget, predicted, measured)
    assert measured == pytest.approx(predicted, rel=TOLERANCE)
    assert measured <= budget
