"""torchtitan's modules without triton, which its import wants for a kernel of MoE alone."""

import importlib
import sys
import types
from typing import Any

import torch

_KERNELS = "torchtitan.models.moe.kernels"


def import_titan(name: str) -> Any:
    """A module of torchtitan; what sorts padded tokens by expert only allocates."""
    if _KERNELS not in sys.modules:
        stand_in = types.ModuleType(_KERNELS)
        stand_in.generate_permute_indices = _allocate
        sys.modules[_KERNELS] = stand_in
    return importlib.import_module(f"torchtitan.{name}")


def _allocate(
    counts: torch.Tensor, experts: int, ranks: int, max_len: int, alignment: int
) -> tuple[torch.Tensor, ...]:
    """What generate_permute_indices returns: indices, rows of each expert, their ends."""
    sizes = (max_len, experts, experts)
    indices, rows, ends = (torch.zeros(size, dtype=torch.int32) for size in sizes)
    return indices, rows, ends
