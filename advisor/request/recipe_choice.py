"""Published recipes for a job, the one that says most about it first; which one it builds on; and
what a recipe lends that is not for the job as it stands."""

import re
from collections.abc import Callable, Iterator, Mapping
from math import log2
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.units import parse_gpus
from advisor.frameworks import registry
from advisor.frameworks.framework_parts import JobSupport
from advisor.hardware.catalogue import full_name, gpu_names, load_gpu
from advisor.job.job import CudaGraphImpl, JobConfig, Optimizer
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.request import recipes
from advisor.request.given import Given
from advisor.request.layout_fields import LONG_CONTEXT, open_degrees
from advisor.request.origin import Origin, OriginKind
from advisor.request.origin import recipe as of_recipe
from advisor.request.recipes import OPTIONS, Experiment, Recipe, is_job, load_recipes

DEFAULT_SEQ_LENGTH: Final = 4096
_NAME = re.compile(r"(?P<model>.+)_(?P<gpus>\d+x[a-z0-9-]+)(_(?P<precision>[a-z0-9_]+))?")


class Wanted(Struct, frozen=True, kw_only=True):
    """What a recipe is looked for by; None where the request does not say. gpu_type: a name."""

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
        return recipes.load_experiment(name, wanted.config_dir)
    presets = (_on_these_gpus(recipe, wanted) for recipe in rows)
    return next((p for p in presets if not complete or is_job(p, wanted.config_dir)), None)


def nearest_experiment(wanted: Wanted) -> Experiment | None:
    """The recipe for the same GPUs in the nearest number, with as many replicas as these hold, each
    with its batch. None where no recipe's replicas fill the GPUs, or none makes a job."""
    rows = [recipe for recipe in _rows_on(wanted) if recipe.runs_on(wanted.num_gpus)]
    rows.sort(key=lambda recipe: _nearness(recipe, wanted))
    presets = (_on_these_gpus(recipe, wanted) for recipe in rows)
    return next((preset for preset in presets if is_job(preset, wanted.config_dir)), None)


def experiments_on(wanted: Wanted) -> Iterator[Experiment]:
    """Every recipe for these GPUs, in so many of them or in another number whose replicas fill
    them, that makes a job."""
    for name in _files_of(wanted).values():
        yield recipes.load_experiment(name, wanted.config_dir)
    for recipe in _rows_on(wanted):
        if recipe.runs_on(wanted.num_gpus):
            preset = _on_these_gpus(recipe, wanted)
            if is_job(preset, wanted.config_dir):
                yield preset


def layouts_elsewhere(wanted: Wanted) -> Iterator[tuple[ParallelLayout, int]]:
    """Layout and micro batch of every recipe of the model, for whatever GPUs and precision, whose
    replicas fill these."""
    for recipe in load_recipes(wanted.model, wanted.config_dir):
        if recipe.runs_on(wanted.num_gpus):
            preset = _on_these_gpus(recipe, wanted)
            yield preset.layout, preset.config.micro_batch_size


def nearest_stating(wanted: Wanted) -> Recipe | None:
    """The framework's recipe of the model that states one of OPTIONS: those for the same GPUs
    first, then those for the nearest number."""
    is_wanted = _gpu_test(wanted)
    return min(
        (
            recipe
            for recipe in load_recipes(wanted.model, wanted.config_dir)
            if registry.framework_of_recipe(recipe.framework) == wanted.framework
            and any(name in recipe.values for name in OPTIONS)
        ),
        key=lambda recipe: (not any(map(is_wanted, recipe.gpu_types)), *_nearness(recipe, wanted)),
        default=None,
    )


def _nearness(recipe: Recipe, wanted: Wanted) -> tuple[float, bool, bool, bool, bool, int]:
    """Smallest for the recipe whose number of GPUs is the fewest doublings from the one asked for,
    and of those that says most about the job."""
    return (abs(log2(recipe.num_gpus / wanted.num_gpus)), *_preference(recipe, wanted))


def _gpu_test(wanted: Wanted) -> Callable[[str], bool]:
    """Whether a type of GPU is the one that is asked for, or the one that has the same chip."""
    names = gpu_names(wanted.config_dir)
    gpu = load_gpu(wanted.gpu_type, wanted.config_dir)
    return lambda kind: full_name(kind, names) in (gpu.name, gpu.same_chip_as or gpu.name)


def _on_these_gpus(recipe: Recipe, wanted: Wanted) -> Experiment:
    return recipes.with_split(
        recipes.preset_of(recipe, wanted.num_gpus, wanted.gpu_type), wanted.config_dir
    )


_LONG_CONTEXT = 8193
"""Tokens from which a recipe is one for long context."""


def _files_of(wanted: Wanted) -> dict[str | None, str]:
    """The files of configs/experiment for a job, by the precision that each names."""
    is_wanted = _gpu_test(wanted)
    found: dict[str | None, str] = {}
    for name in recipes.experiment_names(wanted.config_dir):
        match = _NAME.fullmatch(name)
        if match is None or match["model"] != wanted.model:
            continue
        count, kind = parse_gpus(match["gpus"])
        if count == wanted.num_gpus and is_wanted(kind):
            found[match["precision"]] = name
    return found


def _is_meant(recipe: Recipe, wanted: Wanted) -> bool:
    """Whether the recipe pretrains in the 8 or 4 bits that are asked for, in this framework."""
    precision, asked = recipe.precision, wanted.precision
    return (
        recipe.task == "pretrain"
        and precision == asked
        and precision not in (Precision.BF16, Precision.FP16)
        and wanted.framework in (None, registry.framework_of_recipe(recipe.framework))
        and wanted.seq_length in (None, recipe.seq_length)
    )


def _rows_on(wanted: Wanted) -> Iterator[Recipe]:
    """Recipes of a model for a type of GPU, in the precision that is asked for or in 16 bits."""
    is_wanted = _gpu_test(wanted)
    precisions = (wanted.precision, Precision.BF16, Precision.FP16)
    for recipe in load_recipes(wanted.model, wanted.config_dir):
        named = any(map(is_wanted, recipe.gpu_types))
        usual = recipe.seq_length < _LONG_CONTEXT or recipe.seq_length == wanted.seq_length
        if named and usual and recipe.precision in precisions:
            yield recipe


def _preference(recipe: Recipe, wanted: Wanted) -> tuple[bool, bool, bool, bool, int]:
    """Smallest for the recipe that says most about the job."""
    framework = registry.framework_of_recipe(recipe.framework)
    names = tuple(registry.RECIPE_FRAMEWORKS)
    return (
        wanted.seq_length not in (None, recipe.seq_length),
        recipe.precision != (wanted.precision or Precision.BF16),
        wanted.framework not in (None, framework),
        recipe.task != "pretrain",
        names.index(recipe.framework) if recipe.framework in names else 0,
    )


class LentOptions(Struct, frozen=True, kw_only=True):
    """Fields of the three parts of a job, and whose they are."""

    origin: Origin
    layout: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)


class RecipeChoice(Struct, frozen=True, kw_only=True):
    """The recipe that was chosen, or none, and the framework that runs the job.

    as_it_stands: the recipe, where the framework runs it so; else only its batch is taken.
    left_open: degrees that neither the request nor a recipe for so many GPUs says. borrowed: the
    recipe is for another number of GPUs. optimizer: the nearest recipe's, where none is built on.
    lent: what else the framework's recipes set there, or where the recipe says degrees alone.
    left_out: what is refused next to what is given: ``GROUP.FIELD`` -> value without the recipe.
    differs: in what the recipe is not the one for this job, in a line each.
    without_graphs: those of the recipe, as fields of JobConfig, where they are left out: they hold
    memory of their own from their capture on, and are the user's to ask for.
    """

    framework: str = ""
    preset: Experiment | None = None
    as_it_stands: Experiment | None = None
    left_open: tuple[str, ...] = ()
    borrowed: bool = False
    optimizer: Optimizer | None = None
    lent: LentOptions | None = None
    left_out: Mapping[str, Any] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    without_graphs: Mapping[str, Any] = field(default_factory=dict)


def choose_recipe(given: Given, wanted: Wanted, model: ModelSpec, framework: str) -> RecipeChoice:
    """The recipe for the job, or for its GPUs in another number; where there is none, or it says
    degrees alone, what the recipes of `framework` have in common."""
    its, runs = registry.parts_of(framework), registry.runs_recipes(framework)
    choice = _chosen(given, wanted, model, runs=runs)
    preset, lent = choice.preset, None
    if preset is None or (runs and not preset.states_options):
        if given.takes_recipe:
            precision = wanted.precision or (preset.config.precision if preset else None)
            own = replace(wanted, framework=framework, precision=precision)
            lent = lent_options(given, own, model, its.jobs)
    elif runs and wanted.precision not in (None, preset.config.precision):
        frameworks = (framework,) if wanted.framework else its.shown
        lent = _in_another_precision(given, wanted.precision, model, frameworks)
    return replace(
        choice,
        framework=_framework(given, wanted, preset, framework),
        as_it_stands=preset if runs else None,
        lent=lent,
    )


def _framework(given: Given, wanted: Wanted, preset: Experiment | None, usual: str) -> str:
    """Where no framework is named, a recipe may say which one of a family it is, except for one
    that lacks an option that is given."""
    if wanted.framework is not None or preset is None:
        return usual
    its = registry.parts_of(usual).jobs.for_recipe(preset.framework)
    try:
        config = replace(preset.config, **{**given.job_fields, "framework": its})
        registry.parts_of(its).jobs.check_options(config)
    except UserError:
        return usual
    return its


def _chosen(given: Given, wanted: Wanted, model: ModelSpec, *, runs: bool) -> RecipeChoice:
    if given.recipe is not None:
        return _choice_of(given.recipe, given, wanted)
    if not given.takes_recipe:
        return RecipeChoice()
    layout_fields = dict(given.layout_fields)
    preset = find_experiment(wanted, complete=not layout_fields)
    if preset is not None and runs and (wanted.seq_length or 0) >= LONG_CONTEXT:
        preset = _for_context(wanted, preset)
    if preset is not None or not runs:
        return _choice_of(preset, given, wanted)
    left_open = open_degrees(layout_fields, model, wanted.seq_length or DEFAULT_SEQ_LENGTH)
    nearest = nearest_experiment(wanted) if left_open else None
    if nearest is None:  # of the nearest recipe, whether it runs on these GPUs or not
        return RecipeChoice(left_open=left_open, optimizer=_optimizer_near(wanted))
    return replace(_choice_of(nearest, given, wanted), left_open=left_open, borrowed=True)


def _optimizer_near(wanted: Wanted) -> Any:
    """That of the nearest recipe on these GPUs; None where it says none."""
    row = min(_rows_on(wanted), key=lambda one: _nearness(one, wanted), default=None)
    return row.fields_of(JobConfig).get("optimizer") if row else None


def _for_context(wanted: Wanted, preset: Experiment) -> Experiment:
    """A recipe for the sequence length that is asked for, on any number of these GPUs, where
    `preset` is for short sequences and there is one; else `preset`."""
    if log2((wanted.seq_length or 0) / preset.config.seq_length) < _FAR:
        return preset
    other = nearest_experiment(wanted)
    return other if other and other.config.seq_length == wanted.seq_length else preset


_FAR: Final = 2.0
"""Doublings of the sequence from which another recipe's layout is no guide (a judgement)."""


def _choice_of(preset: Experiment | None, given: Given, wanted: Wanted) -> RecipeChoice:
    """A choice with the recipe, and what sets it apart; its states are sharded where Adam is given
    in place of an optimizer of whole tensors. A job that is not the recipe's own has no CUDA graphs
    that nobody asks for."""
    if preset is None:
        return RecipeChoice()
    optimizer, graphs = given.job_fields.get("optimizer"), dict[str, Any]()
    asked = given.recipe is not None or not given.job_fields.keys().isdisjoint(GRAPHS)
    if not asked and not _is_shipped(preset, given, wanted):
        if preset.config.cuda_graph_impl is not CudaGraphImpl.NONE:
            graphs = {name: getattr(preset.config, name) for name in GRAPHS}
        preset = replace(preset, config=replace(preset.config, **GRAPHS))
    if optimizer and preset.config.optimizer.is_muon and not optimizer.is_muon:
        sharded = replace(preset.layout, use_distributed_optimizer=True)
        preset = replace(preset, layout=sharded)
    differs = tuple(_differences(preset, wanted))
    return RecipeChoice(preset=preset, differs=differs, without_graphs=graphs)


def _is_shipped(preset: Experiment, given: Given, wanted: Wanted) -> bool:
    """Whether the job is the recipe's own: on as many GPUs, and with no other value given."""
    own = {**asdict(preset.layout), **asdict(preset.config), **dict(preset.model_options)}
    said = {**given.layout_fields, **given.job_fields, **given.model_fields}
    same = all(own.get(name) == said[name] for name in said.keys() - _OF_NO_JOB)
    return same and preset.layout.world_size == wanted.num_gpus


_OF_NO_JOB: Final = frozenset(
    {"framework", "framework_version", "memory_budget_bytes", "certainty", "moe_load_imbalance"}
)
"""Options of JobConfig that leave a recipe's job what it is."""
GRAPHS: Final[dict[str, Any]] = {"cuda_graph_impl": CudaGraphImpl.NONE, "cuda_graph_modules": ()}
"""Options of JobConfig, where nothing is captured."""


def _differences(preset: Experiment, wanted: Wanted) -> Iterator[str]:
    """In what a recipe is for another job than the one that is asked for."""
    config = preset.config
    if wanted.precision not in (None, config.precision):
        yield f"recipe {preset.name} is for {config.precision}, not {wanted.precision}"
    if wanted.seq_length not in (None, config.seq_length):
        yield f"recipe {preset.name} is for {config.seq_length} tokens, not {wanted.seq_length}"
    if preset.framework and wanted.framework not in (None, preset.framework):
        yield f"recipe {preset.name} is {preset.framework}'s, not {wanted.framework}'s"


_GATHER: Final = "fp8_param_gather"
_PARTS: Final[tuple[type[Struct], ...]] = (ParallelLayout, JobConfig, ModelSpec)


def lent_options(
    given: Given, wanted: Wanted, model: ModelSpec, jobs: JobSupport
) -> LentOptions | None:
    """What the framework's own recipes have, under what the nearest one of the model states; None
    where a job starts from no recipe. Nothing that is given, and no overlap of TP without TP and
    sequence parallelism."""
    precision = wanted.precision or Precision.BF16
    release = jobs.version(given.job_fields.get("framework_version", ""), model)
    own = jobs.recipe_options(model, precision, release)
    if own is None:
        return None
    nearest = nearest_stating(wanted)
    values = {**own, **(_stated(nearest, precision) if nearest else {})}
    given_layout = given.layout_fields
    tp = given_layout.get("tensor_model_parallel_size", 2)
    if tp <= 1 or given_layout.get("sequence_parallel") is False:
        values.pop("tp_comm_overlap", None)
    of_all = Origin(OriginKind.DEFAULT, f"the recipes of {wanted.framework} {release}")
    return LentOptions(
        origin=of_recipe(nearest.name) if nearest else of_all,
        layout=_left(values, ParallelLayout, given.layout_fields),
        job=_left(values, JobConfig, given.job_fields),
        model=_left(values, ModelSpec, given.model_fields),
    )


def _in_another_precision(
    given: Given, precision: Precision, model: ModelSpec, frameworks: tuple[str, ...]
) -> LentOptions | None:
    """Whether linear layers keep their weights in 8 bits alone, where a recipe is for another
    precision than is asked for: as the recipes of the first of `frameworks` that has any."""
    for name in frameworks:
        jobs = registry.parts_of(name).jobs
        release = jobs.version("", model)
        own = jobs.recipe_options(model, precision, release)
        if own is not None and _GATHER in own and _GATHER not in given.job_fields:
            origin = Origin(OriginKind.DEFAULT, f"the recipes of {name} {release}")
            return LentOptions(origin=origin, job={_GATHER: own[_GATHER]})
    return None


def _stated(nearest: Recipe, precision: Precision) -> dict[str, Any]:
    """The recipe's values of these fields; parameters in 8 bits where it is in this precision."""
    names = (*OPTIONS, _GATHER) if nearest.precision == precision else OPTIONS
    found = {name: value for part in _PARTS for name, value in nearest.fields_of(part).items()}
    return {name: found[name] for name in names if name in found}


def _left(
    values: Mapping[str, Any], part: type[Struct], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Those that are fields of `part` and not given."""
    names = part.__struct_fields__
    return {name: value for name, value in values.items() if name in names and name not in given}
