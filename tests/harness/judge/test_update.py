"""Goldens are made on purpose, reviewed as text, and read back as they were."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.judge.golden import Provenance, golden_text, load_goldens, read_golden
from harness.judge.golden_page import change_page, golden_page
from harness.judge.golden_update import diff_text, golden_of, plan_update, sessions_of, write
from harness.judge.metrics import STEP_TIME, TFLOPS
from harness.trial.result import TrialStatus

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "results/golden/llama3_70b_sft_32xh100_fp8_current.json"


def test_the_published_golden_is_the_seeds() -> None:
    golden = read_golden(PUBLISHED)
    assert golden.meta.provenance is Provenance.PUBLISHED
    assert golden.summary()[TFLOPS].median == 709.93
    assert golden.limits == {TFLOPS: 0.05}
    assert golden.exact(TFLOPS)
    assert golden.identity.full_gpus == "32xH100-SXM-80GB"


def test_every_golden_shipped_is_in_its_canonical_form() -> None:
    for path, golden in load_goldens([ROOT / "results/golden"]).items():
        assert golden_text(golden) == path.read_text(encoding="utf-8"), path


def test_a_file_is_read_back_as_it_was(make_repeats: Any) -> None:
    golden = golden_of(make_repeats(loss=(3.0, float("nan"), 2.8, 2.7)), "why")
    text = golden_text(golden)
    assert golden_text(read_golden(text, "file")) == text
    assert '"nan"' in text
    assert read_golden(text, "file").identity == golden.identity


def test_the_file_is_reviewable(make_repeats: Any) -> None:
    """Sorted keys, steps as numbers, one value a line, the Megatron-LM shape inside."""
    text = golden_text(golden_of(make_repeats(), "why"))
    values = json.loads(text)
    assert list(values) == sorted(values)
    series = next(iter(values["sessions"][0]["samples"].values()))[STEP_TIME]
    assert list(series.pop("values")) == ["4", "5", "6", "7"]
    assert series == {"start_step": 4, "end_step": 7, "step_interval": 1}
    assert all(line.count(":") <= 1 or '": "' in line for line in text.splitlines())
    assert values["summary"][STEP_TIME]["processes"] == 5
    assert values["identity"]["workload"]["layout.data_parallel_size"] == 2
    assert values["meta"]["date"] == "2026-07-01"


def test_identity_is_the_workloads_key(make_repeats: Any, workload: Any) -> None:
    identity = golden_of(make_repeats(), "why").identity
    assert identity.workload_key == workload.key()
    assert identity.gpus == "2xH200-SXM-141GB"


@pytest.mark.parametrize("status", [TrialStatus.FAILED, TrialStatus.UNSTABLE, TrialStatus.NAN])
def test_what_is_not_ok_is_no_baseline(make_repeats: Any, status: TrialStatus) -> None:
    results = make_repeats()
    results[1] = replace(results[1], status=status)
    with pytest.raises(UserError, match="cannot be a baseline"):
        golden_of(results, "why")


def test_repeats_of_two_machines_or_without_a_reason_are_no_baseline(make_result: Any) -> None:
    other = {"software": {"torch": "2.10"}, "gpus": [{"torch_name": "NVIDIA H200"}]}
    with pytest.raises(UserError, match="differs between its repeats"):
        golden_of([make_result(), make_result(repeat=1, environment=other)], "why")
    with pytest.raises(UserError, match="--reason"):
        golden_of([make_result()], "  ")


def test_an_update_writes_and_shows_old_and_new(make_repeats: Any, tmp_path: Path) -> None:
    first = plan_update(make_repeats(), "first", tmp_path)
    assert not list(tmp_path.iterdir())  # planning writes nothing
    write(first)
    again = plan_update(make_repeats(0.1), "slower on purpose", tmp_path)
    assert again[0].path == first[0].path
    diff = json.loads(diff_text(again))[str(again[0].path)]
    assert diff["meta.reason"] == {"old": "first", "new": "slower on purpose"}
    assert diff[f"summary.{STEP_TIME}.median"] == {"old": 0.2, "new": 0.22}
    assert list(diff) == sorted(diff)
    assert not any(key.startswith("samples") for key in diff)
    line = next(t for t in diff_text(again).splitlines() if f"{STEP_TIME}.median" in t)
    assert line.strip().rstrip(",").endswith('{"old": 0.2, "new": 0.22}')


def test_nothing_new_is_an_empty_diff_and_limits_outlive_an_update(make_repeats, tmp_path) -> None:
    (change,) = plan_update(make_repeats(), "same", tmp_path)
    write([replace(change, new=replace(change.new, limits={STEP_TIME: 0.03}))])
    again = plan_update(make_repeats(), "same", tmp_path)
    assert list(json.loads(diff_text(again)).values()) == [{}]
    assert again[0].new.limits == {STEP_TIME: 0.03}


def test_settings_and_skipped_ones(make_repeats: Any, make_failed: Any, tmp_path: Path) -> None:
    skipped = make_failed(TrialStatus.SKIPPED, recompute="selective:mlp")
    results = [*make_repeats(), *make_repeats(recompute="full:uniform:1"), skipped]
    labels = [one.new.identity.label for one in plan_update(results, "first", tmp_path)]
    assert labels == ["toy/tp1pp1/none", "toy/tp1pp1/full:uniform:1"]
    for nothing in ([skipped], []):
        with pytest.raises(UserError):
            plan_update(nothing, "first", tmp_path)


def test_a_golden_that_does_not_fit_says_under_which_allocator(make_failed: Any) -> None:
    """The processes died before they could leave a fingerprint."""
    oom = make_failed(TrialStatus.OOM)
    allocator = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"
    oom = replace(oom, trial=oom.trial | {"variables": [allocator]})
    environment = golden_of([oom], "does not fit").meta.environment
    assert environment == {"variables.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}


def test_an_appended_session_is_kept_beside_the_others(make_repeats: Any, tmp_path: Path) -> None:
    first, later = (
        make_repeats(),
        [replace(one, started_at="2026-07-03T10:00:00+00:00") for one in make_repeats(0.01)],
    )
    write(plan_update(later, "first", tmp_path, append=True))  # nothing to append to: a new one
    (change,) = plan_update(first, "an older day", tmp_path, append=True)
    write([change])
    (golden,) = load_goldens([tmp_path]).values()
    days = [(one.started_at[:10], one.reason, one.host) for one in golden.sessions]
    assert days == [("2026-07-01", "an older day", "abc"), ("2026-07-03", "first", "abc")]
    assert golden.sessions[0].versions["git_commit"] == "0123"
    summary = golden.summary()[STEP_TIME]
    assert (summary.sessions, summary.processes) == (2, 10)
    assert summary.session_spread == pytest.approx(0.01 / 2**0.5, rel=0.02)
    assert change.diff()[f"summary.{STEP_TIME}.sessions"] == (1, 2)
    page = change_page(change)
    assert "meta.reason: first -> an older day\n  sessions: 1 -> 2\n" in page
    assert re.search(r"0\.202 s -> 0\.2 s +-1\.0 % +0\.70 % between 2 sessions", page), page
    assert "0.70 % between 2 sessions" in golden_page(golden)
    (again,) = plan_update(first, "an interrupted update", tmp_path, append=True)
    assert (again.new, again.diff()) == (golden, {}), "what is written already stays as it is"
    other = first[0].environment | {"software": first[0].environment["software"] | {"torch": "3"}}
    newer = [replace(one, environment=other) for one in make_repeats(0.02)]
    with pytest.raises(UserError, match=r"torch  2\.9\.0 -> 3: differs from the golden"):
        plan_update(newer, "x", tmp_path, append=True)


def test_results_of_two_runs_are_two_sessions(make_repeats: Any) -> None:
    both = [*make_repeats(), *make_repeats(0.01)]
    assert [len(one.samples) for one in golden_of(both, "why").sessions] == [5, 5]


def test_a_run_of_more_repeats_is_one_session_of_its_own(make_repeats: Any) -> None:
    first = make_repeats()[:3]
    second = [replace(one, started_at="2026-07-02T23:59:00+00:00") for one in make_repeats(0.01)]
    second[3:] = [replace(one, started_at="2026-07-03T00:01:00+00:00") for one in second[3:]]
    golden = golden_of([*second, *first], "two runs")
    assert [len(session.samples) for session in golden.sessions] == [3, 5]
    lacking = [one for one in first if not one.name.endswith("r0")]
    assert [len(one) for one in sessions_of([*lacking, *second])] == [2, 5]
