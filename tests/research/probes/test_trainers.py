"""Probes of other people's trainers: a CPU's steps take what is predicted, without cuBLAS."""

import json
from pathlib import Path

import pytest

from advisor.hardware.catalogue import load_gpu
from advisor.memory.static import cublas_workspaces
from harness.trial.trial import Device
from research.probes import __main__ as probe
from research.probes import heads, torchtitan_layers, trainers

CASE = "tiny_qwen3_1_7b_none_s128b1x1"


def test_a_step(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert probe.main(["trainers", "--tiny", "--cases", CASE, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "trainers" / f"{CASE}.json").read_text())
    workspaces = cublas_workspaces(load_gpu("H200")).num_bytes
    predicted = found["predicted"]["allocated_bytes"] - workspaces
    assert predicted == pytest.approx(found["measured"]["allocated_bytes"], rel=0.005)


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
