"""`harness calibrate`: times kernels within a budget, each written down at once."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from advisor.errors import UserError
from harness.calibrate.bench.cases import COLLECTIVES, Case, Kind
from harness.calibrate.bench.journal import Journal
from harness.calibrate.bench.schedule import Pace, Schedule
from harness.calibrate.bench.shapes import preset_cases, with_attention
from harness.calibrate.conclusion import Outcome, conclude
from harness.calibrate.reference import DeviceFacts, calibration_name
from harness.trial import Device

_COLLECTIVES_SHARE: Final = 0.25
_CASE_SHARE: Final = 0.005
_LEAST_CASE_SECONDS, _MOST_CASE_SECONDS = 0.01, 0.2
_PACES: Final = {
    Device.CUDA: Pace(flops_per_second=1e14, bytes_per_second=5e11, least_seconds=0.05),
    Device.CPU: Pace(flops_per_second=5e10, bytes_per_second=2e9, least_seconds=0.005),
}

Say = Callable[[str], None]


def calibrate(
    device: Device, budget_seconds: float, out: Path | None, say: Say = lambda _: None
) -> Outcome | None:
    """Measure this machine; None on ranks other than 0, which only help with collectives.

    UserError where the device is not there, or nothing could be measured.
    """
    from harness.calibrate.bench.collectives import ranks
    from harness.measure.environment import fingerprint

    facts = _facts(device)
    environment = fingerprint(device)
    is_first = os.environ.get("RANK", "0") == "0"
    path = out or default_path(device, facts)
    machine = _machine(facts, environment)
    with ranks(device) as world_size:
        share = _COLLECTIVES_SHARE * budget_seconds if world_size > 1 else 0.0
        journal = Journal(path.with_suffix(".jsonl"), machine) if is_first else None
        _collectives(device, world_size, share, journal)
    if journal is None:
        return None
    try:
        if journal.found:
            say(f"goes on with {journal.found} samples of {journal.path}")
        finished = _kernels(device, budget_seconds - share, journal, say)
        samples = tuple(journal.samples.values())
    finally:
        journal.close()
    outcome = conclude(samples, facts, environment, path, world_size)
    return replace(outcome, finished=finished)


def default_path(device: Device, facts: DeviceFacts) -> Path:
    """``calibrated/calibration/NAME.yaml``: with its hardware record, a --config-dir."""
    prefix = "cpu" if device is Device.CPU else "gpu"
    return Path("calibrated") / "calibration" / f"{calibration_name(f'{prefix}-{facts.name}')}.yaml"


def _facts(device: Device) -> DeviceFacts:
    import torch

    from harness.measure.environment import cpu_model, usable_cpus

    if device is Device.CPU:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return DeviceFacts(
            name=cpu_model(), is_cpu=True, memory_bytes=memory, processors=usable_cpus(),
            compute_capability=1.0,
        )  # fmt: skip
    if not torch.cuda.is_available():
        raise UserError("--device", device, "torch sees no CUDA GPU here", "--device cpu works")
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceFacts(
        name=properties.name,
        is_cpu=False,
        memory_bytes=properties.total_memory,
        processors=properties.multi_processor_count,
        compute_capability=float(f"{properties.major}.{properties.minor}"),
    )


def _machine(facts: DeviceFacts, environment: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for samples to go into one journal: of a GPU not the host, which is
    another one whenever a machine is lent anew."""
    software, host = environment["software"], environment["host"]
    here = {"host": host["name_hash"], "torch_threads": host["torch_threads"]}
    return {
        "device": facts.name, "torch": software["torch"], "cuda": software["cuda"],
        "ranks": os.environ.get("WORLD_SIZE", "1"), **(here if facts.is_cpu else {}),
    }  # fmt: skip


def _collectives(
    device: Device, world_size: int, budget_seconds: float, journal: Journal | None
) -> None:
    """All ranks time the same cases. A resumed run times them again: the other ranks have no
    journal, and would wait for calls that rank 0 leaves out."""
    if world_size == 1:
        return
    from harness.calibrate.bench.collectives import measure_collectives

    cases = [case for case in preset_cases() if case.kind in COLLECTIVES]
    for sample in measure_collectives(cases, device, world_size, budget_seconds):
        if journal is not None:
            journal.add(sample)


def _kernels(device: Device, budget_seconds: float, journal: Journal, say: Say) -> bool:
    """Time what is not in the journal yet; whether nothing is left.

    The smallest of every kind come first, whatever the budget: the first call of a kind loads
    libraries and compiles, which must not count as the pace of those that follow.
    """
    from harness.calibrate.bench.kernels import Bench

    wanted = min(max(_CASE_SHARE * budget_seconds, _LEAST_CASE_SECONDS), _MOST_CASE_SECONDS)
    bench = Bench(device, wanted_seconds=wanted)
    plain = tuple(case for case in preset_cases() if case.kind not in COLLECTIVES)
    cases = [
        case
        for case in with_attention(plain, bench.attention_variants())
        if bench.runs(case) and case.key not in journal.samples
    ]
    say(f"{len(cases)} cases to time on {device} in {budget_seconds:.0f} s")
    began = time.monotonic()
    first = smallest(cases)
    for case in first:
        sample = bench.measure(case)
        if sample is not None:
            journal.add(sample)
    left = budget_seconds - (time.monotonic() - began)
    pace = _PACES[device]
    pace = replace(pace, least_seconds=pace.least_seconds + wanted)
    schedule = Schedule(budget_seconds=left, pace=pace, measure=bench.measure)
    return schedule.run([case for case in cases if case not in first], journal.add)


def smallest(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Of every kind and variant the case with the least work."""
    found: dict[tuple[Kind, str], Case] = {}
    for case in sorted(cases, key=lambda case: case.work, reverse=True):
        found[case.kind, case.variant] = case
    return tuple(found.values())
