"""`harness.calibrate`: measure this machine and fit a calibration for it."""

from pathlib import Path

from advisor.base.errors import UserError
from advisor.base.fields import convert
from harness.calibration.conclusion import CalibrationOutcome
from harness.execution.signals import stops_as_usual
from harness.trial.trial import Device


def calibrate(
    *,
    budget_seconds: float = 180.0,
    device: str | None = None,
    out: str | Path | None = None,
    refit: str | Path | None = None,
) -> CalibrationOutcome | None:
    """Measure this machine and fit a calibration, as `harness calibrate` does. Returns the
    calibration, its file, and what a small budget left out.

    Args:
        budget_seconds: how long to measure.
        device: ``cuda`` or ``cpu``; None takes the GPU if there is one.
        out: the YAML file; None means ``calibrated/calibration/NAME.yaml``. Samples are written
            next to it, so that the same call continues a stopped one.
        refit: measure nothing: fit this file again from the samples next to it.

    Returns None on ranks other than 0 of a torchrun. UserError if nothing could be measured.
    """
    if refit is not None:
        from harness.calibration.conclusion import refit as fitted_again

        return fitted_again(Path(refit))
    if budget_seconds <= 0:
        raise UserError("budget_seconds", budget_seconds, "must be positive")
    from harness.calibration.measurement import calibrate as measured

    with stops_as_usual():
        return measured(device_of(device), budget_seconds, None if out is None else Path(out))


def device_of(name: str | None) -> Device:
    """The device called `name`; where None, a GPU where torch sees one, else the CPU."""
    if name is not None:
        return Device(convert(name, Device, "", "device"))
    import torch

    return Device.CUDA if torch.cuda.is_available() else Device.CPU
