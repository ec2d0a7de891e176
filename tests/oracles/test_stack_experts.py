"""Blocks with experts of torchtitan and transformers: what they keep and need, on fake tensors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytest.importorskip("transformers")

from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import FULL, NONE, OpPolicy, TorchSetting, op
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import Checkpoint

from .stacks.measure import measure
from .stacks.shapes import MIXTRAL_8X7B, QWEN3_30B_A3B, shape_of
from .test_stack_layers import assert_same, wrapped
from .test_stack_policies import listed_policy, titan_policy

HOW = Semantics(hooked=Checkpoint.NON_REENTRANT, counts_addmm=False)
WRAPS: dict[TorchSetting, Callable[..., Any]] = {
    NONE: lambda made: made,
    FULL: partial(wrapped, checkpoint=Checkpoint.NON_REENTRANT),
    op(OpPolicy.SAVE_MATMUL): partial(listed_policy, policy=OpPolicy.SAVE_MATMUL),
    op(OpPolicy.TORCHTITAN): titan_policy,
}
NONE_FULL_MATMUL, TITAN = list(WRAPS)[:3], [NONE, FULL, op(OpPolicy.TORCHTITAN)]
BLOCKS = [
    (QWEN3_30B_A3B, TransformerImpl.TORCH, TITAN),
    (QWEN3_30B_A3B, TransformerImpl.TRANSFORMERS, NONE_FULL_MATMUL),
    (MIXTRAL_8X7B, TransformerImpl.TRANSFORMERS, NONE_FULL_MATMUL),
]
CASES = [
    pytest.param(model, impl, setting, id=f"{model.name}-{impl}-{setting.spec}")
    for model, impl, settings in BLOCKS
    for setting in settings
]


@pytest.mark.parametrize(("model", "impl", "setting"), CASES)
def test_layers_with_experts(model, impl, setting) -> None:
    shape = shape_of(model, impl)
    measured = measure(shape, WRAPS[setting])
    plan = chunk_plan(setting, shape, shape.model.layer_kinds[:1], HOW)
    assert_same(shape, plan, measured)
