"""What a measured rate is a fraction of: a known GPU's datasheet, else the best measured here."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.configuration import ConfigGroup, load_config
from advisor.base.errors import UserError
from advisor.base.fields import read_record
from advisor.base.units import GIB, significant
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.hardware.catalogue import Datasheet, load_gpu, resolve_gpu
from advisor.hardware.gpu import Gpu
from harness.calibration.bench.cases import BANDWIDTH, CaseKind, Sample
from harness.calibration.calibration_file import HardwareRecord

_GIGA: Final = 10**9
_TERA: Final = 10**12
_LARGEST_PART: Final = 4
_NO_LINK: Final = "no link measured: the measured memory bandwidth is used instead"


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """What is known of a device without measuring; of one with a datasheet its name will do."""

    name: str
    is_cpu: bool = False
    memory_bytes: int = 0
    processors: int = 0
    compute_capability: float = 0.0


class Reference(Struct, frozen=True, kw_only=True):
    """The device that efficiencies belong to; `measured` where its peaks were measured, not
    published. `base` has the constants that cannot be measured on one device."""

    gpu: Gpu
    record: HardwareRecord
    base: Calibration
    measured: bool


def reference(facts: DeviceFacts, samples: Sequence[Sample]) -> Reference:
    """The datasheet where the name is known, else peaks out of `samples`; UserError without."""
    known = None if facts.is_cpu else _known(facts.name)
    if known is not None:
        return known
    record = _measured_record(facts, samples)
    gpu = record.datasheet.gpu(record.name)
    return Reference(
        gpu=gpu, record=record, base=load_calibration(replace(gpu, calibration=None)), measured=True
    )


def calibration_name(hardware: str) -> str:
    """``H200-SXM-141GB`` -> ``h200_sxm_141gb_measured``."""
    return f"{_slug(hardware, '_').lower()}_measured"


def _known(device_name: str) -> Reference | None:
    try:
        name = resolve_gpu(device_name)
    except UserError:
        return None
    gpu = load_gpu(name)
    document = load_config(ConfigGroup.HARDWARE, name)
    values = {key: value for key, value in document.values.items() if key != "sources"}
    sources = document.values.get("sources")
    datasheet = read_record(Datasheet, values, document.path)
    return Reference(
        gpu=gpu,
        record=HardwareRecord(
            name=name,
            datasheet=replace(datasheet, calibration=calibration_name(name)),
            sources=dict(sources) if isinstance(sources, dict) else {},
        ),
        base=load_calibration(gpu),
        measured=False,
    )


def _measured_record(facts: DeviceFacts, samples: Sequence[Sample]) -> HardwareRecord:
    """Best GEMM and best stream as if they were peaks; said so for every number."""
    flops = _best(samples, lambda sample: sample.case.kind is CaseKind.GEMM, "GEMM")
    streams = [s for s in samples if s.case.kind in (CaseKind.COPY, CaseKind.ADAM, *BANDWIDTH)]
    streams.sort(key=lambda sample: sample.case.num_bytes, reverse=True)
    largest = streams[: max(1, len(streams) // _LARGEST_PART)]  # small ones stay in a cache
    stream = _best(largest, lambda _: True, "memory-bound kernel")
    eight_bit = [sample.rate for sample in samples if sample.case.kind is CaseKind.GEMM_FP8]
    host = [s.rate for s in samples if s.case.kind in (CaseKind.TO_DEVICE, CaseKind.TO_HOST)]
    bandwidth = round(stream.rate / _GIGA, 2)
    name = f"{'CPU' if facts.is_cpu else 'GPU'}-{_slug(facts.name, '-')}"
    gemm = f"no datasheet value: best GEMM measured here, {flops.case.key}, bf16"
    best = f"no datasheet value: best rate measured here, {stream.case.key}"
    reported = "what torch reports (get_device_properties)"
    unit = "cores" if facts.is_cpu else "multiprocessors"
    return HardwareRecord(
        name=name,
        datasheet=Datasheet(
            memory_torch_total_gib=round(facts.memory_bytes / GIB, 2),
            memory_bandwidth_gb_per_second=bandwidth,
            bf16_tflops=significant(flops.rate / _TERA, 3),
            fp16_tflops=significant(flops.rate / _TERA, 3),
            fp8_tflops=significant(max(eight_bit) / _TERA, 3) if eight_bit else None,
            sm_count=facts.processors,
            compute_capability=facts.compute_capability,
            internode_gb_per_second=bandwidth,
            host_link_gb_per_second=round(max(host) / _GIGA, 2) if host else bandwidth,
            calibration=calibration_name(name),
        ),
        sources={
            "memory_torch_total_gib": "what the system reports",
            "memory_bandwidth_gb_per_second": best,
            "bf16_tflops": gemm,
            "fp16_tflops": f"not measured: assumed equal to bf16 ({gemm})",
            "sm_count": f"{unit} that the process may use",
            "compute_capability": "none: a CPU" if facts.is_cpu else reported,
            "internode_gb_per_second": _NO_LINK,
            "host_link_gb_per_second": "best copy measured here" if host else _NO_LINK,
        },
    )


def _best(samples: Sequence[Sample], wanted: Callable[[Sample], bool], what: str) -> Sample:
    found = [sample for sample in samples if wanted(sample)]
    if not found:
        relation = f"ended before a {what} was timed, so no peak is known"
        raise UserError("--budget", "(spent)", relation, "use a larger budget")
    return max(found, key=lambda sample: sample.rate)


def _slug(name: str, joint: str) -> str:
    """Words of a device's name without marks and what every processor is called."""
    plain = re.sub(r"\((?:R|TM)\)|@.*|\b(?:CPU|NVIDIA)\b", " ", name, flags=re.IGNORECASE)
    return re.sub(r"[^A-Za-z0-9]+", joint, plain).strip(joint) or "unknown"
