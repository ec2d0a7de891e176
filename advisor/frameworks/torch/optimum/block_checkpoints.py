"""Checkpoints of torch chosen block by block: apply_plan(model.layers), ahead of compile and FSDP.

Of each block: None, no checkpoint; or a Way, a checkpoint that keeps the outputs of some operators,
has those of others wait on the host, and computes all else again in the backward. Operators are
numbered from 0 in the order in which the block calls them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

Call = tuple[str, int]


class Way(NamedTuple):
    """A checkpoint: calls whose outputs it keeps, and that wait on the host; `input_on_host`: the
    block's input waits there too; `early_stop`: its replay ends with the last tensor needed."""

    keep: frozenset[Call] = frozenset()
    host: frozenset[Call] = frozenset()
    input_on_host: bool = False
    early_stop: bool = True


KINDS = {
    op.default: kind
    for kind, ops in {
        "matmul": (torch.ops.aten.mm, torch.ops.aten.addmm),
        "attention": (
            torch.ops.aten._scaled_dot_product_flash_attention,
            torch.ops.aten._scaled_dot_product_efficient_attention,
            torch.ops.aten._scaled_dot_product_cudnn_attention,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        ),
    }.items()
    for op in ops
}
PRESERVE_RNG_STATE = True
BLOCKS: Sequence[Way | None] = ()


def apply_plan(blocks: nn.Module) -> None:
    """Wrap the children of `blocks` (nn.ModuleList or nn.ModuleDict) as BLOCKS says."""
    plan = Plan()
    for name, block in [*blocks.named_children()]:
        blocks.register_module(name, plan.wrap(block))


class Plan:
    """Wraps block after block, in the order in which they run."""

    def __init__(self) -> None:
        self._number = 0
        self._before: Copies | None = None

    def wrap(self, block: nn.Module) -> nn.Module:
        """The next block under its Way; what the one before has on the host travels meanwhile."""
        if self._number == len(BLOCKS):
            raise ValueError(f"the plan has {len(BLOCKS)} blocks, but the model has more")
        wrapped, copies = checkpointed(block, BLOCKS[self._number])
        if self._before is not None:
            wrapped.register_forward_hook(partial(_during_next_block, self._before))
        self._number += 1
        self._before = copies
        if copies is not None and self._number == len(BLOCKS):
            wrapped.register_forward_hook(lambda *_: copies.sent())
        return wrapped


def checkpointed(block: nn.Module, way: Way | None) -> "tuple[nn.Module, Copies | None]":
    """`block` under `way`, and what it has on the host."""
    if way is None:
        return block, None
    wrap = partial(
        checkpoint_wrapper, block, preserve_rng_state=PRESERVE_RNG_STATE, early_stop=way.early_stop
    )
    if not (way.keep or way.host or way.input_on_host):
        return wrap(), None
    if not (way.host or way.input_on_host):
        return wrap(context_fn=partial(kept_on_device, way.keep)), None
    copies = Copies()
    wrapped = wrap(context_fn=lambda: (Keep(way, copies), Replay(copies)))
    if way.input_on_host:
        _put_input_on_host(wrapped, copies)
    return wrapped, copies


def kept_on_device(keep: frozenset[Call]) -> tuple[Any, Any]:
    """context_fn of torch.utils.checkpoint: what is kept is looked up in the replay."""
    number = Numbers(), Numbers()  # of the forward, and of the replay where torch asks there too

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = number[ctx.is_recompute].of(op) in keep
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.MUST_RECOMPUTE

    forward, replay = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return forward, replay


class Numbers:
    """Counts the calls of a block."""

    def __init__(self) -> None:
        self._count = Counter[str]()

    def of(self, op: Any) -> Call | None:
        """Kind and number of this call."""
        kind = KINDS.get(op)
        if kind is None:
            return None
        self._count[kind] += 1
        return kind, self._count[kind] - 1


class Copies:
    """What one block keeps of one microbatch in a selective checkpoint with copies to the host.

    Copies run on a stream of their own: to the host during the next block's forward, back during
    its backward. `sending`: tensors that may go when their copies are through.
    """

    def __init__(self) -> None:
        self.device: dict[Any, Any] = {}
        self.host: dict[Any, Any] = {}
        self.sending: list[torch.Tensor] = []

    def send(self, key: Any, made: Any) -> None:
        """Begin to copy the tensors of `made` to the host."""
        tensors: list[torch.Tensor] = []
        tree_map_only(torch.Tensor, tensors.append, made)
        self.host[key] = tree_map_only(torch.Tensor, to_host, made)
        self.sending += tensors

    def sent(self) -> None:
        """The device may take the memory of what was sent."""
        if self.sending:
            wait_for_copies(self.sending[0].device)
            self.sending.clear()

    def fetch(self) -> None:
        """Begin to bring all back."""
        for key, made in self.host.items():
            self.device[key] = tree_map_only(Waiting, Waiting.to_device, made)
        self.host.clear()

    def take(self, key: Any) -> Any:
        """What is kept as `key`; it is gone then."""
        if key in self.host:
            self.fetch()
        made = self.device.pop(key)
        tree_map_only(torch.Tensor, lambda tensor: wait_for_copies(tensor.device), made)
        return made


@dataclass
class Waiting:
    """A tensor on the host."""

    tensor: torch.Tensor
    device: torch.device

    def to_device(self) -> torch.Tensor:
        """Begin to copy it back."""
        return copied(self.tensor, torch.empty_like(self.tensor, device=self.device))


def to_host(tensor: torch.Tensor) -> Waiting:
    """Begin to copy `tensor` to pinned memory."""
    there = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return Waiting(copied(tensor, there), tensor.device)


STREAMS: dict[torch.device, Any] = {}


def copied(source: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """`source` copied on the stream of copies, after what computes it."""
    device = source.device if source.is_cuda else there.device
    if device.type != "cuda":
        return there.copy_(source)
    if device not in STREAMS:
        STREAMS[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    STREAMS[device].wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(STREAMS[device]):
        return there.copy_(source, non_blocking=True)


def wait_for_copies(device: torch.device) -> None:
    """What is computed next on `device` finds all copies there."""
    if device in STREAMS:
        torch.cuda.current_stream(device).wait_stream(STREAMS[device])


class Keep(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The forward of a checkpoint: outputs of some calls are kept, on the device or the host."""

    def __init__(self, way: Way, copies: Copies) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._way, self._copies, self._numbers = way, copies, Numbers()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        call = self._numbers.of(func)
        if call in self._way.keep:
            self._copies.device[call] = tree_map_only(torch.Tensor, torch.Tensor.detach, out)
        elif call in self._way.host:
            self._copies.send(call, tree_map_only(torch.Tensor, torch.Tensor.detach, out))
        return out


class Replay(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The replay: what is kept is looked up."""

    def __init__(self, copies: Copies) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._copies, self._numbers = copies, Numbers()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = self._numbers.of(func)
        if call in self._copies.device or call in self._copies.host:
            return self._copies.take(call)
        return func(*args, **(kwargs or {}))


def _put_input_on_host(block: nn.Module, copies: Copies) -> None:
    """Have the first argument of a checkpoint wait on the host; its names stay as they are."""
    forward = block.forward

    def with_copies(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        storage = hidden.untyped_storage()._cdata

        def pack(tensor: torch.Tensor) -> Any:
            if tensor.untyped_storage()._cdata != storage:
                return tensor
            copies.send("input", tensor.detach())
            return "input"

        def unpack(packed: Any) -> Any:
            return copies.take(packed) if isinstance(packed, str) else packed

        with saved_tensors_hooks(pack, unpack):
            return forward(hidden, *args, **kwargs)

    block.forward = with_copies


def _during_next_block(copies: Copies, module: nn.Module, args: Any, output: Any) -> None:
    """After the forward of the block after that of `copies`; and ahead of its backward."""
    copies.sent()
    hidden = output[0] if isinstance(output, tuple) else output
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: copies.fetch())
