"""Published training recipes: one table a model (configs/recipe), one row a recipe.

The columns are fields of ParallelLayout, JobConfig and ModelSpec under their own names, beside what
a recipe is (name, framework, task, gpus), the recompute setting that it ships with, and where it
was read. An empty cell means the default. Megatron Bridge's rows hold what is in force after its
own validation: the distributed optimizer where the switch of DDP or that of the optimizer is on,
and gradients in the type that a named mixed precision reduces them in (training/config.py
_validate_and_sync_distributed_optimizer_settings, training/mixed_precision.py). Only the table of
the model that is asked for is opened, and only the row that is chosen is converted.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.configuration import Group, config_folders
from advisor.base.documents import read_csv
from advisor.base.errors import UserError
from advisor.base.fields import field_types, parse, show
from advisor.base.units import parse_gpus
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec

NOT_MODELLED: Final = frozenset({"overlap_moe_expert_parallel_comm", "delay_wgrad_compute"})
"""Columns of options that no job has yet; a recipe that sets them says so."""

ABOUT: Final = frozenset(
    {"name", "framework", "task", "gpus", "shipped_recompute", "source", "notes"}
)
"""Columns that say what a recipe is."""

_DEGREES: Final = {
    "TP": "tensor_model_parallel_size",
    "CP": "context_parallel_size",
    "PP": "pipeline_model_parallel_size",
    "VPP": "virtual_pipeline_model_parallel_size",
    "EP": "expert_model_parallel_size",
    "ETP": "expert_tensor_parallel_size",
}
_COUNTS: Final = (*_DEGREES.values(), "seq_length", "global_batch_size")
"""Columns that are computed with before a row is chosen."""
SUFFIX: Final = ".csv"
_GROUPS: Final = (ParallelLayout, JobConfig, ModelSpec)


class Recipe(Struct, frozen=True, kw_only=True):
    """One row: gpu_types are those that the source names, shipped_recompute is a SPEC.

    values: the cells that are not empty, by column, unconverted.
    """

    name: str
    model: str
    framework: str
    task: str
    num_gpus: int
    gpu_types: tuple[str, ...]
    shipped_recompute: str
    source: str
    notes: str
    values: Mapping[str, str]

    @property
    def precision(self) -> str:
        """Precision as the table spells it."""
        return self.values["precision"]

    @property
    def seq_length(self) -> int:
        """Tokens of one sequence."""
        return int(self.values["seq_length"])

    @property
    def model_parallel_size(self) -> int:
        """GPUs of one replica of the dense layers: TP x CP x PP."""
        return self._product("tensor_model_parallel_size", "context_parallel_size")

    @property
    def expert_parallel_size(self) -> int:
        """GPUs of one replica of the experts: ETP x EP x PP."""
        return self._product("expert_tensor_parallel_size", "expert_model_parallel_size")

    @property
    def has_experts(self) -> bool:
        """Whether the recipe spreads experts; it then cuts none where the table is silent."""
        return self._product("expert_model_parallel_size") > self._product()

    @property
    def degrees(self) -> str:
        """``TP2 PP8 VPP4 EP64``; degrees of one left out."""
        given = ((name, self.values.get(field, "1")) for name, field in _DEGREES.items())
        return " ".join(f"{name}{degree}" for name, degree in given if degree != "1") or "DP"

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """Options that the recipe sets and no job has."""
        return tuple(name for name in self.values if name in NOT_MODELLED)

    def fields_of(self, cls: type) -> dict[str, Any]:
        """The cells that are fields of `cls`, converted; a field of two classes is the first's."""
        others = _GROUPS[: _GROUPS.index(cls)]
        hints = field_types(cls)
        return {
            name: parse(text, hints[name], f"recipe {self.name}: {name}")
            for name, text in self.values.items()
            if name in hints and not any(name in field_types(other) for other in others)
        }

    def runs_on(self, num_gpus: int) -> bool:
        """Whether whole replicas fill `num_gpus`, and its batch can be divided among them."""
        replicas = num_gpus // self.model_parallel_size
        whole = num_gpus % self.model_parallel_size == 0 == num_gpus % self.expert_parallel_size
        published = self.num_gpus // self.model_parallel_size
        return whole and int(self.values["global_batch_size"]) * replicas % published == 0

    def _product(self, *names: str) -> int:
        product = int(self.values.get("pipeline_model_parallel_size", 1))
        for name in names:
            product *= int(self.values.get(name, 1))
        return product


def recipe_models(config_dir: Path | None = None) -> tuple[str, ...]:
    """Models that have a table, sorted."""
    found = {
        path.stem
        for folder in config_folders(config_dir)
        for path in (folder / Group.RECIPE).glob(f"*{SUFFIX}")
    }
    return tuple(sorted(found))


@lru_cache(maxsize=64)
def load_recipes(model: str, config_dir: Path | None = None) -> tuple[Recipe, ...]:
    """All recipes of a model in the order of its table; none where it has no table.

    Raises UserError on a row without what every recipe must have, or on an unknown column.
    """
    for folder in config_folders(config_dir):
        path = folder / Group.RECIPE / (model + SUFFIX)
        if path.is_file() and path.parent == folder / Group.RECIPE:
            return _read(path)
    return ()


def _read(path: Path) -> tuple[Recipe, ...]:
    columns, rows = read_csv(path)
    known = ABOUT | NOT_MODELLED | {name for cls in _GROUPS for name in field_types(cls)}
    for column in columns:
        if column not in known:
            raise UserError(f"{path.name}: {show(column)}", "(column)", "is not a known key")
    return tuple(_recipe(path, row) for row in rows)


def _recipe(path: Path, row: dict[str, str]) -> Recipe:
    for column in ("name", "gpus", "precision", "seq_length", "global_batch_size"):
        if not row.get(column):
            raise UserError(f"{path.name}: {show(row.get('name'))}", column, "is missing")
    for column in _COUNTS:
        where = f"{path.name}: {show(row['name'])}: {column}"
        if row.get(column) and parse(row[column], int, where) < 1:
            raise UserError(where, row[column], "must be at least 1")
    first, *others = row["gpus"].split("/")
    count, kind = parse_gpus(first)
    return Recipe(
        name=row["name"],
        model=path.stem,
        framework=row.get("framework", ""),
        task=row.get("task", ""),
        num_gpus=count,
        gpu_types=(kind, *others),
        shipped_recompute=row.get("shipped_recompute", ""),
        source=row.get("source", ""),
        notes=row.get("notes", ""),
        values={name: text for name, text in row.items() if text and name not in ABOUT},
    )
