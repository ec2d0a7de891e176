"""What `harness run` is asked for: Hydra's composition, read into our own frozen types.

Groups are the folders ``experiment``, ``recompute``, ``launcher`` and ``sweep`` of --config-dir,
./configs and the packaged configuration, in this order, and of the harness's own. The schema is
made of our own types, so that KEY=VALUE means what it means to `advise`: ``model.num_layers=12``,
``layout.use_distributed_optimizer=false``, ``job.seq_length=8192``. OmegaConf's objects never leave
`compose`.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin

import yaml
from msgspec import NODEFAULT, Struct

from advisor.base.configuration import Group, config_folders, config_names
from advisor.base.documents import read_yaml
from advisor.base.errors import UserError, missing_package
from advisor.base.fields import field_types, read_fields, read_record, show
from advisor.base.limits import MOST_ARGUMENT, MOST_DEPTH
from advisor.base.numbers import whole
from advisor.base.record import defaults
from advisor.base.units import nearest_names
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from harness.planner.launcher_options import LauncherOptions
from harness.planner.sweep_options import SweepOptions
from harness.trial.trial import Backend, MeasurementPlan

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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
    instead of the preset's. device: auto, cuda or cpu. name: folder below `runs`; empty means one
    made of experiment, device and settings. command, framework: of backend `command`.
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
    name: str = ""
    runs: str = "runs"
    config_dir: Path | None = None


def compose(overrides: Sequence[str], config_dir: Path | None = None) -> RunConfig:
    """Hydra's overrides as a RunConfig; UserError, in one line, where they are wrong."""
    command, overrides = _taken_out("command", overrides)
    recipe, overrides = _taken_out("recipe", overrides)
    _check_asked(overrides)
    values, experiment = _composed(_with_defaults(overrides, recipe), config_dir, _RUN)
    return _run_config(values | command | recipe, experiment, config_dir)


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
    values, experiment = _composed([*added, *overrides], config_dir, _SWEEP)
    own = values.pop("sweep")
    own["micro_batch_sizes"] = [_integer(size) for size in own["micro_batch_sizes"]]
    options = read_record(SweepOptions, own, _COMMAND_LINE, "sweep.")
    return _run_config(values | recipe, experiment, config_dir), options


def _run_config(values: dict[str, Any], experiment: str, config_dir: Path | None) -> RunConfig:
    given = {group: _given(values[group]) for group in ("model", "layout", "job")}
    keys = ("backend", "command", "framework", "device", "gpus", "recipe", "name", "runs")
    rest = {key: values[key] for key in keys}
    _check_backend(str(rest["backend"]))
    return RunConfig(
        experiment_name=str(rest["recipe"]) or experiment,
        experiment=values["experiment"],
        recompute=read_record(RecomputeChoice, values["recompute"], _COMMAND_LINE, "recompute."),
        model=read_fields(ModelSpec, given["model"], _COMMAND_LINE, "model."),
        layout=read_fields(ParallelLayout, given["layout"], _COMMAND_LINE, "layout."),
        job=read_fields(JobConfig, given["job"], _COMMAND_LINE, "job."),
        measure=read_record(MeasurementPlan, values["measure"], _COMMAND_LINE, "measure."),
        launcher=read_record(LauncherOptions, values["launcher"], _COMMAND_LINE, "launcher."),
        config_dir=config_dir,
        **read_fields(RunConfig, rest, _COMMAND_LINE),
    )


def _check_backend(name: str) -> None:
    """UserError unless it is one that runs jobs; single ranks are another command's."""
    if name == Backend.REHEARSAL:
        raise UserError("backend", name, "runs single ranks, and no job", "harness rehearse")
    jobs = [one.value for one in Backend if one is not Backend.REHEARSAL]
    if name.lower() not in jobs:
        raise UserError(
            "backend", name, f"must be one of {', '.join(jobs)}", nearest_names(name, jobs)
        )


def experiment_names(config_dir: Path | None = None) -> tuple[str, ...]:
    """Names that ``experiment=`` takes."""
    return _options(Group.EXPERIMENT, config_dir)


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
        if len(override) > MOST_ARGUMENT or sum(map(override.count, "[{(")) > MOST_DEPTH:
            raise UserError("override", show(override), "is too long, or nests too deep")
        key, _, text = override.lstrip("+~").partition("=")
        if re.match(r"hydra\b", key):
            raise UserError(
                key,
                text,
                "is Hydra's own: no key of the harness",
                "runs=FOLDER and name=NAME say where results go",
            )
        if key == "recompute.settings" and not text.strip("[ ]"):
            raise UserError(key, text, "names no setting", "recompute=top is the advisor's best")


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _integer(text: str) -> object:
    """A number of a list, which Hydra hands over as text; what is none is left to the reader."""
    number = whole(text)
    return text if number is None else number


def _composed(
    overrides: list[str], config_dir: Path | None, nodes: "Nodes"
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
    schema = _schema(nodes)
    ConfigStore.instance().store(name=_NAME, node=schema)
    search = ",".join(_quoted(f"file://{folder}") for folder in folders[1:])
    GlobalHydra.instance().clear()
    try:
        with _quiet(), initialize_config_dir(str(folders[0]), version_base="1.3"):
            config = hydra_compose(
                _NAME, [f"hydra.searchpath=[{search}]", *overrides], return_hydra_config=True
            )
            name = str(config.hydra.runtime.choices["experiment"])
            _check_known((str(key) for key in config), schema)
            shown = OmegaConf.masked_copy(config, [f.name for f in fields(schema)[1:]])
            values = OmegaConf.to_container(shown, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise _user_error(error, overrides, config_dir, nodes) from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            "configuration", " ".join(overrides), f"is not valid YAML: {reason}"
        ) from None
    except RecursionError:
        raise UserError("configuration", " ".join(overrides), "refers to itself") from None
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


def _check_known(keys: Iterable[str], schema: type["DataclassInstance"]) -> None:
    """``+key=value`` adds what nobody reads."""
    known = [f.name for f in fields(schema)]
    for key in keys:
        if key not in (*known, "hydra"):
            raise UserError("override", f"+{key}", "is not a known key", nearest_names(key, known))


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


def _schema(nodes: "Nodes") -> type["DataclassInstance"]:
    """The structured config: mutable copies of our frozen types, with text for enums."""
    defaults = ["_self_", *({k: v} for k, v in _CHOICES.items() if k in {"experiment", *nodes})]
    return make_dataclass(
        "HarnessRun",
        [
            ("defaults", list[Any], field(default_factory=lambda: list(defaults))),
            ("experiment", dict[str, Any], field(default_factory=dict)),
            *((name, kind, field(default_factory=kind)) for name, kind in nodes.items()),
            ("backend", str, field(default=Backend.NATIVE.value)),
            ("command", str, field(default="")),
            ("framework", str, field(default="")),
            ("device", str, field(default="auto")),
            ("gpus", str | None, field(default=None)),
            ("recipe", str, field(default="")),
            ("name", str, field(default="")),
            ("runs", str, field(default="runs")),
        ],
    )


def _open(cls: type[Struct], *, optional: bool) -> type["DataclassInstance"]:
    """A mutable twin of `cls` that OmegaConf takes; `optional`: None everywhere means not given."""
    hints, usual = field_types(cls), defaults(cls)
    return make_dataclass(
        f"{cls.__name__}Node",
        [
            (name, *_node(usual.get(name, NODEFAULT), hints[name], optional))
            for name in cls.__struct_fields__
        ],
    )


def _node(default: Any, annotation: Any, optional: bool) -> tuple[Any, Any]:
    kind = _plain(annotation)
    if optional:
        return kind | None, field(default=None)
    if default is NODEFAULT:
        return kind, field(default="???")
    if isinstance(default, str):
        return kind, field(default=str(default))
    if isinstance(default, tuple):
        return kind, field(default_factory=lambda: list(default))
    return kind, field(default=default)


def _plain(annotation: Any) -> Any:
    """The type in which YAML writes a value of type `annotation`."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    if get_origin(annotation) is tuple:
        return list[str]
    return str if issubclass(annotation, str) else annotation


Nodes = Mapping[str, "type[DataclassInstance]"]

_RUN: Final = {
    "recompute": _open(RecomputeChoice, optional=False),
    "model": _open(ModelSpec, optional=True),
    "layout": _open(ParallelLayout, optional=True),
    "job": _open(JobConfig, optional=True),
    "measure": _open(MeasurementPlan, optional=False),
    "launcher": _open(LauncherOptions, optional=False),
}
_SWEEP: Final = {**_RUN, "sweep": _open(SweepOptions, optional=False)}


_NO_KEY: Final = re.compile(r"Key '([^']+)' (?:is )?not in '([^']+)'")
_NO_OPTION: Final = re.compile(r"Could not find '(\w+)/([^']*)'")
_NO_OVERRIDE: Final = re.compile(r"Could not override '([^']+)'")
_FULL_KEY: Final = re.compile(r"full_key: (\S+)")


def _user_error(
    error: Exception, overrides: Sequence[str], config_dir: Path | None, nodes: Nodes
) -> UserError:
    """What Hydra says over several lines, as one with the nearest names."""
    text = f"{error} {error.__cause__ or ''}"
    option = _NO_OPTION.search(text)
    if option:
        group, name = option.groups()
        names = _options(group, config_dir)
        return UserError(group, name, f"unknown {group}", nearest_names(name, names))
    override = _NO_OVERRIDE.search(text)
    full = _FULL_KEY.search(text)
    if override or _NO_KEY.search(text):
        key = override[1] if override else full[1] if full else "?"
        value = next((o.partition("=")[2] for o in overrides if o.partition("=")[0] == key), "?")
        hint = (
            "experiment=NAME chooses model and layout"
            if key in ("model", "layout")
            else (nearest_names(key, _keys(key, nodes)))
        )
        return UserError(key, value, "is not a known key", hint)
    cause = error.__cause__ if str(error).startswith("Error merging") else None
    first = " ".join(str(cause or error).split("\n")[0].split())
    bad = next((o for o in overrides if full and o.partition("=")[0] == full[1]), None)
    bad = bad or getattr(error, "override", None)
    bad = bad or next((o for o in overrides if o in text or "=" not in o), " ".join(overrides))
    grammar = first.startswith(("Ambiguous", "no viable alternative", "mismatched input"))
    hint = "a list is [a,b], a text with commas or signs 'a,b=c'" if grammar else ""
    return UserError("override", bad, first, hint)


def _options(group: str, config_dir: Path | None) -> tuple[str, ...]:
    found = set(config_names(Group(group), config_dir)) if group in list(Group) else set()
    return tuple(sorted(found | _own_names(group)))


def _own_names(group: str) -> set[str]:
    return {path.stem for path in (_OWN / group).glob("*.yaml")}


def _keys(key: str, nodes: Nodes) -> list[str]:
    """Every key that an override may have."""
    top = [f.name for f in fields(_schema(nodes))[1:]]
    inner = [f"{group}.{f.name}" for group, kind in nodes.items() for f in fields(kind)]
    same = [name for name in inner if name.rpartition(".")[2] == key.rpartition(".")[2]]
    return same or [*top, *inner]
