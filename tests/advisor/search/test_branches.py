"""The search of `--search optimum` against brute force, and its bounds against true values."""

from collections.abc import Iterator
from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import CLEAR, Evaluation
from advisor.base.units import GIB
from advisor.frameworks.part_types import Decisions, SettingGroup
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.job.job import Job
from advisor.plan.recompute_plan import Setting
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator
from advisor.search.optimum.branches import Branch, FoundPoint, PointSearch, branches, problem_of
from advisor.search.optimum.per_stage import fastest_per_stage
from tests.advisor.jobs import batches, evaluator_of, parallel

FRAMEWORK = parts_of("megatron_lm")
ROUNDING = 1e-12
"""Seconds of the same stages added in another order: see best_split.ROUNDING."""


class Toy(Struct, frozen=True):
    """A job of few layers: its model, pipeline, and what its ranks hold from least to most."""

    model: str
    layers: int
    pp: int
    vpp: int
    overrides: tuple[str, ...] = ()
    version: str = ""
    gpu: str = "H100"

    def job(self, budget: float) -> Job:
        """budget: of what the GPU has."""
        request = Request(
            model=self.model,
            gpus=f"{self.pp}x{self.gpu}",
            **batches(4096, 1, 4 if self.pp < 4 else 8),
            **parallel(tp=1, pp=self.pp, vpp=self.vpp, ep=None),
            framework="megatron_lm",
            framework_version=self.version or None,
            takes_recipe=False,
            memory_budget=f"{budget:.3f}GiB",
            overrides=(f"model.num_layers={self.layers}", *self.overrides),
        )
        found = resolve(request)
        assert found.layout is not None
        return found.job(found.layout)


EXPERTS = ("model.num_moe_experts=4", "model.moe_layer_freq=[0]*2+[1]*4")
LATENT = ("model.num_moe_experts=8", "model.moe_layer_freq=[0]+[1]*3")
TOYS = (
    Toy("llama3_8b", 6, 2, 1),
    Toy("llama3_8b", 7, 3, 1, ("layout.pipeline_model_parallel_layout=Ett|ttt|ttL",)),
    Toy("llama3_8b", 8, 2, 2),
    Toy("llama3_8b", 8, 2, 2, version="0.16.1"),  # uniform must divide, and nothing is offloaded
    Toy("llama3_8b", 4, 1, 1),
    Toy("llama3_8b", 8, 4, 1),
    Toy("mixtral_8x7b", 6, 3, 1, EXPERTS),
    Toy("moonlight_16b_a3b", 4, 2, 1, LATENT, "0.15"),
)


def points(space: list[Branch]) -> Iterator[tuple[Job, Setting]]:
    """Every point, one by one."""
    for branch in space:
        for group in branch.decisions.groups:
            splits = branch.table_of(group).splits
            numbers = (range(len(choices)) for choices in splits.choices)
            for chosen in product(*numbers):
                counts = (splits.choices[k][number] for k, number in enumerate(chosen))
                if sum(map(sum, counts)) == splits.num_layers:
                    job = splits.job(chosen)
                    for setting in group.settings:
                        yield job, setting


def brute_force(space: list[Branch], calibration: Calibration) -> Evaluation | None:
    """The fastest point that fits, every single one evaluated."""
    found = []
    evaluators: dict[Job, Evaluator] = {}
    for job, setting in points(space):
        if job not in evaluators:
            evaluators[job] = Evaluator(job, calibration)
        found.append(evaluators[job].evaluate(setting))
    assert len(found) == sum(branch.num_points for branch in space)
    for evaluation in sorted(found, key=lambda one: one.step_time_seconds):
        if evaluation.fit_probability > 1 - CLEAR and evaluation.simulated.fits:
            return evaluation.simulated
    return None


def search(space: list[Branch], calibration: Calibration) -> FoundPoint:
    return PointSearch(space, calibration, inf).run()


def budget_of(toy: Toy, share: float) -> float:
    """GiB between what a rank holds whatever is recomputed, and what it takes without."""
    job = toy.job(70)
    evaluator = evaluator_of(job)
    least = evaluator.memory.fixed_bytes
    most = evaluator.evaluate(FRAMEWORK.settings.none).peak_reserved_bytes
    return float(least + share * (1.1 * most - least)) / GIB


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(toy=st.sampled_from(TOYS), share=st.floats(0.05, 1.0))
def test_the_optimum_is_that_of_brute_force(toy: Toy, share: float) -> None:
    job = toy.job(budget_of(toy, share))
    calibration = load_calibration(job.gpu)
    found = search(branches(job, calibration), calibration)
    best = brute_force(branches(job, calibration), calibration)
    if best is None:
        assert found.evaluation is None
        return
    seconds = found.evaluation.step_time_seconds
    assert seconds == pytest.approx(best.step_time_seconds, rel=ROUNDING)
    assert found.bound == pytest.approx(seconds, rel=ROUNDING)
    assert not FRAMEWORK.settings.check(found.evaluation.setting, found.evaluation.job)


def test_a_search_that_is_stopped_gives_what_fits_and_how_far_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C where the first point is asked about, which is the optimum."""
    job = TOYS[2].job(budget_of(TOYS[2], 0.9))
    calibration = load_calibration(job.gpu)
    asked = []

    def is_legal(setting: Setting, job: Job) -> bool:
        asked.append(setting)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return True

    whole = search(branches(job, calibration), calibration)
    monkeypatch.setattr("advisor.search.optimum.branches.is_legal", is_legal)
    stopped = search(branches(job, calibration), calibration)
    assert (whole.stopped, stopped.stopped) == (False, True)
    assert stopped.evaluation.setting == whole.evaluation.setting
    assert 0 < stopped.bound <= whole.bound * (1 + ROUNDING)


def test_bounds_never_exceed_what_they_bound() -> None:
    """Of every setting and split of three toys: the bound of its group and of its own."""
    for toy in (TOYS[1], TOYS[2], TOYS[6]):
        job = toy.job(70)
        calibration = load_calibration(job.gpu)
        for branch in branches(job, calibration):
            for group in branch.decisions.groups:
                table, least = branch.table_of(group), branch.bound(group, inf)
                of_setting = {
                    setting: problem_of(table, table.choices(setting)).bound
                    for setting in group.settings
                }
                for one, setting in points([replace(branch, decisions=only(group))]):
                    seconds = Evaluator(one, calibration).seconds(setting)
                    assert max(least, of_setting[setting]) * (1 - ROUNDING) <= seconds


def only(group: SettingGroup) -> Decisions:
    return Decisions(groups=(group,), space="", one_for_all="")


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: f"{toy.model}_{toy.pp}_{toy.vpp}")
def test_a_group_lies_between_its_fastest_and_its_smallest(toy: Toy) -> None:
    job = toy.job(70)
    evaluator = evaluator_of(job)
    decisions = FRAMEWORK.optimum.decisions(job)
    for group in decisions.groups:
        fastest = evaluator.seconds(group.fastest)
        smallest = [*evaluator.memory.at_least(evaluator.plans(group.smallest))]
        for setting in group.settings:
            assert fastest <= evaluator.seconds(setting) * (1 + ROUNDING)
            at_least = evaluator.memory.at_least(evaluator.plans(setting))
            for least, its in zip(smallest, at_least, strict=True):
                assert least.allocated <= its.allocated


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: f"{toy.model}_{toy.pp}_{toy.vpp}")
def test_stages_make_up_the_step(toy: Toy) -> None:
    """Seconds and bytes of a stage are those that it has in the whole job."""
    job = toy.job(70)
    calibration = load_calibration(job.gpu)
    (branch, *_) = branches(job, calibration)
    table, own = branch.table, Evaluator(job, calibration)
    for group in branch.decisions.groups:
        setting = group.settings[0]
        rows = [table.row(setting, number) for number in table.splits.own_choices()]
        choices = [row[stage] for stage, row in enumerate(rows)]
        times = [choice.part.microbatch for choice in choices]
        seconds = own.time.combined(
            choices[times.index(max(times))].part,
            sum(times),
            max(choice.part.optimizer for choice in choices),
        )
        assert seconds == pytest.approx(own.seconds(setting), rel=ROUNDING)
        may_fit = [table.fits_unless_simulated(stage, c) for stage, c in enumerate(choices)]
        assert may_fit == own.may_fit(setting)


@settings(deadline=None, max_examples=4)
@given(share=st.floats(0.05, 0.8))
def test_recompute_chosen_for_each_stage_is_that_of_brute_force(share: float) -> None:
    toy = Toy("llama3_8b", 6, 2, 1, version="0.18")  # which offloads in all layers or none
    job = toy.job(budget_of(toy, share))
    calibration = load_calibration(job.gpu)
    (branch, *_) = branches(job, calibration)
    table = branch.table
    places = [
        [
            choice
            for group in branch.decisions.groups
            for setting in group.settings
            for choice in table.choices(setting)[stage]
            if table.fits(stage, choice)
        ]
        for stage in range(table.num_stages)
    ]
    best = inf
    for chosen in product(*places):
        if sum(choice.layers for choice in chosen) == toy.layers:
            times = [choice.part.microbatch for choice in chosen]
            optimizer = max(choice.part.optimizer for choice in chosen)
            slowest = chosen[times.index(max(times))].part
            best = min(best, table.own.time.combined(slowest, sum(times), optimizer))
    found = fastest_per_stage(branch, inf)
    assert (found.seconds if found else inf) == pytest.approx(best, rel=ROUNDING)
