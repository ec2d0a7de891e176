"""Job presets: known, published layouts of a model on a number of GPUs.

A preset is a file of configs/experiment or a row of the model's table in configs/recipe. A file is
called MODEL_COUNTxGPU, e.g. ``llama3_70b_32xh100``; with ``_PRECISION`` behind it, it is the one
for that precision. So the preset of a job is found by listing one folder and reading one table.
"""

import re
from collections.abc import Iterator, Mapping
from math import log2
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.configuration import (
    Document,
    Group,
    config_names,
    find_config,
    load_config,
    load_yaml,
)
from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.fields import convert, read_fields, read_record
from advisor.base.units import nearest_divisors, nearest_names, parse_gpus
from advisor.frameworks.registry import RECIPE_FRAMEWORKS, framework_of_recipe
from advisor.hardware.catalogue import full_name, gpu_names, load_gpu, resolve_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.plan.split import split_evenly
from advisor.request.recipes import Recipe, load_recipes, recipe_models

_NAME = re.compile(r"(?P<model>.+)_(?P<gpus>\d+x[a-z0-9-]+)(_(?P<precision>[a-z0-9_]+))?")


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
    return config_names(Group.EXPERIMENT, config_dir)


def load_experiment(name: str, config_dir: Path | None = None) -> Experiment:
    """A job preset by name; UserError with the nearest names where there is none."""
    return _read(load_config(Group.EXPERIMENT, name, config_dir, "experiment"))


class Wanted(Struct, frozen=True, kw_only=True):
    """What a recipe is looked for by; None where the request does not say.

    model, gpu_type: names. num_gpus: of the whole job.
    """

    model: str
    num_gpus: int
    gpu_type: str
    precision: Precision | None = None
    framework: str | None = None
    seq_length: int | None = None
    config_dir: Path | None = None


def find_experiment(wanted: Wanted, *, complete: bool = False) -> Experiment | None:
    """The preset of a model on so many GPUs of a type; None where there is none.

    With a precision the preset for it comes first, a file or a row that pretrains, then the file
    that names none. Files come before tables; of a table's rows, those of the sequence length and
    precision that are asked for, of the framework that is named, pretraining, and the frameworks in
    the order of RECIPE_FRAMEWORKS. A recipe for long context is for that context only.
    complete: passes over rows that make no job as they stand.
    """
    rows = [recipe for recipe in _rows_on(wanted) if recipe.num_gpus == wanted.num_gpus]
    rows.sort(key=lambda recipe: _preference(recipe, wanted))
    files = _files_of(wanted)
    name = files.get(wanted.precision) or (
        None if any(_is_meant(recipe, wanted) for recipe in rows) else files.get(None)
    )
    if name is not None and (path := find_config(Group.EXPERIMENT, name, wanted.config_dir)):
        return _read(load_yaml(path))
    presets = (_on_these_gpus(recipe, wanted) for recipe in rows)
    return next((p for p in presets if not complete or _is_job(p, wanted.config_dir)), None)


def nearest_experiment(wanted: Wanted) -> Experiment | None:
    """The recipe for the same GPUs in the nearest number, with as many replicas as these hold.

    The global batch grows and shrinks with the replicas, so that each does what it did. None where
    no recipe's replicas fill the GPUs, or none makes a job.
    """
    rows = [recipe for recipe in _rows_on(wanted) if recipe.runs_on(wanted.num_gpus)]
    rows.sort(key=lambda recipe: (_distance(recipe, wanted), *_preference(recipe, wanted)))
    presets = (_on_these_gpus(recipe, wanted) for recipe in rows)
    return next((preset for preset in presets if _is_job(preset, wanted.config_dir)), None)


def experiments_on(wanted: Wanted) -> Iterator[Experiment]:
    """Every recipe for these GPUs, in so many of them or in another number whose replicas fill
    them, that makes a job."""
    for name in _files_of(wanted).values():
        if path := find_config(Group.EXPERIMENT, name, wanted.config_dir):
            yield _read(load_yaml(path))
    for recipe in _rows_on(wanted):
        if recipe.runs_on(wanted.num_gpus):
            preset = _on_these_gpus(recipe, wanted)
            if _is_job(preset, wanted.config_dir):
                yield preset


def nearest_recipe(wanted: Wanted) -> Recipe | None:
    """The recipe for the same GPUs in the nearest number, whether it runs on these or not."""
    return min(
        _rows_on(wanted),
        key=lambda recipe: (_distance(recipe, wanted), *_preference(recipe, wanted)),
        default=None,
    )


def nearest_stating(wanted: Wanted) -> Recipe | None:
    """The framework's recipe of the model that states one of OPTIONS: those for the same GPUs
    first, then those for the nearest number."""
    gpu = resolve_gpu(wanted.gpu_type, wanted.config_dir)

    def rank(recipe: Recipe) -> tuple[bool, float, tuple[bool, bool, bool, bool, int]]:
        same = any(_is_gpu(kind, gpu, wanted.config_dir) for kind in recipe.gpu_types)
        return not same, _distance(recipe, wanted), _preference(recipe, wanted)

    stating = (
        recipe
        for recipe in load_recipes(wanted.model, wanted.config_dir)
        if framework_of_recipe(recipe.framework) == wanted.framework
        and any(name in recipe.values for name in OPTIONS)
    )
    return min(stating, key=rank, default=None)


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


def _distance(recipe: Recipe, wanted: Wanted) -> float:
    """Doublings between a recipe's number of GPUs and the one asked for."""
    return abs(log2(recipe.num_gpus / wanted.num_gpus))


def _on_these_gpus(recipe: Recipe, wanted: Wanted) -> Experiment:
    return with_split(preset_of(recipe, wanted.num_gpus, wanted.gpu_type), wanted.config_dir)


_LONG_CONTEXT = 8193
"""Tokens from which a recipe is one for long context."""


def _files_of(wanted: Wanted) -> dict[str | None, str]:
    """The files of configs/experiment for a job, by the precision that each names."""
    gpu = resolve_gpu(wanted.gpu_type, wanted.config_dir)
    found: dict[str | None, str] = {}
    for name in experiment_names(wanted.config_dir):
        match = _NAME.fullmatch(name)
        if match is None or match["model"] != wanted.model:
            continue
        count, kind = parse_gpus(match["gpus"])
        if count == wanted.num_gpus and _is_gpu(kind, gpu, wanted.config_dir):
            found[match["precision"]] = name
    return found


def _is_meant(recipe: Recipe, wanted: Wanted) -> bool:
    """Whether the recipe pretrains in the 8 or 4 bits that are asked for, in this framework."""
    precision, asked = recipe.precision, wanted.precision
    return (
        recipe.task == "pretrain"
        and precision == asked
        and precision not in (Precision.BF16, Precision.FP16)
        and wanted.framework in (None, framework_of_recipe(recipe.framework))
        and wanted.seq_length in (None, recipe.seq_length)
    )


def _rows_on(wanted: Wanted) -> Iterator[Recipe]:
    """Recipes of a model for a type of GPU, in the precision that is asked for or in 16 bits."""
    gpu = resolve_gpu(wanted.gpu_type, wanted.config_dir)
    precisions = (wanted.precision, Precision.BF16, Precision.FP16)
    for recipe in load_recipes(wanted.model, wanted.config_dir):
        named = any(_is_gpu(kind, gpu, wanted.config_dir) for kind in recipe.gpu_types)
        usual = recipe.seq_length < _LONG_CONTEXT or recipe.seq_length == wanted.seq_length
        if named and usual and recipe.precision in precisions:
            yield recipe


def _preference(recipe: Recipe, wanted: Wanted) -> tuple[bool, bool, bool, bool, int]:
    """Smallest for the recipe that says most about the job."""
    framework, names = framework_of_recipe(recipe.framework), tuple(RECIPE_FRAMEWORKS)
    return (
        wanted.seq_length not in (None, recipe.seq_length),
        recipe.precision != (wanted.precision or Precision.BF16),
        wanted.framework not in (None, framework),
        recipe.task != "pretrain",
        names.index(recipe.framework) if recipe.framework in names else 0,
    )


def preset_of(recipe: Recipe, num_gpus: int = 0, gpu_type: str = "") -> Experiment:
    """The recipe as a preset, on its own GPUs or on `num_gpus` with more or fewer replicas."""
    num_gpus, gpu_type = num_gpus or recipe.num_gpus, gpu_type or recipe.gpu_types[0]
    replicas, published = (n // recipe.model_parallel_size for n in (num_gpus, recipe.num_gpus))
    degrees = recipe.fields_of(ParallelLayout)
    degrees.setdefault("expert_tensor_parallel_size", 1 if recipe.has_experts else None)
    layout = ParallelLayout(**degrees, data_parallel_size=replicas)
    config = JobConfig(**recipe.fields_of(JobConfig))
    options = recipe.fields_of(ModelSpec)
    return Experiment(
        name=recipe.name,
        model=recipe.model,
        gpus=f"{num_gpus}x{gpu_type}",
        layout=layout,
        config=replace(config, global_batch_size=config.global_batch_size * replicas // published),
        model_options=tuple(options.items()),
        source=recipe.source,
        notes=recipe.notes,
        shipped=recipe.shipped_recompute,
        framework=framework_of_recipe(recipe.framework),
        states_options=any(name in recipe.values for name in OPTIONS),
    )


def with_split(preset: Experiment, config_dir: Path | None = None) -> Experiment:
    """`preset` with its layers split, where they do not divide and its table does not say how."""
    model = preset.configure(load_model(preset.model, config_dir))
    layout = split_evenly(model, preset.layout)
    return replace(preset, layout=layout, splits_as_published=layout == preset.layout)


def _is_job(preset: Experiment, config_dir: Path | None) -> bool:
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


def _is_gpu(kind: str, wanted: str, config_dir: Path | None) -> bool:
    return full_name(kind, gpu_names(config_dir)) == wanted


def _read(document: Document) -> Experiment:
    return read_experiment(document.name, document.values, str(document.path))


def read_experiment(name: str, values: Mapping[str, object], where: str) -> Experiment:
    """Experiment from the keys of its file: model, gpus, layout, model_options, shipped_recompute,
    source, notes, and the fields of JobConfig; UserError, which begins with `where`."""
    values = dict(values)
    about = {key: convert(values.pop(key, ""), str, where, key) for key in _ABOUT}
    shipped = convert(values.pop("shipped_recompute", ""), str, where, "shipped_recompute")
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
        raise UserError(
            f"{where}: layout",
            f"TP x CP x PP = {layout.world_size}",
            f"must divide {num_gpus} GPUs",
            f"nearest: {nearest_divisors(num_gpus, layout.world_size)}",
        )
    return replace(layout, data_parallel_size=num_gpus // layout.world_size)


_ABOUT = ("model", "gpus", "source", "notes")
