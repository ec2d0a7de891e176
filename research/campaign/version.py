"""Which program is this: so that what failed is tried again once the program has changed."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import advisor
import harness
from advisor.base.configuration import packaged_configs


def program_version() -> str:
    """Twelve hex digits over modules and configuration of the advisor and the harness.

    A copy without git has one too, and of two sets of uncommitted changes each has its own.
    Research is left out, campaigns with it: it changes no measurement of the harness.
    """
    return digest((*(Path(one.__path__[0]) for one in (advisor, harness)), packaged_configs()))


def probe_version() -> str:
    """The same of probes and what they measure with."""
    research = Path(__file__).parents[1]
    return digest((research / "probes", research / "kernels"))


def digest(folders: Iterable[Path]) -> str:
    """Of all Python and YAML files below `folders`: their paths there, and what is in them."""
    found = hashlib.sha256()
    for folder in folders:
        sources = (path for path in folder.rglob("*") if path.suffix in (".py", ".yaml"))
        for path in sorted(sources):
            found.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]


if __name__ == "__main__":
    print(program_version())
