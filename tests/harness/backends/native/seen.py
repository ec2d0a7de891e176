"""What one step of the native backend does under a setting, next to what none does."""

from functools import lru_cache

import torch
from cases import Phases, workload
from msgspec import Struct
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from advisor.models.spec import ModelSpec
from harness.backends.native.modules.kernels import ATTENTION_FORWARD
from harness.backends.native.predict import predict_layer
from harness.backends.native.step import NativeStep, build_step
from harness.trial.trial import Workload

SEED = 3


class Seen(Struct, frozen=True, dict=True):
    """Gradients and loss of one step, and the FLOPs that torch counted in it."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    flops: int


def causal_half(
    query: list[int], key: list[int], value: list[int], *_: object, **__: object
) -> int:
    b, heads, s, channels = query
    return b * heads * s * key[2] * (channels + value[3])


def run(step: NativeStep) -> Seen:
    counter = FlopCounterMode(
        display=False, custom_mapping=dict.fromkeys(ATTENTION_FORWARD, causal_half)
    )
    with counter:
        loss = step.forward_backward(Phases())
    gradients = {name: p.grad.clone() for name, p in step.model.named_parameters()}
    step.optimizer.drop_gradients()
    return Seen(loss, gradients, counter.get_total_flops())


@lru_cache(maxsize=8)
def without_recompute(model: ModelSpec) -> Seen:
    return run(build_step(workload(model), SEED))


def assert_as_predicted(model: ModelSpec, setting: str) -> None:
    """Loss and gradients are those of none, replayed FLOPs and kept bytes those predicted."""
    one, plain = workload(model, setting), without_recompute(model)
    step = build_step(one, SEED)  # seeds dropout
    seen = run(step)
    assert torch.equal(seen.loss, plain.loss)
    different = [
        key for key, grad in plain.gradients.items() if not torch.equal(grad, seen.gradients[key])
    ]
    assert not different
    predicted = predict_layer(one)[1]
    assert (seen.flops - plain.flops) // (model.num_layers * step.microbatches) == predicted
    assert step.flops().replayed_per_layer == predicted
    assert step.saved_bytes_per_layer() == predict_layer(one)[0]


class LiveStorages(TorchDispatchMode):
    """Bytes alive of storages that operators have made inside: an account of its own, which also
    sees what only a variable of the program holds."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, object]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        known = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor)
        }
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in known:
                    self._made[storage._cdata] = (StorageWeakRef(storage), storage._weak_ref())
        return output

    def num_bytes(self) -> int:
        alive = [key for key, (reference, _) in self._made.items() if not reference.expired()]
        return sum(
            torch.UntypedStorage._new_with_weak_ptr(self._made[key][1]).nbytes() for key in alive
        )


def alive_after_forward(one: Workload) -> int:
    """Bytes after the forward of the layers: what they keep, and the output, as large as the
    input."""
    decoder = build_step(one, SEED).model.decoder
    decoder.final_layernorm = None
    x = torch.randn(2, 32, 64, dtype=torch.bfloat16, requires_grad=True)
    live = LiveStorages()
    with live:
        output = decoder(x)
    assert output.requires_grad
    return live.num_bytes()
