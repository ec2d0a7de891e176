"""The answer to a request: on which layout its rows are, and what else would help."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.errors import UserError, if_legal
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.plan.recompute_plan import Setting
from advisor.request.differences import changes_with_precision
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import Resolution, resolve
from advisor.search.answer_parts import with_measurements_and_ties
from advisor.search.rank_settings import rank_settings

if TYPE_CHECKING:
    from advisor.search.layout_search import Watch


def advise(request: Request, watch: "Watch | None" = None, *, remedies: bool = True) -> Answer:
    """Rank every legal recompute setting of the requested job.

    UserError where the request is wrong. What neither a preset nor the request says of the layout
    is as in the recipe for the nearest number of the same GPUs; where there is none or nothing fits
    in it, the best of a search. `--search layout` ranks all layouts, `--search optimum` proves the
    best setting on the usual one. watch: is told how far a search of layouts is. remedies: whether
    what would help is looked for on a layout that is given.
    """
    resolution = resolve(request)
    calibration = _calibration(request, resolution)
    advice = _advise(request, resolution, calibration, watch, remedies=remedies)
    if not (request.quick or request.search is not None or advice.stopped):
        from advisor.search.fastest_found import with_fastest_found

        advice = with_fastest_found(advice, resolution, calibration, _asked(request, resolution))
    if not (advice.fits or advice.fastest_found or request.quick or advice.searched):
        from advisor.search.rank_layouts import with_another_job

        advice = with_another_job(advice, resolution, calibration, _asked(request, resolution))
    advice = with_measurements_and_ties(advice, calibration, request)
    if request.search is SearchScope.LAYOUT and advice.usual is not None:
        from advisor.request.differences import beside_degrees

        advice = replace(advice, beside_degrees=beside_degrees(request, advice.usual))
    if advice.recipe != resolution.recipe:
        return advice
    with_precision = changes_with_precision(request, resolution)
    return replace(advice, differences=(*advice.differences, *with_precision))


def _calibration(request: Request, resolution: Resolution) -> Calibration:
    """The GPU's, or what --calibration names, with what was learned from measured runs."""
    shipped = load_calibration(resolution.gpu, request.config_dir)
    if not request.calibration:
        return shipped
    from advisor.search.learn import calibration_from

    return calibration_from(request.calibration, shipped, resolution.gpu, request.config_dir)


def _asked(request: Request, resolution: Resolution) -> tuple[Setting, ...]:
    """The settings that --recompute names, each once."""
    parse = parts_of(resolution.config.framework).settings.parse
    return tuple(dict.fromkeys(map(parse, request.recompute)))


def _advise(
    request: Request,
    resolution: Resolution,
    calibration: Calibration,
    watch: "Watch | None" = None,
    *,
    remedies: bool = True,
) -> Answer:
    if request.search is SearchScope.OPTIMUM:
        return _with_optimum(request, resolution, calibration)
    asked = _asked(request, resolution)
    if request.search is SearchScope.LAYOUT:
        from advisor.search.fastest_found import with_fastest_found
        from advisor.search.rank_layouts import rank_layouts

        # a search may choose what is refused
        usual = if_legal(_advise, replace(request, search=None), resolution, calibration)
        if usual is not None and not usual.stopped:
            usual = with_fastest_found(usual, resolution, calibration, asked)
        if usual is not None and usual.stopped:
            return usual
        return rank_layouts(resolution, calibration, asked, watch, usual)
    layout = resolution.layout
    if layout is not None and not resolution.borrowed and not resolution.open_degrees:
        return rank_settings(resolution, layout, calibration, asked, remedies=remedies)
    if resolution.borrowed and layout is not None:
        borrowed = if_legal(rank_settings, resolution, layout, calibration, asked)
        if borrowed is not None and borrowed.fits:
            return borrowed
    from advisor.search.rank_layouts import rank_best_layout

    return rank_best_layout(resolution, calibration, asked)


def _with_optimum(request: Request, resolution: Resolution, calibration: Calibration) -> Answer:
    """The usual answer, with the optimum of its job before the menu's rows, and the proof."""
    cannot, fix = "cannot be combined with --search optimum", "give one of the two"
    if request.recompute:
        reason = f"{cannot}, which chooses the setting"
        raise UserError("--recompute", request.recompute[0], reason, fix)
    if type(calibration) is not Calibration:
        reason = f"{cannot}: it corrects single settings, so nothing can be proven"
        raise UserError("--calibration", ", ".join(map(str, request.calibration)), reason, fix)
    from advisor.search.optimum.proven import with_optimum

    usual = _advise(replace(request, search=None), resolution, calibration)
    return usual if usual.stopped else with_optimum(usual, calibration)
