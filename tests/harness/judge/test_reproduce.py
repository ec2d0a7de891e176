"""The command that runs a trial again says what differs from its preset."""

import shlex

from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.models.presets import load_model
from advisor.request.experiments import load_experiment
from harness.judge.reproduce import quoted_setting, reproduction_command
from harness.trial.trial import Backend, Device, MeasurementPlan, Trial, Workload


def preset_trial() -> Trial:
    preset = load_experiment("llama3_70b_32xh100")
    workload = Workload(
        model=preset.configure(load_model(preset.model)),
        layout=preset.layout,
        seq_length=preset.config.seq_length,
        micro_batch_size=preset.config.micro_batch_size,
        global_batch_size=preset.config.global_batch_size,
        precision=preset.config.precision,
        recompute="selective:core_attn,mlp",
        backend=Backend.NATIVE,
        device=Device.CUDA,
    )
    return Trial(workload=workload, measurement=MeasurementPlan(repeats=5))


def test_a_preset_needs_its_name_and_the_setting() -> None:
    trial = preset_trial()
    words = shlex.split(reproduction_command("llama3_70b_32xh100", trial))
    assert words == [
        "harness",
        "run",
        "experiment=llama3_70b_32xh100",
        'recompute.settings=["selective:core_attn,mlp"]',
        "measure.repeats=5",
        "device=cuda",
        f"name=again-{trial.workload.key()}",
    ]


def test_the_environment_comes_first() -> None:
    allocator = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    command = reproduction_command(
        "llama3_70b_32xh100", replace(preset_trial(), variables=(allocator, "X=a b"))
    )
    assert command.startswith(f"{allocator} X='a b' harness run experiment=")


def test_what_differs_is_overridden() -> None:
    trial = preset_trial()
    workload = trial.workload
    changed = replace(
        workload,
        model=replace(workload.model, num_layers=40),
        layout=replace(workload.layout, data_parallel_size=4, tp_comm_overlap=False),
        seq_length=8192,
        precision=Precision.FP8_CURRENT,
        recompute="none",
    )
    words = shlex.split(
        reproduction_command("llama3_70b_32xh100", replace(trial, workload=changed))
    )
    wanted = {
        "model.num_layers=40",
        "layout.tp_comm_overlap=false",
        "gpus=64xH100",
        "job.seq_length=8192",
        "job.precision=fp8_current",
        "recompute.settings=[none]",
    }
    assert wanted <= set(words)
    assert not any(word.startswith("layout.data_parallel_size") for word in words)


def test_an_experiment_that_is_no_file_here_is_taken_as_it_stands() -> None:
    assert "model." not in reproduction_command("somewhere_else", preset_trial())


def test_settings_with_commas_are_quoted_for_hydra() -> None:
    assert quoted_setting("full:block:4") == "full:block:4"
    assert quoted_setting("none+offload=core_attn") == '"none+offload=core_attn"'
