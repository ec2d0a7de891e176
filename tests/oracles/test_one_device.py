"""A whole step on one device: transformers' Llama in 16 bits under torch's own Adam."""

import pytest
from msgspec.structs import replace

pytest.importorskip("transformers")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.base.dtypes import DType
from advisor.frameworks.torch.memory_model import adam_memory, lone_memory
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import FULL, NONE
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, OptimizerImplementation
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.memory.chunk import chunk_footprint
from advisor.models.layer_kind import DENSE
from tests.advisor.jobs import job_config

from .recorded import measured
from .stacks.fsdp import backward, llama, loss_inside
from .stacks.kernels import GpuKernels
from .stacks.meter import LiveBytes
from .stacks.shapes import llama_shape

LAYERS = 4
TOLERANCE = 0.005
CHUNK = ModelChunk((DENSE,) * LAYERS, embedding=True, head=True)


def _live(
    shape: RankShape, *, checkpointed: bool, microbatches: int, steps_in_backward: bool
) -> tuple[int, int]:
    """Peaks of the last microbatch's forward and backward above weights and moments."""
    with FakeTensorMode(allow_non_fake_inputs=True), GpuKernels():
        dtype = torch.float32 if shape.autocast else torch.bfloat16
        model = llama(shape, dtype, checkpointed=checkpointed)
        size = shape.micro_batch_size, shape.seq_length
        tokens, labels = (torch.zeros(size, dtype=torch.int64) for _ in range(2))
        if steps_in_backward:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(_forget)
        with LiveBytes((*model.parameters(), *model.buffers(), tokens, labels)) as live:
            for _ in range(microbatches):
                live.reset_peak()
                with torch.autocast("cpu", torch.bfloat16, enabled=shape.autocast):
                    loss = loss_inside(model, tokens, labels)
                forward = live.peak
                live.reset_peak()
                backward(loss)
                del loss
            return forward, live.peak


def _forget(parameter: torch.Tensor) -> None:
    parameter.grad = None


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["none", "full"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("vocabulary", [4096, 128256])
def test_peaks(vocabulary: int, tied: bool, checkpointed: bool, microbatches: int) -> None:
    _compare(llama_shape(vocabulary, tied=tied), checkpointed, microbatches)


@pytest.mark.parametrize("checkpointed", [False, True], ids=["none", "full"])
def test_steps_in_the_backward_leave_no_gradients(checkpointed: bool) -> None:
    _compare(llama_shape(4096), checkpointed, 1, steps_in_backward=True)


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["none", "full"])
@pytest.mark.parametrize("vocabulary", [4096, 128256])
def test_fp32_weights_under_autocast(vocabulary, checkpointed, microbatches) -> None:
    """Whose 16-bit copies stay to the end of the forward, checkpointed or not."""
    _compare(replace(llama_shape(vocabulary), autocast=True), checkpointed, microbatches)


def _compare(
    shape: RankShape, checkpointed: bool, microbatches: int, steps_in_backward: bool = False
) -> None:
    config = job_config(
        shape.seq_length,
        shape.micro_batch_size,
        shape.micro_batch_size * microbatches,
        optimizer_in_backward=steps_in_backward,
    )
    job = Job(
        model=shape.model, layout=ParallelLayout(), config=config, gpu=load_gpu("H100"), num_gpus=1
    )
    dtype = DType.FP32 if shape.autocast else DType.BF16
    fixed = lone_memory(job, shape, (CHUNK,), dtype, ())
    plan = chunk_plan(
        FULL if checkpointed else NONE, shape, CHUNK.layers, Semantics(starts_with_first=True)
    )
    assert fixed.working_set is not None
    working_set = replace(fixed.working_set, step=0)
    predicted = chunk_footprint(shape, plan, True, True, working_set=working_set)
    held = fixed.static.gradients
    asked = {
        "checkpointed": checkpointed,
        "microbatches": microbatches,
        "steps_in_backward": steps_in_backward,
    }
    forward, backward_peak = measured("one_device", shape, asked, by=lambda: _live(shape, **asked))
    assert predicted.forward.num_bytes + held == pytest.approx(forward, rel=TOLERANCE)
    assert predicted.backward.num_bytes + held == pytest.approx(backward_peak, rel=TOLERANCE)


@pytest.mark.parametrize("implementation", OptimizerImplementation)
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
def test_adam_of_torch(dtype: DType, implementation: OptimizerImplementation) -> None:
    """States and what a step takes next to them; its counters have 4 bytes a tensor."""
    shape = llama_shape(4096)
    config = job_config(512, 2, 2, optimizer_implementation=implementation)
    predicted = adam_memory(shape, (CHUNK,), config, dtype)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = llama(shape, getattr(torch, dtype))
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        how = {"fused": {"fused": True}, "foreach": {"foreach": True}}
        optimizer = torch.optim.AdamW(
            model.parameters(), **how.get(implementation, {"foreach": False})
        )
        gradients = [parameter.grad for parameter in model.parameters()]
        with LiveBytes((*model.parameters(), *gradients)) as live:
            optimizer.step()
            states = live.now
            live.reset_peak()
            optimizer.step()
            step = live.peak - states
    tensors = len(gradients)
    assert predicted.states + 4 * tensors == states
    assert predicted.step == step
