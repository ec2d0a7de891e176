"""How a layer carries out its plan: checkpoints, dropped outputs, policies, offload to the host.

A region is the code of one or more of Megatron's modules. Random states are restored for a replay,
and a replay runs its whole region (no early stop), as the advisor's plan says.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from advisor.layers.operators import Module
from advisor.recompute import ReplayRun
from harness.backends.native.modules.attention import ATTENTION_FORWARD
from harness.backends.native.offload import HostOffload
from harness.backends.native.setting import OpPolicy

Function = Callable[..., Tensor]
Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]

_aten = torch.ops.aten
_MATMULS: Final = frozenset({_aten.mm.default, _aten.addmm.default})
_ATTENTIONS: Final = frozenset(op.default for op in ATTENTION_FORWARD)


class Watchers:
    """Who is told when a replay begins and ends, and what a policy keeps (see probe)."""

    replay: Callable[[bool], None] | None = None
    kept: Callable[[Tensor], None] | None = None


@contextmanager
def _replaying() -> Iterator[None]:
    if Watchers.replay is not None:
        Watchers.replay(True)
    try:
        yield
    finally:
        if Watchers.replay is not None:
            Watchers.replay(False)


def _plain_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), _replaying()


def replay_later(function: Function, *inputs: Tensor, contexts: Contexts = _plain_contexts) -> Any:
    """function(*inputs), of which only the inputs stay until the backward runs it again."""
    with set_checkpoint_early_stop(False):
        return checkpoint(function, *inputs, use_reentrant=False, context_fn=contexts)


def policy_contexts(policy: OpPolicy) -> Contexts:
    """Contexts of a checkpoint that keeps the outputs of the operators that `policy` names."""
    return partial(_policy_contexts, policy)


def _policy_contexts(
    policy: OpPolicy,
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    make: Any = create_selective_checkpoint_contexts
    forward, replay = make(_Decide(policy))
    return forward, _Both(_replaying(), replay)


class _Both(ExitStack):
    """Two contexts, entered in order when this one is."""

    def __init__(self, *contexts: AbstractContextManager[Any]) -> None:
        super().__init__()
        self._contexts = contexts

    def __enter__(self) -> "_Both":
        for context in self._contexts:
            self.enter_context(context)
        return self


class _Decide:
    """The policy as torch asks for it, operator by operator of one layer's forward."""

    def __init__(self, policy: OpPolicy) -> None:
        self._policy, self._matmuls = policy, 0

    def __call__(self, ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if not self._keeps(op):
            return CheckpointPolicy.PREFER_RECOMPUTE
        outputs = ctx.op_output if isinstance(ctx.op_output, tuple) else (ctx.op_output,)
        for output in outputs:
            if Watchers.kept is not None and isinstance(output, Tensor):
                Watchers.kept(output)
        return CheckpointPolicy.MUST_SAVE

    def _keeps(self, op: Any) -> bool:
        if op in _MATMULS:
            self._matmuls += 1
            return self._policy.keeps_matmul(self._matmuls - 1)
        return op in _ATTENTIONS and self._policy.keeps_attention


class Regions:
    """The regions of one layer under its runs; `offloaded` modules send their saved tensors away.

    `replay` makes a checkpoint; Transformer Engine brings its own.
    """

    def __init__(
        self,
        runs: tuple[ReplayRun, ...] = (),
        offloaded: frozenset[Module] = frozenset(),
        replay: Callable[..., Any] = replay_later,
    ) -> None:
        self._checkpoints = {run.modules for run in runs if not run.discards_output}
        self._dropped = {run.modules for run in runs if run.discards_output}
        self._offloaded, self._replay = offloaded, replay

    def run(self, modules: frozenset[Module], function: Function, *inputs: Tensor) -> Tensor:
        """function(*inputs), which is the code of `modules`, under their part of the plan."""
        with self._offload(modules):
            if modules in self._checkpoints:
                output: Tensor = self._replay(function, *inputs)
                return output
            return function(*inputs)

    def droppable(self, module: Module, layer: nn.Module, x: Tensor) -> tuple[Tensor, "Dropped"]:
        """layer(x), and a handle by which the output may be dropped once it has been read."""
        modules = frozenset({module})
        if modules not in self._dropped:
            return self.run(modules, layer, x), Dropped(None)
        replay = _Replay(layer)
        function: Any = _DroppedOutput
        output: Tensor = function.apply(replay, x, *layer.parameters())
        replay.storage = output.untyped_storage()
        return output, Dropped(replay)

    def _offload(self, modules: frozenset[Module]) -> AbstractContextManager[Any]:
        return HostOffload() if modules & self._offloaded else nullcontext()


class Dropped:
    """Handle on an output that may be dropped (Megatron's CheckpointWithoutOutput)."""

    def __init__(self, replay: "_Replay | None") -> None:
        self._replay = replay

    def until_backward_of(self, reader: Tensor) -> None:
        """Free the output now; write it again as soon as the gradient of `reader` is known.

        All that keeps the output for its backward must lie between it and `reader`.
        """
        if self._replay is None or not reader.requires_grad:
            return
        self._replay.drop()
        graph: Any = reader
        graph.register_hook(self._replay.restore)


class _Replay:
    """One dropped output: its storage, and the graph of its replay once that has run."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.ctx: Any = None
        self.storage: torch.UntypedStorage | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.output: Tensor | None = None
        self._num_bytes = 0

    def drop(self) -> None:
        """Free the output's storage; whoever kept the tensor keeps an empty one."""
        assert self.storage is not None
        self._num_bytes = self.storage.nbytes()
        self.storage.resize_(0)

    def restore(self, _: Tensor) -> None:
        """Run the layer again and write its output where it was, which is then the readers' alone:
        this object lives as long as the graph, the output must not."""
        storage, self.storage = self.storage, None
        if storage is None or self.ctx is None:
            raise RuntimeError("a dropped output is replayed once: backward ran a second time")
        (saved,) = self.ctx.saved_tensors
        x = saved.detach().requires_grad_(saved.requires_grad)
        with torch.enable_grad(), _replaying():
            self.output = self.layer.forward(x)  # no module hooks inside a backward
        self.inputs = (x, *self.layer.parameters())
        storage.resize_(self._num_bytes)
        storage.copy_(self.output.untyped_storage(), non_blocking=True)

    def gradients(self, grad: Tensor) -> list[Tensor | None]:
        """Gradients of the inputs by way of the replay, whose graph is then let go."""
        assert self.output is not None
        wanted = [tensor for tensor in self.inputs if tensor.requires_grad]
        found = iter(torch.autograd.grad(self.output, wanted, grad))
        inputs, self.ctx, self.output, self.inputs = self.inputs, None, None, ()
        return [next(found) if tensor.requires_grad else None for tensor in inputs]


class _DroppedOutput(torch.autograd.Function):
    """A layer without its graph: keeps the input; the parameters are arguments of their own, so
    that their gradients reach the outer graph."""

    @staticmethod
    def forward(ctx: Any, replay: _Replay, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.replay, replay.ctx = replay, ctx
        output: Tensor = replay.layer(x)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.replay.gradients(grads[0])
