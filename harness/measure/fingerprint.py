"""Fingerprint of software and hardware: what must be the same for two results to be compared."""

import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import asdict

from harness.measure.nvml import open_current_gpu
from harness.trial.trial import Device, recorded


def fingerprint(device: Device) -> dict[str, Any]:
    """Environment of this process as a JSON object. The host's name appears as a hash only."""
    return {
        "software": _software(),
        "host": _host(),
        "gpus": _gpus() if device is Device.CUDA else [],
        "variables": recorded(os.environ),
        "git_commit": git_commit(),
    }


def _software() -> dict[str, Any]:
    cudnn: Any = torch.backends.cudnn
    cuda: Any = torch.cuda
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _version(cudnn.version),
        "nccl": _version(lambda: ".".join(map(str, cuda.nccl.version()))),
        "transformer_engine": _installed("transformer-engine", "transformer_engine"),
        "harness": _installed("recompute-advisor"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
    }


def _host() -> dict[str, Any]:
    return {
        "name_hash": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "cpu_count": usable_cpus(),
        "torch_threads": torch.get_num_threads(),
    }


def _gpus() -> list[dict[str, Any]]:
    """The device of this rank: what torch and what the driver say."""
    if not torch.cuda.is_available():
        return []
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    known: dict[str, Any] = {
        "torch_name": properties.name,
        "total_memory_bytes": properties.total_memory,
        "sm_count": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "visible": torch.cuda.device_count(),
    }
    gpu = open_current_gpu()
    if gpu is not None:
        known |= asdict(gpu.identity())
        now = asdict(gpu.reading())
        known |= {name: now[name] for name in ("sm_clock_mhz", "memory_clock_mhz")}
    return [known]


def _version(ask: Callable[[], object]) -> str | None:
    with suppress(Exception):  # a CPU build has neither, a broken installation raises
        version = ask()
        return None if version is None else str(version)
    return None


def _installed(*names: str) -> str | None:
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def cpu_model() -> str:
    """Model name of the processor."""
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def git_commit(folder: Path | None = None) -> str | None:
    """Commit of the harness's checkout, "+changes" where files differ; None outside of one."""
    where = Path(__file__).resolve().parent if folder is None else folder
    commit = _git(where, "rev-parse", "HEAD")
    changed = commit and _git(where, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if changed else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=folder, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> None:
    """Print the fingerprint of this machine, with its GPU where there is one, as JSON."""
    json.dump(fingerprint(Device.CUDA if torch.cuda.is_available() else Device.CPU), sys.stdout)


if __name__ == "__main__":
    main()
