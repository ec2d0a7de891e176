"""A campaign: commands of the harness in the order of their value, each with the time it needs."""

import hashlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.configuration import load_yaml
from advisor.base.errors import UserError, nearest_names, show
from advisor.base.fields import read_record

OUT = "{out}"
"""Stands for the campaign's folder in an item's arguments."""
_EXTRAS: Final = {"transformer_engine": "gpu", "megatron": "megatron"}
"""Extras of this project by package; the others come with `harness`."""
LISTS: Final = Path(__file__).with_name("lists")


class Item(Struct, frozen=True, kw_only=True):
    """One command of the harness, or a probe.

    arguments: what follows `harness`, or `probe` and what follows `research.probes`; every
    command goes on where it was stopped. least_seconds: time below which it is not worth starting.
    most_seconds: it is ended then. why: what it is for. needs: Python packages without which it is
    passed over.
    """

    name: str
    arguments: tuple[str, ...]
    why: str
    needs: tuple[str, ...] = ()
    least_seconds: float = 30.0
    most_seconds: float = 600.0

    def __post_init__(self) -> None:
        if not self.name.replace("_", "").replace("-", "").isalnum():
            raise UserError("name", show(self.name), "must be letters, digits, - and _")
        if not self.arguments:
            raise UserError(f"{self.name}: arguments", "[]", "must name a command of the harness")
        if not 0 < self.least_seconds <= self.most_seconds:
            raise UserError(
                f"{self.name}: least_seconds",
                self.least_seconds,
                f"must be positive and at most most_seconds = {self.most_seconds}",
            )

    def command(self, out: Path) -> tuple[str, ...]:
        """Its arguments with the campaign's folder put in."""
        return tuple(argument.replace(OUT, str(out)) for argument in self.arguments)

    def lacks(self) -> tuple[str, ...]:
        """What it needs and is not installed here."""
        return tuple(package for package in self.needs if find_spec(package) is None)

    def extras(self) -> str:
        """The extras of this package with what it lacks."""
        return ",".join(dict.fromkeys(_EXTRAS.get(name, "harness") for name in self.lacks()))

    def key(self, environment: str) -> str:
        """Identity of the item in an environment: what is done under it is not done again."""
        text = json.dumps([self.arguments, environment])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Common(Struct, frozen=True, kw_only=True):
    """Arguments of every item of a command: they come before its own."""

    run: tuple[str, ...] = ()
    rehearse: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()


class Campaign(Struct, frozen=True, kw_only=True):
    """Items, the most valuable first, and what those of one command share."""

    items: tuple[Item, ...]
    common: Common = Common()

    def __post_init__(self) -> None:
        names = [item.name for item in self.items]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UserError("items", twice[0], "is given twice", "give every item its own name")

    def only(self, names: Sequence[str]) -> "Campaign":
        """Its items of these names, in this order."""
        known = {item.name: item for item in self.items}
        for name in names:
            if name not in known:
                raise UserError(
                    "--items",
                    show(name),
                    "is not an item of this campaign",
                    nearest_names(name, known),
                )
        return replace(self, items=tuple(known[name] for name in names))

    def first_run(self) -> Item | None:
        """The first item that trains something here; None where none does."""
        runs = (item for item in self.items if item.arguments[0] == "run")
        return next(
            (one for one in runs if "--dry-run" not in one.arguments and not one.lacks()), None
        )

    def spelled_out(self) -> "Campaign":
        """The same with every item's arguments whole."""
        return Campaign(items=tuple(self._whole(item) for item in self.items))

    def _whole(self, item: Item) -> Item:
        command, *own = item.arguments
        shared = getattr(self.common, command, ())
        return replace(item, arguments=(command, *shared, *own))


def load_campaign(name: str) -> Campaign:
    """The campaign of a YAML file, or of a name in LISTS."""
    path = Path(name)
    if not path.is_file():
        path = LISTS / f"{name}.yaml"
        known = sorted(one.stem for one in LISTS.glob("*.yaml"))
        if name not in known:
            raise UserError("campaign", show(name), "is unknown", nearest_names(name, known))
    document = load_yaml(path)
    return read_record(Campaign, document.values, document.path).spelled_out()
