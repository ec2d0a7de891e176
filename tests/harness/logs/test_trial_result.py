"""A parsed log as a result: warm-up, status, units, and what speaks against it."""

import pytest
from msgspec.structs import replace

from harness.judge.metrics import Series, series_of
from harness.logs.parse import ParsedLog
from harness.logs.records import LogFramework
from harness.logs.trial_result import LoggedRun, Work, result_of, timed_steps, work_of
from harness.trial.result import Phase, TrialResult, TrialStatus
from harness.trial.store import decode_result, encode
from harness.trial.trial import Device, MeasurementPlan
from tests.advisor.jobs import parallel
from tests.harness.logs import lines
from tests.harness.logs.conftest import Parse

WORKLOAD = {
    "model": {"name": "llama3_70b"},
    "seq_length": 4096,
    "global_batch_size": 32,
    "layout": parallel(tp=4, pp=4, dp=2),
    "recompute": "selective:mlp",
    "backend": "command",
    "device": "cuda",
}
QUESTION = LoggedRun(
    name="train",
    trial={"workload": WORKLOAD},
    plan=MeasurementPlan(steps=200),
    started_at="2026-01-15T10:20:31+00:00",
)


def run(steps: int = 12, interval: int = 1, total: int | None = None) -> str:
    numbers = [1, *range(interval, steps + 1, interval)] if interval > 1 else range(1, steps + 1)
    return "".join(
        lines.megatron(n, total or steps, ms=9000.0 if n == 1 else 1230.0 + n % 2, loss=10 - n / 10)
        for n in numbers
    )


def names(result: TrialResult) -> list[str]:
    return [concern.name for concern in result.concerns]


def test_a_good_run(parse: Parse) -> None:
    memory = lines.megatron_memory(0, 2, 55210.5, 58112.0) + lines.megatron_memory(24, 2, 1.0, 2.0)
    result = result_of(parse(lines.megatron_header() + run() + memory), QUESTION)
    assert result.status is TrialStatus.OK, result.concerns
    assert result.times.warmup_seconds == (9.0, 1.23, 1.231, 1.23), "three that agree end it"
    assert result.times.seconds == (1.231, 1.23) * 4
    assert (result.times.steps, result.times.clock) == (tuple(range(5, 13)), "log")
    assert result.loss == tuple(10 - n / 10 for n in range(5, 13))
    assert result.reported.tflops_per_gpu == (412.3,) * 8
    peaks = [(p.rank, p.stage, p.allocated, p.reserved) for p in result.memory]
    assert peaks == [(0, 0, round(55210.5 * 2**20), 58112 * 2**20), (24, 3, 2**20, 2 * 2**20)]
    assert result.environment["source"] == {
        "provenance": "parsed from log",
        "framework": "megatron_lm",
    }
    assert decode_result(encode(result), "x") == result


def test_what_the_gate_compares(parse: Parse) -> None:
    parsed = parse(run())
    series = series_of(result_of(parsed, QUESTION))
    assert list(series["step_time_seconds"].values) == list(range(5, 13))
    assert series["tflops_per_gpu"].finite == (412.3,) * 8
    assert series["tokens_per_second_per_gpu"].finite[0] == pytest.approx(4096 / 1.231, rel=1e-6)
    assert isinstance(series["loss"], Series)
    bare = replace(QUESTION, trial={"workload": {"model": {"name": "x"}, "layout": {}}})
    missing = set(series) - set(series_of(result_of(parsed, bare)))
    assert missing == {"tokens_per_second_per_gpu"}, "little is known of the workload"
    short = result_of(parsed, replace(QUESTION, plan=MeasurementPlan(steps=6)))
    assert short.times.steps == tuple(range(5, 11))


def test_a_line_every_tenth_step(parse: Parse) -> None:
    result = result_of(parse(run(100, interval=10)), QUESTION)
    assert result.times.steps == (40, 50, 60, 70, 80, 90, 100)
    assert names(result) == ["log_interval"]
    assert result.status is TrialStatus.OK


def test_a_run_that_broke_off(parse: Parse) -> None:
    parsed = parse(run(12, total=50))
    result = result_of(parsed, QUESTION)
    assert (result.status, result.times, result.loss) == (TrialStatus.INCOMPLETE, None, ())
    assert result.evidence.message.endswith("(after step 12 of 50)")
    accepted = result_of(parsed, replace(QUESTION, accept_incomplete=True))
    assert (accepted.status, names(accepted)) == (TrialStatus.OK, ["incomplete"])
    assert names(result_of(parsed, replace(QUESTION, done=True))) == []


ENDLESS = {
    "megatron": run(12, total=50),
    "bridge": "".join(lines.bridge_step(1.23, 400.0) for _ in range(12)),
    "nemo": "".join(lines.nemo(n) for n in range(1, 13)),
    "torchtitan": "".join(lines.titan(n, second=n) for n in range(1, 13)),
    "deepspeed": "".join(lines.deepspeed(n, second=n) for n in range(1, 13)),
}


def has_no_numbers(result: TrialResult) -> bool:
    return (result.times, result.memory, result.loss) == (None, (), ())


@pytest.mark.parametrize("framework", ENDLESS)
def test_without_its_framework_s_end_a_log_gives_no_number(parse: Parse, framework: str) -> None:
    result = result_of(parse(ENDLESS[framework]), QUESTION)
    assert (result.status, result.reported) == (TrialStatus.INCOMPLETE, None)
    assert has_no_numbers(result)


def test_lines_of_another_framework_than_was_asked_for(parse: Parse) -> None:
    result = result_of(parse(run(), LogFramework.TORCHTITAN), QUESTION)
    assert result.status is TrialStatus.NO_DATA
    assert result.evidence.message == "no line is from torchtitan; the lines are from megatron_lm"


def test_odd_files_of_ranks_are_reported(parse: Parse) -> None:
    odd = replace(parse(run()), odd_files=("rank1.log ends at step 3 of 12", "b", "c", "d"))
    result = result_of(odd, QUESTION)
    assert (result.status, names(result)) == (TrialStatus.OK, ["rank_files"])
    assert result.concerns[0].seen == "rank1.log ends at step 3 of 12; b; c; and 1 more"


def test_another_setting_or_batch_than_was_asked_for(parse: Parse) -> None:
    """Each line has the batch, where nothing prints the arguments too."""
    text = lines.megatron_header(recompute_modules=["core_attn"]) + run()
    recompute = "recompute is selective:core_attn in the log, selective:mlp in the request"
    asked = replace(QUESTION, trial={"workload": {**WORKLOAD, "global_batch_size": 128}})
    batch = "global_batch_size is 32 in the log, 128 in the request"
    for log, question, seen in ((text, QUESTION, recompute), (run(), asked, batch)):
        result = result_of(parse(log), question)
        assert (result.status, result.concerns[0].seen) == (TrialStatus.UNSTABLE, seen)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no line of a known framework in 0 lines"),
        ("hello\n", "no line of a known framework in 1 line"),
        (run(3), "all 3 logged steps are warm-up"),
        (lines.megatron_memory(0, 2, 1.0, 1.0), "no step in 1 line of megatron_lm"),
        ("{'loss': 7.1, 'epoch': 0.1}\n", "1 logged steps, and none has a time"),
    ],
)
def test_no_data(parse: Parse, text: str, says: str) -> None:
    result = result_of(parse(text), QUESTION)
    assert result.status is TrialStatus.NO_DATA
    assert has_no_numbers(result)
    assert result.evidence.message.startswith(says)


def test_a_failure_has_no_numbers(parse: Parse) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    result = result_of(parse(run(12, total=50) + oom), QUESTION)
    assert (result.status, result.times) == (TrialStatus.OOM, None)
    assert result.evidence.phase is Phase.TRAINING
    assert result.evidence.message.endswith("(after step 12 of 50)")
    assert result_of(parse(run() + oom), QUESTION).status is TrialStatus.OK, "after its end"


SEVENTH = lines.megatron(7, 12, ms=1231.0, loss=9.3)


def test_one_line_that_is_unlike_the_others(parse: Parse) -> None:
    def seventh(line: str) -> TrialResult:
        return result_of(parse(run(12).replace(SEVENTH, line)), QUESTION)

    nan = seventh(lines.megatron(7, 12, ms=1231.0, loss=None, nans=1))
    assert nan.status is TrialStatus.NAN, "wherever it stands"
    assert nan.evidence.message.startswith("loss of step 7 is nan")
    skipped = seventh(lines.megatron(7, 12, ms=1231.0, loss=None, skipped=1))
    assert (skipped.status, skipped.loss) == (TrialStatus.OK, ()), "takes the losses, not the times"
    assert len(skipped.times.seconds) == 8
    torn = seventh("torn\n")
    assert torn.times.steps == (5, 6, 8, 9, 10, 11, 12), "the others keep their place"
    assert names(torn) == ["missing_lines"]


def test_torchtitan_rates_become_times_by_the_work_of_a_step(parse: Parse) -> None:
    text = "".join(lines.titan(n, tps=4096, second=n) for n in range(1, 13))
    result = result_of(parse(text + lines.titan_says("Training completed")), QUESTION)
    assert result.times.seconds == (1.0,) * 9, "32 x 4096 tokens on 32 GPUs, 4096 a second"
    assert result.memory[0].allocated is None
    assert result.memory[0].reserved == round(55.21 * 2**30)
    assert series_of(result)["tokens_per_second_per_gpu"].finite == (4096.0,) * 9


def test_without_the_work_time_stamps_stand(parse: Parse) -> None:
    text = "".join(lines.titan(n, tps=4096, second=n * 1.5) for n in range(1, 13))
    bare = replace(QUESTION, trial={"workload": {"layout": {}}})
    result = result_of(parse(text + lines.titan_says("Training completed")), bare)
    assert result.times.clock == "log_stamps"
    assert result.times.seconds == pytest.approx((1.5,) * 8, abs=1e-3)  # stamps have milliseconds
    assert "time_stamps" in names(result)


def test_deepspeed_rates_and_an_end_that_only_its_launcher_tells(parse: Parse) -> None:
    text = "".join(lines.deepspeed(n, rate=16.0) for n in range(1, 13))
    assert result_of(parse(text), QUESTION).status is TrialStatus.INCOMPLETE
    done = "[2026-01-15 10:20:31,1] [INFO] [launch.py:285:main] Process 7 exits successfully.\n"
    result = result_of(parse(text + done), QUESTION)
    assert result.times.seconds == (2.0,) * 9, "32 samples, 16 a second"
    assert (result.status, names(result)) == (TrialStatus.OK, [])


def test_a_trainer_tells_one_mean(parse: Parse) -> None:
    text = (
        "{'loss': 7.1, 'epoch': 0.5, 'train_tokens_per_second': 640}\n"
        "{'train_runtime': 80.0, 'train_steps_per_second': 1.25, 'epoch': 1.0}\n"
    )
    result = result_of(parse(text), replace(QUESTION, device=Device.CPU))
    assert (result.times.seconds, result.loss) == ((0.8,), (7.1,))
    assert (result.status, names(result)) == (TrialStatus.UNSTABLE, ["whole_run_mean"])
    assert result.reported.tokens_per_second_per_gpu == (20.0,), "640 of 32 ranks"
    bare = result_of(parse(text), replace(QUESTION, trial={"workload": {}}))
    assert bare.reported.tokens_per_second_per_gpu == (), "nobody knows of how many ranks"


def test_a_mean_of_the_job_is_reported_and_not_taken_for_a_step(parse: Parse) -> None:
    result = result_of(parse(run() + lines.job_throughput(12, 400.1)), QUESTION)
    assert (result.status, names(result)) == (TrialStatus.OK, ["job_mean"])
    assert result.concerns[0].seen.startswith("400.1 TFLOP/s/GPU")
    alone = result_of(parse(lines.job_throughput(12, 400.1)), QUESTION)
    assert (alone.status, alone.times) == (TrialStatus.NO_DATA, None)
    assert "a mean of 400.1 TFLOP/s/GPU" in alone.evidence.message


def test_work_of_a_step() -> None:
    assert work_of(WORKLOAD) == Work(samples=32, tokens_per_gpu=4096.0)
    assert work_of({"global_batch_size": 8}) == Work(samples=8)
    assert timed_steps((), Work()).seconds == ()
    assert result_of(ParsedLog(), QUESTION).status is TrialStatus.NO_DATA
