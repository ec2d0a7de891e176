"""Samples that survive kills, and are of one machine."""

from pathlib import Path

import pytest

from advisor.base.errors import UserError
from harness.calibration.bench.cases import Case, Kind, Sample
from harness.calibration.bench.journal import Journal

MACHINE = {"device": "toy", "torch": "2"}


def sample(size: int) -> Sample:
    return Sample(case=Case(kind=Kind.COPY, sizes=(size,)), seconds=1e-3 * size)


def test_samples_are_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "journal.jsonl"
    journal = Journal(path, MACHINE)
    assert not journal.samples
    journal.add(sample(1))
    assert len(path.read_text().splitlines()) == 2, "the machine, the sample; nothing is closed yet"
    again = Journal(path, MACHINE)
    assert again.samples == {"copy:1": sample(1)}


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for size in (1, 2):
        journal = Journal(path, MACHINE)
        journal.add(sample(size))
    assert list(Journal(path, MACHINE).samples) == ["copy:1", "copy:2"]


@pytest.mark.parametrize("cut", range(1, 40, 7))
def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, MACHINE)
    journal.add(sample(1))
    journal.add(sample(2))
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(path, MACHINE)
    assert again.samples == {"copy:1": sample(1)}
    again.add(sample(3))
    assert list(Journal(path, MACHINE).samples) == ["copy:1", "copy:3"]


def test_a_kill_in_the_first_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"machi')
    journal = Journal(path, MACHINE)
    journal.add(sample(1))
    assert len(Journal(path, MACHINE).samples) == 1


def test_another_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, MACHINE)
    with pytest.raises(UserError, match="another machine or with other software"):
        Journal(path, MACHINE | {"torch": "3"})


@pytest.mark.parametrize("text", ["not json\n", "[1]\n", '{"machine": 1}\n\x00\n'])
def test_another_file_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    with pytest.raises(UserError):
        Journal(path, MACHINE)
    assert path.read_text() == text
