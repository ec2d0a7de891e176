"""The command that runs one trial again."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Any

from advisor.base.errors import UserError
from advisor.base.units import parse_gpus
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.request.experiments import Experiment, experiment_names, named_experiment
from harness.trial.trial import Trial

_JOB = ("seq_length", "micro_batch_size", "global_batch_size", "precision")
_DERIVED = ("name", "data_parallel_size")
_OWN = Path(__file__).parents[1] / "configs"


def reproduction_command(experiment: str, trial: Trial) -> str:
    """`harness run` with the setting of `trial` alone, in its environment, and with whatever it
    changes in its preset.

    Into a folder of its own: `harness run` measures nothing twice. An experiment that is no file
    here is taken as it stands.
    """
    preset = _preset(experiment)
    table = preset is not None and experiment not in experiment_names(_OWN)
    words = [f"{'recipe' if table else 'experiment'}={experiment}"]
    words += [] if preset is None else _changes(preset, trial)
    words += [
        f"recompute.settings=[{quoted_setting(trial.workload.recompute)}]",
        f"measure.repeats={trial.measurement.repeats}",
        f"device={trial.workload.device}",
        f"name=again-{trial.workload.key()}",
    ]
    if trial.command is not None:
        words += [
            f"backend={trial.workload.backend}",
            f"framework={trial.command.framework}",
            f"command={trial.command.template}",
        ]
    variables = [
        f"{name}={quote(value)}"
        for name, _, value in (text.partition("=") for text in trial.variables)
    ]
    return " ".join([*variables, "harness run", *(quote(word) for word in words)])


def quoted_setting(spec: str) -> str:
    """A setting as one item of a Hydra list: commas and equals signs need quotes."""
    return f'"{spec}"' if set(spec) & set(",=+") else spec


def _preset(name: str) -> Experiment | None:
    """The recipe of a name; None where nothing here has it."""
    try:
        return named_experiment(name, _OWN)
    except UserError:
        return None


def _changes(preset: Experiment, trial: Trial) -> Iterator[str]:
    """Overrides of a preset's values; data parallelism follows from the number of GPUs."""
    workload, model = trial.workload, preset.configure(load_model(preset.model))
    yield from _overrides("model", workload.model, model, ModelSpec)
    yield from _overrides("layout", workload.layout, preset.layout, ParallelLayout)
    count, gpu = parse_gpus(preset.gpus)
    if workload.layout.world_size != count:
        yield f"gpus={workload.layout.world_size}x{gpu}"
    for name in _JOB:
        if getattr(workload, name) != getattr(preset.config, name):
            yield f"job.{name}={_shown(getattr(workload, name))}"


def _overrides(group: str, now: Any, before: Any, kind: Any) -> Iterator[str]:
    for name in kind.__struct_fields__:
        value = getattr(now, name)
        if value != getattr(before, name) and name not in _DERIVED:
            yield f"{group}.{name}={_shown(value)}"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(_shown(item) for item in value)}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value.value if isinstance(value, StrEnum) else value)
