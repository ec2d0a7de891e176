"""Order of trials, and which results answer which question."""

from collections.abc import Callable

from msgspec.structs import replace

from harness.trial.result import TrialResult, TrialStatus
from harness.trial.trial import Prediction, RunPlan, Trial, same_question

MakePlan = Callable[..., RunPlan]


def answer(status: TrialStatus = TrialStatus.OK) -> TrialResult:
    return TrialResult(
        name="x", status=status, trial={}, environment={}, started_at="", wall_seconds=0.0
    )


def test_repeats_go_around_all_settings(make_plan: MakePlan) -> None:
    order = [(setting.rank, trial.repeat) for setting, trial in make_plan(2, 3).trials()]
    assert order == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)]
    assert list(make_plan(0).trials()) == []


def test_a_skipped_setting_has_one_trial(make_plan: MakePlan) -> None:
    plan = make_plan(2, 3)
    first, second = plan.settings
    plan = replace(plan, settings=(replace(first, skip="no"), second))
    assert [trial.repeat for _, trial in plan.trials()] == [0, 0, 1, 2]


def test_only_the_first_process_may_be_pruned(make_plan: MakePlan) -> None:
    (setting,) = make_plan(1).settings
    limited = replace(setting, trial=replace(setting.trial, limit_seconds=1.0)).repeated(3)
    assert [trial.limit_seconds for trial in limited.trials()] == [1.0, None, None]


def test_a_setting_is_named_by_what_differs_within_the_plan(make_plan: MakePlan) -> None:
    plan = make_plan(2)
    first, second = (setting.trial.workload for setting in plan.settings)
    assert plan.name_of(first) == "full:block:1"
    larger = replace(second, micro_batch_size=2)
    other = replace(second, layout=replace(second.layout, tensor_model_parallel_size=2))
    for workload, name in ((larger, "full:block:2, mbs 2"), (other, "full:block:2, tp2-dp1")):
        setting = replace(
            plan.settings[1], trial=replace(plan.settings[1].trial, workload=workload)
        )
        both = replace(plan, settings=(plan.settings[0], setting))
        assert both.name_of(workload) == name


def test_the_name_follows_the_settings_and_not_their_measurement(make_plan: MakePlan) -> None:
    name = make_plan(2).default_name
    assert name.startswith("toy-cpu-")
    assert make_plan(2, 5, steps=3).default_name == name
    assert make_plan(3).default_name != name


def test_same_question(trial: Trial, prediction: Prediction) -> None:
    more = replace(trial.measurement, repeats=5, timeout_seconds=1.0)
    assert same_question(trial, replace(trial, measurement=more, prediction=prediction), answer())


def test_another_measurement_workload_or_repeat_is_another_question(trial: Trial) -> None:
    for field in ("steps", "seed", "min_warmup_steps"):
        other = replace(trial, measurement=replace(trial.measurement, **{field: 2}))
        assert not same_question(trial, other, answer()), field
    other = replace(trial, workload=replace(trial.workload, seq_length=64))
    assert not same_question(trial, other, answer())
    assert not same_question(trial, replace(trial, repeat=1), answer())


def test_another_allocator_setting_is_another_question(trial: Trial) -> None:
    """The workload is the same, the memory is not."""
    other = replace(trial, variables=("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",))
    assert other.name == trial.name
    assert not same_question(other, trial, answer())
    assert same_question(other, replace(other), answer())


def test_a_time_limit_matters_where_it_was_hit(trial: Trial) -> None:
    other = replace(trial, measurement=replace(trial.measurement, timeout_seconds=1.0))
    assert same_question(trial, other, answer())
    assert not same_question(trial, other, answer(TrialStatus.TIMEOUT))
    assert same_question(trial, trial, answer(TrialStatus.TIMEOUT))
