"""Job presets: known, published layouts of a model on a number of GPUs (configs/experiment).

A preset is called MODEL_COUNTxGPU, e.g. ``llama3_70b_32xh100``; with ``_PRECISION`` behind it, it
is the one for that precision. So the preset of a job is found by listing one folder.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advisor.configuration import Document, Group, config_names, find_config, load_config, load_yaml
from advisor.cost.gpus import resolve_gpu
from advisor.dtypes import Precision
from advisor.errors import UserError
from advisor.job import JobConfig
from advisor.layout import ParallelLayout
from advisor.models.spec import ModelSpec, nearest_divisors
from advisor.reader import convert, read_dataclass, read_fields
from advisor.units import parse_gpus

_NAME = re.compile(r"(?P<model>.+)_(?P<gpus>\d+x[a-z0-9-]+)(_(?P<precision>[a-z0-9_]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One published job: what runs, on what, how it is laid out, and who says so.

    model: a model preset; model_options: fields of it that this job sets, as pairs.
    gpus: COUNTxTYPE. layout: complete, data parallelism included.
    """

    name: str
    model: str
    gpus: str
    layout: ParallelLayout
    config: JobConfig
    model_options: tuple[tuple[str, Any], ...] = ()
    source: str = ""
    notes: str = ""

    def configure(self, model: ModelSpec) -> ModelSpec:
        """`model` with the options that this job sets."""
        return replace(model, **dict(self.model_options))


def experiment_names(config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all job presets, sorted."""
    return config_names(Group.EXPERIMENT, config_dir)


def load_experiment(name: str, config_dir: Path | None = None) -> Experiment:
    """A job preset by name; UserError with the nearest names where there is none."""
    return _read(load_config(Group.EXPERIMENT, name, config_dir, "experiment"))


def find_experiment(
    model: str,
    num_gpus: int,
    gpu_type: str,
    precision: Precision | None = None,
    config_dir: Path | None = None,
) -> Experiment | None:
    """The preset of a model on so many GPUs of a type; None where there is none.

    With a precision the preset for it comes first, then the one that names none.
    """
    wanted = resolve_gpu(gpu_type, config_dir)
    found: dict[str | None, str] = {}
    for name in experiment_names(config_dir):
        match = _NAME.fullmatch(name)
        if match is None or match["model"] != model:
            continue
        count, kind = parse_gpus(match["gpus"])
        if count == num_gpus and _is_gpu(kind, wanted, config_dir):
            found[match["precision"]] = name
    name = found.get(precision) or found.get(None) or ""
    path = find_config(Group.EXPERIMENT, name, config_dir) if name else None
    return _read(load_yaml(path)) if path else None


def _is_gpu(kind: str, wanted: str, config_dir: Path | None) -> bool:
    try:
        return resolve_gpu(kind, config_dir) == wanted
    except UserError:  # a preset of the user's own, for a type that nothing describes
        return False


def _read(document: Document) -> Experiment:
    """Experiment from the file's keys: model, gpus, layout, model_options, source, notes, and the
    fields of JobConfig."""
    path, values = document.path, dict(document.values)
    about = {key: convert(values.pop(key, ""), str, path, key) for key in _ABOUT}
    for key in ("model", "gpus"):
        if not about[key]:
            raise UserError(f"{path}: {key}", "(none)", "is missing")
    layout = _mapping(values.pop("layout", {}), path, "layout")
    options = _mapping(values.pop("model_options", {}), path, "model_options")
    return Experiment(
        name=document.name,
        **about,
        layout=_layout(layout, parse_gpus(about["gpus"])[0], path),
        config=read_dataclass(JobConfig, values, path),
        model_options=tuple(read_fields(ModelSpec, options, path, "model_options.").items()),
    )


def _mapping(value: object, path: Path, key: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UserError(f"{path}: {key}", value, "must be a mapping of keys to values")
    return value


def _layout(values: dict[str, object], num_gpus: int, path: Path) -> ParallelLayout:
    """Layout of all GPUs: data parallelism is what the other degrees leave."""
    layout = read_dataclass(ParallelLayout, values, path, "layout.")
    if "data_parallel_size" in values:
        return layout
    if num_gpus % layout.world_size:
        raise UserError(
            f"{path}: layout", f"TP x CP x PP = {layout.world_size}",
            f"must divide {num_gpus} GPUs",
            f"nearest: {nearest_divisors(num_gpus, layout.world_size)}",
        )  # fmt: skip
    return replace(layout, data_parallel_size=num_gpus // layout.world_size)


_ABOUT = ("model", "gpus", "source", "notes")
