"""Where the GPU waits, and why: one step under torch's profiler, next to the advisor's count of the
processor's work.

Cases `rank_…`: stage 0 of Llama 3 70B on 32 GPUs, as rehearsed on 22 November 2026
(results/measured): in FP8 its steps take 10 to 16 % longer than predicted, in bf16 they do not.
Cases `host_…`: the same rank with five layers and sequences of 256 tokens: kernels are so short
that a step's time is the processor's, un-profiled. Cases `native_…`: Llama 3 8B with one sequence
of 2,048 tokens, whose replays cost up to 6 points more than predicted.

Seconds and bytes of a `layer` are of one layer and one microbatch. Those of the GPU come from the
profiled step, which makes the processor slower, kernels hardly; `idle_seconds` are of the step that
was not profiled, less the kernels.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace
from torch.profiler import ProfilerActivity, profile

from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job
from advisor.layers.transformer import transformer_layer
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import replayed_operators
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator
from advisor.time.launches import launches
from advisor.time.passes import chunk_times, layer_work
from harness.backends.jobs import as_run, workload_of_job
from harness.backends.lone_ranks import as_installed, lone_ranks
from harness.backends.megatron_core.installed import has_transformer_engine
from harness.backends.native import host_time
from harness.backends.native.predict import native_shape
from harness.backends.native.step import build_step
from harness.backends.training_rank import torch_device
from harness.measure.session import PhaseTimes
from harness.measure.timing import stopwatch
from harness.measure.training_step import Recorder, Silent
from harness.planner.device import find_machine
from harness.planner.forecast import predict
from harness.rehearsal.prediction import Copies, rank_seconds
from harness.rehearsal.trials import evaluator_here, parse_asked, workload_of
from harness.trial.trial import Backend, Device, Workload
from research.kernels import trace
from research.probes.probe_case import Case, Figures

_H200: Final = "NVIDIA H200"
_CALIBRATED: Final = Path(__file__).parents[2] / "results" / "measured" / "h200" / "calibrated"
_STAGE: Final = 0
_SEED: Final = 1234
_WARM_UP, _TIMED = 2, 3
_ADDS: Final = 500  # CUDA queues about 1,000 kernels ahead
_EXPANDABLE: Final = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
_RANK: Final = "model=llama3_70b gpus=32xH100 layout=tp4_pp4_vpp5 job.global_batch_size=16"
_SHORT: Final = f"{_RANK} model.num_layers=20 job.seq_length=256"
_FP8: Final = "job.precision=fp8_current job.cuda_graph_impl=none job.fp8_param_gather=false"
_NATIVE: Final = (
    "model=llama3_8b gpus=1xH200 layout=tp1 model.transformer_impl=local"
    " model.attention_backend=flash job.seq_length=2048 job.micro_batch_size=1"
    " job.global_batch_size=1 job.precision=bf16"
)
_SMALL: Final = (
    "model.num_layers=4 model.hidden_size=64 model.ffn_hidden_size=128 model.vocab_size=512"
    " model.num_attention_heads=4 model.num_query_groups=2 model.kv_channels=16 job.seq_length=64"
)
_TINY_RANK: Final = (
    f"model=llama3_8b gpus=8xH100 layout=tp2_pp2_vpp2 {_SMALL}"
    " job.micro_batch_size=1 job.global_batch_size=8"
)

Step = Callable[[Recorder], object]


def cases(tiny: bool) -> tuple[Case, ...]:
    """In the order of what they tell per second."""
    if tiny:
        return (
            _case("rank", _TINY_RANK, "full:uniform:1", Backend.REHEARSAL, Device.CPU),
            _case("native", f"{_NATIVE} {_SMALL}", "selective:mlp", Backend.NATIVE, Device.CPU),
        )
    return tuple(
        _case(name, words, recompute, backend, Device.CUDA)
        for name, words, recompute, backend in (
            ("host_fp8_none", f"{_SHORT} {_FP8}", "none", Backend.REHEARSAL),
            ("host_bf16_none", _SHORT, "none", Backend.REHEARSAL),
            ("rank_fp8_none", f"{_RANK} {_FP8}", "none", Backend.REHEARSAL),
            ("native_full", _NATIVE, "full:uniform:1", Backend.NATIVE),
            ("native_none", _NATIVE, "none", Backend.NATIVE),
            ("rank_fp8_core_attn", f"{_RANK} {_FP8}", "selective:core_attn", Backend.REHEARSAL),
            ("host_fp8_core_attn", f"{_SHORT} {_FP8}", "selective:core_attn", Backend.REHEARSAL),
            ("host_fp8_full", f"{_SHORT} {_FP8}", "full:uniform:1", Backend.REHEARSAL),
            ("rank_fp8_full", f"{_RANK} {_FP8}", "full:uniform:1", Backend.REHEARSAL),
            ("rank_bf16_none", _RANK, "none", Backend.REHEARSAL),
            ("host_bf16_full", _SHORT, "full:uniform:1", Backend.REHEARSAL),
        )
    )


def _case(name: str, words: str, recompute: str, backend: Backend, device: Device) -> Case:
    asked = Asked(words=words, recompute=recompute, backend=backend, device=device)
    return Case(
        name=name,
        why=f"{recompute} of {words}",
        predict=partial(_predict, asked),
        measure=partial(_measure, asked),
        variables=_EXPANDABLE,
    )


class Asked(Struct, frozen=True, kw_only=True):
    """What a case runs: a rehearsal's words, and on what."""

    words: str
    recompute: str
    backend: Backend
    device: Device


def _workload(asked: Asked) -> tuple[Job, Workload]:
    """The job as it is run, and what is run of it."""
    resolution = resolve(parse_asked(asked.words.split()).request)
    assert resolution.layout is not None
    job, spec = resolution.job(resolution.layout), asked.recompute
    if asked.backend is Backend.NATIVE:
        workload = workload_of_job(job, spec, asked.backend, asked.device)
    else:
        job, _ = as_installed(job)
        workload = workload_of(job, spec, asked.device)
    return as_run(job, workload), workload


def _predict(asked: Asked) -> Figures:
    """On the GPU that is at hand, or an H200, whatever runs it."""
    job, workload = _workload(replace(asked, device=Device.CUDA))
    (name, *_) = (*find_machine().gpu_names, _H200)
    if asked.backend is Backend.NATIVE:
        return _predict_native(job, workload, name)
    here = evaluator_here(job, name, None)
    assert here is not None
    return _predict_rank(here, asked.recompute)


def _predict_rank(here: Evaluator, recompute: str) -> Figures:
    """Of every layer the first one's replay; communication is copies, as in a rehearsal."""
    job, shape = here.job, here.shape
    setting = parts_of(job.config.framework).settings.parse(recompute)
    machine, network = here.rates
    machine = replace(machine, hidden_fraction=0.0)
    copies = Copies(**asdict(network), memory_bytes_per_second=machine.memory_bytes_per_second)
    plans = [here.plan(setting, chunk.layers) for chunk in here.stages[_STAGE]]
    kind, host = job.model.layer_kinds[0], machine.host
    assert host is not None
    layer = layer_work(shape, machine, copies, kind, host)
    operators = transformer_layer(shape, kind)
    again = replayed_operators(operators, plans[0].segments[0].replay)
    passes = {
        "forward": (layer.there, operators),
        "backward": (layer.back, operators),
        "replay": (tuple(layer.forward[one.name] for one in again), again),
    }
    found: dict[str, Any] = {}
    for phase, (works, of) in passes.items():
        calls = [launches(one, shape, backward=phase == "backward").calls for one in of]
        found[f"{phase}_layer_host_seconds"] = sum(one.host for one in works)
        found[f"{phase}_layer_kernel_seconds"] = sum(one.device for one in works)
        found[f"{phase}_layer_calls"] = sum(calls)
    step = rank_seconds(here, recompute, _STAGE)
    waits = sum(chunk_times(shape, machine, copies, plan).host for plan in plans)
    idle = waits * job.num_microbatches
    return found | {"step_seconds": step, "idle_seconds": idle, "gpu_busy_seconds": step - idle}


def _predict_native(job: Job, workload: Workload, gpu_name: str) -> Figures:
    """By the calibration that was measured on an H200."""
    gpu = load_gpu(gpu_name, _CALIBRATED)
    calibration = load_calibration(gpu, _CALIBRATED)
    evaluator = Evaluator(replace(job, gpu=gpu), calibration)
    setting = parts_of(job.config.framework).settings.parse(workload.recompute)
    step = predict(workload, evaluator.evaluate(setting).simulated).step_time_seconds
    idle = host_time.waiting_seconds(workload, gpu, calibration)
    calls = host_time.layer_calls(native_shape(workload), workload.model.layer_kinds[0])
    a_call = calibration.host_native_call_seconds
    return {
        "step_seconds": step,
        "idle_seconds": idle,
        "gpu_busy_seconds": None if step is None else step - idle,
        "forward_layer_host_seconds": calls.forward * a_call,
        "backward_layer_host_seconds": calls.backward * a_call,
    }


def _measure(asked: Asked) -> Figures:
    _, workload = _workload(asked)
    model, layout = workload.model, workload.layout
    engine = model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
    needed = engine and asked.device is Device.CUDA and asked.backend is Backend.REHEARSAL
    if needed and not has_transformer_engine():
        raise UserError("transformer_engine", "(none)", "is missing")
    layers = model.num_layers // layout.pipeline_model_parallel_size
    passes = layers * workload.num_microbatches
    if asked.backend is Backend.NATIVE:
        step = build_step(workload, _SEED)
        return _watched(step.run, [step.model], asked.device, passes)
    with _rank(workload) as (run, chunks):
        return _watched(run, chunks, asked.device, passes)


@contextmanager
def _rank(workload: Workload) -> Iterator[tuple[Step, list[Any]]]:
    """One step of a rank and its model chunks, in the world of harness rehearse (rank.py)."""
    case = lone_ranks(workload).case
    rank: Any = import_module("harness.backends.megatron_core.rehearsal.rank")
    with ExitStack() as stack:
        stack.enter_context(rank.device_patches(workload.device))
        stack.enter_context(rank.fake_world(case, case.rank_of_stage(_STAGE)))
        stack.enter_context(rank.received_noise())
        stack.enter_context(rank.own_part())
        torch.manual_seed(_SEED)
        rank.model_parallel_cuda_manual_seed(_SEED)
        config = rank.transformer_config(case)
        training = rank.MegatronTraining(case, config, rank.SdpaAttention)
        where = torch_device(workload.device)
        batches = rank.Microbatches(case, workload.model.vocab_size, _SEED, where)
        yield partial(rank._step, training, batches), training.model
        training.close()


def _watched(run: Step, roots: list[Any], device: Device, passes: int) -> Figures:
    """Timed steps, one with marks at its phases, one under the profiler. passes: of a layer. Where
    the processor is far ahead it is stopped until the GPU follows: that is in its seconds too."""
    for _ in range(_WARM_UP):
        run(Silent())
    watch = stopwatch(device)
    watch.mark()
    for _ in range(_TIMED):
        run(Silent())
        watch.mark()
    laps = watch.laps()
    recorder = PhaseTimes(stopwatch(device))
    run(recorder)
    phases = recorder.ended()
    found = {
        "step_seconds": median(laps),
        "laps": laps,
        "layer_passes": passes,
        "add_host_seconds": _add_seconds(device),
        "phase_times": to_builtins(phases),
    }
    for one in phases:  # a backward's are without replays only where the backend tells of these
        found[f"{one.phase}_layer_host_seconds"] = one.host_seconds / passes
    print(json.dumps(found), file=sys.stderr)
    try:
        return found | _profiled(run, roots, device, passes, median(laps))
    except Exception:  # what was measured before must not be lost for it
        return found | {"profile_failed": traceback.format_exc()[-2000:]}


def _add_seconds(device: Device) -> float:
    """The processor's time for the shortest operation: how fast it is."""
    number = torch.zeros(1, device=torch_device(device))
    began = time.perf_counter()
    for _ in range(_ADDS):
        number.add_(1)
    return (time.perf_counter() - began) / _ADDS


def _profiled(
    run: Step, roots: list[Any], device: Device, passes: int, step_seconds: float
) -> dict[str, Any]:
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device is Device.CUDA else []
    watch = stopwatch(device)
    with trace.ranges(roots), profile(activities=activities) as profiler:
        watch.mark()
        run(Silent())
        watch.mark()
        (profiled,) = watch.laps()
    began = time.monotonic()
    assert profiler.profiler is not None
    found = trace.figures(*trace.spans(profiler.profiler.kineto_results))
    if device is Device.CUDA and not found["kernels"]:
        raise UserError("profiler", "(none)", "saw no kernel")
    for phase, of in found["phases"].items():
        found[f"{phase}_layer_kernel_seconds"] = of["kernel_seconds"] / passes
        found[f"{phase}_layer_calls"] = of["kernels"] / passes
    return found | {
        "profiled_step_seconds": profiled,
        "idle_seconds": step_seconds - found["gpu_busy_seconds"],
        "reduction_seconds": round(time.monotonic() - began, 2),
    }
