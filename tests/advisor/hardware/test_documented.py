"""docs/gpus.md: its files work in --config-dir, and every GPU without a fit is in its table."""

import re
from pathlib import Path

import pytest

from advisor.cli.main import main
from advisor.hardware.calibration import Provenance, load_calibration
from advisor.hardware.catalogue import gpu_names, load_gpu

PAGE = (Path(__file__).parents[3] / "docs" / "gpus.md").read_text()


def test_its_files_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.S)
    for name, text in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    commands = re.findall(r"```\nadvise (.*?)\n```", PAGE)
    assert len(files) == len(commands) == 2
    for command in commands:
        assert main(command.split()) == 0
    assert main(["gpus", "--config-dir", "my-configs"]) == 0
    assert "H100-PCIe-48GB" in capsys.readouterr().out


@pytest.mark.parametrize("name", gpu_names())
def test_its_table_of_bands(name: str) -> None:
    calibration = load_calibration(load_gpu(name))
    if calibration.provenance is not Provenance.DATASHEET:
        return
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{calibration.name}`"))
    assert f"±{calibration.step_time_error * 100:.0f} %" in row
    family = re.sub(r"-(SXM|PCIe|NVL)?-?[0-9]+GB$", "", name).replace("-", " ")
    assert family in row
