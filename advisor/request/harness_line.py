"""The line of `harness run` that runs settings of a job: its recipe, or its model, and in what the
job differs from what these alone would make."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Any, Final

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.units import parse_gpus
from advisor.frameworks.registry import adapter_of, default_framework
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.request.experiments import Experiment, named_experiment, read_experiment
from advisor.request.given import Given
from advisor.request.origin import changed_fields
from advisor.request.resolve import resolve_given

_ROUNDS: Final = 4
"""What one value implies is settled by the next round."""
_GPUS_OF_A_SERVER: Final = 8
_PLAIN: Final = re.compile(r"(?!(?i:true|false|null|nan|inf)$)[A-Za-z_][\w.:=+-]*")
"""What Hydra's grammar reads as text without quotes."""


def harness_line(
    job: Job, specs: Sequence[str], model: str, recipe: str = "", config_dir: Path | None = None
) -> str:
    """``harness run recipe=… KEY=VALUE … 'recompute.settings=[…]'``; model: as `--model` takes it,
    recipe: the published one that the job builds on, if any. UserError where no line says this job.
    """
    first, bare = _start(job, model, recipe, config_dir)
    given = differing(job, bare)
    words = [first, f"gpus={given.gpus}"]
    for group, fields in (
        ("model", given.model_fields),
        ("layout", given.layout_fields),
        ("job", given.job_fields),
    ):
        words += [f"{group}.{name}={_spelled(value)}" for name, value in fields.items()]
    words.append(f"recompute.settings={_spelled(list(specs))}")
    words += adapter_of(job.config.framework).harness_words(job)
    if job.num_gpus > _GPUS_OF_A_SERVER:
        words.append("launcher=slurm")
    return " ".join(["harness run", *map(_quoted, words)])


def _start(job: Job, model: str, recipe: str, config_dir: Path | None) -> tuple[str, Given]:
    """The word that names the recipe or the model, and what a line of it alone gives."""
    gpus = f"{job.num_gpus}x{job.gpu.name}"
    first, base = f"model={model}", bare_experiment(model, gpus)
    sure: tuple[str, ...] = _BATCH
    if recipe:
        first, base, sure = f"recipe={recipe}", named_experiment(recipe, config_dir), ()
    if (base.framework or default_framework(None)) not in adapter_of(job.config.framework).family:
        sure = (*sure, "framework")
    given = {name: getattr(job.config, name) for name in sure}
    degrees = {name: getattr(job.layout, name) for name in _DEGREES if not recipe}
    return first, Given(
        model=base.model,
        gpus=gpus,
        recipe=base,
        config_dir=config_dir,
        job_fields=given,
        layout_fields={name: degree for name, degree in degrees.items() if degree > 1},
    )


def _quoted(word: str) -> str:
    """A word for a shell; in double quotes where single ones are Hydra's."""
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else quote(word)


def bare_experiment(model: str, gpus: str) -> Experiment:
    """A job that says nothing but its model and GPUs, all of them data-parallel: what a line gives
    stands over it."""
    batch = {"seq_length": 4096, "micro_batch_size": 1, "global_batch_size": parse_gpus(gpus)[0]}
    return read_experiment("", {"model": model, "gpus": gpus, **batch}, f"model={model}")


_DEGREES: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
)
_BATCH: Final = ("seq_length", "micro_batch_size", "global_batch_size")


def differing(job: Job, given: Given) -> Given:
    """`given`, which has a layout, with what makes it `job`. UserError where nothing does."""
    from msgspec.structs import replace

    for _ in range(_ROUNDS):
        made = _made(given)
        more = {
            "model_fields": _fields(made.model, job.model),
            "layout_fields": _layout_fields(made.layout, job.layout),
            "job_fields": _fields(made.config, job.config),
        }
        if not any(more.values()):
            return given
        given = replace(
            given, **{name: {**getattr(given, name), **of} for name, of in more.items()}
        )
    raise UserError("no harness command", None, "harness run cannot express this job")


def _made(given: Given) -> Job:
    resolution = resolve_given(given)
    assert resolution.layout is not None, "a recipe has a layout"
    return resolution.job(resolution.layout)


def _fields(made: Struct, wanted: Struct) -> Mapping[str, Any]:
    return {name: getattr(wanted, name) for name in changed_fields(made, wanted)}


def _layout_fields(made: ParallelLayout, wanted: ParallelLayout) -> Mapping[str, Any]:
    """A split as text goes with its VPP, which another PP would reset."""
    found = dict(_fields(made, wanted))
    if "pipeline_model_parallel_layout" in found:
        found["virtual_pipeline_model_parallel_size"] = wanted.virtual_pipeline_model_parallel_size
    return found


def _spelled(value: object) -> str:
    """In the grammar that `harness run` reads."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_spelled, value))}]"
    text = value.value if isinstance(value, StrEnum) else str(value)
    if isinstance(value, str) and not _PLAIN.fullmatch(text):
        escaped = text.replace("'", "\\'")
        return f"'{escaped}'"
    return text
