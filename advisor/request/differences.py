"""In what a job differs from what a request makes, field by field: from the job of another
precision, from the degrees of a search's row, and as the line of `harness run` that runs it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError, if_legal
from advisor.base.fields import spelled
from advisor.base.units import parse_gpus
from advisor.frameworks.registry import default_framework, parts_of
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from advisor.request import origin, recipes, resolve
from advisor.request.given import Given, read_given
from advisor.request.layout_fields import DEGREES, SEARCHED, SHAPING
from advisor.request.recipe_choice import GRAPHS
from advisor.request.request import Request, SearchScope


def changes_with_precision(request: Request, resolution: resolve.Resolution) -> tuple[str, ...]:
    """In what the recipe for the 8 or 4 bits that are asked for makes another job than the recipe
    that is taken in 16 bits: ``layout.expert_model_parallel_size 32, not 8 (recipe for bf16, …)``;
    without what a search of layouts sets. Empty where what is given makes no job of that recipe.
    """
    given = read_given(request)
    precision = given.job_fields.get("precision")
    if precision is None or not precision.is_quantized or not resolution.recipe:
        return ()
    usual = resolve.usual_recipe(given)
    if usual is None or usual.name == resolution.recipe:
        return ()
    other = if_legal(resolve.resolve_given, replace(given, recipe=usual))
    if other is None:
        return ()
    aside = SEARCHED if request.search is SearchScope.LAYOUT else _FOLLOWS
    ending = f" (recipe for {usual.config.precision}, {usual.name})"
    return tuple(
        f"{group}.{name} {_said(own, name)}, not {_said(before, name)}{ending}"
        for group, own, before in (
            ("layout", resolution.layout, other.layout),
            ("job", resolution.config, other.config),
            ("model", resolution.model, other.model),
        )
        if own is not None and before is not None
        for name in origin.changed_fields(own, before)
        if name not in aside
    )


_FOLLOWS: Final = frozenset({"data_parallel_size"})
"""What the other degrees leave."""


def _said(record: Struct, name: str) -> str:
    return spelled(getattr(record, name)) or "(empty)"


_ETP: Final = "expert_tensor_parallel_size"


def beside_degrees(request: Request, usual: Job) -> dict[str, Any]:
    """``GROUP.FIELD`` -> value: the degrees of the `usual` job, and what has to be given with them,
    as a recipe for another number of GPUs is left behind where degrees are given, and so are a
    recipe's CUDA graphs. Empty where nothing makes the job."""
    given = read_given(request)
    degrees = {name: getattr(usual.layout, name) for name in (*DEGREES, _ETP)}
    if degrees[_ETP] is None:
        del degrees[_ETP]
    own = replace(given, layout_fields={**degrees, **given.layout_fields})
    made = if_legal(differing, usual, own)
    if made is None:
        return {}
    graphs = [name for name in GRAPHS if getattr(usual.config, name) != GRAPHS[name]]
    found = {f"job.{name}": getattr(usual.config, name) for name in graphs}
    found |= {
        f"{group}.{name}": value
        for group, fields in made.by_group.items()
        for name, value in fields.items()
    }
    said = {f"{group}.{name}" for group, fields in given.by_group.items() for name in fields}
    return {path: value for path, value in found.items() if path not in said}


_ROUNDS: Final = 4
"""What one value implies is settled by the next round."""
_GPUS_OF_A_SERVER: Final = 8
_PLAIN: Final = re.compile(r"(?!(?i:true|false|null|nan|inf)$)[A-Za-z_][\w.:=+-]*")
"""What Hydra's grammar reads as text without quotes."""


class HarnessLines:
    """``harness run recipe=… KEY=VALUE … 'recompute.settings=[…]'``; model: as `--model` takes it,
    recipe: the published one that jobs build on, if any."""

    def __init__(self, model: str, recipe: str = "", config_dir: Path | None = None) -> None:
        self._model, self._config_dir = model, config_dir
        self._recipe = recipes.named_experiment(recipe, config_dir) if recipe else None
        self._spec = load_model(self._recipe.model if self._recipe else model, config_dir)

    def of(self, job: Job, specs: Sequence[str]) -> str:
        """The line of `job`. UserError where none says it."""
        recipe = self._recipe
        given = differing(job, self._bare(job))
        first = f"recipe={recipe.name}" if recipe else f"model={self._model}"
        words = [first, f"gpus={given.gpus}"]
        for group, fields in given.by_group.items():
            words += [f"{group}.{name}={_spelled(value)}" for name, value in fields.items()]
        words.append(f"recompute.settings={_spelled(list(specs))}")
        words += parts_of(job.config.framework).harness.overrides(job)
        if job.num_gpus > _GPUS_OF_A_SERVER:
            words.append("launcher=slurm")
        return " ".join(["harness run", *map(_quoted, words)])

    def _bare(self, job: Job) -> Given:
        """What a line of the recipe or the model alone gives."""
        gpus = f"{job.num_gpus}x{job.gpu.name}"
        base = self._recipe or bare_experiment(self._model, gpus)
        sure = () if self._recipe else ("seq_length", "micro_batch_size", "global_batch_size")
        if (base.framework or default_framework(None)) not in parts_of(job.config.framework).family:
            sure = (*sure, "framework")
        degrees = {name: getattr(job.layout, name) for name in SHAPING if not self._recipe}
        return Given(
            model=self._spec,
            gpus=gpus,
            recipe=base,
            config_dir=self._config_dir,
            job_fields={name: getattr(job.config, name) for name in sure},
            layout_fields={name: degree for name, degree in degrees.items() if degree > 1},
        )


def _quoted(word: str) -> str:
    """A word for a shell; in double quotes where single ones are Hydra's."""
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else quote(word)


def bare_experiment(model: str, gpus: str) -> recipes.Experiment:
    """A job that says nothing but its model and GPUs, all of them data-parallel: what a line gives
    stands over it."""
    batch = {"seq_length": 4096, "micro_batch_size": 1, "global_batch_size": parse_gpus(gpus)[0]}
    return recipes.read_experiment("", {"model": model, "gpus": gpus, **batch}, f"model={model}")


def differing(job: Job, given: Given) -> Given:
    """`given`, which has a layout, with what makes it `job`. UserError where nothing does."""
    for _ in range(_ROUNDS):
        resolved = resolve.resolve_given(given)
        assert resolved.layout is not None, "a recipe has a layout"
        made = resolved.job(resolved.layout)
        more = {
            "model_fields": _fields(made.model, job.model),
            "layout_fields": _layout_fields(made.layout, job.layout),
            "job_fields": _fields(made.config, job.config),
        }
        if not any(more.values()):
            return given
        both = {name: {**getattr(given, name), **of} for name, of in more.items()}
        given = replace(given, **both)
    raise UserError("no harness command", None, "harness run cannot express this job")


def _fields(made: Struct, wanted: Struct) -> Mapping[str, Any]:
    return {name: getattr(wanted, name) for name in origin.changed_fields(made, wanted)}


def _layout_fields(made: ParallelLayout, wanted: ParallelLayout) -> Mapping[str, Any]:
    """A split as text goes with its VPP, which another PP would reset."""
    found = dict(_fields(made, wanted))
    if "pipeline_model_parallel_layout" in found:
        found["virtual_pipeline_model_parallel_size"] = wanted.virtual_pipeline_model_parallel_size
    return found


def _spelled(value: object) -> str:
    """In the grammar that `harness run` reads."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_spelled, value))}]"
    if isinstance(value, Struct):
        said = _fields(type(value)(), value).items()
        return f"{{{','.join(f'{name}:{_spelled(one)}' for name, one in said)}}}"
    plain = not isinstance(value, str) or _PLAIN.fullmatch(value)
    return str(value) if plain else "'" + str(value).replace("'", "\\'") + "'"
