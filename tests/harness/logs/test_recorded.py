"""Logs that DeepSpeed, torchtitan and the Trainer wrote on a CPU: recorded/README.md says how."""

import re
from pathlib import Path

import pytest

from harness.logs.parse import ParsedLog, parse_logs
from harness.logs.records import LogFramework, LoggedPeak, WholeRun
from harness.logs.trial_result import LoggedRun, result_of
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.trial import Device, MeasurementPlan
from tests.harness.logs.conftest import Parse

RECORDED = Path(__file__).with_name("recorded")
ENDS = {
    "deepspeed": b"exits successfully",
    "deepspeed_pipeline": b"exits successfully",
    "huggingface": b"'train_steps_per_second'",
    "torchtitan": b"Training completed",
}


def recorded(name: str) -> ParsedLog:
    return parse_logs([RECORDED / f"{name}.log"])


def result(parsed: ParsedLog, accept: bool = False, **workload: object) -> TrialResult:
    plan = MeasurementPlan(warmup_tolerance=1.0)  # a busy machine wrote them
    question = LoggedRun(
        name="x",
        trial={"workload": workload},
        plan=plan,
        device=Device.CPU,
        started_at="2026-11-22T03:36:00+00:00",
        accept_incomplete=accept,
    )
    return result_of(parsed, question)


def printed(name: str, pattern: str) -> list[float]:
    text = (RECORDED / f"{name}.log").read_text().replace(",", "")
    return [float(match) for match in re.findall(pattern, text)]


def test_deepspeed() -> None:
    parsed = recorded("deepspeed")
    assert (parsed.framework, parsed.ended) == (LogFramework.DEEPSPEED, True)
    timers = [printed("deepspeed", rf"\| {name}: ([\d.]+)") for name in ("fwd", "bwd", "step")]
    sums = [pytest.approx(sum(parts) / 1e3, rel=1e-9) for parts in zip(*timers, strict=True)]
    assert [step.timer_seconds for step in parsed.steps] == sums
    assert len(sums) == 12
    rates = {s.number: s.samples_per_second for s in parsed.steps if s.samples_per_second}
    assert list(rates) == [4, 8, 12]
    assert list(rates.values()) == printed("deepspeed", r"CurrSamplesPerSec=([\d.]+)")
    assert parsed.peaks == (LoggedPeak(number=12, rank=0, allocated=round(0.34 * 2**30)),)
    reported = ("train_batch_size", "train_micro_batch_size_per_gpu", "world_size")
    assert [parsed.arguments[name] for name in reported] == ["4", "2", "1"]


def test_deepspeed_s_pipeline_engine() -> None:
    """Its timers stand for several steps at once, and are not taken for one of them."""
    name = "deepspeed_pipeline"
    parsed = recorded(name)
    assert (parsed.framework, parsed.ended) == (LogFramework.DEEPSPEED, True)
    assert [step.number for step in parsed.steps] == [4, 8, 12]
    assert [step.seconds for step in parsed.steps] == printed(name, r"iter time \(s\): ([\d.]+)")
    assert [step.loss for step in parsed.steps] == printed(name, r"loss: ([\d.]+)")
    assert all(step.timer_seconds is None for step in parsed.steps)
    (peak,) = parsed.peaks
    assert (peak.rank, peak.allocated) == (0, round(0.34 * 2**30))


def test_the_timers_are_the_times_where_they_tell_of_more_steps() -> None:
    found = result(recorded("deepspeed"))
    assert found.times.clock == "log_timers"
    assert len(found.times.seconds) + len(found.times.warmup_seconds) == 12
    assert "engine_timers" in [concern.name for concern in found.concerns]


def test_the_trainer() -> None:
    parsed = recorded("huggingface")
    assert (parsed.framework, parsed.ended) == (LogFramework.HUGGINGFACE, True)
    assert [step.loss for step in parsed.steps] == printed("huggingface", r"'loss': '([\d.]+)'")
    assert len(parsed.steps) == 12
    assert parsed.whole_run == WholeRun(seconds=1 / 29.75, tokens_per_second=1905.0)
    found = result(parsed, layout={"data_parallel_size": 1}).reported
    assert found.tokens_per_second_per_gpu == (1905.0,)


def test_torchtitan() -> None:
    parsed = recorded("torchtitan")
    assert (parsed.framework, parsed.ended) == (LogFramework.TORCHTITAN, True)
    rates = printed("torchtitan", r"tps: (\d+)")
    assert [step.tokens_per_second_per_gpu for step in parsed.steps] == rates
    assert [step.loss for step in parsed.steps] == printed("torchtitan", r"loss:  ([\d.]+)")
    assert len(rates) == 12
    largest = max(printed("torchtitan", r"memory:  ([\d.]+)GiB"))
    assert [peak.reserved for peak in parsed.peaks] == [round(largest * 2**30)]
    layout = {"data_parallel_size": 1}
    found = result(parsed, seq_length=1024, global_batch_size=1, layout=layout)
    every = (*found.times.warmup_seconds, *found.times.seconds)
    assert every == tuple(pytest.approx(1024 / rate, rel=1e-9) for rate in rates[: len(every)])


@pytest.mark.parametrize(("name", "end"), ENDS.items())
def test_cut_anywhere_before_its_end_there_is_no_number(parse, name, end) -> None:
    """A hundredth of the bytes at a time meets every kind of line."""
    content = (RECORDED / f"{name}.log").read_bytes()
    whole = {step.number for step in recorded(name).steps}
    for length in range(0, content.rindex(end), len(content) // 100):
        parsed = parse(content[:length])
        found = result(parsed)
        assert found.status in (TrialStatus.NO_DATA, TrialStatus.INCOMPLETE)
        assert (found.times, found.memory, found.loss) == (None, (), ())
        assert {step.number for step in parsed.steps} <= whole


def test_what_was_cut_can_be_taken_all_the_same(parse: Parse) -> None:
    content = (RECORDED / "deepspeed.log").read_text().rpartition("[")[0]
    found = result(parse(content), accept=True)
    assert found.times is not None
    assert found.status is not TrialStatus.INCOMPLETE
