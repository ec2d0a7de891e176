"""Rows of torchtitan, DeepSpeed, transformers and Accelerate next to the installed packages."""

import ast
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from advisor.base.place import Place
from advisor.frameworks.deepspeed import options as deepspeed
from advisor.frameworks.huggingface import options as huggingface
from advisor.frameworks.option import Option, Status, names_in
from advisor.frameworks.torch.keyed_reader import values_of
from advisor.frameworks.torchtitan import options as torchtitan
from advisor.job.job import JobConfig
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.reading.read_configuration import Keys
from advisor.request.given import RECORDS

TABLES = {"torchtitan": torchtitan, "deepspeed": deepspeed, "transformers": huggingface}
OF_OURS = {"layout": ParallelLayout, "job": JobConfig, **RECORDS}


def fields_of(package: str, file: str, name: str) -> dict[str, Any]:
    """Annotated fields of a class in a package's source, with defaults that are plain values."""
    found = find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    tree = ast.parse((Path(found.origin).parent / file).read_text(encoding="utf-8"))
    body = next(n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)
    fields = [n for n in body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    return {n.target.id: plain(n.value) for n in fields}


def plain(node: ast.expr | None) -> Any:
    """The value of a default, of a pydantic Field its first one; Ellipsis where it is computed."""
    if isinstance(node, ast.Call):
        defaults = [k.value for k in node.keywords if k.arg == "default"]
        node = next(iter([*node.args, *defaults]), None)
    try:
        return ast.literal_eval(node) if node is not None else ...
    except ValueError:
        return ...


def agree(options: Collection[Option], section: str, fields: dict[str, Any]) -> None:
    """Every field has a row, and the defaults of those that are modelled are the same."""
    assert set(fields) <= set(names_in(options, section))
    start = f"{section}." if section else ""
    for row in options:
        default = fields.get(row.name.removeprefix(start), ...)
        if row.status is Status.MODELLED and default is not ...:
            assert row.default == default, row.name


@pytest.mark.parametrize(
    ("section", "name"),
    [(torchtitan.AC, "ActivationCheckpoint"), (torchtitan.PARALLELISM, "Parallelism")],
)
def test_rows_are_the_fields_of_torchtitan(section: str, name: str) -> None:
    fields = fields_of("torchtitan", "config/job_config.py", name)
    agree(torchtitan.OPTIONS, section, fields)


@pytest.mark.parametrize(
    ("section", "file", "name"),
    [
        (deepspeed.ZERO, "config.py", "DeepSpeedZeroConfig"),
        (deepspeed.PARAMETERS, "offload_config.py", "DeepSpeedZeroOffloadParamConfig"),
        (deepspeed.OPTIMIZER, "offload_config.py", "DeepSpeedZeroOffloadOptimizerConfig"),
    ],
)
def test_rows_are_the_fields_of_deepspeed(section: str, file: str, name: str) -> None:
    agree(deepspeed.OPTIONS, section, fields_of("deepspeed", f"runtime/zero/{file}", name))


def test_switches_and_numbers_of_deepspeed_are_those_of_its_class() -> None:
    fields = fields_of("deepspeed", "runtime/zero/config.py", "DeepSpeedZeroConfig")
    for row in deepspeed.OPTIONS:
        default = fields.get(row.name.removeprefix(f"{deepspeed.ZERO}."), ...)
        if isinstance(default, bool):
            assert row.kind is bool, row.name


def test_rows_are_the_keys_of_accelerate() -> None:
    file = "commands/config/config_args.py"
    fields = fields_of("accelerate", file, "BaseConfig")
    fields |= fields_of("accelerate", file, "ClusterConfig")
    agree(huggingface.FILE, "", fields)


def test_arguments_are_those_of_transformers() -> None:
    fields = fields_of("transformers", "training_args.py", "TrainingArguments")
    for row in huggingface.ARGUMENTS:
        default = fields.get(row.name, ...)
        if row.status is Status.MODELLED and default is not ...:
            assert row.default == default, row.name


@pytest.mark.parametrize("table", TABLES)
def test_what_is_modelled_names_a_field_of_ours(table: str) -> None:
    for row in TABLES[table].OPTIONS:
        part, _, field = row.ours.partition(".")
        if row.status is not Status.MODELLED:
            assert not row.ours, row.name
        else:
            assert part == "recompute" or field in OF_OURS[part].__struct_fields__, row.name


def test_no_key_has_two_rows() -> None:
    tables = (torchtitan.OPTIONS, deepspeed.OPTIONS, huggingface.ARGUMENTS, huggingface.FILE)
    for options in tables:
        assert len(options) == len({row.name for row in options})


def test_values_are_read_by_their_rows() -> None:
    place = Place("f", 1, 1)
    keys = Keys(place=place)
    for key, value in {
        deepspeed.STAGE: 2,
        deepspeed.MICRO_BATCH: "4",
        deepspeed.BATCH: "auto",
        f"{deepspeed.OPTIMIZER}.device": "cpu",
        f"{deepspeed.OPTIMIZER}.ratio": 0.5,
        "fp16.enabled": False,
        "pipeline.stages": -1,
    }.items():
        keys.put(key, value, place)
    read = values_of(deepspeed.OPTIONS, keys)
    assert {field: value.value for field, value in read.items()} == {
        "layout.data_parallel_sharding": DataParallelSharding.GRADIENTS,
        "job.micro_batch_size": 4,
        "job.optimizer_cpu_offload": True,
        "job.optimizer_offload_fraction": 0.5,
    }
