"""Megatron's training step of one rank: its DDP, its schedule, its (distributed) optimizer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import megatron.core.optimizer as megatron_optimizer
import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import schedules

from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.model import Batch, build_chunks, keywords
from harness.backends.training_rank import LEARNING_RATE
from harness.trial.result import Phase

NextBatch = Callable[[int], Batch]
"""The batch of a microbatch by its number."""


class FusedAdam(torch.optim.AdamW):
    """AdamW without temporaries, as Transformer Engine's and Apex's, which Megatron prefers."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options, fused=True)


class MegatronTraining:
    """Model chunks, gradient buffers and optimizer of this rank, in a world of world.py's."""

    def __init__(
        self, case: MegatronCase, config: Any, core_attention: type[torch.nn.Module]
    ) -> None:
        self.case, self.config = case, config
        self.model = self._distributed(build_chunks(case, core_attention, config))
        self.optimizer = self._optimizer()
        config.grad_scale_func = self.optimizer.scale_loss
        config.finalize_model_grads_func = finalize_model_grads
        if case.overlap_grad_reduce:
            syncs = [chunk.no_sync for chunk in self.model]
            config.no_sync_func = syncs if len(syncs) > 1 else syncs[0]

    def _distributed(self, chunks: list[Any]) -> list[Any]:
        """As Megatron-LM wraps them (training.py, get_model): later chunks have one bucket."""
        sharded = self.case.use_distributed_optimizer
        overlaps = self.case.overlap_grad_reduce
        values = {
            **keywords(self.case, DistributedDataParallelConfig),
            "overlap_param_gather": self.case.overlap_param_gather and sharded and overlaps,
        }
        ddp = DistributedDataParallelConfig(**values)
        return [
            DistributedDataParallel(self.config, ddp, chunk, disable_bucketing=index > 0)
            for index, chunk in enumerate(chunks)
        ]

    def _optimizer(self) -> Any:
        fixed = {"optimizer": "adam", "lr": LEARNING_RATE, "bf16": True}
        given = keywords(self.case, OptimizerConfig) | fixed | {"params_dtype": torch.bfloat16}
        options = OptimizerConfig(**given)
        with _adam():
            return get_megatron_optimizer(options, self.model, use_gloo_process_groups=False)

    def forward_backward(self, next_batch: NextBatch) -> list[Any]:
        """All microbatches through Megatron's schedule; on the last stage their mean losses."""

        def forward_step(numbers: Iterator[int], model: Any) -> tuple[torch.Tensor, Any]:
            batch = next_batch(next(numbers))
            return batch.forward(model), batch.loss

        for chunk in self.model:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        interleaved = self.case.interleaved
        numbers = [iter(range(self.case.num_microbatches)) for _ in self.model]
        losses: list[Any] = schedules.get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=numbers if interleaved else numbers[0],
            model=self.model if interleaved else self.model[0],
            num_microbatches=self.case.num_microbatches,
            seq_length=self.case.seq_length,
            micro_batch_size=self.case.micro_batch_size,
            forward_only=False,
        )
        return losses

    def close(self) -> None:
        """Let go of the tensors: hooks on gradient accumulators hold the model from where no
        garbage collector looks, and the rotary table's cache holds its module."""
        for chunk in self.model:
            chunk.grad_accs.clear()
        RotaryEmbedding.forward.cache_clear()

    def resident(self) -> dict[str, list[torch.Tensor]]:
        """Tensors that live from step to step, by the advisor's names of what they are."""
        modules = [chunk.module for chunk in self.model]
        buffers = [b for c in self.model for b in (*c.buffers, *c.expert_parallel_buffers)]
        weights = [p.data for module in modules for p in module.parameters()]
        weights += [b.param_data for b in buffers if b.param_data is not None]
        return {
            "weights": weights,
            "gradients": [b.grad_data for b in buffers],
            "optimizer": list(_optimizer_tensors(self.optimizer)),
        }


def _optimizer_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """fp32 main parameters and moments; the step counters of torch's AdamW are 4 bytes each."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if part.optimizer is None:  # of a rank without parameters
            continue
        for group in part.optimizer.param_groups:
            yield from group["params"]
        for state in part.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


@contextmanager
def _adam() -> Iterator[None]:
    """Where Megatron falls back on torch's AdamW, the fused one."""
    if not getattr(megatron_optimizer, "USING_PYTORCH_OPTIMIZER", False):
        yield
        return
    with patch.object(torch.optim, "AdamW", FusedAdam):
        yield


@contextmanager
def announced_phases(announce: Callable[[Phase], None]) -> Iterator[None]:
    """Tells when a forward or backward of the schedule begins."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        announce(Phase.FORWARD)
        return step_forward(*args, **kwargs)

    def backward(*args: Any, **kwargs: Any) -> Any:
        announce(Phase.BACKWARD)
        return step_backward(*args, **kwargs)

    step_forward, step_backward = schedules.forward_step, schedules.backward_step
    with (
        patch.object(schedules, "forward_step", forward),
        patch.object(schedules, "backward_step", backward),
    ):
        yield
