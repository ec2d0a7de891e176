"""What this machine has to run trials on, without torch: asked once, before anything starts."""

import os
import subprocess
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from msgspec import Struct

from advisor.base.errors import UserError, show
from advisor.base.units import whole_number
from harness.trial.trial import Device

_AUTO: Final = "auto"
_QUERY: Final = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")


class Machine(Struct, frozen=True, kw_only=True):
    """The device trials run on; `gpu_names` in the driver's order, empty for the CPU."""

    device: Device
    gpu_names: tuple[str, ...] = ()


def find_machine(wanted: str = _AUTO) -> Machine:
    """The device that ``auto``, ``cuda`` or ``cpu`` means here; UserError where there is none."""
    if wanted == Device.CPU:
        return Machine(device=Device.CPU)
    if wanted not in (_AUTO, Device.CUDA):
        raise UserError("device", show(wanted), "must be one of auto, cuda, cpu")
    names = visible(gpu_names(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if names:
        return Machine(device=Device.CUDA, gpu_names=names)
    if wanted == Device.CUDA:
        raise UserError(
            "device", wanted, "the driver sees no GPU here", "device=cpu runs small models"
        )
    return Machine(device=Device.CPU)


def visible(names: tuple[str, ...], mask: str | None) -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves; CUDA ends the list at the first bad entry."""
    if mask is None:
        return names
    found = []
    for entry in mask.split(","):
        text = entry.strip()
        index = whole_number(text)
        if index is not None and index < len(names):
            found.append(names[index])
        elif text.startswith(("GPU-", "MIG-")) and names:
            found.append(names[0])  # by UUID: nodes have one type of GPU
        else:
            break
    return tuple(found)


def gpu_names() -> tuple[str, ...]:
    """Names of all GPUs by NVML, else by nvidia-smi; empty without a driver."""
    with suppress(Exception):  # NVMLError is the binding's own class, which may be missing
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        names = [nvml.nvmlDeviceGetName(handle) for handle in handles]
        return tuple(n.decode() if isinstance(n, bytes) else n for n in names)
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())
