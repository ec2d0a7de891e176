"""How a layer carries out its plan: checkpoints, dropped outputs, policies, offload to the host. A
region is the code of one or more of Megatron's modules. Random states are restored for a replay,
and a replay runs its whole region (no early stop), as the advisor's plan says."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from advisor.layers.operators import Module
from advisor.plan.recompute_plan import ReplayRun
from harness.backends.native.modules.kernels import ATTENTION_FORWARD
from harness.backends.native.setting import OpPolicy

Function = Callable[..., Any]
Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]

_aten = torch.ops.aten
_MATMULS: Final = frozenset({_aten.mm.default, _aten.addmm.default})
_ATTENTIONS: Final = frozenset(op.default for op in ATTENTION_FORWARD)


class Watchers:
    """Who is told when a replay begins and ends, and what a policy keeps (see probe)."""

    replay: Callable[[bool], None] | None = None
    kept: Callable[[Tensor], None] | None = None


@contextmanager
def replays_marked(tell: Callable[[bool], None]) -> Iterator[None]:
    """Inside, `tell` hears when a replay begins (True) and ends."""
    Watchers.replay = tell
    try:
        yield
    finally:
        Watchers.replay = None


@contextmanager
def _replaying() -> Iterator[None]:
    if Watchers.replay is not None:
        Watchers.replay(True)
    try:
        yield
    finally:
        if Watchers.replay is not None:
            Watchers.replay(False)


def replay_later(
    function: Function, *inputs: Tensor, contexts: Contexts = lambda: (nullcontext(), _replaying())
) -> Any:
    """function(*inputs), of which only the inputs stay until the backward runs it again."""
    with set_checkpoint_early_stop(False):
        return checkpoint(function, *inputs, use_reentrant=False, context_fn=contexts)


def policy_contexts(
    policy: OpPolicy,
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Contexts of a checkpoint that keeps the outputs of the operators that `policy` names."""
    keeps = _Kept(policy)
    make: Any = create_selective_checkpoint_contexts
    save, replay_it = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
    forward, replay = make(lambda _, op, *__, **___: save if keeps(op) else replay_it)
    if Watchers.kept is not None:
        forward = _InOrder(forward, _Noting(_Kept(policy), Watchers.kept))
    return forward, _InOrder(_replaying(), replay)


class _InOrder(ExitStack):
    """Contexts, entered in order when this one is."""

    def __init__(self, *contexts: AbstractContextManager[Any]) -> None:
        super().__init__()
        self._contexts = contexts

    def __enter__(self) -> "_InOrder":
        for context in self._contexts:
            self.enter_context(context)
        return self


class _Kept:
    """Whether a policy keeps an operator's outputs, asked operator by operator of one layer."""

    def __init__(self, policy: OpPolicy) -> None:
        self._policy, self._matmuls = policy, 0

    def __call__(self, op: Any) -> bool:
        if op in _MATMULS:
            self._matmuls += 1
            return self._policy.keeps_matmul(self._matmuls - 1)
        return op in _ATTENTIONS and self._policy.keeps_attention


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells of every tensor that the policy's contexts keep, by what runs."""

    def __init__(self, keeps: _Kept, note: Callable[[Tensor], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keeps, self._note = keeps, note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if self._keeps(func):
            for tensor in filter(torch.is_tensor, _tensors(output)):
                self._note(tensor)
        return output


def host_offload() -> saved_tensors_hooks:
    """Inside, what autograd saves is copied to (pinned) host memory; parameters stay. On a GPU the
    copy has a stream of its own, for which compute waits only before the tensor is fetched back."""
    return saved_tensors_hooks(_to_host, _from_host)


_host_stream: Final[Callable[[torch.device], Any]] = lru_cache(maxsize=16)(torch.cuda.Stream)


def _to_host(tensor: Tensor) -> Any:
    owner = tensor if tensor._base is None else tensor._base
    if isinstance(owner, nn.Parameter):
        return tensor
    if not tensor.is_cuda:
        return tensor.clone(), tensor.device, None
    stream = _host_stream(tensor.device)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(stream):
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        host.copy_(tensor, non_blocking=True)
    tensor.record_stream(stream)
    return host, tensor.device, stream


def _from_host(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    host: Tensor
    host, device, stream = packed
    if stream is None:
        return host
    torch.cuda.current_stream(device).wait_stream(stream)
    return host.to(device, non_blocking=True)


class Regions:
    """The regions of one layer under its runs; `offloaded` modules send what they save away."""

    def __init__(
        self, runs: tuple[ReplayRun, ...] = (), offloaded: frozenset[Module] = frozenset()
    ) -> None:
        self._checkpoints = {run.modules for run in runs if not run.discards_output}
        self._dropped = {run.modules for run in runs if run.discards_output}
        self._offloaded = offloaded

    def run(self, modules: frozenset[Module], function: Function, *inputs: Tensor) -> Any:
        """function(*inputs), which is the code of `modules`, under their part of the plan."""
        with host_offload() if modules & self._offloaded else nullcontext():
            if modules in self._checkpoints:
                return replay_later(function, *inputs)
            return function(*inputs)

    def droppable(self, module: Module, layer: nn.Module, *inputs: Tensor) -> tuple[Any, "Dropped"]:
        """layer(*inputs), a tensor or several with memory of their own, and a handle by which they
        may be dropped once they have been read."""
        modules = frozenset({module})
        if modules not in self._dropped:
            return self.run(modules, layer, *inputs), Dropped(None)
        replay = _Replay(layer, len(inputs))
        function: Any = _DroppedOutput
        output = function.apply(replay, *inputs, *layer.parameters())
        replay.storages = [tensor.untyped_storage() for tensor in _tensors(output)]
        return output, Dropped(replay)


class Dropped:
    """Handle on outputs that may be dropped (Megatron's CheckpointWithoutOutput)."""

    def __init__(self, replay: "_Replay | None") -> None:
        self._replay = replay

    def until_backward_of(self, reader: Tensor) -> None:
        """Free the outputs now; write them again as soon as the gradient of `reader` is known. All
        that keeps the outputs for its backward must lie between them and `reader`."""
        if self._replay is None or not reader.requires_grad:
            return
        self._replay.drop()
        graph: Any = reader
        graph.register_hook(self._replay.restore)


def _tensors(output: Any) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


class _Replay:
    """Dropped outputs of a layer: their storages, and the graph of their replay once it has run."""

    def __init__(self, layer: nn.Module, num_inputs: int) -> None:
        self.layer, self.num_inputs = layer, num_inputs
        self.ctx: Any = None
        self.storages: list[torch.UntypedStorage] = []
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()
        self._num_bytes: list[int] = []

    def drop(self) -> None:
        """Free the outputs' storages; whoever kept a tensor keeps an empty one."""
        self._num_bytes = [storage.nbytes() for storage in self.storages]
        for storage in self.storages:
            storage.resize_(0)

    def restore(self, _: Tensor) -> None:
        """Run the layer again and write its outputs where they were, which is then the readers'
        alone: this object lives as long as the graph, the outputs must not."""
        storages, self.storages = self.storages, []
        if not storages or self.ctx is None:
            raise RuntimeError(
                "a dropped output can be replayed only once, but backward ran a second time"
            )
        inputs = [
            saved.detach().requires_grad_(saved.requires_grad) for saved in self.ctx.saved_tensors
        ]
        with torch.enable_grad(), _replaying():
            # no module hooks inside a backward
            self.outputs = _tensors(self.layer.forward(*inputs))
        self.inputs = (*inputs, *self.layer.parameters())
        for storage, size, output in zip(storages, self._num_bytes, self.outputs, strict=True):
            storage.resize_(size)
            storage.copy_(output.untyped_storage(), non_blocking=True)

    def gradients(self, grads: tuple[Tensor, ...]) -> list[Tensor | None]:
        """Gradients of the inputs by way of the replay, whose graph is then let go."""
        assert self.outputs
        wanted = [tensor for tensor in self.inputs if tensor.requires_grad]
        found = iter(torch.autograd.grad(self.outputs, wanted, grads))
        inputs, self.ctx, self.outputs, self.inputs = self.inputs, None, (), ()
        return [next(found) if tensor.requires_grad else None for tensor in inputs]


class _DroppedOutput(torch.autograd.Function):
    """A layer without its graph: keeps the inputs; the parameters are arguments of their own."""

    @staticmethod
    def forward(ctx: Any, replay: _Replay, *tensors: Tensor) -> Any:
        inputs = tensors[: replay.num_inputs]
        ctx.save_for_backward(*inputs)
        ctx.replay, replay.ctx = replay, ctx
        return replay.layer(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.replay.gradients(grads)
