"""Tiny models and workloads of the Megatron Core backend's tests."""

from typing import Any

from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.job.layout import ParallelLayout
from advisor.models.options import (
    Activation,
    AttentionBackend,
    Normalization,
    PositionEmbedding,
    TokenDispatcher,
)
from advisor.models.spec import ModelSpec
from harness.trial.trial import Backend, Device, Workload

LLAMA = ModelSpec(
    name="llama",
    num_layers=4,
    hidden_size=64,
    ffn_hidden_size=96,
    num_attention_heads=4,
    num_query_groups=2,
    kv_channels=16,
    vocab_size=128,
    max_position_embeddings=64,
    attention_backend=AttentionBackend.FLASH,
)
GPT = ModelSpec(
    name="gpt",
    num_layers=2,
    hidden_size=64,
    ffn_hidden_size=256,
    num_attention_heads=4,
    num_query_groups=4,
    kv_channels=16,
    vocab_size=128,
    max_position_embeddings=64,
    normalization=Normalization.LAYER_NORM,
    activation=Activation.GELU,
    add_bias_linear=True,
    position_embedding_type=PositionEmbedding.LEARNED,
    hidden_dropout=0.1,
    attention_dropout=0.1,
    share_embeddings_and_output_weights=True,
    attention_backend=AttentionBackend.UNFUSED,
)
MOE = replace(
    LLAMA,
    num_layers=2,
    num_moe_experts=4,
    moe_ffn_hidden_size=96,
    moe_router_topk=2,
    moe_aux_loss_coeff=0.01,
    moe_token_dispatcher_type=TokenDispatcher.ALLTOALL,
)


def workload(model: ModelSpec = LLAMA, recompute: str = "none", **changes: Any) -> Workload:
    """Two microbatches of one sequence of 32 tokens on one CPU process."""
    values: dict[str, Any] = {
        "model": model,
        "layout": ParallelLayout(),
        "seq_length": 32,
        "micro_batch_size": 1,
        "global_batch_size": 2,
        "precision": Precision.BF16,
        "recompute": recompute,
        "backend": Backend.MEGATRON_CORE,
        "device": Device.CPU,
    }
    return Workload(**(values | changes))
