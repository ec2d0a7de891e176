"""Reserved peaks that GPUs showed, next to a simulation of the allocator.

Families: plain torch modules on H100 and H200, Megatron's own layers and Transformer Engine's
(rehearsals), eight ranks each of Megatron jobs on B200 (SimuMax); what torch reserves, without CUDA
context and communicators. torchtitan's two rows are in test_torchtitan.py. Bars: mean 3 %, never
more than 5 % too low.
"""

from collections.abc import Iterator
from itertools import chain
from statistics import mean, pstdev

import pytest
from msgspec import Struct

from advisor.base.fields import read_record
from advisor.frameworks.megatron.setting import NONE
from advisor.frameworks.registry import parts_of
from advisor.memory import allocator
from advisor.search.evaluate import Evaluator
from advisor.search.job_memory import StageDetail
from harness.judge.repredict import evaluator_again
from harness.trial.result import MemoryPeak
from harness.trial.trial import Backend, Trial
from tests.published.rows import simumax_b200
from tests.published.test_measured_here import GPUS, MEASURED, found, rehearsed_ranks
from tests.published.test_measured_memory import GIB, simumax_evaluator


class Rank(Struct, frozen=True):
    """Shares of what is allocated: unused as measured, and as simulated."""

    measured: float
    simulated: float

    @property
    def rest(self) -> float:
        """What the simulation does not explain."""
        return self.measured - self.simulated

    def error(self, rest: float) -> float:
        """Of predicted reserved memory, with `rest` beyond the simulation."""
        return (1 + self.simulated + rest) / (1 + self.measured) - 1


def _rank(detail: StageDetail, allocated: float, reserved: float) -> Rank:
    return Rank(reserved / allocated - 1, detail.reserved.unused / detail.reserved.allocated)


def _detail(evaluator: Evaluator, recompute: str, stage: int) -> StageDetail:
    setting = parts_of(evaluator.job.config.framework).settings.parse(recompute)
    return evaluator.stage_detail(setting, stage, simulated=True)


def _measured(detail: StageDetail, peak: MemoryPeak) -> Rank:
    assert peak.allocated is not None
    assert peak.reserved is not None
    return _rank(detail, peak.allocated, peak.reserved)


def _native(gpu: str) -> Iterator[Rank]:
    for result in found(gpu, Backend.NATIVE):
        if result.memory and result.memory[0].reserved is not None:
            trial = read_record(Trial, result.trial, result.name)
            evaluator = evaluator_again(trial, result.gpu_names[0], MEASURED / gpu / "calibrated")
            yield _measured(_detail(evaluator, trial.workload.recompute, 0), result.memory[0])


def _rehearsed(gpu: str, patch: pytest.MonkeyPatch) -> Iterator[Rank]:
    for evaluator, trial, peak in rehearsed_ranks(gpu, patch):
        yield _measured(_detail(evaluator, trial.workload.recompute, trial.stages[0]), peak)


def _simumax() -> Iterator[Rank]:
    """The same bytes whatever the number of microbatches: one row of each layout."""
    jobs = {
        (r.tensor_model_parallel_size, r.pipeline_model_parallel_size): r for r in simumax_b200()
    }
    for row in jobs.values():
        evaluator = simumax_evaluator(row)
        ranks = list(zip(row.allocated_gib_by_rank, row.reserved_gib_by_rank, strict=True))
        of_stage = len(ranks) // len(evaluator.stages)
        for stage in range(len(evaluator.stages)):
            detail = evaluator.stage_detail(NONE, stage, simulated=True)
            for allocated, reserved in ranks[stage * of_stage :][:of_stage]:
                yield _rank(detail, allocated * GIB, reserved * GIB)


@pytest.fixture(scope="module")
def families() -> dict[str, list[Rank]]:
    with pytest.MonkeyPatch.context() as patch:
        ranks = {gpu: list(_native(gpu)) for gpu in GPUS}
        ranks |= {"own layers": list(_rehearsed("h100", patch))}
        ranks |= {"engine": list(_rehearsed("h200", patch)), "B200": list(_simumax())}
    print()
    for name, members in ranks.items():
        rests = [rank.rest for rank in members]
        print(f"{name:11} {len(rests):3} {mean(rests):+.2%} {pstdev(rests):.2%} {max(rests):+.2%}")
    return ranks


PLAIN, ENGINE = ("h100", "h200", "own layers"), ("engine", "B200")


def test_the_rest_is_what_the_constants_say(families: dict[str, list[Rank]]) -> None:
    plain = [rank.rest for name in PLAIN for rank in families[name]]
    assert len(plain) == 44
    assert mean(plain) == pytest.approx(allocator._BEYOND_SIMULATION, abs=5e-4)
    assert pstdev(plain) == pytest.approx(allocator._BEYOND_SIMULATION_SPREAD, abs=5e-4)
    means = [mean(rank.rest for rank in families[name]) for name in ENGINE]
    assert mean(means) == pytest.approx(allocator._BEYOND_ENGINE, abs=5e-4)
    squares = (mean((r.rest - mean(means)) ** 2 for r in families[name]) for name in ENGINE)
    assert mean(squares) ** 0.5 == pytest.approx(allocator._BEYOND_ENGINE_SPREAD, abs=5e-4)


def test_a_family_left_out(families: dict[str, list[Rank]]) -> None:
    """With the rest of the other families: mean at most 1.5 %, at most 3.5 % too low."""
    for kind in (PLAIN, ENGINE):
        for left_out in kind:
            others = [mean(r.rest for r in families[name]) for name in kind if name != left_out]
            errors = [rank.error(mean(others)) for rank in families[left_out]]
            print(f"{left_out:11} {mean(map(abs, errors)):.2%} {min(errors):+.2%}")
            assert mean(map(abs, errors)) < 0.015
            assert min(errors) > -0.035


def test_without_the_simulation_it_would_be_worse(families: dict[str, list[Rank]]) -> None:
    """The same, the simulation left out: as much unused as the others have on average."""
    every = list(chain.from_iterable(families.values()))
    rest, usual = (pstdev(rank.rest for rank in every), pstdev(rank.measured for rank in every))
    assert rest < 0.75 * usual
