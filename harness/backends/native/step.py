"""The native training step. Ranks are one DeviceMesh of tensor, data and pipeline parallelism;
stages follow the 1F1B schedule of torch.distributed.pipelining."""

import sys
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from harness.backends.native import fused_adamw, predict, probe, regions, unsupported
from harness.backends.native.modules.layer_settings import LayerSettings
from harness.backends.native.modules.linear import TensorParallel
from harness.backends.native.modules.model import GptModel, initialise
from harness.backends.native.process_groups import Groups, make_groups
from harness.backends.native.setting import parse_native_setting
from harness.backends.training_rank import SEED_STRIDE, job_flops, random_tokens
from harness.measure.training_step import Recorder
from harness.trial.result import Flops, Phase
from harness.trial.trial import Device, Workload


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


def build_step(
    workload: Workload, seed: int, *, dtype: torch.dtype = torch.bfloat16
) -> "NativeStep":
    """Model, optimizer and data of this rank; UserError for what the backend does not run. `dtype`
    fp32 is for tests of exactness: predictions are of 16-bit training."""
    unsupported.check(workload)
    if workload.device is Device.CUDA:
        print("native: the layers are plain torch modules", file=sys.stderr)
    groups = make_groups(workload.layout, workload.device)
    torch.manual_seed(seed + SEED_STRIDE * groups.data_rank)
    return NativeStep(workload, _make_model(workload, groups, dtype, seed), groups, dtype, seed)


def _make_model(workload: Workload, groups: Groups, dtype: torch.dtype, seed: int) -> GptModel:
    setting = parse_native_setting(workload.recompute)
    layout, sharded = workload.layout, unsupported.is_fully_sharded(workload)
    model = GptModel(
        LayerSettings(
            model=predict.as_native(workload.model),
            seq_length=workload.seq_length,
            num_microbatches=workload.num_microbatches,
            dtype=torch.float32 if sharded else dtype,
            device=groups.device,
            tensor=TensorParallel(
                group=groups.tensor,
                size=layout.tensor_model_parallel_size,
                rank=groups.tensor_rank,
                sequence_parallel=layout.sequence_parallel,
            ),
            policy=setting.policy,
            offloaded=setting.offloaded,
        ),
        predict.native_plan(workload, setting),
        stage=groups.stage,
        num_stages=layout.pipeline_model_parallel_size,
    )
    initialise(model, seed)
    if sharded:
        _fully_shard(model, groups, dtype)
    return model


def _fully_shard(model: GptModel, groups: Groups, dtype: torch.dtype) -> None:
    """FSDP2, layer by layer: fp32 shards, gathered in `dtype`, gradients reduced in fp32 after
    every microbatch."""
    assert groups.mesh is not None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in model.decoder.layers.values():
        fully_shard(layer, mesh=groups.mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=groups.mesh["dp"], mp_policy=policy)


class NativeStep:
    """One rank's training loop: gradient accumulation over microbatches, then fused AdamW. Every
    step trains on the same random tokens: no data loading is in it."""

    def __init__(
        self, workload: Workload, model: GptModel, groups: Groups, dtype: torch.dtype, seed: int
    ) -> None:
        self.workload, self.model = workload, model
        self.microbatches = workload.num_microbatches
        self._groups, self._dtype = groups, dtype
        self._tokens = _tokens(workload, groups, seed)
        self.optimizer = fused_adamw.Optimizer(
            model.parameters(),
            model.partly_seen_parameters(),
            groups,
            fully_sharded=unsupported.is_fully_sharded(workload),
        )
        self._pipeline: Pipeline | None = None
        if groups.pipeline is not None:
            self._pipeline = Pipeline(model, groups, workload, dtype)

    def run(self, recorder: Recorder) -> float:
        """One optimizer step over all microbatches; the mean loss of the whole batch."""
        with regions.replays_marked(recorder.replay):
            loss = self.forward_backward(recorder)
        recorder.phase(Phase.OPTIMIZER)
        self.optimizer.step()
        return self._over_ranks(loss)

    def forward_backward(self, recorder: Recorder) -> Tensor:
        """Gradients of all microbatches; this rank's loss (0 before the last stage)."""
        if self._pipeline is not None:
            tokens, labels = self._tokens[:, :-1], self._tokens[:, 1:]
            return self._pipeline.run(tokens.contiguous(), labels.contiguous(), recorder)
        total = torch.zeros((), device=self._groups.device)
        for batch in self._tokens.chunk(self.microbatches):
            recorder.phase(Phase.FORWARD)
            loss = self._loss(batch)
            recorder.phase(Phase.BACKWARD)
            torch.autograd.backward(loss / self.microbatches)
            total += loss.detach() / self.microbatches
        return total

    def _loss(self, batch: Tensor) -> Tensor:
        logits = self.model(batch[:, :-1])
        return self.model.loss(logits, batch[:, 1:])

    def _over_ranks(self, loss: Tensor) -> float:
        if self._groups.pipeline is not None:
            dist.all_reduce(loss, group=self._groups.pipeline)
        if self._groups.data is not None:
            dist.all_reduce(loss, group=self._groups.data)
            loss = loss / self.workload.layout.data_parallel_size
        return float(loss.item())

    def saved_bytes_per_layer(self) -> int | None:
        """Bytes on the device that autograd keeps, one microbatch: mean of the stage's layers. None
        where counting needs more memory than there is."""
        if self._counted is None:
            return None
        return self._counted.saved_bytes // len(self.model.decoder.layers)

    def flops(self) -> Flops:
        """FLOPs of one step, all ranks; replays as torch counted them on this rank's stage."""
        model = job_flops(self.workload)
        if self._counted is None:
            return Flops(model=model, hardware=model, replayed_per_layer=None)
        replayed = self._counted.replayed_flops
        return Flops(
            model=model,
            hardware=model + replayed * self.microbatches * self.workload.layout.world_size,
            replayed_per_layer=replayed // len(self.model.decoder.layers),
        )

    @cached_property
    def _counted(self) -> probe.Counted | None:
        """One more microbatch, counted; None where that fails, in whatever way. The steps have been
        measured by now, and must not be lost for a count. Operators that torch takes apart to count
        them need more memory than a step, which may just have fitted."""
        try:
            return probe.count(self.model.decoder, self._one_microbatch)
        except Exception as error:
            print(f"native: cannot count kept bytes and replays: {error!r}", file=sys.stderr)
            return None
        finally:
            self.optimizer.drop_gradients()

    def _one_microbatch(self) -> None:
        """Forward and backward of this stage alone, on the first microbatch or on noise."""
        batch = self._tokens[: self.workload.micro_batch_size]
        if self._pipeline is None:
            torch.autograd.backward(self._loss(batch))
            return
        output = self.model(self._pipeline.example_input(batch[:, :-1]))
        torch.autograd.backward(output, torch.ones_like(output))

    @property
    def stage(self) -> int:
        """Pipeline stage of this rank."""
        return self._groups.stage

    def close(self) -> None:
        """Leave the process group."""
        self._groups.close()


def _tokens(workload: Workload, groups: Groups, seed: int) -> Tensor:
    """[microbatches x micro_batch_size, seq_length + 1]: this data-parallel rank's sequences.
    Sequence i of the global batch depends on the seed and on i alone."""
    ranks, vocab_size = workload.layout.data_parallel_size, workload.model.vocab_size
    mine = range(groups.data_rank, workload.global_batch_size, ranks)
    sequences = [random_tokens(seed, index, vocab_size, workload.seq_length) for index in mine]
    return torch.stack(sequences).to(groups.device)
