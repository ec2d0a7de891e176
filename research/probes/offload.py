"""What offload takes off a GPU, what then waits on the host, and what of it stays visible in time:
real Megatron Core, one rank alone as `harness rehearse` runs it, without and with, one after the
other in one process. Two kinds: activations (fine-grained offload, cpu_offloading; both need
Transformer Engine), and the optimizer (HybridDeviceOptimizer; of 0.16.1 the precision-aware one
needs it too, as OptimizerConfig asks for its release).
"""

import json
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Any, Final

import torch
from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.megatron.raw import setting_values
from advisor.frameworks.megatron.setting import parse_setting
from advisor.hardware.calibration import load_calibration
from advisor.job.job import Job
from advisor.memory.chunk_units import bytes_on_host
from advisor.request.layout_fields import reshaped
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator
from harness.backends.jobs import as_run
from harness.backends.lone_ranks import as_installed, check, lone_ranks, require
from harness.backends.megatron_core.installed import has_transformer_engine
from harness.rehearsal.prediction import predicted_stages, rank_seconds, reserved_alone
from harness.rehearsal.trials import parse_asked, workload_of
from harness.trial.result import Phase
from harness.trial.trial import Device, MeasurementPlan, Workload
from research.probes.host import Watch
from research.probes.probe_case import Case, Figures, so_far

_STEPS: Final = 2
_FIRST: Final = 0  # the stage whose first rank runs


class OffloadJob(Struct, frozen=True, kw_only=True):
    """words: the job, as `harness rehearse` takes it. optimizer: fields of JobConfig, which are
    Megatron's options by the same names. variables: of the environment."""

    name: str
    words: str
    recompute: str = "none"
    optimizer: Mapping[str, Any] = {}
    variables: Mapping[str, str] = {}


_FP32: Final = (
    "job.expandable_segments=true job.main_grads_dtype=fp32 job.micro_batch_size=1 job.seq_length"
)
_ALLOCATOR: Final = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
_LLAMA: Final = f"model=llama3_8b gpus=1xH200 layout=tp1 {_FP32}=8192"
_8B: Final = f"{_LLAMA} model.num_layers=8 job.global_batch_size=2"
_8B_OPTIMIZER: Final = f"{_LLAMA} model.num_layers=4 job.global_batch_size=1"
_70B: Final = (
    f"model=llama3_70b gpus=32xH200 layout=tp4_pp4_sp model.num_layers=32 {_FP32}=8192 "
    "job.global_batch_size=12"
)
_QWEN: Final = (
    f"model=qwen3_30b_a3b gpus=8xH200 layout=tp1_ep8 model.num_layers=8 {_FP32}=8192 "
    "job.global_batch_size=16"
)
_TINY: Final = (
    "model=llama3_8b layout=tp1 job.main_grads_dtype=fp32 job.micro_batch_size=1 "
    "model.num_layers=3 model.num_attention_heads=8 model.num_query_groups=8 "
    "model.ffn_hidden_size=256 model.vocab_size=512"
)
_TINY_OPTIMIZER: Final = (
    f"{_TINY} gpus=2xH200 model.hidden_size=128 job.seq_length=128 job.global_batch_size=2"
)
_TINY_ACTIVATIONS: Final = (
    f"{_TINY} gpus=1xH200 model.hidden_size=256 job.seq_length=1024 job.global_batch_size=1"
)

_V1: Final = {"NVTE_CPU_OFFLOAD_V1": "1"}  # as `advise` writes it next to offload_modules


def _activations(name: str, words: str, recompute: str, **variables: str) -> OffloadJob:
    return OffloadJob(name=name, words=words, recompute=recompute, variables=variables)


def _optimizer(name: str, words: str, fraction: float, **more: bool) -> OffloadJob:
    said = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": fraction, **more}
    return OffloadJob(name=name, words=words, optimizer=said)


_AWARE: Final = {"use_precision_aware_optimizer": True}
_OVERLAP: Final = {"overlap_cpu_optimizer_d2h_h2d": True}
_JOBS: Final = (
    _optimizer("8b_optimizer_half", _8B_OPTIMIZER, 0.5),
    _optimizer("8b_optimizer_all_aware", _8B_OPTIMIZER, 1.0, **_AWARE),
    _activations("8b_attention", _8B, "none+offload=core_attn,attn_proj", **_V1),
    _activations("8b_qkv", _8B, "none+offload=qkv_linear", **_V1),
    _activations("qwen_experts", _QWEN, "none+offload=expert_fc1,moe_act", **_V1),
    _activations("70b_attention", _70B, "none+offload=core_attn,attn_proj", **_V1),
    _optimizer("70b_optimizer_half_aware", _70B, 0.5, **_AWARE, **_OVERLAP),
    _optimizer("8b_optimizer_all", _8B_OPTIMIZER, 1.0),
    _optimizer("8b_optimizer_all_overlap", _8B_OPTIMIZER, 1.0, **_OVERLAP),
    _optimizer("8b_optimizer_quarter", _8B_OPTIMIZER, 0.25),
    _activations("8b_layers", _8B, "none+cpu_offloading=4"),
    _activations("8b_layers_v1", _8B, "none+cpu_offloading=4", **_V1),
    _optimizer("qwen_optimizer_half_aware", _QWEN, 0.5, **_AWARE),
    _activations("qwen_fc1", _QWEN, "none+offload=expert_fc1", **_V1),
    _activations("qwen_act", _QWEN, "none+offload=moe_act", **_V1),
)
_TINY_JOBS: Final = (
    _optimizer("optimizer_quarter", _TINY_OPTIMIZER, 0.25),
    _optimizer("optimizer_all_overlap", _TINY_OPTIMIZER, 1.0, **_OVERLAP),
    _optimizer("optimizer_half_aware", _TINY_OPTIMIZER, 0.5, **_AWARE),
    _activations("attention", _TINY_ACTIVATIONS, "none+offload=core_attn,attn_proj"),
)
_WHY: Final = "offload to the host is modelled from the sources, and was never run"


def cases(tiny: bool) -> tuple[Case, ...]:
    """The more valuable first."""
    device = Device.CPU if tiny else Device.CUDA
    return tuple(
        Case(
            name=job.name,
            why=_WHY,
            predict=partial(predicted, job, device),
            measure=partial(measured, job, device),
            seconds=150.0,
            variables={**_ALLOCATOR, **job.variables},
        )
        for job in (_TINY_JOBS if tiny else _JOBS)
    )


def _job(words: str) -> Job:
    """As harness.rehearsal.trials.rehearsal_plan takes it."""
    resolution = resolve(parse_asked(words.split()).request)
    named = reshaped(resolution.layout_fields, None, resolution.num_gpus)
    assert named is not None
    job, _ = as_installed(resolution.job(named))
    return job


def _evaluator(job: Job, workload: Workload, optimizer: Mapping[str, Any]) -> Evaluator:
    """Of the rank as it runs; as_run leaves the optimizer on the GPU."""
    run = as_run(job, workload)
    run = replace(run, config=replace(run.config, **optimizer))
    return Evaluator(run, load_calibration(run.gpu))


def predicted(asked: OffloadJob, device: Device) -> Figures:
    """What the advisor says of the rank. moved_bytes: activations to the host, in one step."""
    job = _job(asked.words)
    workload = workload_of(job, "none", device)
    without = _said(_evaluator(job, workload, {}), "none", device)
    away = _said(_evaluator(job, workload, asked.optimizer), asked.recompute, device)
    return away | _differences(without, away)


def _said(evaluator: Evaluator, recompute: str, device: Device) -> dict[str, Any]:
    setting, microbatches = parse_setting(recompute), evaluator.job.num_microbatches
    plans, (chunk,) = evaluator.plans(setting), evaluator.stages[_FIRST]
    plan = evaluator.plan(setting, chunk.layers)
    (peaks,) = predicted_stages(evaluator, recompute, (_FIRST,), device)
    (reserved,) = reserved_alone(evaluator, recompute, (_FIRST,))
    host = evaluator.memory.host_bytes(plans, _FIRST)
    found = {
        "optimizer_bytes": peaks.optimizer,
        "host_bytes": host,
        "moved_bytes": microbatches * bytes_on_host(evaluator.shape, plan),
    }
    if device is Device.CPU:
        return found
    return found | {
        "allocated_bytes": peaks.peak,
        "reserved_bytes": reserved.allocated + reserved.fragmentation,
        "device_used_bytes": reserved.total,
        "optimizer_seconds": evaluator.time.parts(plans)[_FIRST].optimizer,
        "step_seconds": rank_seconds(evaluator, recompute, _FIRST),
    }


def _differences(without: Figures, away: Figures) -> dict[str, Any]:
    """What offload saves and costs, with every figure of `without`."""
    found: dict[str, Any] = {
        "without": dict(without),
        "saved_optimizer_bytes": without["optimizer_bytes"] - away["optimizer_bytes"],
    }
    if "step_seconds" in away and "allocated_bytes" in away:
        found["visible_seconds"] = away["step_seconds"] - without["step_seconds"]
        found["saved_bytes"] = without["allocated_bytes"] - away["allocated_bytes"]
    return found


def measured(asked: OffloadJob, device: Device) -> Figures:
    """Rehearse the rank without offload, then with it."""
    require()
    values = setting_values(parse_setting(asked.recompute))
    activations = values["cpu_offloading"] or values["fine_grained_activation_offloading"]
    needed = activations or asked.optimizer.get("use_precision_aware_optimizer")
    if device is Device.CUDA and needed and not has_transformer_engine():
        raise UserError("--cases", asked.name, "needs Transformer Engine")
    workload = workload_of(_job(asked.words), "none", device)
    without = _rehearsed(workload, {}, device)
    so_far({"without": without})
    try:
        away = _rehearsed(workload, {**values, **asked.optimizer}, device)
    except Exception as error:
        error.add_note(f"{json.dumps(without)}\n{type(error).__name__}: {error}")
        raise
    return away | _differences(without, away)


def _rehearsed(workload: Workload, changes: Mapping[str, Any], device: Device) -> dict[str, Any]:
    """One rank with options changed. pinned_bytes: owned by torch's allocator of pinned memory,
    which rounds each tensor up to a power of two and gives nothing back."""
    ranks, watch = lone_ranks(workload), Watch()
    ranks = replace(ranks, case=check(workload).changed(**changes))
    steps = _STEPS if device is Device.CUDA else 1
    with watch.watching(device):
        found = ranks.rehearse(_FIRST, MeasurementPlan(steps=steps))
    figures = {
        **watch.figures,
        "step_seconds": median(found.seconds),
        "all_seconds": found.seconds,
    }
    if device is Device.CPU:
        return figures
    phases = {f"{one.phase}_phase_seconds": one.seconds for one in found.phases}
    return figures | {
        **phases,
        "optimizer_seconds": phases[f"{Phase.OPTIMIZER}_phase_seconds"],
        "allocated_bytes": found.peaks.peak,
        "forward_bytes": found.peaks.forward,
        "backward_bytes": found.peaks.backward,
        "optimizer_step_bytes": found.peaks.optimizer_step,
        "reserved_bytes": found.peaks.reserved,
        "device_used_bytes": found.peaks.device_used,
        "pinned_bytes": torch.cuda.host_memory_stats().get("allocated_bytes.peak"),
    }
