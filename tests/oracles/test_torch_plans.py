"""Plans of blocks run for real: what `--format file` writes, on torchtitan's and transformers' own
layers, next to what the plan says."""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytest.importorskip("transformers")

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.frameworks.torch.block_regimes import INPUT, BlockRegime, decisions
from advisor.frameworks.torch.optimum.plan_file import plan_file
from advisor.frameworks.torch.optimum.solve import Blocks
from advisor.frameworks.torch.parameter_groups import Sharding, fsdp_working_set
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import FULL, NONE, TorchSetting, by_block
from advisor.frameworks.torchtitan.flags import PLAN_HOOK
from advisor.hardware.calibration import load_calibration
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.chunk import chunk_footprint
from advisor.memory.working_set import WorkingSet
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import computed_until_stop
from advisor.search.evaluate import Evaluator
from advisor.time.stage_times import Rates
from tests.advisor.frameworks.torch.jobs import stack_job

from .recorded import measured
from .stacks.blocks import block
from .stacks.fsdp import RANKS, Step, titan_step, transformers_step
from .stacks.measure import measure
from .stacks.plans import Row, with_host, written_plan
from .stacks.shapes import GPT2_XL, LLAMA2_7B, LLAMA3_8B, QWEN3_8B, QWEN3_30B_A3B, shape_of
from .stacks.titan import import_titan

TOLERANCE = 0.005
"""Bar of the issue for the peak of a step: 0.5 %. What is kept is equal to the byte."""
TITAN, FACE = TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS
LAYERS = 6
LIVE = os.environ.get("ORACLES") == "live"
BUDGETS = (0.1, 0.35, 0.6, 0.85) if LIVE else (0.35,)
"""Of the bytes between a checkpoint around every block and none; all of them in `make oracles`."""
MARGIN = {"torchtitan qwen3 experts": 0.005}
"""Of the budget, left aside: the routing's own bytes are known to within 0.4 % alone."""
SMALL: dict[str, Any] = {
    "num_layers": 3,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 4,
    "num_query_groups": 4,
    "kv_channels": 16,
}


class Case(Struct, frozen=True):
    """A model of some blocks under FSDP2, and what runs it."""

    shape: RankShape
    sharding: Sharding
    run: Callable[[RankShape, Callable[[Any], None]], Step]

    def peak(self, setting: TorchSetting) -> int:
        """Predicted bytes of a step."""
        plan = chunk_plan(setting, self.shape, self.shape.model.layer_kinds, Semantics())
        found = chunk_footprint(self.shape, plan, True, True, working_set=self.working_set)
        return max(found.forward.num_bytes, found.backward.num_bytes)

    @property
    def working_set(self) -> WorkingSet:
        return fsdp_working_set(self.shape, self.sharding)


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
    return Evaluator(job, load_calibration(job.gpu, None)).rates


@cache
def planned(name: str, share: float, *, on_host: bool) -> tuple[TorchSetting, int]:
    """The fastest setting within the budget, and the budget."""
    case = CASES[name]
    least, most = case.peak(FULL), case.peak(NONE)
    budget = least + int(share * (most - least))
    blocks = Blocks(case.shape, Semantics(), rates(), case.working_set, on_host=on_host)
    found = blocks.within(0, int(budget * (1 - MARGIN.get(name, 0.0))))
    assert on_host or found.chosen.bound == found.chosen.cost
    return found.setting, budget


@pytest.mark.parametrize("share", BUDGETS)
@pytest.mark.parametrize(
    ("name", "on_host"), [*((name, False) for name in CASES), ("torchtitan llama3", True)]
)
def test_a_plan_stays_within_its_budget(name: str, on_host: bool, share: float) -> None:
    """What is on its way to the host is on the device until the block next to it is through."""
    case = CASES[name]
    setting, budget = planned(name, share, on_host=on_host)

    def live() -> tuple[int, ...]:
        plan = written_plan(setting, case.shape)
        with with_host(plan) if on_host else nullcontext():
            step = case.run(case.shape, plan["apply_plan"])
        return step.forward, step.backward

    peak = max(measured("step of a plan", name, case.shape, setting, by=live))
    assert peak == pytest.approx(case.peak(setting), rel=TOLERANCE)
    assert peak <= budget


@pytest.mark.parametrize("share", BUDGETS)
@pytest.mark.parametrize("name", CASES)
def test_kept_bytes_are_those_of_the_plan(name: str, share: float) -> None:
    case = CASES[name]
    setting, _ = planned(name, share, on_host=False)
    plan = chunk_plan(setting, case.shape, case.shape.model.layer_kinds, Semantics())

    def live() -> tuple[int, ...]:
        apply_plan = written_plan(setting, case.shape)["apply_plan"]
        row: Callable[..., Row] = lambda blocks, rest: Row(blocks, rest, apply_plan)  # noqa: E731
        return (measure(case.shape, row, num_blocks=LAYERS).kept,)

    (kept,) = measured("kept under a plan", name, case.shape, setting, by=live)
    assert chunk_footprint(case.shape, plan, False, False).kept == kept


class Calls(TorchDispatchMode):
    """Counts the calls that a plan decides on."""

    def __init__(self, kinds: dict[Any, str]) -> None:
        super().__init__()
        self.count, self._kinds = Counter[str](), kinds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._kinds:
            self.count[self._kinds[func]] += 1
        return func(*args, **(kwargs or {}))


def _gradients(
    setting: TorchSetting, shape: RankShape
) -> tuple[list[torch.Tensor | None], Counter[str]]:
    """Of one step on real tensors, and the calls of its backward."""
    torch.manual_seed(0)
    made, rest, named = block(shape)
    blocks = [made, *(block(shape)[0] for _ in range(shape.model.num_layers - 1))]
    for parameter in nn.ModuleList(blocks).parameters():
        nn.init.normal_(parameter, std=0.05)
    rest = tuple(torch.ones_like(one) if torch.is_tensor(one) else one for one in rest)
    if named:
        named["position_embeddings"] = tuple(map(torch.ones_like, named["position_embeddings"]))
    plan = written_plan(setting, shape)
    row = Row(blocks, rest, plan["apply_plan"])
    size = shape.micro_batch_size, shape.seq_length, shape.model.hidden_size
    hidden = torch.randn(size, requires_grad=True)
    with Calls(plan["KINDS"]) as calls:
        loss = row(hidden, **named).square().sum()
        calls.count.clear()
        loss.backward()
    return [hidden.grad, *(parameter.grad for parameter in row.parameters())], calls.count


@pytest.mark.parametrize(
    ("model", "impl"),
    [(LLAMA3_8B, TITAN), (LLAMA3_8B, FACE), (QWEN3_8B, TITAN), (QWEN3_8B, FACE), (GPT2_XL, TITAN)],
    ids=[
        *("titan llama", "transformers llama", "titan qwen", "transformers qwen"),
        "gpt with dropout",
    ],
)
@pytest.mark.parametrize("which", ["kept", "host", "input"])
def test_gradients_are_equal_and_nothing_is_replayed_twice(model, impl, which) -> None:
    shape = shape_of(replace(model, **SMALL), impl, seq=32)
    operators = transformer_layer(shape, shape.model.layer_kinds[0])
    names, until = [*decisions(operators)], [*decisions(computed_until_stop(operators))]
    some, other = tuple(names[::2]), tuple(names[1:3])
    first = {
        "kept": BlockRegime(checkpointed=True, kept=some),
        "host": BlockRegime(checkpointed=True, kept=some, on_host=other),
        "input": BlockRegime(checkpointed=True, on_host=(*some, INPUT)),
    }[which]
    setting = by_block((first, BlockRegime(checkpointed=True), BlockRegime()))
    plain, without = _gradients(by_block((BlockRegime(),) * 3), shape)
    found, calls = _gradients(setting, shape)
    for one, another in zip(found, plain, strict=True):
        assert torch.equal(one, another)
    again = [name for name in until if name not in {*first.kept, *first.on_host}] + until
    known = decisions(operators)
    assert calls - without == Counter(known[name][0] for name in again)


@pytest.mark.parametrize("kept", [(), ("wq", "core_attention"), ("wk", "wo", "w1", "w3")])
def test_what_a_compiled_block_keeps(kept: tuple[str, ...]) -> None:
    """With the CPU's attention, which hands out no state of random numbers: 24 bytes."""
    from .stacks.partitioned import kept_when_compiled  # seconds of imports

    shape = shape_of(replace(LLAMA3_8B, num_layers=1), TITAN)
    setting = by_block((BlockRegime(checkpointed=True, kept=kept),))
    plan = written_plan(setting, shape)
    (way,) = plan["BLOCKS"]
    (found,) = kept_when_compiled(shape, lambda made: plan["checkpointed"](made, way)[0], None)
    predicted = chunk_plan(setting, shape, shape.model.layer_kinds, Semantics(compiled=True))
    assert 0 <= chunk_footprint(shape, predicted, False, False).kept - found <= 24


def test_torchtitan_takes_it_for_every_block() -> None:
    """By apply_ac itself, which --activation_checkpoint.mode=full has called."""
    shape = CASES["torchtitan llama3"].shape
    first = BlockRegime(checkpointed=True, kept=("wq", "core_attention"))
    setting = by_block((first,) * 4 + (BlockRegime(),) * 2)
    module = import_titan("distributed.activation_checkpoint")
    own = module._apply_ac_to_transformer_block
    model = nn.Module()
    model.layers = nn.ModuleDict({str(number): nn.Linear(1, 1) for number in range(LAYERS)})
    try:
        exec(plan_file(setting, shape, PLAN_HOOK), {"__name__": "recompute_plan"})
        module.apply_ac(model, import_titan("config.job_config").ActivationCheckpoint(mode="full"))
    finally:
        module._apply_ac_to_transformer_block = own
        torch._C._dynamo.eval_frame._set_lru_cache(True)  # apply_ac turns it off for all
    wrapped = [not isinstance(one, nn.Linear) for one in model.layers.values()]
    assert wrapped == [True] * 4 + [False] * 2
