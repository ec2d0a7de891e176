"""A calibration fitted anew from the samples beside it: no device, nothing is measured."""

import re
from pathlib import Path
from typing import Any, Final

from advisor.base.documents import read_json_lines, read_text
from advisor.base.errors import UserError
from advisor.base.fields import show_path
from harness.calibration.bench.cases import Sample, read_sample
from harness.calibration.conclusion import Outcome, conclude
from harness.calibration.reference import DeviceFacts

_TOLD: Final = re.compile(r"# ((?:software|host|gpus)\.[\w.]+|git_commit|date): (.*)")
"""Lines of a calibration's head that say what it was measured with (document.CalibrationDocument).
"""


def refit(path: Path) -> Outcome:
    """Write the calibration at `path` again, from its journal and with its own head.

    It keeps its date, and says that it was fitted again. UserError where there is no journal of one
    GPU with a datasheet: the peaks of other devices, and which link several ranks used, are known
    to `harness calibrate` on them alone.
    """
    journal = path.with_suffix(".jsonl")
    if not journal.is_file():
        raise UserError(
            "--refit", show_path(path), f"has no samples: {journal.name} does not exist"
        )
    machine, samples = _read(journal)
    if "host" in machine:
        raise UserError(
            "--refit",
            show_path(path),
            "cannot be fitted again: it was measured on a CPU, whose peaks come from the samples",
        )
    if machine.get("ranks") != "1":
        raise UserError(
            "--refit",
            show_path(path),
            "cannot be fitted again: it was measured on several ranks, but does not state "
            "their link",
        )
    facts = DeviceFacts(
        name=str(machine.get("device")),
        is_cpu=False,
        memory_bytes=0,
        processors=0,
        compute_capability=0.0,
    )
    told = _environment(path, machine)
    date = told.pop("date", None)
    return conclude(samples, facts, told, path, date=date)


def _read(journal: Path) -> tuple[dict[str, Any], tuple[Sample, ...]]:
    head, *lines = read_json_lines(journal) or ({},)
    machine = head.get("machine")
    if not isinstance(machine, dict):
        raise UserError("--refit", show_path(journal), "is not a journal of samples")
    return machine, tuple(map(read_sample, lines))


def _environment(path: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """What the file says of where it was measured; of one that is gone, what the journal knows."""
    software = {"torch": machine.get("torch"), "cuda": machine.get("cuda")}
    if not path.is_file():
        return {"software": software}
    found = (_TOLD.fullmatch(line) for line in read_text(path).splitlines())
    told = {match[1]: match[2] for match in found if match is not None}
    return {"software": software} | {
        key: value for key, value in told.items() if key not in ("software.torch", "software.cuda")
    }
