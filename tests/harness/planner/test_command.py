"""From a request to commands."""

import base64
import json

import pytest

pytest.importorskip("hydra")

from advisor.base.errors import UserError
from harness.planner.device import Machine
from harness.planner.planning import check_request, machine_of, make_plan
from harness.planner.run_request import compose
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.trial import Device, RunPlan, TrainingCommand, Trial, same_question

CPU = Machine(device=Device.CPU)


def plan(*overrides: str) -> RunPlan:
    config = compose(["backend=command", *overrides])
    check_request(config)
    return make_plan(config, CPU)


def commands(made: RunPlan) -> list[TrainingCommand]:
    found = [setting.trial.command for setting in made.settings]
    assert all(found)
    return [command for command in found if command is not None]


def word(command: TrainingCommand, name: str) -> str:
    return dict(pair.split("=", 1) for pair in command.words)[name]


def test_every_setting_has_its_flags() -> None:
    found = commands(plan("command=train {recompute}"))
    assert [word(command, "recompute") for command in found] == [
        "",
        "--recompute-granularity selective --recompute-modules mlp",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    ]
    parts = ("granularity", "modules", "method", "num_layers")
    assert [[word(command, part) for part in parts] for command in found] == [
        ["none", "", "", ""],
        ["selective", "mlp", "", ""],
        ["full", "", "uniform", "1"],
    ]
    assert {(one.template, one.framework) for one in found} == {
        ("train {recompute}", "megatron_lm")
    }
    assert "--seq-length 512" in word(found[0], "layout")


def test_bridge_takes_overrides_that_clear_the_recipe() -> None:
    (none,) = commands(plan("command=train", "framework=megatron_bridge", "recompute=none"))
    assert word(none, "recompute").split()[0] == "model.recompute_granularity=null"
    (same,) = commands(plan("command=train", "job.framework=megatron_bridge", "recompute=none"))
    assert same == none


@pytest.mark.parametrize(
    ("framework", "setting", "expected"),
    [
        ("nemo", "full:block:2", "model.config.recompute_method=block"),
        ("torchtitan", "op:torchtitan", "activation_checkpoint:selective"),
        ("huggingface", "full+offload", "--gradient_checkpointing_kwargs '{\"offload\": true}'"),
    ],
)
def test_other_stacks_take_their_own_words(framework: str, setting: str, expected: str) -> None:
    wanted = f"recompute.settings=['{setting}']"
    (found,) = commands(plan("command=train", f"framework={framework}", wanted))
    assert expected in word(found, "recompute")
    assert found.framework == framework


def test_deepspeed_takes_its_file_as_one_word() -> None:
    wanted = "recompute.settings=['full+cpu_checkpointing']"
    (found,) = commands(plan("command=train", "framework=deepspeed", wanted))
    option, written = word(found, "recompute").split()
    assert option == "--deepspeed_config"
    config = json.loads(base64.urlsafe_b64decode(written))
    assert config["activation_checkpointing"]["cpu_checkpointing"] is True


def test_a_stack_refuses_its_own_settings() -> None:
    wanted = "recompute.settings=[none,'full+contiguous_memory_optimization']"
    made = plan("command=train", "framework=deepspeed", wanted)
    assert [bool(setting.skip) for setting in made.settings] == [False, True]
    assert "only available with partitioned activations" in made.settings[1].skip


def test_other_backends_run_megatrons_layers() -> None:
    with pytest.raises(UserError, match="cannot run with backend=native"):
        make_plan(compose(["job.framework=torchtitan"]), CPU)


def test_other_frameworks_take_the_setting_as_it_is_spelt() -> None:
    wanted = "recompute.settings=[none,op:save_matmuls]"
    found = commands(plan("command=train --ac {recompute}", "framework=other", wanted))
    assert [word(one, "recompute") for one in found] == ["none", "op:save_matmuls"]


def test_a_setting_without_flags_is_skipped_with_its_reason() -> None:
    made = plan("command=train", "recompute.settings=[none,op:save_matmuls]")
    assert [bool(setting.skip) for setting in made.settings] == [False, True]
    assert "is not a recompute setting" in made.settings[1].skip


def test_offloading_needs_a_variable() -> None:
    setting = "recompute.settings=['none+offload=core_attn']"
    (found,) = commands(plan("command=train", setting, "job.framework_version=0.18"))
    assert found.variables == ("NVTE_CPU_OFFLOAD_V1=1",)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --x=a,b pretrain_gpt.py {recompute}",
        "cd ${HOME} && FOO='a b' python x.py \"$Y\" --json '{\"a\": [1, 2]}' {recompute} # done",
        "'quoted program' {recompute}",
        "train {recompute} \\${x} %(a)s",
    ],
)
def test_a_command_is_taken_as_it_stands(command: str) -> None:
    """No part of it is Hydra's or OmegaConf's."""
    assert compose([f"command={command}"]).command == command


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["backend=command"], "must be the command that trains"),
        (["command=train"], "needs backend=command"),
        (["framework=other"], "needs backend=command"),
        (
            ["backend=command", "command=x", "framework=fsdp2"],
            "is not supported with backend=command",
        ),
    ],
)
def test_wrong_requests(overrides: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_request(compose(overrides))


def test_gpus_elsewhere_are_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun starts the ranks: the machine at hand need not have a GPU."""
    monkeypatch.setattr("harness.planner.device.gpu_names", tuple)
    request = ["backend=command", "command=srun train", "device=cuda"]
    found = machine_of(compose([*request, "experiment=llama3_70b_32xh100"]))
    assert (found.device, len(found.gpu_names), found.gpu_names[0]) == (Device.CUDA, 32, "H100")
    assert machine_of(compose([*request, "gpus=8xB200"])).gpu_names == ("B200",) * 8
    assert machine_of(compose(request[:2])).device is Device.CPU


def test_gpus_that_are_here_have_their_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("harness.planner.device.gpu_names", lambda: ("NVIDIA H200",) * 2)
    request = ["backend=command", "command=x", "device=cuda"]
    assert machine_of(compose([*request, "gpus=2xH100"])).gpu_names == ("NVIDIA H200",) * 2
    assert machine_of(compose([*request, "gpus=4xH100"])).gpu_names == ("H100",) * 4


def test_another_command_is_another_question() -> None:
    (one,), (two,) = (plan(f"command={c}", "recompute=none").settings for c in ("a", "b"))
    result = TrialResult(
        name="x", status=TrialStatus.OK, trial={}, environment={}, started_at="", wall_seconds=0.0
    )
    assert same_question(one.trial, one.trial, result)
    assert not same_question(one.trial, two.trial, result)
    assert one.trial.workload.key() == two.trial.workload.key(), "the same golden all the same"
    assert isinstance(one.trial, Trial)
