"""What a result may hold: whatever a file says is checked before anybody computes with it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from advisor.base.errors import UserError
from harness.trial.codec import decode_result, encode, read_number
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.store import TrialFolder

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
        ("loss", [None], "loss = None: is not a number"),
        ("loss", [1.0, True], "loss = True: is not a number"),
        ("loss", [1e300], "loss = 1e+300: is too large"),
        ("loss", None, "loss = None: must be a list"),
        ("times.seconds", [0.1, 0.0], "times.seconds = 0.0: must be positive"),
        ("times.seconds", [-1], "times.seconds = -1.0: must be positive"),
        ("times.seconds", [1e-320], "must be positive and of a plausible size"),
        ("times.seconds", [], "must hold the seconds of a step"),
        ("times.seconds", [10**30], "is too large"),
        ("times.seconds", ["nan"], "must be a number"),
        ("wall_seconds", 10**400, "a number of more than 40 digits"),
        ("wall_seconds", -1, "must not be negative"),
        ("trial", [], "trial = []: must be a mapping of keys to values"),
        ("trial.workload", "x", "trial.workload = x: must be an object"),
        ("trial.workload.layout", [1], "must be an object"),
        ("trial.workload.layout.data_parallel_size", 0, "must be at least 1"),
        ("trial.workload.seq_length", "8192", "must be an integer"),
        ("trial.workload.device", "abacus", "must be one of"),
        ("trial.variables", [None], "must be text"),
        ("environment.gpus", [None], "must be a list of objects"),
        ("environment.software", 3, "must be an object"),
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


def test_a_loss_that_is_no_number_is_one() -> None:
    result = TrialResult(
        name="x",
        status=TrialStatus.NAN,
        trial={},
        environment={},
        started_at="",
        wall_seconds=0.0,
        loss=(math.nan, -math.inf),
    )
    back = decode_result(encode(result)).loss
    assert math.isnan(back[0])
    assert back[1] == -math.inf


@pytest.mark.parametrize(("value", "number"), [(3, 3), ("1.2E+01", 12.0), ("inf", math.inf)])
def test_numbers(value: object, number: float) -> None:
    assert read_number(value, "x") == number
