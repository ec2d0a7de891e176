"""Kernels timed one by one within a limit: each figure is printed as soon as it is known, and one
that fails is a line in `errors`, next to which the others are timed."""

import json
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.record import as_dict
from harness.calibration.bench.kernel_runs import Inputs
from harness.calibration.bench.timer import Call, time_call, time_sustained
from harness.measure.nvml import open_current_gpu
from harness.trial.trial import Device

_MOST_SECONDS: Final = 30.0
"""Of all kernels of a case; what is left then is named in `left_out`."""
_CALL_SECONDS: Final = 0.03
_HOLD_SECONDS: Final = 1.0
_MOST_SETS: Final = 8

Operands = tuple[Any, ...]


class Timings(Struct, frozen=True, kw_only=True):
    """Figures of one device, gathered until `ends` (time.monotonic())."""

    device: Device
    inputs: Inputs
    ends: float
    found: dict[str, Any]

    def time(
        self,
        name: str,
        make: Callable[[], Operands],
        run: Callable[..., object],
        num_bytes: int,
        *,
        graph: bool = False,
        held: bool = False,
        counted: bool = False,
    ) -> None:
        """Seconds of `run` on operands of `num_bytes` that `make` makes, as many sets in turn as a
        cache does not hold. graph: it may be captured; held: for a second on end, with clock and
        power; counted: also its kernels and how long they keep the GPU busy."""
        if time.monotonic() > self.ends:
            self.found.setdefault("left_out", []).append(name)
            return
        try:
            new = self._timed(name, self._call(make, run, num_bytes), graph, held)
            self._keep(new)
            if counted and self.device is Device.CUDA:
                self._keep(_kernels(name, self._call(make, run, num_bytes)))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:300]
            self.found.setdefault("errors", {})[name] = text
            print(json.dumps({name: text}), flush=True)

    def _keep(self, new: dict[str, Any]) -> None:
        self.found.update(new)
        print(json.dumps(new), flush=True)

    def _call(
        self, make: Callable[[], Operands], run: Callable[..., object], num_bytes: int
    ) -> Call:
        wanted = -(-2 * self.inputs.limits.cache_bytes // num_bytes)
        sets = [make() for _ in range(min(wanted, _MOST_SETS))]
        return lambda number: run(*sets[number % len(sets)])

    def _timed(self, name: str, call: Call, graph: bool, held: bool) -> dict[str, Any]:
        new: dict[str, Any] = {}
        if held:
            gpu = open_current_gpu() if self.device is Device.CUDA else None
            timing, load = time_sustained(call, self.device, hold_seconds=_HOLD_SECONDS, gpu=gpu)
            new[f"{name}_load"] = as_dict(load)
        else:
            timing = time_call(call, self.device, wanted_seconds=_CALL_SECONDS, graph=graph)
        return {f"{name}_seconds": timing.seconds, f"{name}_spread": timing.spread, **new}


def _kernels(name: str, call: Call) -> dict[str, Any]:
    """What one call launches, as CUPTI saw it."""
    call(0)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        call(1)
        torch.cuda.synchronize()
    events = profiled.events() or ()
    ran = [event for event in events if str(event.device_type) == "DeviceType.CUDA"]
    busy = sum(event.time_range.elapsed_us() for event in ran) * 1e-6
    return {f"{name}_kernels": len(ran), f"{name}_busy_seconds": busy}


def timed(run: Callable[[Timings], None], *, tiny: bool) -> dict[str, Any]:
    """What `run` finds on a GPU, tiny on a CPU; UserError where that is nothing."""
    device = Device.CPU if tiny else Device.CUDA
    ends = time.monotonic() + _MOST_SECONDS
    timings = Timings(device=device, inputs=Inputs(device), ends=ends, found={})
    run(timings)
    if not any(name.endswith("_seconds") for name in timings.found):
        raise UserError("kernels", None, f"none could be timed: {timings.found}"[:900])
    return timings.found
