"""Which program is this: so that what failed is tried again once the program has changed."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from advisor.base.configuration import Group, packaged_configs
from advisor.base.distribution import package_folder


def program_version() -> str:
    """Twelve hex digits over modules and configuration of the advisor and the harness.

    A copy without git has one too, and of two sets of uncommitted changes each has its own.
    Campaigns and what runs them are left out: they change no measurement.
    """
    return digest((package_folder(), Path(__file__).parents[1], packaged_configs()))


def digest(folders: Iterable[Path]) -> str:
    """Of all Python and YAML files below `folders`: their paths there, and what is in them."""
    found = hashlib.sha256()
    for folder in folders:
        for path in sorted(_sources(folder)):
            found.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]


def _sources(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.suffix in (".py", ".yaml") and path.parent.name != Group.CAMPAIGN:
            yield path


if __name__ == "__main__":
    print(program_version())
