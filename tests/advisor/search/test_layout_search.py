"""Which layouts a search looks at, that its bounds hold, and that it finds the best of all."""

from typing import Any

import pytest

from advisor.answer.evaluation import CLEAR
from advisor.base.errors import UserError, if_legal
from advisor.base.fields import spelled
from advisor.base.units import GIB
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.plan.recompute_plan import recomputes
from advisor.report.plain_advice import plain_advice
from advisor.report.wording import way_out
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import Resolution, resolve
from advisor.search.advise import advise
from advisor.search.bounds import Floors, TooLarge
from advisor.search.changed_options import Root
from advisor.search.evaluate import Evaluator
from advisor.search.layout_search import Progress, Search
from advisor.search.layouts import expert_degrees, groups, layouts, micro_batches
from tests.advisor.search.exhaustive import best_of_all, same_row
from tests.advisor.search.small_jobs import SETTLED, SUITE, small

pytestmark = pytest.mark.slow

UNEVEN = ("num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout")


@pytest.mark.parametrize("fields", SUITE, ids=str)
def test_the_search_finds_the_best_of_everything_that_flags_can_say(fields: dict[str, Any]) -> None:
    wanted = small(**fields)
    calibration = load_calibration(wanted.gpu)
    found = Search(wanted, calibration, options=True).run()
    assert same_row(found.best, best_of_all(wanted, calibration))


SAMPLES = {
    "padded": ("samples.lengths=p50=300,p99=3000,max=32768",),
    "packed": ("samples.lengths=p50=300,p99=3000,max=32768", "samples.packing=packed"),
    "tokens": ("samples.lengths=p50=300,p99=1500,max=2048", "samples.token_budget=4096"),
}


@pytest.mark.parametrize(
    ("framework", "samples", "budget"),
    [
        ("megatron_lm", "padded", "60GiB"),
        ("megatron_lm", "packed", "20GiB"),
        ("megatron_lm", "tokens", "60GiB"),
        ("torchtitan", "padded", "60GiB"),
        ("torchtitan", "packed", "60GiB"),
        ("huggingface", "tokens", "60GiB"),
        ("verl", "padded", "60GiB"),
        ("verl", "tokens", "30GiB"),
    ],
)
def test_the_search_finds_the_best_layout_of_samples_of_several_lengths(
    framework: str, samples: str, budget: str
) -> None:
    wanted = small(
        "llama3_8b",
        "4xH100",
        framework=framework,
        memory_budget=budget,
        seq_length=32768,
        global_batch_size=16,
        options=(*SETTLED, *SAMPLES[samples]) if framework == "megatron_lm" else SAMPLES[samples],
    )
    calibration = load_calibration(wanted.gpu)
    candidates = parts_of(wanted.config.framework).settings.candidates
    every = [
        Evaluator(job, calibration).evaluate(setting)
        for layout in layouts(wanted)
        for size in micro_batches(wanted, layout)
        if (job := if_legal(wanted.job, layout, size))
        for setting in candidates(job)
    ]
    every.sort(key=lambda one: one.step_time_seconds)
    best = next(one for one in every if one.fit_probability > 1 - CLEAR and one.simulated.fits)
    assert same_row(Search(wanted, calibration).run().best, best.simulated)


@pytest.mark.parametrize(
    ("model", "gpus", "samples"),
    [
        ("llama3_70b", "64xH100", ""),
        ("llama3_70b", "64xH100", "padded"),
        ("llama3_70b", "64xH100", "packed"),
        ("llama3_70b", "64xH100", "tokens"),
        ("qwen3_30b_a3b", "64xH100", ""),
        ("qwen3_30b_a3b", "64xH100", "tokens"),
        ("deepseek_v3", "256xH200", ""),
        ("mixtral_8x7b", "64xB200", ""),
        ("nemotron3_nano_30b_a3b", "32xH100", ""),
    ],
)
def test_no_job_undercuts_the_floors_of_its_group(model: str, gpus: str, samples: str) -> None:
    """Every 97th of all layouts and micro batches."""
    wanted = resolve(Request(model=model, gpus=gpus, overrides=SAMPLES.get(samples, ())))
    calibration = load_calibration(wanted.gpu)
    stack = parts_of(wanted.config.framework)
    points = [(one, size) for one in layouts(wanted) for size in micro_batches(wanted, one)]
    floors: Floors | None = None
    for layout, size in points[:: max(97, len(points) // 150)]:
        try:
            job = wanted.job(layout, size)
        except UserError:
            continue
        if stack.settings.check(stack.settings.none, job):
            continue
        floors = floors or Floors(job, calibration)
        least = Evaluator(job, calibration).at_least_without_host
        degrees = tuple(expert_degrees(wanted, layout.tensor_model_parallel_size))
        bounds = (
            floors.of_dense(layout, degrees, exact=False),
            floors.of_dense(layout, degrees, exact=True),
            floors.of_group(layout),
            floors.with_size(layout, size),
            floors.of_layout(layout, size),
        )
        assert max(bounds) <= least
        assert bounds[3] <= bounds[4] * (1 + 1e-9)


def test_the_search_is_for_the_settings_that_are_asked_for() -> None:
    wanted = small(**SUITE[0])
    calibration = load_calibration(wanted.gpu)
    stack = parts_of(wanted.config.framework)
    asked = (stack.settings.parse("full:uniform:1"),)
    found = Search(wanted, calibration, asked).run()
    assert {e.setting for e in found.evaluations} == set(asked)
    free = Search(wanted, calibration).run().best
    assert not recomputes(free.setting)
    assert free.step_time_seconds < found.best.step_time_seconds


def test_what_is_too_large_for_one_group_may_not_be_for_another() -> None:
    """1.5e9 parameters, 6 bytes of each on a rank and 12 over the data parallel ones: two data
    parallel ranks hold 16.6 GiB each, two tensor parallel ones 12.5."""
    wanted = small("llama3_8b", "2xH100", framework="megatron_lm", pipeline_model_parallel_size=1)
    job = wanted.job(next(layouts(wanted)))
    floors = Floors(job, load_calibration(job.gpu))
    too_large = TooLarge((Root(wanted, job),), floors, 14 * GIB)
    found = {one.tensor_model_parallel_size: too_large.is_group(0, one) for one in groups(wanted)}
    assert found == {1: True, 2: False}


def resolution(model: str, gpus: str, **fields: Any) -> Resolution:
    return resolve(Request(model=model, gpus=gpus, micro_batch_size=1, **fields))


def test_what_fits_nowhere_is_an_answer_and_no_interruption() -> None:
    request = Request(
        model="llama3_405b", gpus="8xA100", memory_budget="4GiB", search=SearchScope.LAYOUT
    )
    answer = advise(request)
    assert not answer.fits
    assert not answer.stopped
    assert answer.candidates


def test_where_nothing_fits_the_first_row_is_the_nearest_of_all() -> None:
    answer = advise(Request(model="llama3_70b", gpus="7xH100", search=SearchScope.LAYOUT))
    assert not answer.fits
    assert answer.candidates[0].evaluation.job.config.optimizer_cpu_offload
    assert not any(remedy.effect_bytes < 0 for remedy in answer.remedies)
    assert "--search layout" not in way_out(answer)


def test_a_search_that_is_stopped_says_so() -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    answer = advise(Request(model="llama3_8b", gpus="8xH100", search=SearchScope.LAYOUT), stop)
    plain = plain_advice(answer)
    assert plain.stopped
    assert plain.verdict.startswith("The search was stopped: row 1 (")


@pytest.mark.parametrize(("model", "gpus"), [("llama3_70b", "8xB200"), ("llama3_8b", "16xA100")])
def test_the_changes_of_a_row_given_back_make_its_job(model: str, gpus: str) -> None:
    """With a recipe for another number of GPUs, and without one, where changes are those of
    options besides the usual answer's."""
    answer = advise(Request(model=model, gpus=gpus, search=SearchScope.LAYOUT))
    first, *rows = plain_advice(answer).candidates
    assert "model.cross_entropy_fusion" in first.changes
    for row in (first, *rows):
        if row.changes:
            pairs = tuple(f"{path}={spelled(value)}" for path, value in row.changes.items())
            found = resolve(Request(model=model, gpus=gpus, overrides=pairs))
            assert found.layout is not None
            assert found.job(found.layout) == answer.candidates[row.rank - 1].evaluation.job


def stages(found: Resolution) -> dict[int, set[int]]:
    """VPP by PP of the layouts that are searched."""
    degrees: dict[int, set[int]] = {}
    for layout in layouts(found):
        pp, vpp = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
        degrees.setdefault(pp, set()).add(vpp)
    return degrees


def test_a_prime_number_of_layers_gets_pipelines_too() -> None:
    found = resolution("kimi_k2", "256xH100")
    assert stages(found) == {1: {1}, 2: {1, 31}, 4: {1, 2, 4, 8}, 8: {1, 2, 4}, 16: {1, 2}, 32: {1}}
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


def test_a_recipe_s_own_split_is_tried_next_to_the_even_ones() -> None:
    found = resolution("deepseek_v3", "1024xH100")
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
        Search(found, load_calibration(found.gpu)).run()


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "llama3_8b", "gpus": "1024xH100", "seq_length": 512},
        {"model": "llama3_70b", "gpus": "64xH100", "tensor_model_parallel_size": 16},
    ],
    ids=["more GPUs than tokens", "a degree that the recipe's do not go with"],
)
def test_every_number_of_gpus_and_degree_is_searched(fields: dict[str, Any]) -> None:
    answer = advise(Request(**fields, search=SearchScope.LAYOUT))
    assert answer.fits
    tp = answer.job.layout.tensor_model_parallel_size
    assert tp == fields.get("tensor_model_parallel_size", tp)
