"""A whole step of torchtitan's Llama under FSDP2, on fake tensors and a fake process group."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from msgspec import Struct
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from advisor.layers.shape import RankShape

from .expert_blocks import titan_arguments
from .kernels import GpuKernels
from .meter import LiveBytes
from .titan import import_titan

RANKS = 8


class Step(Struct, frozen=True, dict=True):
    """Bytes above the sharded parameters and the model's own buffer."""

    forward: int
    backward: int


@contextmanager
def fake_ranks() -> Iterator[Any]:
    """A mesh of RANKS ranks of which only this one exists."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (RANKS,))
    finally:
        dist.destroy_process_group()


def titan_step(
    shape: RankShape,
    checkpoint: Callable[[nn.Module], None],
    *,
    reshards: bool = True,
    root_holds_ends: bool = False,
    measure: Callable[[RankShape, Any], Any] | None = None,
) -> Any:
    """Forward, loss and backward of one microbatch: a Step, or what `measure` makes of the model.

    The second of two steps is measured.
    """
    with fake_ranks() as mesh, FakeTensorMode(allow_non_fake_inputs=True), GpuKernels():
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


def _titan(shape: RankShape) -> Any:
    model = shape.model
    if model.num_moe_experts is not None:
        return import_titan("models.qwen3.model.model").Qwen3Model(titan_arguments(shape))
    arguments = import_titan("models.llama3.model.args").TransformerModelArgs(
        dim=model.hidden_size,
        n_layers=model.num_layers,
        n_heads=model.num_attention_heads,
        n_kv_heads=model.num_query_groups,
        vocab_size=model.vocab_size,
        multiple_of=model.ffn_hidden_size,
        max_seq_len=shape.seq_length,
        ffn_dim_multiplier=model.ffn_hidden_size / (8 * model.hidden_size),
    )
    return import_titan("models.llama3.model.model").Transformer(arguments)


def measured_step(shape: RankShape, model: Any) -> Step:
    """Of the second of two steps."""
    tokens, labels = _batch(shape)
    known = [parameter.to_local() for parameter in model.parameters()]
    with LiveBytes((*known, tokens, labels)) as live:
        for _ in range(2):  # FSDP2 sets itself up in the first
            live.reset_peak()
            before = live.now
            loss = _forward(model, tokens, labels)
            forward = live.peak - before
            live.reset_peak()
            _backward(model, loss)
            backward = live.peak - before
            del loss
        return Step(forward, backward)


def _batch(shape: RankShape) -> tuple[torch.Tensor, ...]:
    size = shape.micro_batch_size, shape.seq_length
    return tuple(torch.randint(0, shape.model.vocab_size, size) for _ in range(2))


def _forward(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1), reduction="sum")


def _backward(model: nn.Module, loss: torch.Tensor) -> None:
    """As loss.backward() does, whose wrapper would leave GpuKernels."""
    one = torch.ones_like(loss)
    torch.autograd.Variable._execution_engine.run_backward(
        (loss,), (one,), False, False, (), True, True
    )
    model.zero_grad()


def tracked_peak(shape: RankShape, model: nn.Module) -> int:
    """Peak of two steps by torch's own MemTracker, sharded parameters and buffers included."""
    tokens, labels = _batch(shape)
    tracker = MemTracker()
    tracker.track_external(model, tokens, labels)
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            loss = _forward(model, tokens, labels)
            _backward(model, loss)
            del loss
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return int(peak["Total"])
