"""From a request to trials: the advisor's best, each with a prediction made before the run."""

from collections.abc import Sequence
from typing import Final

import pytest

pytest.importorskip("hydra")

from advisor.base.errors import UserError
from advisor.request.request import Request
from advisor.search.advise import advise
from harness.planner import forecast
from harness.planner.device import Machine
from harness.planner.planning import machine_of, make_plan
from harness.planner.run_request import compose
from harness.trial.trial import RECORDED, Device, RunPlan, Workload

CPU = Machine(device=Device.CPU)
H200 = Machine(device=Device.CUDA, gpu_names=("NVIDIA H200",))
EIGHT = Machine(device=Device.CUDA, gpu_names=("NVIDIA H100 80GB HBM3",) * 8)


def plan(*overrides: str, machine: Machine = CPU) -> RunPlan:
    return make_plan(compose(overrides), machine)


def specs(made: RunPlan) -> list[tuple[int | None, str]]:
    return [(setting.rank, setting.spec) for setting in made.settings]


AS_ASKED: Final = ("backend=command", "command=train")
"""A command runs the job as it is, and nothing is known of its layers."""


def native(monkeypatch: pytest.MonkeyPatch, saved: object) -> None:
    def predict_layer(workload: Workload) -> tuple[int, int]:
        if isinstance(saved, Exception):
            raise saved
        return 1234 if workload.recompute == "none" else 234, 99

    monkeypatch.setattr(forecast.native, "predict_layer", predict_layer)


def test_the_embedded_default_on_a_cpu() -> None:
    made = plan()
    assert specs(made) == [(1, "none"), (2, "selective:mlp"), (3, "full:uniform:1")]
    assert (made.experiment, made.device_name) == ("tiny_cpu", "cpu")
    assert "CPU times are shown but not judged" in made.assumptions[0]
    workload = made.settings[0].trial.workload
    assert (workload.model.name, workload.model.num_layers) == ("llama_tiny", 4)
    assert (workload.device, workload.seq_length, workload.global_batch_size) == ("cpu", 512, 2)
    for setting in made.settings:
        prediction = setting.trial.prediction
        assert prediction.step_time_seconds is None
        assert prediction.peak_allocated_bytes is None
        assert prediction.calibration == "none"


def test_predictions_are_of_what_the_backend_runs() -> None:
    asked = plan("experiment=llama3_8b_1xh200", "recompute=none", *AS_ASKED, machine=H200)
    made = plan("experiment=llama3_8b_1xh200", "recompute=none", machine=H200)
    assert "transformer_impl local" in made.assumptions[-1] or "flash" in made.assumptions[-1]
    before, after = asked.settings[0].trial, made.settings[0].trial
    assert before.workload.model == after.workload.model
    assert after.prediction.peak_allocated_bytes != before.prediction.peak_allocated_bytes


def test_the_backend_s_own_model_predicts_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    native(monkeypatch, None)
    predictions = [setting.trial.prediction for setting in plan().settings]
    assert [p.saved_bytes_per_layer for p in predictions if p] == [1234, 234, 234]
    assert {p.replayed_flops_per_layer for p in predictions if p} == {99}


def test_what_the_backend_s_model_refuses_is_not_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    native(monkeypatch, UserError("recompute", "x", "unknown"))
    prediction = plan().settings[0].trial.prediction
    assert prediction.saved_bytes_per_layer is None


def test_a_backend_s_broken_model_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    native(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        plan()


def test_on_a_gpu_the_plan_is_what_advise_says() -> None:
    made = plan("experiment=llama3_8b_1xh200", *AS_ASKED, machine=H200)
    advice = advise(Request(model="llama3_8b", gpus="1xH200", quick=True))
    best = advice.candidates[:3]
    assert specs(made) == [(c.rank, c.evaluation.setting.spec) for c in best]
    for setting, candidate in zip(made.settings, best, strict=True):
        prediction, evaluation = setting.trial.prediction, candidate.evaluation.simulated
        assert prediction.step_time_seconds == evaluation.step_time_seconds
        assert prediction.peak_allocated_bytes == evaluation.peak.peak_allocated_bytes
        assert prediction.fit_probability == evaluation.fit_probability
        assert prediction.peak_memory_bytes == evaluation.peak.memory_bytes
        assert prediction.peak_memory_bytes.total == prediction.peak_reserved_bytes
        assert prediction.calibration == "h100"
    assert made.device_name == "H200-SXM-141GB"
    assert made.assumptions == ()


def variables(made: RunPlan) -> tuple[str, ...]:
    (found,) = {setting.trial.variables for setting in made.settings}
    return found


def test_the_environment_decides_the_name_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RECORDED:
        monkeypatch.delenv(name, raising=False)
    arguments: Sequence[str] = ("experiment=llama3_8b_1xh200", "recompute.top=1")
    ours = plan(*arguments, machine=H200)
    assert variables(ours) == ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("SOME_SECRET", "1234")
    theirs = plan(*arguments, machine=H200)
    assert variables(theirs) == ("NCCL_ALGO=Ring", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64")
    assert theirs.default_name != ours.default_name
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")  # torch 2.9's name for it
    newer = plan(*arguments, machine=H200)
    assert variables(newer) == ("NCCL_ALGO=Ring", "PYTORCH_ALLOC_CONF=max_split_size_mb:64")
    assert [s.trial.name for s in theirs.settings] == [s.trial.name for s in ours.settings]


def test_a_cpu_gets_one_thread_unless_the_user_has_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RECORDED:
        monkeypatch.delenv(name, raising=False)
    assert variables(plan()) == ("OMP_NUM_THREADS=1",)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert variables(plan()) == ("OMP_NUM_THREADS=2",)


def test_predictions_are_for_the_gpu_at_hand() -> None:
    made = plan("recompute=none", *AS_ASKED, machine=H200)
    assert made.device_name == "H200-SXM-141GB"
    assert made.assumptions == (
        "this GPU is H200-SXM-141GB: predictions are for H200-SXM-141GB, not for H100-SXM-80GB",
    )
    unknown = Machine(device=Device.CUDA, gpu_names=("NVIDIA X999",))
    made = plan("recompute=none", *AS_ASKED, machine=unknown)
    assert made.assumptions == (
        "NVIDIA X999 is not in configs/hardware: predictions are for H100-SXM-80GB",
    )


def test_what_is_laid_over_the_preset() -> None:
    overrides = (
        "model.num_layers=4 job.seq_length=1024 layout.context_parallel_size=1 "
        "layout.tensor_model_parallel_size=2 layout.sequence_parallel=true recompute=full_uniform_1"
    )
    made = plan("experiment=llama3_8b_8xh100", *overrides.split(), machine=EIGHT)
    workload = made.settings[0].trial.workload
    assert (workload.model.num_layers, workload.seq_length) == (4, 1024)
    assert workload.layout.tensor_model_parallel_size == 2
    assert workload.layout.data_parallel_size == 4


def test_settings_asked_for_are_ranked_and_the_forbidden_skipped() -> None:
    made = plan("recompute.settings=[full:uniform:1,none,none,full:uniform:3,full:block:9]")
    ran = [spec for rank, spec in specs(made) if rank]
    assert ran[:2] == ["none", "full:uniform:3"] or ran[0] == "none"
    for setting in made.settings:
        assert bool(setting.skip) == (setting.rank is None)
    assert len(made.settings) == 4, "a setting is run once however often it is asked for"


def test_a_backend_s_own_settings_are_run_and_not_ranked() -> None:
    made = plan("recompute.settings=['op:attention',none]")
    assert specs(made) == [(1, "none"), (None, "op:attention")]
    assert made.settings[1].skip == ""
    assert made.settings[1].trial.prediction is not None


@pytest.mark.parametrize(
    ("overrides", "machine", "says"),
    [
        ("experiment=llama3_8b_8xh100", H200, "gpus = 8: this machine has 1 GPU; e.g. gpus=1xH200"),
        ("experiment=llama3_70b_64xh100", EIGHT, "gpus = 64: this machine has 8 GPUs"),
        ("experiment=gpt3_175b_64xa100", CPU, "use experiment=tiny_cpu"),
        (
            "experiment=llama3_8b_8xh100 gpus=1xH100",
            EIGHT,
            "the number of GPUs = 1 (CP 2 from the recipe; change with --cp); nearest: 1",
        ),
        ("recompute.settings=[partial]", CPU, "is not a recompute setting"),
        ("recompute.settings=['selective:bogus']", CPU, "bogus: not accepted by megatron-core"),
        ("job.seq_length=0", CPU, "job.seq_length = 0: must be at least 1"),
        ("+experiment.foo=1", CPU, "foo = 1: is not a known key"),
        ("model.num_query_groups=3", CPU, "must divide num_attention_heads = 4"),
        ("job.global_batch_size=3 job.micro_batch_size=2", CPU, "must be divisible by"),
        ("gpus=H100", CPU, "is not COUNTxTYPE"),
    ],
)
def test_what_cannot_run_is_one_line(overrides: str, machine: Machine, says: str) -> None:
    with pytest.raises(UserError) as error:
        plan(*overrides.split(), machine=machine)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_published_recipe_is_a_job_as_an_experiment_is() -> None:
    """A row of configs/recipe, laid out as the source says, here with fewer layers."""
    machine = Machine(device=Device.CUDA, gpu_names=("NVIDIA H100 80GB HBM3",) * 4)
    made = plan("recipe=qwen3_8b_pretrain_4gpu_h100_bf16", "model.num_layers=8", machine=machine)
    workload = made.settings[0].trial.workload
    assert made.experiment == "qwen3_8b_pretrain_4gpu_h100_bf16"
    assert (workload.model.name, workload.model.num_layers) == ("qwen3_8b", 8)
    assert workload.layout.tensor_model_parallel_size == 4
    with pytest.raises(UserError, match=r"recipe = qwen3_8b_pretrain: unknown recipe"):
        plan("recipe=qwen3_8b_pretrain")


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["experiment=llama3_8b_1xh200"], "1xH200"),  # too large for a CPU
        (["experiment=tiny_cpu", "gpus=8xB200"], "8xB200"),
        (["experiment=llama3_70b_32xh100", "device=cuda"], "32xH100"),
        (["experiment=tiny_cpu"], None),
        (["experiment=tiny_cpu", "gpus=8xB200", "device=cpu"], None),
    ],
)
def test_what_will_not_run_is_planned_for_any_device(overrides, name, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = machine_of(compose(overrides), dry_run=True)
    if name is None:
        assert found == CPU
    else:
        count, kind = name.split("x")
        assert found == Machine(device=Device.CUDA, gpu_names=(kind,) * int(count))
