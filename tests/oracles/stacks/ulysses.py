"""DeepSpeed's Ulysses around the attention of transformers, on one of several ranks that are not
there."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from deepspeed.runtime.sequence_parallel import ulysses_sp
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from advisor.layers.shape import RankShape


class _Exchange(torch.autograd.Function):
    """As deepspeed::dim_zero_all_to_all allocates."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(gradients[0].contiguous())


@contextmanager
def exchanged_heads(shape: RankShape) -> Iterator[None]:
    """Within it transformers' SDPA is that of one of the shape's context-parallel ranks."""
    ranks, model = shape.context_parallel_size, shape.model
    group = SimpleNamespace(group_name="sp")
    fakes = SimpleNamespace(
        get_world_size=lambda _=None: ranks,
        get_rank=lambda _=None: 0,
        all_gather=lambda *_, **__: None,
        ProcessGroup=object,
    )
    with ExitStack() as stack:
        stack.enter_context(patch.object(ulysses_sp, "dist", fakes))
        stack.enter_context(patch.object(ulysses_sp, "register_all_to_all_group", lambda _: None))
        exchange = lambda _, tensor: _Exchange.apply(tensor.contiguous())  # noqa: E731
        stack.enter_context(patch.object(ulysses_sp, "_dim_zero_all_to_all", exchange))
        attention = ulysses_sp.UlyssesSPAttentionHF(
            attn=sdpa_attention_forward,
            batch_size=shape.micro_batch_size,
            attn_head_count=model.num_attention_heads,
            attn_head_size=model.kv_channels,
            kv_head_count=model.num_query_groups,
            num_hidden_layers=1,
            process_group=group,
            local_seq_length=shape.local_seq,
            global_seq_length=shape.seq_length,
        )
        positions = torch.empty(shape.micro_batch_size, shape.local_seq, dtype=torch.int32)

        def called(module: Any, *tensors: Any, **named: Any) -> Any:
            return attention(module, *tensors[:3], None, **{**named, "position_ids": positions})

        stack.enter_context(patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, sdpa=called))
        yield
