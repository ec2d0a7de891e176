"""Every trial and every golden is accounted for; identity before numbers; exit codes."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.judge.comparison import Comparison, compare
from harness.judge.golden import Golden, read_golden
from harness.judge.golden_update import golden_of
from harness.judge.metrics import ALLOCATED, LOSS, RESERVED, STEP_TIME, TFLOPS, TOKENS
from harness.judge.render import render
from harness.judge.results import load_results
from harness.judge.trial_rows import CompareOptions, ComparisonRow
from harness.judge.verdict import Verdict
from harness.trial.result import MemoryPeak, TrialStatus
from tests.harness.judge.conftest import ENVIRONMENT

pytest.importorskip("numpy")

GIB, MIB = 2**30, 2**20
FIXTURES = Path(__file__).parents[1] / "fixtures"
ROOT = Path(__file__).parents[3]


def row_of(comparison: Comparison, metric: str) -> ComparisonRow:
    return next(row for row in comparison.rows if row.metric == metric)


def test_the_same_again_passes(make_repeats: Any, golden: Golden) -> None:
    """2 GPUs, 0.2 s a step: 8 sequences of 1,000 tokens, 400 TFLOP/s a GPU."""
    found = compare(make_repeats(), [golden])
    verdicts = {row.metric: row.verdict for row in found.rows}
    metrics = (STEP_TIME, TOKENS, TFLOPS, ALLOCATED, RESERVED, LOSS)
    assert verdicts == dict.fromkeys(metrics, Verdict.PASS)
    assert found.exit_code == 0
    assert render(found).startswith("Pass (exit 0): 6 PASS\n")
    expected = {STEP_TIME: 0.2, TFLOPS: 400.0, TOKENS: 20_000.0, ALLOCATED: 10 * GIB}
    for metric, value in expected.items():
        assert row_of(found, metric).new == pytest.approx(value)


def test_a_regression_is_one_line_worst_first(make_repeats: Any, golden: Golden) -> None:
    results = make_repeats(0.09)
    found = compare(results, [golden], commands={golden.identity.workload_key: "harness run x"})
    assert found.exit_code == 1
    _, *lines = render(found).splitlines()
    form = (
        r"FAIL  toy/tp1pp1/none  step_time_seconds  0\.2 s -> 0\.218 s  \+9\.0 % "
        r"\[\+3\.\d, \+15\.\d\]  limit \+5 %"
    )
    assert re.fullmatch(form, lines[0])
    last = lines.index("      harness run x")
    assert lines[last - 2 : last] == [
        "      (these 3) a change is certain, and it may be as large as the limit",
        "      (these 3) one session: a scatter of 2 % between sessions is assumed",
    ]
    assert sum("harness run x" in line for line in lines) == 1
    fail = row_of(found, TFLOPS)
    assert fail.limit == -0.05
    assert fail.change == pytest.approx(1 / 1.09 - 1, abs=1e-4)


def test_no_golden_says_what_that_of_the_name_has(make_repeats: Any, golden: Golden) -> None:
    fields = golden.identity.workload | {"micro_batch_size": 7}
    other = replace(golden, identity=replace(golden.identity, workload=fields, workload_key="x"))
    text = " ".join(render(compare(make_repeats(), [other])).split())
    assert "no golden: in that of this name micro_batch_size is 1, not 7" in text


def test_improvement_is_a_stale_golden(make_repeats: Any, golden: Golden) -> None:
    results = make_repeats(-0.1)
    found = compare(results, [golden])
    assert row_of(found, STEP_TIME).verdict is Verdict.STALE
    assert found.exit_code == 0
    assert compare(results, [golden], CompareOptions(strict=True)).exit_code == 1


def test_noise_leaves_it_open_with_what_would_close_it(make_repeats: Any, golden: Golden) -> None:
    found = compare(make_repeats(0.02, noise=4.0), [golden])
    row = row_of(found, STEP_TIME)
    assert row.verdict is Verdict.OPEN
    assert found.exit_code == 3
    assert row.needed.repeats == 10
    needed = "10 repeats on both sides (measure.repeats=10) and 1 more session of the golden"
    assert needed in " ".join(render(found).split())


def test_other_goldens_of_the_gpu_show_how_sessions_differ(make_repeats, golden: Golden) -> None:
    """Three days of another setting that agree; two of them on one day count once."""

    def others(*days: int) -> Golden:
        runs = [
            make_repeats(0.001 * k, recompute="full:uniform:1", started_at=f"2026-07-0{day}T0{k}")
            for k, day in enumerate(days)
        ]
        return golden_of([one for run in runs for one in run], "days")

    def step(*goldens: Golden) -> ComparisonRow:
        return row_of(compare(make_repeats(0.01), [golden, *goldens]), STEP_TIME)

    assert step().verdict is Verdict.OPEN
    assert step(others(1, 2, 3)).verdict is Verdict.PASS
    one_day = step(others(1, 1, 1))
    assert one_day.verdict is Verdict.OPEN
    assert one_day.interval == step().interval
    elsewhere = replace(golden.identity, gpus="2xB200", workload_key="1" * 12)
    assert step(replace(others(1, 2, 3), identity=elsewhere)).verdict is Verdict.OPEN


@pytest.mark.parametrize("limits", [(("step_tme", 0.1),), ((STEP_TIME, 0.0),), ((LOSS, 1.5),)])
def test_wrong_limits_are_refused(limits: tuple[tuple[str, float], ...]) -> None:
    with pytest.raises(UserError):
        CompareOptions(limits=limits)


def test_memory_is_compared_by_stage_too(make_result: Any) -> None:
    def results(second: int) -> list[Any]:
        peaks = tuple(
            MemoryPeak(rank=s, stage=s, allocated=a) for s, a in enumerate((9 * GIB, second))
        )
        return [make_result(repeat=0, memory=peaks)]

    found = compare(results(6 * GIB), [golden_of(results(5 * GIB), "first")])
    assert row_of(found, ALLOCATED).verdict is Verdict.PASS  # stage 0 is the fullest
    assert row_of(found, f"{ALLOCATED}.stage1").verdict is Verdict.REGRESSION


def test_losses_are_compared_at_the_same_training_step(make_repeats: Any, golden: Golden) -> None:
    shifted = make_repeats(loss=(2.9, 2.8, 2.7, 2.6), warmup=4)  # one step later
    row = row_of(compare(shifted, [golden]), LOSS)
    assert row.verdict is Verdict.PASS
    assert row.reason.endswith("; 3 steps compared")
    off = compare(make_repeats(loss=(3.0, 2.9, 2.5, 2.7)), [golden])
    assert row_of(off, LOSS).verdict is Verdict.REGRESSION
    assert "step 6" in row_of(off, LOSS).reason


def test_exact_loss(make_repeats: Any, golden: Golden) -> None:
    near = make_repeats(loss=(3.0, 2.9, 2.8 + 1e-9, 2.7))
    assert compare(near, [golden]).exit_code == 0
    assert compare(near, [golden], CompareOptions(exact_loss=True)).exit_code == 1
    assert compare(make_repeats(), [golden], CompareOptions(exact_loss=True)).exit_code == 0


def changed(**software: str) -> dict[str, Any]:
    found = {key: ENVIRONMENT[key] for key in ("gpus", "variables")}
    return found | {"software": ENVIRONMENT["software"] | software, "git_commit": "another"}


def test_another_environment_is_refused(make_repeats: Any, golden: Golden) -> None:
    results = make_repeats(0.5, environment=changed(torch="2.10.0", transformer_engine="2.6"))
    found = compare(results, [golden])
    assert [row.verdict for row in found.rows] == [Verdict.ENVIRONMENT]
    assert found.exit_code == 3
    allowed = compare(results, [golden], CompareOptions(allow_env_change=True))
    assert allowed.exit_code == 1
    assert render(allowed).splitlines()[1:3] == [
        "environment  toy/tp1pp1/none  software.torch  2.9.0 -> 2.10.0",
        "environment  toy/tp1pp1/none  software.transformer_engine  (none) -> 2.6",
    ]


@pytest.mark.parametrize(
    ("group", "values"),
    [
        ("gpus", [{"torch_name": "NVIDIA B200", "driver": "580.1", "power_limit_watts": 700.0}]),
        ("gpus", [{"torch_name": "NVIDIA H200", "driver": "580.1", "power_limit_watts": 500.0}]),
        ("variables", {}),
    ],
)
def test_gpu_power_and_allocator_belong_to_it_and_commit_host_and_clock_do_not(
    make_repeats: Any, golden: Golden, group: str, values: Any
) -> None:
    assert compare(make_repeats(environment=changed()), [golden]).exit_code == 0
    found = compare(make_repeats(environment=changed() | {group: values}), [golden])
    assert found.exit_code == 3
    assert found.count(Verdict.ENVIRONMENT) == 1


def test_no_golden_is_no_verdict(make_repeats: Any, golden: Golden) -> None:
    other = replace(golden, identity=replace(golden.identity, gpus="2xB200", workload_key="1" * 12))
    assert compare(make_repeats(), [golden, other]).exit_code == 0, "of other GPUs: not vanished"
    found = compare(make_repeats(recompute="full:uniform:1"), [golden])
    assert found.count(Verdict.APPEARED) == 1
    assert found.count(Verdict.VANISHED) == 1
    assert found.exit_code == 3
    both = [*make_repeats(), *make_repeats(recompute="full:uniform:1")]
    assert compare(both, [golden]).exit_code == 3
    assert compare(both, [golden], CompareOptions(allow_unmatched=True)).exit_code == 0
    assert compare([], [golden]).exit_code == 3


FAILURES = ("oom", "timeout", "failed", "nccl_error", "nan", "no_data")


@pytest.mark.parametrize("status", FAILURES)
def test_a_failed_process_is_listed_next_to_the_others(
    make_repeats: Any, make_failed: Any, golden: Golden, status: str
) -> None:
    results = make_repeats()
    results[4] = make_failed(TrialStatus(status), "last words", 4, rank=3, over_bytes=5 * MIB)
    found = compare(results, [golden])
    assert found.exit_code == 4
    assert found.count(Verdict.PASS) == 6
    line = " ".join(render(found).partition("\n")[2].split())
    assert line.startswith(f"ERROR toy/tp1pp1/none {status} in backward on rank 3, 5.00 MiB over")
    assert "last words" in line
    assert results[4].name in line


def test_a_log_that_was_cut_is_no_failure_and_no_verdict(make_repeats, make_failed, golden) -> None:
    results = [*make_repeats()[:4], make_failed(TrialStatus.INCOMPLETE, "no end", repeat=4)]
    found = compare(results, [golden])
    assert (found.exit_code, found.count(Verdict.UNSTABLE)) == (3, 1)
    assert "incomplete" in render(found).splitlines()[1]


def test_what_died_before_it_could_say_where_differs_in_nothing_but_its_variables(
    make_failed: Any, golden: Golden
) -> None:
    (change,) = compare([make_failed(TrialStatus.TIMEOUT)], [golden]).environments
    assert [one.name for one in change.differences] == ["variables.PYTORCH_CUDA_ALLOC_CONF"]


def test_out_of_memory_may_be_the_baseline(make_result: Any, make_failed: Any) -> None:
    oom = [make_failed(TrialStatus.OOM, repeat=repeat) for repeat in range(2)]
    golden = golden_of(oom, "known not to fit")
    assert (golden.status, golden.processes) == (TrialStatus.OOM, ())
    assert compare(oom, []).exit_code == 3
    golden = replace(golden, identity=replace(golden.identity, gpus="2xH200"))
    assert compare(oom, [golden]).exit_code == 0
    assert compare([make_result()], [golden]).rows[0].verdict is Verdict.STALE
    elsewhere = replace(golden, identity=replace(golden.identity, gpus="2xH100"))
    assert compare([make_result()], [elsewhere]).rows[0].verdict is Verdict.APPEARED


def test_a_skipped_setting_is_listed(make_repeats: Any, make_failed: Any, golden: Golden) -> None:
    skipped = make_failed(TrialStatus.SKIPPED, "a rule", recompute="selective:mlp")
    found = compare([*make_repeats(), skipped], [golden])
    assert found.count(Verdict.SKIPPED) == 1
    assert found.exit_code == 0
    gone = compare([make_failed(TrialStatus.SKIPPED, "a rule")], [golden])
    assert gone.exit_code == 3


def test_the_recorded_regression_exits_with_one() -> None:
    loaded = load_results([FIXTURES / "recorded_regression"])
    golden = read_golden(ROOT / "results/golden/llama3_70b_sft_32xh100_fp8_current.json")
    found = compare(loaded.results, [golden])
    assert found.exit_code == 1
    changes = [row.change for row in found.rows if row.verdict is Verdict.REGRESSION]
    assert changes == pytest.approx([-0.173, -0.164], abs=1e-3)  # as the card prints them
    assert found.count(Verdict.FAILED) == 2
    assert all("oom" in row.reason for row in found.rows if row.verdict is Verdict.FAILED)


def test_the_same_workloads_with_two_lengths_are_distinguished(make_repeats: Any) -> None:
    results = make_repeats()
    trial = results[0].trial | {"workload": results[0].trial["workload"] | {"seq_length": 2000}}
    found = compare([*results, *(replace(one, trial=trial) for one in results)], [])
    labels = {row.label for row in found.rows}
    assert len(labels) == 2
    assert all(label.startswith("toy/tp1pp1/none#") for label in labels)
