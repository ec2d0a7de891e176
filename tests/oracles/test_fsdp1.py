"""Peak of a step of transformers' Llama under FSDP1 against torch's own code.

It cannot run on fake tensors: a small model on real ones, on one of eight ranks that do not exist.
"""

from functools import partial

import pytest
from msgspec.structs import replace

pytest.importorskip("transformers")
pytest.importorskip("tyro")  # for the other stacks next to it

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.testing._internal.distributed.fake_pg import FakeStore

from advisor.base.dtypes import DType
from advisor.frameworks.torch.parameter_groups import Sharding
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import FULL, NONE
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl

from .recorded import measured
from .stacks.fsdp import RANKS, Step, assert_near, backward, llama, loss_inside, predicted_step
from .stacks.kernels import GpuKernels, NoProducts
from .stacks.meter import LiveBytes
from .stacks.shapes import LLAMA3_8B, shape_of

LAYERS = 3
TOLERANCE = 0.005
SMALL = replace(
    LLAMA3_8B,
    num_layers=LAYERS,
    hidden_size=512,
    ffn_hidden_size=1792,
    num_attention_heads=4,
    num_query_groups=1,
    gradient_accumulation_fusion=False,
)


def _live(shape: RankShape, reduce_dtype: torch.dtype, checkpointed: bool) -> tuple[int, int]:
    """Highest peaks of either pass in some steps, gradients that are there at the start included:
    FSDP1 keeps those of the step before until its forward begins."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        model = llama(shape, checkpointed=checkpointed)
        mixed = MixedPrecision(torch.bfloat16, reduce_dtype, torch.bfloat16)
        policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
        wrapped = FullyShardedDataParallel(
            model,
            auto_wrap_policy=policy,
            mixed_precision=mixed,
            use_orig_params=True,
            device_id=torch.device("cpu"),
        )
        size = shape.micro_batch_size, shape.seq_length
        tokens, labels = (torch.zeros(size, dtype=torch.int64) for _ in range(2))
        forward = after = 0
        known = (*wrapped.parameters(), tokens, labels)
        with GpuKernels(), NoProducts(), LiveBytes(known) as live:
            for _ in range(4):
                live.reset_peak()
                loss = loss_inside(wrapped, tokens, labels)
                forward = max(forward, live.peak)
                live.reset_peak()
                backward(loss)
                after = max(after, live.peak)
                wrapped.zero_grad()
                del loss
        return forward, after
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("reduce_dtype", [DType.BF16, DType.FP32])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["none", "full"])
@pytest.mark.parametrize("vocabulary", [512, 16000])
def test_peak_of_a_step(vocabulary: int, checkpointed: bool, reduce_dtype: DType) -> None:
    model = replace(SMALL, vocab_size=vocabulary)
    shape = shape_of(model, TransformerImpl.TRANSFORMERS, seq=256)
    sharding = Sharding(ranks=RANKS, flat=True, reduce_dtype=reduce_dtype)
    plan = chunk_plan(
        FULL if checkpointed else NONE, shape, (DENSE,) * LAYERS, Semantics(starts_with_first=True)
    )
    dtype = torch.bfloat16 if reduce_dtype is DType.BF16 else torch.float32
    step = measured(
        "fsdp1_step",
        shape,
        reduce_dtype,
        checkpointed,
        by=lambda: _live(shape, dtype, checkpointed),
    )
    assert_near(predicted_step(shape, plan, sharding), Step(*step), TOLERANCE)
