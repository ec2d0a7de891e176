"""docs/gpus.md: every GPU without a fit is in its table."""

import re
from pathlib import Path

import pytest

from advisor.hardware.calibration import Provenance, load_calibration
from advisor.hardware.catalogue import gpu_names, load_gpu

PAGE = (Path(__file__).parents[3] / "docs" / "gpus.md").read_text()


@pytest.mark.parametrize("name", gpu_names())
def test_its_table_of_bands(name: str) -> None:
    calibration = load_calibration(load_gpu(name))
    if calibration.provenance is not Provenance.DATASHEET:
        return
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{calibration.name}`"))
    assert f"±{calibration.step_time_error * 100:.0f} %" in row
    family = re.sub(r"-(SXM|PCIe|NVL)?-?[0-9]+GB$", "", name).replace("-", " ")
    assert family in row
