"""Samples as JSON lines: each is on disk before the next is measured, and none is measured twice.

The first line says which machine the samples are of. A line cut off by a kill is dropped.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

from advisor.base.documents import read_json_lines
from advisor.base.errors import UserError
from advisor.base.fields import show_path
from harness.calibration.bench.cases import Sample, read_sample, sample_values

_MACHINE: Final = "machine"


class Journal:
    """Samples of one machine in one file."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        """Open or begin the journal; UserError where it is of another machine or broken."""
        self.path = path
        self.samples: dict[str, Sample] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._read(machine)
        self._file = open(path, "ab")  # noqa: SIM115 (lives until close)
        self._file.truncate(whole)
        if whole == 0:
            self._write({_MACHINE: machine})

    @property
    def found(self) -> int:
        """Samples so far."""
        return len(self.samples)

    def add(self, sample: Sample) -> None:
        """Write one sample; it is on disk when this returns."""
        self.samples[sample.case.key] = sample
        self._write(sample_values(sample))

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()

    def _write(self, values: dict[str, Any]) -> None:
        self._file.write((json.dumps(values, sort_keys=True) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, machine: dict[str, Any]) -> int:
        """Take over what is there; the length of its whole lines."""
        if not self.path.exists():
            return 0
        lines = read_json_lines(self.path)
        if lines and lines[0].get(_MACHINE) != machine:
            raise UserError(
                "journal",
                show_path(self.path),
                "was begun on another machine or software",
                "give --out another file, or delete the journal",
            )
        for values in lines[1:]:
            sample = read_sample(values)
            self.samples[sample.case.key] = sample
        return self.path.read_bytes().rfind(b"\n") + 1
