"""A rehearsed rank of Megatron Core 0.16.1 that captures CUDA graphs.

What a user of Megatron Core does, as Megatron-LM's training.py does it:

transformer_engine: a random state tracker that graphs can hold (te_rng_tracker); model and its DDP
wrapper, the latter made on a stream of its own; some steps; then TECudaGraphHelper's
create_cudagraphs() with DDP's forward hooks off, which Transformer Engine refuses, and on again
after it, with cuda_graph_set_manual_hooks(), as replays call none of the layers' own. It asks for
the number of microbatches, which a global calculator knows.
local: the same tracker. Layers record what they run in, in the first step, and the schedule calls
create_cudagraphs() when that has ended. Each is captured whole, whatever cuda_graph_scope says:
0.16.1 has parts for MoETransformerLayer alone, and GPT's layers are TransformerLayer
(transformer/module.py GraphableMegatronModule, models/gpt/gpt_layer_specs.py).
full_iteration: local with that scope, and the schedule's function in FullCudaGraphWrapper, whose
batches are dictionaries of tensors.
"""

import copy
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

import torch
from megatron.core import full_cuda_graph, num_microbatches_calculator, tensor_parallel
from megatron.core.pipeline_parallel import schedules
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import cuda_graphs, transformer_layer
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from advisor.job.job import CudaGraphImpl
from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.cpu import SdpaAttention
from harness.backends.megatron_core.model import Batch, Microbatches, transformer_config
from harness.backends.megatron_core.rehearsal.rank import own_part, received_noise
from harness.backends.megatron_core.step import device_patches
from harness.backends.megatron_core.trainer import MegatronTraining
from harness.backends.megatron_core.world import fake_world
from harness.backends.training_rank import torch_device
from harness.measure.timing import stopwatch
from harness.trial.trial import Device

_SEED: Final = 1234
_NEVER: Final = 1_000_000
_STATIC: Final = ("tokens", "labels", "position_ids", "loss_mask")
_RANGES: Final = (
    (TopKRouter, "forward", "router"),
    (MoEAlltoAllTokenDispatcher, "dispatch_preprocess", "dispatch"),
    (MoEAlltoAllTokenDispatcher, "dispatch_postprocess", "dispatch"),
    (MoEAlltoAllTokenDispatcher, "combine_preprocess", "combine"),
    (MoEAlltoAllTokenDispatcher, "combine_postprocess", "combine"),
)
"""What experts take without their products and exchanges, by the advisor's names of modules."""
_MOST_KERNELS: Final = 25


class _Training(MegatronTraining):
    """DDP is wrapped around the model on a stream of its own, as Megatron-LM does (get_model): on
    the one they are made on gradients are added, and no capture takes the default one."""

    def _distributed(self, chunks: list[Any]) -> list[Any]:
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            made = super()._distributed(chunks)
        torch.cuda.current_stream().wait_stream(side)
        return made


class _WholeStep(full_cuda_graph.FullCudaGraphWrapper):  # type: ignore[misc]
    """Numbers of microbatches become their tensors, which it copies into buffers that stay."""

    def __init__(self, function: Callable[..., Any], batches: Microbatches) -> None:
        super().__init__(function, cuda_graph_warmup_steps=_NEVER)
        self.batches = batches

    def data_read(self, data_iterator: Any, *more: Any) -> Any:
        made = (
            {name: getattr(self.batches(number), name) for name in _STATIC}
            for number in data_iterator
        )
        return super().data_read(made, *more)

    def batch(self, made: Mapping[str, torch.Tensor]) -> Batch:
        """A microbatch of those buffers."""
        found = copy.copy(self.batches(0))
        vars(found).update(made)
        return found


class GraphedRank:
    """The first rank of a job, in training, with all that its graphs need until they are captured.

    graphs: how, of the spelling before 0.18, and the scope.
    """

    def __init__(
        self, case: MegatronCase, graphs: CudaGraphImpl, scope: tuple[str, ...], device: Device
    ) -> None:
        self.case, self.graphs, self.device = case, graphs, device
        whole = graphs is CudaGraphImpl.FULL_ITERATION
        values: dict[str, Any] = {
            "cuda_graph_impl": str(CudaGraphImpl.LOCAL if whole else graphs),
            "cuda_graph_scope": ["full_iteration"] if whole else list(scope),
        }
        if case.has_experts:
            values["moe_router_force_load_balancing"] = True
        torch.manual_seed(_SEED)
        on_gpu = device is Device.CUDA
        model_parallel_cuda_manual_seed(
            _SEED, te_rng_tracker=on_gpu, use_cudagraphable_rng=on_gpu, force_reset_rng=True
        )
        # the CPU's tracker passes for one that needs no graph's care
        tensor_parallel.get_cuda_rng_tracker().is_inference_rng_tracker = not on_gpu
        self.training = _Training(case, transformer_config(case, **values), SdpaAttention)
        self.batches = Microbatches(case, case.vocab_size, _SEED, torch_device(device))
        function = schedules.get_forward_backward_func()
        self._whole = _WholeStep(function, self.batches) if whole else None

    def step(self) -> float:
        """One training step; seconds until its passes, not its optimizer, were queued."""
        began = time.perf_counter()
        if (whole := self._whole) is None:
            self.training.forward_backward(self.batches)
        else:
            with patch.object(schedules, "get_forward_backward_func", lambda: whole):
                self.training.forward_backward(whole.batch)  # type: ignore[arg-type]
        queued = time.perf_counter() - began
        self.training.optimizer.step()
        return queued

    def capture(self) -> float:
        """Seconds; those of a whole step contain a replay of it and the optimizer."""
        gc.collect()
        torch.cuda.synchronize()
        began = time.perf_counter()
        if self._whole is not None and self.device is Device.CPU:
            pass  # nothing stands in for this one
        elif self._whole is not None:
            self._whole.cuda_graph_warmup_steps = self._whole.curr_iter("training")
            self.step()
        elif self.graphs is CudaGraphImpl.LOCAL:
            cuda_graphs.create_cudagraphs()
        else:
            self._capture_engine()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def _capture_engine(self) -> None:
        case, chunks = self.case, self.training.model
        helper = cuda_graphs.TECudaGraphHelper(
            model=chunks,
            config=self.training.config,
            seq_length=case.seq_length,
            micro_batch_size=case.micro_batch_size,
            optimizers=[self.training.optimizer],
        )
        hooked = [chunk for chunk in chunks if chunk.use_forward_hook]
        for chunk in hooked:
            chunk.disable_forward_pre_hook(param_sync=False)
        helper.create_cudagraphs()
        for chunk in hooked:
            chunk.enable_forward_pre_hook()
        if hooked:
            helper.cuda_graph_set_manual_hooks()

    def times(self, steps: int) -> dict[str, float]:
        """Seconds of a step by the device's clock, and of queueing its passes; the medians."""
        watch = stopwatch(self.device)
        watch.mark()
        queued = []
        for _ in range(steps):
            queued.append(self.step())
            watch.mark()
        laps = sorted(watch.laps())
        return {"step_seconds": laps[steps // 2], "queue_seconds": sorted(queued)[steps // 2]}

    def profiled(self) -> dict[str, Any]:
        """Seconds of kernels of one step: of the forward of the router and of bringing tokens into
        order and back, and of the kernels that take most."""
        here = [ProfilerActivity.CPU]
        if self.device is Device.CUDA:
            here.append(ProfilerActivity.CUDA)
        with ExitStack() as stack:
            for cls, name, label in _RANGES:
                stack.enter_context(patch.object(cls, name, _labelled(getattr(cls, name), label)))
            with profile(activities=here) as profiler:
                self.step()
                torch.cuda.synchronize()
        events = profiler.key_averages()
        kernels = [
            one
            for one in events
            if one.device_type == DeviceType.CUDA and not one.is_user_annotation
        ]
        kernels.sort(key=lambda one: one.self_device_time_total, reverse=True)
        found: dict[str, Any] = {
            f"{one.key}_forward_seconds": one.device_time_total * 1e-6
            for one in events
            if one.key in {label for *_, label in _RANGES} and one.device_type == DeviceType.CPU
        }
        found |= {  # from the first kernel to the last, waiting included
            f"{one.key}_span_seconds": one.self_device_time_total * 1e-6
            for one in events
            if one.device_type == DeviceType.CUDA and one.is_user_annotation
        }
        found["kernels"] = [
            {
                "name": one.key[:160],
                "count": one.count,
                "seconds": one.self_device_time_total * 1e-6,
            }
            for one in kernels[:_MOST_KERNELS]
        ]
        return found | {
            "kernels_seconds": sum(one.self_device_time_total for one in kernels) * 1e-6
        }


def _labelled(function: Callable[..., Any], label: str) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with record_function(label):
            return function(*args, **kwargs)

    return run


@contextmanager
def graphed_rank(
    case: MegatronCase, graphs: CudaGraphImpl, scope: tuple[str, ...], device: Device
) -> Iterator[GraphedRank]:
    """The rank; no schedule captures anything by itself."""
    microbatches = case.micro_batch_size * case.num_microbatches
    with ExitStack() as stack:
        stack.enter_context(device_patches(device))
        stack.enter_context(fake_world(case, 0))
        stack.enter_context(received_noise())
        stack.enter_context(own_part())
        stack.enter_context(patch.object(schedules, "create_cudagraphs", lambda: None))
        if device is Device.CPU:
            stack.enter_context(_stand_ins(graphs))
        num_microbatches_calculator.init_num_microbatches_calculator(
            0, None, microbatches, case.micro_batch_size, 1
        )
        stack.callback(num_microbatches_calculator.unset_num_microbatches_calculator)
        stack.callback(cuda_graphs._CudagraphGlobalRecord.cudagraph_record.clear)
        rank = GraphedRank(case, graphs, scope, device)
        yield rank
        rank.training.close()


@contextmanager
def _stand_ins(graphs: CudaGraphImpl) -> Iterator[None]:
    """On a CPU nothing is captured: graphs of parts run what they would hold, local ones and that
    of a whole step stay what was recorded."""
    engine = ModuleType("transformer_engine")
    modules = {"transformer_engine": engine, "transformer_engine.pytorch": engine}
    cuda: dict[str, Any] = {
        "get_device_capability": lambda *_: (9, 0),
        "graph_pool_handle": lambda: (0, 1),
        "set_stream": lambda _: None,
    }
    with ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        for module in (cuda_graphs, transformer_layer):
            stack.enter_context(patch.object(module, "is_te_min_version", lambda *_: True))
        stack.enter_context(patch.object(cuda_graphs, "create_cudagraphs", _recorded))
        stack.enter_context(
            patch.object(cuda_graphs, "make_graphed_callables", _eager, create=True)
        )
        engines = graphs is CudaGraphImpl.TRANSFORMER_ENGINE
        stack.enter_context(patch.object(cuda_graphs, "HAVE_TE_GRAPHS", engines))
        stack.enter_context(patch.dict("sys.modules", modules))
        yield


def _recorded() -> None:
    if not cuda_graphs._CudagraphGlobalRecord.cudagraph_record:
        raise AssertionError("no layer has recorded itself")


def _eager(layers: Any, sample_args: Any, *, sample_kwargs: Any, **_: Any) -> tuple[Any, ...]:
    """In place of Transformer Engine's make_graphed_callables: of each layer and microbatch."""
    graphs = len(sample_args)
    return tuple(_part(layers[k % len(layers)], sample_kwargs[k].keys()) for k in range(graphs))


def _part(layer: Any, names: Any) -> Callable[..., Any]:
    def run(hidden: Any, **given: Any) -> Any:
        cuda_graphs._set_capture_start()
        try:
            return layer._te_cuda_graph_capture(hidden, **{name: given[name] for name in names})
        finally:
            cuda_graphs._set_capture_end()

    return run
