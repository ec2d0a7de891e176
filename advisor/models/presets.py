"""Models by name, by YAML file or by Hugging Face config.json.

A YAML file of a model holds ModelSpec's fields; next to them `base` (a preset whose fields it takes
over), `source`, `published_parameters` (value and source), `notes` and `hub`, ids of checkpoints
on the Hugging Face hub that have this shape. Its name is the file's.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct

from advisor.base.configuration import (
    ConfigGroup,
    Document,
    config_names,
    find_config,
    load_config,
    load_yaml,
    unknown_name,
)
from advisor.base.documents import read_text, read_yaml
from advisor.base.errors import UserError, nearest_names, show, show_path
from advisor.base.fields import convert, field_types, read_record
from advisor.base.limits import MOST_CONFIG_BYTES
from advisor.models.spec import ModelSpec

_FLAG = "--model"
_OTHERS = "(advise models lists all; a config.json or a YAML file works too)"
_YAML = (".yaml", ".yml")


class PublishedParameters(Struct, frozen=True, kw_only=True):
    """A parameter count as someone states it, and who does; labels such as "70B" are rounded."""

    value: int
    source: str


class ModelPreset(Struct, frozen=True, kw_only=True):
    """A model with where its shape comes from and what its authors say its size is."""

    spec: ModelSpec
    source: str = ""
    published_parameters: PublishedParameters | None = None
    notes: str = ""
    hub: tuple[str, ...] = ()


def model_names(config_dir: Path | None = None) -> tuple[str, ...]:
    """Names of all model presets, sorted."""
    return config_names(ConfigGroup.MODEL, config_dir)


ModelSource: TypeAlias = str | os.PathLike[str] | ModelSpec | Mapping[str, object]
"""What names a model: a preset or a path, the model itself, or its fields."""


def load_model(source: ModelSource, config_dir: Path | None = None) -> ModelSpec:
    """The model of a preset's name, a YAML file, or a config.json (file or folder).

    A preset wins over a file of the same name; case and dashes of its name do not matter. A file
    or folder wins over an id of the Hugging Face hub. A mapping has the keys of such a YAML file,
    with `name`. UserError if there is no such model, or if a field is wrong.
    """
    if isinstance(source, ModelSpec):
        return source
    if isinstance(source, Mapping):
        for key in source:
            if not isinstance(key, str):
                raise UserError("model", show(key), "is not a known key")
        return _read_preset(Document(path=Path("model"), values=dict(source)), config_dir).spec
    if not isinstance(source, str | os.PathLike):
        raise UserError("model", show(source), "must be a name, a path, a ModelSpec or a mapping")
    name_or_path = os.fspath(source)
    preset = _preset_name(name_or_path, config_dir)
    if preset is not None:
        return load_preset(preset, config_dir).spec
    path = Path(name_or_path)
    if os.path.isdir(name_or_path):  # unlike Path.is_dir, never an OSError
        return _from_file(_config_in(path), config_dir)
    if os.path.isfile(name_or_path):
        return _from_file(path, config_dir)
    if known := _on_the_hub(name_or_path.lower(), config_dir):
        return load_preset(known, config_dir).spec
    if path.suffix in (*_YAML, ".json") or len(path.parts) > 1:
        raise _no_such_path(name_or_path, config_dir)
    from advisor.models.config_json.importer import REFUSED

    asked = name_or_path.lower()
    family = asked if asked in REFUSED else asked.partition("_")[0]
    if family in REFUSED:
        raise UserError(_FLAG, show_path(name_or_path), REFUSED[family])
    unknown = unknown_name(ConfigGroup.MODEL, name_or_path, config_dir, _FLAG)
    raise UserError(_FLAG, unknown.value, unknown.relation, f"{unknown.nearest} {_OTHERS}")


def _on_the_hub(name: str, config_dir: Path | None) -> str | None:
    """The preset of an id, or of its copy in another type or of another owner."""
    known, plain = hub_ids(config_dir), _OTHER_TYPE.sub("", name)
    copied = plain.rpartition("/")[2] if _is_id(name) else plain
    return known.get(name) or known.get(copied)


_OTHER_TYPE: Final = re.compile(r"((-unsloth)?-bnb-4bit|-fp8|-bf16|-awq|-gptq-int[48])$")


def _is_id(name: str) -> bool:
    return name.count("/") == 1 and name[0] not in "./~" and not name.endswith((*_YAML, ".json"))


def hub_ids(config_dir: Path | None = None) -> dict[str, str]:
    """Presets by the ids of checkpoints on the Hugging Face hub that have their shape, with and
    without owner, in lower case."""
    found: dict[str, str] = {}
    for path, text in _texts(config_dir).items():
        if (said := _HUB.search(text)) is None:
            continue
        if _PLAIN.fullmatch(said[1]):  # parsing all files takes a tenth of a second
            ids: tuple[str, ...] = (*said[1].split()[1::2],)
        else:
            ids = convert(read_yaml(said[0], path)["hub"], tuple[str, ...], path, "hub")
        for owned in map(str.lower, ids):
            found |= {owned: path.stem, owned.rpartition("/")[2]: path.stem}
    return found


_HUB: Final = re.compile(r"(?m)^hub:(.*(?:\n[ \t-].*)*)")
_PLAIN: Final = re.compile(r"(?:\n *- [\w./-]+)+\s*")
"""Ids as presets list them, which need no parser."""
_BASE: Final = re.compile(r"""(?m)^base: *["']?([\w.-]+)""")


def _texts(config_dir: Path | None) -> dict[Path, str]:
    paths = (find_config(ConfigGroup.MODEL, name, config_dir) for name in model_names(config_dir))
    return {path: read_text(path, MOST_CONFIG_BYTES) for path in paths if path}


def presets_with(words: Collection[str], config_dir: Path | None = None) -> Iterator[str]:
    """Names of the presets whose file, with those that it inherits from, has all of these words."""
    texts = {path.stem: text for path, text in _texts(config_dir).items()}
    for name, whole in texts.items():
        above = _BASE.search(whole)
        while above and (more := texts.get(above[1], "")) not in whole:
            whole, above = whole + more, _BASE.search(more)
        if all(word in whole for word in words):
            yield name


def _no_such_path(name: str, config_dir: Path | None) -> UserError:
    """Also for what reads like an id of the Hugging Face hub that no preset has."""
    path, relation, near = Path(name), "no such file or folder", "presets:"
    if _is_id(name):
        relation = "is no folder here, and no preset has this id of the Hugging Face hub"
        path, near = Path(f"{path.name}.yaml"), "give its config.json;"
    near += f" {nearest_names(path.stem, model_names(config_dir))}"
    return UserError(_FLAG, show_path(name), relation, near)


def load_preset(name: str, config_dir: Path | None = None) -> ModelPreset:
    """A preset of configs/model with its provenance; UserError with the nearest names."""
    return _read_preset(load_config(ConfigGroup.MODEL, name, config_dir, _FLAG), config_dir)


def _preset_name(name: str, config_dir: Path | None) -> str | None:
    names = (name, name.lower().replace("-", "_"))
    return next((n for n in names if find_config(ConfigGroup.MODEL, n, config_dir)), None)


def _config_in(folder: Path) -> Path:
    path = folder / "config.json"
    if not os.path.isfile(path):
        raise UserError(_FLAG, show_path(folder), "this folder holds no config.json")
    return path


def _from_file(path: Path, config_dir: Path | None) -> ModelSpec:
    if path.suffix == ".json":
        from advisor.models.config_json.importer import load_config_json

        return load_config_json(path)
    if path.suffix in _YAML:
        return _read_preset(load_yaml(path), config_dir).spec
    raise UserError(_FLAG, show_path(path), "is neither a YAML file nor a config.json")


def _read_preset(document: Document, config_dir: Path | None) -> ModelPreset:
    path, values = document.path, _inherited(document, config_dir, seen=())
    shape = {"name": document.name}
    about = {key: values.pop(key) for key in _ABOUT if key in values}
    _check_keys(values, path)
    spec = read_record(ModelSpec, shape | values, path)
    types = field_types(ModelPreset)
    said = {key: convert(about[key], types[key], path, key) for key in about}
    return ModelPreset(spec=spec, **said)


def _inherited(
    document: Document, config_dir: Path | None, seen: tuple[Path, ...]
) -> dict[str, object]:
    """Keys of a file over those of its base; what is said about the base is not inherited,
    except for its published size where the shape is the same except the context."""
    values = dict(document.values)
    if "base" not in values:
        return values
    base = convert(values.pop("base"), str, document.path, "base")
    parent = load_config(ConfigGroup.MODEL, base, config_dir, f"{document.path}: base")
    if parent.path in (document.path, *seen):
        raise UserError(f"{document.path}: base", base, "leads back to the file itself")
    taken = _inherited(parent, config_dir, (*seen, document.path))
    if not _SIZE_NEUTRAL.issuperset(values):
        taken.pop("published_parameters", None)
    for key in ("name", "notes", "hub"):
        taken.pop(key, None)
    return taken | values


def _check_keys(values: dict[str, object], path: Path) -> None:
    known = (*field_types(ModelSpec), *_ABOUT, "base")
    for key, value in values.items():
        if key not in known:
            raise UserError(
                f"{path}: {key}", show(value), "is not a known key", nearest_names(key, known)
            )


_ABOUT = ("source", "published_parameters", "notes", "hub")
_SIZE_NEUTRAL = frozenset((*_ABOUT, "name", "max_position_embeddings"))
