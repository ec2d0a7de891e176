"""Activations in host memory between forward and backward."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class HostOffload(saved_tensors_hooks):
    """Inside, what autograd saves is copied to (pinned) host memory; parameters stay.

    On a GPU the copy runs on a stream of its own, and the compute stream waits for it only before
    the tensor is fetched back.
    """

    def __init__(self) -> None:
        super().__init__(_to_host, _from_host)


@lru_cache(maxsize=16)
def _host_stream(device: torch.device) -> Any:
    make: Any = torch.cuda.Stream
    return make(device)


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
    host, device, stream = packed
    if stream is None:
        kept: Tensor = host
        return kept
    torch.cuda.current_stream(device).wait_stream(stream)
    fetched: Tensor = host.to(device, non_blocking=True)
    return fetched
