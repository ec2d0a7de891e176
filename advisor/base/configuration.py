"""Where configuration lies and how a YAML file of it is read.

A name such as ``llama3_70b`` of the group ``model`` is the file ``model/llama3_70b.yaml`` of the
first of these folders that has it: --config-dir, ./configs of the working directory, the copy that
is packaged with the advisor. Listing names lists folders; only the file that is wanted is read.

PyYAML takes longer to load than an answer to compute: a wheel holds one more file, which
hatch_build.py makes: what each of its YAML files means, by the text of the file. Text that is not
in there, a user's, a changed preset or a checkout's, is read as YAML: what is compiled is never
stale.
"""

import os
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Raw, Struct, msgpack

from advisor.base.documents import read_text, read_yaml
from advisor.base.errors import UserError, nearest_names, show, show_path
from advisor.base.limits import MOST_CONFIG_BYTES

FILE: Final = Path(__file__).parents[1] / "configs" / "compiled.msgpack"
_GROUPS: Final = ("model", "hardware", "calibration", "layout", "experiment", "recompute", "sweep")


def compiled(text: str) -> dict[str, Any] | None:
    """The mapping that a preset's text holds; None where it is not compiled."""
    found = _texts().get(text)
    return None if found is None else msgpack.decode(found)


@cache
def _texts() -> Mapping[str, Raw]:
    try:
        return msgpack.decode(FILE.read_bytes(), type=dict[str, Raw])
    except OSError:
        return {}


def compile_configs(configs: Path) -> bytes:
    """What goes into the file, of a folder of groups of presets."""
    return msgpack.encode(dict(_read(configs)))


def _read(configs: Path) -> Iterator[tuple[str, Any]]:
    for group in _GROUPS:
        for path in sorted((configs / group).glob("*.yaml")):
            values = read_yaml(path)
            if msgpack.decode(msgpack.encode(values)) == values:  # a date would become text
                yield read_text(path), values


SUFFIX = ".yaml"


class ConfigGroup(StrEnum):
    """Folders of configuration: one kind of thing each."""

    MODEL = "model"
    HARDWARE = "hardware"
    LAYOUT = "layout"
    RECIPE = "recipe"
    RECOMPUTE = "recompute"
    EXPERIMENT = "experiment"
    SWEEP = "sweep"
    LAUNCHER = "launcher"
    CALIBRATION = "calibration"


class Document(Struct, frozen=True, kw_only=True):
    """A YAML file that holds a mapping: where it lies and its top-level keys and values."""

    path: Path
    values: dict[str, object]

    @property
    def name(self) -> str:
        """File name without its suffix."""
        return self.path.stem


def packaged_configs() -> Path:
    """The configuration that comes with the advisor: inside the wheel, or of the checkout."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def config_folders(config_dir: Path | None = None) -> tuple[Path, ...]:
    """Folders searched, first wins; UserError where `config_dir` is given and is no folder."""
    if config_dir is None:
        return (Path("configs"), packaged_configs())
    if not os.path.isdir(config_dir):
        raise UserError("--config-dir", show_path(config_dir), "is not a folder")
    return (Path(config_dir), Path("configs"), packaged_configs())


def config_names(group: ConfigGroup, config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all files of a group, sorted."""
    found: set[str] = set()
    for folder in config_folders(config_dir):
        try:
            entries = os.listdir(folder / group)
        except OSError:  # this folder has no such group
            continue
        found.update(entry.removesuffix(SUFFIX) for entry in entries if entry.endswith(SUFFIX))
    return tuple(sorted(found))


def find_config(group: ConfigGroup, name: str, config_dir: Path | None = None) -> Path | None:
    """The file of a name in the first folder that has it; None where none has."""
    if os.path.basename(name) != name:
        return None
    for folder in config_folders(config_dir):
        path = folder / group / (name + SUFFIX)
        if os.path.isfile(path):
            return path
    return None


def load_config(
    group: ConfigGroup, name: str, config_dir: Path | None = None, field: str = ""
) -> Document:
    """The file of a name of a group; UserError with the nearest names where there is none.

    `field` is what the error calls the name (a flag, say); the group where it is empty.
    """
    path = find_config(group, name, config_dir)
    if path is None:
        raise unknown_name(group, name, config_dir, field)
    return load_yaml(path)


def unknown_name(
    group: ConfigGroup, name: str, config_dir: Path | None = None, field: str = ""
) -> UserError:
    """The error for a name that no folder has, with the nearest ones."""
    known = config_names(group, config_dir)
    return UserError(field or group, show(name), f"unknown {group}", nearest_names(name, known))


def load_yaml(path: Path) -> Document:
    """The mapping that a YAML file holds; UserError where it is broken or something else."""
    text = read_text(path, MOST_CONFIG_BYTES)
    return Document(path=path, values=compiled(text) or read_yaml(text, path))
