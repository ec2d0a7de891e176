"""Published recipes for a job: by model, GPU, number of GPUs, precision, framework and sequence
length, the one that says most about it first."""

import re
from collections.abc import Iterator
from math import log2
from pathlib import Path

from msgspec import Struct

from advisor.base.dtypes import Precision
from advisor.base.units import parse_gpus
from advisor.frameworks.registry import RECIPE_FRAMEWORKS, framework_of_recipe
from advisor.hardware.catalogue import full_name, gpu_names, resolve_gpu
from advisor.request.recipes import (
    OPTIONS,
    Experiment,
    Recipe,
    experiment_names,
    is_job,
    load_experiment,
    load_recipes,
    preset_of,
    with_split,
)

_NAME = re.compile(r"(?P<model>.+)_(?P<gpus>\d+x[a-z0-9-]+)(_(?P<precision>[a-z0-9_]+))?")


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
    if name is not None:
        return load_experiment(name, wanted.config_dir)
    presets = (_on_these_gpus(recipe, wanted) for recipe in rows)
    return next((p for p in presets if not complete or is_job(p, wanted.config_dir)), None)


def nearest_experiment(wanted: Wanted) -> Experiment | None:
    """The recipe for the same GPUs in the nearest number, with as many replicas as these hold.

    The global batch grows and shrinks with the replicas, so that each does what it did. None where
    no recipe's replicas fill the GPUs, or none makes a job.
    """
    rows = [recipe for recipe in _rows_on(wanted) if recipe.runs_on(wanted.num_gpus)]
    rows.sort(key=lambda recipe: (_distance(recipe, wanted), *_preference(recipe, wanted)))
    presets = (_on_these_gpus(recipe, wanted) for recipe in rows)
    return next((preset for preset in presets if is_job(preset, wanted.config_dir)), None)


def experiments_on(wanted: Wanted) -> Iterator[Experiment]:
    """Every recipe for these GPUs, in so many of them or in another number whose replicas fill
    them, that makes a job."""
    for name in _files_of(wanted).values():
        yield load_experiment(name, wanted.config_dir)
    for recipe in _rows_on(wanted):
        if recipe.runs_on(wanted.num_gpus):
            preset = _on_these_gpus(recipe, wanted)
            if is_job(preset, wanted.config_dir):
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
    names = gpu_names(wanted.config_dir)
    gpu = resolve_gpu(wanted.gpu_type, wanted.config_dir)

    def rank(recipe: Recipe) -> tuple[bool, float, tuple[bool, bool, bool, bool, int]]:
        same = any(full_name(kind, names) == gpu for kind in recipe.gpu_types)
        return not same, _distance(recipe, wanted), _preference(recipe, wanted)

    stating = (
        recipe
        for recipe in load_recipes(wanted.model, wanted.config_dir)
        if framework_of_recipe(recipe.framework) == wanted.framework
        and any(name in recipe.values for name in OPTIONS)
    )
    return min(stating, key=rank, default=None)


def _distance(recipe: Recipe, wanted: Wanted) -> float:
    """Doublings between a recipe's number of GPUs and the one asked for."""
    return abs(log2(recipe.num_gpus / wanted.num_gpus))


def _on_these_gpus(recipe: Recipe, wanted: Wanted) -> Experiment:
    return with_split(preset_of(recipe, wanted.num_gpus, wanted.gpu_type), wanted.config_dir)


_LONG_CONTEXT = 8193
"""Tokens from which a recipe is one for long context."""


def _files_of(wanted: Wanted) -> dict[str | None, str]:
    """The files of configs/experiment for a job, by the precision that each names."""
    names = gpu_names(wanted.config_dir)
    gpu = resolve_gpu(wanted.gpu_type, wanted.config_dir)
    found: dict[str | None, str] = {}
    for name in experiment_names(wanted.config_dir):
        match = _NAME.fullmatch(name)
        if match is None or match["model"] != wanted.model:
            continue
        count, kind = parse_gpus(match["gpus"])
        if count == wanted.num_gpus and full_name(kind, names) == gpu:
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
    names = gpu_names(wanted.config_dir)
    gpu = resolve_gpu(wanted.gpu_type, wanted.config_dir)
    precisions = (wanted.precision, Precision.BF16, Precision.FP16)
    for recipe in load_recipes(wanted.model, wanted.config_dir):
        named = any(full_name(kind, names) == gpu for kind in recipe.gpu_types)
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
