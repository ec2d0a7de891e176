"""Peaks of the native backend's steps by torch's own CUDA allocator, where no GPU is.

python tests/oracles/no_gpu/native_peaks.py    runs all cases, and writes data/native_peaks.csv

Jobs lie around the memory of an H100 of 80 GB, less a CUDA context: some settings run out of it.
Takes a quarter of an hour on two cores; needs what build.py needs.
"""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from harness.planner.device import Machine
from harness.planner.planning import make_plan
from harness.planner.run_request import compose
from harness.trial.trial import Device, Trial

HERE: Final = Path(__file__).parent
DATA: Final = HERE.parent / "data" / "native_peaks.csv"
GPU: Final = "NVIDIA H100 80GB HBM3"
CARD_BYTES: Final = 85_017_493_504
CONTEXT_BYTES: Final = 751 * 2**20
"""As measured (results/measured): what the driver has on the card before the first tensor."""
COLUMNS: Final = (
    *("model", "layers", "seq_length", "micro_batch_size", "global_batch_size"),
    *("expandable_segments", "recompute", "allocated", "reserved"),
)
"""Bytes; empty where it ran out of memory."""
_STEPS: Final = 3
_JOBS: Final = {
    "llama3_8b": ("experiment=llama3_8b_1xh200",),
    "gpt3_22b": (
        "experiment=gpt3_22b_8xa100",
        "layout.tensor_model_parallel_size=1",
        "layout.sequence_parallel=false",
        "job.precision=bf16",
    ),
}
_SIZES: Final = (
    ("llama3_8b", (12, 13, 14), 8192, 1, 2),
    ("llama3_8b", (8, 9, 10), 8192, 2, 2),
    ("llama3_8b", (17, 18), 2048, 1, 1),
    ("llama3_8b", (13, 14, 15), 2048, 4, 4),
    ("llama3_8b", (4, 5, 6), 32768, 1, 1),
    ("gpt3_22b", (8, 9, 10), 2048, 4, 4),
)


def cases() -> Iterator[dict[str, Any]]:
    """All but the peaks of each row."""
    for model, depths, *sizes in _SIZES:
        for layers in depths:
            for expandable in (True, False):
                for recompute in _settings(model, layers):
                    values = (model, layers, *sizes, expandable, recompute)
                    yield dict(zip(COLUMNS, values, strict=False))


def _settings(model: str, layers: int) -> Iterator[str]:
    yield from ("none", "selective:layernorm", "selective:core_attn", "full:uniform:1")
    yield f"full:block:{layers // 2}"
    yield "full:uniform:2" if layers % 2 == 0 else f"full:block:{layers // 2 + 1}"
    if model == "llama3_8b":
        yield from ("selective:mlp", "selective:core_attn,mlp")


def trials_of(job: dict[str, Any], settings: Sequence[str]) -> tuple[Trial, ...]:
    """The trials that `harness run` would make of a row's job, with their predictions."""
    specs = ",".join(f'"{one}"' for one in settings)
    words = [
        *_JOBS[job["model"]],
        "gpus=1xH100",
        "model.transformer_impl=local",
        "model.attention_backend=flash",
        "name=native_peaks",
        f"model.num_layers={job['layers']}",
        f"job.expandable_segments={str(job['expandable_segments']).lower()}",
        f"recompute.settings=[{specs}]",
        *(f"job.{name}={job[name]}" for name in COLUMNS[2:5]),
    ]
    machine = Machine(device=Device.CUDA, gpu_names=(GPU,))
    planned = make_plan(compose(words, None), machine).settings
    by_spec = {one.spec: one.trial for one in planned}
    return tuple(by_spec[one] for one in settings)


def trial_of(case: dict[str, Any]) -> Trial:
    """Of one row."""
    (trial,) = trials_of(case, (case["recompute"],))
    return trial


def run(number: int) -> None:
    """One case in this process, which has LD_PRELOAD; prints its peaks."""
    import torch

    from harness.backends.native import build
    from harness.measure.training_step import Silent

    step = build(trial_of(list(cases())[number]).workload, 1)
    for _ in range(_STEPS):
        torch.cuda.reset_peak_memory_stats()
        step.run(Silent())
    found = torch.cuda.memory_stats()
    print("peaks", found["allocated_bytes.all.peak"], found["reserved_bytes.all.peak"])


def _peaks(number: int, case: dict[str, Any], preload: str) -> tuple[str, str]:
    variables = dict(line.split("=", 1) for line in trial_of(case).variables)
    environment = (
        os.environ
        | variables
        | {"LD_PRELOAD": preload, "NO_GPU_BYTES": str(CARD_BYTES - CONTEXT_BYTES)}
    )
    command = (sys.executable, __file__, str(number))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    reported = [line.split() for line in done.stdout.splitlines() if line.startswith("peaks ")]
    if not reported and "OutOfMemoryError" not in done.stderr:
        raise RuntimeError(f"{case}: {done.stderr[-500:]}")
    print(f"{number}: {case} {reported}", flush=True)
    return (reported[0][1], reported[0][2]) if reported else ("", "")


def record() -> None:
    """Run all cases, two at a time, and write them."""
    every = list(cases())
    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        build = (sys.executable, HERE / "build.py", folder)
        built = subprocess.run(build, check=True, stdout=subprocess.PIPE, text=True)
        preload = built.stdout.strip()
        peaks = list(pool.map(lambda one: _peaks(*one, preload), enumerate(every)))
    with DATA.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows([*one.values(), *both] for one, both in zip(every, peaks, strict=True))


if __name__ == "__main__":
    run(int(sys.argv[1])) if len(sys.argv) > 1 else record()
