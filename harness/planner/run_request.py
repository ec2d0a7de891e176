"""What `harness run` is asked for: Hydra's composition, read into our own frozen types. Groups are
the folders ``experiment``, ``recompute``, ``launcher`` and ``sweep`` of --config-dir, ./configs and
the packaged configuration, in this order, and of the harness's own. Hydra knows the names of our
fields and nothing of their types: what is given is read as every configuration is, so that
KEY=VALUE means what it means to `advise`: ``model.num_layers=12``,
``layout.use_distributed_optimizer=false``, ``job.seq_length=8192``. null is what is not given. Keys
are checked before Hydra reads the values; OmegaConf's objects never leave `_composed`."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin

import yaml
from msgspec import Struct, field

from advisor.base import configuration
from advisor.base.errors import UserError, likely_names, missing_package, nearest_names, show
from advisor.base.fields import (
    field_types,
    optional_type,
    parse,
    read_fields,
    read_record,
    split_key_values,
)
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from harness.planner.launcher_options import LauncherOptions, SweepOptions
from harness.trial.trial import Backend, MeasurementPlan

T = TypeVar("T", bound=Struct)
Groups = Mapping[str, type[Struct]]

DEFAULT_EXPERIMENT: Final = "tiny_cpu"
_NAME: Final = "harness_run"
_OWN: Final = Path(__file__).parents[1] / "configs"
_COMMAND_LINE: Final = "command line"
_CHOICES: Final = {
    "experiment": DEFAULT_EXPERIMENT,
    "recompute": "top",
    "launcher": "local",
    "sweep": "???",
}
"""Groups of files, with what is chosen where nobody does."""
_VERBATIM: Final = ("command", "recipe", "model")
"""What Hydra does not read: the braces, quotes and ${…} of a command are for a shell, recipes are
rows of tables, and a model alone is the preset of a job of which nothing else is given."""


class RecomputeChoice(Struct, frozen=True, kw_only=True):
    """Which settings: those named, else the advisor's best `top`."""

    settings: tuple[str, ...] = ()
    top: int = 3

    def __post_init__(self) -> None:
        if self.top < 1:
            raise UserError("recompute.top", self.top, "must be at least 1")


class RunConfig(Struct, frozen=True, kw_only=True):
    """One `harness run`, as asked for. experiment: keys of the job preset. recipe: name of a
    published recipe in its place (a row of configs/recipe). model, layout, job: fields laid over
    it. gpus: COUNTxTYPE instead of the preset's. preset: a model in place of both, with nothing
    said of its job. device: auto, cuda or cpu. name: folder below `runs`; empty means one made of
    experiment, device and settings. command, framework: of backend `command`. track: experiment
    trackers that get the results, by name."""

    experiment_name: str
    experiment: dict[str, Any]
    recompute: RecomputeChoice
    model: dict[str, Any]
    layout: dict[str, Any]
    job: dict[str, Any]
    measure: MeasurementPlan
    launcher: LauncherOptions = field(default_factory=LauncherOptions)
    backend: Backend = Backend.NATIVE
    command: str = ""
    framework: str = ""
    device: str = "auto"
    gpus: str | None = None
    recipe: str = ""
    preset: str = ""
    name: str = ""
    runs: str = "runs"
    track: tuple[str, ...] = ()
    config_dir: Path | None = None


def compose(overrides: Sequence[str], config_dir: Path | None = None) -> RunConfig:
    """KEY=VALUE of `harness run` as a RunConfig; UserError, in one line, where they are wrong."""
    given = _checked(overrides, _GROUPS, config_dir)
    if not given.keys() & {"experiment", "recipe", "model", "recompute"}:
        given["recompute"] = "corners"
    return _run_config(_composed(given, config_dir, _GROUPS), config_dir)


def compose_sweep(
    overrides: Sequence[str], config_dir: Path | None = None
) -> tuple[RunConfig, SweepOptions]:
    """The same of `harness sweep`: the job, and what is searched around it."""
    groups: Groups = {**_GROUPS, "sweep": SweepOptions}
    given = _checked(overrides, groups, config_dir)
    alone = not given.keys() & {"experiment", "recipe"}
    given.setdefault("sweep", DEFAULT_EXPERIMENT if alone else "recompute")
    values = _composed(given, config_dir, groups)
    return _run_config(values, config_dir), _read(SweepOptions, values, "sweep")


def _run_config(values: dict[str, Any], config_dir: Path | None) -> RunConfig:
    own = {key: values[key] for key in (*_OWN_KEYS, "experiment_name", "preset")}
    _check_backend(own["backend"])
    return RunConfig(
        experiment=values["experiment"],
        recompute=_read(RecomputeChoice, values, "recompute"),
        model=_given(ModelSpec, values, "model"),
        layout=_given(ParallelLayout, values, "layout"),
        job=_given(JobConfig, values, "job"),
        measure=_read(MeasurementPlan, values, "measure"),
        launcher=_read(LauncherOptions, values, "launcher"),
        config_dir=config_dir,
        **_given(RunConfig, {"": own}),
    )


def _read(cls: type[T], values: Mapping[str, Any], group: str) -> T:
    """The keys of a group as `cls`; its defaults where they are not given."""
    return read_record(cls, _given(cls, values, group), _COMMAND_LINE, f"{group}.")


def _given(cls: type[Struct], values: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """The keys of a group that are given, as fields of `cls`."""
    kinds, prefix = field_types(cls), f"{group}." if group else ""
    if not isinstance(values[group], Mapping):
        raise UserError(group, show(values[group]), "must be a mapping of keys to values")
    plain = {
        key: _as_meant(value, kinds.get(key), f"{_COMMAND_LINE}: {prefix}{key}")
        for key, value in values[group].items()
        if value is not None
    }
    return read_fields(cls, plain, _COMMAND_LINE, prefix)


def _as_meant(value: Any, kind: Any, where: str) -> Any:
    """A value of Hydra's grammar, to which ``name=17`` is a number and ``steps='5'`` is text."""
    kind = optional_type(kind) or kind
    if isinstance(value, list) and get_origin(kind) is tuple:
        return [_as_meant(item, get_args(kind)[0], where) for item in value]
    if isinstance(value, str) and kind in (bool, int, float):
        return parse(value, kind, where)
    wants_text = isinstance(kind, type) and issubclass(kind, str)
    return str(value) if wants_text and isinstance(value, int | float) else value


def _check_backend(name: object) -> None:
    """UserError unless it is one that runs jobs; single ranks are another command's."""
    if name == Backend.REHEARSAL:
        raise UserError("backend", name, "runs single ranks, not a job", "use harness rehearse")
    jobs = [one.value for one in Backend if one is not Backend.REHEARSAL]
    if name is not None and str(name).lower() not in jobs:
        legal = f"must be one of {', '.join(jobs)}"
        raise UserError("backend", name, legal, likely_names(str(name), jobs))


def _checked(overrides: Sequence[str], groups: Groups, config_dir: Path | None) -> dict[str, str]:
    """Values by key; UserError for a key that nobody reads, and a choice without a whole file."""
    given = split_key_values((override.lstrip("+") for override in overrides), "override")
    inner = [f"{group}.{name}" for group, kind in groups.items() for name in field_types(kind)]
    choices = [name for name in _CHOICES if name in ("experiment", *groups)]
    presets = [] if "sweep" in groups else ["model"]
    known = [*choices, *_OWN_KEYS, *presets, *inner]
    for key, text in given.items():
        if key not in known and not key.startswith("experiment."):
            name = key.rpartition(".")[2]
            near = [path for path in inner if path.rpartition(".")[2] == name] or known
            raise UserError(key, show(text), "is not a known key", nearest_names(key, near))
        if key in choices:
            _check_choice(configuration.ConfigGroup(key), text, config_dir)
    if not given.get("recompute.settings", "none").strip("[ ]"):
        relation, hint = "names no setting", "recompute=top is the advisor's best"
        raise UserError("recompute.settings", given["recompute.settings"], relation, hint)
    return given


def _check_choice(group: configuration.ConfigGroup, name: str, config_dir: Path | None) -> None:
    """Read the file once as every configuration is, within limits and with errors of one line."""
    own = {path.stem: path for path in (_OWN / group).glob("*.yaml")}
    path = configuration.find_config(group, name, config_dir) or own.get(name)
    if path is None:
        near = nearest_names(name, {*configuration.config_names(group, config_dir), *own})
        raise UserError(group, show(name), f"unknown {group}", near)
    configuration.load_yaml(path)


def _composed(given: Mapping[str, str], config_dir: Path | None, groups: Groups) -> dict[str, Any]:
    """Plain values of the composition by key; those that Hydra does not read as they are given."""
    try:
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
        from hydra.core.config_store import ConfigStore
        from hydra.core.global_hydra import GlobalHydra
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError:
        raise missing_package("KEY=VALUE", "hydra-core", "harness") from None
    fields = {name: dict.fromkeys(field_types(kind)) for name, kind in groups.items()}
    schema = {"experiment": {}, **fields, **dict.fromkeys(_OWN_KEYS)}
    defaults = ["_self_", *({k: v} for k, v in _CHOICES.items() if k in schema)]
    ConfigStore.instance().store(name=_NAME, node={"defaults": defaults, **schema})
    logging.getLogger("hydra").setLevel(logging.ERROR)  # what matters comes as an exception
    folders = (*configuration.config_folders(config_dir), _OWN)  # of the groups' files, first wins
    first, *others = (path.resolve() for path in folders if path.is_dir())
    search = ",".join("'file://{}'".format(str(one).replace("'", "\\'")) for one in others)
    words = [
        f"{'++' if key.startswith('experiment.') else ''}{key}={text}"
        for key, text in given.items()
        if key not in _VERBATIM
    ]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(first), version_base="1.3"):
            config = hydra_compose(
                _NAME, [f"hydra.searchpath=[{search}]", *words], return_hydra_config=True
            )
            experiment = str(config.hydra.runtime.choices["experiment"])
            values = OmegaConf.to_container(
                OmegaConf.masked_copy(config, list(schema)), resolve=True, throw_on_missing=True
            )
    except (OmegaConfBaseException, ValueError, yaml.YAMLError, RecursionError) as error:
        raise _one_line(error, "configuration", " ".join(words)) from None
    except HydraException as error:
        raise _one_line(error, "override", getattr(error, "override", " ".join(words))) from None
    assert isinstance(values, dict)
    kept = {"preset" if key == "model" else key: given[key] for key in _VERBATIM if key in given}
    found = {"preset": None, **{str(key): value for key, value in values.items()}, **kept}
    return {"experiment_name": found["recipe"] or found["preset"] or experiment, **found}


def _one_line(error: Exception, field: str, value: object) -> UserError:
    reason = " ".join(str(error).split("\n")[0].split())
    return UserError(field, show(value), reason, _QUOTES if field == "override" else "")


_QUOTES: Final = "write a list as [a,b], and quote a text with commas or signs: 'a,b=c'"
_GROUPS: Final[Groups] = {
    "recompute": RecomputeChoice,
    "model": ModelSpec,
    "layout": ParallelLayout,
    "job": JobConfig,
    "measure": MeasurementPlan,
    "launcher": LauncherOptions,
}
_OWN_KEYS: Final = (
    *("backend", "command", "framework", "device", "gpus"),
    *("recipe", "name", "runs", "track"),
)
