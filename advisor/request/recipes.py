"""Published training recipes: rows of a model's table (configs/recipe), and job presets in files of
their own (configs/experiment).

A table's columns are fields of ParallelLayout, JobConfig and ModelSpec under their own names, next
to what a recipe is (name, framework, task, gpus), the recompute setting that it ships with, and
where it was read. An empty cell means the default. Megatron Bridge's rows hold what is in force
after its own validation: the distributed optimizer where the switch of DDP or that of the optimizer
is on, and gradients in the type that a named mixed precision reduces them in (training/config.py
_validate_and_sync_distributed_optimizer_settings, training/mixed_precision.py). Only the table of
the model that is asked for is opened, and only the row that is chosen is converted.

A file is called MODEL_COUNTxGPU, e.g. ``llama3_70b_32xh100``; with ``_PRECISION`` at its end it is
the one for that precision. So the preset of a job is found by listing one folder and reading one
table.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.configuration import ConfigGroup, config_folders, config_names, load_config
from advisor.base.documents import read_csv
from advisor.base.errors import UserError, nearest_divisors, nearest_names, show
from advisor.base.fields import convert, field_types, parse, read_fields, read_record
from advisor.base.units import parse_gpus
from advisor.frameworks.registry import framework_of_recipe
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import SHORT_NAMES, ParallelLayout
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.plan.split import split_evenly

ABOUT: Final = frozenset(
    {"name", "framework", "task", "gpus", "shipped_recompute", "source", "notes"}
)
"""Columns that say what a recipe is."""
_DEGREES: Final = {short: name for short, name in SHORT_NAMES.items() if short != "DP"}
_COUNTS: Final = (*_DEGREES.values(), "seq_length", "global_batch_size")
"""Columns that are computed with before a row is chosen."""
SUFFIX: Final = ".csv"
_GROUPS: Final = (ParallelLayout, JobConfig, ModelSpec)


class Recipe(Struct, frozen=True, kw_only=True):
    """One row: gpu_types are those that the source names, precision is as the table spells it,
    shipped_recompute is a SPEC; values: the cells that are not empty, by column, unconverted."""

    name: str
    model: str
    framework: str
    task: str
    num_gpus: int
    gpu_types: tuple[str, ...]
    precision: str
    seq_length: int
    shipped_recompute: str
    source: str
    notes: str
    values: Mapping[str, str]

    @property
    def model_parallel_size(self) -> int:
        """GPUs of one replica of the dense layers: TP x CP x PP."""
        return self._product("tensor_model_parallel_size", "context_parallel_size")

    @property
    def has_experts(self) -> bool:
        """Whether the recipe spreads experts; it then cuts none where the table is silent."""
        return self._product("expert_model_parallel_size") > self._product()

    @property
    def degrees(self) -> str:
        """``TP2 PP8 VPP4 EP64``; degrees of one left out."""
        given = ((name, self.values.get(field, "1")) for name, field in _DEGREES.items())
        return " ".join(f"{name}{degree}" for name, degree in given if degree != "1") or "DP"

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
        experts = self._product("expert_tensor_parallel_size", "expert_model_parallel_size")
        whole = num_gpus % self.model_parallel_size == 0 == num_gpus % experts
        published = self.num_gpus // self.model_parallel_size
        return whole and int(self.values["global_batch_size"]) * replicas % published == 0

    def _product(self, *names: str) -> int:
        return prod(
            int(self.values.get(name, 1)) for name in ("pipeline_model_parallel_size", *names)
        )


def recipe_models(config_dir: Path | None = None) -> tuple[str, ...]:
    """Models that have a table, sorted."""
    found = {
        path.stem
        for folder in config_folders(config_dir)
        for path in (folder / ConfigGroup.RECIPE).glob(f"*{SUFFIX}")
    }
    return tuple(sorted(found))


@lru_cache(maxsize=64)
def load_recipes(model: str, config_dir: Path | None = None) -> tuple[Recipe, ...]:
    """All recipes of a model in the order of its table; none where it has no table. UserError on a
    row without what every recipe must have, or on an unknown column."""
    for folder in config_folders(config_dir):
        path = folder / ConfigGroup.RECIPE / (model + SUFFIX)
        if path.is_file() and path.parent == folder / ConfigGroup.RECIPE:
            break
    else:
        return ()
    columns, rows = read_csv(path)
    known = ABOUT | {name for cls in _GROUPS for name in field_types(cls)}
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
        precision=row["precision"],
        seq_length=int(row["seq_length"]),
        shipped_recompute=row.get("shipped_recompute", ""),
        source=row.get("source", ""),
        notes=row.get("notes", ""),
        values={name: text for name, text in row.items() if text and name not in ABOUT},
    )


OPTIONS: Final = ("main_grads_dtype", "tp_comm_overlap", "cross_entropy_fusion")
"""Options that a recipe of degrees alone leaves to its framework's own."""


class Experiment(Struct, frozen=True, kw_only=True):
    """One published job: what runs, on what, how it is laid out, and who says so.

    model: a model preset; model_options: fields of it that this job sets, as pairs.
    gpus: COUNTxTYPE. layout: complete, data parallelism included. shipped: SPEC of the recompute
    setting that it comes with, where it states one. framework: whose recipe it is, where that is
    known. splits_as_published: False where its PP and VPP do not divide the layers, no table says
    how they are split, and the layout does it evenly. states_options: whether it says anything of
    OPTIONS.
    """

    name: str
    model: str
    gpus: str
    layout: ParallelLayout
    config: JobConfig
    model_options: tuple[tuple[str, Any], ...] = ()
    source: str = ""
    notes: str = ""
    shipped: str = ""
    framework: str | None = None
    splits_as_published: bool = True
    states_options: bool = True

    def configure(self, model: ModelSpec) -> ModelSpec:
        """`model` with the options that this job sets."""
        return replace(model, **dict(self.model_options))


def experiment_names(config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all job presets, sorted."""
    return config_names(ConfigGroup.EXPERIMENT, config_dir)


def load_experiment(name: str, config_dir: Path | None = None) -> Experiment:
    """A job preset by name; UserError with the nearest names where there is none."""
    document = load_config(ConfigGroup.EXPERIMENT, name, config_dir, "experiment")
    return read_experiment(document.name, document.values, str(document.path))


def named_experiment(name: str, config_dir: Path | None = None) -> Experiment:
    """A file of configs/experiment or a row of configs/recipe by its name; UserError with the
    nearest names where there is neither."""
    files = experiment_names(config_dir)
    if name in files:
        return load_experiment(name, config_dir)
    rows = {
        recipe.name: recipe
        for model in recipe_models(config_dir)
        for recipe in load_recipes(model, config_dir)
    }
    if name not in rows:
        raise UserError("recipe", name, "unknown recipe", nearest_names(name, (*files, *rows)))
    return with_split(preset_of(rows[name]), config_dir)


def preset_of(recipe: Recipe, num_gpus: int = 0, gpu_type: str = "") -> Experiment:
    """The recipe as a preset, on its own GPUs or on `num_gpus` with more or fewer replicas."""
    num_gpus, gpu_type = num_gpus or recipe.num_gpus, gpu_type or recipe.gpu_types[0]
    replicas, published = (n // recipe.model_parallel_size for n in (num_gpus, recipe.num_gpus))
    degrees = recipe.fields_of(ParallelLayout)
    degrees.setdefault("expert_tensor_parallel_size", 1 if recipe.has_experts else None)
    layout = ParallelLayout(**degrees, data_parallel_size=replicas)
    config = JobConfig(**recipe.fields_of(JobConfig))
    return Experiment(
        name=recipe.name,
        model=recipe.model,
        gpus=f"{num_gpus}x{gpu_type}",
        layout=layout,
        config=replace(config, global_batch_size=config.global_batch_size * replicas // published),
        model_options=tuple(recipe.fields_of(ModelSpec).items()),
        source=recipe.source,
        notes=recipe.notes,
        shipped=recipe.shipped_recompute,
        framework=framework_of_recipe(recipe.framework),
        states_options=any(name in recipe.values for name in OPTIONS),
    )


def with_split(preset: Experiment, config_dir: Path | None = None) -> Experiment:
    """`preset` with its layers split, where they do not divide and its table does not say how."""
    layout = split_evenly(preset.configure(load_model(preset.model, config_dir)), preset.layout)
    return replace(preset, layout=layout, splits_as_published=layout == preset.layout)


def is_job(preset: Experiment, config_dir: Path | None) -> bool:
    """Whether the preset's layout and batch are legal for its model."""
    num_gpus, gpu_type = parse_gpus(preset.gpus)
    try:
        Job(
            model=preset.configure(load_model(preset.model, config_dir)),
            layout=preset.layout,
            config=preset.config,
            gpu=load_gpu(gpu_type, config_dir),
            num_gpus=num_gpus,
        )
    except UserError:
        return False
    return True


def read_experiment(name: str, values: Mapping[str, object], where: str) -> Experiment:
    """Experiment from the keys of its file: model, gpus, layout, model_options, shipped_recompute,
    source, notes, and the fields of JobConfig; UserError, which begins with `where`."""
    values, keys = dict(values), ("model", "gpus", "source", "notes", "shipped_recompute")
    about = {key: convert(values.pop(key, ""), str, where, key) for key in keys}
    shipped = about.pop("shipped_recompute")
    for key in ("model", "gpus"):
        if not about[key]:
            raise UserError(f"{where}: {key}", "(none)", "is missing")
    layout = _mapping(values.pop("layout", {}), where, "layout")
    options = _mapping(values.pop("model_options", {}), where, "model_options")
    return Experiment(
        name=name,
        **about,
        layout=_layout(layout, parse_gpus(about["gpus"])[0], where),
        config=read_record(JobConfig, values, where),
        model_options=tuple(read_fields(ModelSpec, options, where, "model_options.").items()),
        shipped=shipped,
        states_options=any(name in {**values, **layout, **options} for name in OPTIONS),
    )


def _mapping(value: object, where: str, key: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: {key}", value, "must be a mapping of keys to values")
    return value


def _layout(values: dict[str, object], num_gpus: int, where: str) -> ParallelLayout:
    """Layout of all GPUs: data parallelism is what the other degrees leave."""
    layout = read_record(ParallelLayout, values, where, "layout.")
    if "data_parallel_size" in values:
        return layout
    if num_gpus % layout.world_size:
        ranks = f"TP x CP x PP = {layout.world_size}"
        near = f"nearest: {nearest_divisors(num_gpus, layout.world_size)}"
        raise UserError(f"{where}: layout", ranks, f"must divide {num_gpus} GPUs", near)
    return replace(layout, data_parallel_size=num_gpus // layout.world_size)
