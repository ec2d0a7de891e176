"""What a framework's recipes set in a job that none of them is for, or one that says degrees alone:
how gradients are reduced, the loss, the overlap of tensor parallel communication, parameters in 8
bits."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from advisor.base.dtypes import Precision
from advisor.frameworks.protocols import FrameworkAdapter
from advisor.frameworks.registry import adapter_of
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.request.experiments import OPTIONS, Wanted, nearest_stating
from advisor.request.given import Given
from advisor.request.origin import Origin, OriginKind, recipe
from advisor.request.recipes import Recipe

_OVERLAP: Final = "tp_comm_overlap"
_GATHER: Final = "fp8_param_gather"
_PARTS: Final[tuple[type[Struct], ...]] = (ParallelLayout, JobConfig, ModelSpec)


class LentOptions(Struct, frozen=True, kw_only=True):
    """Fields of the three parts of a job, and whose they are."""

    origin: Origin
    layout: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)


def lent_options(
    given: Given, wanted: Wanted, model: ModelSpec, adapter: FrameworkAdapter
) -> LentOptions | None:
    """What the framework's own recipes have, under what the nearest one of the model states; None
    where a job starts from no recipe. Nothing that is given, and no overlap without TP."""
    precision = wanted.precision or Precision.BF16
    release = adapter.version(given.job_fields.get("framework_version", ""), model)
    own = adapter.recipe_options(model, precision, release)
    if own is None:
        return None
    nearest = nearest_stating(wanted)
    values = {**own, **(_stated(nearest, precision) if nearest else {})}
    if not _may_overlap(given):
        values.pop(_OVERLAP, None)
    of_all = Origin(OriginKind.DEFAULT, f"the recipes of {wanted.framework} {release}")
    return LentOptions(
        origin=recipe(nearest.name) if nearest else of_all,
        layout=_left(values, ParallelLayout, given.layout_fields),
        job=_left(values, JobConfig, given.job_fields),
        model=_left(values, ModelSpec, given.model_fields),
    )


def in_another_precision(
    given: Given, precision: Precision, model: ModelSpec, frameworks: tuple[str, ...]
) -> LentOptions | None:
    """Whether linear layers keep their weights in 8 bits alone, where a recipe is for another
    precision than is asked for: as the recipes of the first of `frameworks` that has any."""
    for name in frameworks:
        adapter = adapter_of(name)
        release = adapter.version("", model)
        own = adapter.recipe_options(model, precision, release)
        if own is not None and _GATHER in own and _GATHER not in given.job_fields:
            origin = Origin(OriginKind.DEFAULT, f"the recipes of {name} {release}")
            return LentOptions(origin=origin, job={_GATHER: own[_GATHER]})
    return None


def _stated(nearest: Recipe, precision: Precision) -> dict[str, Any]:
    """The recipe's values of these fields; parameters in 8 bits where it is in this precision."""
    names = (*OPTIONS, _GATHER) if nearest.precision == precision else OPTIONS
    found = {name: value for part in _PARTS for name, value in nearest.fields_of(part).items()}
    return {name: found[name] for name in names if name in found}


def _may_overlap(given: Given) -> bool:
    """It needs TP and sequence parallelism."""
    layout = given.layout_fields
    tp = layout.get("tensor_model_parallel_size", 2)
    return tp > 1 and layout.get("sequence_parallel") is not False


def _left(
    values: Mapping[str, Any], part: type[Struct], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Those that are fields of `part` and not given."""
    names = part.__struct_fields__
    return {name: value for name, value in values.items() if name in names and name not in given}
