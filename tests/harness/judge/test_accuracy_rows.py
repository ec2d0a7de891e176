"""Results become rows: cells, repeats, what is trusted."""

import pytest
from msgspec.structs import replace

from harness.judge.accuracy_rows import (
    Half,
    SettingRow,
    accuracy_of,
    first_choice,
    looked_at,
    regret,
    setting_rows,
)
from harness.trial.result import TrialStatus
from harness.trial.trial import Device
from tests.harness.judge.synthetic import GIB, WORKLOAD, prediction, result


def test_a_row_holds_both_sides() -> None:
    none, mlp = setting_rows(
        [
            result("selective:mlp", 1.2, predicted=prediction(1.1, 8 * GIB), peak=10 * GIB),
            result("none", 1.0, predicted=prediction(0.9, 9 * GIB), peak=10 * GIB),
        ]
    )
    assert (none.setting, mlp.setting) == ("none", "selective:mlp")
    assert none.cell == mlp.cell
    assert none.allocated.error == pytest.approx(-0.1)
    assert none.reserved.measured == 11 * GIB
    assert none.kept.error == 0
    assert mlp.overhead.predicted == pytest.approx(1.1 / 0.9 - 1)
    assert mlp.overhead.measured == pytest.approx(0.2)
    assert none.overhead.measured == 0
    assert none.calibration == "h200"


@pytest.mark.parametrize(("reason", "peak"), [("spread", 99), ("allocator_retries", 11)])
def test_processes_are_joined_and_the_untrusted_give_bytes_at_most(reason: str, peak: int) -> None:
    """Steps of unequal length keep the same bytes; an allocator at its limit does not."""
    wild = result("none", 9.0, repeat=2, status=TrialStatus.UNSTABLE, peak=99 * GIB, concern=reason)
    (row,) = setting_rows([result("none", 1.0), result("none", 2.0, repeat=1, peak=11 * GIB), wild])
    assert row.processes == 2
    assert row.step.measured == 1.5
    assert row.allocated.measured == peak * GIB
    assert row.why == f"unstable: {reason} 9 %"
    assert row.measured_fits


def test_the_prediction_is_the_one_made_before_the_first_process() -> None:
    later = result("none", 1.0, predicted=prediction(5.0, GIB), repeat=1)
    first = result("none", 1.0, predicted=prediction(1.0, GIB))
    (row,) = setting_rows([later, first])
    assert row.step.predicted == 1.0


def test_out_of_memory_is_a_verdict_without_numbers() -> None:
    oom = result("none", None, predicted=prediction(1.0, GIB), status=TrialStatus.OOM)
    (row,) = setting_rows([oom])
    assert row.measured_fits is False
    assert row.predicted_fits is True
    assert row.step.measured is row.allocated.measured is None
    assert row.why.startswith("oom: ")


def test_cells_differ_by_workload_device_and_allocator_but_not_by_setting() -> None:
    longer = replace(WORKLOAD, seq_length=128)
    cpu = replace(WORKLOAD, device=Device.CPU)
    found = setting_rows(
        [
            result("none", 1.0),
            result("selective:mlp", 1.0),
            result("none", 1.0, workload=longer),
            result("none", 1.0, workload=cpu, environment={"gpus": []}),
        ]
    )
    assert len({row.cell for row in found}) == 3
    batch = WORKLOAD.global_batch_size // WORKLOAD.layout.data_parallel_size
    words = f"{batch // WORKLOAD.micro_batch_size} x {WORKLOAD.micro_batch_size}"
    assert words in found[0].cell.label.split(", ")
    split = replace(WORKLOAD.layout, data_parallel_size=1, tensor_model_parallel_size=2)
    for layout, degrees in ((replace(split, tensor_model_parallel_size=1), 0), (split, 1)):
        (row,) = setting_rows([result("none", 1.0, workload=replace(WORKLOAD, layout=layout))])
        assert row.cell.label.split(", ").count("TP2 PP1") == degrees == row.cell.label.count("TP")
    assert {row.cell.group for row in found} == {"cuda native toy", "cpu native toy"}
    assert {row.cell.half for row in found} <= set(Half)


def test_a_process_that_left_no_fingerprint_belongs_to_the_others() -> None:
    killed = result("selective:mlp", None, status=TrialStatus.TIMEOUT, environment={})
    found = setting_rows([killed, result("none", 1.0)])
    assert len({row.cell for row in found}) == 1
    assert found[1].measured_fits is None


def test_a_half_is_a_matter_of_the_key_alone() -> None:
    (row,) = setting_rows([result("none", 1.0)])
    assert replace(row.cell, key="a0", label="x").half is Half.FIT
    assert replace(row.cell, key="a1").half is Half.HELD_OUT


SPECS = ("none", "selective:mlp", "full:uniform:1")


def cell(
    predicted: tuple[float, ...],
    measured: tuple[float | None, ...],
    probabilities: tuple[float, ...] = (1.0, 1.0, 1.0),
) -> tuple[SettingRow, ...]:
    rows = zip(SPECS, predicted, measured, probabilities, strict=True)
    status = {True: TrialStatus.OOM, False: TrialStatus.OK}
    return setting_rows(
        [
            result(spec, seen, predicted=prediction(*said), status=status[seen is None])
            for spec, seen, said in ((s, m, (p, 8 * GIB, chance)) for s, p, m, chance in rows)
        ]
    )


def test_a_perfect_cell() -> None:
    found = accuracy_of("all", cell((1.0, 1.2, 1.5), (1.0, 1.2, 1.5)))
    assert (found.cells, found.rows) == (1, 3)
    assert found.step.mean == 0
    assert found.overhead.count == 2
    assert found.tau == 1.0
    assert found.regret == found.worst_regret == 0.0
    assert found.verdicts == {(True, True): 3}


def test_errors_are_means_of_sizes_and_the_worst_signed() -> None:
    found = accuracy_of("all", cell((1.1, 1.2, 1.2), (1.0, 1.2, 1.5)))
    assert found.step.mean == pytest.approx((0.1 + 0.0 + 0.2) / 3)
    assert found.step.worst == pytest.approx(-0.2)
    assert found.allocated.worst == pytest.approx(-0.2)  # 8 of 10 GiB
    assert found.overhead.worst == pytest.approx((1.2 / 1.1 - 1) - 0.5)


def test_a_wrong_order_costs_what_the_choice_costs() -> None:
    own = cell((1.0, 1.2, 1.5), (1.3, 1.0, 1.5))
    assert regret(own) == pytest.approx(0.3)
    assert accuracy_of("all", own).tau == pytest.approx(1 / 3)
    right = [replace(row, cell=replace(row.cell, key="x")) for row in cell((1, 2, 3), (1, 2, 3))]
    both = accuracy_of("all", [*own, *right])
    assert (both.regret, both.worst_regret) == pytest.approx((0.15, 0.3))


def test_the_first_choice_is_the_fastest_that_is_said_to_fit() -> None:
    own = cell((1.0, 1.2, 1.5), (None, 1.2, 1.5), (0.5, 0.95, 1.0))
    choice = first_choice(own)
    assert choice.setting == "selective:mlp"
    assert regret(own) == 0.0
    assert accuracy_of("all", own).verdicts == {(True, True): 2, (False, False): 1}


def test_a_choice_that_runs_out_of_memory_has_no_finite_price() -> None:
    own = cell((1.0, 1.2, 1.5), (None, 1.2, 1.5))
    found = accuracy_of("all", own)
    assert found.worst_regret == float("inf")
    assert found.regret is None
    assert found.verdicts[True, False] == 1


def test_a_refusal_that_runs_is_counted() -> None:
    assert accuracy_of("x", cell((1, 2, 3), (1, 2, 3), (0.1, 1, 1))).verdicts[False, True] == 1


def test_nothing_is_judged_of_nothing() -> None:
    found = accuracy_of("none", ())
    assert found.step is found.tau is found.regret is found.worst_regret is None
    assert regret(cell((1.0, 1.2, 1.5), (1.0, None, None))) is None


def test_a_cell_that_was_looked_at_is_not_held_out(tmp_path) -> None:
    lengths = (replace(WORKLOAD, seq_length=128 * n) for n in range(1, 9))
    found = setting_rows([result("none", 1.0, workload=one) for one in lengths])
    held = next(row.cell for row in found if row.cell.half is Half.HELD_OUT)
    assert looked_at(tmp_path) == frozenset()
    (tmp_path / "looked_at.yaml").write_text(f"'{held.key}': its times\n")
    assert replace(held, looked_at=held.key in looked_at(tmp_path)).half is Half.FIT
