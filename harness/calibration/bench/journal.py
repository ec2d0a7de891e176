"""Samples as JSON lines: each is on disk before the next is measured, and none is measured twice.

The first line says which machine the samples are of. A line cut off by a kill is dropped.
"""

from pathlib import Path
from typing import Any, Final

from advisor.base.documents import read_json_lines
from advisor.base.errors import UserError
from advisor.base.fields import show_path
from harness.calibration.bench.cases import Sample, read_sample, sample_values
from harness.trial.files import append_json_line

_MACHINE: Final = "machine"


class Journal:
    """Samples of one machine in one file."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        """Open or begin the journal; UserError where it is of another machine or broken."""
        self.path = path
        self.samples: dict[str, Sample] = {}
        if not self._read(machine):
            append_json_line(path, {_MACHINE: machine})

    def add(self, sample: Sample) -> None:
        """Write one sample; it is on disk when this returns."""
        self.samples[sample.case.key] = sample
        append_json_line(self.path, sample_values(sample))

    def _read(self, machine: dict[str, Any]) -> bool:
        """Take over what is there; whether the journal was begun."""
        if not self.path.exists():
            return False
        lines = read_json_lines(self.path)
        if lines and lines[0].get(_MACHINE) != machine:
            raise UserError(
                "journal",
                show_path(self.path),
                "was started on another machine or with other software",
                "give --out another file, or delete the journal",
            )
        for values in lines[1:]:
            sample = read_sample(values)
            self.samples[sample.case.key] = sample
        return bool(lines)
