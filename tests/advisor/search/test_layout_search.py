"""Which layouts a search proposes, and that the shorter search finds what the whole one finds."""

from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.hardware.calibration import load_calibration
from advisor.plan.recompute_plan import recomputes
from advisor.request.request import Request
from advisor.request.resolve import Resolution, resolve
from advisor.search import layout_search as search
from advisor.search.layout_search import ROWS, best_on_any_layout, search_layouts
from advisor.search.layouts import layouts
from advisor.search.ranking import order

UNEVEN = ("num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout")


def resolution(model: str, gpus: str, **fields: Any) -> Resolution:
    request = Request(model=model, gpus=gpus, micro_batch_size=1, **fields)
    return resolve(request, borrow=False)


@pytest.mark.parametrize(
    ("model", "gpus", "budget", "fixed"),
    [
        ("llama3_8b", "4xA100", "76GiB", {}),  # fits without recompute
        ("llama3_8b", "4xA100", "34GiB", {}),  # with
        ("llama3_8b", "4xA100", "20GiB", {}),  # not at all
        # 27 layers and experts
        ("moonlight_16b_a3b", "8xH200", "60GiB", {"tensor_model_parallel_size": 1}),
    ],
)
def test_the_short_search_finds_the_best_of_the_whole_one(
    model: str, gpus: str, budget: str, fixed: dict[str, int]
) -> None:
    wanted = resolution(model, gpus, memory_budget=budget, seq_length=2048, **fixed)
    calibration = load_calibration(wanted.gpu)
    whole, short = search_layouts(wanted, calibration), best_on_any_layout(wanted, calibration)
    assert short.best.job == whole.best.job
    assert short.best.setting == whole.best.setting
    assert short.num_layouts == whole.num_layouts
    assert short.evaluated < len(whole.evaluations) / 2


@pytest.mark.parametrize(
    ("model", "gpus", "budget", "rows"),
    [
        ("llama3_8b", "4xA100", "60GiB", ROWS),
        ("llama3_8b", "4xA100", "34GiB", 10),  # many do not fit, and ten do
        ("llama3_8b", "4xA100", "24GiB", ROWS),  # fewer fit than there are rows
        ("llama3_8b", "4xA100", "20GiB", 10),  # nothing does
        ("moonlight_16b_a3b", "8xH200", "60GiB", 30),
    ],
)
def test_of_many_layouts_the_first_rows_are_those_of_the_whole_search(
    model: str, gpus: str, budget: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = resolution(model, gpus, memory_budget=budget, seq_length=2048)
    calibration = load_calibration(wanted.gpu)
    whole = search_layouts(wanted, calibration)
    monkeypatch.setattr(search, "_WHOLE", 0)
    monkeypatch.setattr(search, "ROWS", rows)
    part = search_layouts(wanted, calibration)
    assert (whole.whole, part.whole) == (True, False)
    assert len(part.evaluations) < len(whole.evaluations)
    assert (
        sorted(map(order, part.evaluations))[:rows] == sorted(map(order, whole.evaluations))[:rows]
    )
    first = sorted(part.evaluations, key=order)[:rows]
    held_against = {id(e.job) for e in part.evaluations if not recomputes(e.setting)}
    assert held_against >= {id(e.job) for e in first if e.fits}


def test_the_short_search_is_for_the_settings_that_are_asked_for() -> None:
    wanted = resolution("llama3_8b", "4xA100", memory_budget="60GiB", seq_length=2048)
    calibration = load_calibration(wanted.gpu)
    none, *_ = best_on_any_layout(wanted, calibration).evaluations
    asked = tuple(
        e.setting for e in search_layouts(wanted, calibration).evaluations if recomputes(e.setting)
    )[:1]
    found = best_on_any_layout(wanted, calibration, asked)
    assert {e.setting for e in found.evaluations} == set(asked) != {none.setting}


def stages(found: Resolution) -> dict[int, set[int]]:
    """VPP by PP of the layouts that are searched."""
    degrees: dict[int, set[int]] = {}
    for layout in layouts(found):
        pp, vpp = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
        degrees.setdefault(pp, set()).add(vpp)
    return degrees


def test_a_prime_number_of_layers_gets_pipelines_too() -> None:
    found = resolution("kimi_k2", "256xH100")
    assert stages(found) == {
        1: {1},
        2: {1, 31},
        4: {1, 2, 4, 8},
        8: {1, 2, 4},
        16: {1, 2},
        32: {1},
    }
    texts = {
        layout.pipeline_model_parallel_layout
        for layout in layouts(found)
        if layout.num_model_chunks == 16
    }
    assert texts == {"Et*4|(t*4|)*14tL"}


def test_a_number_of_layers_that_divides_is_searched_as_ever() -> None:
    found = resolution("llama3_70b", "64xH100")
    assert stages(found) == {
        1: {1},
        2: {1, 2, 4, 5, 8, 10, 20, 40},
        4: {1, 2, 4, 5, 10, 20},
        8: {1, 2, 5, 10},
        16: {1, 5},
    }
    assert not any(getattr(layout, name) for layout in layouts(found) for name in UNEVEN)


def test_a_split_that_is_given_is_the_only_one() -> None:
    text = "Et*4|(t*4|)*14tL"
    given = (f"layout.pipeline_model_parallel_layout={text}",)
    found = resolution("kimi_k2", "256xH100", overrides=given)
    splits = {
        (e.pipeline_model_parallel_size, e.pipeline_model_parallel_layout) for e in layouts(found)
    }
    assert splits == {(pp, text) for pp in (2, 4, 8, 16)}


def test_a_recipe_s_own_split_is_tried_beside_the_even_ones() -> None:
    found = resolution("deepseek_v3", "1024xH100")
    assert found.layout is not None
    tried = {layout.pipeline_model_parallel_layout for layout in layouts(found)}
    assert found.layout.pipeline_model_parallel_layout in tried
    assert "Et*8|(t*8|)*6t*5mL" in tried
    assert "" in tried  # no pipeline


def test_releases_without_texts_get_numbers_of_layers_and_nemo_1_no_uneven_split() -> None:
    old = list(layouts(resolution("kimi_k2", "256xH100", framework_version="0.12")))
    assert not any(layout.pipeline_model_parallel_layout for layout in old)
    assert any(layout.num_layers_in_last_pipeline_stage for layout in old)
    first = resolution("kimi_k2", "256xH100", framework="nemo", framework_version="1")
    assert set(stages(first)) == {1}


def test_where_no_layout_is_legal_what_was_given_is_named() -> None:
    found = resolution("kimi_k2", "256xH100", virtual_pipeline_model_parallel_size=3)
    with pytest.raises(UserError, match="with virtual_pipeline_model_parallel_size = 3; leave"):
        best_on_any_layout(found, load_calibration(found.gpu))
