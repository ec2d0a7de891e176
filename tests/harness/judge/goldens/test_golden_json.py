"""Goldens as text: canonical, strict, and refused in one line where they are wrong."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from advisor.base.errors import UserError
from harness.judge.goldens.golden_json import (
    json_text,
    read_golden,
    series_from,
    series_values,
)
from harness.judge.goldens.series import Process, Series, metric_names, samples
from harness.trial.plausible import read_number

ROOT = Path(__file__).parents[4]
PUBLISHED = ROOT / "results/golden/llama3_70b_sft_32xh100_fp8_current.json"


@pytest.fixture
def values() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("steps", "interval"), [((4, 5, 6), 1), ((5, 10, 20), 5), ((7,), 1), ((), 1), ((1, 4, 6), 1)]
)
def test_megatrons_shape_has_the_interval_of_the_steps(
    steps: tuple[int, ...], interval: int
) -> None:
    series = Series(steps=steps, values=tuple(float(step) for step in steps))
    shape = series_values(series)
    assert shape["step_interval"] == interval
    assert (shape["start_step"], shape["end_step"]) == ((steps[0], steps[-1]) if steps else (1, 1))
    assert series_from(shape) == series


def test_not_a_number_is_text_in_the_file_and_a_number_here() -> None:
    series = Series(steps=(1, 2, 3), values=(math.nan, math.inf, 2.0))
    text = json_text(series_values(series))
    assert '"1": "nan"' in text
    assert '"2": "inf"' in text
    back = series_from(json.loads(text))
    assert math.isnan(back.values[0])
    assert back.values[1:] == (math.inf, 2.0)
    assert back.finite == (2.0,)


def test_steps_are_sorted_as_numbers() -> None:
    series = series_from({"values": {"10": 1.0, "9": 2.0, "100": 3.0}})
    assert series.steps == (9, 10, 100)
    keys = list(json.loads(json_text({"100": 1, "9": 1, "b": 1, "10": 1, "a": 1})))
    assert keys == ["a", "b", "9", "10", "100"]


@pytest.mark.parametrize(("value", "expected"), [(3, 3), (0.5, 0.5), ("1.2E+01", 12.0)])
def test_numbers(value: object, expected: float) -> None:
    found = read_number(value, "x")
    assert found == expected
    assert type(found) is type(expected), "bytes stay integers"


@pytest.mark.parametrize("value", [True, None, [], "fast", ""])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(ValueError, match=r"x = .*: is not a number"):
        read_number(value, "x")


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "[" * 100_000])
def test_what_is_no_object(text: str) -> None:
    with pytest.raises(UserError):
        read_golden(text, "file")


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("schema_version",), 2, "must be 1"),
        (("schema_version",), None, "harness golden import reads"),
        (("meta",), None, "cannot be read"),
        (("meta", "provenance"), "guessed", "cannot be read: 'guessed' is not a valid Provenance"),
        (("status",), "fine", "cannot be read"),
        (("samples",), [], "cannot be read"),
        (("limits",), {"tflops_per_gpu": "wide"}, "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused(
    values: dict[str, Any], path: tuple[str, ...], value: object, says: str
) -> None:
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(UserError, match=says) as refused:
        read_golden(json.dumps(values), "my.json")
    assert "my.json" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["meta", "identity", "status", "samples"])
def test_a_missing_part_is_named(values: dict[str, Any], key: str) -> None:
    del values[key]
    with pytest.raises(UserError, match=f"'{key}' is missing"):
        read_golden(json.dumps(values), "my.json")


def test_the_summary_is_for_the_reader_and_computed_anew(values: dict[str, Any]) -> None:
    values["summary"] = {"tflops_per_gpu": {"median": 1.0}}
    golden = read_golden(json.dumps(values), "f")
    assert golden.summary()["tflops_per_gpu"].median == 709.93


def test_series_from_a_step_on_and_samples_of_processes() -> None:
    series = Series(steps=(3, 4, 5), values=(1.0, math.nan, 2.0))
    assert series.from_step(4) == Series(steps=(4, 5), values=series.values[1:])
    assert series.from_step(9) == Series(steps=(), values=())
    one, other = (
        Process(name=n, series=s) for n, s in (("a", {"x": series}), ("b", {"y": series}))
    )
    empty = Process(name="c", series={"x": series.from_step(9)})
    assert samples((one, other, empty), "x") == ((1.0, 2.0),)
    assert metric_names((one, other, empty)) == ("x", "y")
