"""The installed distribution: its version, and where the advisor's modules lie."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

NAME: Final = "recompute-advisor"


def installed_version() -> str:
    """The version of the distribution; ``(not installed)`` in a checkout that nobody installed."""
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "(not installed)"


def package_folder() -> Path:
    """The folder of the package `advisor`."""
    return Path(__file__).parents[1]
