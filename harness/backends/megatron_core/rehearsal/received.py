"""What a rank that rehearses alone would receive: noise, or its own part, never what the allocator
left. NaN makes kernels, power draw and routing unlike those of a job."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from harness.backends.megatron_core.world import P2P
from harness.base.patching import patched

_GROUP: Final[Any] = dist.ProcessGroup


@contextmanager
def received_noise() -> Iterator[None]:
    """Fills what comes from other pipeline stages with N(0, 1), the size of a normalised hidden
    state."""
    original = P2P._communicate

    def communicate(*args: Any, **wanted: Any) -> Any:
        received = original(*args, **wanted)
        with torch.no_grad():
            for tensor in received[:2]:
                if tensor is not None:
                    tensor.normal_()
        return received

    with patched(P2P, "_communicate", communicate):
        yield


@contextmanager
def own_part() -> Iterator[None]:
    """A reduce-scatter gives this rank's slice of its own tensor, an all-to-all its own tensor.

    A fake process group does so itself in torch 2.13, whose functions no longer call the two
    methods; in torch 2.11 it writes nothing.
    """
    scatter, exchange = _GROUP._reduce_scatter_base, _GROUP.alltoall_base

    def reduce_scatter(group: Any, output: Tensor, given: Tensor, *more: Any) -> Any:
        work = scatter(group, output, given, *more)
        output.detach().copy_(given.detach().view(-1, *output.shape)[group.rank()])
        return work

    def all_to_all(group: Any, output: Tensor, given: Tensor, *more: Any) -> Any:
        work = exchange(group, output, given, *more)
        _fill(output.detach().view(-1), given.detach().reshape(-1))
        return work

    with (
        patched(_GROUP, "_reduce_scatter_base", reduce_scatter),
        patched(_GROUP, "alltoall_base", all_to_all),
    ):
        yield


def _fill(output: Tensor, given: Tensor) -> None:
    """The beginning of `given`; what it has not, N(0, 1), or zeros where numbers are counts."""
    shared = min(len(output), len(given))
    output[:shared].copy_(given[:shared])
    rest = output[shared:]
    rest.normal_() if output.is_floating_point() else rest.zero_()
