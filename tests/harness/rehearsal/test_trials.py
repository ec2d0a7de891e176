import pytest

from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError
from advisor.base.units import GIB
from advisor.hardware.catalogue import load_gpu
from harness.planner.device import Machine
from harness.rehearsal.trials import parse_asked, rehearsal_plan
from harness.trial.trial import Backend, Device

JOB = ("model=llama3_70b", "gpus=32xH100")


def test_a_trial_a_setting_with_every_stage_predicted() -> None:
    plan = rehearsal_plan(parse_asked([*JOB, "recompute=[none,selective:mlp]"]))
    assert [setting.spec for setting in plan.settings] == ["none", "selective:mlp"]
    none, mlp = (setting.trial for setting in plan.settings)
    assert none.stages == (0, 1, 2, 3)
    assert none.workload.backend is Backend.REHEARSAL
    assert none.workload.device is Device.FAKE
    assert none.workload.main_grads_dtype is DType.BF16  # the preset's
    assert none.memory_bytes == load_gpu("H100").memory_bytes
    assert [one.stage for one in none.prediction.stages] == [0, 1, 2, 3]
    assert none.prediction.peak_allocated_bytes == none.prediction.stages[0].peak
    assert mlp.prediction.stages[0].backward < none.prediction.stages[0].backward
    said = " ".join(plan.assumptions)
    assert "transformer_impl local" in said
    assert "add communication" in said


def test_on_a_gpu_the_verdict_is_of_a_rank_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(device=Device.CUDA, gpu_names=("NVIDIA H200",))
    monkeypatch.setattr("harness.rehearsal.trials.find_machine", lambda _: machine)
    asked = [
        *JOB,
        "layout=tp4_pp4_vpp1",
        "stage=0",
        "recompute=[none,full:uniform:1]",
        "device=cuda",
        "job.expandable_segments=true",
        "job.micro_batch_size=2",
    ]
    none, full = (setting.trial for setting in rehearsal_plan(parse_asked(asked)).settings)
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in none.variables
    allocated, taken = none.prediction.peak_allocated_bytes, none.prediction.peak_reserved_bytes
    assert 0.5 * GIB < taken - allocated < 2 * GIB  # context and fragmentation, no communicators
    assert none.prediction.fit_probability < full.prediction.fit_probability


def test_compute_is_predicted_for_the_gpu_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 has faster memory than the job's H100; a GPU that nobody described has no times."""
    found = {}
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GB999"):
        machine = Machine(device=Device.CUDA, gpu_names=(name,))
        monkeypatch.setattr("harness.rehearsal.trials.find_machine", lambda _, m=machine: m)
        (setting,) = rehearsal_plan(parse_asked([*JOB, "stage=0", "device=cuda"])).settings
        found[name] = setting.trial.prediction.stages[0].compute_seconds
    h100, h200, unknown = found.values()
    assert unknown is None
    assert 0.8 * h100 < h200 < h100
    (fake,) = rehearsal_plan(parse_asked([*JOB, "stage=0"])).settings
    assert fake.trial.prediction.stages[0].compute_seconds is None


def test_the_layout_overrules_the_preset() -> None:
    plan = rehearsal_plan(parse_asked([*JOB, "layout=tp8_pp2", "stage=1"]))
    (setting,) = plan.settings
    layout = setting.trial.workload.layout
    assert (layout.tensor_model_parallel_size, layout.pipeline_model_parallel_size) == (8, 2)
    assert layout.data_parallel_size == 2
    assert setting.trial.stages == (1,)


def test_eight_bit_jobs_are_rehearsed_in_bf16() -> None:
    asked = parse_asked(
        ["model=llama3_70b", "gpus=64xH100", "layout=tp4_pp4", "job.precision=fp8_current"]
    )
    plan = rehearsal_plan(asked)
    assert plan.settings[0].trial.workload.precision is Precision.BF16
    assert any("precision bf16" in text for text in plan.assumptions)


def test_experts_are_rehearsed_and_predicted_with_equal_shares() -> None:
    job = ["model=mixtral_8x7b", "gpus=64xH100", "layout=tp1_pp4_ep8"]
    even, uneven = (
        rehearsal_plan(parse_asked([*job, f"job.moe_load_imbalance={x}"])) for x in (1, 2)
    )
    predicted = [plan.settings[0].trial.prediction for plan in (even, uneven)]
    assert predicted[0] == predicted[1]
    assert any("moe_load_imbalance 1" in text for text in uneven.assumptions)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*JOB, "stage=4"], "there are 4 stages; write 0 to 3"),
        ([*JOB, "layout=tp4_pp1", "stage=1"], "there is 1 stage; write 0"),
        (["model=llama3_70b", "gpus=24xH100"], "write e.g. layout="),
        ([*JOB, "layout=tp3_pp4"], "must divide"),
        ([*JOB, "device=tpu"], "must be one of fake, cuda, cpu, auto"),
        ([*JOB, "recompute=halt"], "is not a recompute setting"),
        ([*JOB, "recompute=[none,selective:bogus]"], "selective:bogus: recompute_modules bogus"),
        ([*JOB, "recompute=full:uniform:1+distribute_saved_activations"], "sequence"),
        ([*JOB, "job.precision=fp16", "recompute=none+offload=core_attn"], "offload"),
    ],
)
def test_wrong_requests(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        rehearsal_plan(parse_asked(arguments))
    assert words in str(caught.value)
