"""Fused AdamW with fp32 states over 16-bit parameters, and the sums of gradients before it."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from advisor.job.job import GRADIENTS_AT_ONCE
from harness.backends.native.process_groups import Groups
from harness.backends.training_rank import LEARNING_RATE


class _Bucket:
    """Some parameters with their fp32 copies (themselves where they are fp32) and AdamW states.
    16-bit gradients stay, as Megatron's buffers do; fp32 copies of them exist while the bucket is
    updated, and only then."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        wide = parameters[0].dtype is torch.float32
        self.masters: list[Tensor] = list(parameters)
        if not wide:
            self.masters = [parameter.detach().float() for parameter in parameters]
        self._adam = torch.optim.AdamW(self.masters, lr=LEARNING_RATE, fused=True)

    def update(self) -> None:
        """One step of AdamW; gradients are zero or gone afterwards."""
        if self.masters[0] is not self.parameters[0]:
            self._update_masters()
            return
        self._adam.step()
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def _update_masters(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is not None:
                master.grad = parameter.grad.float()
                parameter.grad.zero_()
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        torch._foreach_copy_(list[Tensor](self.parameters), self.masters)


class Optimizer:
    """All parameters of a rank; gradients are accumulated in their type. `partly_seen` are summed
    over the TP ranks, all are averaged over the data-parallel ranks unless FSDP2 does it."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        partly_seen: Iterable[nn.Parameter],
        groups: Groups,
        *,
        fully_sharded: bool,
    ) -> None:
        self._partly_seen = list(partly_seen)
        self._groups, self._averages = groups, groups.data is not None and not fully_sharded
        self._buckets = [_Bucket(members) for members in _in_buckets(parameters)]

    def step(self) -> None:
        """Sum gradients over ranks, and update."""
        self.sum_gradients()
        for bucket in self._buckets:
            bucket.update()

    def sum_gradients(self) -> None:
        """Bring the gradients to what one process with the whole batch would have."""
        for parameter in self._partly_seen:
            dist.all_reduce(_local(parameter.grad), group=self._groups.tensor)
        if self._averages:
            for bucket in self._buckets:
                for parameter in bucket.parameters:
                    grad = _local(parameter.grad)
                    dist.all_reduce(grad, group=self._groups.data)
                    grad.div_(dist.get_world_size(self._groups.data))

    def drop_gradients(self) -> None:
        """Forget what has been accumulated."""
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.grad = None


def _local(grad: Any) -> Tensor:
    tensor: Tensor = grad.to_local() if isinstance(grad, DTensor) else grad
    return tensor


def _in_buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in bucket) + parameter.numel() > GRADIENTS_AT_ONCE:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
