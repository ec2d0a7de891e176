"""Where configuration lies and how a YAML file of it is read.

A name such as ``llama3_70b`` of the group ``model`` is the file ``model/llama3_70b.yaml`` of the
first of these folders that has it: --config-dir, ./configs of the working directory, the copy that
is packaged with the advisor. Listing names lists folders; only the file that is wanted is read.
"""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from advisor.base.errors import UserError
from advisor.base.fields import show, show_path
from advisor.base.units import nearest_names

SUFFIX = ".yaml"


class Group(StrEnum):
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
    CAMPAIGN = "campaign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
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
    return (config_dir, Path("configs"), packaged_configs())


def config_names(group: Group, config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all files of a group, sorted."""
    found: set[str] = set()
    for folder in config_folders(config_dir):
        try:
            entries = os.listdir(folder / group)
        except OSError:  # this folder has no such group
            continue
        found.update(entry.removesuffix(SUFFIX) for entry in entries if entry.endswith(SUFFIX))
    return tuple(sorted(found))


def find_config(group: Group, name: str, config_dir: Path | None = None) -> Path | None:
    """The file of a name in the first folder that has it; None where none has."""
    if os.path.basename(name) != name:
        return None
    for folder in config_folders(config_dir):
        path = folder / group / (name + SUFFIX)
        if os.path.isfile(path):
            return path
    return None


def load_config(
    group: Group, name: str, config_dir: Path | None = None, field: str = ""
) -> Document:
    """The file of a name of a group; UserError with the nearest names where there is none.

    `field` is what the error calls the name (a flag, say); the group where it is empty.
    """
    path = find_config(group, name, config_dir)
    if path is None:
        raise unknown_name(group, name, config_dir, field)
    return load_yaml(path)


def unknown_name(
    group: Group, name: str, config_dir: Path | None = None, field: str = ""
) -> UserError:
    """The error for a name that no folder has, with the nearest ones."""
    known = config_names(group, config_dir)
    return UserError(field or group, show(name), f"unknown {group}", nearest_names(name, known))


def load_yaml(path: Path) -> Document:
    """The mapping that a YAML file holds; UserError where it is broken or something else."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        values = yaml.load(text, Loader=_loader(text))
    except OSError as error:
        raise UserError("file", show_path(path), f"cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        raise UserError("file", show_path(path), f"is not valid YAML: {_place(error)}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError("file", show_path(path), f"is not valid YAML: {reason}") from None
    if not isinstance(values, dict):
        kind = "nothing" if values is None else f"a {type(values).__name__}"
        raise UserError("file", show_path(path), f"must hold keys and values, and holds {kind}")
    for key in values:
        if not isinstance(key, str):
            raise UserError(f"{path}: {show(key)}", show(values[key]), "is not a text key")
    return Document(path=path, values=values)


def _place(error: yaml.MarkedYAMLError) -> str:
    """``line 3, column 7: could not find expected ':'``."""
    mark = error.problem_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + " ".join((error.problem or "broken").split())


class _UniqueKeys:
    """Part of a loader that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {show(key)} is given twice", key_node.start_mark
                )
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)  # type: ignore[misc]
        return mapping


class _PlainLoader(_UniqueKeys, yaml.SafeLoader):
    """In Python: nesting without end is a RecursionError."""


class _FastLoader(_UniqueKeys, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """In C where libyaml is there, ten times as fast; nesting without end overflows its stack."""


def _loader(text: str) -> type[_PlainLoader] | type[_FastLoader]:
    """The fast loader, unless the text may nest deeper than any configuration does."""
    in_one_line = max((line.count("- ") + line.count("? ") for line in text.split("\n")), default=0)
    depth_at_most = text.count("[") + text.count("{") + in_one_line
    return _FastLoader if depth_at_most < _DEEP else _PlainLoader


_DEEP = 1000
