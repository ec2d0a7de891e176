"""The rows of Megatron's options against the installed classes that they are options of."""

import re
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

import pytest

from advisor.frameworks.megatron.options.table import SETTINGS, option_of_field
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.names import Framework
from advisor.frameworks.option import Option, Release, number

pytest.importorskip("megatron.core")

from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

INSTALLED = resolve_revision(Framework.MEGATRON_LM, "0.16")
CLASSES = (TransformerConfig, MLATransformerConfig, DistributedDataParallelConfig, OptimizerConfig)
# Of MLATransformerConfig, which is another class with its own defaults of the same fields, and of
# OptimizerConfig, where the timers' barrier and the recipe stand for something else.
OTHER_DEFAULTS = {
    "MLATransformerConfig": {"multi_latent_attention": True, "normalization": "RMSNorm"},
    "OptimizerConfig": {"barrier_with_L1_time": False, "fp8_recipe": None},
}


def as_row_has_it(value: Any) -> Any:
    """A default of Megatron's as rows write it: types by name, an empty list as nothing."""
    if isinstance(value, Enum):
        return value.name
    if callable(value) or value in ([], ()):
        return None
    name = re.sub(r"^torch\.(float|bfloat)(\d+)$", r"\1\2", str(value))
    return {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(name, value)


def _default_in(row: Option, release: Release) -> object:
    """The configuration class's default in a release."""
    for last, value in row.older.items():
        if release.number <= number(last):
            return value
    return row.default if row.config is None else row.config


@pytest.mark.parametrize("cls", CLASSES)
def test_every_field_of_the_installed_classes_has_a_row_with_its_default(cls: Any) -> None:
    for field in fields(cls):
        row = option_of_field(field.name)
        assert row is not None, field.name
        assert row.in_release(INSTALLED), field.name
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        default = as_row_has_it(default)
        ours = OTHER_DEFAULTS.get(cls.__name__, {}).get(field.name, _default_in(row, INSTALLED))
        assert str(ours or None) == str(default or None), field.name


def test_rows_of_other_releases_are_not_in_the_installed_classes() -> None:
    installed = {field.name for cls in CLASSES for field in fields(cls)}
    for row in SETTINGS.values():
        if row.since is not None and not row.in_release(INSTALLED):
            assert row.name_in(INSTALLED) not in installed, row.name
