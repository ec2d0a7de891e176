"""`advise --calibration` on what a simulated device measured: the harness writes, the advisor
reads; held-out settings are predicted better, the first choice costs less, and what lies outside of
what was measured stands as shipped."""

from pathlib import Path
from statistics import fmean

import pytest
from msgspec.structs import replace

import advisor
from advisor.answer.answer import Answer, Basis
from advisor.answer.evaluation import Evaluation
from advisor.hardware.calibration import Provenance
from advisor.report.measuring import learned_words
from advisor.request.request import Request, SearchScope
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator
from harness.trial.result import TrialStatus
from harness.trial.store import plain
from tests.advisor.jobs import parallel
from tests.harness.simulated import SimulatedDevice, fitting_rows, moving

PIPELINES = ((1, 1), (2, 8))
SEEDS = range(8)
IN_PLACE = ("model.cross_entropy_fusion=te",)
"""The loss that writes its gradient over the logits."""
Key = tuple[object, str]


def request(tp: int, pp: int, vpp: int, *calibration: Path, seq_length: int = 8192) -> Request:
    return Request(
        model="llama3_8b",
        gpus="8xH100",
        seq_length=seq_length,
        **parallel(tp=tp, pp=pp, vpp=vpp, cp=1),
        calibration=calibration,
        overrides=IN_PLACE,
        quick=True,
    )


def answers(*calibration: Path) -> list[Answer]:
    return [advise(request(tp, *pipe, *calibration)) for tp in (1, 2) for pipe in PIPELINES]


@pytest.fixture(scope="module")
def shipped() -> list[Answer]:
    return answers()


def key(evaluation: Evaluation) -> Key:
    job = evaluation.job
    return (job.layout, job.config.micro_batch_size), evaluation.setting.spec


def corners(shipped: list[Answer]) -> list[Evaluation]:
    """Three settings of the two layouts that are furthest apart."""
    chosen = []
    for answer in (shipped[0], shipped[-1]):
        rows = fitting_rows(answer)
        selective = next(row for row in rows if row.setting.spec.startswith("selective"))
        chosen += [rows[0], selective, rows[-1]]
    return chosen


def predicted(found: list[Answer]) -> dict[Key, Evaluation]:
    return {key(row.evaluation): row.evaluation for answer in found for row in answer.candidates}


def test_held_out_settings_and_the_first_choice_get_better(shipped: list[Answer], tmp_path) -> None:
    """Six runs of two of four layouts: 93 settings that were not run are predicted to 1.7 % (20 %
    as shipped; the device's own scatter is 1.7 %, one sigma), 98 % of them within their narrowed
    bands, and the choice among all costs 0.5 % instead of 1.0 %."""
    before, measured = predicted(shipped), corners(shipped)
    held_out = [key(row) for row in fitting_rows(*shipped) if row not in measured]
    fits = [key(row) for row in fitting_rows(*shipped)]
    errors, regrets, inside = ([], []), ([], []), []
    for seed in SEEDS:
        device = SimulatedDevice(seed=seed, recompute=1.6, communication=1.3)
        device.run(measured, tmp_path / str(seed))
        after = predicted(answers(tmp_path / str(seed)))
        truth = {name: device.seconds(before[name]) for name in fits}
        for number, rows in enumerate((before, after)):
            off = [rows[name].step_time_seconds / truth[name] - 1 for name in held_out]
            errors[number].append(fmean(map(abs, off)))
            choice = min(fits, key=lambda name: rows[name].step_time_seconds)
            regrets[number].append(truth[choice] / min(truth.values()) - 1)
        for name in held_out:
            row = after[name]
            inside.append(row.step_time_low_seconds <= truth[name] <= row.step_time_high_seconds)
            assert row.step_time_high_seconds / row.step_time_seconds - 1 < 0.07  # shipped: 0.12
    assert len(held_out) > 80
    assert fmean(errors[0]) > 0.15
    assert fmean(errors[1]) < 0.02
    assert fmean(inside) > 0.9
    assert fmean(regrets[1]) < 0.6 * fmean(regrets[0])


def test_outside_of_what_was_measured_nothing_changes(shipped: list[Answer], tmp_path) -> None:
    SimulatedDevice().run(corners(shipped), tmp_path)
    for other in (
        request(4, 1, 1, tmp_path),
        request(1, 4, 1, tmp_path),
        request(1, 1, 1, tmp_path, seq_length=4096),
        replace(request(1, 1, 1, tmp_path), gpus="16xH100"),
        replace(request(1, 1, 1, tmp_path), precision="fp8_current"),
        replace(request(1, 1, 1, tmp_path), micro_batch_size=2),
        replace(request(1, 1, 1, tmp_path), model="llama3.2_3b"),
    ):
        learned, plain_ = advise(other), advise(replace(other, calibration=()))
        assert learned.calibration.learned.outside
        assert learned.calibration.provenance is Provenance.PUBLISHED
        for one, two in zip(learned.candidates, plain_.candidates, strict=True):
            assert one.basis is Basis.SHIPPED
            assert one.evaluation.time_seconds == two.evaluation.time_seconds
            assert one.evaluation.step_time_high_seconds == two.evaluation.step_time_high_seconds
            assert one.evaluation.peak_reserved_bytes == two.evaluation.peak_reserved_bytes
            assert one.evaluation.fit_probability == two.evaluation.fit_probability


def test_rows_within_and_outside_are_compared_without_what_is_common_to_those_within(
    shipped: list[Answer], tmp_path: Path
) -> None:
    """A device that is a fifth slower in everything: within, seconds are a fifth more, outside
    they are as shipped, and the choice among all of them is still near to the best."""
    slow = SimulatedDevice(base=1.2, recompute=1.0, communication=1.0, of_job=0.0, of_setting=0.0)
    slow.run(corners(shipped), tmp_path)
    wide = Request(model="llama3_8b", gpus="8xH100", overrides=IN_PLACE, search=SearchScope.LAYOUT)
    before, after = predicted([advise(wide)]), advise(replace(wide, calibration=(tmp_path,)))
    rows = [row for row in after.candidates if key(row.evaluation) in before]
    assert {row.basis for row in rows} >= {Basis.SHIPPED, Basis.LEARNED}
    for row in rows:
        ratio = row.evaluation.step_time_seconds / before[key(row.evaluation)].step_time_seconds
        assert ratio == pytest.approx(1.0 if row.basis is Basis.SHIPPED else 1.2, rel=0.03)
        assert ("not measured" in row.note) == (row.basis is Basis.SHIPPED)
    truth = [slow.seconds(before[key(row.evaluation)]) for row in rows]
    fits = [n for n, row in enumerate(rows) if row.evaluation.fits]
    assert truth[0] / min(truth[n] for n in fits) - 1 < 0.02


def test_no_setting_undercuts_the_bound_of_its_job(shipped: list[Answer], tmp_path: Path) -> None:
    SimulatedDevice(recompute=0.5, communication=0.3).run(corners(shipped), tmp_path)
    for answer in answers(tmp_path):
        evaluations = [row.evaluation for row in answer.candidates]
        evaluator = Evaluator(evaluations[0].job, evaluations[0].calibration)
        for one in evaluations:
            least = evaluator.at_least_seconds * (1 - 1e-12)
            assert evaluator.timed(one.setting).time.total >= least


def test_rows_say_what_they_rest_on(shipped: list[Answer], tmp_path: Path) -> None:
    device, measured = SimulatedDevice(), corners(shipped)
    device.run(measured, tmp_path)
    keywords = {"seq_length": 8192, "tp": 1, "pp": 1, "cp": 1, "overrides": IN_PLACE}
    advice = advisor.advise(model="llama3_8b", gpus="8xH100", calibration=tmp_path, **keywords)
    assert advice.calibration.provenance is Provenance.MEASURED
    assert advice.calibration.learned.trials == len(measured)
    base = advice.calibration.learned.step_time["base"]
    assert base.sigma < base.shipped_sigma
    here = {key(row)[1]: row for row in measured if row.job == shipped[0].job}
    for row in advice.candidates:
        ran = here.get(row.recompute.spec)
        if ran is None:
            assert (row.basis, row.measured) == (Basis.LEARNED, None)
            continue
        assert row.basis is Basis.MEASURED
        assert row.measured.step_time_seconds == pytest.approx(device.seconds(ran))
        # the prediction is near to it, and still no copy of it
        assert row.step_time_seconds == pytest.approx(device.seconds(ran), rel=0.005)
        assert row.fit_probability == 1.0
        assert sum(plain(row.time_seconds).values()) == pytest.approx(row.step_time_seconds)
        for stage in row.stages:
            assert stage.memory_bytes.total == stage.peak_reserved_bytes


def test_explained_bytes_and_seconds_sum_to_the_learned_row(shipped, tmp_path) -> None:
    SimulatedDevice().run(corners(shipped), tmp_path)
    keywords = {"seq_length": 8192, "tp": 2, "pp": 2, "vpp": 8, "cp": 1, "overrides": IN_PLACE}
    advice = advisor.advise(
        model="llama3_8b", gpus="8xH100", calibration=tmp_path, explain=2, **keywords
    )
    row, reported = advice.candidates[1], advice.explain
    assert sum(line.num_bytes for line in reported.memory) == row.peak_reserved_bytes
    assert sum(line.seconds for line in reported.time) == pytest.approx(row.step_time_seconds)


def test_memory_moves_towards_what_was_measured(shipped: list[Answer], tmp_path: Path) -> None:
    """Activations that take a per cent more than predicted, found to a fifth of that, and an
    allocator that leaves more unused."""
    device = SimulatedDevice(activations=0.01, unused=0.02)
    device.run(corners(shipped), tmp_path)
    before, after = predicted(shipped), predicted(answers(tmp_path))
    ran = {key(row) for row in corners(shipped)}
    for name, row in before.items():
        if name in ran:
            continue
        peak = row.simulated.peak
        allocated = peak.peak_allocated_bytes + 0.01 * moving(peak)
        found = after[name].simulated.peak
        assert found.peak_allocated_bytes == pytest.approx(allocated, rel=0.002)
        assert found.peak_reserved_bytes > peak.peak_reserved_bytes


def test_what_ran_out_of_memory_does_not_fit(shipped: list[Answer], tmp_path: Path) -> None:
    first = fitting_rows(shipped[0])[0]
    SimulatedDevice().run(corners(shipped), tmp_path)
    SimulatedDevice().run([first], tmp_path, status=TrialStatus.OOM)
    advice = advise(request(1, 1, 1, tmp_path))
    row = next(row for row in advice.candidates if row.evaluation.setting == first.setting)
    assert row.measured.ran_out
    assert row.evaluation.fit_probability == 0.0
    assert advice.candidates[0] is not row


def test_runs_that_contradict_each_other_are_doubted(shipped: list[Answer], tmp_path: Path) -> None:
    """Leftovers of two unlike machines in one folder: said with how far they scatter, and bands are
    no narrower than the shipped one. Runs of one machine pass."""
    for number, row in enumerate(fitting_rows(*shipped)[::6]):
        unlike = SimulatedDevice(base=(0.6, 2.2)[number % 2], activations=(-0.3, 0.2)[number % 2])
        unlike.run([row], tmp_path / "unlike" / str(number))
    doubted, trusted = request(2, 1, 1, tmp_path / "unlike"), request(2, 1, 1, tmp_path / "like")
    SimulatedDevice().run(corners(shipped), tmp_path / "like")
    answer, learned = advise(doubted), advise(trusted).calibration.learned
    assert set(learned.scatter.values()) == {1.0}
    assert min(answer.calibration.learned.scatter.values()) > 5
    (words,) = (said for said in learned_words(answer.calibration.learned) if "doubtful" in said)
    assert "step times" in words
    assert "bytes" in words
    for row in answer.candidates:
        its = row.evaluation
        assert its.step_time_high_seconds / its.step_time_seconds > 1.12
