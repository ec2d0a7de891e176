"""Activation peak of one pipeline rank, through Megatron's own schedule."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.pipeline_parallel import schedules
from megatron.core.utils import GlobalMemoryBuffer

from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.model import Batch, fake_batch
from harness.backends.megatron_core.world import P2P
from harness.rehearsal.fake.autograd_graph import ModulePaths
from harness.rehearsal.fake.environment import fake_chunks, megatron_without_gpu
from harness.rehearsal.fake.meter import LiveBytes
from harness.rehearsal.fake.storage_lives import PeakTrace

# places outside modules that allocate, by the name they get in a listing
SCOPES = (
    (P2P, "_communicate", "p2p"),
    (GlobalMemoryBuffer, "get_tensor", "global_memory_buffer"),
    (LanguageModule, "compute_language_model_loss", "cross_entropy"),
)


def _allocate_gradients(parameter: torch.nn.Parameter, fused: bool) -> list[torch.Tensor]:
    """A standing gradient buffer, so that the backward pass accumulates into it.

    Without fusion: bf16 `.grad`. With it: `.main_grad`, that apex's kernel fills, and a
    placeholder is returned to autograd, as under Megatron's DistributedDataParallel.
    """
    if not fused:
        parameter.grad = torch.empty_like(parameter)
        return [parameter.grad]
    main_grad = torch.empty_like(parameter, dtype=torch.float32, requires_grad=False)
    parameter.main_grad = main_grad  # type: ignore[attr-defined]
    parameter.grad_added_to_main_grad = False  # type: ignore[attr-defined]

    def accumulate(*_: Any) -> None:
        """DistributedDataParallel's hook: add what the kernel did not, and drop `.grad`."""
        if parameter.grad is not None and not parameter.grad_added_to_main_grad:  # type: ignore[attr-defined]
            main_grad.add_(parameter.grad)
        parameter.grad_added_to_main_grad = False  # type: ignore[attr-defined]
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(accumulate)  # type: ignore[no-untyped-call]
    return [main_grad]


def _scoped(function: Callable[..., Any], name: str, paths: ModulePaths) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        paths.enter(f"{paths.running}<{name}>")
        try:
            return function(*args, **kwargs)
        finally:
            paths.leave()

    return run


class _Phases:
    """Names the schedule's steps on the meter by wrapping its forward and backward steps."""

    def __init__(self, meter: LiveBytes, trace: bool) -> None:
        self._meter = meter
        self._trace = trace
        self._names: dict[int, str] = {}

    def forward(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `schedules.forward_step`."""

        def run(*args: Any, **kwargs: Any) -> Any:
            name = f"mb{kwargs['current_microbatch']} chunk{kwargs.get('vp_stage') or 0}"
            self._meter.phase = f"forward {name}"
            result = step(*args, **kwargs)
            output = _unwrap(result[0])
            self._names[id(output)] = name
            if self._trace:
                self._meter.mark_saved(output)
            self._meter.phase = f"after forward {name}"
            return result

        return run

    def backward(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `schedules.backward_step`."""

        def run(input_tensor: Any, output_tensor: Any, *args: Any) -> Any:
            name = self._names.pop(id(_unwrap(output_tensor)), "?")
            self._meter.phase = f"backward {name}"
            result = step(input_tensor, output_tensor, *args)
            self._meter.phase = f"after backward {name}"
            return result

        return run


def _unwrap(output: Any) -> Any:
    return output[0] if isinstance(output, list) else output


@contextmanager
def _labels(meter: LiveBytes, paths: ModulePaths, trace: bool) -> Iterator[None]:
    phases = _Phases(meter, trace)
    with ExitStack() as stack:
        patch = mock.patch.object
        forward = phases.forward(schedules.forward_step)
        backward = phases.backward(schedules.backward_step)
        stack.enter_context(patch(schedules, "forward_step", forward))
        stack.enter_context(patch(schedules, "backward_step", backward))
        for owner, name, label in SCOPES:
            stack.enter_context(patch(owner, name, _scoped(getattr(owner, name), label, paths)))
        yield


def _run_schedule(case: MegatronCase, chunks: list[Any], batch: Batch) -> None:
    def forward_step(data_iterator: Any, model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        return batch.forward(model), batch.loss

    interleaved = case.virtual_pipeline_model_parallel_size is not None
    schedules.get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=[None] * len(chunks) if interleaved else None,
        model=chunks if interleaved else chunks[0],
        num_microbatches=case.num_microbatches,
        seq_length=case.seq_length,
        micro_batch_size=case.micro_batch_size,
        forward_only=False,
    )


def _refuse_endless_replay(case: MegatronCase) -> None:
    """Megatron's own defect, which would hang this process.

    The MLP returns its bias parameter; as an output of CheckpointFunction the parameter itself
    gets that function as `grad_fn`, and the replay's backward runs into it again, for ever.
    """
    if case.add_bias_linear and "mlp" in (case.recompute_modules or ()):
        raise ValueError("recompute_modules mlp with add_bias_linear: Megatron replays for ever")


def _measure(case: MegatronCase, pp_rank: int, round_to_bytes: int, trace: bool) -> PeakTrace:
    _refuse_endless_replay(case)
    paths = ModulePaths()
    meter = LiveBytes(paths, round_to_bytes=round_to_bytes, trace=trace)
    with megatron_without_gpu(case, pp_rank, meter.kernel):
        chunks = fake_chunks(case)
        batch = fake_batch(case)
        meter.exclude(batch.tensors())
        for number, chunk in enumerate(chunks):
            paths.attach(chunk, f"chunk{number}." if len(chunks) > 1 else "")
            meter.exclude([*chunk.parameters(), *chunk.buffers()])
            for parameter in chunk.parameters():
                meter.exclude(_allocate_gradients(parameter, case.gradient_accumulation_fusion))
        with _labels(meter, paths, trace), meter.watching_resizes(), meter:
            _run_schedule(case, chunks, batch)
            meter.end()
        return meter.result


def activation_peak(case: MegatronCase, pp_rank: int = 0, *, round_to_bytes: int = 1) -> int:
    """Peak bytes of one training step on a stage, above parameters and their gradients.

    Counts everything torch would allocate in forward and backward: saved tensors, working
    tensors, temporary weight gradients, receive buffers, Megatron's global buffer. Not counted:
    the input batch, optimizer, kernel workspaces, NCCL, fragmentation. Raises what Megatron
    raises for settings it refuses (microbatch counts of the interleaved schedule, ...).
    """
    return _measure(case, pp_rank, round_to_bytes, trace=False).peak_bytes


def trace_peak(case: MegatronCase, pp_rank: int = 0, *, round_to_bytes: int = 1) -> PeakTrace:
    """As `activation_peak`, with the life of every storage: see `PeakTrace.listing`."""
    return _measure(case, pp_rank, round_to_bytes, trace=True)
