"""A job's layout: what is given of it, what a recipe lends, and what is left to be chosen."""

from collections.abc import Collection, Mapping
from math import gcd, prod
from typing import Any, Final

from msgspec.structs import asdict, replace

from advisor.base.errors import UserError, nearest_divisors
from advisor.job.job import Optimizer
from advisor.job.layout import EVEN, SHORT_NAMES, ParallelLayout, fits_layout
from advisor.job.pipeline_split import holds_layers
from advisor.models.options import CpCommType
from advisor.models.spec import ModelSpec
from advisor.plan.split import split_evenly, virtual_degrees

LONG_CONTEXT: Final = 16384
"""Sequence length from which context parallelism is tried unasked."""

_SHORT: Final = {name: short for short, name in SHORT_NAMES.items()}
_TP, _CP, _PP, _VPP, _EP, _ETP, _DP = _SHORT
DEGREES: Final = (_TP, _CP, _PP, _VPP, _EP)
SEARCHED: Final = frozenset((*_SHORT, "sequence_parallel", "cp_comm_type"))
"""Fields of ParallelLayout that a search sets, unless they are given."""
_AS_SEARCHED: Final = {
    **EVEN,
    "cp_comm_type": CpCommType.P2P,
    "hierarchical_context_parallel_sizes": None,
}
SHAPING = (_TP, _PP, _CP)
"""Degrees that take GPUs from data parallelism."""


def freed(
    layout: ParallelLayout | None, given: dict[str, Any]
) -> tuple[ParallelLayout | None, dict[str, Any]]:
    """`layout` and what is `given` of it, without all that a search can choose."""
    kept = {k: v for k, v in given.items() if k not in SEARCHED | _AS_SEARCHED.keys()}
    return layout and replace(layout, **_AS_SEARCHED), kept


def degree_words(layout: ParallelLayout, names: Collection[str] = DEGREES) -> str:
    """``TP 4, PP 16, EP 8``: degrees that are not 1, in the order of their names; ``TP 1`` where
    all of them are."""
    degrees = {_SHORT[name]: getattr(layout, name) for name in DEGREES if name in names}
    larger = [f"{short} {degree}" for short, degree in degrees.items() if degree > 1]
    return ", ".join(larger or [f"{short} 1" for short in degrees])


def open_degrees(given: dict[str, Any], model: ModelSpec, seq_length: int) -> tuple[str, ...]:
    """Degrees that `given` fields leave open, where no recipe says them: those without which
    somebody who knows the model and the sequence would not call the layout complete."""
    wanted = [_TP, _PP]
    if given.get(_PP) != 1 and not given.get("pipeline_model_parallel_layout"):
        wanted.append(_VPP)
    if seq_length >= LONG_CONTEXT and not given.get("hierarchical_context_parallel_sizes"):
        wanted.append(_CP)
    if model.num_moe_experts is not None:
        wanted.append(_EP)
    return tuple(name for name in wanted if name not in given)


def reshaped(
    given: dict[str, Any], base: ParallelLayout | None, num_gpus: int
) -> ParallelLayout | None:
    """A recipe's layout `base` under what is given; None where neither says anything about it."""
    if base is None and not any(name in given for name in SHAPING):
        return None
    values = {}
    if base is not None:
        _drop_what_follows(values := asdict(base), given)
        if base.world_size != num_gpus:
            values.pop("data_parallel_size", None)
    values |= given
    values.setdefault("sequence_parallel", values.get(_TP, 1) > 1)
    values.setdefault("data_parallel_size", _data_parallel(values, given, num_gpus))
    return ParallelLayout(**values)


def lowered(given: Mapping[str, Any], base: ParallelLayout, num_gpus: int) -> dict[str, int]:
    """Degrees of a recipe's layout `base` that do not divide the GPUs next to those that are given:
    the largest of their divisors that do."""
    found = {name: getattr(base, name) for name in (*SHAPING, _EP) if name not in given}
    ranks = num_gpus // (prod(given.get(name, 1) for name in SHAPING) or 1)
    for name in SHAPING:
        if name in found:
            found[name] = gcd(found[name], ranks)
            ranks //= found[name]
    if _EP in found:
        stage = num_gpus // (given.get(_PP, found.get(_PP)) or 1)
        tensor = given.get(_ETP, base.expert_tensor_parallel_size) or 1
        found[_EP] = gcd(found[_EP], stage // tensor)
    return {name: degree for name, degree in found.items() if degree != getattr(base, name)}


def _drop_what_follows(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Leave out of a preset's `values` what other degrees than its own decide anew."""
    changed = {name for name in DEGREES if given.get(name, values[name]) != values[name]}
    if changed & set(SHAPING):
        values.pop("data_parallel_size")
    if _TP in changed:
        values.pop("sequence_parallel")
    if changed & {_PP, _VPP}:
        values.pop("pipeline_model_parallel_layout")
    if _PP in changed:
        values.pop(_VPP)


def made_legal(
    layout: ParallelLayout, given: dict[str, Any], model: ModelSpec, *, as_text: bool
) -> ParallelLayout:
    """`layout` with what would make it illegal, and nobody said, settled: its layers split as
    evenly as can be where PP does not divide them (and the text of a recipe is left out where the
    release reads none, or it is of other layers); experts not cut by tensor parallelism where they
    cannot be."""
    text = layout.pipeline_model_parallel_layout
    holds = as_text and (not text or holds_layers(model, text))
    if not holds and "pipeline_model_parallel_layout" not in given:
        layout = replace(layout, pipeline_model_parallel_layout="")
    pp, vpp = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
    if model.num_layers % pp and vpp in virtual_degrees(model, pp):
        layout = split_evenly(model, layout, as_text=as_text)
    whole = replace(layout, expert_tensor_parallel_size=1)
    uncut = _ETP not in given and fits_layout(model, whole) and not fits_layout(model, layout)
    return whole if uncut else layout


def _data_parallel(values: dict[str, Any], given: Collection[str], num_gpus: int) -> int:
    """What TP x CP x PP leave of the GPUs."""
    degrees: dict[str, int] = {name: values.get(name, 1) for name in SHAPING}
    for name, degree in degrees.items():
        if degree < 1:
            raise UserError(f"layout.{name}", degree, "must be at least 1")
    product = prod(degrees.values())
    if num_gpus % product:
        its = [name for name in SHAPING if name not in given and degrees[name] > 1]
        omitted = " and ".join(f"{_SHORT[name]} {values[name]}" for name in its)
        flags = ", ".join(f"--{_SHORT[name].lower()}" for name in its)
        lent = f" ({omitted} from the recipe; change with {flags})" if its else ""
        relation = f"must divide the number of GPUs = {num_gpus}{lent}"
        near = f"nearest: {nearest_divisors(num_gpus, product)}"
        raise UserError("layout TP x PP x CP", product, relation, near)
    return num_gpus // product


def whole_tensors(optimizer: Optimizer) -> dict[str, Any]:
    """What an optimizer of whole tensors needs of the layout, where the request says nothing.

    Megatron-LM 0.16 and 0.17 refuse overlapped reductions with plain muon (arguments.py).
    """
    if not optimizer.is_muon:
        return {}
    reduced = {"overlap_grad_reduce": False} if optimizer is Optimizer.MUON else {}
    return {"use_distributed_optimizer": False, **reduced}
