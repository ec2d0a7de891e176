"""What torch.compile keeps of a block, by itself, under a budget or inside a checkpoint, against
its own partitioner."""

from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytest.importorskip("transformers")

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from advisor.frameworks.torch.partitioner.aten_layer import aten_graph
from advisor.frameworks.torch.partitioner.layer_graph import AttentionKernel
from advisor.frameworks.torch.partitioner.partition import partition
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import (
    Granularity,
    OpPolicy,
    TorchSetting,
    budget,
    parse_setting,
)
from advisor.layers.operators import total_bytes
from advisor.layers.shape import RankShape
from advisor.layers.transformer import head_groups, transformer_layer
from advisor.memory.chunk import chunk_footprint
from advisor.memory.liveness import footprint
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import Checkpoint

from .recorded import measured
from .stacks.shapes import MODELS, VARIANTS, shape_of
from .test_stack_policies import listed_policy, titan_policy

TITAN, FACE = TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS
FLASH, CUDNN = AttentionKernel
BUDGETS = 0.1, 0.25, 0.5, 0.65, 0.8, 1.0
LLAMA, QWEN, GPT = (MODELS[name] for name in ("llama3_8b", "qwen3_8b", "gpt2_xl"))
GEMMA2, GEMMA3, OLMO2, *_ = VARIANTS.values()


def _predicted(shape: RankShape, kernel: AttentionKernel) -> tuple[int, ...]:
    """Bytes kept under each budget, then FLOPs that the partitioner's choice runs again."""
    how, layers = Semantics(attention=kernel), shape.model.layer_kinds[:1]
    plans = (chunk_plan(budget(fraction), shape, layers, how) for fraction in BUDGETS)
    kept = (chunk_footprint(shape, plan, False, False).kept for plan in plans)
    graph = aten_graph(shape, transformer_layer(shape, *layers), kernel)
    again = (partition(graph, fraction).computed_again for fraction in BUDGETS)
    return *kept, *(sum(node.flops for node in nodes) for nodes in again)


def _found(shape: RankShape, kernel: AttentionKernel | None) -> tuple[int, ...]:
    def live() -> tuple[int, ...]:
        from .stacks.partitioned import under_budgets  # seconds of imports

        return under_budgets(shape, BUDGETS, kernel)

    return measured("under_budgets", shape, BUDGETS, kernel or "cpu", by=live)


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        (shape_of(LLAMA, TITAN, seq=8192, mbs=1), FLASH),
        (shape_of(replace(LLAMA, num_query_groups=4), TITAN, seq=2048, mbs=4), CUDNN),
        (shape_of(QWEN, TITAN), FLASH),
        (shape_of(GPT, TITAN), FLASH),  # with dropout
        (shape_of(LLAMA, FACE), FLASH),
        (shape_of(replace(LLAMA, num_query_groups=32), FACE, seq=8192, mbs=4), CUDNN),
        (shape_of(replace(GPT, hidden_dropout=0.0), FACE, seq=1024, mbs=4), FLASH),
        (shape_of(GEMMA2, FACE), FLASH),
        (shape_of(GEMMA3, FACE), FLASH),
        (shape_of(GEMMA3, FACE), CUDNN),  # with a mask
        (shape_of(OLMO2, FACE), FLASH),
    ],
)
def test_what_stays_and_what_is_computed_again(shape: RankShape, kernel: AttentionKernel) -> None:
    assert _predicted(shape, kernel) == _found(shape, kernel)


def test_torch_on_a_cpu_keeps_the_same() -> None:
    """Its attention is no more on torch's list of costly operators than cuDNN's, but hands out no
    state of random numbers: 16 bytes."""
    shape, number = shape_of(LLAMA, TITAN), len(BUDGETS)
    found = zip(_predicted(shape, CUDNN)[:number], _found(shape, None)[:number], strict=True)
    assert {predicted - kept for predicted, kept in found} <= {0, 16}


@pytest.mark.parametrize("impl", [TITAN, FACE])
@pytest.mark.parametrize("name", ["llama3_8b", "qwen3_8b"])
@pytest.mark.parametrize("spec", ["none", "full", *(f"op:{policy}" for policy in OpPolicy)])
def test_checkpoints_within_a_compiled_block(name: str, impl: TransformerImpl, spec: str) -> None:
    """With the CPU's attention, which the policies list, and which hands out no state of random
    numbers: 24 bytes."""
    shape, setting = shape_of(MODELS[name], impl), parse_setting(spec)

    def live() -> tuple[int, ...]:
        from .stacks.partitioned import kept_when_compiled  # seconds of imports

        return kept_when_compiled(shape, _wrapper(setting), None)

    (found,) = measured("kept_when_compiled", shape, spec, by=live)
    how = Semantics(hooked=Checkpoint.NON_REENTRANT, counts_addmm=False, compiled=True)
    plan = chunk_plan(setting, shape, shape.model.layer_kinds[:1], how)
    assert 0 <= chunk_footprint(shape, plan, False, False).kept - found <= 24


def test_compiled_loss() -> None:
    """What the loss keeps, and the gradient that it hands back; no logits in fp32."""
    shape = replace(shape_of(LLAMA, TITAN, seq=512), compiled_loss=True)

    def live() -> tuple[int, ...]:
        from .stacks.partitioned import loss_handed_on

        return loss_handed_on(shape)

    kept, gradient = measured("loss_handed_on", shape, by=live)
    (loss,) = dict(head_groups(shape))["loss"]
    assert total_bytes(loss.saved) == kept
    assert total_bytes(loss.inputs) == gradient
    whole = footprint((loss,), ())
    assert whole.forward.num_bytes == pytest.approx(kept, abs=8)
    assert whole.backward.num_bytes == pytest.approx(kept + gradient, abs=8)


def _wrapper(setting: TorchSetting) -> Callable[[nn.Module], nn.Module]:
    if setting.policy is OpPolicy.TORCHTITAN:
        return titan_policy
    if setting.policy is not None:
        return partial(listed_policy, policy=setting.policy)
    if setting.granularity is Granularity.FULL:
        return partial(checkpoint_wrapper, preserve_rng_state=False)
    return lambda made: made
