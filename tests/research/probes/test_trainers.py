"""Probes of other people's trainers: a CPU's steps take what is predicted, without cuBLAS."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from advisor.hardware.catalogue import load_gpu
from advisor.memory.static import cublas_workspaces
from harness.trial.trial import Device
from research.probes import __main__ as probe
from research.probes import heads, torchtitan_layers, trainers

TRANSFORMERS = ("trainers", "tiny_qwen3_1_7b_none_s128b1x1", "transformers", 0.005)
TORCHTITAN = ("torchtitan_layers", "llama3_8b_l4_s1024_full_fsdp", "torchtitan", 0.05)
"""Its norms are one kernel on a GPU alone."""


@pytest.mark.parametrize(("name", "case", "package", "near"), [TRANSFORMERS, TORCHTITAN])
def test_a_step(name: str, case: str, package: str, near: float, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert probe.main([name, "--tiny", "--cases", case, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / name / f"{case}.json").read_text())
    workspaces = cublas_workspaces(load_gpu("H200")).num_bytes
    predicted = found["predicted"]["allocated_bytes"] - workspaces
    assert predicted == pytest.approx(found["measured"]["allocated_bytes"], rel=near)


def test_a_head() -> None:
    pytest.importorskip("transformers")
    one = (heads.transformers,)
    predicted = heads.predicted(one, 256, "qwen3_0.6b", 8192)
    measured = heads.measured(one, (256, 1024, 8192), Device.CPU)
    for key in (f"transformers_{name}_bytes" for name in ("kept", "forward", "backward")):
        assert measured[key] == pytest.approx(predicted[key], rel=0.005)


def test_jobs_fit_the_gpu() -> None:
    for case in (*trainers.cases(False), *torchtitan_layers.cases(False)):
        predicted = case.predict()
        assert 10 * 2**30 < predicted["allocated_bytes"] < predicted["used_bytes"] < 130 * 2**30
