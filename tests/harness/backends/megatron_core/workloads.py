"""Tiny models and workloads of the Megatron Core backend's tests."""

from typing import Any

from msgspec.structs import replace

from advisor.models.options import AttentionBackend, TokenDispatcher
from advisor.models.spec import ModelSpec
from harness.trial.trial import Backend, Workload
from tests.harness.backends.native import cases

LLAMA = replace(cases.LLAMA, num_layers=4, vocab_size=128, attention_backend=AttentionBackend.FLASH)
GPT = replace(cases.GPT, vocab_size=128, attention_backend=AttentionBackend.UNFUSED)
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
    batch = {"micro_batch_size": 1, "global_batch_size": 2, "backend": Backend.MEGATRON_CORE}
    return cases.workload(model, recompute, **(batch | changes))
