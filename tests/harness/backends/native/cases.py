"""Tiny models and workloads of the native backend's tests."""

from typing import Any

from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from harness.trial.result import Phase
from harness.trial.trial import Backend, Device, Workload
from tests.advisor.toys import AS_GPT, toy_model

LLAMA = toy_model(2, 64, 96, 4, 2, name="llama", vocab_size=256, max_position_embeddings=64)
GPT = toy_model(
    *(2, 64, 256, 4, 4),
    name="gpt",
    vocab_size=256,
    max_position_embeddings=64,
    **AS_GPT,
    attention_dropout=0.1,
    share_embeddings_and_output_weights=True,
)
EXPERTS = replace(
    LLAMA, name="experts", num_moe_experts=4, moe_ffn_hidden_size=48, moe_aux_loss_coeff=0.01
)


def workload(model: ModelSpec, recompute: str = "none", **changes: Any) -> Workload:
    """Two microbatches of two sequences of 32 tokens on one CPU process."""
    values: dict[str, Any] = {
        "model": model,
        "layout": ParallelLayout(),
        "seq_length": 32,
        "micro_batch_size": 2,
        "global_batch_size": 4,
        "precision": Precision.BF16,
        "recompute": recompute,
        "backend": Backend.NATIVE,
        "device": Device.CPU,
    }
    return Workload(**(values | changes))


class Phases:
    """Recorder that lists the phases it is told."""

    def __init__(self) -> None:
        self.seen: list[Phase] = []

    def phase(self, phase: Phase) -> None:
        self.seen.append(phase)

    def replay(self, begins: bool) -> None:
        self.seen.append(Phase.REPLAY if begins else Phase.BACKWARD)
