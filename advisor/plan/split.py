"""Splits of layers that no number of stages divides: as even as Megatron lets them be.

What published recipes do (configs/recipe: "Et|(tt|)*30mL" and "Et*4|(t*4|)*14tmL" for the 61 layers
of DeepSeek-V3): every chunk gets the same number of layers, rounded up; those that are then too
many are left out at the end, where the output layer and multi-token prediction work as well.
"""

from functools import lru_cache
from itertools import groupby
from typing import Final

from msgspec.structs import replace

from advisor.base.errors import divisors
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.plan.flops import layer_weights

_MOST_LEFT_OUT: Final = 8
"""Of the layers that would fill all chunks, at most one in so many may be missing: beyond, some
stages wait for the others longer than a smaller pipeline's bubble takes (a judgement)."""


def virtual_degrees(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """VPP that give all chunks as many layers, except the few that are left out; none where those
    are too many."""
    each = -(-model.num_layers // pp)
    if model.num_layers % pp == 0:
        return divisors(each) if pp > 1 else (1,)
    if model.hybrid_layer_pattern is not None:
        return ()
    left_out = pp * each - model.num_layers
    if left_out * _MOST_LEFT_OUT > pp * each:
        return ()
    # only embedding and loss take a chunk of their own
    return tuple(vpp for vpp in divisors(each) if vpp < each or left_out <= 2)


def split_evenly(
    model: ModelSpec, layout: ParallelLayout, *, as_text: bool = True
) -> ParallelLayout:
    """`layout` with the layers on its PP x VPP chunks as evenly as can be; as it is where they
    divide, or where it says itself how to split them.

    as_text: by a pipeline_model_parallel_layout; else by the numbers of layers in the first and
    last stage, which the releases before it have. Whether VPP divides those a Job says."""
    pp, vpp = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
    divides = model.num_layers % (pp * vpp) == 0
    if divides or model.hybrid_layer_pattern is not None or not layout.splits_evenly:
        return layout
    if as_text:
        return replace(layout, pipeline_model_parallel_layout=balanced_text(model, pp, vpp))
    first, last = _ends(model, pp, vpp)
    return replace(
        layout, num_layers_in_first_pipeline_stage=first, num_layers_in_last_pipeline_stage=last
    )


@lru_cache(maxsize=1024)
def balanced_text(model: ModelSpec, pp: int, vpp: int) -> str:
    """The layout's text, e.g. "Et|(tt|)*30mL" for 61 layers and one more token on 32 chunks. A
    layer is left out of the chunk that works longest: the last one as long as output layer and
    multi-token prediction outweigh it, then the first one, whose stage keeps most microbatches."""
    counts = [-(-model.num_layers // (pp * vpp))] * (pp * vpp)
    left_out, ends = sum(counts) - model.num_layers, _weight_of_end(model)
    for _ in range(left_out):
        last = counts[-1] + ends if counts[-1] else 0.0
        longest = len(counts) - 1 if last > max(counts) else counts.index(max(counts))
        counts[longest] -= 1
    return _text(counts, model.mtp_num_layers or 0)


def _ends(model: ModelSpec, pp: int, vpp: int) -> tuple[int | None, int | None]:
    """Layers of the first and last stage next to stages rounded up, the slower of both as fast as
    can be; None for both where there are too few layers."""
    each = -(-model.num_layers // pp)
    both, end = model.num_layers - each * (pp - 2), _weight_of_end(model)
    pairs = [(both - n, n) for n in range(vpp, min(both, each + 1), vpp) if both - n <= each]
    return min(pairs, key=lambda pair: max(pair[0], pair[1] + end), default=(None, None))


def _weight_of_end(model: ModelSpec) -> float:
    """Work after the last layer, in layers: output layer and multi-token prediction."""
    layers, end = layer_weights(model)
    return end * model.num_layers / layers


def _text(counts: list[int], mtp: int) -> str:
    first, *middle, last = (_letters("t", count) for count in counts)
    runs = [(chunk, len(list(run))) for chunk, run in groupby(middle)]
    between = "".join(f"({c}|)*{n}" if n > 1 and c else f"{c}|" * n for c, n in runs)
    return f"E{first}|{between}{last}{_letters('m', mtp)}L"


def _letters(letter: str, count: int) -> str:
    return letter * count if count < 4 else f"{letter}*{count}"
