"""The packaged presets, read already: PyYAML takes longer to load than an answer to compute.

A wheel holds one more file, which hatch_build.py makes: what each of its YAML files means, by the
text of the file. Text that is not in there, a user's, a changed preset or a checkout's, is read as
YAML: what is compiled is never stale.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Raw, msgpack

from advisor.base.documents import read_text, read_yaml

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
