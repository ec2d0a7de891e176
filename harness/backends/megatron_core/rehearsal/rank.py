"""One rank of a job, alone: built, stepped and gauged on fake tensors, a CPU or a GPU."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from advisor.plan.schedule import schedule_points
from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.cpu import SdpaAttention
from harness.backends.megatron_core.fake.gpu_kernels import FlashLikeAttention
from harness.backends.megatron_core.fake.meter import LiveBytes
from harness.backends.megatron_core.fake.without_gpu import megatron_without_gpu
from harness.backends.megatron_core.model import Microbatches, fake_batch, transformer_config
from harness.backends.megatron_core.rehearsal.storage_differences import storage_differences
from harness.backends.megatron_core.step import device_patches
from harness.backends.megatron_core.trainer import MegatronTraining, NextBatch, announced_phases
from harness.backends.megatron_core.world import P2P, fake_world
from harness.backends.training_rank import torch_device
from harness.measure.memory import StorageMeter, storage_bytes
from harness.measure.session import CUDA_GAUGE, Gauge, PhasePeaks, PhaseTimes, meter_gauge
from harness.measure.timing import stopwatch
from harness.measure.training_step import Recorder, Silent
from harness.trial.result import Phase, PhaseTime, Rehearsed, StagePeaks
from harness.trial.trial import Device, MeasurementPlan, Workload

_GROUP: Final[Any] = dist.ProcessGroup


@contextmanager
def received_noise() -> Iterator[None]:
    """Fills what comes from other stages with N(0, 1), the size of a normalised hidden state."""
    original = P2P._communicate

    def communicate(*args: Any, **wanted: Any) -> Any:
        received = original(*args, **wanted)
        with torch.no_grad():
            for tensor in received[:2]:
                if tensor is not None:
                    tensor.normal_()
        return received

    with patch.object(P2P, "_communicate", communicate):
        yield


@contextmanager
def own_part() -> Iterator[None]:
    """A reduce-scatter gives this rank's slice of its own tensor, an all-to-all its own tensor, as
    a fake process group does itself in torch 2.13; in torch 2.11 it writes nothing."""
    scatter, exchange = _GROUP._reduce_scatter_base, _GROUP.alltoall_base

    def reduce_scatter(group: Any, output: Tensor, given: Tensor, *more: Any) -> Any:
        work = scatter(group, output, given, *more)
        output.detach().copy_(given.detach().view(-1, *output.shape)[group.rank()])
        return work

    def all_to_all(group: Any, output: Tensor, given: Tensor, *more: Any) -> Any:
        work = exchange(group, output, given, *more)
        _fill(output.detach().view(-1), given.detach().reshape(-1))
        return work

    with (
        patch.object(_GROUP, "_reduce_scatter_base", reduce_scatter),
        patch.object(_GROUP, "alltoall_base", all_to_all),
    ):
        yield


def _fill(output: Tensor, given: Tensor) -> None:
    """The beginning of `given`; what it has not, N(0, 1), or zeros where numbers are counts."""
    shared = min(len(output), len(given))
    output[:shared].copy_(given[:shared])
    rest = output[shared:]
    rest.normal_() if output.is_floating_point() else rest.zero_()


class MegatronRanks(Struct, frozen=True):
    """The first ranks of a workload's stages; `case` is the workload under Megatron's names."""

    workload: Workload
    case: MegatronCase

    def rehearse(self, stage: int, plan: MeasurementPlan) -> Rehearsed:
        """Build the rank, and step it: as `plan` says; once, in brief, on fake tensors."""
        if self.workload.device is Device.FAKE:
            return rehearse_fake(enough_microbatches(self.case, stage), stage)
        vocabulary = self.workload.model.vocab_size
        return rehearse(self.case, stage, self.workload.device, plan, vocabulary)

    def number(self, stage: int) -> int:
        """Which rank of the job it is: TP and DP 0 of the stage."""
        return self.case.rank_of_stage(stage)

    def storage_differences(self) -> str:
        """Storages of one layer that only the prediction or only the rehearsal keeps, in words."""
        return storage_differences(self.workload, self.case)


def enough_microbatches(case: MegatronCase, stage: int) -> MegatronCase:
    """The case with as few microbatches as take `stage` through every moment of its step. They fill
    the pipeline and run it steadily. A moment is the chunk that runs, the microbatches in flight in
    each, and what the schedule holds next to them: those that no other exceeds are the same as for
    all microbatches, by Megatron's order of passes (advisor.plan.schedule). So is the peak."""
    pp, chunks = case.pipeline_model_parallel_size, case.num_model_chunks

    def highest(microbatches: int) -> set[tuple[Any, ...]]:
        found = schedule_points(pp, chunks, microbatches, stage, tuple(range(chunks)), spent=True)
        return {(one.backward, one.chunk, one.by_class, one.held, one.spent) for one in found}

    filled, group = (2 * pp, pp) if case.interleaved else (pp + 2, 1)
    every = highest(case.num_microbatches)
    fewer = (n for n in range(filled, case.num_microbatches, group) if highest(n) == every)
    return case.changed(num_microbatches=next(fewer, case.num_microbatches))


def rehearse_fake(case: MegatronCase, stage: int) -> Rehearsed:
    """One step of the first rank of `stage` on fake tensors, optimizer states in place."""
    meter = LiveBytes()
    with megatron_without_gpu(case, stage, meter.kernel):
        config = transformer_config(case, perform_initialization=False)
        training = MegatronTraining(case, config, FlashLikeAttention)
        training.optimizer.step()  # makes the moments
        batch = fake_batch(case)
        resident = training.resident()
        for tensors in (batch.tensors(), *resident.values()):
            meter.exclude(tensors)
        sizes = {name: storage_bytes(tensors) for name, tensors in resident.items()}
        with meter.measuring():
            peaks = _peaks(training, lambda _: batch, meter_gauge(meter))
        training.close()
        return Rehearsed(peaks=_stage_peaks(stage, sizes, peaks, sum(sizes.values())))


def rehearse(
    case: MegatronCase, stage: int, device: Device, plan: MeasurementPlan, vocab_size: int
) -> Rehearsed:
    """Steps of the first rank of `stage` on a real device: peaks and compute times. What would be
    received from other stages is noise of the size of a normalised hidden state; gradients are of
    no use, and NaN checks are off. Experts get tokens at random, as many from every rank."""
    where = torch_device(device)
    routing = {"moe_router_force_load_balancing": True} if case.has_experts else {}
    with ExitStack() as stack:
        stack.enter_context(device_patches(device))
        stack.enter_context(fake_world(case, case.rank_of_stage(stage)))
        stack.enter_context(received_noise())
        stack.enter_context(own_part())
        torch.manual_seed(plan.seed)
        model_parallel_cuda_manual_seed(plan.seed)
        training = MegatronTraining(case, transformer_config(case, **routing), SdpaAttention)
        batches = Microbatches(case, vocab_size, plan.seed, where)
        for _ in range(2):  # warm-up
            _step(training, batches, Silent())
        sizes = {name: storage_bytes(tensors) for name, tensors in training.resident().items()}
        seconds = _timed(training, batches, device, plan.steps)
        phases: tuple[PhaseTime, ...] = ()
        if device is Device.CUDA:  # where the time of one more step goes
            recorder = PhaseTimes(stopwatch(device))
            _step(training, batches, recorder)
            phases = recorder.ended()
        peaks = _gauged(training, batches, device)
        training.close()
        found = _stage_peaks(stage, sizes, peaks, 0)
    if device is Device.CUDA:
        free, here = torch.cuda.mem_get_info()
        found = replace(found, reserved=torch.cuda.max_memory_reserved(), device_used=here - free)
    del training, batches
    gc.collect()  # the next stage starts with an empty device
    if device is Device.CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    found = replace(found, compute_seconds=median(seconds))
    return Rehearsed(peaks=found, seconds=seconds, phases=phases)


def _step(training: MegatronTraining, batches: NextBatch, recorder: Recorder) -> None:
    """Forward and backward of all microbatches, then the optimizer."""
    with announced_phases(recorder.phase):
        training.forward_backward(batches)
    recorder.phase(Phase.OPTIMIZER)
    training.optimizer.step()


def _timed(
    training: MegatronTraining, batches: NextBatch, device: Device, steps: int
) -> tuple[float, ...]:
    """Seconds of `steps` steps, by the device's clock."""
    watch = stopwatch(device)
    watch.mark()
    for _ in range(steps):
        _step(training, batches, Silent())
        watch.mark()
    return watch.laps()


def _gauged(training: MegatronTraining, batches: NextBatch, device: Device) -> PhasePeaks:
    if device is Device.CUDA:
        return _peaks(training, batches, CUDA_GAUGE)
    gc.collect()
    meter = StorageMeter()
    meter.count_existing()
    with meter.measuring():
        return _peaks(training, batches, meter_gauge(meter))


def _peaks(training: MegatronTraining, batches: NextBatch, gauge: Gauge) -> PhasePeaks:
    peaks = PhasePeaks(gauge)
    _step(training, batches, peaks)
    peaks.close()
    return peaks


def _stage_peaks(
    stage: int, sizes: dict[str, int], peaks: PhasePeaks, not_gauged: int
) -> StagePeaks:
    found = {phase: peak + not_gauged for phase, peak in peaks.peaks.items()}
    return StagePeaks(
        stage=stage,
        weights=sizes["weights"],
        gradients=sizes["gradients"],
        optimizer=sizes["optimizer"],
        forward=found[Phase.FORWARD],
        backward=found[Phase.BACKWARD],
        optimizer_step=found[Phase.OPTIMIZER],
    )
