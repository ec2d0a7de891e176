"""`harness calibrate`: times kernels within a budget, each written down at once. The budget begins
with the call: loading torch and listing the cases are part of it."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.calibration.bench import shapes
from harness.calibration.bench.case_order import Pace, Schedule
from harness.calibration.bench.cases import ATTENTION, COLLECTIVES, Case, CaseKind, Journal
from harness.calibration.conclusion import CalibrationOutcome, conclude
from harness.calibration.efficiencies import FITTED_ATTENTION
from harness.calibration.reference import DeviceFacts, calibration_name
from harness.execution.signals import Stop, StopSignals
from harness.trial.trial import Device

if TYPE_CHECKING:
    from harness.calibration.bench.kernel_runs import Bench

_COLLECTIVES_SHARE: Final = 0.25
_CASE_SHARE: Final = 0.001
_LEAST_CASE_SECONDS, _MOST_CASE_SECONDS = 0.01, 0.2
_HOLD_SHARE: Final = 0.08
_MOST_HOLD_SECONDS: Final = 5.0
_MOST_SHARE: Final = 0.05
"""Of the budget, for one case."""
_PACES: Final = {
    Device.CUDA: Pace(flops_per_second=1e14, bytes_per_second=5e11, least_seconds=0.05),
    Device.CPU: Pace(flops_per_second=5e10, bytes_per_second=2e9, least_seconds=0.005),
}

Say = Callable[[str], None]
Tick = Callable[[int, int], None]
"""Told how many cases are timed, and of how many, whenever that changes."""


def calibrate(
    device: Device,
    budget_seconds: float,
    out: Path | None,
    say: Say = lambda _: None,
    tick: Tick = lambda *_: None,
) -> CalibrationOutcome | None:
    """Measure this machine; None on ranks other than 0, which only help with collectives. A signal
    to stop ends the measuring: the calibration is of what was timed by then. UserError where the
    device is not there, or nothing could be measured; Stop where that is because of a signal."""
    ends = time.monotonic() + budget_seconds
    from harness.calibration.bench.timer import ranks
    from harness.measure.fingerprint import fingerprint

    facts = _facts(device)
    environment = fingerprint(device)
    is_first = os.environ.get("RANK", "0") == "0"
    prefix = "cpu" if device is Device.CPU else "gpu"  # together with its hardware a --config-dir
    name = calibration_name(f"{prefix}-{facts.name}")
    path = out or Path("calibrated") / "calibration" / f"{name}.yaml"
    machine = _machine(facts, environment)
    with ranks(device) as world_size:
        share = _COLLECTIVES_SHARE * budget_seconds if world_size > 1 else 0.0
        journal = Journal(path.with_suffix(".jsonl"), machine) if is_first else None
        _collectives(device, world_size, share, journal)
    if journal is None:
        return None
    if journal.samples:
        say(f"continues with {len(journal.samples)} samples of {journal.path}")
    finished, stopped = False, None
    try:
        with StopSignals() as signals:
            finished = _kernels(device, budget_seconds - share, ends, journal, signals, say, tick)
    except Stop as stop:
        stopped = stop
    samples = tuple(journal.samples.values())
    try:
        outcome = conclude(samples, facts, environment, path, world_size)
    except UserError:
        if stopped is not None:
            raise stopped from None
        raise
    return replace(outcome, finished=finished, stopped=stopped)


def _facts(device: Device) -> DeviceFacts:
    import torch

    from harness.measure.fingerprint import cpu_model, usable_cpus

    if device is Device.CPU:
        return DeviceFacts(
            name=cpu_model(),
            is_cpu=True,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            processors=usable_cpus(),
            compute_capability=1.0,
        )
    if not torch.cuda.is_available():
        raise UserError("--device", device, "torch sees no CUDA GPU here", "use --device cpu")
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceFacts(
        name=properties.name,
        is_cpu=False,
        memory_bytes=properties.total_memory,
        processors=properties.multi_processor_count,
        compute_capability=float(f"{properties.major}.{properties.minor}"),
    )


def _machine(facts: DeviceFacts, environment: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same within one journal: of a GPU not the host, which may be another."""
    software, host = environment["software"], environment["host"]
    here = {"host": host["name_hash"], "torch_threads": host["torch_threads"]}
    return {
        "device": facts.name,
        "torch": software["torch"],
        "cuda": software["cuda"],
        "ranks": os.environ.get("WORLD_SIZE", "1"),
        **(here if facts.is_cpu else {}),
    }


def _collectives(
    device: Device, world_size: int, budget_seconds: float, journal: Journal | None
) -> None:
    """All ranks time the same cases, a resumed run too: the other ranks have no journal."""
    if world_size == 1:
        return
    from harness.calibration.bench.timer import measure_collectives

    cases = [case for case in shapes.preset_cases() if case.kind in COLLECTIVES]
    for sample in measure_collectives(cases, device, world_size, budget_seconds):
        if journal is not None:
            journal.add(sample)


def _kernels(
    device: Device,
    budget_seconds: float,
    ends: float,
    journal: Journal,
    signals: StopSignals,
    say: Say,
    tick: Tick = lambda *_: None,
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """Time what is not in the journal yet until `ends`; whether nothing is left. The smallest of
    every kind come first, whatever the budget: the first call of a kind loads libraries and
    compiles, which must not count as the pace of those that follow. Then what lasting load leaves
    of a burst, the kernels that most steps are made of, and all others."""
    from harness.calibration.bench.kernel_runs import Bench

    wanted = min(max(_CASE_SHARE * budget_seconds, _LEAST_CASE_SECONDS), _MOST_CASE_SECONDS)
    hold = min(_HOLD_SHARE * budget_seconds, _MOST_HOLD_SECONDS)
    bench = Bench(device, wanted_seconds=wanted, hold_seconds=hold)
    plain = tuple(case for case in shapes.preset_cases() if case.kind not in COLLECTIVES)
    load = (shapes.BURST, shapes.SUSTAINED) if bench.runs(shapes.SUSTAINED) else ()
    here = (*shapes.with_attention(plain, bench.attention_variants()), *shapes.HOST_CASES)
    total = len({case.key for case in (*here, *load) if bench.runs(case)})
    timing = _Timing(
        bench=bench,
        journal=journal,
        signals=signals,
        say=say,
        tick=lambda: tick(len(journal.samples.keys() | bench.refused.keys()), total),
    )
    cases = timing.new(here)
    say(f"{len(cases)} cases to time on {device} in {budget_seconds:.0f} s")
    for case in (*smallest(cases), *timing.new(load)):
        timing.measure(case)
    pace = replace(_PACES[device], least_seconds=_PACES[device].least_seconds + wanted)
    finished = True
    for stage in stages(timing.new(cases), device):
        left = max(ends - now(), 1e-6)
        share = _MOST_SHARE * budget_seconds / left
        schedule = Schedule(
            budget_seconds=left, pace=pace, measure=timing.measure, now=now, share=share
        )
        finished = schedule.run(stage) and finished
    return finished


class _Timing(Struct, frozen=True, kw_only=True):
    """Cases of a bench into a journal. A signal waits for a case's end; refusals are said once."""

    bench: "Bench"
    journal: Journal
    signals: StopSignals
    say: Say
    tick: Callable[[], None]

    def new(self, cases: Iterable[Case]) -> list[Case]:
        """Those of `cases` that run here, and are neither timed nor refused yet."""
        known = self.journal.samples.keys() | self.bench.refused.keys()
        return [case for case in cases if case.key not in known and self.bench.runs(case)]

    def measure(self, case: Case) -> None:
        family = case.key.rpartition(":")[0]  # without its sizes
        with self.signals.held():
            sample = self.bench.measure(case)
            if sample is not None:
                self.journal.add(sample)
            elif [key.rpartition(":")[0] for key in self.bench.refused].count(family) == 1:
                self.say(f"refused: {case.key}: {self.bench.refused[case.key]}")
            self.tick()


def stages(cases: Sequence[Case], device: Device) -> tuple[list[Case], ...]:
    """`cases` in the order in which they are worth their time: on a GPU the core in what is fitted,
    the same attention in another implementation, all others. A CPU is too slow for the core."""
    if device is Device.CPU:
        return (list(cases),)
    plain = shapes.core_cases()
    core = [case for case in cases if case in plain or replace(case, variant="") in plain]
    compared = [c for c in core if c.kind in ATTENTION and c.variant not in FITTED_ATTENTION]
    first = [case for case in core if case not in compared]
    return first, compared, [case for case in cases if case not in set(core)]


def smallest(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Of every kind and variant the case with the least work, in the order of the kinds."""
    found: dict[tuple[CaseKind, str], Case] = {}
    for case in sorted(cases, key=lambda case: case.work, reverse=True):
        found[case.kind, case.variant] = case
    kinds = list(CaseKind)
    return tuple(sorted(found.values(), key=lambda case: kinds.index(case.kind)))
