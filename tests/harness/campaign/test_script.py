"""scripts/gpu_campaign.sh on this machine: wheels are unpacked, results packed, nothing lost."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "gpu_campaign.sh"
CAMPAIGN = """
items:
  - {name: help, arguments: [--help], why: the cheapest command}
  - {name: later, arguments: [run], why: no time for it, least_seconds: 500}
  - {name: brought, arguments: [--help], why: what WHEELS brings, needs: [brought_along]}
"""


def call(out: Path, **variables: object) -> "subprocess.CompletedProcess[str]":
    given = {name: str(value) for name, value in variables.items()}
    return subprocess.run(
        [str(SCRIPT), str(out)], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTHON": sys.executable, "TEST_SECONDS": "0", **given},
    )  # fmt: skip


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as packed:
        return {member.name for member in packed if member.isfile()}


def test_it_packs_what_was_done_and_goes_on_from_there(tmp_path: Path) -> None:
    campaign, wheels = tmp_path / "mine.yaml", tmp_path / "wheels"
    campaign.write_text(CAMPAIGN)
    wheels.mkdir()
    with ZipFile(wheels / "brought_along-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought_along.py", "")
    first = call(tmp_path / "one", CAMPAIGN=campaign, BUDGET="100s", WHEELS=wheels)
    assert first.returncode == 3, first.stderr
    archive = tmp_path / "one" / "campaign.tar.gz"
    assert {"campaign/campaign.jsonl", "campaign/environment.json", "campaign/logs/help.txt",
            "campaign/logs/brought.txt"} <= names(archive)  # fmt: skip
    second = call(tmp_path / "two", CAMPAIGN=campaign, BUDGET="100s", RESUME=archive)
    assert "help: done before" in second.stdout
    assert "brought: done before" in second.stdout
    assert names(tmp_path / "two" / "campaign.tar.gz") >= names(archive)


@pytest.mark.parametrize(
    ("variables", "words"),
    [({"RESUME": "/nowhere.tar.gz"}, "no archive"), ({"WHEELS": ROOT / "docs"}, "no wheel")],
)
def test_wrong_use_is_said(variables: dict[str, object], words: str, tmp_path: Path) -> None:
    done = call(tmp_path / "out", **variables)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "out" / "campaign.tar.gz").exists()
