"""`harness calibrate`: measure this machine and fit a calibration for it."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from advisor.base.errors import UserError, require
from advisor.base.fields import show
from advisor.base.units import nearest_names
from advisor.hardware.calibration import EFFICIENCIES
from harness.api.calibrating import device_of
from harness.execution.progress import TimedCases
from harness.execution.signals import Stop
from harness.trial.trial import Device

if TYPE_CHECKING:
    from harness.calibration.conclusion import Outcome

HELP: Final = """\
harness calibrate [--budget 3min] [--device cuda|cpu] [--out FILE]

Measures GEMMs, flash attention, memory-bound kernels, host copies and, under torchrun, collectives,
at the shapes that the model presets run, and on a GPU what a lasting load leaves of those rates;
fits a calibration, checks it on shapes that the fit did not see, and writes it with its provenance.

  --budget TIME   how long to measure: 30s, 3min (default), 1h. What a small budget leaves out is
                  the least valuable: efficiencies that were not measured keep a typical value, and
                  the file says which.
  --device NAME   cuda where there is a GPU (default), else cpu
  --out FILE      default: calibrated/calibration/NAME.yaml. Samples go to FILE's name with .jsonl
                  as they are measured: the same command goes on where it was stopped. A hardware
                  record goes to ../hardware, so that the folder above is a --config-dir:
                  advise --config-dir calibrated --gpus 8xNAME …
  --refit FILE    measure nothing: fit FILE again from the samples beside it, with the fit as it is
                  now. Needs no GPU; takes no other option

With several GPUs: torchrun --nproc-per-node 8 -m harness.cli.calibrate …

Exit codes: 0 written, 2 the request is wrong or nothing could be measured (one line says why),
130 or 143 interrupted: the calibration is of what was measured until then.
"""

_UNITS: Final = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}
_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*")
_FLAGS: Final = ("--budget", "--device", "--out", "--refit", "--help")
_DEFAULT_BUDGET_SECONDS: Final = 180.0


class Options(Struct, frozen=True, kw_only=True):
    """The command line; `device` None means: a GPU where there is one."""

    budget_seconds: float = _DEFAULT_BUDGET_SECONDS
    device: Device | None = None
    out: Path | None = None
    refit: Path | None = None


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    if "--help" in argv or "-h" in argv:
        print(HELP, end="")
        return 0
    options = parse(argv)
    if options.refit is not None:
        from harness.calibration.refit import refit

        print(page(refit(options.refit)), end="")
        return 0
    from harness.calibration.measurement import calibrate

    require("torch", "harness calibrate", "harness")
    watch = TimedCases("calibrate", options.budget_seconds)
    try:
        outcome = calibrate(
            options.device or device_of(None),
            options.budget_seconds,
            options.out,
            watch.say,
            watch.tick,
        )
    except Stop as stop:
        watch.say("stopped before enough was measured; the same command goes on")
        return stop.exit_code
    finally:
        watch.close()
    if outcome is None:
        return 0
    print(page(outcome), end="")
    if outcome.stopped is not None:
        watch.say("stopped; the same command measures more")
        return outcome.stopped.exit_code
    if not outcome.finished:
        watch.say("the budget is spent; the same command measures more")
    return 0


def parse(argv: Sequence[str]) -> Options:
    """Flags as ``--flag value`` or ``--flag=value``; UserError for anything else."""
    rest = list(argv)
    given: dict[str, str] = {}
    while rest:
        name, has_value, value = rest.pop(0).partition("=")
        if name not in _FLAGS:
            hint = nearest_names(name, _FLAGS) if name.startswith("-") else ""
            raise UserError(show(name), value or "(given)", "is not a flag", hint)
        if not has_value and not rest:
            raise UserError(name, "(none)", "needs a value")
        given[name] = value if has_value else rest.pop(0)
    budget = given.get("--budget")
    if "--refit" in given and len(given) > 1:
        other = next(name for name in given if name != "--refit")
        raise UserError(
            other, show(given[other]), "does not go with --refit, which measures nothing"
        )
    return Options(
        budget_seconds=_DEFAULT_BUDGET_SECONDS if budget is None else duration(budget),
        device=_device(given["--device"]) if "--device" in given else None,
        out=_out(given["--out"]) if "--out" in given else None,
        refit=_out(given["--refit"], "--refit") if "--refit" in given else None,
    )


def duration(text: str) -> float:
    """Seconds of ``30s``, ``3min``, ``1.5h``; the unit is required."""
    match = _DURATION.fullmatch(text.lower())
    unit = _UNITS.get(match.group(2)) if match else None
    if match is None or unit is None:
        raise UserError("--budget", show(text), "is not a time", "write e.g. 30s, 3min or 1h")
    seconds = float(match.group(1)) * unit
    if seconds <= 0:
        raise UserError("--budget", show(text), "must be positive", "write e.g. 3min")
    return seconds


def page(outcome: "Outcome") -> str:
    """The fitted numbers with where each comes from, and how to use the file."""
    calibration = outcome.calibration
    lines = [f"calibration {calibration.name}: {outcome.samples} samples, {calibration.summary}"]
    for field in EFFICIENCIES:
        lines.append(f"  {field:<30} {getattr(calibration, field):6.3f}  {_note(outcome, field)}")
    half_rates = (calibration.attention_half_rate_rows, calibration.attention_half_rate_tokens)
    if calibration.optimizer_bandwidth_efficiency:
        field, value = "optimizer_bandwidth_efficiency", calibration.optimizer_bandwidth_efficiency
        lines.append(f"  {field:<30} {value:6.3f}  {_note(outcome, field)}")
    if any(half_rates):
        rows, tokens = half_rates
        lines.append(f"  attention at half its rate     {rows:6,.0f} rows, {tokens:,.0f} tokens")
    for field in ("kernel_seconds", "collective_seconds", "step_seconds"):
        micro = getattr(calibration, field) * 1e6
        lines.append(f"  {field:<30} {micro:6.1f} µs  {_note(outcome, field)}")
    lines += [
        *(f"note: {remark}" for remark in outcome.remarks),
        f"left out: {calibration.left_out_error}",
        f"wrote {outcome.path}",
        f"      {outcome.hardware_path}",
    ]
    if outcome.path.parent.name == "calibration":
        folder = outcome.path.parent.parent
        lines.append(f"use:  harness run --config-dir {folder} …")
        lines.append(f"      advise --config-dir {folder} --gpus 1x{outcome.hardware} --model …")
    return "\n".join(lines) + "\n"


def _note(outcome: "Outcome", field: str) -> str:
    return outcome.notes.get(field, "")


def _device(text: str) -> Device:
    names = [device.value for device in Device]
    if text not in names:
        raise UserError("--device", show(text), f"must be one of {', '.join(names)}")
    return Device(text)


def _out(text: str, flag: str = "--out") -> Path:
    path = Path(text)
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(flag, show(text), "must be a YAML file", f"write {path.stem}.yaml")
    return path


if __name__ == "__main__":
    from harness.cli.main import main as harness

    sys.exit(harness(["calibrate", *sys.argv[1:]]))
