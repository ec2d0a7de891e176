"""A whole step of torchtitan's or transformers' Llama under FSDP2, on fake tensors and a fake
process group."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from msgspec import Struct
from msgspec.structs import astuple
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from advisor.frameworks.torch.parameter_groups import (
    Part,
    Sharding,
    fsdp_static,
    fsdp_working_set,
)
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.memory.chunk import chunk_footprint
from advisor.memory.static import stage_elements
from advisor.models.layer_kind import DENSE
from advisor.plan.recompute_plan import RecomputePlan

from ..recorded import measured
from .blocks import llama_arguments, llama_widths
from .expert_blocks import titan_arguments
from .kernels import GpuKernels
from .meter import LiveBytes, Requests
from .titan import import_titan

RANKS = 8
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


class Step(Struct, frozen=True, dict=True):
    """Bytes above the sharded parameters and the model's own buffer."""

    forward: int
    backward: int


def predicted_step(shape: RankShape, plan: RecomputePlan, sharding: Sharding) -> Step:
    """Of the whole model, parameters that stay gathered included."""
    chunk = ModelChunk((DENSE,) * shape.model.num_layers, embedding=True, head=True)
    elements = stage_elements(shape, (chunk,))
    gathered = fsdp_static(Part(elements, elements), sharding).weights - sharding.shard(elements)
    working_set = fsdp_working_set(shape, sharding)
    found = chunk_footprint(shape, plan, True, True, working_set=working_set)
    return Step(found.forward.num_bytes + gathered, found.backward.num_bytes + gathered)


def recorded_step(what: str, *case: Any, by: Callable[[], Step]) -> Step:
    """The step of `case`, recorded or given by `by`."""
    return Step(*measured(what, *case, by=lambda: astuple(by())))


def assert_near(predicted: Step, step: Step, tolerance: float) -> None:
    assert predicted.forward == pytest.approx(step.forward, rel=tolerance)
    assert predicted.backward == pytest.approx(step.backward, rel=tolerance)


@contextmanager
def fake_ranks(replicas: int = 1, ranks: int = RANKS) -> Iterator[Any]:
    """A mesh of ranks of which only this one exists, in one or more rows."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        sizes, names = (ranks,), None
        if replicas > 1:
            sizes, names = (replicas, ranks // replicas), ("replicas", "shards")
        yield init_device_mesh("cpu", sizes, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


def titan_step(
    shape: RankShape,
    checkpoint: Callable[[nn.Module], None],
    *,
    reshards: bool = True,
    root_holds_ends: bool = False,
    replicas: int = 1,
    ranks: int = RANKS,
    measure: Callable[[RankShape, Any], Any] | None = None,
) -> Any:
    """Forward, loss and backward of one microbatch: a Step, or what `measure` makes of the model.
    The second of two steps is measured. replicas: groups of ranks that hold the same shards."""
    fake = fake_ranks(replicas, ranks)
    with fake as mesh, FakeTensorMode(allow_non_fake_inputs=True), GpuKernels():
        model = _titan(shape)
        checkpoint(model)
        policy = torch.bfloat16, torch.float32
        if root_holds_ends:
            mixed = MixedPrecisionPolicy(*policy)
            for block in model.layers.values():
                fully_shard(block, mesh=mesh, mp_policy=mixed, reshard_after_forward=reshards)
            fully_shard(model, mesh=mesh, mp_policy=mixed)
        else:
            package = "llama3" if shape.model.num_moe_experts is None else "llama4"
            apply = import_titan(f"models.{package}.infra.parallelize").apply_fsdp
            apply(
                model,
                mesh,
                *policy,
                pp_enabled=False,
                reshard_after_forward_policy="default" if reshards else "never",
            )
        return (measure or measured_step)(shape, model)


def transformers_step(
    shape: RankShape,
    *,
    checkpointed: bool,
    by_accelerate: bool,
    reshards: bool = True,
    reduce_dtype: torch.dtype = torch.float32,
    measure: Callable[..., Any] | None = None,
    checkpoint: Callable[[Any], None] = lambda model: None,
) -> Any:
    """The same of transformers' Llama, whose forward computes the loss; its groups are those that
    Accelerate makes, or its layers and the root."""
    with fake_ranks() as mesh, FakeTensorMode(allow_non_fake_inputs=True), GpuKernels():
        model = llama(shape, checkpointed=checkpointed)
        checkpoint(model)
        mixed = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype)
        if by_accelerate:
            _prepare(model, mesh, mixed, reshards)
        else:
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh, mp_policy=mixed, reshard_after_forward=reshards)
            fully_shard(model, mesh=mesh, mp_policy=mixed)
        return (measure or measured_step)(shape, model, loss=loss_inside)


def llama(
    shape: RankShape, dtype: torch.dtype = torch.float32, *, checkpointed: bool = False
) -> Any:
    """The whole model of transformers, its weights in `dtype`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **llama_widths(shape.model),
        num_hidden_layers=shape.model.num_layers,
        vocab_size=shape.model.vocab_size,
        tie_word_embeddings=shape.model.share_embeddings_and_output_weights,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM._from_config(config, dtype=dtype).train()
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    return model


def _prepare(model: Any, mesh: Any, mixed: MixedPrecisionPolicy, reshards: bool) -> None:
    """As Accelerator.prepare does under FSDP2."""
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=reshards,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        mixed_precision_policy=mixed,
        cpu_ram_efficient_loading=False,
    )
    accelerator: Any = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh={("ranks",): mesh},
        parallelism_config=SimpleNamespace(fsdp_dim_names=("ranks",)),
        mixed_precision="bf16",
        is_main_process=False,
        device=torch.device("cpu"),
    )
    fsdp2_prepare_model(accelerator, model)


def _titan(shape: RankShape) -> Any:
    model = shape.model
    if model.num_moe_experts is not None:
        return import_titan("models.qwen3.model.model").Qwen3Model(titan_arguments(shape))
    arguments = llama_arguments(
        model, model.num_layers, vocab_size=model.vocab_size, max_seq_len=shape.seq_length
    )
    return import_titan("models.llama3.model.model").Transformer(arguments)


def measured_step(shape: RankShape, model: Any, loss: Loss | None = None) -> Step:
    """Of the second of two steps."""
    tokens, labels = _batch(shape)
    known = [parameter.to_local() for parameter in model.parameters()]
    known += model.buffers()
    with LiveBytes((*known, tokens, labels)) as live:
        for _ in range(2):  # FSDP2 sets itself up in the first
            live.reset_peak()
            before = live.now
            found = (loss or _forward)(model, tokens, labels)
            forward = live.peak - before
            live.reset_peak()
            _backward(model, found)
            backward = live.peak - before
            del found
        return Step(forward, backward)


def requests_of_two_steps(shape: RankShape, model: Any) -> list[tuple[int, int]]:
    """As Requests has them; those of FSDP2's own streams are among them."""
    tokens, labels = _batch(shape)
    known = [parameter.to_local() for parameter in model.parameters()]
    with Requests((*known, *model.buffers(), tokens, labels)) as requests:
        for _ in range(2):
            _backward(model, _forward(model, tokens, labels))
        return requests.asked


def _batch(shape: RankShape) -> tuple[torch.Tensor, ...]:
    size = shape.micro_batch_size, shape.seq_length
    return tuple(torch.randint(0, shape.model.vocab_size, size) for _ in range(2))


def _forward(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1), reduction="sum")


def loss_inside(model: Any, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As transformers' models compute it."""
    # whether sequences are packed, which fake tensors cannot tell
    with patch("transformers.masking_utils.find_packed_sequence_indices", lambda *_, **__: None):
        loss: torch.Tensor = model(input_ids=tokens, labels=labels).loss
    return loss


def _backward(model: nn.Module, loss: torch.Tensor) -> None:
    backward(loss)
    model.zero_grad()


def backward(loss: torch.Tensor) -> None:
    """As loss.backward() does, whose wrapper would leave GpuKernels."""
    one = torch.ones_like(loss)
    torch.autograd.Variable._execution_engine.run_backward(
        (loss,), (one,), False, False, (), True, True
    )


def tracked_peak(shape: RankShape, model: nn.Module, loss: Loss | None = None) -> int:
    """Peak of two steps by torch's own MemTracker, sharded parameters and buffers included."""
    tokens, labels = _batch(shape)
    tracker = MemTracker()
    tracker.track_external(model, tokens, labels)
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            found = (loss or _forward)(model, tokens, labels)
            _backward(model, found)
            del found
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return int(peak["Total"])
