"""What policies over operators and checkpoint_sequential keep, against torch's own code."""

from collections.abc import Set
from functools import partial
from typing import Any

import pytest

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytest.importorskip("transformers")

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint_sequential, create_selective_checkpoint_contexts

from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import OpPolicy, every, op, sequential
from advisor.memory.chunk import chunk_footprint
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import Checkpoint

from .stacks.measure import measure
from .stacks.shapes import MODELS, shape_of
from .stacks.titan import import_titan
from .test_stack_layers import PEAK_TOLERANCE, assert_same

ATEN = torch.ops.aten
ATTENTION = ATEN._scaled_dot_product_flash_attention_for_cpu.default
LISTS = {
    OpPolicy.SAVE_ATTENTION: [ATTENTION],
    OpPolicy.SAVE_MATMUL: [ATEN.mm.default, ATEN.addmm.default],
}
IMPLS = [TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS]


def titan_policy(made: nn.Module, listed: Set[Any] = frozenset({ATEN.mm.default})) -> nn.Module:
    """torchtitan's own policy over a list of operators, with the CPU's attention in it."""
    config = import_titan("config.job_config").ActivationCheckpoint(
        mode="selective", selective_ac_option="op", preserve_rng_state=False
    )
    apply = import_titan("distributed.activation_checkpoint")._apply_op_sac
    wrapped: nn.Module = apply(made, config, op_sac_save_list={*listed, ATTENTION})
    return wrapped


def listed_policy(made: nn.Module, policy: OpPolicy) -> nn.Module:
    contexts: Any = partial(create_selective_checkpoint_contexts, LISTS[policy])
    return checkpoint_wrapper(made, context_fn=contexts, preserve_rng_state=False)


@pytest.mark.parametrize("policy", OpPolicy)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", MODELS)
def test_policies(name: str, impl: TransformerImpl, policy: OpPolicy) -> None:
    shape = shape_of(MODELS[name], impl)
    titan = policy is OpPolicy.TORCHTITAN
    measured = measure(shape, titan_policy if titan else partial(listed_policy, policy=policy))
    how = Semantics()
    if titan:
        how = Semantics(hooked=Checkpoint.NON_REENTRANT, counts_addmm=False)
    plan = chunk_plan(op(policy), shape, (DENSE,), how)
    assert_same(shape, plan, measured)


class _Row(nn.Module):
    """Blocks in a row, called as torch's checkpoint_sequential calls them."""

    def __init__(self, blocks: list[nn.Module], rest: tuple[Any, ...], segments: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self._rest, self._segments = rest, segments

    def forward(self, hidden: torch.Tensor, *_: Any) -> Any:
        calls: Any = [lambda x, b=block: b(x, *self._rest) for block in self.blocks]
        return checkpoint_sequential(
            calls, self._segments, hidden, use_reentrant=False, preserve_rng_state=False
        )


@pytest.mark.parametrize(("layers", "segments"), [(4, 2), (5, 2), (7, 3), (4, 4)])
def test_checkpoint_sequential(layers: int, segments: int) -> None:
    shape = shape_of(MODELS["llama3_8b"], TransformerImpl.TORCH)
    measured = measure(shape, lambda blocks, rest: _Row(blocks, rest, segments), num_blocks=layers)
    plan = chunk_plan(sequential(segments), shape, (DENSE,) * layers, Semantics())
    predicted = chunk_footprint(shape, plan, False, False)
    assert predicted.kept == measured.kept
    # backward: all blocks' weight gradients would be counted here, and not there
    assert predicted.forward.num_bytes == pytest.approx(measured.forward, rel=PEAK_TOLERANCE)


def test_layer_frequency_of_torchtitan() -> None:
    """The counter of wrapped blocks: of four, every second one is a checkpoint."""
    module = import_titan("distributed.activation_checkpoint")
    config = import_titan("config.job_config").ActivationCheckpoint(
        mode="selective", selective_ac_option="2"
    )
    module._layer_sac_count = 0
    blocks = [module._apply_layer_sac(nn.Linear(1, 1), config) for _ in range(5)]
    wrapped = [not isinstance(block, nn.Linear) for block in blocks]
    shape = shape_of(MODELS["llama3_8b"], TransformerImpl.TORCH)
    plan = chunk_plan(every(2), shape, (DENSE,) * 5, Semantics())
    assert [segment.whole for segment in plan.segments for _ in range(segment.copies)] == wrapped
