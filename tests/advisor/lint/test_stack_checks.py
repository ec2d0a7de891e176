"""Rules of torchtitan, DeepSpeed, transformers and Accelerate that fire on a configuration."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.base.errors import UserError
from advisor.base.rule import Level
from advisor.lint.target import lint_target

AC, ASYNC = "[activation_checkpoint]\n", "[parallelism]\nenable_async_tensor_parallel = true"
EXPERTS = "[parallelism]\nexpert_parallel_degree = 2\nexpert_tensor_parallel_degree = 2"
LOSS = "components = ['loss']"
BUDGET, COMPONENTS = "mode = 'memory_budget'", "enable = true\ncomponents = true"
CALLS, KWARGS = "activation_checkpointing.calls", "gradient_checkpointing_kwargs"
TITAN = "[model]\nname = 'llama3'\n[training]\nseq_len = 8192\n"
PRODUCT, OPTION = "parallel_degree.product", "activation_checkpoint.selective_ac_option"
REGISTRY = "configuration 8b of torchtitan's registry"
FSDP2: dict[str, Any] = {"fsdp_version": 2}
ZERO: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
FILE: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP"}
FP8, TE = {"mixed_precision": "fp8"}, {"backend": "TE"}
WHOLE = {"fsdp_cpu_ram_efficient_loading": False}
ARGUMENTS: dict[str, Any] = {"per_device_train_batch_size": 1, "gradient_checkpointing": True}


def linted(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return ", ".join(f"{one.level} {one.rule}" for one in lint_target(str(path)).findings)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[activation_checkpoint]\nmode = 'ful'", "ERROR mode"),
        ("[activation_checkpoint]\nmod = 'full'", "ERROR activation_checkpoint.unknown_field"),
        ("[activation_checkpointing]\nmode = 'full'", "ERROR unknown_section"),
        ("[job]\n[compile]\n[[activation_checkpoint]]", "ERROR wrong_type"),
        ("[activation_checkpoint]\nselective_ac_option = 2", "ERROR selective_ac_option"),
        ("[activation_checkpoint]\nselective_ac_option = '0'", "ERROR selective_ac_option"),
        (f"{AC}mode = 'full'\nselective_ac_option = 'op'", "NOTE selective_ac_option.unused"),
        ("[activation_checkpoint]\nmemory_budget = 2.0", "ERROR memory_budget"),
        ("[activation_checkpoint]\nearly_stop = 'x'", "ERROR wrong_type"),
        ("[parallelism]\ntensor_parallel_degree = 0", "ERROR parallel_degree"),
        ("[parallelism]\ndata_parallel_shard_degree = 0", "ERROR parallel_degree"),
        ("[parallelism]\nfsdp_reshard_after_forward = 'no'", "ERROR fsdp_reshard_after_forward"),
        (ASYNC, "ERROR async_tensor_parallel.compile"),
        (f"{ASYNC}\n[compile]\nenable = true", ""),
        (f"{ASYNC}\n[compile]\nenable = true\n{LOSS}", "ERROR async_tensor_parallel.compile"),
        (EXPERTS, "ERROR parallelism.expert_tensor_parallel_degree"),
        (f"{AC}{BUDGET}\n[compile]\n{COMPONENTS}", "ERROR memory_budget.compile"),
    ],
)
def test_torchtitan(tmp_path: Path, text: str, found: str) -> None:
    assert linted(tmp_path, "t.toml", TITAN + text) == found


def test_degrees_of_torchtitan_make_up_the_gpus(tmp_path: Path) -> None:
    table = f"activation_checkpoint = 3\n{TITAN}"
    assert linted(tmp_path, "t.toml", table) == "ERROR wrong_type", "a section is a table"
    text = "torchrun --nproc_per_node=8 -m torchtitan.train --parallelism.{}\n"
    product = "ERROR parallel_degree.product"
    assert linted(tmp_path, "t.sh", text.format("tensor_parallel_degree=3")) == product
    assert linted(tmp_path, "t.sh", text.format("data_parallel_shard_degree=4")) == product
    assert not linted(tmp_path, "t.sh", text.format("tensor_parallel_degree=4"))


@pytest.mark.parametrize(
    ("start", "option", "rules", "unread"),
    [
        ("CONFIG_FILE=a/b.toml", "tensor_parallel_degree=16", [PRODUCT], "a/b.toml"),
        ("CONFIG_FILE=b.toml", "data_parallel_shard_degree=4", [], "b.toml"),
        ("CONFIG_FILE=$1", "tensor_parallel_degree=4 --job.config-file=c.toml", [], "c.toml"),
        ("MODULE=llama3 CONFIG=8b", "tensor_parallel_degree 3", [PRODUCT], REGISTRY),
        (
            "MODULE=llama3 CONFIG=8b",
            f"tensor_parallel_degree=2 --{OPTION} op",
            ["removed_option"],
            REGISTRY,
        ),
        (
            "CONFIG=8b",
            "tensor_parallel_degree=2 --activation_checkpoint.mode full",
            ["removed_option"],
            REGISTRY,
        ),
        (
            "",
            "tensor_parallel_degree=2 --module llama3 --config 8b activation_checkpoint:full",
            [],
            REGISTRY,
        ),
    ],
)
def test_what_torchtitan_is_started_with_is_not_read(
    start: str, option: str, rules: list[str], unread: str
) -> None:
    report = lint_target(f"{start} NGPU=8 ./run_train.sh --parallelism.{option}")
    found = [one.rule for one in report.findings if one.level is Level.ERROR]
    assert found == rules
    assert report.verdict.endswith(f"not included: {unread}")


@pytest.mark.parametrize(
    ("zero", "found"),
    [
        ({"stage": 4}, "ERROR zero_stage"),
        ({"stage": "auto", "offload_optimizer": {"ratio": 0.5}}, ""),
        ({"stage": 2, "offload_optimizer": {"ratio": 0.5}}, "ERROR offload_optimizer.ratio"),
        ({"stage": 2, "overlap_com": True}, "ERROR unknown_key"),
        ({"stage": 3, "mics_shard_size": 8}, "WARNING removed_key"),
        ({"stage": 3, "reduce_bucket_size": True}, "ERROR wrong_type"),
        ({"stage": 3, "parameter_alignment": True, "reduce_bucket_size": 5e8}, "NOTE not_modelled"),
        ({"offload_optimizer": {"device": "cpu"}}, "WARNING offload_optimizer.stage"),
        ({"stage": 2, "offload_param": {"device": "cpu"}}, "WARNING offload_param.stage"),
        ({"stage": 3, "offload_param": {"device": "gpu"}}, "ERROR offload_param.device"),
        ({"stage": 3, "offload_param": {"device": "nvme"}}, "ERROR offload_param.nvme_path"),
    ],
)
def test_zero(tmp_path: Path, zero: dict[str, Any], found: str) -> None:
    assert linted(tmp_path, "d.json", json.dumps(ZERO | {"zero_optimization": zero})) == found


def checkpointing(**fields: Any) -> dict[str, Any]:
    return {"activation_checkpointing": fields}


ZERO_3 = {"zero_optimization": {"stage": 3}}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"train_batch_size": 3, "train_micro_batch_size_per_gpu": 2}, "ERROR batch"),
        ({"train_micro_batch_size_per_gpu": 0}, "ERROR batch"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "ERROR precision"),
        ({"pipeline": {"stages": 2}, **ZERO_3}, "ERROR pipeline.zero_stage, NOTE not_modelled"),
        (
            checkpointing(cpu_checkpointing=True),
            f"NOTE {CALLS}, NOTE activation_checkpointing.cpu_checkpointing",
        ),
        (
            checkpointing(partition_activations=True, contiguous_memory_optimization=True),
            f"ERROR activation_checkpointing.number_checkpoints, NOTE {CALLS}",
        ),
        (checkpointing(partition_activations=True), f"NOTE {CALLS}"),
        (checkpointing(partition_activations=False), ""),
        ({"zero_optimization": 3}, "ERROR wrong_type"),
        ({"train_batch_siz": 8}, "WARNING unknown_key"),
    ],
)
def test_deepspeed(tmp_path: Path, given: dict[str, Any], found: str) -> None:
    assert linted(tmp_path, "d.json", json.dumps(ZERO | given)) == found


@pytest.mark.parametrize(
    ("section", "key", "source"),
    [
        ("zero_optimization", "overlap_comm", "runtime/zero/config.py"),
        ("bf16", "enabled", "runtime/precision_config.py"),
        ("fp16", "enabled", "runtime/precision_config.py"),
        ("activation_checkpointing", "profile", "runtime/activation_checkpointing/config.py"),
    ],
)
def test_a_wrong_type_is_refused_where_deepspeed_reads_it(tmp_path, section, key, source) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps(ZERO | {section: {key: 3}}))
    (finding,) = lint_target(str(path)).findings
    assert (finding.rule, finding.source) == ("wrong_type", f"DeepSpeed 0.19.8 {source}")


@pytest.mark.parametrize("text", ["[1, 2, 3]", "3", "null", '"x"', "{}"])
def test_json_without_settings_is_nobodys(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="holds no setting of a known framework"):
        linted(tmp_path, "d.json", text)
    assert "WARNING json_syntax" in linted(tmp_path, "d.json", "{broken"), "DeepSpeed's"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"fsdp": [7]}, "ERROR fsdp"),
        ({"fsdp": "full_shard", "deepspeed": "d.json"}, "ERROR fsdp_and_deepspeed"),
        ({"gradient_checkpoint": True}, "ERROR unknown_argument"),
        ({KWARGS: "x"}, "ERROR checkpointing_kwargs"),
        ({KWARGS: {"use_reentrent": False}}, "ERROR checkpointing_kwargs"),
        ({KWARGS: {"every_n_layers": 0}}, "ERROR checkpointing_kwargs.every_n_layers"),
        ({KWARGS: {"offload": "false"}}, "WARNING wrong_type"),
        (
            {"gradient_checkpointing": False, KWARGS: {"use_reentrant": False}},
            "WARNING checkpointing_kwargs.unused",
        ),
        ({"gradient_accumulation_steps": 0}, "ERROR wrong_type"),
        (
            {"fsdp": "full_shard", "fsdp_config": {"activation_checkpointing": True}},
            "ERROR checkpointing_twice",
        ),
    ],
)
def test_transformers(tmp_path: Path, given: dict[str, Any], found: str) -> None:
    assert linted(tmp_path, "a.yaml", yaml.safe_dump(ARGUMENTS | given)) == found


@pytest.mark.parametrize(
    ("fsdp", "found"),
    [
        ({"fsdp_version": 3}, "ERROR fsdp_version"),
        ({"fsdp_versoin": 2}, "WARNING unknown_key"),
        (FSDP2 | {"fsdp_reshard_after_forward": "x"}, "ERROR fsdp_reshard_after_forward"),
        ({"fsdp_reshard_after_forward": True}, "ERROR fsdp_reshard_after_forward"),
        (FSDP2 | {"fsdp_forward_prefetch": True}, "ERROR fsdp_forward_prefetch"),
        (FSDP2 | {"fsdp_state_dict_type": "LOCAL_STATE_DICT"}, "ERROR fsdp_state_dict_type"),
        ({"fsdp_sharding_strategy": "FULL"}, "ERROR fsdp_sharding_strategy"),
        (
            {"fsdp_activation_checkpointing": True, "fsdp_activation_checkpointing_offload": True},
            "ERROR activation_checkpointing_offload",
        ),
    ],
)
def test_accelerate(tmp_path: Path, fsdp: dict[str, Any], found: str) -> None:
    assert linted(tmp_path, "a.yaml", yaml.safe_dump(FILE | {"fsdp_config": fsdp})) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"distributed_type": "fsdp2"}, "ERROR distributed_type"),
        ({"mixed_precision": "fp32"}, "ERROR mixed_precision"),
        ({"num_proceses": 8}, "ERROR unknown_key"),
        ({"num_processes": "x"}, "ERROR wrong_type"),
        ({"num_processes": 8}, ""),
        ({"fsdp_config": 3}, "ERROR wrong_type"),
        ({"fsdp_config": {}}, ""),
        ({"deepspeed_config": "ds.json"}, "ERROR wrong_type"),
        ({"deepspeed_config": {"zero_stage": 4}}, "ERROR zero_stage"),
        (
            {"deepspeed_config": {"deepspeed_config_file": "d.json", "zero_stage": 3}},
            "ERROR deepspeed_config_file",
        ),
        (
            {"deepspeed_config": {"zero_stage": 2, "offload_param_device": "cpu"}},
            "WARNING offload_param.stage",
        ),
        (FP8 | {"fp8_config": {**TE, "interval": 1, "override_linear_precision": [False] * 3}}, ""),
        (FP8 | {"fp8_config": {"backend": "te"}}, "ERROR fp8"),
        (FP8 | {"fp8_config": TE | {"interval": 2}}, "ERROR fp8"),
        (FP8 | {"fp8_config": TE | {"fp8_format": "E5M2"}}, "ERROR fp8"),
        (FP8 | {"fp8_config": {**TE, "override_linear_precision": [True] * 3}}, "ERROR fp8"),
        (FP8 | {"fp8_config": TE, "fsdp_config": FSDP2 | WHOLE}, "ERROR fp8"),
        (FP8 | {"fp8_config": TE, "fsdp_config": {"fsdp_version": 1}}, ""),
        (FP8 | {"fp8_config": {"backend": "AO"}, "fsdp_config": FSDP2}, "ERROR fp8"),
        (FP8 | {"fp8_config": {"backend": "AO"}, "fsdp_config": {"fsdp_version": 1}}, "ERROR fp8"),
        (FP8 | {"fp8_config": {"backend": "AO"}, "fsdp_config": FSDP2 | WHOLE}, ""),
    ],
)
def test_the_file_of_accelerate(tmp_path: Path, given: dict[str, Any], found: str) -> None:
    assert linted(tmp_path, "a.yaml", yaml.safe_dump(FILE | given)) == found


@pytest.mark.parametrize(
    ("recipe", "version"), [("AORecipeKwargs()", 2), ("FP8RecipeKwargs(backend='te')", 1)]
)
def test_fp8_in_python_has_other_defaults_than_a_file(tmp_path, recipe, version) -> None:
    plugin = f"FullyShardedDataParallelPlugin(fsdp_version={version})"
    text = f"p = {plugin}\nAccelerator(mixed_precision='fp8', kwargs_handlers=[{recipe}])\n"
    assert linted(tmp_path, "a.py", text) == ""
