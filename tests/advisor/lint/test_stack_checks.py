"""Rules of torchtitan, DeepSpeed, transformers and Accelerate that fire on a configuration."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.base.errors import UserError
from advisor.base.rule import Level
from advisor.lint.target import lint_target
from tests.advisor.tables import tables

TABLES = tables(__file__)

AC, ASYNC = "[activation_checkpoint]\n", "[parallelism]\nenable_async_tensor_parallel = true"
EXPERTS = "[parallelism]\nexpert_parallel_degree = 2\nexpert_tensor_parallel_degree = 2"
LOSS = "components = ['loss']"
BUDGET, COMPONENTS = "mode = 'memory_budget'", "enable = true\ncomponents = true"
TITAN = "[model]\nname = 'llama3'\n[training]\nseq_len = 8192\n"
ZERO: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
FILE: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP"}
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
    TABLES["test_what_torchtitan_is_started_with_is_not_read"],
)
def test_what_torchtitan_is_started_with_is_not_read(
    start: str, option: str, rules: list[str], unread: str
) -> None:
    report = lint_target(f"{start} NGPU=8 ./run_train.sh --parallelism.{option}")
    found = [one.rule for one in report.findings if one.level is Level.ERROR]
    assert found == rules
    assert report.verdict.endswith(f"not included: {unread}")


@pytest.mark.parametrize(
    ("name", "start", "section", "given", "found"),
    [
        (*where, *row)
        for table, where in {
            "test_zero": ("d.json", ZERO, "zero_optimization"),
            "test_deepspeed": ("d.json", ZERO, None),
            "test_transformers": ("a.yaml", ARGUMENTS, None),
            "test_accelerate": ("a.yaml", FILE, "fsdp_config"),
            "test_the_file_of_accelerate": ("a.yaml", FILE, None),
        }.items()
        for row in TABLES[table]
    ],
)
def test_other_stacks(tmp_path: Path, name, start, section, given, found) -> None:
    dump = json.dumps if name == "d.json" else yaml.safe_dump
    assert linted(tmp_path, name, dump(start | ({section: given} if section else given))) == found


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
    ("recipe", "version"), [("AORecipeKwargs()", 2), ("FP8RecipeKwargs(backend='te')", 1)]
)
def test_fp8_in_python_has_other_defaults_than_a_file(tmp_path, recipe, version) -> None:
    plugin = f"FullyShardedDataParallelPlugin(fsdp_version={version})"
    text = f"p = {plugin}\nAccelerator(mixed_precision='fp8', kwargs_handlers=[{recipe}])\n"
    assert linted(tmp_path, "a.py", text) == ""
