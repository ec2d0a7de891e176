"""The version of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

NAME: Final = "recompute-advisor"


def installed_version() -> str:
    """The version of the distribution; ``(not installed)`` in a checkout that nobody installed."""
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "(not installed)"
