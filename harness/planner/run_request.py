"""What `harness run` is asked for: Hydra's composition, read into our own frozen types.

Groups are the folders ``experiment``, ``recompute``, ``launcher`` and ``sweep`` of --config-dir,
./configs and the packaged configuration, in this order, and of the harness's own. Hydra knows the
names of our fields and nothing of their types: what is given is read as every configuration is, so
that KEY=VALUE means what it means to `advise`: ``model.num_layers=12``,
``layout.use_distributed_optimizer=false``, ``job.seq_length=8192``. null is what is not given.
OmegaConf's objects never leave `compose`.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin

import yaml
from msgspec import Struct, field

from advisor.base.configuration import Group, config_folders, config_names
from advisor.base.documents import read_yaml
from advisor.base.errors import UserError, missing_package
from advisor.base.fields import (
    field_types,
    optional_type,
    parse,
    read_fields,
    read_record,
    show,
)
from advisor.base.limits import MOST_ARGUMENT, MOST_DEPTH
from advisor.base.units import likely_names, nearest_names
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from harness.planner.launcher_options import LauncherOptions, SweepOptions
from harness.trial.trial import Backend, MeasurementPlan

T = TypeVar("T", bound=Struct)

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


class RecomputeChoice(Struct, frozen=True, kw_only=True):
    """Which settings: those named, else the advisor's best `top`."""

    settings: tuple[str, ...] = ()
    top: int = 3

    def __post_init__(self) -> None:
        if self.top < 1:
            raise UserError("recompute.top", self.top, "must be at least 1")


class RunConfig(Struct, frozen=True, kw_only=True):
    """One `harness run`, as asked for.

    experiment: keys of the job preset. recipe: name of a published recipe in its place (a row of
    configs/recipe). model, layout, job: fields laid over it. gpus: COUNTxTYPE
    instead of the preset's. preset: a model in place of both, with nothing said of its job.
    device: auto, cuda or cpu. name: folder below `runs`; empty means one made of experiment, device
    and settings. command, framework: of backend `command`. track: experiment trackers that get the
    results, by name.
    """

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
    """Hydra's overrides as a RunConfig; UserError, in one line, where they are wrong."""
    command, overrides = _taken_out("command", overrides)
    recipe, overrides = _taken_out("recipe", overrides)
    preset, overrides = _taken_out("model", overrides)
    _check_asked(overrides)
    values, experiment = _composed(_with_defaults(overrides, recipe | preset), config_dir, _GROUPS)
    bare = {"preset": preset["model"]} if preset else {}
    return _run_config(values | command | recipe | bare, experiment, config_dir)


def compose_sweep(
    overrides: Sequence[str], config_dir: Path | None = None
) -> tuple[RunConfig, SweepOptions]:
    """The same of `harness sweep`: the job, and what is searched around it."""
    _check_asked(overrides)
    given = {override.partition("=")[0] for override in overrides}
    recipe, overrides = _taken_out("recipe", overrides)
    added = [] if "sweep" in given else ["sweep=recompute"]
    if not given & {"sweep", "experiment", "recipe"}:
        added = [f"sweep={DEFAULT_EXPERIMENT}"]
    groups: Groups = {**_GROUPS, "sweep": SweepOptions}
    values, experiment = _composed([*added, *overrides], config_dir, groups)
    options = _read(SweepOptions, values, "sweep")
    return _run_config(values | recipe, experiment, config_dir), options


def _run_config(values: dict[str, Any], experiment: str, config_dir: Path | None) -> RunConfig:
    own = {key: values[key] for key in _OWN_KEYS} | {"preset": values.get("preset")}
    _check_backend(own["backend"])
    return RunConfig(
        experiment_name=str(values["recipe"] or values.get("preset") or experiment),
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
        raise UserError(group, show(values[group]), "is not a known key", _hint(group, ()))
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


def _with_defaults(overrides: Sequence[str], recipe: Mapping[str, str]) -> list[str]:
    """Alone, the embedded experiment at the corners; else the advisor's best."""
    given = {override.partition("=")[0] for override in overrides}
    added = [] if "experiment" in given else [f"experiment={DEFAULT_EXPERIMENT}"]
    if added and not recipe and "recompute" not in given:
        added.append("recompute=corners")
    return [*added, *overrides]


def _taken_out(key: str, overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The last ``key=text`` as it stands, and the other overrides: a command is for a shell, and
    its braces, quotes and ${…} are not for Hydra's grammar; recipes are rows of tables, which
    Hydra does not read."""
    own = [text for name, _, text in (o.partition("=") for o in overrides) if name == key]
    rest = [override for override in overrides if override.partition("=")[0] != key]
    return ({key: own[-1]} if own else {}), rest


def _check_asked(overrides: Sequence[str]) -> None:
    """UserError for what Hydra takes and nobody here would act on, or takes minutes for."""
    for override in overrides:
        if override.startswith("~"):
            raise UserError(
                "override", show(override), "would remove a key", "leave it out for its default"
            )
        if len(override) > MOST_ARGUMENT or sum(map(override.count, "[{(")) > MOST_DEPTH:
            raise UserError("override", show(override), "is too long, or nests too deep")
        key, _, text = override.lstrip("+").partition("=")
        if re.match(r"hydra\b", key):
            raise UserError(
                key,
                text,
                "is Hydra's own, not a key of the harness",
                "runs=FOLDER and name=NAME set where results go",
            )
        if key == "recompute.settings" and not text.strip("[ ]"):
            raise UserError(key, text, "names no setting", "recompute=top is the advisor's best")


def _composed(
    overrides: list[str], config_dir: Path | None, groups: "Groups"
) -> tuple[dict[str, Any], str]:
    """Plain values of the composition, and the name of the experiment chosen."""
    try:
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
        from hydra.core.config_store import ConfigStore
        from hydra.core.global_hydra import GlobalHydra
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError:
        raise missing_package("harness run", "hydra-core", "harness") from None
    _check_files(overrides, config_dir)
    folders = [path.resolve() for path in (*config_folders(config_dir), _OWN) if path.is_dir()]
    schema = _schema(groups)
    defaults = ["_self_", *({k: v} for k, v in _CHOICES.items() if k in schema)]
    ConfigStore.instance().store(name=_NAME, node={"defaults": defaults, **schema})
    search = ",".join(_quoted(f"file://{folder}") for folder in folders[1:])
    GlobalHydra.instance().clear()
    try:
        with _quiet(), initialize_config_dir(str(folders[0]), version_base="1.3"):
            config = hydra_compose(
                _NAME, [f"hydra.searchpath=[{search}]", *overrides], return_hydra_config=True
            )
            name = str(config.hydra.runtime.choices["experiment"])
            values = OmegaConf.to_container(
                OmegaConf.masked_copy(config, list(schema)), resolve=True, throw_on_missing=True
            )
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _user_error(error, overrides, config_dir, schema) from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            "configuration", " ".join(overrides), f"is not valid YAML: {reason}"
        ) from None
    except RecursionError:
        raise UserError("configuration", " ".join(overrides), "refers to itself") from None
    _check_known((str(key) for key in config), schema)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}, name


def _check_files(overrides: Sequence[str], config_dir: Path | None) -> None:
    """UserError for a file that Hydra would read, and that is broken or meant to do harm: what the
    overrides and the defaults choose, and what those files name as their defaults."""
    folders = (*config_folders(config_dir), _OWN)
    names = {override.partition("=")[2].strip() for override in overrides}
    names |= set(_CHOICES.values())
    read: set[Path] = set()
    while names:
        paths = {
            folder / group / f"{name}.yaml"
            for folder in folders
            for group in _CHOICES
            for name in names
            if os.path.basename(name) == name
        }
        found = {path for path in paths - read if os.path.isfile(path)}
        names = {name for path in found for name in _texts(read_yaml(path).get("defaults"))}
        read |= found


def _texts(value: object) -> Iterator[str]:
    """Every text in a list of defaults."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _quoted(text: str) -> str:
    """`text` as one value of Hydra's grammar."""
    escaped = text.replace("'", "\\'")
    return f"'{escaped}'"


def _check_known(keys: Iterable[str], schema: "Schema") -> None:
    """``+key=value`` adds what nobody reads."""
    for key in keys:
        if key not in (*schema, "hydra"):
            raise UserError("override", f"+{key}", "is not a known key", nearest_names(key, schema))


@contextmanager
def _quiet() -> Iterator[None]:
    """Hydra warns through logging; what matters here comes as an exception."""
    logger = logging.getLogger("hydra")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


Groups = Mapping[str, type[Struct]]
Schema = Mapping[str, dict[str, None] | None]
"""Every key that may be given, and those within it; nothing is, to begin with."""

_GROUPS: Final[Groups] = {
    "recompute": RecomputeChoice,
    "model": ModelSpec,
    "layout": ParallelLayout,
    "job": JobConfig,
    "measure": MeasurementPlan,
    "launcher": LauncherOptions,
}
_OWN_KEYS: Final = (
    "backend",
    "command",
    "framework",
    "device",
    "gpus",
    "recipe",
    "name",
    "runs",
    "track",
)


def _schema(groups: Groups) -> Schema:
    inner = {name: dict.fromkeys(field_types(kind)) for name, kind in groups.items()}
    return {"experiment": {}, **inner, **dict.fromkeys(_OWN_KEYS)}


_NO_OPTION: Final = re.compile(r"Could not find '(\w+)/([^']*)'")
_NO_OVERRIDE: Final = re.compile(r"Could not override '([^']+)'")


def _user_error(
    error: Exception, overrides: Sequence[str], config_dir: Path | None, schema: Schema
) -> UserError:
    """What Hydra says over several lines, as one with the nearest names."""
    text = f"{error} {error.__cause__ or ''}"
    option = _NO_OPTION.search(text)
    if option:
        group, name = option.groups()
        names = _options(group, config_dir)
        return UserError(group, name, f"unknown {group}", nearest_names(name, names))
    override = _NO_OVERRIDE.search(text)
    if override:
        key = override[1]
        value = next((o.partition("=")[2] for o in overrides if o.partition("=")[0] == key), "?")
        return UserError(key, value, "is not a known key", _hint(key, _keys(key, schema)))
    first = " ".join(str(error).split("\n")[0].split())
    bad = getattr(error, "override", None)
    bad = bad or next((o for o in overrides if o in text or "=" not in o), " ".join(overrides))
    grammar = first.startswith(("Ambiguous", "no viable alternative", "mismatched input"))
    hint = (
        "write a list as [a,b], and quote a text with commas or signs: 'a,b=c'" if grammar else ""
    )
    return UserError("override", bad, first, hint)


def _hint(key: str, known: Sequence[str]) -> str:
    if key in ("model", "layout"):
        return "experiment=NAME chooses model and layout"
    return nearest_names(key, known) if known else f"write {key}.KEY=VALUE"


def _options(group: str, config_dir: Path | None) -> tuple[str, ...]:
    found = set(config_names(Group(group), config_dir)) if group in list(Group) else set()
    return tuple(sorted(found | _own_names(group)))


def _own_names(group: str) -> set[str]:
    return {path.stem for path in (_OWN / group).glob("*.yaml")}


def _keys(key: str, schema: Schema) -> list[str]:
    """Every key that an override may have."""
    inner = [f"{group}.{name}" for group, names in schema.items() for name in names or ()]
    same = [name for name in inner if name.rpartition(".")[2] == key.rpartition(".")[2]]
    return same or [*schema, *inner]
