"""Pipeline parallelism: the 1F1B schedule of torch.distributed.pipelining."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from harness.backends.native.modules.model import GptModel
from harness.backends.native.process_groups import Groups
from harness.measure.training_step import Recorder
from harness.trial.result import Phase
from harness.trial.trial import Workload


class Pipeline:
    """This rank's stage in its schedule; every stage has the same number of layers."""

    def __init__(
        self, model: GptModel, groups: Groups, workload: Workload, dtype: torch.dtype
    ) -> None:
        layout = workload.layout
        self._first, self._last = model.embedding is not None, model.output_layer is not None
        self._microbatches = workload.num_microbatches
        self._model, self._device, self._dtype = model, groups.device, dtype
        positions = workload.seq_length // layout.sequence_shards
        self._hidden = (workload.micro_batch_size, positions, workload.model.hidden_size)
        padded = workload.model.padded_vocab_size(layout.tensor_model_parallel_size)
        width = padded // layout.tensor_model_parallel_size
        ids = torch.empty(
            workload.micro_batch_size, workload.seq_length, dtype=torch.int64, device="meta"
        )
        hidden = torch.empty(self._hidden, dtype=dtype, device="meta")
        logits = torch.empty(*ids.shape, width, dtype=dtype, device="meta")
        stage = PipelineStage(
            model,
            groups.stage,
            layout.pipeline_model_parallel_size,
            groups.device,
            input_args=(ids,) if self._first else (hidden.requires_grad_(),),
            output_args=(logits.requires_grad_(),) if self._last else (hidden.requires_grad_(),),
            group=groups.pipeline,
        )
        self._schedule = Schedule1F1B(
            stage, self._microbatches, loss_fn=self._scaled_loss, scale_grads=False
        )
        self._recorder: Recorder | None = None
        model.register_forward_pre_hook(self._forward_begins)
        model.register_forward_hook(self._backward_will_begin)

    def _scaled_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._model.loss(logits, labels) / self._microbatches

    def _forward_begins(self, *_: Any) -> None:
        if self._recorder is not None:
            self._recorder.phase(Phase.FORWARD)

    def _backward_will_begin(self, _: Any, __: Any, output: Tensor) -> None:
        recorder = self._recorder
        if recorder is not None and output.requires_grad:
            graph: Any = output
            graph.register_hook(lambda _: recorder.phase(Phase.BACKWARD))

    def run(self, tokens: Tensor, labels: Tensor, recorder: Recorder) -> Tensor:
        """Forward and backward of all microbatches; the mean loss on the last stage, else 0."""
        losses: list[Tensor] = []
        self._recorder = recorder
        try:
            inputs = (tokens,) if self._first else ()
            targets: dict[str, Any] = {"target": labels, "losses": losses} if self._last else {}
            self._schedule.step(*inputs, **targets)
        finally:
            self._recorder = None
        if not losses:
            return torch.zeros((), device=self._device)
        return torch.stack(losses).sum().detach()

    def example_input(self, tokens: Tensor) -> Tensor:
        """One microbatch's input of this stage: token ids, or noise in place of hidden states."""
        if self._first:
            return tokens
        noise = torch.randn(self._hidden, dtype=self._dtype, device=self._device)
        return noise.requires_grad_()
