"""Does a step run that is said to fit, and does one run out that is said not to fit?

Plain torch layers (the native backend), near the memory that the process may take: that of an H100
or all of an H200. Each case takes three steps, the optimizer's states made in the first.
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Final

import torch
from msgspec import Struct

from advisor.base.units import parse_gpus
from advisor.hardware.catalogue import load_gpu
from harness.backends.native.step import build_step
from harness.measure.memory import CudaAllocator, cap_memory
from harness.measure.training_step import Silent
from harness.planner.device import Machine
from harness.planner.planning import make_plan
from harness.planner.run_request import compose
from harness.trial.trial import Device, Prediction, Trial
from research.probes.probe_case import Case, Figures

_STEPS: Final = 3
_PLAIN: Final = {"model.transformer_impl": "local", "model.attention_backend": "flash"}
_ONE_GPU: Final = {
    "layout.tensor_model_parallel_size": 1,
    "layout.sequence_parallel": "false",
    "job.precision": "bf16",
}


class Family(Struct, frozen=True):
    """Jobs that differ in depth and setting. settings: by number of layers, those said to fit and
    those said to run out, for segments that expand and for those that do not."""

    name: str
    experiment: str
    gpus: str
    seq_length: int
    micro_batch_size: int
    expands: Mapping[int, tuple[str, ...]] = {}
    fixed: Mapping[int, tuple[str, ...]] = {}
    more: Mapping[str, Any] = {}


_FULL: Final = "full:uniform:1"
_MLP, _NORMS, _ATTENTION, _MOE = (
    "selective:mlp",
    "selective:layernorm",
    "selective:core_attn",
    "selective:moe",
)
FAMILIES: Final = (
    Family(
        *("llama_s2048_b1", "llama3_8b_1xh200", "1xH100", 2048, 1),
        expands={16: ("none",), 17: (_FULL, _NORMS), 18: (_FULL, "none"), 19: (_MLP,)},
        fixed={16: ("none",), 17: (_MLP,), 18: ("none",)},
    ),
    Family(
        *("llama_s8192_b1", "llama3_8b_1xh200", "1xH100", 8192, 1),
        expands={12: ("none",), 14: (_MLP, _NORMS), 16: (_FULL, _MLP), 18: (_FULL,)},
        fixed={12: ("none",), 14: (_MLP, _NORMS), 15: (_FULL,), 16: (_MLP,)},
    ),
    Family(
        *("llama_s2048_b4", "llama3_8b_1xh200", "1xH100", 2048, 4),
        expands={12: (_ATTENTION,), 13: (_NORMS,), 14: (_MLP,), 16: (_FULL,), 18: (_FULL,)},
        fixed={12: (_NORMS,), 18: (_FULL,)},
    ),
    Family(
        *("llama_s16384_b1", "llama3_8b_1xh200", "1xH100", 16384, 1),
        expands={9: (_NORMS,), 10: (_NORMS,), 11: (_MLP,), 14: (_FULL,)},
        fixed={8: ("none",)},
    ),
    Family(
        *("llama_1b_s4096_b8", "llama3.2_1b_1xh100", "1xH100", 4096, 8),
        expands={14: ("none",), 16: ("none",)},
        fixed={12: ("none",), 16: (_NORMS,)},
    ),
    Family(
        *("gpt_s2048_b4", "gpt3_22b_8xa100", "1xH100", 2048, 4),
        expands={8: ("none",), 9: (_NORMS,), 10: (_FULL,)},
        fixed={8: (_ATTENTION,)},
        more=_ONE_GPU,
    ),
    Family(
        *("mixtral_s4096_b1", "mixtral_8x7b_1xh200", "1xH100", 4096, 1),
        expands={3: ("none", _FULL)},
        fixed={3: (_MOE,)},
    ),
)


def cases(tiny: bool) -> tuple[Case, ...]:
    """One a setting; tiny: one step of a small model, whose verdict is not asked."""
    if tiny:
        small = {"device": "cpu", "job.seq_length": 64}
        words = tuple(f"{key}={value}" for key, value in small.items())
        return (_case("tiny", ("experiment=tiny_cpu", "recompute.settings=[none]", *words), {}),)
    return tuple(_of(family, *one) for family in FAMILIES for one in _asked(family))


def _asked(family: Family) -> tuple[tuple[bool, int, str], ...]:
    """Expandable segments, layers, setting."""
    return tuple(
        (expands, layers, setting)
        for expands, chosen in ((True, family.expands), (False, family.fixed))
        for layers, settings in chosen.items()
        for setting in settings
    )


def _of(family: Family, expands: bool, layers: int, setting: str) -> Case:
    values = {
        "experiment": family.experiment,
        "gpus": family.gpus,
        "recompute.settings": f"[{setting}]",
        "model.num_layers": layers,
        "job.seq_length": family.seq_length,
        "job.micro_batch_size": family.micro_batch_size,
        "job.global_batch_size": family.micro_batch_size,
        "job.expandable_segments": str(expands).lower(),
        **_PLAIN,
        **family.more,
    }
    words = tuple(f"{key}={value}" for key, value in values.items())
    name = f"{family.name}_l{layers}_{setting.replace(':', '_')}{'' if expands else '_fixed'}"
    variables = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if expands else {}
    return _case(name, words, variables)


def _case(name: str, words: tuple[str, ...], variables: Mapping[str, str]) -> Case:
    return Case(
        name=name,
        why="a step near the limit of memory",
        predict=partial(_predicted, words),
        measure=partial(_measured, words),
        variables=variables,
        seconds=60.0,
        timed=False,
    )


class Planned(Struct, frozen=True):
    """What `harness run` would plan, and the memory of the GPU that it is planned for."""

    trial: Trial
    limit_bytes: int | None


@cache
def _planned(words: tuple[str, ...]) -> Planned:
    """The one trial of a request, on one of the GPUs that it names."""
    config = compose(words, None)
    if config.device == Device.CPU:
        return Planned(make_plan(config, Machine(device=Device.CPU)).settings[0].trial, None)
    gpu = load_gpu(parse_gpus(config.gpus or "")[1])
    plan = make_plan(config, Machine(device=Device.CUDA, gpu_names=(gpu.name,)))
    return Planned(plan.settings[0].trial, gpu.memory_bytes)


def _predicted(words: tuple[str, ...]) -> Figures:
    planned = _planned(words)
    found = planned.trial.prediction or Prediction()
    return {
        "fit_probability": found.fit_probability,
        "limit_bytes": planned.limit_bytes,
        "allocated_bytes": found.peak_allocated_bytes,
        "used_bytes": found.peak_reserved_bytes,
    }


def _measured(words: tuple[str, ...]) -> Figures:
    """Peaks of the steps, and what the driver calls used."""
    planned = _planned(words)
    workload, seed = planned.trial.workload, planned.trial.measurement.seed
    if workload.device is Device.CPU:
        step = build_step(workload, seed)
        return {"losses": [step.run(Silent()) for _ in range(_STEPS)]}
    cap_memory(planned.limit_bytes)
    allocator = CudaAllocator()
    step = build_step(workload, seed)
    losses = [step.run(Silent()) for _ in range(_STEPS)]
    torch.cuda.synchronize()
    free, here = torch.cuda.mem_get_info()
    peaks = {f"{kind}_bytes": value for kind, value in allocator.peaks().items()}
    return {"losses": losses, **peaks, "used_bytes": here - free}
