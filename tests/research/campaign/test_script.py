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
  - {name: brought, arguments: [accuracy, --help], why: what WHEELS brings, needs: [brought_along]}
"""


def call(out: Path, *campaigns: str, **variables: object) -> "subprocess.CompletedProcess[str]":
    """Next to `out` lies what a call keeps: one into another folder starts afresh."""
    given = {"TESTS": "none", "KEEP": f"{out}.kept", "LIMIT_SECONDS": "200"}
    given |= {name: str(value) for name, value in variables.items()}
    return subprocess.run(
        [str(SCRIPT), str(out), *campaigns],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHON": sys.executable, **given},
    )


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as packed:
        return {member.name for member in packed if member.isfile()}


def test_it_packs_what_was_done_and_goes_on_from_there(tmp_path: Path) -> None:
    campaign, wheels = tmp_path / "mine.yaml", tmp_path / "wheels"
    campaign.write_text(CAMPAIGN)
    wheels.mkdir()
    with ZipFile(wheels / "brought_along-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought_along.py", "")
    first = call(tmp_path / "one", f"{campaign}:help", str(campaign), WHEELS=wheels)
    assert first.returncode == 3, first.stderr
    assert "help: done before" in first.stdout
    archive = tmp_path / "one" / "campaign.tar.gz"
    assert {
        "campaign/campaign.jsonl",
        "campaign/environment.json",
        "campaign/logs/help.txt",
        "campaign/logs/brought.txt",
    } <= names(archive)
    kept = tmp_path / "two.kept" / "campaign" / "logs" / "large.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("x" * 300_000)
    second = call(tmp_path / "two", f"{campaign}:brought,help", RESUME=archive, ARCHIVE_BYTES=1)
    assert second.returncode == 0, second.stderr
    assert second.stdout.index("brought: done before") < second.stdout.index("help: done before")
    assert "left out of campaign.tar.gz: campaign/logs/large.txt" in second.stderr
    assert names(tmp_path / "two" / "campaign.tar.gz") == names(archive)
    assert kept.exists()


def test_nothing_is_measured_where_no_test_of_the_native_backend_passes(tmp_path: Path) -> None:
    done = call(tmp_path / "out", "cpu", TESTS="gate", PYTEST_ADDOPTS="-p no_such_plugin")
    assert done.returncode == 4
    assert "the gate is shut" in done.stdout
    assert (tmp_path / "out" / "campaign.txt").read_text() == ""
    assert (tmp_path / "out" / "tests.txt").read_text().startswith("test_calibrate.py: not run\n")


@pytest.mark.parametrize(
    ("variables", "words"),
    [({"RESUME": "/nowhere.tar.gz"}, "no archive"), ({"WHEELS": ROOT / "docs"}, "no wheel")],
)
def test_wrong_use_is_said(variables: dict[str, object], words: str, tmp_path: Path) -> None:
    done = call(tmp_path / "out", **variables)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "out" / "campaign.tar.gz").exists()
