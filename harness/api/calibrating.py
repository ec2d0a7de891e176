"""`harness.calibrate`: measure this machine and fit a calibration for it."""

from pathlib import Path

from advisor.base.errors import UserError
from advisor.base.fields import convert
from harness.api.interrupt import stops_as_usual
from harness.calibration.conclusion import Outcome
from harness.trial.trial import Device


def calibrate(
    *,
    budget_seconds: float = 180.0,
    device: str | None = None,
    out: str | Path | None = None,
    refit: str | Path | None = None,
) -> Outcome | None:
    """What `harness calibrate` does: the calibration, its file, and what a small budget left out.

    Args:
        budget_seconds: how long to measure.
        device: ``cuda`` where there is a GPU, else ``cpu``, where None.
        out: the YAML file; ``calibrated/calibration/NAME.yaml`` where None. Samples lie beside it:
            the same call goes on where it was stopped.
        refit: measure nothing: fit this file again from the samples beside it.

    None on ranks other than 0 of a torchrun. UserError where nothing could be measured.
    """
    if refit is not None:
        from harness.calibration.refit import refit as fitted_again

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
