"""Trackers that are known, and whether they are installed."""

from collections.abc import Sequence
from enum import StrEnum
from importlib.util import find_spec

from advisor.base.errors import missing_package
from advisor.base.fields import convert


class TrackerName(StrEnum):
    """The trackers that are known, by the name of their Python package."""

    MLFLOW = "mlflow"
    WANDB = "wandb"
    TENSORBOARD = "tensorboard"


def parse_trackers(names: Sequence[str], field: str) -> tuple[TrackerName, ...]:
    """The trackers named; UserError for one that is not known or not installed."""
    found = tuple(dict.fromkeys(convert(name, TrackerName, "", field) for name in names))
    for name in found:
        if find_spec(name) is None:
            package = "mlflow-skinny" if name is TrackerName.MLFLOW else str(name)
            raise missing_package(f"{field} {name}", package, str(name))
    return found
