"""The calibration as a YAML file, and the hardware record that it belongs to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct, field
from msgspec.structs import asdict

from advisor.hardware.calibration import Calibration
from advisor.hardware.catalogue import Datasheet
from harness.base.collections import dotted


class CalibrationDocument(Struct, frozen=True, kw_only=True):
    """A calibration with, for each field, where it comes from; and what it was measured on."""

    calibration: Calibration
    notes: Mapping[str, str]
    device: str
    date: str
    environment: Mapping[str, Any]
    remarks: tuple[str, ...] = ()

    def text(self) -> str:
        """YAML that advisor.hardware.calibration reads; the rest stands in comments."""
        head = [
            "# Written by `harness calibrate`: measured, do not edit.",
            f"# device: {self.device}",
            f"# date: {self.date}",
            *(f"# {key}: {value}" for key, value in dotted(self.environment).items()),
            *(f"# {remark}" for remark in self.remarks),
        ]
        lines = [self._line(name, value) for name, value in asdict(self.calibration).items()]
        return "\n".join((*head, *lines)) + "\n"

    def _line(self, name: str, value: Any) -> str:
        if not isinstance(value, float):
            kept = list(value) if isinstance(value, tuple) else value
            plain = kept if isinstance(kept, list | bool) else str(kept)
            text: str = yaml.safe_dump({name: plain}, width=96, allow_unicode=True)
            return text.rstrip()
        note = self.notes.get(name)
        return f"{name}: {_number(value)}" + (f"  # {note}" if note else "")


def _number(value: float) -> str:
    """Three digits; YAML 1.1 reads ``1e-05`` as text, and ``1.0e-05`` as a number."""
    shown = f"{value:.3g}"
    return shown.replace("e", ".0e") if "e" in shown and "." not in shown else shown


class HardwareRecord(Struct, frozen=True, kw_only=True):
    """A file for configs/hardware: the device that the efficiencies are fractions of."""

    name: str
    datasheet: Datasheet
    sources: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """YAML that advisor.hardware.catalogue reads."""
        values = {
            key: str(value) if isinstance(value, str) else value  # yaml knows no StrEnum
            for key, value in asdict(self.datasheet).items()
            if value is not None
        }
        if self.datasheet.nvlink_domain_size == 1:
            del values["nvlink_domain_size"], values["nvlink_gb_per_second"]
        if not values["notes"]:
            del values["notes"]
        body = yaml.safe_dump(
            values | {"sources": dict(self.sources)}, sort_keys=False, width=96, allow_unicode=True
        )
        return "# Written by `harness calibrate` together with the calibration.\n" + body


def hardware_path(calibration: Path, name: str) -> Path:
    """Where the record lies: in the folder `hardware` next to one called `calibration`, so that
    both are found with --config-dir; else next to the calibration."""
    if calibration.parent.name == "calibration":
        return calibration.parent.parent / "hardware" / f"{name}.yaml"
    return calibration.with_name(f"{calibration.stem}.hardware.yaml")
