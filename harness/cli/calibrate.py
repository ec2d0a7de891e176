"""`harness calibrate`: measure this machine and fit a calibration for it."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from advisor.base.errors import UserError, require, show
from advisor.hardware.calibration import EFFICIENCIES
from advisor.report.blocks import Block, Column, Indented, group, table, verbatim
from advisor.report.command_help import read_page
from advisor.report.text import on_screen
from harness.api.calibrating import device_of
from harness.base.duration import duration
from harness.cli.flags import Parser
from harness.execution.progress import TimedCases
from harness.execution.signals import Stop
from harness.trial.trial import Device

if TYPE_CHECKING:
    from harness.calibration.conclusion import CalibrationOutcome

_DEVICES: Final = {"choices": (Device.CUDA, Device.CPU)}
COMMAND: Final = read_page(__file__, "calibrate", {"--device": _DEVICES})


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    options = parse(argv)
    if options.refit is not None:
        from harness.calibration.conclusion import refit

        print(page(refit(options.refit)), end="")
        return 0
    from harness.calibration.measurement import calibrate

    require("torch", "harness calibrate", "harness")
    watch = TimedCases(options.budget_seconds)
    try:
        device, budget = device_of(options.device), options.budget_seconds
        outcome = calibrate(device, budget, options.out, watch.say, watch.tick)
    except Stop as stop:
        watch.say("stopped before enough was measured; run the same command to continue")
        return stop.exit_code
    finally:
        watch.close()
    if outcome is None:
        return 0
    print(page(outcome), end="")
    if outcome.stopped is not None:
        watch.say("stopped; run the same command to measure more")
        return outcome.stopped.exit_code
    if not outcome.finished:
        watch.say("the budget is used up; run the same command to measure more")
    return 0


def parse(argv: Sequence[str]) -> Namespace:
    """Budget in seconds, device, and files; UserError for a flag that is not known."""
    found = Parser("calibrate", COMMAND).read(argv)
    for flag in ("budget", "device", "out") if found.refit else ():
        if (value := getattr(found, flag)) is not None:
            relation = "cannot be combined with --refit, which measures nothing"
            raise UserError(f"--{flag}", show(str(value)), relation)
    found.budget_seconds = duration(found.budget or "3min")
    for flag in ("out", "refit"):
        path = getattr(found, flag)
        if path is not None and path.suffix not in (".yaml", ".yml"):
            hint = f"write {path.stem}.yaml"
            raise UserError(f"--{flag}", show(str(path)), "must be a YAML file", hint)
    return found


def page(outcome: "CalibrationOutcome") -> str:
    """The fitted numbers with where each comes from, and how to use the file."""
    calibration = outcome.calibration
    rows = table([Column(left=True), Column(), Column(left=True, wrap=True)])
    optional = "optimizer_bandwidth_efficiency"
    for field in (*EFFICIENCIES, *([optional] if getattr(calibration, optional) else [])):
        rows.add_row(field, f"{getattr(calibration, field):.3f}", outcome.notes.get(field, ""))
    half_rates = (calibration.attention_half_rate_rows, calibration.attention_half_rate_tokens)
    if any(half_rates):
        lengths = "{:,.0f} rows, {:,.0f} tokens".format(*half_rates)
        rows.add_row("attention reaches half its rate at", "", lengths)
    for field in ("kernel_seconds", "collective_seconds", "step_seconds"):
        micro = getattr(calibration, field) * 1e6
        rows.add_row(field, f"{micro:.1f} µs", outcome.notes.get(field, ""))
    parts: list[Block] = [
        f"calibration {calibration.name}: {outcome.samples} samples, {calibration.summary()}",
        Indented(rows, 2),
        *(f"note: {remark}" for remark in outcome.remarks),
        f"error on shapes left out: {calibration.left_out_error}",
        verbatim(f"wrote {outcome.path}", f"      {outcome.hardware_path}"),
    ]
    if outcome.path.parent.name == "calibration":
        folder = outcome.path.parent.parent
        use = f"use:  harness run --config-dir {folder} …"
        advise = f"advise --config-dir {folder} --gpus 1x{outcome.hardware} --model …"
        parts.append(verbatim(use, f"      {advise}"))
    return on_screen(group(*parts))


if __name__ == "__main__":
    from harness.cli.main import main as harness

    sys.exit(harness(["calibrate", *sys.argv[1:]]))
