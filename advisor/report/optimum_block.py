"""What the page says of a proven optimum."""

from advisor.answer.answer import SAME_TIME, Optimum
from advisor.base.units import many
from advisor.report.blocks import Block, group, labelled_rows

_SMALLEST_GAP = 5e-5
"""Less is 0.00 % on a page."""


def optimum_block(optimum: Optimum, *, stopped: bool = False) -> Block:
    """The claim, or how far a search was that was stopped, with how many points were looked at; the
    space it is for; what lies beyond."""
    lines = [("  -", text) for text in optimum.space]
    return group(
        _claim(optimum, stopped=stopped),
        *(labelled_rows([line], gap=1) for line in lines),
        *(f"Outside the space: {text}" for text in optimum.beyond),
    )


def _claim(optimum: Optimum, *, stopped: bool) -> str:
    looked = f"{optimum.evaluated:,} evaluated"
    if optimum.excluded_by_bound:
        looked += f", {many(optimum.excluded_by_bound)} excluded by a proven bound"
    points = "" if optimum.num_points is None else f"{many(optimum.num_points)} "
    said = _so_far(optimum) if stopped else _proven(optimum)
    counted = f"{points}combinations: {looked}"
    return f"{said}. {counted[:1].upper()}{counted[1:]}."


def _so_far(optimum: Optimum) -> str:
    if optimum.bound_seconds is None:
        return "Stopped before anything was proven"
    said = (
        f"Stopped. Proven so far: a setting that fits takes at least {optimum.bound_seconds:.3f} s"
    )
    if optimum.best is None or optimum.gap is None:
        return said
    less = 1 - 1 / (1 + optimum.gap)
    of_menu = optimum.gain is not None and optimum.gain < SAME_TIME
    gained = "" if of_menu else _gained(optimum, optimum.best.rank)
    return f"{said}, {less * 100:.1f} % less than row {optimum.best.rank}{gained}"


def _proven(optimum: Optimum) -> str:
    if optimum.best is None and optimum.bound_seconds is None:
        return "Proven with predicted memory: no setting of the space below fits"
    if optimum.best is None:
        return (
            "No setting that fits was found; a setting that fits takes at least "
            f"{optimum.bound_seconds:.3f} s"
        )
    row, gap = optimum.best.rank, optimum.gap or 0.0
    if gap < _SMALLEST_GAP:
        said = f"is faster than row {row}"
    elif gap <= SAME_TIME:
        said = f"is more than {SAME_TIME * 100:.2f} % faster than row {row}"
    else:
        less = f"{gap * 100:.2f} % less than row {row}"
        said = f"takes less than {optimum.bound_seconds:.3f} s, {less}"
    proven = "Proven with predicted step times: no fitting setting of the space below"
    return f"{proven} {said}{_gained(optimum, row)}"


_USUAL = "the ranking without --search optimum"


def _gained(optimum: Optimum, row: int) -> str:
    if optimum.gain is None:
        return f", and no setting of {_USUAL} fits"
    if optimum.gain < SAME_TIME:
        return f", and the best setting of {_USUAL} takes the same time"
    less = f"{optimum.gain * 100:.1f} % less time"
    return f". Row {row} takes {less} than the best setting of {_USUAL}"
