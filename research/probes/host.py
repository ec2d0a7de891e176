"""The host's side of offload: its rates, and what a rank alone (harness rehearse) holds there.

On a CPU, tensors that are pinned or made by `.cpu()` stand for the host, all others for the GPU's.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.time.machine import machine
from harness.backends.megatron_core.installed import has_transformer_engine
from harness.measure.memory import storage_bytes
from harness.trial.trial import Device
from research.probes.probe_case import Case, Figures


def cases(tiny: bool) -> tuple[Case, ...]:
    """One: the rates that the times of all offload are computed from."""
    elements, device = (2**20, Device.CPU) if tiny else (2**28, Device.CUDA)
    return (
        Case(
            name="rates",
            why="85 % of the paper rate is a judgement; pageable copies are not modelled",
            predict=predicted_rates,
            measure=partial(measured_rates, elements, device),
        ),
    )


def predicted_rates() -> Figures:
    """Bytes per second of an H200's link and of its host's Adam, 28 for each element."""
    gpu = load_gpu("H200")
    rates = machine(gpu, load_calibration(gpu), Precision.BF16)
    return {
        "pinned_to_host_per_second": rates.host_bytes_per_second,
        "pinned_to_gpu_per_second": rates.host_bytes_per_second,
        "pageable_to_gpu_per_second": rates.host_bytes_per_second,
        "host_adam_per_second": rates.host_memory_bytes_per_second,
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


def _host_memory() -> dict[str, int]:
    """Of this process, now and at most so far, and what the machine has left."""
    said = f"{Path('/proc/self/status').read_text()}{Path('/proc/meminfo').read_text()}"
    names = {"VmRSS": "resident", "VmHWM": "peak_resident", "MemAvailable": "available"}
    lines = (line.split() for line in said.splitlines())
    found = {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if line[2:] == ["kB"]}
    return {f"{name}_bytes": found[key] for key, name in names.items() if key in found}


class Watch:
    """What activations a rank's last step moves to the host, and what its optimizer holds where.
    host_bytes: of tensors that are there at once. built: the GPU's peak before the first step."""

    def __init__(self) -> None:
        self.figures: dict[str, int] = {}
        self._moved = self._waiting = self._most = 0
        self._built: dict[str, int] = {}

    @contextmanager
    def watching(self, device: Device) -> Iterator[None]:
        """Inside, a rank is watched that MegatronTraining steps."""
        from megatron.core.pipeline_parallel import fine_grained_activation_offload as fine

        from harness.backends.megatron_core.trainer import MegatronTraining

        step, close = MegatronTraining.forward_backward, MegatronTraining.close
        handler = fine.ChunkOffloadHandler

        def stepped(training: Any, batches: Any) -> Any:
            if not self._built:
                built = {"built_bytes": torch.cuda.max_memory_allocated()}
                self._built = built | _stale(training.optimizer)
            self._moved = self._waiting = self._most = 0
            return step(training, batches)

        def closed(training: Any) -> None:
            held = _optimizer_figures(training.optimizer)
            self.figures = {
                **held,
                "host_bytes": held["host_optimizer_bytes"] + self._most,
                "moved_bytes": self._moved,
                **self._built,
                **{f"last_{name}": size for name, size in _stale(training.optimizer).items()},
                **_host_memory(),
            }
            close(training)

        with ExitStack() as stack:
            for one in (
                patch.object(MegatronTraining, "forward_backward", stepped),
                patch.object(MegatronTraining, "close", closed),
                # asks all ranks for their bytes, of which a fake process group has none
                patch.object(fine, "print_offload_summary_table", lambda _: None),
                self._reported(handler, "offload", self._leaves, lambda args, state: [state[1]]),
                self._reported(handler, "reload", self._returns, lambda args, _: [args[1][1]]),
                *(self._engine() if has_transformer_engine() else ()),
                *(_host_apart(handler) if device is Device.CPU else ()),
            ):
                stack.enter_context(one)
            yield
        fine.PipelineOffloadManager.OFFLOAD_MGR = None  # the next rank begins anew

    def _engine(self) -> Iterator[Any]:
        """Transformer Engine's two ways to offload whole layers."""
        package = "transformer_engine.pytorch"
        old = import_module(f"{package}.cpu_offload_v1").SynchronizedGroupOffloadHandler
        yield self._reported(old, "offload", self._leaves, lambda args, state: [state[1]])
        yield self._reported(old, "reload", self._returns, lambda args, _: [args[0][1]])
        layer = import_module(f"{package}.cpu_offload").OffloadableLayerState
        yield self._reported(layer, "start_offload", self._leaves, _held_by_layer)
        yield self._reported(layer, "start_reload", self._returns, _held_by_layer)

    @staticmethod
    def _reported(
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


def _held_by_layer(args: Any, _: Any) -> Iterable[Tensor]:
    tensors: list[Tensor] = args[0].cpu_tensor_group.tensor_list
    return tensors


def _optimizer_figures(optimizer: Any) -> dict[str, int]:
    """optimizer_bytes: main parameters and moments on the GPU. Left out: step counters, 4 bytes
    each. pinned: of the host's."""
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    here, there = list[Tensor](), list[Tensor]()
    elements = 0
    for part in _parts(optimizer):
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
    return {
        "optimizer_bytes": storage_bytes(here),
        "host_optimizer_bytes": storage_bytes(there),
        "pinned_optimizer_bytes": storage_bytes([one for one in there if one.is_pinned()]),
        "host_elements": elements,
    }


def _stale(optimizer: Any) -> dict[str, int]:
    """Of the HybridDeviceOptimizer that Megatron makes first, of whole parameters before they are
    sharded: its fp32 copies, until a garbage collection of the oldest generation frees them."""
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    used = {id(part) for part in _parts(optimizer)}
    copies = [
        copy
        for one in gc.get_objects()
        if type(one) is HybridDeviceOptimizer and id(one) not in used
        for copy in one.param_to_fp32_param.values()
    ]
    return {
        "stale_bytes": storage_bytes([one for one in copies if not _is_hosts(one)]),
        "stale_host_bytes": storage_bytes([one for one in copies if _is_hosts(one)]),
    }


def _parts(optimizer: Any) -> list[Any]:
    """The optimizers inside Megatron's; a rank without parameters has none."""
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    return [one.optimizer for one in chained if one.optimizer is not None]


class HostTensor(Tensor):
    """On a CPU, one that would be on the host of a GPU; what is made of it is, too."""


def _is_hosts(tensor: Tensor) -> bool:
    return isinstance(tensor, HostTensor) or (torch.cuda.is_available() and not tensor.is_cuda)


def _is_no_parameter(tensor: Tensor) -> bool:
    return not isinstance(tensor, torch.nn.Parameter)


def _host_apart(handler: Any) -> Iterator[Any]:
    """On a CPU, tensors of the host are told from those that stand for the GPU's."""
    from megatron.core.extensions import transformer_engine as extensions
    from megatron.core.optimizer import optimizer_config

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
    # 0.19 asks for the device
    yield patch.object(
        handler, "_can_manage_tensor_for_offload", staticmethod(_is_no_parameter), create=True
    )
    # without the engine it compares None (0.16.1), and has no remainders to ask about
    yield patch.object(optimizer_config, "is_te_min_version", lambda *_: False)
