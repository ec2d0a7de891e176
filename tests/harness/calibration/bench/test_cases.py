"""Work of single kernels against hand counts; samples survive kills, and are of one machine."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.calibration.bench.cases import (
    Case,
    CaseKind,
    Journal,
    Sample,
    read_sample,
    sample_values,
)
from harness.trial.result import GpuLoad


@pytest.mark.parametrize(
    ("kind", "sizes", "flops", "num_bytes"),
    [
        (CaseKind.GEMM, (4, 6, 8), 384, 2 * (32 + 48 + 24)),
        (CaseKind.GEMM_FP8, (4, 6, 8), 384, 32 + 48 + 2 * 24),
        # two matmuls of 8 x 8 x 16 multiply-adds for each of 2 x 4 heads, half of the square
        (CaseKind.ATTENTION_FORWARD, (2, 8, 4, 1, 16), 2 * 2 * 8 * 8 * 16 * 8 / 2, 2 * 256 * 2 * 5),
        (CaseKind.ATTENTION_BACKWARD, (2, 8, 4, 1, 16), 2.5 * 16384, 2 * 2 * 256 * 2 * 5),
        (CaseKind.SUSTAINED_GEMM, (4, 6, 8), 384, 2 * (32 + 48 + 24)),
        (CaseKind.GROUPED_GEMM, (3, 4, 6, 8), 3 * 384, 3 * 2 * (32 + 48 + 24)),
        # queries and keys of 24 channels, values of 16: 4 heads, half of the square
        (CaseKind.LATENT_ATTENTION_FORWARD, (2, 8, 4, 24, 16), 2 * 8 * 8 * 40 * 8 / 2, 2 * 64 * 80),
        (CaseKind.LATENT_ATTENTION_BACKWARD, (2, 8, 4, 24, 16), 2.5 * 20480, 2 * 2 * 64 * 80),
        (CaseKind.NORM, (10, 100), 0, 2 * 2000),
        (CaseKind.ADD, (10, 100), 0, 3 * 2000),
        (CaseKind.SWIGLU, (10, 100), 0, 5 * 2000),
        (CaseKind.ADAM, (1000,), 0, 28_000),
        (CaseKind.COPY, (1000,), 0, 2000),
        (CaseKind.TO_HOST, (1000,), 0, 1000),
        (CaseKind.ALL_GATHER, (1000,), 0, 1000),
        (CaseKind.HOST_LAUNCH, (9,), 0, 0),
        (CaseKind.HOST_LAYER, (8, 9), 0, 0),
    ],
)
def test_work(kind: CaseKind, sizes: tuple[int, ...], flops: float, num_bytes: int) -> None:
    case = Case(kind=kind, sizes=sizes)
    assert case.flops == flops
    assert case.num_bytes == num_bytes
    if flops or num_bytes:
        assert case.work == (flops or num_bytes)
    else:
        assert Sample(case=case, seconds=0.25).rate == 4.0, "the host's work is a call"


def test_a_key_names_kind_variant_and_sizes() -> None:
    assert Case(kind=CaseKind.GEMM, sizes=(1, 2, 3), variant="tn").key == "gemm:tn:1x2x3"
    assert Case(kind=CaseKind.COPY, sizes=(5,)).key == "copy:5"


def test_a_sample_survives_json() -> None:
    case = Case(kind=CaseKind.GEMM, sizes=(4, 6, 8), variant="nt")
    sample = Sample(case=case, seconds=2e-6, spread=0.1, runs=7)
    assert read_sample(sample_values(sample)) == sample
    assert sample.rate == 192e6


LOAD = GpuLoad(
    sm_clock_mhz=1755.0,
    max_sm_clock_mhz=1980,
    power_watts=690.5,
    throttle_reasons=("sw_power_cap",),
)


@pytest.mark.parametrize("load", [GpuLoad(), LOAD])
def test_the_load_is_kept(load: GpuLoad) -> None:
    case = Case(kind=CaseKind.SUSTAINED_GEMM, sizes=(4, 6, 8), variant="tn")
    sample = Sample(case=case, seconds=2e-6, load=load)
    assert read_sample(json.loads(json.dumps(sample_values(sample)))) == sample
    assert "load" not in sample_values(replace(sample, load=None))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "gemv"},
        {"sizes": [1, 2]},
        {"sizes": None},
        {"seconds": 0},
        {"seconds": "nan"},
        {"sizes": [0, 1, 1]},
        {"load": {"throttle_reasons": None, "volts": 1}},
    ],
)
def test_what_is_no_sample_is_refused(change: dict[str, object]) -> None:
    values = sample_values(Sample(case=Case(kind=CaseKind.GEMM, sizes=(4, 6, 8)), seconds=1.0))
    with pytest.raises(UserError, match="is not a sample"):
        read_sample(values | change)


MACHINE = {"device": "toy", "torch": "2"}


def sample(size: int) -> Sample:
    return Sample(case=Case(kind=CaseKind.COPY, sizes=(size,)), seconds=1e-3 * size)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "journal.jsonl"


def test_samples_are_on_disk_at_once_and_a_run_continues_with_them(path: Path) -> None:
    journal = Journal(path, MACHINE)
    assert not journal.samples
    journal.add(sample(1))
    assert len(path.read_text().splitlines()) == 2, "the machine, the sample; nothing is closed yet"
    again = Journal(path, MACHINE)
    assert again.samples == {"copy:1": sample(1)}
    again.add(sample(2))
    assert list(Journal(path, MACHINE).samples) == ["copy:1", "copy:2"]


@pytest.mark.parametrize("cut", range(1, 40, 7))
def test_a_line_that_a_kill_cut_off_is_dropped(path: Path, cut: int) -> None:
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
    Journal(path, MACHINE).add(sample(1))
    assert len(Journal(path, MACHINE).samples) == 1


def test_another_machine_is_refused(path: Path) -> None:
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
