"""Megatron's training step as the harness asks for it: one rank of a job that really runs."""

from contextlib import ExitStack

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from harness.backends.megatron_core import cpu, trainer, translate, world
from harness.backends.megatron_core.model import Microbatches, transformer_config
from harness.backends.training_rank import check_processes, job_flops, torch_device
from harness.measure.training_step import Recorder
from harness.trial.result import Flops, Phase
from harness.trial.trial import Device, Workload


def build_step(workload: Workload, seed: int) -> "MegatronStep":
    """Model, optimizer and data of this rank; UserError for what the backend does not run."""
    case = translate.megatron_case(workload)
    stack = ExitStack()
    try:
        where = torch_device(workload.device)
        stack.enter_context(device_patches(workload.device))
        stack.enter_context(world.real_world(case, workload.device))
        check_processes(workload.layout, dist.get_world_size())
        _seed(seed)
        training = trainer.MegatronTraining(case, transformer_config(case), cpu.SdpaAttention)
        batches = Microbatches(case, workload.model.vocab_size, seed, where)
        return MegatronStep(workload, training, batches, stack)
    except BaseException:
        stack.close()
        raise


def device_patches(device: Device) -> ExitStack:
    """What Megatron needs patched on `device`, as a context."""
    stack = ExitStack()
    if device is Device.CUDA:
        for patch in cpu.local_patches():
            stack.enter_context(patch)
        stack.enter_context(cpu.without_apex())
    else:
        stack.enter_context(cpu.megatron_on_cpu())
    return stack


def _seed(seed: int) -> None:
    """As Megatron-LM seeds: stages differ, tensor-parallel ranks through Megatron's tracker."""
    stage_seed = seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(stage_seed)
    model_parallel_cuda_manual_seed(stage_seed)


class MegatronStep:
    """One rank's training loop; every step trains on the same random tokens."""

    def __init__(
        self,
        workload: Workload,
        training: trainer.MegatronTraining,
        batches: Microbatches,
        context: ExitStack,
    ) -> None:
        self.workload, self.training = workload, training
        self._batches, self._context = batches, context

    def run(self, recorder: Recorder) -> float:
        """One optimizer step over all microbatches; the mean loss of the whole batch."""
        with trainer.announced_phases(recorder.phase):
            losses = self.training.forward_backward(self._batches)
        recorder.phase(Phase.OPTIMIZER)
        self.training.optimizer.step()
        return self._over_ranks(losses)

    def _over_ranks(self, losses: list[dict[str, torch.Tensor]]) -> float:
        """Sum over pipeline stages, of which the last has losses; mean over data parallelism."""
        total = torch.zeros((), device=self._batches.device)
        for reported in losses:
            total += reported["loss"] / len(losses)
        dist.all_reduce(total, group=parallel_state.get_pipeline_model_parallel_group())
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        dist.all_reduce(total, group=group)
        return float(total.item()) / dist.get_world_size(group)

    def saved_bytes_per_layer(self) -> None:
        """Not counted on a run; the rehearsal on fake tensors counts every storage."""

    def flops(self) -> Flops:
        """Megatron's model FLOPs of one step, all ranks; replays are not counted here."""
        model = job_flops(self.workload)
        return Flops(model=model, hardware=model)

    @property
    def stage(self) -> int:
        """Pipeline stage of this rank."""
        return int(parallel_state.get_pipeline_model_parallel_rank())

    def close(self) -> None:
        """Leave the process groups; undo the patches."""
        self.training.close()
        self._context.close()
