"""torchao's float8 linear layers: what a block keeps, eager and compiled, against their own code.

Tensorwise scaling, in torchtitan's and transformers' blocks. torchao is not among the packages of
the tests: without it the figures are those that were recorded with 0.18.0.
"""

from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytest.importorskip("transformers")

from torch import nn

from advisor.base.dtypes import Precision
from advisor.frameworks.torch.parameter_groups import Sharding, _Layers
from advisor.frameworks.torch.partitioner.layer_graph import AttentionKernel
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import budget, parse_setting
from advisor.layers.shape import RankShape
from advisor.memory.chunk import chunk_footprint
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import Checkpoint, RecomputePlan, Segment
from tests.advisor.frameworks.torch.jobs import stack_job

from .recorded import measured
from .stacks.measure import measure
from .stacks.shapes import MODELS, shape_of
from .test_memory_budget import BUDGETS, _wrapper

TITAN, FACE = TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS
SCALARS = 64
"""Bytes of the largest elements and scales of a block's tensors, four or fewer for each of seven
layers: torch keeps one or the other of a pair, in 16 or in 32 bits."""


def _shape(name: str, impl: TransformerImpl) -> RankShape:
    return replace(shape_of(MODELS[name], impl), precision=Precision.FP8_CURRENT)


def _converted(made: nn.Module, **options: bool) -> nn.Module:
    float8 = pytest.importorskip("torchao.float8")
    return float8.convert_to_float8_training(
        made,
        config=float8.Float8LinearConfig(**options),
        module_filter_fn=lambda _, name: name != "output",
    )


@pytest.mark.parametrize("impl", [TITAN, FACE])
def test_an_eager_block_keeps_16_bits(impl: TransformerImpl) -> None:
    shape = _shape("llama3_8b", impl)
    (kept,) = measured("float8_kept", shape, by=lambda: (measure(shape, _converted).kept,))
    plain = RecomputePlan((Segment((DENSE,)),))
    assert chunk_footprint(shape, plan=plain, first=False, last=False).kept == kept


@pytest.mark.parametrize("spec", ["op:torchtitan", "op:save_matmul"])
def test_policies_find_the_products_of_an_eager_block(spec: str) -> None:
    """A policy is asked for aten.mm of 8-bit tensors, as it is for those of 16."""
    shape, setting = _shape("llama3_8b", TITAN), parse_setting(spec)
    wrap = _wrapper(setting)

    def live() -> tuple[int, ...]:
        return (measure(shape, lambda made: wrap(_converted(made))).kept,)

    (found,) = measured("float8_kept_by_policy", shape, spec, by=live)
    how = Semantics(hooked=Checkpoint.NON_REENTRANT, counts_addmm=False)
    plan = chunk_plan(setting, shape, shape.model.layer_kinds[:1], how)
    assert chunk_footprint(shape, plan, False, False).kept == found


def test_the_python_converts_what_is_predicted() -> None:
    """The statements that the answer prints run."""
    float8 = pytest.importorskip("torchao.float8")
    overrides = ("job.precision=fp8_current", "job.fp8_param_gather=true")
    stack, job = stack_job("fsdp2", overrides=overrides)
    statement = stack.spelling.setting_flags(parse_setting("none"), job).split("; ")[0]
    model = nn.ModuleDict({"wq": nn.Linear(32, 32), "output": nn.Linear(32, 32)})
    exec(statement, {"model": model, **vars(float8)})
    assert isinstance(model["wq"], float8.float8_linear.Float8Linear)
    assert model["wq"].config.enable_fsdp_float8_all_gather
    assert type(model["output"]) is nn.Linear


@pytest.mark.parametrize("name", ["llama3_8b", "qwen3_8b"])
@pytest.mark.parametrize("spec", ["none", "full", "op:torchtitan"])
def test_a_compiled_block(name: str, spec: str) -> None:
    """Its inputs of GEMMs, which bf16 keeps, are made again: a kernel of their own casts them."""
    shape, setting = _shape(name, TITAN), parse_setting(spec)
    wrap = _wrapper(setting)

    def live() -> tuple[int, ...]:
        from .stacks.partitioned import kept_when_compiled  # seconds of imports

        return kept_when_compiled(shape, lambda made: wrap(_converted(made)), None)

    (found,) = measured("float8_kept_when_compiled", shape, spec, by=live)
    how = Semantics(hooked=Checkpoint.NON_REENTRANT, counts_addmm=False, compiled=True)
    plan = chunk_plan(setting, shape, shape.model.layer_kinds[:1], how)
    assert chunk_footprint(shape, plan, False, False).kept == pytest.approx(found, abs=SCALARS)


@pytest.mark.parametrize("name", ["llama3_8b", "qwen3_8b"])
def test_budgets(name: str) -> None:
    shape, kernel = _shape(name, TITAN), AttentionKernel.FLASH

    def live() -> tuple[int, ...]:
        from .stacks import partitioned

        made = partitioned.block
        with patch.object(partitioned, "block", partial(_in_8_bits, made)):
            return partitioned.under_budgets(shape, BUDGETS, kernel)[: len(BUDGETS)]

    found = measured("float8_under_budgets", shape, BUDGETS, by=live)
    how = Semantics(attention=kernel)
    for fraction, kept in zip(BUDGETS, found, strict=True):
        plan = chunk_plan(budget(fraction), shape, shape.model.layer_kinds[:1], how)
        predicted = chunk_footprint(shape, plan, False, False).kept
        assert predicted == pytest.approx(kept, abs=SCALARS)


@pytest.mark.parametrize("in_8_bits", [False, True])
def test_bytes_that_fsdp2_gathers(in_8_bits: bool) -> None:
    """What is there of a block of torchtitan's model when its group is gathered."""
    model = replace(MODELS["llama3_8b"], num_layers=2, vocab_size=512)
    shape = replace(shape_of(model, TITAN), precision=Precision.FP8_CURRENT)

    def live() -> tuple[int, ...]:
        from .stacks.fsdp import titan_step

        convert = partial(_converted, enable_fsdp_float8_all_gather=in_8_bits)
        return (titan_step(shape, convert, measure=_gathered),)

    (found,) = measured("float8_gathered", shape, in_8_bits, by=live)
    sharding = Sharding(ranks=8, in_8_bits=in_8_bits)
    sent = _Layers.of(shape, sharding).sent
    assert sharding.gathered(sent) == pytest.approx(found, abs=SCALARS)


def _gathered(_: RankShape, model: Any) -> int:
    """Of the first block; of an 8-bit tensor its data, not what wraps it in 16 bits."""
    from .stacks.meter import LiveBytes

    class Unwrapped(LiveBytes):
        def _note(self, tensor: Any) -> None:
            if not hasattr(tensor, "_scale"):
                super()._note(tensor)

    model._get_fsdp_state()._lazy_init()
    with Unwrapped() as live:
        model.layers["0"].unshard()
        return live.now


def _in_8_bits(block, shape):
    made, *rest = block(shape)
    return _converted(made), *rest
