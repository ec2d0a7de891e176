"""Random operands of a case, several sets of them in turn so that caches do not help."""

from collections.abc import Callable
from math import prod
from typing import Any, Final

import torch
from msgspec import Struct

from harness.calibration.bench.cases import Case
from harness.calibration.bench.timer import Call
from harness.trial.trial import Device

POOL_ELEMENTS: Final = 2**22
_SEED: Final = 1234
_MOST_SETS: Final = 8
_CPU_CACHE_BYTES: Final = 32 * 2**20
FOOTPRINT: Final = 3
"""A case holds its operands, its result, and temporaries of the same size."""


class Limits(Struct, frozen=True, kw_only=True):
    """What a device allows: bytes a case may hold, bytes of its last cache."""

    memory_bytes: int
    cache_bytes: int


class Inputs:
    """Operands on one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.limits = _limits(device)
        generator = torch.Generator(device.value).manual_seed(_SEED)
        self._pool = torch.randn(
            POOL_ELEMENTS, generator=generator, device=device.value, dtype=torch.float32
        )

    def tensor(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Random normal values. They repeat after a few million, which no kernel profits from;
        drawing all of them would take longer than the kernel."""
        flat = torch.empty(prod(shape), device=self.device.value, dtype=dtype)
        whole = len(flat) // POOL_ELEMENTS * POOL_ELEMENTS
        flat[:whole].view(-1, POOL_ELEMENTS).copy_(self._pool)
        flat[whole:].copy_(self._pool[: len(flat) - whole])
        return flat.view(shape)

    def sets(self, case: Case, make: Callable[[], Any]) -> list[Any]:
        """Several sets of operands where one would stay in the cache."""
        wanted = -(-2 * self.limits.cache_bytes // max(1, case.num_bytes))
        room = self.limits.memory_bytes // (FOOTPRINT * max(1, case.num_bytes))
        return [make() for _ in range(max(1, min(wanted, room, _MOST_SETS)))]

    def in_turn(
        self, case: Case, make: Callable[[], tuple[Any, ...]], run: Callable[..., object]
    ) -> Call:
        """`run` on one set of operands after the other."""
        sets = self.sets(case, make)
        return lambda number: run(*sets[number % len(sets)])


def _limits(device: Device) -> Limits:
    if device is Device.CPU:
        return Limits(memory_bytes=2 * 2**30, cache_bytes=_CPU_CACHE_BYTES)
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info()
    return Limits(
        memory_bytes=free // 2, cache_bytes=getattr(properties, "L2_cache_size", 64 * 2**20)
    )
