"""Rows of the page: all of the answer's, and of jobs near it what is worth a look."""

import re
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.api.answering import answer_to
from advisor.base.errors import UserError
from advisor.explorer.explorer_data import explorer_page
from advisor.explorer.nearby import Grid, Place, differs, grid, nearby
from advisor.explorer.step_numbers import Pool
from advisor.plan.recompute_plan import recomputes
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.ranking import order
from tests.harness.simulated import SimulatedDevice

REQUEST = Request(model="llama3_8b", gpus="8xH100", tensor_model_parallel_size=2, quick=True)


@pytest.fixture(scope="module")
def found() -> Grid:
    return grid(answer_to(REQUEST), REQUEST)


def test_the_answers_rows_come_first_and_are_all_there(found: Grid) -> None:
    answer = answer_to(REQUEST)
    specs = {candidate.evaluation.setting.spec for candidate in answer.candidates}
    job, rows = found.jobs[0]
    assert job == found.own == answer.candidates[0].evaluation.job
    assert {row.setting.spec for row in rows} == specs
    assert len(_all_rows(found)) > len(rows)


def test_it_begins_with_the_fastest_found() -> None:
    request = replace(REQUEST, quick=False)
    answer = answer_to(request)
    found, best = grid(answer, request), answer.leading
    (job, rows), *others = found.jobs
    assert job == found.own == best.evaluation.job != answer.job
    assert min(rows, key=order).setting == best.evaluation.setting
    assert len(dict(others)[answer.job]) == len(answer.candidates)


def test_a_job_that_is_near_has_its_front_and_no_recompute(found: Grid) -> None:
    for job, rows in found.jobs[1:]:
        assert all(row.job == job for row in rows)
        sizes = {row.peak_reserved_bytes for row in rows}
        assert len(rows) == 1 or len(sizes) > 1
        if len(rows) > 1:
            assert any(not recomputes(row.setting) for row in rows)


@pytest.mark.slow
def test_runs_move_near_jobs_as_they_move_the_answer(found: Grid, tmp_path: Path) -> None:
    """By 1.2 where they hold; 3 % are allowed as in tests/harness/test_closed_loop.py."""
    slow = SimulatedDevice(base=1.2, recompute=1.0, communication=1.0, of_job=0.0, of_setting=0.0)
    slow.run([row for _, rows in found.jobs[:6] for row in rows if row.fits], tmp_path)
    before = {(differs(row.job, found.own), row.setting): row for row in _all_rows(found)}
    request = replace(REQUEST, calibration=(tmp_path,))
    after = grid(answer_to(request), request)
    moved = 0
    for row in _all_rows(after):
        if (was := before.get((differs(row.job, found.own), row.setting))) is None:
            continue
        factor = row.step_time_seconds / was.step_time_seconds
        assert factor == 1.0 or factor == pytest.approx(1.2, rel=0.03)
        moved += row.job != after.own and factor > 1
    assert moved > 10


def _all_rows(found: Grid) -> list[Evaluation]:
    return [row for _, rows in found.jobs for row in rows]


@pytest.mark.parametrize("framework", ["megatron_lm", "torchtitan", "deepspeed"])
def test_no_job_stands_there_twice(framework: str) -> None:
    request = Request(model="llama3_8b", gpus="8xH100", framework=framework)
    rows = grid(answer_to(request), request)
    words = [differs(job, rows.own) for job, _ in rows.jobs]
    assert words[0] == ""
    assert len(words) == len(set(words))


def test_every_control_has_something_to_choose(found: Grid) -> None:
    layouts = [job.layout for job, _ in found.jobs]
    assert {layout.tensor_model_parallel_size for layout in layouts} >= {1, 2, 4}
    assert {layout.pipeline_model_parallel_size for layout in layouts} >= {1, 2}
    assert {layout.context_parallel_size for layout in layouts} >= {1, 2}
    configs = [job.config for job, _ in found.jobs]
    assert {config.micro_batch_size for config in configs} >= {1, 2}
    own = found.own.config.seq_length
    assert {config.seq_length for config in configs} >= {own // 2, own, 131_072}
    assert {job.num_gpus for job, _ in found.jobs} == {4, 8, 16, 32}
    for job, _ in found.jobs:
        assert job.layout.world_size == job.num_gpus
        assert job.config.global_batch_size == found.own.config.global_batch_size


def test_jobs_come_the_nearest_first_and_are_legal() -> None:
    answer = answer_to(REQUEST)
    own = answer.candidates[0].evaluation.job
    here = Place(own.num_gpus, own.config)
    away, jobs = zip(*nearby(own, resolve(REQUEST), here), strict=True)
    assert own not in jobs
    assert len(jobs) == len(set(jobs))
    assert list(away) == sorted(away)
    assert all(job.num_gpus == own.num_gpus for job in jobs)
    assert all(job.model == own.model for job in jobs)


def test_post_training_has_its_own_controls() -> None:
    """Ranks, all weights and shares of the engine; budgets of tokens instead of lengths, at one
    micro batch."""
    job = Request(
        model="qwen3_0.6b",
        gpus="8xH100",
        framework="huggingface",
        max_tokens_per_gpu=8192,
        overrides=("rl.algorithm=grpo", "rl.engine=vllm", "rl.sleep_level=2", *_SMALL_ADAPTER),
        quick=True,
    )
    jobs = [one for one, _ in grid(answer_to(job), job).jobs]
    adapters = [one for one in jobs if one.config.tuning.has_adapter]
    assert {one.config.tuning.rank for one in adapters} == {8, 16, 32, 64, 128}
    assert len(jobs) - len(adapters) == 1
    shares = {one.config.rl.gpu_memory_utilization for one in jobs}
    assert shares == {tenths / 10 for tenths in range(2, 10)}
    budgets = {one.config.samples.token_budget for one in jobs}
    assert budgets >= {4096, 8192, 16_384, 131_072}
    assert {one.config.seq_length for one in jobs} == {jobs[0].config.seq_length}
    assert {one.config.micro_batch_size for one in jobs} == {jobs[0].config.micro_batch_size}


_SMALL_ADAPTER = ("tuning.adapter=lora", "tuning.rank=8")


def test_no_sample_is_longer_than_the_longest() -> None:
    job = Request(
        model="llama3_8b", gpus="8xH100", framework="fsdp2", lengths="p50=900,max=4096", quick=True
    )
    lengths = {one.config.seq_length for one, _ in grid(answer_to(job), job).jobs}
    assert max(lengths) == 4096


def test_a_value_that_occurs_again_is_a_number() -> None:
    pool = Pool()
    numbers = [pool.number(value) for value in ("a", [1, 2], "a", [1, 2], '["1"]', ["1"])]
    assert numbers[:4] == [0, 1, 0, 1]
    assert [pool.values[number] for number in numbers] == ["a", [1, 2], "a", [1, 2], '["1"]', ["1"]]


def test_a_page_of_nothing_is_refused() -> None:
    request = Request(model="llama3_8b", gpus="8xH100", recompute=("none",))
    answer = answer_to(request)
    with pytest.raises(UserError, match="every setting is rejected"):
        explorer_page(replace(answer, candidates=()), request, "advise …")


@pytest.mark.slow
def test_pages_are_as_small_as_they_shall_be() -> None:
    request = Request(model="llama3_70b", gpus="32xH100")
    page = explorer_page(answer_to(request), request, "advise …")
    assert len(page.encode()) < 1_000_000


def test_what_others_wrote_is_unchanged_and_goes_with_its_licence() -> None:
    folder = Path(explorer_page.__code__.co_filename).parent / "vendor"
    ((name, checksum),) = re.findall(
        r"^\| `(\S+)` .* \| `(\w{64})` \|$", (folder / "README.md").read_text(), re.MULTILINE
    )
    assert sha256((folder / name).read_bytes()).hexdigest() == checksum
    assert "Apache License" in (folder / "LICENSE-htm").read_text()
    assert "MIT License" in (folder / "LICENSE-preact").read_text()
