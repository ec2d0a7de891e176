"""Megatron's recompute settings: the five fields of TransformerConfig and their short spelling."""

from enum import StrEnum
from typing import TypedDict

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError, nearest_names
from advisor.base.units import whole_number
from advisor.plan.recompute_plan import Setting


class Granularity(StrEnum):
    """`--recompute-granularity`."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Method(StrEnum):
    """`--recompute-method`, of full recompute."""

    UNIFORM = "uniform"
    BLOCK = "block"


class RecomputeSetting(Struct, frozen=True, kw_only=True):
    """What a user writes into Megatron's configuration.

    `modules` None means unset, which Megatron promotes to ("core_attn",) at finalisation, while an
    empty tuple recomputes nothing. `num_layers` and `method` belong to full recompute.
    `offload_modules` is fine-grained activation offloading, `offload_fraction` how much of it each
    chunk does, its first layers first; `cpu_offloading_num_layers` offloads whole layers
    (cpu_offloading), 0 none.
    """

    granularity: Granularity = Granularity.NONE
    modules: tuple[str, ...] | None = None
    method: Method | None = None
    num_layers: int | None = None
    distribute_saved_activations: bool = False
    offload_modules: tuple[str, ...] = ()
    offload_fraction: float = 1.0
    cpu_offloading_num_layers: int = 0

    @property
    def effective_modules(self) -> tuple[str, ...]:
        """The modules that selective recompute acts on, after Megatron's promotion."""
        if self.granularity is not Granularity.SELECTIVE:
            return ()
        return ("core_attn",) if self.modules is None else self.modules

    @property
    def promoted(self) -> "RecomputeSetting":
        """This setting as Megatron runs it: the modules written out, an empty list as none."""
        modules = tuple(sorted(self.effective_modules))
        if self.granularity is not Granularity.SELECTIVE or modules:
            return replace(self, modules=modules or None)
        return replace(self, granularity=Granularity.NONE, modules=None)

    @property
    def spec(self) -> str:
        """The short spelling, e.g. ``selective:core_attn,mlp`` or ``full:block:8``."""
        listed = self.granularity is Granularity.SELECTIVE and self.modules is not None
        parts = {
            f":{','.join(self.modules or ())}": listed,
            f":{self.method}:{self.num_layers}": self.granularity is Granularity.FULL,
            f"+offload={','.join(self.offload_modules)}": self.offload_modules,
            f"+offload_fraction={self.offload_fraction:g}": self.offload_fraction != 1.0,
            f"+cpu_offloading={self.cpu_offloading_num_layers}": self.cpu_offloading_num_layers,
            "+distribute_saved_activations": self.distribute_saved_activations,
        }
        return str(self.granularity) + "".join(part for part, holds in parts.items() if holds)


NONE = RecomputeSetting()
"""No recompute."""

_FORMS = "none, selective:core_attn,mlp, full:uniform:4 or full:block:8"
_SUFFIXES = (
    "+offload=MODULES, +offload_fraction=0.5, +cpu_offloading=LAYERS or "
    "+distribute_saved_activations"
)


def selective(*modules: str) -> RecomputeSetting:
    """Selective recompute of `modules`."""
    return RecomputeSetting(granularity=Granularity.SELECTIVE, modules=modules)


def as_megatron(setting: Setting) -> RecomputeSetting:
    """The setting as one of Megatron's."""
    assert isinstance(setting, RecomputeSetting), f"{setting!r} is not a setting of Megatron"
    return setting


def full(method: Method, num_layers: int, *, distribute: bool = False) -> RecomputeSetting:
    """Full recompute of `num_layers` by `method`."""
    return RecomputeSetting(
        granularity=Granularity.FULL,
        method=method,
        num_layers=num_layers,
        distribute_saved_activations=distribute,
    )


class _Common(TypedDict, total=False):
    distribute_saved_activations: bool
    offload_modules: tuple[str, ...]
    offload_fraction: float
    cpu_offloading_num_layers: int


def parse_setting(text: str) -> RecomputeSetting:
    """Read SPEC; UserError on anything else than the forms of the command line.

    >>> parse_setting("selective:core_attn,mlp").modules
    ('core_attn', 'mlp')
    """
    head, *suffixes = text.strip().split("+")
    common = _parse_suffixes(text, suffixes)
    match head.split(":"):
        case ["none"]:
            return RecomputeSetting(**common)
        case ["selective"]:
            return RecomputeSetting(granularity=Granularity.SELECTIVE, **common)
        case ["selective", modules]:
            return RecomputeSetting(
                granularity=Granularity.SELECTIVE, modules=_names(modules), **common
            )
        case ["full", method, number]:
            return RecomputeSetting(
                granularity=Granularity.FULL,
                method=_parse_method(text, method),
                num_layers=_parse_number(text, number),
                **common,
            )
    raise UserError("--recompute", text, "is not a recompute setting", f"write {_FORMS}")


def _parse_suffixes(text: str, suffixes: list[str]) -> _Common:
    found = _Common()
    for suffix in suffixes:
        match suffix.partition("="):
            case ("offload", "=", names):
                found["offload_modules"] = _names(names)
                if not found["offload_modules"]:
                    fix = "write e.g. none+offload=core_attn,attn_proj"
                    raise UserError("--recompute", text, "+offload= names no module", fix)
            case ("offload_fraction", "=", number):
                found["offload_fraction"] = _parse_fraction(text, number)
            case ("cpu_offloading", "=", number):
                found["cpu_offloading_num_layers"] = _parse_number(text, number)
            case ("distribute_saved_activations", "", ""):
                found["distribute_saved_activations"] = True
            case _:
                reason = f"+{suffix} is not known"
                raise UserError("--recompute", text, reason, _SUFFIXES)
    if "offload_fraction" in found and "offload_modules" not in found:
        reason = "+offload_fraction needs +offload"
        raise UserError("--recompute", text, reason, "add e.g. +offload=core_attn")
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _parse_fraction(text: str, number: str) -> float:
    try:
        fraction = float(number)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction <= 1:
        reason = f"{number} must be more than 0 and at most 1"
        raise UserError(
            "--recompute", text, reason, "write e.g. none+offload=core_attn+offload_fraction=0.5"
        )
    return fraction


def _parse_method(text: str, method: str) -> Method:
    if method not in list(Method):
        fix = nearest_names(method, list(Method))
        raise UserError("--recompute", text, f"method {method} is not known", fix)
    return Method(method)


def _parse_number(text: str, number: str) -> int:
    if not whole_number(number):
        reason = f"{number} must be a positive number of layers"
        raise UserError(
            "--recompute", text, reason, "write e.g. full:block:8 or none+cpu_offloading=8"
        )
    return int(number)
