"""Probes of other people's trainers: on a CPU their steps take what is predicted, but for the
workspaces of cuBLAS, and norms that are one kernel on a GPU alone (torchtitan's)."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from advisor.base.errors import UserError
from advisor.hardware.catalogue import load_gpu
from advisor.memory.static import cublas_workspaces
from harness.trial.trial import Device
from research.probes import __main__ as probe
from research.probes import heads, torchtitan_layers, trainers


def _ran(name: str, case: str, out: Path) -> tuple[int, int]:
    """Allocated bytes of a tiny case, predicted and measured, in a process of its own."""
    assert probe.main([name, "--tiny", "--cases", case, "--out", str(out)]) == 0
    found = json.loads((out / name / f"{case}.json").read_text())
    workspaces = cublas_workspaces(load_gpu("H200")).num_bytes
    predicted = found["predicted"]["allocated_bytes"] - workspaces
    return predicted, found["measured"]["allocated_bytes"]


def test_a_step_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    predicted, measured = _ran("trainers", "tiny_qwen3_1_7b_none_s128b1x1", tmp_path)
    assert predicted == pytest.approx(measured, rel=0.005)


def test_a_step_of_torchtitan(tmp_path: Path) -> None:
    if find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    predicted, measured = _ran("torchtitan_layers", "llama3_8b_l4_s1024_full_fsdp", tmp_path)
    assert predicted == pytest.approx(measured, rel=0.05)


def test_a_head() -> None:
    pytest.importorskip("transformers")
    (tiny, *_) = heads.cases(True)
    tokens, model, vocabulary = tiny.predict.args[1:]  # type: ignore[attr-defined]
    one = (heads.transformers,)
    predicted = heads.predicted(one, tokens, model, vocabulary)
    measured = heads.measured(one, (tokens, 1024, vocabulary), Device.CPU)
    for name in ("kept", "forward", "backward"):
        key = f"transformers_{name}_bytes"
        assert measured[key] == pytest.approx(predicted[key], rel=0.005)


def test_a_head_whose_package_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise UserError(name, "", "is not installed")

    monkeypatch.setattr(heads, "package", missing)
    with pytest.raises(UserError, match="is not installed"):
        heads.measured((heads.liger,), (8, 16, 32), Device.CPU)


def test_names_and_predictions_of_the_jobs() -> None:
    """Each job of a GPU is predicted to fit on it, and so is each of torchtitan."""
    for case in (*trainers.cases(False), *torchtitan_layers.cases(False)):
        predicted = case.predict()
        assert 10 * 2**30 < predicted["allocated_bytes"] < predicted["used_bytes"] < 130 * 2**30
