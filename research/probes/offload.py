"""What offload takes off a GPU, what then waits on the host, and what of it stays visible in time:
real Megatron Core, one rank alone as `harness rehearse` runs it, with and without, one after the
other in one process. Two kinds: activations (fine-grained offload, cpu_offloading; both need
Transformer Engine), and the optimizer (HybridDeviceOptimizer, which does not).

On a CPU, tensors that are pinned or made by `.cpu()` stand for the host, all others for the GPU.
"""

import gc
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from advisor.base.errors import UserError
from advisor.frameworks.megatron.raw import setting_values
from advisor.frameworks.megatron.setting import parse_setting
from advisor.hardware.calibration import load_calibration
from advisor.job.job import Job
from advisor.memory.chunk_units import bytes_on_host
from advisor.request.layout_fields import reshaped
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator
from advisor.time.passes import chunk_times
from harness.backends.jobs import as_run
from harness.backends.lone_ranks import as_installed, check, lone_ranks, require
from harness.backends.megatron_core.installed import has_transformer_engine
from harness.measure.memory import storage_bytes
from harness.rehearsal.prediction import predicted_stages, rank_seconds, reserved_alone
from harness.rehearsal.trials import parse_asked, workload_of
from harness.trial.result import Phase
from harness.trial.trial import Device, MeasurementPlan, Workload
from research.probes.case import Case, Figures

_STEPS: Final = 3
_FIRST: Final = 0  # the stage whose first rank runs


class OffloadJob(Struct, frozen=True, kw_only=True):
    """words: the job, as `harness rehearse` takes it. optimizer: fields of JobConfig, which are
    Megatron's options by the same names. variables: of the environment."""

    name: str
    words: str
    recompute: str = "none"
    optimizer: Mapping[str, Any] = {}
    variables: Mapping[str, str] = {}


_FP32: Final = "job.main_grads_dtype=fp32 job.micro_batch_size=1 job.seq_length"
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
    rates = Case(
        name="host_rates",
        why="the rates that the times of all offload are computed from",
        predict=predicted_rates,
        measure=partial(measured_rates, 2**20 if tiny else 2**28, device),
    )
    jobs = (
        Case(
            name=job.name,
            why=_WHY,
            predict=partial(predicted, job, device),
            measure=partial(measured, job, device),
            seconds=150.0,
            variables=job.variables,
        )
        for job in (_TINY_JOBS if tiny else _JOBS)
    )
    return rates, *jobs


def _job(words: str) -> Job:
    """As harness.rehearsal.trials.rehearsal_plan takes it."""
    resolution = resolve(parse_asked(words.split()).request)
    named = reshaped(resolution.layout_fields, None, resolution.num_gpus)
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
    passes = chunk_times(evaluator.shape, *evaluator.rates, plan)
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
    alone = rank_seconds(evaluator, recompute, _FIRST)
    return found | {
        "allocated_bytes": peaks.peak,
        "reserved_bytes": reserved.total,
        "optimizer_seconds": evaluator.time.parts(plans)[_FIRST].optimizer,
        "step_seconds": alone + microbatches * passes.offload,
    }


def _differences(without: Figures, away: Figures) -> dict[str, Any]:
    """What offload saves and costs; all of `without` beside it."""
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
    layers = values["cpu_offloading"]
    activations = layers or values["fine_grained_activation_offloading"]
    lacks = activations and not has_transformer_engine()
    if lacks and (layers or device is Device.CUDA):
        raise UserError("--cases", asked.name, "needs Transformer Engine")
    workload = workload_of(_job(asked.words), "none", device)
    without = _rehearsed(workload, {}, device)
    away = _rehearsed(workload, {**values, **asked.optimizer}, device)
    return away | _differences(without, away)


def _rehearsed(workload: Workload, changes: Mapping[str, Any], device: Device) -> dict[str, Any]:
    """One rank with options changed. resident_bytes: of the process when its steps are over;
    peak_resident_bytes: so far; pinned_bytes: owned by torch's allocator of pinned memory, which
    rounds each tensor up to a power of two and gives nothing back."""
    ranks, watch, before = lone_ranks(workload), Watch(), _resident_bytes()
    ranks = replace(ranks, case=check(workload).changed(**changes))
    steps = _STEPS if device is Device.CUDA else 1
    with watch.watching(device):
        found = ranks.rehearse(_FIRST, MeasurementPlan(steps=steps))
    figures = {
        **watch.figures,
        "resident_bytes": watch.resident_bytes - before,
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
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
        "pinned_bytes": torch.cuda.host_memory_stats().get("allocated_bytes.peak"),
    }


def _resident_bytes() -> int:
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * resource.getpagesize()


class Watch:
    """What activations a rank's last step moves to the host, and what its optimizer holds where.
    built_bytes: the GPU's peak before the first step."""

    def __init__(self) -> None:
        self.resident_bytes = 0
        self._moved = self._waiting = self._most = self._built = 0
        self._optimizer: dict[str, int] = {}

    @property
    def figures(self) -> dict[str, int]:
        """Bytes, by name; host_bytes: of all tensors that are there at once."""
        host = self._optimizer.pop("host_optimizer_bytes")
        return {
            **self._optimizer,
            "moved_bytes": self._moved,
            "host_bytes": self._most + host,
            "built_bytes": self._built,
        }

    @contextmanager
    def watching(self, device: Device) -> Iterator[None]:
        """Inside, a rank is watched that MegatronTraining steps."""
        from megatron.core.pipeline_parallel import fine_grained_activation_offload as fine

        from harness.backends.megatron_core.trainer import MegatronTraining

        step, close = MegatronTraining.forward_backward, MegatronTraining.close
        handler = fine.ChunkOffloadHandler

        def stepped(training: Any, batches: Any) -> Any:
            if torch.cuda.is_available() and not self._built:
                self._built = torch.cuda.max_memory_allocated()
            self._moved = self._waiting = self._most = 0
            return step(training, batches)

        def closed(training: Any) -> None:
            self._optimizer = _optimizer_figures(training.optimizer)
            self.resident_bytes = _resident_bytes()
            close(training)

        with ExitStack() as stack:
            for one in (
                patch.object(MegatronTraining, "forward_backward", stepped),
                patch.object(MegatronTraining, "close", closed),
                # asks all ranks for their bytes, of which a fake process group has none
                patch.object(fine, "print_offload_summary_table", lambda _: None),
                self._told(handler, "offload", self._leaves, lambda args, state: [state[1]]),
                self._told(handler, "reload", self._returns, lambda args, _: [args[1][1]]),
                *(self._engine() if has_transformer_engine() else ()),
                *(_host_apart() if device is Device.CPU else ()),
            ):
                stack.enter_context(one)
            yield
        fine.PipelineOffloadManager.OFFLOAD_MGR = None  # the next rank begins anew

    def _engine(self) -> Iterator[Any]:
        """Transformer Engine's two ways to offload whole layers."""
        from transformer_engine.pytorch import cpu_offload, cpu_offload_v1

        old, layer = (
            cpu_offload_v1.SynchronizedGroupOffloadHandler,
            cpu_offload.OffloadableLayerState,
        )
        yield self._told(old, "offload", self._leaves, lambda args, state: [state[1]])
        yield self._told(old, "reload", self._returns, lambda args, _: [args[0][1]])
        held: Callable[[Any, Any], Iterable[Tensor]]
        held = lambda args, _: args[0].cpu_tensor_group.tensor_list  # noqa: E731
        yield self._told(layer, "start_offload", self._leaves, held)
        yield self._told(layer, "start_reload", self._returns, held)

    @staticmethod
    def _told(
        holder: Any,
        name: str,
        tell: Callable[[Tensor], None],
        tensors: Callable[[Any, Any], Iterable[Tensor]],
    ) -> Any:
        """Calls `tell` for the host's `tensors` of each call of a function."""
        function = getattr(holder, name)

        def run(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            for tensor in tensors(args, result):
                tell(tensor)
            return result

        return patch.object(holder, name, run)

    def _leaves(self, tensor: Tensor) -> None:
        self._moved += tensor.nbytes
        self._waiting += tensor.nbytes
        self._most = max(self._most, self._waiting)

    def _returns(self, tensor: Tensor) -> None:
        self._waiting -= tensor.nbytes


def _optimizer_figures(optimizer: Any) -> dict[str, int]:
    """optimizer_bytes: main parameters and moments on the GPU. Left out: step counters, 4 bytes
    each. stale: of the HybridDeviceOptimizer of the whole, unsharded parameters that Megatron
    makes first, where no garbage collection has met it yet."""
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    parts = [
        one.optimizer
        for one in getattr(optimizer, "chained_optimizers", [optimizer])
        if one.optimizer
    ]
    here, there = list[Tensor](), list[Tensor]()
    elements = 0
    for part in parts:
        hybrid = type(part) is HybridDeviceOptimizer
        held = [
            p for group in part.param_groups for p in group["params"] if p.dtype is torch.float32
        ]
        for adam in part.sub_optimizers if hybrid else [part]:
            held += [p for group in adam.param_groups for p in group["params"]] if hybrid else []
            states = (value for state in adam.state.values() for value in state.values())
            held += [one for one in states if isinstance(one, Tensor) and one.numel() > 1]
        if hybrid:
            elements += sum(one.numel() for one in part.cpu_copys_map_gpu_param)
            there += part.cpu_copy_map_grad.values()
        here += [one for one in held if not _is_hosts(one)]
        there += [one for one in held if _is_hosts(one)]
    stale = [
        copy
        for one in gc.get_objects()
        if type(one) is HybridDeviceOptimizer and all(one is not part for part in parts)
        for copy in one.param_to_fp32_param.values()
    ]
    return {
        "optimizer_bytes": storage_bytes(here),
        "host_optimizer_bytes": storage_bytes(there),
        "host_elements": elements,
        "stale_bytes": storage_bytes([one for one in stale if not _is_hosts(one)]),
        "stale_host_bytes": storage_bytes([one for one in stale if _is_hosts(one)]),
    }


class HostTensor(Tensor):
    """On a CPU, one that would be on the host of a GPU; what is made of it is, too."""


def _is_hosts(tensor: Tensor) -> bool:
    return isinstance(tensor, HostTensor) or (torch.cuda.is_available() and not tensor.is_cuda)


def _host_apart() -> Iterator[Any]:
    """On a CPU, tensors of the host are told from those that stand for the GPU's."""
    from megatron.core.extensions import transformer_engine as extensions

    from harness.backends.megatron_core import cpu

    is_cuda = Tensor.is_cuda.__get__  # type: ignore[attr-defined]
    replacements: dict[Any, Callable[..., Any]] = {
        **cpu.CudaToCpu.replacements,
        is_cuda: lambda tensor: not isinstance(tensor, HostTensor),
        Tensor.cpu: lambda tensor: tensor.as_subclass(HostTensor),
        Tensor.pin_memory: lambda tensor: tensor,
        Tensor.record_stream: lambda *_: None,
    }

    class Apart(cpu.CudaToCpu):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            result = super().__torch_function__(func, types, args, kwargs)
            pinned = (kwargs or {}).get("pin_memory")
            return result.as_subclass(HostTensor) if pinned else result

    Apart.replacements = replacements
    yield patch.object(cpu, "CudaToCpu", Apart)
    yield patch.object(torch.cuda, "Event", lambda **_: cpu._Stream())
    yield patch.object(torch.cuda, "nvtx", cpu._Stream())
    yield patch.object(extensions, "cpu_offload", SimpleNamespace())


def predicted_rates() -> Figures:
    """Bytes per second of an H200's link and of its host's Adam, 28 for each element."""
    job = _job(_8B_OPTIMIZER)
    machine, _ = Evaluator(job, load_calibration(job.gpu)).rates
    return {
        "pinned_to_host_per_second": machine.host_bytes_per_second,
        "pinned_to_gpu_per_second": machine.host_bytes_per_second,
        "pageable_to_gpu_per_second": machine.host_bytes_per_second,
        "host_adam_per_second": machine.host_memory_bytes_per_second,
    }


def measured_rates(elements: int, device: Device) -> Figures:
    """Of fp32 tensors, as HybridDeviceOptimizer copies them and steps."""
    pageable, gradient = torch.ones(elements), torch.ones(elements)
    parameter = torch.nn.Parameter(pageable)
    parameter.grad = gradient
    adam = torch.optim.AdamW([parameter], fused=True)
    found = {"host_adam_per_second": 28 * elements / _seconds(adam.step)}
    found["threads"] = torch.get_num_threads()
    if device is Device.CPU:
        return found
    gpu = torch.ones(elements, device="cuda")
    began = perf_counter()
    pinned = torch.empty(elements, pin_memory=True)
    found["pin_bytes_per_second"] = pinned.nbytes / (perf_counter() - began)
    copies = {
        "pinned_to_host_per_second": (pinned, gpu),
        "pinned_to_gpu_per_second": (gpu, pinned),
        "pageable_to_gpu_per_second": (gpu, pageable),
    }
    for name, (to, source) in copies.items():
        seconds = _seconds(partial(to.copy_, source, non_blocking=True), torch.cuda.synchronize)
        found[name] = gpu.nbytes / seconds
    return found


def _seconds(work: Callable[[], Any], wait: Callable[[], None] = lambda: None) -> float:
    """The median of five, after one."""
    work()
    wait()
    times = []
    for _ in range(5):
        began = perf_counter()
        work()
        wait()
        times.append(perf_counter() - began)
    return median(times)
