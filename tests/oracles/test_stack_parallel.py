"""Blocks of torchtitan cut by tensor and expert parallelism, on one of eight fake ranks.

torchtitan's own plans cut them. Its lists of operators to save have the CPU's attention added.
"""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is

from torch import nn

from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import FULL, NONE, OpPolicy, TorchSetting, op
from advisor.layers.operators import CollectiveKind
from advisor.memory.chunk import chunk_footprint
from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import ScoreFunction, TransformerImpl
from advisor.plan.recompute_plan import Checkpoint, RecomputePlan
from tests.advisor.jobs import parallel

from .stacks.parallel import measure_cut, measure_ends
from .stacks.shapes import DEEPSEEK_V3, LLAMA3_8B, QWEN3_30B_A3B, shape_of
from .stacks.titan import import_titan
from .test_stack_layers import PEAK_TOLERANCE, wrapped
from .test_stack_policies import titan_policy

HOW = Semantics(
    hooked=Checkpoint.NON_REENTRANT,
    counts_addmm=False,
    saved_collectives=frozenset({CollectiveKind.REDUCE_SCATTER}),
)
DEEPSEEK_DENSE = replace(
    DEEPSEEK_V3,
    name="deepseek_v3_dense",
    moe_layer_freq=LayerPattern("[0]*1+[1]*3"),
    q_lora_rank=None,
)
SCORED_BEFORE = replace(
    QWEN3_30B_A3B,
    name="scored_before",
    moe_router_score_function=ScoreFunction.SIGMOID,
    moe_router_topk=1,
    moe_apply_probs_on_input=True,
    moe_shared_expert_intermediate_size=768,
)
"""As Llama 4 has it: one expert of each token, whose score its input is multiplied by."""
SELECTIVE = op(OpPolicy.TORCHTITAN)
CASES = [  # model, TP, EP, ETP, sequences, settings
    (LLAMA3_8B, 2, 1, 1, 2, (NONE, FULL, SELECTIVE)),
    (LLAMA3_8B, 4, 1, 1, 1, (NONE,)),
    (QWEN3_30B_A3B, 1, 4, 1, 2, (NONE, SELECTIVE)),
    (QWEN3_30B_A3B, 4, 4, 1, 2, (NONE, FULL, SELECTIVE)),
    (QWEN3_30B_A3B, 2, 2, 2, 2, (NONE,)),
    (QWEN3_30B_A3B, 2, 1, 2, 2, (NONE,)),
    (SCORED_BEFORE, 1, 2, 1, 2, (NONE,)),
    (DEEPSEEK_V3, 1, 1, 1, 2, (NONE, FULL)),
    (DEEPSEEK_V3, 4, 2, 1, 1, (NONE,)),
    (DEEPSEEK_DENSE, 2, 1, 1, 1, (NONE,)),
]
INDICES = 40_000
"""Bytes: ExpertParallel holds the indices of its last permutation, int32 of every padded row, and
slicing the mesh of EP and ETP makes a few integers."""


def _wrap(made: nn.Module, setting: TorchSetting, package: str) -> Any:
    if setting is NONE:
        return made
    if setting is FULL:
        return wrapped(made, checkpoint=Checkpoint.NON_REENTRANT)
    listed = import_titan(f"models.{package}.infra.parallelize")._op_sac_save_list
    return titan_policy(made, listed)


@pytest.mark.parametrize(
    ("model", "tp", "ep", "etp", "sequences", "setting"),
    [
        pytest.param(
            *case[:-1],
            setting,
            id=f"{case[0].name}-tp{case[1]}-ep{case[2]}-etp{case[3]}-{setting.spec}",
        )
        for case in CASES
        for setting in case[-1]
    ],
)
def test_a_rank_of_a_block(model, tp, ep, etp, sequences, setting) -> None:
    shape = replace(
        shape_of(model, TransformerImpl.TORCH, mbs=sequences),
        **parallel(tp=tp, sp=tp > 1, ep=ep, etp=etp),
    )
    package = "qwen3" if model.qk_layernorm else "llama3"
    measured = measure_cut(shape, partial(_wrap, setting=setting, package=package))
    plan = chunk_plan(setting, shape, shape.model.layer_kinds[:1], HOW)
    predicted = chunk_footprint(shape, plan, False, False)
    assert predicted.kept == pytest.approx(measured.kept, rel=0, abs=INDICES if ep > 1 else 0)
    assert predicted.forward.num_bytes == pytest.approx(measured.forward, rel=PEAK_TOLERANCE)
    assert predicted.backward.num_bytes == pytest.approx(measured.backward, rel=PEAK_TOLERANCE)


def test_ends_of_a_rank() -> None:
    """Vocabulary cut by TP, sequence cut outside the embedding and the head, loss parallel."""
    shape = replace(shape_of(LLAMA3_8B, TransformerImpl.TORCH), **parallel(tp=2, sp=True))
    kept, forward = measure_ends(shape)
    predicted = chunk_footprint(shape, RecomputePlan(()), True, True)
    scalars = 16
    assert predicted.kept == pytest.approx(kept, rel=0, abs=scalars)
    assert predicted.forward.num_bytes == pytest.approx(forward, rel=PEAK_TOLERANCE)


def test_all_to_alls_are_in_deepseeks_list() -> None:
    """Both of a layer are kept, of which Qwen3's list has neither."""
    shape = replace(shape_of(QWEN3_30B_A3B, TransformerImpl.TORCH), expert_model_parallel_size=4)
    measured = measure_cut(shape, partial(_wrap, setting=SELECTIVE, package="deepseek_v3"))
    both = frozenset({CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL})
    how = replace(HOW, saved_collectives=both)
    plan = chunk_plan(SELECTIVE, shape, shape.model.layer_kinds[:1], how)
    kept = chunk_footprint(shape, plan, False, False).kept
    assert kept == pytest.approx(measured.kept, rel=0, abs=INDICES)
