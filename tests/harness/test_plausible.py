"""What a result may hold: whatever a file says is checked before anybody computes with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.base.errors import UserError
from harness.trial.store import TrialFolder, decode_result, encode

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/harness/fixtures/recorded_regression/selective_mlp/result.json"


@pytest.fixture
def values() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def with_value(values: dict[str, Any], path: str, value: object) -> str:
    *holders, last = path.split(".")
    inner = values
    for key in holders:
        inner = inner.setdefault(key, {})
    inner[last] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("loss", [None], "loss[0]: Expected `float`, got `null`"),
        ("loss", [1.0, True], "loss[1]: Expected `float`, got `bool`"),
        ("loss", ["fast"], "loss[0]: Expected `float`, got `str`"),
        ("loss", [1e300], "loss = 1e+300: is too large"),
        ("loss", None, "loss: Expected `array`, got `null`"),
        ("times.seconds", [0.1, 0.0], "times.seconds[1]: Expected `float` >= 1e-18"),
        ("times.seconds", [-1], "times.seconds[0]: Expected `float` >= 1e-18"),
        ("times.seconds", [1e-320], "Expected `float` >= 1e-18"),
        ("times.seconds", [], "must hold the seconds of a step"),
        ("times.seconds", [10**30], "Expected `float` <= 1e+18"),
        ("times.seconds", ["nan"], "Expected `float`, got `str`"),
        ("wall_seconds", 10**400, "a number of more than 40 digits"),
        ("started_at", "yesterday", "started_at = yesterday: must be a time, e.g. 2026-01-31T"),
        ("wall_seconds", -1, "wall_seconds: Expected `float` >= 0"),
        ("memory", [{"rank": 0, "stage": 0, "allocated": -1}], "memory[0].allocated"),
        ("status", "fine", "status: Invalid enum value 'fine'"),
        ("trial", [], "trial: Expected `object`, got `array`"),
        ("trial.workload", "x", "trial.workload: Expected `object | null`, got `str`"),
        ("trial.workload.layout", [1], "trial.workload.layout: Expected `object | null`"),
        ("trial.workload.layout.data_parallel_size", 0, "Expected `int` >= 1"),
        ("trial.workload.seq_length", "8192", "seq_length: Expected `int | null`, got `str`"),
        ("trial.workload.device", "abacus", "device: Invalid enum value 'abacus'"),
        ("trial.variables", [None], "trial.variables[0]: Expected `str`, got `null`"),
        ("environment.gpus", [None], "environment.gpus[0]: Expected `object`"),
        ("environment.software", 3, "environment.software: Expected `object | null`"),
    ],
)
def test_what_nobody_measures_is_refused(values, path, value, says, tmp_path) -> None:
    text = with_value(values, path, value)
    with pytest.raises(UserError) as refused:
        decode_result(text, "result.json")
    assert says in str(refused.value)
    assert "result.json" in str(refused.value)
    (tmp_path / "result.json").write_text(text)
    assert TrialFolder(tmp_path).result() is None
    assert str(TrialFolder(tmp_path).broken_result()).endswith(str(refused.value)[-40:])


@pytest.mark.parametrize("path", sorted((ROOT / "results/measured").rglob("result.json"))[::7])
def test_what_was_measured_is_read(path: Path) -> None:
    result = decode_result(path)
    assert decode_result(encode(result)) == result
    assert TrialFolder(path.parent).broken_result() is None
