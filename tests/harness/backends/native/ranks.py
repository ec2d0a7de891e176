"""One of two processes: runs every parallel case in turn and prints what it saw.

``python ranks.py`` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from msgspec import Struct
from msgspec.structs import replace

from advisor.base.record import as_dict

sys.path.insert(0, str(Path(__file__).parent))
from cases import EXPERTS, GPT, LLAMA, Phases, workload

from advisor.job.layout import ParallelLayout
from harness.backends.native.step import NativeStep, build_step
from harness.trial.trial import Workload

SEED = 7
STEPS = 2
TP = ParallelLayout(tensor_model_parallel_size=2)
TP_SP = ParallelLayout(tensor_model_parallel_size=2, sequence_parallel=True)
FSDP = ParallelLayout(data_parallel_size=2)
DATA = ParallelLayout(data_parallel_size=2, use_distributed_optimizer=False)
PIPELINE = ParallelLayout(pipeline_model_parallel_size=2)
TIED = replace(GPT, hidden_dropout=0.0, attention_dropout=0.0)
UNTIED = replace(TIED, share_embeddings_and_output_weights=False)
HEAD_NORMS = replace(LLAMA, qk_layernorm=True)
ALL_SELECTIVE = "selective:core_attn,mlp,layernorm"

CASES: dict[str, Workload] = {
    f"{name}-{model.name}-{setting}": workload(model, setting, layout=layout)
    for name, layout, model, setting in (
        ("tp", TP, HEAD_NORMS, "none"),
        ("tp", TP, TIED, "none"),
        ("tp", TP, LLAMA, ALL_SELECTIVE),
        ("sp", TP_SP, HEAD_NORMS, "none"),
        ("sp", TP_SP, TIED, "none"),
        ("sp", TP_SP, LLAMA, ALL_SELECTIVE),
        ("sp", TP_SP, LLAMA, "full:uniform:2"),
        ("fsdp", FSDP, LLAMA, "none"),
        ("fsdp", FSDP, UNTIED, "none"),
        ("fsdp", FSDP, LLAMA, ALL_SELECTIVE),
        ("fsdp", FSDP, LLAMA, "full:uniform:1"),
        ("fsdp", FSDP, LLAMA, "op:torchtitan"),
        ("fsdp", FSDP, EXPERTS, "selective:moe_act,layernorm"),
        ("data", DATA, TIED, "none"),
        ("pipeline", PIPELINE, UNTIED, "none"),
        ("pipeline", PIPELINE, LLAMA, "full:uniform:1"),
        ("pipeline", PIPELINE, LLAMA, "selective:mlp+offload=core_attn"),
        ("pipeline", PIPELINE, EXPERTS, "selective:moe"),
    )
}
"""Workloads whose losses and gradients must be those of one process."""


class Outcome(Struct, frozen=True, kw_only=True):
    """Of one case on one rank: losses in fp32, the phases of a step, what was counted in bf16.
    gradients: squared norm of each parameter's gradient in fp32; `cut` names those of which this
    rank has a part."""

    losses: list[float]
    phases: list[str]
    gradients: dict[str, float]
    cut: list[str]
    saved_bytes_per_layer: int = 0
    replayed_flops_per_layer: int | None = None


def exact(one: Workload) -> Outcome:
    """Gradients, then the losses of a few steps, in fp32."""
    step = build_step(one, SEED, dtype=torch.float32)
    step.forward_backward(Phases())
    step.optimizer.sum_gradients()
    gradients = {name: _square(p.grad) for name, p in step.model.named_parameters()}
    step.optimizer.drop_gradients()
    recorder = Phases()
    losses = [step.run(recorder if number == 0 else Phases()) for number in range(STEPS)]
    return Outcome(
        losses=losses,
        phases=[str(phase) for phase in recorder.seen],
        gradients=gradients,
        cut=_cut(step),
    )


def _square(grad: Any) -> float:
    whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
    return float(whole.double().square().sum())


def _cut(step: NativeStep) -> list[str]:
    if step.workload.layout.tensor_model_parallel_size == 1:
        return []
    return [
        f"{path}.{name}"
        for path, module in step.model.named_modules()
        for name in cast(dict[str, object], getattr(module, "shards", {}))
    ]


def run_all() -> dict[str, dict[str, Any]]:
    """What all cases gave here; stops at the first that fails."""
    dist.init_process_group("gloo")
    outcomes: dict[str, dict[str, Any]] = {}
    try:
        for name, one in CASES.items():
            counted = build_step(one, SEED)
            outcomes[name] = as_dict(
                replace(
                    exact(one),
                    saved_bytes_per_layer=counted.saved_bytes_per_layer(),
                    replayed_flops_per_layer=counted.flops().replayed_per_layer,
                )
            )
    except Exception:
        traceback.print_exc()
    dist.destroy_process_group()
    return outcomes


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(run_all()), flush=True)
    os._exit(0)  # a group of which one rank has failed may wait for ever
