"""A calibration and its files out of samples: rates over peaks, what they leave open."""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, quantiles
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.documents import read_json_lines, read_text
from advisor.base.errors import UserError, show_path
from advisor.hardware.calibration import EFFICIENCIES, Calibration, Provenance
from advisor.hardware.gpu import Gpu
from advisor.time.machine import power_ratio
from harness.calibration import efficiencies
from harness.calibration.bench.cases import ATTENTION, CaseKind, Sample, read_sample
from harness.calibration.calibration_file import CalibrationDocument, HardwareRecord, hardware_path
from harness.calibration.reference import DeviceFacts, Reference, reference
from harness.calibration.remarks import ATTENTION_WORDS, remarks
from harness.execution.signals import Stop
from harness.trial.files import write_atomic

_MEASURED: Final = "measured"
_LEAST_BAND: Final = 0.10
"""Kernels that are predicted well do not make a step predicted better than the rows of published
steps are: versions of one software lie that far apart (research.steps.published)."""


class CalibrationOutcome(Struct, frozen=True, kw_only=True):
    """What was written, and what is in it; `stopped` where a signal ended the measuring."""

    calibration: Calibration
    notes: Mapping[str, str]
    path: Path
    hardware_path: Path
    hardware: str
    journal: Path
    samples: int
    remarks: tuple[str, ...] = ()
    finished: bool = True
    stopped: Stop | None = None


def conclude(
    samples: Sequence[Sample],
    facts: DeviceFacts,
    environment: Mapping[str, Any],
    path: Path,
    world_size: int = 1,
    date: str | None = None,
) -> CalibrationOutcome:
    """Fit, validate and write both files. date: of the measurement, where that is not today."""
    relative_to = reference(facts, samples)
    rates = efficiencies.fit(samples, world_size)
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    again = () if date is None else (f"fitted again on {today}, from the same samples",)
    said = (*again, *remarks(relative_to, rates, samples))
    date = date or today
    measured_on = f"{facts.name}, {date}, torch {environment.get('software', {}).get('torch')}"
    one_node = os.environ.get("LOCAL_WORLD_SIZE", str(world_size)) == str(world_size)
    calibration, notes = fitted(rates, relative_to, path.stem, one_node)
    if not relative_to.measured:
        calibration, notes = _with_shapes(calibration, notes, relative_to.gpu, samples, rates)
    document = CalibrationDocument(
        calibration=_judged(calibration, rates, samples, world_size, measured_on),
        notes=notes | _attention_notes(samples, notes),
        device=facts.name,
        date=date,
        environment=environment,
        remarks=said,
    )
    record_path = _write(path, document, relative_to.record)
    return CalibrationOutcome(
        calibration=document.calibration,
        notes=document.notes,
        path=path,
        hardware_path=record_path,
        hardware=relative_to.record.name,
        journal=path.with_suffix(".jsonl"),
        samples=len(samples),
        remarks=said,
    )


def _with_shapes(
    calibration: Calibration,
    notes: dict[str, str],
    gpu: Gpu,
    samples: Sequence[Sample],
    rates: efficiencies.Rates,
) -> tuple[Calibration, dict[str, str]]:
    """Measured efficiencies of GEMMs as the advisor's own model of GEMMs needs them."""
    found = efficiencies.by_shape(calibration, gpu, samples, rates)
    kept = {field: value for field, value in found.items() if notes[field].startswith(_MEASURED)}
    by_model = {
        field: f"{notes[field]} with tiles and traffic, without them {value:.2f}"
        for field, value in kept.items()
    }
    return replace(calibration, **kept), notes | by_model


def _write(path: Path, document: CalibrationDocument, record: HardwareRecord) -> Path:
    """Both files; the path of the record, which names this calibration."""
    record = replace(record, datasheet=replace(record.datasheet, calibration=path.stem))
    record_path = hardware_path(path, record.name)
    for target, text in ((path, document.text()), (record_path, record.text())):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, text)
    return record_path


def _judged(
    calibration: Calibration,
    rates: efficiencies.Rates,
    samples: Sequence[Sample],
    world_size: int,
    measured_on: str,
) -> Calibration:
    """With how far it is off, and what it was fitted on."""
    errors = efficiencies.left_out_errors(samples, world_size)
    sizes, left_out = list(map(abs, errors)), "too few shapes to leave any out"
    if sizes:
        left_out = (
            f"mean {mean(sizes) * 100:.1f} %, worst {max(sizes) * 100:.1f} %, {len(sizes)} large "
            "kernels, each fifth of the shapes left out of the fit in turn"
        )
    wide = [
        f"{resource} {(rate.high - rate.low) / 2 / rate.value * 100:.0f} %"
        for resource, rate in rates.of.items()
    ]
    return replace(
        calibration,
        step_time_error=band(errors),
        fitted_on=(measured_on, *_counts(samples)),
        fit_error=f"half the interquartile range of large shapes: {', '.join(wide)}",
        left_out_error=left_out,
    )


def fitted(
    rates: efficiencies.Rates, relative_to: Reference, name: str, one_node: bool = True
) -> tuple[Calibration, dict[str, str]]:
    """Rates over the reference's peaks, and a note for every number. What was not measured keeps
    the value of the reference's base calibration, and the note says so."""
    base = relative_to.base
    values: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for field, (resource, peak) in _peaks(relative_to.gpu, one_node).items():
        rate = rates.of.get(resource)
        if rate is not None and peak and rate.value >= _LEAST_EFFICIENCY * peak:
            reached = rate.value / peak
            values[field] = min(1.0, reached)
            over = f", limited to 1 (measured: {reached:.2f})" if reached > 1.0 else ""
            quartiles = f"quartiles {rate.low / peak:.2f} to {rate.high / peak:.2f}"
            notes[field] = f"{_MEASURED}: {rate.count} large shapes, {quartiles}{over}"
    if "bandwidth_efficiency" in values:  # of torch's own kernels
        values["eager_bandwidth_share"] = 1.0
    if "gemm_efficiency" in values:
        values |= dict.fromkeys(_SHARES, 1.0)
        notes |= dict.fromkeys(_SHARES, "part of gemm_efficiency")
    if rates.ramp != efficiencies.Ramp():  # nothing where the samples were too few
        halves = ("attention_half_rate_rows", "attention_half_rate_tokens")
        values |= zip(halves, (rates.ramp.rows, rates.ramp.tokens), strict=True)
        agree = f"{_MEASURED}: the value under which the rates of all shapes agree best"
        notes |= dict.fromkeys(halves, agree)
    for field, median_of in _SECONDS.items():
        seconds = getattr(rates, field)
        if seconds is not None:
            values[field] = seconds
            notes[field] = f"{_MEASURED}: median over {median_of}"
    ratio = power_ratio(relative_to.gpu, base)
    for field in _OF_POWER - values.keys():
        values[field] = min(1.0, getattr(base, field) * ratio)
    for field in _MEASURABLE:
        notes.setdefault(field, f"not measured here: value of `{base.name}`")
    values |= {"name": name, "provenance": Provenance.MEASURED}
    values |= {"known_errors": (), "own_errors": (), "watts_per_teraflop": 0.0}
    return replace(base, fit_error="", left_out_error="", **values), notes


def _peaks(gpu: Gpu, one_node: bool) -> dict[str, tuple[efficiencies.Resource, float | None]]:
    """By field what its rate is of, and the peak that it is a fraction of."""
    link, link_field = gpu.nvlink_bytes_per_second, "nvlink_efficiency"
    if not one_node:
        link, link_field = gpu.internode_bytes_per_second, "internode_efficiency"
    elif gpu.nvlink_domain_size == 1:
        link = gpu.host_link_bytes_per_second
    memory = gpu.memory_bandwidth_bytes_per_second
    return {
        "gemm_efficiency": (efficiencies.Resource.GEMM, gpu.bf16_flops),
        "fp8_gemm_efficiency": (efficiencies.Resource.GEMM_FP8, gpu.fp8_flops),
        "attention_forward_efficiency": (efficiencies.Resource.ATTENTION_FORWARD, gpu.bf16_flops),
        "attention_backward_efficiency": (efficiencies.Resource.ATTENTION_BACKWARD, gpu.bf16_flops),
        "bandwidth_efficiency": (efficiencies.Resource.BANDWIDTH, memory),
        "optimizer_bandwidth_efficiency": (efficiencies.Resource.OPTIMIZER, memory),
        link_field: (efficiencies.Resource.COLLECTIVE, link),
    }


def _attention_notes(samples: Sequence[Sample], notes: Mapping[str, str]) -> dict[str, str]:
    """Notes of the measured attention fields that say which implementation they are of."""
    fitted_variants = {
        f"{sample.case.kind}_efficiency": sample.case.variant
        for sample in efficiencies.fitted_samples(samples)
        if sample.case.kind in ATTENTION
    }
    return {
        field: f"{notes[field]}; {ATTENTION_WORDS.get(variant, variant)}"
        for field, variant in fitted_variants.items()
        if notes[field].startswith(_MEASURED)
    }


_LEAST_EFFICIENCY: Final = 0.01
"""Below this only the smallest cases were timed, which come first: flash attention of 32 tokens
reached 2.4 GFLOP/s on an H100, in a budget of 20 s that ended before the next."""
_OF_POWER: Final = frozenset(
    (
        *("attention_forward_efficiency", "attention_backward_efficiency"),
        *("fused_attention_forward_efficiency", "fused_attention_backward_efficiency"),
        "gemm_sustained_share",
    )
)
"""What another board of the chip reaches more or less of, by its power."""
_SHARES: Final = ("gemm_sustained_share", "gemm_training_share")
"""What GEMMs under lasting load, and those of a step, reach of one in a short burst. All of it,
in plain kernels: with the share of published steps of Megatron (0.92) the 38 measured here are
predicted -0.4 to +8.7 % off, and without it -2.9 to +4.0 % (results/measured)."""
_SECONDS: Final = {
    "kernel_seconds": "short kernels",
    "collective_seconds": "short kernels",
    "host_native_call_seconds": "native layers, of each operation of torch",
}
_MEASURABLE: Final = (*EFFICIENCIES, *_SECONDS, "step_seconds")


def band(errors: Sequence[float]) -> float:
    """Half-width of the band around a step time: of nine of ten left-out kernels, at least 10 %."""
    if len(errors) < 2:
        return 3 * _LEAST_BAND
    return max(_LEAST_BAND, quantiles([abs(e) for e in errors], n=10, method="inclusive")[-1])


def _counts(samples: Sequence[Sample]) -> tuple[str, ...]:
    """``gemm: 412 shapes`` for every kind that is fitted."""
    kinds = [
        s.case.kind
        for s in efficiencies.fitted_samples(samples)
        if s.case.kind in efficiencies.RESOURCES
    ]
    return tuple(f"{kind}: {kinds.count(kind)} shapes" for kind in CaseKind if kind in kinds)


_MEASURED_WITH: Final = re.compile(r"# ((?:software|host|gpus)\.[\w.]+|git_commit|date): (.*)")
"""Lines of a calibration's head that say what it was measured with (CalibrationDocument)."""


def refit(path: Path) -> CalibrationOutcome:
    """Write the calibration at `path` again, from its journal and with its own head and date.
    UserError where there is no journal of one GPU with a datasheet: the peaks of other devices, and
    which link several ranks used, are known to `harness calibrate` on them alone."""
    journal = path.with_suffix(".jsonl")
    if not journal.is_file():
        raise _cannot_refit(path, f"has no samples: {journal.name} does not exist")
    machine, samples = _read(journal)
    again = "cannot be fitted again: it was measured on"
    if "host" in machine:
        raise _cannot_refit(path, f"{again} a CPU, whose peaks come from the samples")
    if machine.get("ranks") != "1":
        raise _cannot_refit(path, f"{again} several ranks, but does not state their link")
    facts = DeviceFacts(name=str(machine.get("device")))
    environment = _environment_of(path, machine)
    date = environment.pop("date", None)
    return conclude(samples, facts, environment, path, date=date)


def _cannot_refit(path: Path, relation: str) -> UserError:
    return UserError("--refit", show_path(path), relation)


def _read(journal: Path) -> tuple[dict[str, Any], tuple[Sample, ...]]:
    head, *lines = read_json_lines(journal) or ({},)
    machine = head.get("machine")
    if not isinstance(machine, dict):
        raise _cannot_refit(journal, "is not a journal of samples")
    return machine, tuple(map(read_sample, lines))


def _environment_of(path: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """What the file says of where it was measured; of one that is gone, what the journal knows."""
    software = {"torch": machine.get("torch"), "cuda": machine.get("cuda")}
    if not path.is_file():
        return {"software": software}
    found = (_MEASURED_WITH.fullmatch(line) for line in read_text(path).splitlines())
    stated = {match[1]: match[2] for match in found if match is not None}
    in_journal = {f"software.{name}" for name in software}
    return {"software": software} | {k: v for k, v in stated.items() if k not in in_journal}
