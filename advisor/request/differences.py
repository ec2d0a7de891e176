"""What differs between a job and that of another precision, field by field."""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.fields import spelled
from advisor.request.given import read_given
from advisor.request.layout_fields import SEARCHED
from advisor.request.origin import changed_fields
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import Resolution, resolve_given, usual_recipe


def beside_precision(request: Request, resolution: Resolution) -> tuple[str, ...]:
    """In what the recipe for the 8 or 4 bits that are asked for makes another job than the recipe
    that is taken in 16 bits: ``layout.expert_model_parallel_size 32, not 8 (recipe …, for bf16)``.

    What a search of layouts sets is left out of it. Empty where what is given makes no job of that
    recipe.
    """
    given = read_given(request)
    if given.precision is None or not given.precision.is_quantized or not resolution.recipe:
        return ()
    usual = usual_recipe(given)
    if usual is None or usual.name == resolution.recipe:
        return ()
    try:
        other = resolve_given(replace(given, recipe=usual))
    except UserError:
        return ()
    aside = SEARCHED if request.search is SearchScope.LAYOUT else _FOLLOWS
    ending = f" (recipe {usual.name}, for {usual.config.precision})"
    return tuple(
        f"{group}.{name} {_said(own, name)}, not {_said(before, name)}{ending}"
        for group, own, before in (
            ("layout", resolution.layout, other.layout),
            ("job", resolution.config, other.config),
            ("model", resolution.model, other.model),
        )
        if own is not None and before is not None
        for name in changed_fields(own, before)
        if name not in aside
    )


_FOLLOWS: Final = frozenset({"data_parallel_size"})
"""What the other degrees leave."""


def _said(record: Struct, name: str) -> str:
    return spelled(getattr(record, name)) or "(empty)"
