"""Megatron's recompute settings: the five fields of TransformerConfig and their short spelling."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from advisor.errors import UserError
from advisor.units import nearest_names


class Granularity(StrEnum):
    """`--recompute-granularity`."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Method(StrEnum):
    """`--recompute-method`, of full recompute."""

    UNIFORM = "uniform"
    BLOCK = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeSetting:
    """What a user writes into Megatron's configuration.

    `modules` None means unset, which Megatron promotes to ("core_attn",) at finalisation, while an
    empty tuple recomputes nothing. `num_layers` and `method` belong to full recompute.
    """

    granularity: Granularity = Granularity.NONE
    modules: tuple[str, ...] | None = None
    method: Method | None = None
    num_layers: int | None = None
    distribute_saved_activations: bool = False
    offload_modules: tuple[str, ...] = ()

    @property
    def effective_modules(self) -> tuple[str, ...]:
        """The modules that selective recompute acts on, after Megatron's promotion."""
        if self.granularity is not Granularity.SELECTIVE:
            return ()
        return ("core_attn",) if self.modules is None else self.modules

    @property
    def spec(self) -> str:
        """The short spelling, e.g. ``selective:core_attn,mlp`` or ``full:block:8``."""
        text = str(self.granularity)
        if self.granularity is Granularity.SELECTIVE and self.modules is not None:
            text += ":" + ",".join(self.modules)
        if self.granularity is Granularity.FULL:
            text += f":{self.method}:{self.num_layers}"
        if self.offload_modules:
            text += "+offload=" + ",".join(self.offload_modules)
        if self.distribute_saved_activations:
            text += "+distribute_saved_activations"
        return text


NONE = RecomputeSetting()
"""No recompute."""

_FORMS = "none, selective:core_attn,mlp, full:uniform:4 or full:block:8"


def selective(*modules: str) -> RecomputeSetting:
    """Selective recompute of `modules`."""
    return RecomputeSetting(granularity=Granularity.SELECTIVE, modules=modules)


def full(method: Method, num_layers: int, *, distribute: bool = False) -> RecomputeSetting:
    """Full recompute of `num_layers` by `method`."""
    return RecomputeSetting(
        granularity=Granularity.FULL, method=method, num_layers=num_layers,
        distribute_saved_activations=distribute,
    )  # fmt: skip


class _Common(TypedDict):
    distribute_saved_activations: bool
    offload_modules: tuple[str, ...]


def parse_setting(text: str) -> RecomputeSetting:
    """Read SPEC; UserError on anything else than the forms of the command line.

    >>> parse_setting("selective:core_attn,mlp").modules
    ('core_attn', 'mlp')
    """
    head, *suffixes = text.strip().split("+")
    fields = head.split(":")
    offload, distribute = _parse_suffixes(text, suffixes)
    common = _Common(distribute_saved_activations=distribute, offload_modules=offload)
    match fields:
        case ["none"]:
            return RecomputeSetting(granularity=Granularity.NONE, **common)
        case ["selective"]:
            return RecomputeSetting(granularity=Granularity.SELECTIVE, **common)
        case ["selective", modules]:
            names = tuple(name.strip() for name in modules.split(",") if name.strip())
            return RecomputeSetting(granularity=Granularity.SELECTIVE, modules=names, **common)
        case ["full", method, number]:
            return RecomputeSetting(
                granularity=Granularity.FULL, method=_parse_method(text, method),
                num_layers=_parse_number(text, number), **common,
            )  # fmt: skip
    raise UserError("--recompute", text, "is no recompute setting", f"write {_FORMS}")


def _parse_suffixes(text: str, suffixes: list[str]) -> tuple[tuple[str, ...], bool]:
    offload: tuple[str, ...] = ()
    distribute = False
    for suffix in suffixes:
        if suffix.startswith("offload="):
            offload = tuple(name for name in suffix.removeprefix("offload=").split(",") if name)
        elif suffix == "distribute_saved_activations":
            distribute = True
        else:
            raise UserError(
                "--recompute", text, f"+{suffix} is not known",
                "+offload=MODULES or +distribute_saved_activations",
            )  # fmt: skip
    return offload, distribute


def _parse_method(text: str, method: str) -> Method:
    if method not in list(Method):
        raise UserError("--recompute", text, f"method {method} is not known",
                        nearest_names(method, list(Method)))  # fmt: skip
    return Method(method)


def _parse_number(text: str, number: str) -> int:
    if not number.isdigit() or int(number) < 1:
        raise UserError("--recompute", text, f"{number} is no positive number of layers",
                        "write e.g. full:block:8")  # fmt: skip
    return int(number)
