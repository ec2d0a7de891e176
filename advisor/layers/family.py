"""What a family of layers says of itself, and which one a model's layers are of.

A family is a folder with this file. Its ``__init__`` names the values of transformer_impl that it
stands for (IMPLEMENTATIONS), its ``family.py`` holds FAMILY; what no model needs is not imported.
"""

from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Final

from msgspec import Struct

from advisor.layers.operators import Operator
from advisor.layers.shape import RankShape
from advisor.models import layer_kind, model_fields, options


class VisionEnd(StrEnum):
    """What is before the blocks of a vision tower, and what brings its output to the decoder; both
    next to blocks that run without gradients as well."""

    PATCH_EMBEDDING = "patch embedding"
    PROJECTOR = "projector"
    CONSTANT_PATCHES = "patch embedding without gradients"
    CONSTANT_PROJECTOR = "projector after a tower without gradients"


class LayerFamily(Struct, frozen=True, kw_only=True):
    """How the modules of one package write the parts of a model.

    source: the package. layer, embedding: operators of one layer, and of what comes before the
    first. head: those after the last, by what runs as one. mask_bytes: of the attention masks that
    the model makes for all its layers. holds_embedding: a variable of the model's forward holds the
    embedding's output until the final norm is through. loss_inside: that forward computes the loss
    as well. autocasts: its operators are known under autocast. masks_rows: torch's attention takes
    a mask [b, 1, s, s] of rows with several samples, or with padding. tuned: operators of a layer
    or an end of the model where `shape.tuning` freezes parameters or adds adapters; None: not
    known. vision: operators of either end of a vision tower (VisionEnd); None: the family has none.
    """

    source: str
    layer: Callable[[RankShape, layer_kind.LayerKind], tuple[Operator, ...]]
    embedding: Callable[[RankShape], tuple[Operator, ...]]
    head: Callable[[RankShape], tuple[tuple[str, tuple[Operator, ...]], ...]]
    mask_bytes: Callable[[RankShape], int] = lambda _: 0
    holds_embedding: bool = False
    loss_inside: bool = False
    autocasts: bool = False
    masks_rows: bool = False
    tuned: Callable[[RankShape, tuple[Operator, ...]], tuple[Operator, ...]] | None = None
    vision: Callable[[RankShape, VisionEnd], tuple[Operator, ...]] | None = None


_LOADED: Final[dict[options.TransformerImpl, LayerFamily]] = {}


def family_of(model: model_fields.ModelFields) -> LayerFamily:
    """The family that the model's transformer_impl names."""
    found = _LOADED.get(model.transformer_impl)
    return _load(model.transformer_impl) if found is None else found


def implementation_of_towers() -> options.TransformerImpl:
    """The first whose family has vision towers."""
    every = options.TransformerImpl
    return next(impl for impl in every if (_LOADED.get(impl) or _load(impl)).vision is not None)


def _load(impl: options.TransformerImpl) -> LayerFamily:
    for path in sorted(Path(__file__).parent.glob("*/family.py")):
        package = f"{__package__}.{path.parent.name}"
        if impl in import_module(package).IMPLEMENTATIONS:
            family: LayerFamily = import_module(f"{package}.family").FAMILY
            _LOADED[impl] = family
            return family
    raise LookupError(f"no folder of {__package__} implements transformer_impl {impl}")
